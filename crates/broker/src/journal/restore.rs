//! Restores topics and subscriptions from the state journal at the start.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use cloverleaf_log::{Offset, RecoveredPartition, Recovery};
use uuid::Uuid;

use crate::broker::{CatalogError, OpenError, Shared, truncate};
use crate::committed::CommittedOffsets;
use crate::journal::atomic;
use crate::journal::entries::{Entry, EntryError, SubscriptionDefinition, TopicDefinition};
use crate::journal::orphans::starts_after_damage;
use crate::journal::protocol_values::{Identity, ProtocolValues};
use crate::subscription::ledger::{Ledger, MovedMessages, RestoredRetries, retries_end};
use crate::topic::Topic;
use crate::topic::partition::Partition;

/// After a power loss the next message of each partition gets an offset this far above the end that
/// was found.
///
/// Consumers may have seen messages that were not synced and are lost; their offsets must not be
/// used again. The log syncs at least every second even if no publish waits for a sync, so fewer
/// messages than this were lost.
const POWER_LOSS_GAP: u64 = 1 << 24;

/// The state according to the journal.
#[derive(Default)]
pub(crate) struct Restored {
    pub(crate) topics: BTreeMap<Uuid, TopicDefinition>,
    /// The number of the entry that defined each topic last.
    pub(crate) defined_at: HashMap<Uuid, u64>,
    entries: u64,
    pub(crate) subscriptions: BTreeMap<u64, (SubscriptionDefinition, Ledger, RestoredRetries)>,
    /// By subscription id.
    moved: BTreeMap<u64, MovedMessages>,
    committed: CommittedOffsets,
    starts: BTreeMap<(Uuid, u32), Offset>,
    nexts: BTreeMap<(Uuid, u32), Offset>,
    pub(crate) kept: ProtocolValues,
    pub(crate) identity: Option<Identity>,
    last_subscription_id: u64,
    /// The boot in which the last broker ran; `None` if it ended in order.
    pub(crate) interrupted_boot: Option<String>,
    /// Deleted topics, whose folders may be removed.
    pub(crate) deleted: HashSet<Uuid>,
}

impl Restored {
    pub(crate) fn read(recovery: &Recovery) -> Result<Self, EntryError> {
        let mut restored = Self::default();
        for bytes in &recovery.journal {
            atomic::decode(bytes)?
                .into_iter()
                .for_each(|entry| restored.apply(entry));
        }
        Ok(restored)
    }

    fn apply(&mut self, entry: Entry) {
        self.entries += 1;
        match entry {
            // Ignore an entry that was written while its topic was being deleted.
            Entry::Topic(definition) if self.deleted.contains(&definition.id) => {}
            Entry::Subscription(definition) if self.deleted.contains(&definition.topic) => {}
            Entry::Topic(definition) => {
                self.defined_at.insert(definition.id, self.entries);
                self.topics.insert(definition.id, definition);
            }
            Entry::TopicDeleted(id) => self.forget_topic(id),
            Entry::Subscription(definition) => {
                let id = definition.id;
                self.last_subscription_id = self.last_subscription_id.max(id);
                if let Some((known, _, _)) = self.subscriptions.get_mut(&id) {
                    *known = definition;
                    return;
                }
                let attempts_max = definition.options.attempts_max;
                let ledger = Ledger::new(&definition.floors, attempts_max);
                self.subscriptions
                    .insert(id, (definition, ledger, RestoredRetries::new()));
            }
            Entry::SubscriptionDeleted(id) => {
                self.last_subscription_id = self.last_subscription_id.max(id);
                self.subscriptions.remove(&id);
            }
            Entry::Progress(id, delta) => {
                self.last_subscription_id = self.last_subscription_id.max(id);
                if let Some((_, ledger, retries)) = self.subscriptions.get_mut(&id) {
                    ledger.restore(&delta, retries);
                }
            }
            Entry::Moved(id, delta) => {
                self.last_subscription_id = self.last_subscription_id.max(id);
                self.moved.entry(id).or_default().restore(delta);
            }
            Entry::Delivered {
                subscription,
                partition,
                end,
            } => {
                self.last_subscription_id = self.last_subscription_id.max(subscription);
                if let Some((_, ledger, _)) = self.subscriptions.get_mut(&subscription) {
                    ledger.restore_mark(partition, end);
                }
            }
            Entry::Committed(committed) => self.committed.set(committed),
            Entry::GroupDeleted(group) => {
                self.committed.remove_group(&group);
            }
            Entry::Offsets { group, commits } => self.committed.set_all(group, commits),
            Entry::OffsetsDeleted { group, places } => self.committed.remove(&group, &places),
            Entry::Kept { key, value } => self.kept.apply(key, value),
            Entry::Identity(identity) => self.identity = Some(identity),
            Entry::Start {
                topic,
                partition,
                offset,
            } => {
                let start = self.starts.entry((topic, partition)).or_default();
                *start = offset.max(*start);
            }
            Entry::Next {
                topic,
                partition,
                offset,
            } => {
                let next = self.nexts.entry((topic, partition)).or_default();
                *next = offset.max(*next);
            }
            Entry::Opened(boot_id) => {
                let before = self.interrupted_boot.replace(boot_id);
                if before.is_some() && before != self.interrupted_boot {
                    // Copies that were written in that boot but not synced may be lost.
                    self.moved.clear();
                }
            }
            Entry::Closed => self.interrupted_boot = None,
        }
    }

    pub(crate) fn forget_topic(&mut self, id: Uuid) {
        self.topics.remove(&id);
        self.committed.remove_topic(id);
        self.subscriptions
            .retain(|_, (definition, _, _)| definition.topic != id);
        self.deleted.insert(id);
    }

    /// Whether the machine lost power while the broker ran, so that what was not synced may be
    /// missing.
    pub(crate) fn lost_power(&self, recovery: &Recovery) -> bool {
        let boot = self.interrupted_boot.as_ref();
        boot.is_some_and(|boot| *boot != recovery.boot_id)
    }

    pub(crate) fn install(
        mut self,
        shared: &Arc<Shared>,
        recovery: &Recovery,
    ) -> Result<(), OpenError> {
        // Damage may have destroyed the last record of used offsets, or of a power loss, as well.
        let lost_power = self.lost_power(recovery) || recovery.lost_entries > 0;
        let ephemeral: Vec<Uuid> = self
            .topics
            .values()
            .filter(|t| t.options.ephemeral)
            .map(|t| t.id)
            .collect();
        ephemeral.into_iter().for_each(|id| self.forget_topic(id));
        shared.restore_subscription_id(self.last_subscription_id);
        let known: HashSet<Uuid> = self.topics.keys().copied().collect();
        shared
            .committed
            .restore(self.committed, |topic| known.contains(topic));
        for (key, value) in self.kept.all() {
            shared.protocol_values.apply(key, Some(value));
        }
        if let Some(Identity { cluster, starts }) = self.identity {
            // The identity has not been read yet, so this sets it.
            let mut starts = starts + 1;
            if recovery.lost_entries > 0 {
                starts = starts_after_damage(starts, recovery, shared.clock.now_ms());
            }
            shared.identity.get_or_init(|| Identity { cluster, starts });
        }
        let in_doubt = |found: &RecoveredPartition| found.end_in_doubt.then_some(found.topic);
        let in_doubt: HashSet<Uuid> = recovery.partitions.iter().filter_map(in_doubt).collect();
        // The copies may be in a partition whose end is in doubt.
        let moved = settled_moves(shared, self.moved, lost_power || !in_doubt.is_empty())?;
        let mut by_topic: BTreeMap<Uuid, Vec<_>> = BTreeMap::new();
        for (id, (definition, mut ledger, retries)) in self.subscriptions {
            if let Some(topic) = self.topics.get(&definition.topic) {
                ledger.grow(topic.options.partitions as usize);
            }
            if let Some(moved) = moved.get(&id) {
                ledger.settle_moved(moved);
            }
            by_topic
                .entry(definition.topic)
                .or_default()
                .push((definition, ledger, retries));
        }
        let mut marks = Vec::new();
        for (id, definition) in self.topics {
            // Messages at the end may be lost, as after a power loss.
            let lost_power = lost_power || in_doubt.contains(&id);
            let topic = Topic::open(shared, definition)?;
            let subscriptions = by_topic.remove(&id).unwrap_or_default();
            for (partition, log) in (0u32..).zip(topic.partitions().iter()) {
                log.raise_next_offset(self.nexts.get(&(id, partition)).copied().unwrap_or(0));
                // An acknowledgement may have survived its message: the offset is never used again.
                let named = |(_, ledger, retries): &(_, Ledger, _)| {
                    ledger
                        .known_end(partition)
                        .max(retries_end(retries, partition))
                };
                let named = subscriptions.iter().map(named);
                // A client may commit any offset; one this far above the end was never used.
                let used_max = log.next_offset().saturating_add(POWER_LOSS_GAP);
                let mut committed = shared.committed.of_partition(id, partition);
                committed.retain(|offset| *offset <= used_max);
                log.raise_next_offset(named.chain(committed).max().unwrap_or(0));
                // Last, because a log without records must not begin after its end.
                if let Some(start) = self.starts.get(&(id, partition)) {
                    log.raise_next_offset(*start);
                    truncate(&topic, log, *start);
                }
            }
            let ends: Vec<Offset> = topic
                .partitions()
                .iter()
                .map(|log| log.next_offset())
                .collect();
            if lost_power {
                leave_gap(&topic);
                shared.write_entries(&topic.next_offsets())?;
            }
            let gone: Vec<_> = topic.partitions().iter().map(Partition::gone).collect();
            for (definition, mut ledger, retries) in subscriptions {
                // No consumer waits for messages that are lost.
                ledger.finish_restore(retries, &topic.written_ends(), &gone);
                marks.extend(finish_marks(&definition, &mut ledger, &ends, lost_power));
                topic.add_subscription(&definition, ledger);
            }
            shared.restore_topic(&topic);
        }
        if !marks.is_empty() {
            shared.write_entries(&marks)?;
        }
        remove_folders(shared, &self.deleted);
        for found in &recovery.topics {
            let topic = shared.topic_by_id(found.topic);
            if topic.is_some_and(|it| Some(it.description()) != found.description) {
                shared.log.describe(found.topic);
            }
        }
        Ok(())
    }
}

/// The moved messages whose copies are certain to be there, by subscription. After a kill the
/// copies are synced first, so that the originals can count as acknowledged. If copies may be lost,
/// the journal records that their originals have not moved.
fn settled_moves(
    shared: &Shared,
    mut moved: BTreeMap<u64, MovedMessages>,
    may_be_gone: bool,
) -> Result<BTreeMap<u64, MovedMessages>, CatalogError> {
    moved.retain(|_, moved| !moved.is_empty());
    if moved.is_empty() {
        return Ok(moved);
    }
    if !may_be_gone {
        let Err(error) = shared.log.sync_all() else {
            return Ok(moved);
        };
        tracing::warn!(%error, "cannot sync what was moved: dead letters may come twice");
    }
    let entries = |(id, moved): (u64, MovedMessages)| {
        let deltas = moved.taken_back().into_iter();
        deltas.map(move |delta| Entry::Moved(id, delta))
    };
    let entries: Vec<Entry> = moved.into_iter().flat_map(entries).collect();
    shared.write_entries(&entries)?;
    Ok(BTreeMap::new())
}

/// Fixes the delivery marks of a subscription, now that the ends of its partitions are known.
/// Returns the entries that must be written to the journal.
fn finish_marks(
    definition: &SubscriptionDefinition,
    ledger: &mut Ledger,
    ends: &[Offset],
    lost_power: bool,
) -> Vec<Entry> {
    let marks = (0u32..).zip(ledger.marks_mut().iter_mut().zip(ends));
    marks
        .filter_map(|(partition, (mark, end))| {
            Some(Entry::Delivered {
                subscription: definition.id,
                partition,
                end: mark.finish_restore(*end, lost_power)?,
            })
        })
        .collect()
}

/// Raises the next offset above every offset that may have been used before the power loss. Readers
/// see the gap only with the next message: until then each partition ends after its last message.
fn leave_gap(topic: &Topic) {
    for log in topic.partitions().iter() {
        log.raise_next_offset(log.next_offset().saturating_add(POWER_LOSS_GAP));
    }
}

/// Removes the folders of deleted topics.
fn remove_folders(shared: &Arc<Shared>, gone: &HashSet<Uuid>) {
    // Includes folders that were not found: an empty folder may be left, or its removal may be
    // unsynced.
    for id in gone {
        shared.log.delete_topic(*id);
    }
}
