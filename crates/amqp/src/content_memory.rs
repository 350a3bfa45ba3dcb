//! A bound on what all connections together hold of messages that they cannot store yet: contents
//! whose frames come mixed with those of other channels, and transactions that are not committed.
//!
//! A connection may have half of it while nobody else needs it, and else a share of a quarter, or
//! room for the largest message or transaction. While more than half of the memory is in use, a
//! connection that has held some of it for too long gives it up: so none keeps it from the others
//! for ever.
//!
//! A content whose frames come one after the other is held by the driver, which has a bound of its
//! own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One connection may hold this part of the memory.
const SHARE: u64 = 4;
/// How long something may be held while the memory is tight.
const HOLD_US: u64 = 30_000_000;
/// A content or transaction gets a second more for each so many bytes.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;
/// How often a connection that holds something for long looks whether the memory is tight.
const LOOK_US: u64 = 5_000_000;

/// The memory of all connections.
#[derive(Debug)]
pub struct ContentMemory {
    bytes_max: u64,
    bytes: AtomicU64,
}

impl ContentMemory {
    /// So many bytes for all.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            bytes: AtomicU64::new(0),
        })
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Whether the memory may soon be used up for others.
    fn is_tight(&self) -> bool {
        self.bytes() > self.bytes_max / 2
    }
}

/// Adds to what is held if that stays within a bound.
fn try_add(held: &AtomicU64, bytes: u64, bytes_max: u64) -> bool {
    let add = |used: u64| {
        let sum = used.checked_add(bytes)?;
        (sum <= bytes_max).then_some(sum)
    };
    held.fetch_update(Relaxed, Relaxed, add).is_ok()
}

/// The part of the memory that one connection has.
#[derive(Debug)]
pub(crate) struct ContentShare {
    memory: Arc<ContentMemory>,
    bytes_max: u64,
    bytes: AtomicU64,
    /// When to look whether something is held for too long.
    look_us: AtomicU64,
}

impl ContentShare {
    /// The share of a connection whose largest message or transaction has `one_bytes_max` bytes.
    pub(crate) fn new(memory: &Arc<ContentMemory>, one_bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            memory: Arc::clone(memory),
            bytes_max: one_bytes_max.max(memory.bytes_max / SHARE),
            bytes: AtomicU64::new(0),
            look_us: AtomicU64::new(u64::MAX),
        })
    }

    /// When [`ContentShare::is_due`] should be asked at the latest.
    pub(crate) fn due_us(&self) -> u64 {
        match self.bytes.load(Relaxed) {
            0 => u64::MAX,
            _ => self.look_us.load(Relaxed),
        }
    }

    /// Whether everything that is held has to be looked at ([`Held::is_overdue`]).
    pub(crate) fn is_due(&self, now_us: u64) -> bool {
        if now_us < self.due_us() {
            return false;
        }
        self.look_us.store(now_us + LOOK_US, Relaxed);
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
            self.look_us.store(now_us + HOLD_US, Relaxed);
        }
        true
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
        self.memory.bytes.fetch_sub(bytes, Relaxed);
    }
}

/// The part of a connection's share that one content or transaction has; given back when it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Held {
    share: Arc<ContentShare>,
    bytes: u64,
    since_us: u64,
}

impl Held {
    pub(crate) fn none(share: &Arc<ContentShare>) -> Self {
        Self {
            share: Arc::clone(share),
            bytes: 0,
            since_us: 0,
        }
    }

    /// Holds more; `false`: there is no room, and nothing changes.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize, now_us: u64) -> bool {
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

    /// Whether it would have to be given up if the memory were tight.
    pub(crate) fn is_overdue(&self, now_us: u64) -> bool {
        let more_us = self.bytes.saturating_mul(1_000_000) / BYTES_PER_SECOND_MIN;
        self.bytes > 0 && now_us >= self.since_us + HOLD_US + more_us
    }

    pub(crate) fn release(&mut self) {
        self.share.give_back(self.bytes);
        self.bytes = 0;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back() {
        let memory = ContentMemory::new(100);
        let shares = [60, 100].map(|most| ContentShare::new(&memory, most));
        let (mut a, mut b) = (Held::none(&shares[0]), Held::none(&shares[1]));
        assert!(a.grow(60, 0));
        assert!(!a.grow(1, 0), "its share");
        assert!(!b.grow(41, 0));
        assert!(b.grow(40, 0));
        assert_eq!(memory.bytes(), 100);
        drop(a);
        assert_eq!((memory.bytes(), b.bytes()), (40, 40));
        b.release();
        assert!(b.grow(100, 0));
    }

    #[test]
    fn a_connection_has_half_if_nobody_else_needs_it_and_a_quarter_else() {
        let memory = ContentMemory::new(100);
        let shares = [10, 10].map(|one| ContentShare::new(&memory, one));
        let (mut a, mut b) = (Held::none(&shares[0]), Held::none(&shares[0]));
        assert!(a.grow(20, 0));
        assert!(b.grow(30, 0));
        assert!(!b.grow(1, 0), "no more than half");
        let mut other = Held::none(&shares[1]);
        assert!(other.grow(20, 0), "there was room before");
        assert!(!other.grow(6, 0), "a quarter now");
        assert!(other.grow(5, 0));
        a.release();
        assert!(!b.grow(1, 0), "it has more than its quarter");
    }

    #[test]
    fn who_holds_for_long_gives_up_once_the_memory_is_tight() {
        let memory = ContentMemory::new(100);
        let shares = [50, 50].map(|most| ContentShare::new(&memory, most));
        let (mut a, mut b) = (Held::none(&shares[0]), Held::none(&shares[1]));
        assert!(a.grow(50, 7));
        let due_us = shares[0].due_us();
        assert_eq!(due_us, 7 + HOLD_US);
        assert!(!shares[0].is_due(due_us), "there is room");
        assert_eq!(shares[0].due_us(), due_us + LOOK_US);
        assert!(b.grow(1, due_us));
        assert!(shares[0].is_due(due_us + LOOK_US));
        assert!(!a.is_overdue(due_us), "50 bytes have some time more");
        assert!(a.is_overdue(due_us + LOOK_US));
        assert!(!b.is_overdue(due_us + LOOK_US));
        a.release();
        assert_eq!(shares[0].due_us(), u64::MAX);
        assert!(!a.is_overdue(u64::MAX / 2));
    }
}
