//! A bound on what all connections together hold of messages that they cannot store yet: contents
//! whose frames come mixed with those of other channels, and transactions that are not committed.
//!
//! A content whose frames come one after the other is held by the driver, which has a bound of its
//! own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

    fn try_add(&self, bytes: u64) -> bool {
        let add = |used: u64| {
            let sum = used.checked_add(bytes)?;
            (sum <= self.bytes_max).then_some(sum)
        };
        self.bytes.fetch_update(Relaxed, Relaxed, add).is_ok()
    }
}

/// What one holder has of it; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    memory: Arc<ContentMemory>,
    bytes: u64,
}

impl Held {
    pub(crate) fn none(memory: &Arc<ContentMemory>) -> Self {
        Self {
            memory: Arc::clone(memory),
            bytes: 0,
        }
    }

    /// Holds more; `false`: there is no room, and nothing changes.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let fits = self.memory.try_add(bytes);
        if fits {
            self.bytes += bytes;
        }
        fits
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn release(&mut self) {
        self.memory.bytes.fetch_sub(self.bytes, Relaxed);
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
        let (mut a, mut b) = (Held::none(&memory), Held::none(&memory));
        assert!(a.grow(60));
        assert!(!b.grow(41));
        assert!(b.grow(40));
        assert_eq!(memory.bytes(), 100);
        drop(a);
        assert_eq!((memory.bytes(), b.bytes()), (40, 40));
        b.release();
        assert!(b.grow(100));
    }
}
