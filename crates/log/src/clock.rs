//! The log's source of time. The caller that opens the log may supply its own clock.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A clock in milliseconds since 1970. The log only computes ages from it.
///
/// The default starts with the machine's clock and then adds monotonic time. So a step of the
/// machine's clock while the broker runs does not change when idempotent producers expire.
#[derive(Clone)]
pub struct LogClock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl LogClock {
    /// A clock that calls `now_ms` for each reading.
    pub fn new(now_ms: impl Fn() -> i64 + Send + Sync + 'static) -> LogClock {
        LogClock(Arc::new(now_ms))
    }

    pub(crate) fn now_ms(&self) -> i64 {
        (self.0)()
    }
}

impl Default for LogClock {
    fn default() -> LogClock {
        let started = Instant::now();
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        LogClock::new(move || {
            let now = since_epoch.saturating_add(started.elapsed());
            i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
        })
    }
}

impl std::fmt::Debug for LogClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LogClock").field(&self.now_ms()).finish()
    }
}
