//! Topics that the journal has lost but whose folders still describe them.
//!
//! A folder without a definition in the journal is an *orphan*. If the folder describes its topic,
//! the topic is restored and logged. If it does not, its name may have been lost to damage: then
//! the broker refuses to start unless it is told to repair. Two harmless causes are a power loss
//! and an earlier version that left the folder alone. Names are unique, so if two topics have the
//! same name, the older one was deleted and damage has destroyed the entry of its deletion.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cloverleaf_log::{RecoveredTopic, Recovery};
use uuid::Uuid;

use crate::broker::{OpenError, PARTITIONS_MAX, Shared};
use crate::journal::entries::{Entry, TopicDefinition};
use crate::journal::protocol_values::Identity;
use crate::journal::restore::Restored;
use crate::namespace::{Name, Namespace, OwnedName};
use crate::options::{Retention, TopicOptions};

/// Prefix of a key in the protocol values; the folder's id follows. It marks an orphan that a power
/// loss has left and that is ignored.
const IGNORED_PREFIX: &str = "$orphan/";
/// How many folders an error names.
const NAMED_MAX: usize = 4;
/// Milliseconds within which a broker is not started twice.
const START_MS: u64 = 8_000;

/// Whether the whole journal is lost: a broker always leaves an entry, so an empty journal beside
/// topics means that all entries are lost. An error unless the broker is told to repair.
pub(crate) fn check_journal(shared: &Shared, recovery: &mut Recovery) -> Result<(), OpenError> {
    let has_topics = recovery.topics.iter().any(|found| found.has_partitions);
    if !recovery.journal.is_empty() || !has_topics {
        return Ok(());
    }
    if !shared.options.repair {
        let reason = shared.log.journal_lost(recovery).to_string();
        return Err(OpenError::Lost { reason });
    }
    recovery.lost_entries = recovery.lost_entries.max(1);
    Ok(())
}

impl Restored {
    /// Completes the state from the journal by what the folders describe. Returns the entries that
    /// must be written to the journal.
    pub(crate) fn complete(
        &mut self,
        shared: &Arc<Shared>,
        recovery: &Recovery,
    ) -> Result<Vec<Entry>, OpenError> {
        let mut found = Vec::new();
        if recovery.lost_entries > 0 {
            tracing::error!(
                entries = recovery.lost_entries,
                "damage has taken entries of the state journal: what only they told of topics, \
                 subscriptions, progress, groups, exchanges and bindings is lost; what they \
                 deleted may be back; messages may come again"
            );
            self.drop_deleted(&mut found);
            self.drop_subscriptions(&mut found);
        }
        self.take_in_orphans(shared, recovery, &mut found)?;
        if self.identity.is_none() && recovery.lost_entries > 0 {
            let known = self
                .topics
                .values()
                .map(|topic| topic.creation_order.0)
                .max();
            let known = known.unwrap_or(0);
            let starts = starts_after_damage(known, recovery, shared.clock.now_ms());
            let cluster = Uuid::new_v4();
            let _first = shared.identity.set(Identity { cluster, starts });
        }
        Ok(found)
    }

    fn delete(&mut self, id: Uuid, found: &mut Vec<Entry>) {
        self.forget_topic(id);
        found.push(Entry::TopicDeleted(id));
    }

    /// Deletes topics whose deletion is certain although its entry is lost. A missing folder proves
    /// nothing: the topic may never have had a message, even if its next offset is high, because a
    /// power loss and a committed offset raise that too.
    fn drop_deleted(&mut self, found: &mut Vec<Entry>) {
        let mut by_name: HashMap<OwnedName, Uuid> = HashMap::new();
        let mut deleted = Vec::new();
        for (id, topic) in &self.topics {
            let Some(other) = by_name.insert(topic.full_name().owned(), *id) else {
                continue;
            };
            let (older, newer) = if self.defined_at.get(&other) < self.defined_at.get(id) {
                (other, *id)
            } else {
                (*id, other)
            };
            by_name.insert(topic.full_name().owned(), newer);
            deleted.push(older);
        }
        for id in deleted {
            let name = self.topics.get(&id).map(|topic| topic.name.clone());
            tracing::error!(topic = %id, name, "deleted: damage has taken the entry that told it");
            self.delete(id, found);
        }
    }

    /// If two subscriptions have the same name, the one with the lower id was deleted.
    fn drop_subscriptions(&mut self, found: &mut Vec<Entry>) {
        let mut newest: HashMap<(Uuid, String), u64> = HashMap::new();
        for (id, (definition, ..)) in &self.subscriptions {
            newest.insert((definition.topic, definition.name.clone()), *id);
        }
        self.subscriptions.retain(|id, (definition, ..)| {
            let is_newest = newest.get(&(definition.topic, definition.name.clone())) == Some(id);
            if !is_newest {
                let (name, topic) = (&definition.name, definition.topic);
                tracing::error!(name, %topic, "an earlier subscription of this name was deleted");
                found.push(Entry::SubscriptionDeleted(*id));
            }
            is_newest
        });
    }

    fn take_in_orphans(
        &mut self,
        shared: &Arc<Shared>,
        recovery: &Recovery,
        found: &mut Vec<Entry>,
    ) -> Result<(), OpenError> {
        let mut partitions: BTreeMap<Uuid, u32> = BTreeMap::new();
        for stored in &recovery.partitions {
            let count = partitions.entry(stored.topic).or_default();
            *count = (*count)
                .max(stored.partition.saturating_add(1))
                .min(PARTITIONS_MAX);
        }
        let mut unnamed = Vec::new();
        for folder in &recovery.topics {
            let count = partitions.get(&folder.topic).copied().unwrap_or(0);
            let described = description_of(folder);
            if let Some(known) = self.topics.get_mut(&folder.topic) {
                let newer = described.filter(|described| {
                    recovery.lost_entries > 0 && described.revision > known.revision
                });
                if let Some(described) = newer {
                    let name = &known.name;
                    tracing::error!(name, "its settings were changed last as its folder says");
                    let paused_at = known.paused_at.take();
                    *known = TopicDefinition {
                        paused_at,
                        ..described
                    };
                    found.push(Entry::Topic(known.clone()));
                }
                continue;
            }
            if self.deleted.contains(&folder.topic) || !folder.has_partitions {
                continue;
            }
            match described {
                Some(described) if described.options.ephemeral => self.delete(folder.topic, found),
                Some(described) => self.take_in(described, count, found),
                None => unnamed.push((folder.topic, count)),
            }
        }
        if unnamed.is_empty() {
            return Ok(());
        }
        let known = self.kept.all();
        let key = |id: &Uuid| Name::from(&format!("{IGNORED_PREFIX}{id}")).owned();
        let is_ignored = |id: &Uuid| {
            let key = key(id);
            known.iter().any(|(known, _)| *known == key)
        };
        // Earlier versions ignored folders left by a power loss and did not mark them.
        let is_explained =
            recovery.lost_entries == 0 && (recovery.is_upgraded || self.lost_power(recovery));
        let damaged: Vec<Uuid> = unnamed
            .iter()
            .map(|(id, _)| *id)
            .filter(|id| !is_explained && !is_ignored(id))
            .collect();
        if !damaged.is_empty() && !shared.options.repair {
            let folders = damaged.iter().take(NAMED_MAX);
            let folders: Vec<String> = folders.map(|id| format!("topics/{id}")).collect();
            let more = if damaged.len() > NAMED_MAX {
                ", ..."
            } else {
                ""
            };
            return Err(OpenError::Unnamed {
                count: damaged.len(),
                folders: folders.join(", ") + more,
            });
        }
        for (id, count) in unnamed {
            if shared.options.repair {
                self.take_in_unnamed(id, count, shared.clock.now_ms(), found);
                continue;
            }
            tracing::warn!(
                topic = %id,
                "a topic folder is in no definition; it is left alone (--repair takes it in)"
            );
            let key = key(&id);
            if !is_ignored(&id) {
                self.kept.apply(key.clone(), Some(Vec::new()));
                let value = Some(Vec::new());
                found.push(Entry::Kept { key, value });
            }
        }
        Ok(())
    }

    /// Restores a topic that its folder describes.
    fn take_in(&mut self, mut described: TopicDefinition, partitions: u32, found: &mut Vec<Entry>) {
        described.options.partitions = described.options.partitions.max(partitions);
        let (id, name) = (described.id, described.name.clone());
        let is_rival = |topic: &&TopicDefinition| topic.full_name() == described.full_name();
        let rival = self.topics.values().find(is_rival);
        match rival.map(|rival| (rival.id, rival.creation_order)) {
            Some((_, creation_order)) if creation_order > described.creation_order => {
                tracing::error!(topic = %id, name, "deleted before a later one of its name");
                return self.delete(id, found);
            }
            Some((rival, creation_order)) if creation_order < described.creation_order => {
                tracing::error!(topic = %rival, name, "deleted before a later one of its name");
                self.delete(rival, found);
            }
            Some(_) => described.name = recovered_name(id),
            None => {}
        }
        tracing::error!(
            topic = %id, name = described.name,
            "the state journal does not know this topic, but its folder does: it is taken in again"
        );
        self.defined_at.insert(id, u64::MAX);
        found.push(Entry::Topic(described.clone()));
        self.topics.insert(id, described);
    }

    /// Keeps the messages of a folder that does not describe its topic, as a topic with a new name.
    fn take_in_unnamed(&mut self, id: Uuid, partitions: u32, now_ms: u64, found: &mut Vec<Entry>) {
        let definition = TopicDefinition {
            id,
            namespace: Namespace::DEFAULT,
            name: recovered_name(id),
            created_ms: now_ms,
            creation_order: (0, 0),
            options: TopicOptions {
                partitions: partitions.max(1),
                // Retention deletes nothing before a person has looked at the messages.
                retention: Retention::default(),
                ..TopicOptions::default()
            },
            paused_at: None,
            revision: 0,
        };
        tracing::error!(
            topic = %id, name = definition.name, partitions,
            "repaired: the messages of this folder are kept under this name; its own name, \
             settings, subscriptions and committed offsets are given up"
        );
        found.push(Entry::Topic(definition.clone()));
        self.topics.insert(id, definition);
    }
}

fn recovered_name(id: Uuid) -> String {
    format!("recovered-{id}")
}

fn description_of(folder: &RecoveredTopic) -> Option<TopicDefinition> {
    let Ok(Entry::Topic(described)) = Entry::decode(folder.description.as_deref()?) else {
        return None;
    };
    let is_sound = described.id == folder.topic
        && (1..=PARTITIONS_MAX).contains(&described.options.partitions)
        && !described.name.is_empty();
    is_sound.then_some(described)
}

/// An upper bound of the number of starts, when damage may have destroyed the count.
pub(crate) fn starts_after_damage(known: u64, recovery: &Recovery, now_ms: u64) -> u64 {
    let known = known.saturating_add(u64::from(recovery.lost_entries));
    known.max(now_ms / START_MS)
}
