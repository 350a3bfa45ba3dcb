//! Memory for commands and requests of which only a part has come: one bound for all connections.
//!
//! A connection holds up to [`FREE_BYTES`] of a command for nothing and without asking: that is its
//! own share. Beyond, it takes memory from the budget before it reads, and gives back at once what
//! did not come: so what is charged is what is held. Each protocol has a budget of its own for
//! commands of usual size ([`USUAL_BYTES_MAX`]); the rest is for all (`budget.rs`).
//! `docs/decisions/008` says why.
//!
//! A connection that finds no memory free is not read from, and waits in order. A peer that does
//! not send the rest in time loses its connection; while others wait, so do those that have been
//! silent longest.

pub(crate) mod budget;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::{Context, Poll};

use cloverleaf_telemetry::Protocol;
use parking_lot::Mutex;

use crate::half_received::budget::{Bounds, HalfReceivedBudget, Share};

/// Bytes that a connection holds without asking.
pub(crate) const FREE_BYTES: usize = 32 * 1024;

/// Up to this size a command is a usual one: Kafka's producers send requests of 1 MiB at most, and
/// a little beside, unless they are told otherwise.
const USUAL_BYTES_MAX: usize = 1 << 20 | 64 << 10;

/// The memory of all connections.
pub(crate) struct HalfReceived {
    /// A connection waits for memory, or the next one will.
    is_tight: AtomicBool,
    closed: AtomicU64,
    budget: Mutex<HalfReceivedBudget>,
}

impl HalfReceived {
    /// For connections of these protocols.
    pub(crate) fn new(bounds: Bounds, protocols: &[Protocol]) -> Arc<HalfReceived> {
        Arc::new(HalfReceived {
            is_tight: AtomicBool::new(false),
            closed: AtomicU64::new(0),
            budget: Mutex::new(HalfReceivedBudget::new(bounds, protocols)),
        })
    }

    /// Bytes that are charged.
    pub(crate) fn bytes(&self) -> u64 {
        self.budget.lock().bytes()
    }

    /// Connections that are not read from because no memory is free.
    pub(crate) fn waiting(&self) -> usize {
        self.budget.lock().waiting()
    }

    /// Connections closed because the rest did not come.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Relaxed)
    }

    pub(crate) fn count_closed(&self) {
        self.closed.fetch_add(1, Relaxed);
    }

    fn with<T>(&self, change: impl FnOnce(&mut HalfReceivedBudget) -> T) -> T {
        let mut budget = self.budget.lock();
        let result = change(&mut budget);
        self.is_tight.store(budget.is_tight(), Relaxed);
        result
    }
}

/// The part of the memory that one connection holds.
pub(crate) struct HeldMemory {
    of: Arc<HalfReceived>,
    protocol: Protocol,
    address: IpAddr,
    /// Its place; `None` while nothing is charged and it does not wait.
    ticket: Option<u64>,
    /// Bytes that are charged to it.
    bytes: u64,
    /// When it has to be asked again, while it waits.
    again_us: Option<u64>,
}

impl HeldMemory {
    pub(crate) fn new(of: Arc<HalfReceived>, protocol: Protocol, address: IpAddr) -> HeldMemory {
        HeldMemory {
            of,
            protocol,
            // One client may be seen by both of an address's forms.
            address: address.to_canonical(),
            ticket: None,
            bytes: 0,
            again_us: None,
        }
    }

    fn share(&self, needed_bytes: usize) -> Share {
        Share {
            protocol: self.protocol,
            is_usual: needed_bytes <= USUAL_BYTES_MAX,
        }
    }

    /// Whether more than [`FREE_BYTES`] should not be read at once, where it is not known yet of
    /// how large a command.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        self.of.is_tight.load(Relaxed)
    }

    /// Takes memory for `bytes` bytes of a command of `needed_bytes`, if as much is free and no
    /// other connection waits for it.
    pub(crate) fn try_grow(
        &mut self,
        needed_bytes: usize,
        bytes: usize,
        cx: &Context<'_>,
        now_us: u64,
    ) -> bool {
        let share = self.share(needed_bytes);
        let bytes = self.bytes.max(bytes as u64);
        self.of.with(|budget| {
            let ticket = *self
                .ticket
                .get_or_insert_with(|| budget.open(share, self.address, now_us));
            budget.describe(ticket, share, needed_bytes as u64, cx.waker());
            let has_room = bytes == self.bytes || budget.take(ticket, bytes, false);
            if has_room {
                budget.resume(ticket, now_us);
                (self.bytes, self.again_us) = (bytes, None);
            }
            has_room
        })
    }

    /// The same where as much has come and is to be read. If no memory is free the waker will be
    /// woken; then ask again, or [`HeldMemory::pause`], or [`HeldMemory::expect`].
    pub(crate) fn poll_grow(
        &mut self,
        needed_bytes: usize,
        bytes: usize,
        cx: &Context<'_>,
        now_us: u64,
    ) -> Poll<()> {
        if self.try_grow(needed_bytes, bytes, cx, now_us) {
            return Poll::Ready(());
        }
        let Some(ticket) = self.ticket else {
            return Poll::Pending;
        };
        let bytes = bytes as u64;
        self.of.with(|budget| {
            if budget.take(ticket, bytes, true) {
                budget.resume(ticket, now_us);
                (self.bytes, self.again_us) = (bytes, None);
                return Poll::Ready(());
            }
            budget.wait(ticket, bytes, now_us);
            self.again_us = budget.make_room(ticket, bytes, now_us);
            Poll::Pending
        })
    }

    /// Whether it waits for memory.
    pub(crate) fn is_waiting(&self) -> bool {
        self.ticket
            .is_some_and(|ticket| self.of.budget.lock().is_waiting(ticket))
    }

    /// It is not read from for a while, and the peer is not to blame.
    #[inline]
    pub(crate) fn pause(&mut self, now_us: u64) {
        if let Some(ticket) = self.ticket {
            self.again_us = None;
            self.of.with(|budget| {
                budget.leave_queue(ticket);
                budget.pause(ticket, now_us);
            });
        }
    }

    /// It would be read from, but nothing has come: the peer is waited for, not memory.
    pub(crate) fn expect(&mut self, now_us: u64) {
        if let Some(ticket) = self.ticket {
            self.again_us = None;
            self.of.with(|budget| {
                budget.leave_queue(ticket);
                budget.resume(ticket, now_us);
            });
        }
    }

    /// It holds so many bytes now, for `came_bytes` of a command of `needed_bytes`. They were read
    /// already, so there is no asking; the waker is woken where others need the memory. `is_next`:
    /// of another command than before.
    #[inline]
    pub(crate) fn settle(
        &mut self,
        needed_bytes: usize,
        came_bytes: usize,
        bytes: usize,
        is_next: bool,
        cx: &Context<'_>,
        now_us: u64,
    ) {
        if bytes <= FREE_BYTES {
            if self.ticket.is_some() {
                self.release();
            }
            return;
        }
        if is_next {
            self.release();
        }
        let share = self.share(needed_bytes);
        self.bytes = bytes as u64;
        self.of.with(|budget| {
            let ticket = *self
                .ticket
                .get_or_insert_with(|| budget.open(share, self.address, now_us));
            budget.describe(ticket, share, needed_bytes as u64, cx.waker());
            budget.resize(ticket, bytes as u64);
            budget.came(ticket, came_bytes as u64, now_us);
        });
    }

    /// When [`HeldMemory::is_over`] has to be asked again, or memory.
    #[inline]
    pub(crate) fn due_us(&self) -> Option<u64> {
        let ticket = self.ticket?;
        self.again_us
            .or_else(|| self.of.budget.lock().end_us(ticket))
    }

    /// Whether the connection has to end, because the rest did not come in time, or because others
    /// need the memory.
    #[inline]
    pub(crate) fn is_over(&self, now_us: u64) -> bool {
        self.ticket.is_some_and(|ticket| {
            let end_us = self.of.budget.lock().end_us(ticket);
            end_us.is_some_and(|end_us| now_us >= end_us)
        })
    }

    /// It holds nothing any more.
    pub(crate) fn release(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            (self.bytes, self.again_us) = (0, None);
            self.of.with(|budget| budget.close(ticket));
        }
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests;
