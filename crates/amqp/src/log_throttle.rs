//! Throttles log lines about events that a client can cause thousands of times per second.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Minimum time between two lines: short enough to be noticed, long enough not to fill a disk.
const INTERVAL_US: u64 = 10_000_000;

/// Counts an event and says when a line about it is due.
#[derive(Debug)]
pub(crate) struct LogThrottle {
    unreported: AtomicU64,
    due_us: AtomicU64,
}

impl LogThrottle {
    pub(crate) const fn new() -> Self {
        Self {
            unreported: AtomicU64::new(0),
            due_us: AtomicU64::new(0),
        }
    }

    /// Counts one event. `Some(n)`: a line is due, and `n` events happened since the last one.
    pub(crate) fn count(&self, now_us: u64) -> Option<u64> {
        self.unreported.fetch_add(1, Relaxed);
        let take_turn = |due_us| (now_us >= due_us).then_some(now_us + INTERVAL_US);
        let turn = self.due_us.fetch_update(Relaxed, Relaxed, take_turn);
        turn.ok().map(|_| self.unreported.swap(0, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_per_interval() {
        let throttle = LogThrottle::new();
        assert_eq!(throttle.count(7), Some(1));
        for _ in 0..1000 {
            assert_eq!(throttle.count(INTERVAL_US), None);
        }
        assert_eq!(throttle.count(7 + INTERVAL_US), Some(1001));
    }
}
