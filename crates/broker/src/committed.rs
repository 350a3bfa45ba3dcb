//! Committed offsets: how far a group that reads by offset has come, by its own account.
//!
//! Kafka's consumer groups keep theirs here. The broker delivers nothing by them; retention asks.

use std::collections::BTreeMap;

use cloverleaf_log::Offset;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One committed offset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The group.
    pub group: String,
    /// The topic's id.
    pub topic: Uuid,
    /// The partition.
    pub partition: u32,
    /// The next offset that the group wants to read.
    pub offset: Offset,
    /// The leader epoch that the client gave, -1 if none (Kafka, OffsetCommit).
    #[serde(default)]
    pub leader_epoch: i32,
    /// The client's own note.
    #[serde(default)]
    pub metadata: String,
    /// When it was committed, milliseconds since the Unix epoch.
    #[serde(default)]
    pub committed_ms: u64,
}

/// One group's offsets, by topic and partition.
type Offsets = BTreeMap<(Uuid, u32), Committed>;

/// All committed offsets, in memory; the journal keeps them.
#[derive(Debug, Default)]
pub(crate) struct CommittedOffsets {
    groups: Mutex<BTreeMap<String, Offsets>>,
}

impl CommittedOffsets {
    pub(crate) fn set(&self, committed: Committed) {
        let mut groups = self.groups.lock();
        let group = groups.entry(committed.group.clone()).or_default();
        group.insert((committed.topic, committed.partition), committed);
    }

    pub(crate) fn of_group(&self, group: &str) -> Vec<Committed> {
        self.groups
            .lock()
            .get(group)
            .map(|g| g.values().cloned().collect())
            .unwrap_or_default()
    }

    pub(crate) fn remove_group(&self, group: &str) -> bool {
        self.groups.lock().remove(group).is_some()
    }

    pub(crate) fn remove_topic(&self, topic: Uuid) {
        for group in self.groups.lock().values_mut() {
            group.retain(|(of, _), _| *of != topic);
        }
    }

    /// The committed offsets of all groups for one partition.
    pub(crate) fn of_partition(&self, topic: Uuid, partition: u32) -> Vec<Offset> {
        let groups = self.groups.lock();
        let key = (topic, partition);
        groups
            .values()
            .filter_map(|group| group.get(&key))
            .map(|c| c.offset)
            .collect()
    }

    /// Whether any group has committed an offset in a topic.
    pub(crate) fn has_topic(&self, topic: Uuid) -> bool {
        let groups = self.groups.lock();
        groups
            .values()
            .any(|group| group.keys().any(|(of, _)| *of == topic))
    }

    pub(crate) fn all(&self) -> Vec<Committed> {
        self.groups
            .lock()
            .values()
            .flat_map(|group| group.values().cloned())
            .collect()
    }
}
