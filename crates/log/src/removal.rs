//! Removes the files of deleted topics in the background.
//!
//! 1. The caller appends the deletion to the journal.
//!    [`Log::delete_topic`](crate::Log::delete_topic) closes the partitions at once and adds the
//!    topic to [`Removals`].
//! 2. "log-remover" syncs the journal. Before that no file is removed, because after a power loss
//!    the topic could exist again.
//! 3. "log-remover" removes the folders, and then syncs the folder "topics" once for all of them.
//! 4. The topic is removed from [`Removals`]. Until then each snapshot of the journal must repeat
//!    the deletion, so that the next start removes files that a crash has left.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::error::IoFailure;
use crate::metrics::count;
use crate::partition::{PartitionLog, topic_dir};
use crate::shared::Shared;

/// Delay of the next attempt after a failure. The usual cause is a failed journal, and its next
/// snapshot repairs that within seconds.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// A topic whose files are to be removed.
pub(crate) struct Removal {
    pub(crate) topic: Uuid,
    /// The topic's partitions, which are closed.
    pub(crate) partitions: Vec<Arc<PartitionLog>>,
}

/// Deleted topics whose folders may still exist after a power loss.
#[derive(Default)]
pub(crate) struct Removals {
    topics: Mutex<BTreeSet<Uuid>>,
}

impl Removals {
    pub(crate) fn note(&self, topic: Uuid) {
        self.topics.lock().insert(topic);
    }

    pub(crate) fn all(&self) -> Vec<Uuid> {
        self.topics.lock().iter().copied().collect()
    }

    fn forget(&self, removed: &[Uuid]) {
        let mut topics = self.topics.lock();
        for topic in removed {
            topics.remove(topic);
        }
    }
}

/// The state of the thread "log-remover".
#[derive(Default)]
pub(crate) struct Remover {
    /// Topics whose folders are still to be removed, or whose removal is not synced.
    left: Vec<Uuid>,
    due: Option<Instant>,
}

impl Remover {
    /// Time of the next attempt after a failure.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Removes the files of these topics and of those left from failed attempts. Blocks on the
    /// disk.
    pub(crate) fn work(&mut self, shared: &Shared, removals: Vec<Removal>) {
        // Memory is freed first, because that is fast.
        for removal in &removals {
            for partition in &removal.partitions {
                partition.wait_for_writer();
                partition.evict_tail(u64::MAX);
            }
        }
        let topics: BTreeSet<Uuid> = removals.iter().map(|removal| removal.topic).collect();
        shared.tail.forget(&topics);
        for partition in removals.iter().flat_map(|removal| &removal.partitions) {
            partition.wait_for_compaction();
            partition.discard_prepared();
        }
        drop(removals);
        self.left.extend(topics);
        self.due = None;
        if self.left.is_empty() {
            return;
        }
        if let Err(failure) = self.remove(shared) {
            tracing::warn!(%failure, "the files of deleted topics cannot be removed yet");
            self.due = Some(Instant::now() + RETRY_DELAY);
        }
    }

    fn remove(&mut self, shared: &Shared) -> Result<(), IoFailure> {
        shared.journal.sync()?;
        let mut outcome = Ok(());
        let mut removed = Vec::new();
        for topic in std::mem::take(&mut self.left) {
            // The broker's stop does not wait for removals: the next start does them.
            if shared.queues.removals.is_stopped() {
                continue;
            }
            match remove_folder(shared, topic) {
                Ok(()) => removed.push(topic),
                Err(failure) => {
                    self.left.push(topic);
                    outcome = Err(failure);
                }
            }
        }
        if removed.is_empty() {
            return outcome;
        }
        count(&shared.counters.syncs, 1);
        if let Err(error) = shared.disk.sync_dir("topics") {
            self.left.extend(removed);
            return Err(IoFailure::new("sync", "topics", &error));
        }
        shared.removals.forget(&removed);
        outcome
    }
}

/// Removes a topic's folder. A missing folder is no error.
fn remove_folder(shared: &Shared, topic: Uuid) -> Result<(), IoFailure> {
    let dir = topic_dir(topic);
    match shared.disk.remove_dir_all(&dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(IoFailure::new("remove", &dir, &error))
        }
        _ => Ok(()),
    }
}
