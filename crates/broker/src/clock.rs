//! The broker's only source of time, so that tests can drive it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// The source of time. The broker reads it once per batch of work, never per message.
pub trait Clock: Send + Sync {
    /// Microseconds since the Unix epoch.
    fn now_us(&self) -> u64;

    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }

    /// Microseconds since the Unix epoch by the wall clock, which may step: for comparison with
    /// other programs' times.
    fn unix_us(&self) -> u64 {
        self.now_us()
    }

    /// Whether a test advances it.
    fn is_driven(&self) -> bool {
        false
    }

    /// Registers `hook`, which a test's clock calls after each advance: a thread that sleeps until
    /// a time must wake, because that time may have come. Other clocks never call it.
    fn on_move(&self, _hook: Box<dyn Fn() + Send + Sync>) {}
}

/// The machine's clock: the wall clock's time at the start of the process, advanced by the
/// monotonic clock.
///
/// So a step of the wall clock neither ends leases nor stops timers. A process that starts with a
/// wrong wall clock keeps the error until it is restarted.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    started: Instant,
    started_us: u64,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            started_us: wall_clock_us(),
        }
    }
}

impl Clock for SystemClock {
    fn now_us(&self) -> u64 {
        let elapsed_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.started_us.saturating_add(elapsed_us)
    }

    fn unix_us(&self) -> u64 {
        wall_clock_us()
    }
}

fn wall_clock_us() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let since_epoch = since_epoch.unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

/// A clock that a test advances.
pub struct ManualClock {
    now_us: AtomicU64,
    hooks: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
}

impl ManualClock {
    /// A clock that shows `now_ms`.
    pub fn new(now_ms: u64) -> Self {
        Self {
            now_us: AtomicU64::new(now_ms * 1000),
            hooks: Mutex::default(),
        }
    }

    /// Moves the clock forward by `ms`.
    pub fn advance(&self, ms: u64) {
        self.now_us.fetch_add(ms * 1000, Ordering::SeqCst);
        self.hooks.lock().iter().for_each(|hook| hook());
    }
}

impl Clock for ManualClock {
    fn now_us(&self) -> u64 {
        self.now_us.load(Ordering::SeqCst)
    }

    fn is_driven(&self) -> bool {
        true
    }

    fn on_move(&self, hook: Box<dyn Fn() + Send + Sync>) {
        self.hooks.lock().push(hook);
    }
}
