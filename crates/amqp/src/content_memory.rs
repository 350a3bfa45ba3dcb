//! A memory budget, shared by all connections, for messages that cannot be stored yet: contents
//! whose frames are interleaved with those of other channels, and uncommitted transactions.
//!
//! A connection may use half of the budget while the other half is free. Once more than half is in
//! use, its limit is a quarter, or its largest message or transaction if that is more. In that
//! state a connection that has held memory for too long is closed, so that no connection keeps
//! memory from the others forever.
//!
//! A content whose frames arrive one after the other is not counted here: it stays in the driver's
//! read buffer, which has a bound of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// While the budget is tight, one connection may use a fourth of it.
const SHARE_DIVISOR: u64 = 4;
/// Memory may be held for this long while the budget is tight.
const HOLD_MAX_US: u64 = 30_000_000;
/// The slowest upload that is tolerated: per MiB held, the time limit grows by one second.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;
/// Interval at which a connection that holds memory checks whether the budget is tight.
const CHECK_INTERVAL_US: u64 = 5_000_000;

/// The memory budget of all connections.
#[derive(Debug)]
pub struct ContentMemory {
    bytes_max: u64,
    bytes: AtomicU64,
}

impl ContentMemory {
    /// A budget of `bytes_max` bytes for all connections.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            bytes: AtomicU64::new(0),
        })
    }

    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Whether more than half is in use, so that connections have to keep to their share.
    fn is_tight(&self) -> bool {
        self.bytes() > self.bytes_max / 2
    }
}

/// Adds to a counter unless the sum would exceed `bytes_max`.
fn try_add(counter: &AtomicU64, bytes: u64, bytes_max: u64) -> bool {
    let add = |used: u64| {
        let sum = used.checked_add(bytes)?;
        (sum <= bytes_max).then_some(sum)
    };
    counter.fetch_update(Relaxed, Relaxed, add).is_ok()
}

/// One connection's share of the budget.
#[derive(Debug)]
pub(crate) struct ContentShare {
    memory: Arc<ContentMemory>,
    bytes_max: u64,
    bytes: AtomicU64,
    /// When to check next whether memory is held for too long.
    check_us: AtomicU64,
}

impl ContentShare {
    /// The share of a connection whose largest message or transaction has `largest_bytes` bytes.
    pub(crate) fn new(memory: &Arc<ContentMemory>, largest_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            memory: Arc::clone(memory),
            bytes_max: largest_bytes.max(memory.bytes_max / SHARE_DIVISOR),
            bytes: AtomicU64::new(0),
            check_us: AtomicU64::new(u64::MAX),
        })
    }

    /// The time by which [`ContentShare::is_due`] has to be called.
    pub(crate) fn due_us(&self) -> u64 {
        match self.bytes.load(Relaxed) {
            0 => u64::MAX,
            _ => self.check_us.load(Relaxed),
        }
    }

    /// Whether all that this connection holds has to be checked with
    /// [`ContentReservation::is_overdue`].
    pub(crate) fn is_due(&self, now_us: u64) -> bool {
        if now_us < self.due_us() {
            return false;
        }
        self.check_us.store(now_us + CHECK_INTERVAL_US, Relaxed);
        self.memory.is_tight()
    }

    fn try_add(&self, bytes: u64, now_us: u64) -> bool {
        let most = if self.memory.is_tight() {
            self.bytes_max
        } else {
            self.bytes_max.max(self.memory.bytes_max / 2)
        };
        if !try_add(&self.bytes, bytes, most) {
            return false;
        }
        if !try_add(&self.memory.bytes, bytes, self.memory.bytes_max) {
            self.bytes.fetch_sub(bytes, Relaxed);
            return false;
        }
        if self.bytes.load(Relaxed) == bytes {
            self.check_us.store(now_us + HOLD_MAX_US, Relaxed);
        }
        true
    }

    fn release(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
        self.memory.bytes.fetch_sub(bytes, Relaxed);
    }
}

/// The memory of one content or transaction, out of its connection's share; dropping it releases
/// the memory.
#[derive(Debug)]
pub(crate) struct ContentReservation {
    share: Arc<ContentShare>,
    bytes: u64,
    since_us: u64,
}

impl ContentReservation {
    pub(crate) fn empty(share: &Arc<ContentShare>) -> Self {
        Self {
            share: Arc::clone(share),
            bytes: 0,
            since_us: 0,
        }
    }

    /// Reserves `bytes` more; `false`: they exceed the budget, and nothing changes.
    #[must_use]
    pub(crate) fn try_grow(&mut self, bytes: usize, now_us: u64) -> bool {
        let bytes = bytes as u64;
        let fits = self.share.try_add(bytes, now_us);
        if fits {
            if self.bytes == 0 {
                self.since_us = now_us;
            }
            self.bytes += bytes;
        }
        fits
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether this was held for too long. It counts only while the budget is tight.
    pub(crate) fn is_overdue(&self, now_us: u64) -> bool {
        let more_us = self.bytes.saturating_mul(1_000_000) / BYTES_PER_SECOND_MIN;
        self.bytes > 0 && now_us >= self.since_us + HOLD_MAX_US + more_us
    }

    pub(crate) fn release(&mut self) {
        self.share.release(self.bytes);
        self.bytes = 0;
    }
}

impl Drop for ContentReservation {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_a_reservation_releases_its_memory() {
        let memory = ContentMemory::new(100);
        let shares = [60, 100].map(|most| ContentShare::new(&memory, most));
        let (mut a, mut b) = (
            ContentReservation::empty(&shares[0]),
            ContentReservation::empty(&shares[1]),
        );
        assert!(a.try_grow(60, 0));
        assert!(!a.try_grow(1, 0), "over its share");
        assert!(!b.try_grow(41, 0));
        assert!(b.try_grow(40, 0));
        assert_eq!(memory.bytes(), 100);
        drop(a);
        assert_eq!((memory.bytes(), b.bytes()), (40, 40));
        b.release();
        assert!(b.try_grow(100, 0));
    }

    #[test]
    fn a_connection_may_use_half_of_free_memory_and_a_quarter_of_tight_memory() {
        let memory = ContentMemory::new(100);
        let shares = [10, 10].map(|one| ContentShare::new(&memory, one));
        let (mut a, mut b) = (
            ContentReservation::empty(&shares[0]),
            ContentReservation::empty(&shares[0]),
        );
        assert!(a.try_grow(20, 0));
        assert!(b.try_grow(30, 0));
        assert!(!b.try_grow(1, 0), "over half of the budget");
        let mut other = ContentReservation::empty(&shares[1]);
        assert!(other.try_grow(20, 0), "not tight before");
        assert!(!other.try_grow(6, 0), "over a quarter of a tight budget");
        assert!(other.try_grow(5, 0));
        a.release();
        assert!(!b.try_grow(1, 0), "still over a quarter");
    }

    #[test]
    fn a_reservation_is_overdue_only_after_a_long_time_and_while_memory_is_tight() {
        let memory = ContentMemory::new(100);
        let shares = [50, 50].map(|most| ContentShare::new(&memory, most));
        let (mut a, mut b) = (
            ContentReservation::empty(&shares[0]),
            ContentReservation::empty(&shares[1]),
        );
        assert!(a.try_grow(50, 7));
        let due_us = shares[0].due_us();
        assert_eq!(due_us, 7 + HOLD_MAX_US);
        assert!(!shares[0].is_due(due_us), "not tight");
        assert_eq!(shares[0].due_us(), due_us + CHECK_INTERVAL_US);
        assert!(b.try_grow(1, due_us));
        assert!(shares[0].is_due(due_us + CHECK_INTERVAL_US));
        assert!(!a.is_overdue(due_us), "50 bytes get extra time");
        assert!(a.is_overdue(due_us + CHECK_INTERVAL_US));
        assert!(!b.is_overdue(due_us + CHECK_INTERVAL_US));
        a.release();
        assert_eq!(shares[0].due_us(), u64::MAX);
        assert!(!a.is_overdue(u64::MAX / 2));
    }
}
