//! What the broker does beside publishing and delivering, on one thread: deadlines, progress, dead
//! letters, delayed publishes, retention, snapshots of the state journal.

use std::sync::Arc;

use crate::broker::Shared;
use crate::dead_letter::DeadLetters;
use crate::entries::Entry;
use crate::schedule::Schedule;

/// While moved messages wait for their write or sync, look again after this long.
const MOVING_MS: u64 = 2;

/// After the journal refused, try again after this long.
const RETRY_MS: u64 = 100;

/// The state of the housekeeping thread.
pub(crate) struct Housekeeping {
    shared: Arc<Shared>,
    dead_letters: DeadLetters,
    schedule: Schedule,
    next_progress_ms: u64,
    next_retention_ms: u64,
    /// Encoded progress that the journal has not taken yet.
    unwritten: Vec<Entry>,
    closed: bool,
}

impl Housekeeping {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            dead_letters: DeadLetters::default(),
            schedule: Schedule::new(&shared),
            shared,
            next_progress_ms: 0,
            next_retention_ms: 0,
            unwritten: Vec::new(),
            closed: false,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Does what is due, returns when to come again (milliseconds since the epoch).
    pub(crate) fn tick(&mut self) -> u64 {
        let now_ms = self.shared.clock.now_ms();
        // A write that failed frees room too, and tells nobody.
        self.shared.room.written();
        for subscription in self.shared.work.take_due(now_ms) {
            subscription.on_due(now_ms);
        }
        self.dead_letters.take_up(&self.shared);
        let moving = self.dead_letters.advance(&self.shared) | self.schedule.advance(&self.shared);
        if now_ms >= self.next_progress_ms {
            self.write_progress(now_ms);
        }
        if now_ms >= self.next_retention_ms {
            crate::retention::run(&self.shared, now_ms);
            self.next_retention_ms = now_ms + self.shared.options.retention_interval_ms;
        }
        let mut until_ms = self.next_retention_ms;
        until_ms = until_ms.min(self.shared.work.first_due_ms().unwrap_or(u64::MAX));
        if self.shared.work.has_dirty() || !self.unwritten.is_empty() {
            until_ms = until_ms.min(self.next_progress_ms);
        }
        if moving {
            until_ms = until_ms.min(now_ms + MOVING_MS);
        }
        until_ms
    }

    /// Hands the progress of all changed subscriptions to the kernel in one write.
    fn write_progress(&mut self, now_ms: u64) {
        let dirty = self.shared.work.take_dirty();
        if dirty.is_empty() && self.unwritten.is_empty() {
            return;
        }
        self.next_progress_ms = now_ms + self.shared.options.progress_interval_ms;
        for subscription in dirty {
            let id = subscription.id();
            let deltas = subscription.take_delta().into_iter();
            self.unwritten
                .extend(deltas.map(|delta| Entry::Progress(id, delta)));
        }
        if self.unwritten.is_empty() {
            return;
        }
        if self.shared.log.journal().should_snapshot() {
            self.snapshot();
            return;
        }
        match self.shared.write(&self.unwritten) {
            Ok(()) => self.unwritten.clear(),
            Err(error) => {
                // A snapshot goes to the other file, holds all of this, and heals a failed journal.
                tracing::warn!(%error, "cannot write progress; trying a snapshot");
                self.next_progress_ms = now_ms + RETRY_MS;
                self.snapshot();
            }
        }
    }

    /// Writes the whole state into the journal's other file.
    fn snapshot(&mut self) {
        let _definitions = self.shared.definitions.lock();
        let entries = self.shared.snapshot();
        let mut encoded = entries.iter().map(Entry::encode);
        match self.shared.log.journal().snapshot(&mut encoded) {
            Ok(()) => self.unwritten.clear(),
            Err(error) => tracing::error!(%error, "cannot write a snapshot of the state"),
        }
    }

    /// Writes down what is still in memory.
    pub(crate) fn close(&mut self) {
        self.next_progress_ms = 0;
        self.tick();
        self.write_progress(self.shared.clock.now_ms());
        if let Err(error) = self.shared.write_synced(Entry::Closed) {
            tracing::warn!(%error, "the journal does not say that the broker ended in order");
        }
        self.closed = true;
    }
}
