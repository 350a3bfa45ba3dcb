//! The messages that a topic has accepted and not yet written: a client that must see all that was
//! published before waits for them.

use std::sync::Arc;
use std::task::{Context, Poll};

use cloverleaf_log::Offset;

use crate::topic::Topic;
use crate::topic::partition::Partition;
use crate::topic::watch::Watcher;

/// Messages of a topic that are on their way to the disk.
#[derive(Debug)]
pub struct Unwritten {
    topic: Arc<Topic>,
    watcher: Arc<Watcher>,
    /// Partitions and where what was accepted ends there.
    ends: Vec<(Partition, Offset)>,
}

impl Topic {
    /// The messages that were accepted up to now and that no subscription can see yet, because
    /// another thread writes them; `None`: there are none.
    pub fn unwritten(self: &Arc<Self>) -> Option<Unwritten> {
        let partitions = self.partitions();
        let ends = partitions
            .iter()
            .map(|log| (log.clone(), log.accepted_end()));
        let ends: Vec<_> = ends.filter(|(log, end)| log.written_end() < *end).collect();
        (!ends.is_empty()).then(|| Unwritten {
            topic: self.clone(),
            watcher: Watcher::new(),
            ends,
        })
    }
}

impl Unwritten {
    /// Ready once all of it is written, or could not be. Later messages are not waited for.
    pub fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            for (log, _) in &self.ends {
                self.topic.watch(log.number(), &self.watcher);
            }
            self.ends.retain(|(log, end)| is_on_its_way(log, *end));
            if self.ends.is_empty() || self.topic.is_deleted() {
                return Poll::Ready(());
            }
            if self.watcher.poll_fired(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// Whether something below `end` is still to be written. Where nothing is, the write has failed.
fn is_on_its_way(log: &Partition, end: Offset) -> bool {
    let written = log.written_end();
    written < end && log.accepted_end() > written
}
