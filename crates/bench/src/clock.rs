//! The time of a measurement: one monotonic clock, and the same as time since 1970 for stamps that
//! another process reads.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

    /// A clock that begins, or has begun, at this time since 1970 by the clock of another machine,
    /// which this one is `ahead_ns` ahead of. Its times are those of the other one.
    pub(crate) fn another(&self, zero_unix_ns: u64, ahead_ns: i64) -> Clock {
        let (here, here_ns) = (Instant::now(), self.now_ns());
        let now_unix_ns = i128::from(self.to_unix_ns(here_ns)) - i128::from(ahead_ns);
        let since_ns = now_unix_ns - i128::from(zero_unix_ns);
        let apart = Duration::from_nanos(nanoseconds(since_ns.unsigned_abs()));
        let start = if since_ns >= 0 {
            here.checked_sub(apart)
        } else {
            here.checked_add(apart)
        };
        Clock {
            start: start.unwrap_or(here),
            start_unix_ns: zero_unix_ns,
        }
    }

    /// Nanoseconds since the clock began; 0 before that.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_clock_is_followed() {
        const SECOND: u64 = 1_000_000_000;
        let here = Clock::new();
        let unix_ns = here.to_unix_ns(here.now_ns());
        // It is five seconds behind, and the measurement has begun a second ago by it.
        let clock = here.another(unix_ns - 6 * SECOND, 5 * SECOND as i64);
        let now_ns = clock.now_ns();
        assert!((SECOND..4 * SECOND).contains(&now_ns), "{now_ns}");
        assert_eq!(clock.from_unix_ns(unix_ns - 5 * SECOND), SECOND);
        let begins = here.another(unix_ns + 60 * SECOND, 0);
        assert_eq!(begins.now_ns(), 0, "it has not begun");
        let _ = here.another(u64::MAX, i64::MIN);
        let _ = here.another(0, i64::MAX);
    }
}
