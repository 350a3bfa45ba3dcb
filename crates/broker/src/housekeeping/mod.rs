//! The housekeeping thread: everything besides publishing and delivery, such as deadlines,
//! progress, dead letters, delayed publishes and snapshots of the state journal. Slow work is done
//! by other threads (`threads.rs`).

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
use crate::housekeeping::schedule::{HousekeepingWaker, Schedule};
use crate::journal::entries::Entry;

/// Milliseconds until the next check while moved messages wait for their write or sync.
pub(crate) const MOVING_POLL_MS: u64 = 2;

/// How often the journal is checked; after a failure, the delay before the next try.
const JOURNAL_INTERVAL_MS: u64 = 1_000;

/// The state of the housekeeping thread.
pub(crate) struct Housekeeping {
    shared: Arc<Shared>,
    dead_letters: DeadLetters,
    schedule: Schedule,
    next_progress_ms: u64,
    next_journal_ms: u64,
    /// The journal could not be written: progress is missing in it until a snapshot is written.
    needs_snapshot: bool,
    closed: bool,
}

impl Housekeeping {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            dead_letters: DeadLetters::new(Waker::from(Arc::new(HousekeepingWaker(
                shared.clone(),
            )))),
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

    /// Does what is due. Returns when to call again, in milliseconds since the epoch.
    pub(crate) fn tick(&mut self) -> u64 {
        let now_ms = self.shared.clock.now_ms();
        // A failed write frees budget too, but does not notify.
        self.shared.write_budget.written();
        for subscription in self.shared.work.take_due(now_ms) {
            subscription.on_due(now_ms);
        }
        for subscription in self.shared.work.take_unused() {
            if let Some(topic) = subscription.topic() {
                topic.delete_if_unused(&subscription);
            }
        }
        self.dead_letters.collect_dead(&self.shared);
        let letters_ms = self.dead_letters.advance(&self.shared, now_ms);
        let moving = self.schedule.advance(&self.shared);
        if now_ms >= self.next_journal_ms {
            self.maintain_journal(now_ms);
        }
        if now_ms >= self.next_progress_ms && !self.needs_snapshot {
            self.write_progress(now_ms);
        }
        let mut until_ms = self.next_journal_ms;
        if !self.shared.has_background_threads.get() {
            self.shared.inflater.run_queued();
            until_ms = until_ms.min(self.shared.upkeep.tick(&self.shared, now_ms));
        }
        until_ms = until_ms.min(self.shared.work.first_due_ms().unwrap_or(u64::MAX));
        until_ms = until_ms.min(letters_ms.unwrap_or(u64::MAX));
        if self.shared.work.has_dirty() && !self.needs_snapshot {
            until_ms = until_ms.min(self.next_progress_ms);
        }
        if moving {
            until_ms = until_ms.min(now_ms + MOVING_POLL_MS);
        }
        until_ms
    }

    /// Replaces the journal by a snapshot if it is full or has failed.
    fn maintain_journal(&mut self, now_ms: u64) {
        self.next_journal_ms = now_ms + JOURNAL_INTERVAL_MS;
        // Called for its side effect: it reports a reader thread that hangs, which cannot report
        // itself.
        let _ = self.shared.log.stalled_reads();
        let journal = self.shared.log.journal();
        if self.needs_snapshot || journal.should_snapshot() || journal.failure().is_some() {
            self.snapshot();
        }
    }

    /// Writes the progress of all changed subscriptions to the journal in one write, without a
    /// sync.
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
        if let Err(error) = self.shared.write_entries(&entries) {
            tracing::warn!(%error, "cannot write progress; a snapshot of the state will have it");
            self.needs_snapshot = true;
            self.maintain_journal(now_ms);
        } else if self.shared.log.journal().should_snapshot() {
            self.next_journal_ms = self.next_journal_ms.min(now_ms);
        }
    }

    /// Writes the whole state into the journal's other file.
    fn snapshot(&mut self) {
        // The state is collected when the journal asks for the first entry. By then the journal
        // keeps a copy of each entry that is appended, to write it after the snapshot. So
        // `definitions` is locked only while the state is collected, and no change of a definition
        // waits for the disk.
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

    /// Ends the housekeeping: writes everything that only memory has.
    pub(crate) fn close(&mut self) {
        (self.next_progress_ms, self.next_journal_ms) = (0, 0);
        self.tick();
        for topic in self.shared.all_topics() {
            for subscription in topic.subscriptions().iter() {
                subscription.lower_all_marks();
            }
        }
        // From here on a power loss loses nothing; only now may the journal say so.
        if let Err(error) = self.shared.log.sync_all() {
            tracing::error!(%error, "not everything could be synced");
            self.closed = true;
            return;
        }
        // The log's writer may have finished after the tick: now all results of moved messages are
        // known.
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
