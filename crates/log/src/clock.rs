//! The log's source of time: the opener of the log may bring its own, so that both tell the same.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells the time in milliseconds since 1970. Only ages are made of it.
///
/// The default is the machine's clock at the time of its making, and monotonic time since: so a
/// step of the machine's clock while it runs neither forgets idempotent producers nor keeps them.
#[derive(Clone)]
pub struct LogClock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl LogClock {
    /// A clock that calls `now_ms` whenever it is asked.
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
