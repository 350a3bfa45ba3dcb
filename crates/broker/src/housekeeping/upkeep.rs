//! Work that may wait long for the disk: retention and compaction of all topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::broker::Shared;
use crate::housekeeping::compaction::Compactor;

/// The schedule of retention and compaction, and control of the thread that does them.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    schedule: Mutex<UpkeepSchedule>,
    sleep: Mutex<()>,
    closing: Condvar,
    /// Also stops a compaction that is under way.
    closed: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct UpkeepSchedule {
    next_retention_ms: u64,
    next_compaction_ms: u64,
    compactor: Compactor,
}

impl Upkeep {
    /// Does what is due. Returns when to call again, in milliseconds since the epoch.
    pub(crate) fn tick(&self, shared: &Arc<Shared>, now_ms: u64) -> u64 {
        let mut schedule = self.schedule.lock();
        if now_ms >= schedule.next_retention_ms {
            crate::housekeeping::retention::run(shared, now_ms);
            schedule.next_retention_ms = now_ms + shared.options.retention_interval_ms;
        }
        if now_ms >= schedule.next_compaction_ms {
            // Compaction pauses when retention is due.
            let until_ms = schedule.next_retention_ms;
            let goes_on = schedule.compactor.run(shared, until_ms, &self.closed);
            let pause_ms = if goes_on {
                0
            } else {
                shared.options.compaction_interval_ms
            };
            schedule.next_compaction_ms = now_ms + pause_ms;
        }
        schedule.next_retention_ms.min(schedule.next_compaction_ms)
    }

    /// Does what is due until [`Self::close`], on a thread of its own.
    pub(crate) fn run(&self, shared: &Arc<Shared>) {
        while !self.closed.load(Ordering::Acquire) {
            let now_ms = shared.clock.now_ms();
            let until_ms = self.tick(shared, now_ms);
            let pause = Duration::from_millis(until_ms.saturating_sub(now_ms).max(1));
            let mut sleep = self.sleep.lock();
            if !self.closed.load(Ordering::Acquire) {
                self.closing.wait_for(&mut sleep, pause);
            }
        }
    }

    /// Ends [`Self::run`] and waits for the work under way.
    pub(crate) fn close(&self) {
        {
            let _sleep = self.sleep.lock();
            self.closed.store(true, Ordering::Release);
            self.closing.notify_all();
        }
        drop(self.schedule.lock());
    }
}
