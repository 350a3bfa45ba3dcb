//! Deleted topics, whose files are removed in the background.
//!
//! 1. [`Log::delete_topic`](crate::Log::delete_topic) closes the partitions at once, and notes the
//!    topic in [`Removals`]. Its caller has written to the journal that the topic is deleted.
//! 2. "log-remover" syncs the journal: no file goes while after a power loss the topic could still
//!    be there.
//! 3. It removes the folders, and then syncs the folder "topics" once for all of them.
//! 4. Now the topic leaves [`Removals`]. Up to here each snapshot of the journal must say again
//!    that it is deleted, so that the next start removes what a crash has left.

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

/// After a failure the folders that are left are tried again this much later. Mostly the journal
/// has failed, and the next snapshot of it heals that within seconds.
const RETRY: Duration = Duration::from_secs(5);

/// A topic whose files are to go.
pub(crate) struct Removal {
    pub(crate) topic: Uuid,
    /// Its partitions, which take no more appends.
    pub(crate) partitions: Vec<Arc<PartitionLog>>,
}

/// Deleted topics whose folders may be there after a power loss.
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

    fn forget(&self, gone: &[Uuid]) {
        let mut topics = self.topics.lock();
        for topic in gone {
            topics.remove(topic);
        }
    }
}

/// The state of the thread "log-remover".
#[derive(Default)]
pub(crate) struct Remover {
    /// Topics whose folders could not be removed or synced yet.
    left: Vec<Uuid>,
    due: Option<Instant>,
}

impl Remover {
    /// When to try again what has failed.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Removes the files of these topics and of those that are left. Blocks on the disk.
    pub(crate) fn work(&mut self, shared: &Shared, removals: Vec<Removal>) {
        // Memory first: it goes fast.
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
            self.due = Some(Instant::now() + RETRY);
        }
    }

    fn remove(&mut self, shared: &Shared) -> Result<(), IoFailure> {
        shared.journal.sync()?;
        let mut outcome = Ok(());
        let mut gone = Vec::new();
        for topic in std::mem::take(&mut self.left) {
            // The end of the broker does not wait for this: the next start goes on with it.
            if shared.queues.removals.is_stopped() {
                continue;
            }
            match remove_folder(shared, topic) {
                Ok(()) => gone.push(topic),
                Err(failure) => {
                    self.left.push(topic);
                    outcome = Err(failure);
                }
            }
        }
        if gone.is_empty() {
            return outcome;
        }
        count(&shared.counters.syncs, 1);
        if let Err(error) = shared.disk.sync_dir("topics") {
            self.left.extend(gone);
            return Err(IoFailure::new("sync", "topics", &error));
        }
        shared.removals.forget(&gone);
        outcome
    }
}

/// None of that name is no error.
fn remove_folder(shared: &Shared, topic: Uuid) -> Result<(), IoFailure> {
    let dir = topic_dir(topic);
    match shared.disk.remove_dir_all(&dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(IoFailure::new("remove", &dir, &error))
        }
        _ => Ok(()),
    }
}
