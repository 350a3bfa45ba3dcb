//! Messages that a topic has accepted but not yet written. A client that must see everything
//! published before waits for them.

use std::sync::Arc;
use std::task::{Context, Poll};

use cloverleaf_log::Offset;

use crate::topic::Topic;
use crate::topic::partition::Partition;
use crate::topic::watch::Watcher;

/// Messages of a topic that are not written yet.
#[derive(Debug)]
pub struct Unwritten {
    topic: Arc<Topic>,
    watcher: Arc<Watcher>,
    /// Partitions, and the end of the accepted messages in each.
    ends: Vec<(Partition, Offset)>,
}

impl Topic {
    /// The messages accepted so far that no subscription can see yet, because another thread is
    /// writing them; `None` if there are none.
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
    /// Ready once all of them are written or their write has failed. Does not wait for later
    /// messages.
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

/// Whether a message below `end` is still to be written. If not, it is written or its write has
/// failed.
fn is_on_its_way(log: &Partition, end: Offset) -> bool {
    let written = log.written_end();
    written < end && log.accepted_end() > written
}
