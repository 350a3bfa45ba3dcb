//! Committed offsets: how far a consumer group that reads by offset says it has read.
//!
//! Kafka's consumer groups store theirs here. The broker does not use them for delivery, only for
//! retention.

use std::collections::{BTreeMap, HashMap};

use cloverleaf_log::Offset;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::broker::{Broker, CatalogError, Shared};
use crate::journal::entries::Entry;
use crate::namespace::{Name, Namespace, OwnedName};

/// Upper limit of offsets in one entry of a snapshot, so that no entry grows large.
const SNAPSHOT_OFFSETS: usize = 4_096;

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
    /// The client's metadata string.
    #[serde(default)]
    pub metadata: String,
    /// When it was committed, milliseconds since the Unix epoch.
    #[serde(default)]
    pub committed_ms: u64,
}

/// A committed offset without its key (group, topic, partition).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OffsetCommit {
    pub(crate) offset: Offset,
    pub(crate) leader_epoch: i32,
    pub(crate) metadata: Box<str>,
    pub(crate) committed_ms: u64,
}

/// A partition of a topic.
pub(crate) type TopicPartition = (Uuid, u32);

/// One group's offsets, by topic and partition.
type Offsets = BTreeMap<TopicPartition, OffsetCommit>;

type Groups = HashMap<OwnedName, Offsets>;

/// All committed offsets, in memory. The journal has them too.
#[derive(Debug, Default)]
pub(crate) struct CommittedOffsets {
    /// The lock also orders the journal's entries: it is held while an entry is written.
    groups: Mutex<Groups>,
}

impl OffsetCommit {
    fn of(committed: Committed) -> (TopicPartition, Self) {
        let place = (committed.topic, committed.partition);
        let commit = Self {
            offset: committed.offset,
            leader_epoch: committed.leader_epoch,
            metadata: committed.metadata.into(),
            committed_ms: committed.committed_ms,
        };
        (place, commit)
    }

    fn committed(&self, group: &str, (topic, partition): TopicPartition) -> Committed {
        Committed {
            group: group.to_owned(),
            topic,
            partition,
            offset: self.offset,
            leader_epoch: self.leader_epoch,
            metadata: self.metadata.clone().into(),
            committed_ms: self.committed_ms,
        }
    }
}

impl CommittedOffsets {
    pub(crate) fn set(&self, committed: Committed) {
        let group = Name::from(&committed.group).owned();
        self.set_all(group, [OffsetCommit::of(committed)]);
    }

    pub(crate) fn set_all(
        &self,
        group: OwnedName,
        commits: impl IntoIterator<Item = (TopicPartition, OffsetCommit)>,
    ) {
        self.groups.lock().entry(group).or_default().extend(commits);
    }

    pub(crate) fn remove_group(&self, group: &OwnedName) -> bool {
        self.groups.lock().remove(group).is_some()
    }

    pub(crate) fn remove_topic(&self, topic: Uuid) {
        self.groups.lock().retain(|_, offsets| {
            offsets.retain(|(of, _), _| *of != topic);
            !offsets.is_empty()
        });
    }

    pub(crate) fn remove(&self, group: &OwnedName, places: &[TopicPartition]) {
        forget(&mut self.groups.lock(), group, places);
    }

    /// Takes over the offsets from the journal, except those of deleted topics.
    pub(crate) fn restore(&self, from: Self, is_known: impl Fn(&Uuid) -> bool) {
        let mut groups = from.groups.into_inner();
        groups.retain(|_, offsets| {
            offsets.retain(|(topic, _), _| is_known(topic));
            !offsets.is_empty()
        });
        *self.groups.lock() = groups;
    }

    /// The committed offsets of all groups for one partition.
    pub(crate) fn of_partition(&self, topic: Uuid, partition: u32) -> Vec<Offset> {
        let groups = self.groups.lock();
        let place = (topic, partition);
        groups
            .values()
            .filter_map(|offsets| offsets.get(&place))
            .map(|commit| commit.offset)
            .collect()
    }

    /// Whether any group has committed an offset in a topic.
    pub(crate) fn has_topic(&self, topic: Uuid) -> bool {
        let groups = self.groups.lock();
        let places = (topic, 0)..=(topic, u32::MAX);
        groups
            .values()
            .any(|offsets| offsets.range(places.clone()).next().is_some())
    }

    pub(crate) fn snapshot(&self) -> Vec<Entry> {
        let groups = self.groups.lock();
        let mut entries = Vec::new();
        for (group, offsets) in groups.iter() {
            let all: Vec<(TopicPartition, OffsetCommit)> = offsets
                .iter()
                .map(|(place, commit)| (*place, commit.clone()))
                .collect();
            entries.extend(all.chunks(SNAPSHOT_OFFSETS).map(|commits| Entry::Offsets {
                group: group.clone(),
                commits: commits.to_vec(),
            }));
        }
        entries
    }
}

fn forget(groups: &mut Groups, group: &OwnedName, places: &[TopicPartition]) {
    let Some(offsets) = groups.get_mut(group) else {
        return;
    };
    for place in places {
        offsets.remove(place);
    }
    if offsets.is_empty() {
        groups.remove(group);
    }
}

impl Shared {
    /// Writes entries under the lock of the offsets, then changes the offsets.
    fn change_offsets<R>(
        &self,
        entries: impl FnOnce(&Groups) -> Vec<Entry>,
        change: impl FnOnce(&mut Groups, Vec<Entry>) -> R,
    ) -> Result<R, CatalogError> {
        let mut groups = self.committed.groups.lock();
        let entries = entries(&groups);
        if !entries.is_empty() {
            self.write_entries(&entries)?;
        }
        Ok(change(&mut groups, entries))
    }
}

impl Broker {
    /// Writes committed offsets to the journal, not synced, when this returns. Offsets of deleted
    /// topics are ignored.
    ///
    /// # Errors
    /// The journal cannot be written; then no offset has changed.
    pub fn commit_offsets(&self, offsets: Vec<Committed>) -> Result<(), CatalogError> {
        self.commit_offsets_in(&Namespace::DEFAULT, offsets)
    }

    /// As [`Self::commit_offsets`], for groups of this namespace.
    pub(crate) fn commit_offsets_in(
        &self,
        namespace: &Namespace,
        offsets: Vec<Committed>,
    ) -> Result<(), CatalogError> {
        let mut by_group: Vec<(OwnedName, Vec<(TopicPartition, OffsetCommit)>)> = Vec::new();
        for committed in offsets {
            // Usually all offsets are of one group.
            if by_group
                .last()
                .is_none_or(|(group, _)| group.text != committed.group)
            {
                by_group.push((namespace.name(&committed.group).owned(), Vec::new()));
            }
            if let Some((_, commits)) = by_group.last_mut() {
                commits.push(OffsetCommit::of(committed));
            }
        }
        let shared = &self.shared;
        // Checked under the lock: a deleted topic leaves the catalog before its offsets are
        // removed.
        let known = |_: &_| {
            for (_, commits) in &mut by_group {
                // Usually consecutive offsets are of one topic.
                let (mut asked, mut is_known) = (None, false);
                commits.retain(|((topic, _), _)| {
                    if asked != Some(*topic) {
                        asked = Some(*topic);
                        is_known = shared.topic_by_id(*topic).is_some();
                    }
                    is_known
                });
            }
            by_group.retain(|(_, commits)| !commits.is_empty());
            let entry = |(group, commits)| Entry::Offsets { group, commits };
            by_group.into_iter().map(entry).collect()
        };
        shared.change_offsets(known, |groups, entries| {
            for entry in entries {
                if let Entry::Offsets { group, commits } = entry {
                    groups.entry(group).or_default().extend(commits);
                }
            }
        })
    }

    /// The committed offsets of a group.
    pub fn committed_offsets<'a>(&self, group: impl Into<Name<'a>>) -> Vec<Committed> {
        let group = group.into();
        let groups = self.shared.committed.groups.lock();
        let Some(offsets) = groups.get(&group.owned()) else {
            return Vec::new();
        };
        let committed = |(place, commit): (&TopicPartition, &OffsetCommit)| {
            commit.committed(group.text, *place)
        };
        offsets.iter().map(committed).collect()
    }

    /// A group's committed offsets by topic and partition, without metadata.
    pub fn committed_places<'a>(&self, group: impl Into<Name<'a>>) -> HashMap<(Uuid, u32), Offset> {
        let group = group.into().owned();
        let groups = self.shared.committed.groups.lock();
        let offsets = groups.get(&group).into_iter().flatten();
        offsets
            .map(|(place, commit)| (*place, commit.offset))
            .collect()
    }

    /// The committed offset of a group for one partition.
    pub fn committed_offset<'a>(
        &self,
        group: impl Into<Name<'a>>,
        topic: Uuid,
        partition: u32,
    ) -> Option<Committed> {
        let group = group.into();
        let groups = self.shared.committed.groups.lock();
        let place = (topic, partition);
        let commit = groups.get(&group.owned())?.get(&place)?;
        Some(commit.committed(group.text, place))
    }

    /// Whether any group has committed offsets in a topic.
    pub fn is_committed(&self, topic: Uuid) -> bool {
        self.shared.committed.has_topic(topic)
    }

    /// The groups that have committed offsets, sorted.
    pub fn groups_with_offsets(&self) -> Vec<String> {
        self.groups_with_offsets_in(&Namespace::DEFAULT)
    }

    /// The groups of this namespace that have committed offsets, sorted.
    pub(crate) fn groups_with_offsets_in(&self, namespace: &Namespace) -> Vec<String> {
        let groups = self.shared.committed.groups.lock();
        let names = groups.keys().filter(|name| name.namespace == *namespace);
        let mut names: Vec<String> = names.map(|name| name.text.clone()).collect();
        drop(groups);
        names.sort_unstable();
        names
    }

    /// Removes some of a group's committed offsets; partitions without one are ignored. Written to
    /// the journal, not synced, when this returns.
    ///
    /// # Errors
    /// The journal cannot be written; then no offset is removed.
    pub fn delete_offsets<'a>(
        &self,
        group: impl Into<Name<'a>>,
        partitions: &[(Uuid, u32)],
    ) -> Result<(), CatalogError> {
        let group = &group.into().owned();
        let entries = |groups: &Groups| {
            let has =
                |place: &&TopicPartition| groups.get(group).is_some_and(|g| g.contains_key(*place));
            let places: Vec<TopicPartition> = partitions.iter().filter(has).copied().collect();
            let group = group.clone();
            if places.is_empty() {
                Vec::new()
            } else {
                vec![Entry::OffsetsDeleted { group, places }]
            }
        };
        self.shared
            .change_offsets(entries, |groups, _| forget(groups, group, partitions))
    }

    /// Removes all committed offsets of a group. `false`: it has none.
    ///
    /// # Errors
    /// The journal cannot be written; then the offsets stay.
    pub fn delete_group<'a>(&self, group: impl Into<Name<'a>>) -> Result<bool, CatalogError> {
        let group = &group.into().owned();
        let entries = |groups: &Groups| {
            if groups.contains_key(group) {
                vec![Entry::GroupDeleted(group.clone())]
            } else {
                Vec::new()
            }
        };
        self.shared
            .change_offsets(entries, |groups, _| groups.remove(group).is_some())
    }
}
