//! Memory for commands and requests that have come in part: one bound for all connections.
//!
//! A connection that holds at most [`FREE_BYTES`] of a command is not charged; one that holds more
//! is charged for its whole buffer. Such a connection reserves memory from the budget before it
//! reads, and releases at once the memory that the read did not fill, so that the bytes charged are
//! the bytes held. Each protocol has a budget of its own for commands of usual size
//! ([`USUAL_BYTES_MAX`]); the rest is common to all (`budget.rs`). `docs/decisions/008` says why.
//!
//! A connection that finds no free memory is not read from, and waits in order. A peer that does
//! not send the rest in time is disconnected; while others wait for memory, the connections that
//! have been silent longest are closed early, to free theirs.

pub(crate) mod budget;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::{Context, Poll};

use cloverleaf_telemetry::Protocol;
use parking_lot::Mutex;

use crate::half_received::budget::{BudgetBounds, HalfReceivedBudget, Share};

/// Bytes that a connection may hold without a charge.
pub(crate) const FREE_BYTES: usize = 32 * 1024;

/// Maximum size of a usual command: by default, Kafka's producers send requests of at most 1 MiB
/// plus some overhead.
const USUAL_BYTES_MAX: usize = 1 << 20 | 64 << 10;

/// The memory of all connections.
pub(crate) struct HalfReceived {
    /// Whether a connection waits for memory, or the next one that needs some from the common part
    /// would have to.
    is_tight: AtomicBool,
    closed: AtomicU64,
    budget: Mutex<HalfReceivedBudget>,
}

impl HalfReceived {
    /// A budget for connections of these protocols.
    pub(crate) fn new(bounds: BudgetBounds, protocols: &[Protocol]) -> Arc<HalfReceived> {
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

    /// Connections closed because the rest of their command did not come.
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
    memory: Arc<HalfReceived>,
    protocol: Protocol,
    address: IpAddr,
    /// Its ticket in the budget; `None` while nothing is charged and it does not wait.
    ticket: Option<u64>,
    /// Bytes that are charged to it.
    bytes: u64,
    /// While it waits: when to call [`HeldMemory::poll_grow`] again, if it has not been woken by
    /// then.
    retry_us: Option<u64>,
}

impl HeldMemory {
    pub(crate) fn new(
        memory: Arc<HalfReceived>,
        protocol: Protocol,
        address: IpAddr,
    ) -> HeldMemory {
        HeldMemory {
            memory,
            protocol,
            // A client may appear as IPv4 and as IPv4-mapped IPv6: both are one address.
            address: address.to_canonical(),
            ticket: None,
            bytes: 0,
            retry_us: None,
        }
    }

    fn share(&self, needed_bytes: usize) -> Share {
        Share {
            protocol: self.protocol,
            is_usual: needed_bytes <= USUAL_BYTES_MAX,
        }
    }

    /// Whether memory is short: then at most [`FREE_BYTES`] are read of a command whose size is not
    /// known yet.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        self.memory.is_tight.load(Relaxed)
    }

    /// Reserves memory for `bytes` bytes of a command of `needed_bytes`, if enough is free and no
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
        self.memory.with(|budget| {
            let ticket = *self
                .ticket
                .get_or_insert_with(|| budget.open(share, self.address, now_us));
            budget.describe(ticket, share, needed_bytes as u64, cx.waker());
            let is_granted = bytes == self.bytes || budget.try_hold(ticket, bytes, false);
            if is_granted {
                budget.resume(ticket, now_us);
                (self.bytes, self.retry_us) = (bytes, None);
            }
            is_granted
        })
    }

    /// Like [`HeldMemory::try_grow`], for bytes that are already in the socket's buffer: if no
    /// memory is free, the connection is queued, and its waker is woken when some is. Then call
    /// this again, or leave the queue with [`HeldMemory::pause`] or [`HeldMemory::await_peer`].
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
        self.memory.with(|budget| {
            if budget.try_hold(ticket, bytes, true) {
                budget.resume(ticket, now_us);
                (self.bytes, self.retry_us) = (bytes, None);
                return Poll::Ready(());
            }
            budget.enqueue(ticket, bytes, now_us);
            self.retry_us = budget.close_silent(ticket, bytes, now_us);
            Poll::Pending
        })
    }

    /// Whether the connection waits for memory.
    pub(crate) fn is_waiting(&self) -> bool {
        self.ticket
            .is_some_and(|ticket| self.memory.budget.lock().is_waiting(ticket))
    }

    /// The session wants no input now, which must not count as silence of the peer.
    #[inline]
    pub(crate) fn pause(&mut self, now_us: u64) {
        if let Some(ticket) = self.ticket {
            self.retry_us = None;
            self.memory.with(|budget| {
                budget.leave_queue(ticket);
                budget.pause(ticket, now_us);
            });
        }
    }

    /// The socket is empty: the connection waits for its peer, not for memory, so the peer's time
    /// limit runs.
    pub(crate) fn await_peer(&mut self, now_us: u64) {
        if let Some(ticket) = self.ticket {
            self.retry_us = None;
            self.memory.with(|budget| {
                budget.leave_queue(ticket);
                budget.resume(ticket, now_us);
            });
        }
    }

    /// Charges the connection for a buffer of `bytes` that has `received_bytes` of a command of
    /// `needed_bytes`. Never refuses, because the bytes were read already; the waker is woken if
    /// others need the memory. `is_next`: this command is not the one of the last call.
    #[inline]
    pub(crate) fn charge(
        &mut self,
        needed_bytes: usize,
        received_bytes: usize,
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
        self.memory.with(|budget| {
            let ticket = *self
                .ticket
                .get_or_insert_with(|| budget.open(share, self.address, now_us));
            budget.describe(ticket, share, needed_bytes as u64, cx.waker());
            budget.resize(ticket, bytes as u64);
            budget.received(ticket, received_bytes as u64, now_us);
        });
    }

    /// When to call [`HeldMemory::is_expired`] again; while it waits, [`HeldMemory::poll_grow`].
    #[inline]
    pub(crate) fn due_us(&self) -> Option<u64> {
        let ticket = self.ticket?;
        self.retry_us
            .or_else(|| self.memory.budget.lock().end_us(ticket))
    }

    /// Whether the connection has to end, because the rest did not come in time, or because others
    /// need the memory.
    #[inline]
    pub(crate) fn is_expired(&self, now_us: u64) -> bool {
        self.ticket.is_some_and(|ticket| {
            let end_us = self.memory.budget.lock().end_us(ticket);
            end_us.is_some_and(|end_us| now_us >= end_us)
        })
    }

    /// Releases all memory: the connection holds no part of a command any more.
    pub(crate) fn release(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            (self.bytes, self.retry_us) = (0, None);
            self.memory.with(|budget| budget.close(ticket));
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
