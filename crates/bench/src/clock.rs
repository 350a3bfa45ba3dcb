//! The time of a measurement: one monotonic clock, and the same as time since 1970 for stamps that
//! another process reads.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The clock of one measurement. Copies tell the same time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    start_unix_ns: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// A clock that begins now.
    pub fn new() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        Clock {
            start: Instant::now(),
            start_unix_ns: unix.map_or(0, |unix| nanoseconds(unix.as_nanos())),
        }
    }

    /// Nanoseconds since the clock began.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        nanoseconds(self.start.elapsed().as_nanos())
    }

    /// A time of this clock as nanoseconds since 1970.
    #[inline]
    pub fn to_unix_ns(&self, ns: u64) -> u64 {
        self.start_unix_ns.saturating_add(ns)
    }

    /// Nanoseconds since 1970 as a time of this clock; 0 for what lies before its beginning.
    #[inline]
    pub fn from_unix_ns(&self, unix_ns: u64) -> u64 {
        unix_ns.saturating_sub(self.start_unix_ns)
    }
}

/// They last for 584 years.
fn nanoseconds(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}
