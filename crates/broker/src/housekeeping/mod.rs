//! The work of the broker beside publishing and delivering, on one thread: deadlines, progress,
//! dead letters, delayed publishes, snapshots of the state journal. Work that takes long is not
//! done here (`threads.rs`).

pub(crate) mod compaction;
pub(crate) mod dead_letters;
pub(crate) mod inflater;
pub(crate) mod lookup;
pub(crate) mod moving;
pub(crate) mod retention;
pub(crate) mod schedule;
pub(crate) mod threads;
pub(crate) mod upkeep;
pub(crate) mod work;

use std::sync::Arc;
use std::task::Waker;

use crate::broker::Shared;
use crate::housekeeping::dead_letters::DeadLetters;
use crate::housekeeping::schedule::{Kick, Schedule};
use crate::journal::entries::Entry;

/// While moved messages wait for their write or sync, look again after this long.
pub(crate) const MOVING_MS: u64 = 2;

/// The journal is looked after this often, and after a failure not before.
const JOURNAL_INTERVAL_MS: u64 = 1_000;

/// The state of the housekeeping thread.
pub(crate) struct Housekeeping {
    shared: Arc<Shared>,
    dead_letters: DeadLetters,
    schedule: Schedule,
    next_progress_ms: u64,
    next_journal_ms: u64,
    /// The journal has not taken some progress: only a snapshot of everything helps.
    needs_snapshot: bool,
    closed: bool,
}

impl Housekeeping {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            dead_letters: DeadLetters::new(Waker::from(Arc::new(Kick(shared.clone())))),
            schedule: Schedule::new(&shared),
            shared,
            next_progress_ms: 0,
            next_journal_ms: 0,
            needs_snapshot: false,
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
        for subscription in self.shared.work.take_unused() {
            if let Some(topic) = subscription.topic() {
                topic.delete_if_unused(&subscription);
            }
        }
        self.dead_letters.take_up(&self.shared);
        let letters_ms = self.dead_letters.advance(&self.shared, now_ms);
        let moving = self.schedule.advance(&self.shared);
        if now_ms >= self.next_journal_ms {
            self.look_after_journal(now_ms);
        }
        if now_ms >= self.next_progress_ms && !self.needs_snapshot {
            self.write_progress(now_ms);
        }
        let mut until_ms = self.next_journal_ms;
        if !self.shared.served.get() {
            self.shared.inflater.run_queued();
            until_ms = until_ms.min(self.shared.upkeep.tick(&self.shared, now_ms));
        }
        until_ms = until_ms.min(self.shared.work.first_due_ms().unwrap_or(u64::MAX));
        until_ms = until_ms.min(letters_ms.unwrap_or(u64::MAX));
        if self.shared.work.has_dirty() && !self.needs_snapshot {
            until_ms = until_ms.min(self.next_progress_ms);
        }
        if moving {
            until_ms = until_ms.min(now_ms + MOVING_MS);
        }
        until_ms
    }

    /// A full journal is replaced by a snapshot, and so is one that has failed.
    fn look_after_journal(&mut self, now_ms: u64) {
        self.next_journal_ms = now_ms + JOURNAL_INTERVAL_MS;
        // The thread that does not come back cannot say so itself.
        let _ = self.shared.log.stalled_reads();
        let journal = self.shared.log.journal();
        if self.needs_snapshot || journal.should_snapshot() || journal.failure().is_some() {
            self.snapshot();
        }
    }

    /// Hands the progress of all changed subscriptions to the kernel in one write.
    fn write_progress(&mut self, now_ms: u64) {
        let dirty = self.shared.work.take_dirty();
        if dirty.is_empty() {
            return;
        }
        self.next_progress_ms = now_ms + self.shared.options.progress_interval_ms;
        let mut entries = Vec::new();
        for subscription in dirty {
            entries.extend(subscription.take_progress());
        }
        if entries.is_empty() {
            return;
        }
        if let Err(error) = self.shared.write(&entries) {
            tracing::warn!(%error, "cannot write progress; a snapshot of the state will have it");
            self.needs_snapshot = true;
            self.look_after_journal(now_ms);
        } else if self.shared.log.journal().should_snapshot() {
            self.next_journal_ms = self.next_journal_ms.min(now_ms);
        }
    }

    /// Writes the whole state into the journal's other file.
    fn snapshot(&mut self) {
        // Collected when the journal asks for it: from then on it keeps what is appended beside. So
        // nobody who changes a definition waits for the disk.
        let collect = || {
            let _definitions = self.shared.definitions.lock();
            self.shared.snapshot()
        };
        let mut encoded = std::iter::once_with(collect)
            .flatten()
            .map(|entry| entry.encode());
        match self.shared.log.journal().snapshot(&mut encoded) {
            Ok(()) => self.needs_snapshot = false,
            Err(error) => tracing::error!(%error, "cannot write a snapshot of the state"),
        }
    }

    /// Writes down what is still in memory.
    pub(crate) fn close(&mut self) {
        (self.next_progress_ms, self.next_journal_ms) = (0, 0);
        self.tick();
        for topic in self.shared.all_topics() {
            for subscription in topic.subscriptions().iter() {
                subscription.take_back_marks();
            }
        }
        // From here on nothing is lost by a power failure, and only then the journal may say so.
        if let Err(error) = self.shared.log.sync_all() {
            tracing::error!(%error, "not everything could be synced");
            self.closed = true;
            return;
        }
        // The log's writer may have come behind the tick: by now it is known what has moved.
        let now_ms = self.shared.clock.now_ms();
        self.dead_letters.take_moved(now_ms);
        self.schedule.take_moved(&self.shared);
        self.write_progress(now_ms);
        if let Err(error) = self.shared.write_synced(&[Entry::Closed]) {
            tracing::warn!(%error, "the journal does not say that the broker ended in order");
        }
        self.closed = true;
    }
}
