//! Limits the log lines about an event that may happen thousands of times per second.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// At most one line in this time: often enough to be noticed, too rare to fill a disk.
const INTERVAL: Duration = Duration::from_secs(10);

/// Counts events, and decides when a line about them is due.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    unreported: u64,
    reported: Option<Instant>,
}

impl LogThrottle {
    /// Counts an event. `Some` when a line is due: the events since the last line.
    pub(crate) fn count(&mut self) -> Option<u64> {
        self.count_at(Instant::now())
    }

    fn count_at(&mut self, now: Instant) -> Option<u64> {
        self.unreported += 1;
        let quiet = self.reported.map(|when| now.duration_since(when));
        if quiet.is_some_and(|quiet| quiet < INTERVAL) {
            return None;
        }
        self.reported = Some(now);
        Some(std::mem::take(&mut self.unreported))
    }
}

/// Logs why a connection was closed: as a warning if a line is due, otherwise at debug level.
pub(crate) fn log_closed(throttle: &Mutex<LogThrottle>, peer: SocketAddr, error: &dyn Display) {
    let due = throttle.lock().count();
    match due {
        Some(1) => tracing::warn!(%peer, %error, "connection closed"),
        Some(times) => tracing::warn!(%peer, %error, times, "connections closed, this one last"),
        None => tracing::debug!(%peer, %error, "connection closed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_per_interval() {
        let mut throttle = LogThrottle::default();
        let start = Instant::now();
        assert_eq!(throttle.count_at(start), Some(1));
        for _ in 0..1000 {
            assert_eq!(throttle.count_at(start + INTERVAL / 2), None);
        }
        assert_eq!(throttle.count_at(start + INTERVAL), Some(1001));
        assert_eq!(throttle.count_at(start + INTERVAL * 3), Some(1));
    }
}
