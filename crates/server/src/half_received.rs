//! Memory for commands and requests of which only a part has come: one bound for all connections.
//!
//! A connection holds up to [`FREE_BYTES`] of a command for nothing and without asking. Beyond
//! that the first read, which tells how large the command is, is charged here when it is there,
//! and all that follows before it is read: who finds no room is not read from, and waits in order.
//! Of each share one connection at a time may go beyond the bound: so the largest request fits
//! whatever the bound is, and of those that wait for each other one always goes on. A peer that
//! does not send the rest in time gives up its place, see [`Hold::due_us`].
//!
//! Commands of up to [`MIDDLE_BYTES_MAX`] have a share of a quarter of the memory: peers with huge
//! requests do not hold up those with usual ones.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// What a connection holds without asking.
pub(crate) const FREE_BYTES: usize = 32 * 1024;

/// Up to this size a command is a usual one: Kafka's producers send requests of 1 MiB at most, and
/// a little beside, unless they are told otherwise.
const MIDDLE_BYTES_MAX: usize = 1 << 20 | 64 << 10;

/// While others wait, each so many bytes of a command give its peer a second more.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// The memory of all connections.
pub(crate) struct HalfReceived {
    middle: Share,
    large: Share,
    timeout_us: u64,
    closed: AtomicU64,
}

/// Memory for one size of commands.
struct Share {
    bytes_max: u64,
    bytes: AtomicU64,
    /// Somebody waits, or is about to find out that it must.
    is_tight: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, Waker)>,
    /// Who may go beyond the bound.
    ahead: Option<u64>,
    tickets: u64,
}

impl HalfReceived {
    pub(crate) fn new(bytes_max: u64, timeout_us: u64) -> Arc<HalfReceived> {
        let middle = bytes_max / 4;
        Arc::new(HalfReceived {
            middle: Share::new(middle),
            large: Share::new(bytes_max - middle),
            timeout_us,
            closed: AtomicU64::new(0),
        })
    }

    /// Bytes that are charged.
    pub(crate) fn bytes(&self) -> u64 {
        self.middle.bytes.load(Relaxed) + self.large.bytes.load(Relaxed)
    }

    /// Connections that are not read from for want of room.
    pub(crate) fn waiting(&self) -> usize {
        self.middle.queue.lock().waiting.len() + self.large.queue.lock().waiting.len()
    }

    /// Connections closed because the rest did not come.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Relaxed)
    }

    pub(crate) fn count_closed(&self) {
        self.closed.fetch_add(1, Relaxed);
    }
}

impl Share {
    fn new(bytes_max: u64) -> Share {
        Share {
            bytes_max,
            bytes: AtomicU64::new(0),
            is_tight: AtomicBool::new(false),
            queue: Mutex::default(),
        }
    }

    fn try_add(&self, bytes: u64) -> bool {
        let add = |used: u64| {
            let sum = used.checked_add(bytes)?;
            (sum <= self.bytes_max).then_some(sum)
        };
        self.bytes.fetch_update(SeqCst, SeqCst, add).is_ok()
    }

    fn poll_add(&self, ticket: &mut u64, bytes: u64, cx: &Context<'_>) -> Poll<()> {
        if *ticket == 0 && !self.is_tight.load(SeqCst) && self.try_add(bytes) {
            return Poll::Ready(());
        }
        let mut queue = self.queue.lock();
        if *ticket == 0 {
            queue.tickets += 1;
            *ticket = queue.tickets;
        }
        if queue.ahead == Some(*ticket) {
            self.bytes.fetch_add(bytes, SeqCst);
            return Poll::Ready(());
        }
        // Before the bytes are looked at: who gives some back from now on wakes the first.
        self.is_tight.store(true, SeqCst);
        let first = queue.waiting.front().map(|(other, _)| *other);
        if first.is_none_or(|first| first == *ticket) {
            let fits = self.try_add(bytes);
            if fits || queue.ahead.is_none() {
                queue.waiting.pop_front();
                match fits {
                    true => *ticket = 0,
                    false => {
                        queue.ahead = Some(*ticket);
                        self.bytes.fetch_add(bytes, SeqCst);
                    }
                }
                self.wake_first(&queue);
                return Poll::Ready(());
            }
        }
        let mut places = queue.waiting.iter_mut();
        match places.find(|(other, _)| other == ticket) {
            Some((_, waker)) => waker.clone_from(cx.waker()),
            None => queue.waiting.push_back((*ticket, cx.waker().clone())),
        }
        Poll::Pending
    }

    fn wake_first(&self, queue: &Queue) {
        match queue.waiting.front() {
            Some((_, waker)) => waker.wake_by_ref(),
            None => self.is_tight.store(false, SeqCst),
        }
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, SeqCst);
            if self.is_tight.load(SeqCst) {
                self.wake_first(&self.queue.lock());
            }
        }
    }

    /// Ends the waiting, and the leave to go beyond the bound.
    fn leave(&self, ticket: u64) {
        let mut queue = self.queue.lock();
        queue.waiting.retain(|(other, _)| *other != ticket);
        if queue.ahead == Some(ticket) {
            queue.ahead = None;
        }
        self.wake_first(&queue);
    }
}

/// What one connection has of it.
pub(crate) struct Hold {
    of: Arc<HalfReceived>,
    middle_bytes: u64,
    large_bytes: u64,
    /// Place in the queue of `is_large`'s share, or leave to go beyond its bound; 0 for neither.
    ticket: u64,
    is_large: bool,
    /// When the command that is charged began to be, without the time that its peer is not to
    /// blame for.
    began_us: u64,
    /// The same of its last byte.
    moved_us: u64,
    /// Since when it is not read from.
    paused_us: Option<u64>,
    needed_bytes: u64,
}

impl Hold {
    pub(crate) fn new(of: Arc<HalfReceived>) -> Hold {
        Hold {
            of,
            middle_bytes: 0,
            large_bytes: 0,
            ticket: 0,
            is_large: false,
            began_us: 0,
            moved_us: 0,
            paused_us: None,
            needed_bytes: 0,
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.middle_bytes + self.large_bytes + self.ticket == 0
    }

    fn share(&self) -> &Share {
        match self.is_large {
            true => &self.of.large,
            false => &self.of.middle,
        }
    }

    /// Whether more than [`FREE_BYTES`] should not be read at once, where it is not known yet of
    /// how large a command.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        let middle = &self.of.middle;
        middle.bytes.load(Relaxed) >= middle.bytes_max
    }

    /// Charges for a command of `needed_bytes` what it takes to hold `bytes` of it. If there is no
    /// room the waker will be woken; then ask again, or [`Hold::pause`].
    pub(crate) fn poll_grow(
        &mut self,
        needed_bytes: usize,
        bytes: usize,
        cx: &Context<'_>,
        now_us: u64,
    ) -> Poll<()> {
        let is_new = self.is_empty();
        let missing = (bytes as u64).saturating_sub(self.middle_bytes + self.large_bytes);
        self.needed_bytes = needed_bytes as u64;
        if missing > 0 {
            let is_large = needed_bytes > MIDDLE_BYTES_MAX;
            if is_large != self.is_large {
                self.leave();
                self.is_large = is_large;
            }
            let mut ticket = self.ticket;
            let added = self.share().poll_add(&mut ticket, missing, cx);
            self.ticket = ticket;
            if is_new {
                (self.began_us, self.moved_us) = (now_us, now_us);
            }
            if added.is_pending() {
                self.paused_us.get_or_insert(now_us);
                return Poll::Pending;
            }
            match is_large {
                true => self.large_bytes += missing,
                false => self.middle_bytes += missing,
            }
        }
        if let Some(since_us) = self.paused_us.take() {
            let paused_us = now_us.saturating_sub(since_us);
            self.began_us += paused_us;
            self.moved_us += paused_us;
        }
        Poll::Ready(())
    }

    /// It is not read from for a while, and the peer is not to blame.
    #[inline]
    pub(crate) fn pause(&mut self, now_us: u64) {
        if self.is_empty() {
            return;
        }
        self.paused_us.get_or_insert(now_us);
        let ticket = self.ticket;
        if ticket != 0 && self.share().queue.lock().ahead != Some(ticket) {
            self.leave();
        }
    }

    /// Bytes of the command came.
    pub(crate) fn moved(&mut self, now_us: u64) {
        self.moved_us = now_us;
    }

    /// Of what is charged so many bytes are held now, of a command of `needed_bytes`. They were
    /// read already, so there is no asking; `is_next`: of another command than before.
    #[inline]
    pub(crate) fn settle(&mut self, needed_bytes: usize, bytes: usize, is_next: bool, now_us: u64) {
        if bytes <= FREE_BYTES {
            if !self.is_empty() {
                self.release();
            }
            return;
        }
        if is_next {
            self.release();
        }
        if self.is_empty() {
            (self.began_us, self.moved_us) = (now_us, now_us);
        }
        let missing = (bytes as u64).saturating_sub(self.middle_bytes + self.large_bytes);
        if missing > 0 {
            let (share, held) = match needed_bytes > MIDDLE_BYTES_MAX {
                true => (&self.of.large, &mut self.large_bytes),
                false => (&self.of.middle, &mut self.middle_bytes),
            };
            share.bytes.fetch_add(missing, SeqCst);
            *held += missing;
        }
    }

    /// When the peer has to have sent more, or all of it if others wait. `None` while nothing is
    /// charged or it is not the peer that is waited for.
    pub(crate) fn due_us(&self) -> Option<u64> {
        if self.is_empty() || self.paused_us.is_some() {
            return None;
        }
        let timeout_us = self.of.timeout_us;
        let silent_us = self.moved_us.saturating_add(timeout_us);
        let is_tight = |share: &Share, bytes: u64| bytes > 0 && share.is_tight.load(Relaxed);
        if !is_tight(&self.of.middle, self.middle_bytes)
            && !is_tight(&self.of.large, self.large_bytes)
        {
            return Some(silent_us);
        }
        let allowed_us = self.needed_bytes.saturating_mul(1_000_000) / BYTES_PER_SECOND_MIN;
        let whole_us = self
            .began_us
            .saturating_add(timeout_us)
            .saturating_add(allowed_us);
        Some(silent_us.min(whole_us))
    }

    fn leave(&mut self) {
        if self.ticket != 0 {
            self.share().leave(self.ticket);
            self.ticket = 0;
        }
    }

    fn release(&mut self) {
        let (middle, large) = (self.middle_bytes, self.large_bytes);
        (self.middle_bytes, self.large_bytes) = (0, 0);
        self.paused_us = None;
        self.needed_bytes = 0;
        self.of.middle.give_back(middle);
        self.of.large.give_back(large);
        self.leave();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.is_empty() {
            self.release();
        }
    }
}

#[cfg(test)]
#[path = "half_received_tests.rs"]
mod tests;
