//! The broker's only source of time, so that tests can drive it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells the time. The broker asks once per batch of work, never per message.
pub trait Clock: Send + Sync {
    /// Microseconds since the Unix epoch.
    fn now_us(&self) -> u64;

    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }
}

/// The machine's clock: the wall clock's time at the start of the process, and monotonic time
/// since.
///
/// So a step of the wall clock, in either direction, neither ends leases nor stops anything; a
/// process that starts with a wrong wall clock keeps the error until it is started again.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    started: Instant,
    started_us: u64,
}

impl Default for SystemClock {
    fn default() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let started_us = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        Self {
            started: Instant::now(),
            started_us,
        }
    }
}

impl Clock for SystemClock {
    fn now_us(&self) -> u64 {
        let elapsed_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.started_us.saturating_add(elapsed_us)
    }
}

/// A clock that stands still until a test moves it.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `now_ms`.
    pub fn new(now_ms: u64) -> Self {
        Self(AtomicU64::new(now_ms * 1000))
    }

    /// Moves the clock forward by `ms`.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms * 1000, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
