//! The queue of writes to the state journal: committed offsets and group records, in the order of
//! arrival.
//!
//! The worker takes everything that is queued at once, so that commits that arrive during a write
//! are batched into the next one. No thread that serves connections waits for the disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cloverleaf_broker::{CatalogError, Committed, DurabilityMode};
use cloverleaf_log::Pending;
use parking_lot::Mutex;
use uuid::Uuid;

use super::Groups;
use super::store::RecordWrite;
use crate::answer::{Promise, Reply, promise};
use crate::error_code::ErrorCode;

/// Number of batches that the worker writes before it yields to other jobs.
const BATCHES_PER_RUN: usize = 8;

/// The outcome of committing offsets. `Ok(Some)`: durable once the [`Pending`] is ready;
/// `Ok(None)`: no sync has to be awaited.
#[derive(Debug)]
pub(crate) struct CommitOutcome(pub(crate) Result<Option<Pending>, ErrorCode>);

impl Default for CommitOutcome {
    fn default() -> Self {
        Self(Err(ErrorCode::CoordinatorNotAvailable))
    }
}

/// The changes of a group's offsets that one request commits.
#[derive(Debug, Default)]
pub(crate) struct OffsetCommits {
    /// The offsets, all of this group.
    pub(crate) offsets: Vec<Committed>,
    /// Partitions whose offsets are deleted, before the others are set.
    pub(crate) forgotten: Vec<(Uuid, u32)>,
}

/// A job that runs in order with the writes.
type Job = Box<dyn FnOnce() + Send>;

enum QueuedItem {
    Offsets(Vec<Committed>, Promise<CommitOutcome>),
    /// As `Offsets`, but offsets of the group are deleted first.
    Reset(String, OffsetCommits, Promise<CommitOutcome>),
    Group(Arc<str>, RecordWrite),
    Job(Job),
}

#[derive(Default)]
pub(super) struct JournalQueue {
    state: Mutex<JournalQueueState>,
    /// Number of items that were queued and are not done.
    unfinished: AtomicU64,
}

#[derive(Default)]
struct JournalQueueState {
    items: VecDeque<QueuedItem>,
    is_scheduled: bool,
}

impl JournalQueue {
    fn push(&self, item: QueuedItem) {
        self.unfinished.fetch_add(1, Ordering::AcqRel);
        self.state.lock().items.push_back(item);
    }

    /// Queues a commit, under the same lock as [`JournalQueue::push_group`].
    pub(super) fn push_commits(&self, name: &str, commits: OffsetCommits) -> Reply<CommitOutcome> {
        let (promise, reply) = promise();
        self.push(if commits.forgotten.is_empty() {
            QueuedItem::Offsets(commits.offsets, promise)
        } else {
            QueuedItem::Reset(name.to_owned(), commits, promise)
        });
        reply
    }

    /// Queues a group record. To be called under the group's lock, so that its records keep their
    /// order. [`Groups::write`] has to follow, without the lock.
    pub(super) fn push_group(&self, name: &Arc<str>, record_write: RecordWrite) {
        self.push(QueuedItem::Group(name.clone(), record_write));
    }
}

/// The error code for a failed write. NOT_COORDINATOR, as Kafka maps a storage error: clients look
/// up the coordinator and retry.
pub(super) fn of_write(error: &CatalogError) -> ErrorCode {
    match error {
        CatalogError::Closed => ErrorCode::CoordinatorNotAvailable,
        CatalogError::Denied { .. } => ErrorCode::GroupAuthorizationFailed,
        _ => ErrorCode::NotCoordinator,
    }
}

impl Groups {
    /// Runs `job` on the worker, after all that is queued.
    pub(crate) fn after_writes(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        self.queue.push(QueuedItem::Job(Box::new(job)));
        self.write();
    }

    /// Whether everything that was queued is written. If not, an OffsetFetch has to wait for the
    /// queue: a client may send it before its commit is answered, and must see that commit.
    pub(crate) fn is_written(&self) -> bool {
        self.queue.unfinished.load(Ordering::Acquire) == 0
    }

    /// Schedules the worker, unless it is scheduled or the queue is empty.
    pub(super) fn write(self: &Arc<Self>) {
        {
            let mut state = self.queue.state.lock();
            if state.is_scheduled || state.items.is_empty() {
                return;
            }
            state.is_scheduled = true;
        }
        let groups = self.clone();
        self.worker.run(Box::new(move || groups.drain()));
    }

    fn drain(self: &Arc<Self>) {
        let _turn = WorkerRun(self);
        for _ in 0..BATCHES_PER_RUN {
            let items = {
                let mut state = self.queue.state.lock();
                if state.items.is_empty() {
                    return;
                }
                std::mem::take(&mut state.items)
            };
            self.write_all(items);
        }
    }

    fn write_all(self: &Arc<Self>, items: VecDeque<QueuedItem>) {
        let mut offsets: Vec<Committed> = Vec::new();
        let mut promises: Vec<Promise<CommitOutcome>> = Vec::new();
        let _done = DoneOnDrop(&self.queue.unfinished, items.len() as u64);
        for item in items {
            if let QueuedItem::Offsets(some, promise) = item {
                offsets.extend(some);
                promises.push(promise);
                continue;
            }
            self.write_commits(std::mem::take(&mut offsets), std::mem::take(&mut promises));
            match item {
                QueuedItem::Reset(name, commits, promise) => {
                    self.write_reset(&name, commits, promise)
                }
                QueuedItem::Group(name, record_write) => self.write_group(&name, record_write),
                QueuedItem::Job(job) => job(),
                QueuedItem::Offsets(..) => {}
            }
        }
        self.write_commits(offsets, promises);
    }

    fn write_commits(&self, offsets: Vec<Committed>, promises: Vec<Promise<CommitOutcome>>) {
        if promises.is_empty() {
            return;
        }
        let mut names: Vec<String> = Vec::new();
        for committed in &offsets {
            if names.last() != Some(&committed.group) {
                names.push(committed.group.clone());
            }
        }
        let outcome = self.realm.commit_offsets(offsets);
        match &outcome {
            Ok(()) => names.iter().for_each(|name| self.recreate(name)),
            Err(error) => tracing::error!(%error, "offsets cannot be committed"),
        }
        let must_sync = self.realm.options().durability == DurabilityMode::Disk;
        for promise in promises {
            let written = match &outcome {
                Ok(()) if must_sync => self.realm.state_synced().map(Some),
                Ok(()) => Ok(None),
                Err(error) => Err(error.clone()),
            };
            promise.keep(CommitOutcome(written.map_err(|error| of_write(&error))));
        }
    }

    fn write_reset(&self, name: &str, commits: OffsetCommits, promise: Promise<CommitOutcome>) {
        match self.realm.delete_offsets(name, &commits.forgotten) {
            Ok(()) => self.write_commits(commits.offsets, vec![promise]),
            Err(error) => {
                tracing::error!(group = name, %error, "offsets cannot be reset");
                promise.keep(CommitOutcome(Err(of_write(&error))));
            }
        }
    }

    fn write_group(self: &Arc<Self>, name: &Arc<str>, record_write: RecordWrite) {
        let RecordWrite { value, after_write } = record_write;
        let outcome = self.realm.put_value(&super::key(name), Some(value));
        if let Err(error) = &outcome {
            tracing::error!(group = %name, %error, "a group cannot be written down");
        }
        self.record_written(name, after_write, outcome.map_err(|error| of_write(&error)));
    }
}

/// One run of the worker. When it ends, also by a panic, the worker is scheduled again if the queue
/// is not empty.
struct WorkerRun<'a>(&'a Arc<Groups>);

impl Drop for WorkerRun<'_> {
    fn drop(&mut self) {
        self.0.queue.state.lock().is_scheduled = false;
        self.0.write();
    }
}

/// Counts items as done on drop, also after a panic: their dropped promises have answered the
/// requests.
struct DoneOnDrop<'a>(&'a AtomicU64, u64);

impl Drop for DoneOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::AcqRel);
    }
}
