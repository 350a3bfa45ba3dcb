//! A log line for something that may happen thousands of times per second.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// At most one line in this time: often enough to be noticed, too seldom to fill a disk.
const INTERVAL: Duration = Duration::from_secs(10);

/// Counts an event and says when a line about it is due.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    unreported: u64,
    reported: Option<Instant>,
}

impl LogThrottle {
    /// Counts one more. `Some` when a line is due: how many there were since the last one.
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

/// Says why a connection was closed: as a warning when a line is due, else to those who debug.
pub(crate) fn tell_closed(repeats: &Mutex<LogThrottle>, peer: SocketAddr, error: &dyn Display) {
    let due = repeats.lock().count();
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
        let mut repeats = LogThrottle::default();
        let start = Instant::now();
        assert_eq!(repeats.count_at(start), Some(1));
        for _ in 0..1000 {
            assert_eq!(repeats.count_at(start + INTERVAL / 2), None);
        }
        assert_eq!(repeats.count_at(start + INTERVAL), Some(1001));
        assert_eq!(repeats.count_at(start + INTERVAL * 3), Some(1));
    }
}
