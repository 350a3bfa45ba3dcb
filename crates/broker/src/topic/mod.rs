//! A topic: a name, its partitions in the log, and its subscriptions.

pub(crate) mod admission;
pub(crate) mod layout;
pub(crate) mod partition;
pub(crate) mod publish;
pub(crate) mod published;
pub(crate) mod settings;
pub(crate) mod unwritten;
pub(crate) mod watch;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cloverleaf_log::Offset;
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use crate::broker::{CatalogError, Shared};
use crate::journal::entries::{Entry, SubscriptionDefinition, TopicDefinition};
use crate::namespace::{Name, Namespace};
use crate::options::{StartAt, SubscriptionOptions};
use crate::subscription::Subscription;
use crate::subscription::ledger::Ledger;
use crate::topic::layout::TopicLayout;
use crate::topic::partition::Partition;

/// A topic in the catalog.
pub struct Topic {
    id: Uuid,
    number: u32,
    namespace: Namespace,
    name: String,
    created_ms: u64,
    creation_order: (u64, u32),
    ephemeral: bool,
    shared: Arc<Shared>,
    pub(crate) layout: RwLock<Arc<TopicLayout>>,
    /// Sorted by name. A change of a definition replaces the list; publishes only read it.
    subscriptions: RwLock<Arc<[Arc<Subscription>]>>,
    /// The end of each partition when the topic was paused; `None` while it is not paused.
    pub(crate) paused_at: Mutex<Option<Vec<Offset>>>,
    /// The revision of the definition. Changes only while `definitions` is locked.
    pub(crate) revision: AtomicU64,
    deleted: AtomicBool,
    /// A reader by offset has come, and [`Topic::note_reader`] has adjusted the retention for it:
    /// it has nothing left to do.
    pub(crate) has_reader: AtomicBool,
    pub(crate) next_partition: AtomicU32,
    pub(crate) messages: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) body_bytes: AtomicU64,
}

impl std::fmt::Debug for Topic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Topic")
            .field("name", &self.name)
            .field("id", &self.id)
            .finish()
    }
}

impl Topic {
    pub(crate) fn open(
        shared: &Arc<Shared>,
        definition: TopicDefinition,
    ) -> Result<Arc<Self>, CatalogError> {
        let layout = Arc::new(TopicLayout::open(
            shared,
            definition.id,
            definition.options,
            None,
        )?);
        let partitions = layout.partitions.len();
        let paused_at = definition.paused_at.map(|mut limits| {
            limits.resize(partitions, 0);
            limits
        });
        let topic = Arc::new(Self {
            id: definition.id,
            number: shared.next_topic_number(),
            namespace: definition.namespace,
            name: definition.name,
            created_ms: definition.created_ms,
            creation_order: definition.creation_order,
            ephemeral: layout.options.ephemeral,
            shared: shared.clone(),
            layout: RwLock::new(layout.clone()),
            subscriptions: RwLock::new(Arc::new([])),
            paused_at: Mutex::new(paused_at),
            revision: AtomicU64::new(definition.revision),
            deleted: AtomicBool::new(false),
            has_reader: AtomicBool::new(false),
            next_partition: AtomicU32::new(0),
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            body_bytes: AtomicU64::new(0),
        });
        topic.listen(&layout, 0);
        Ok(topic)
    }

    /// An identity that no other topic ever gets, not even a later one of the same name.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// A short identity, valid while this process runs.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its name and its namespace.
    pub fn full_name(&self) -> Name<'_> {
        self.namespace.name(&self.name)
    }

    /// When it was created, milliseconds since the Unix epoch.
    pub fn created_ms(&self) -> u64 {
        self.created_ms
    }

    /// Whether it ends with the process.
    pub fn is_ephemeral(&self) -> bool {
        self.ephemeral
    }

    /// Whether it was deleted: a handle may outlive the topic.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Messages published in this process.
    pub fn message_count(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Bytes of the batches published in this process.
    pub fn bytes_count(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the bodies published in this process. A batch that a client has compressed counts
    /// with its compressed bytes.
    pub fn body_bytes_count(&self) -> u64 {
        self.body_bytes.load(Ordering::Relaxed)
    }

    /// Delayed messages that will be published to this topic ([`Topic::publish_delayed`]).
    pub fn scheduled(&self) -> u64 {
        self.shared.scheduled.count(self.id)
    }

    /// Messages that no subscription was offered yet, as nsqd counts a topic's depth: the whole
    /// backlog of a topic without subscriptions, or the messages published since the topic was
    /// paused. What waits in a subscription does not count.
    pub fn depth(&self) -> u64 {
        let paused_at = self.paused_at.lock().clone();
        let from = match paused_at {
            Some(offsets) => offsets,
            None if !self.subscriptions().is_empty() => return 0,
            None => self
                .partitions()
                .iter()
                .map(|log| log.start_offset())
                .collect(),
        };
        let partitions = self.partitions();
        let held = partitions
            .iter()
            .zip(from)
            .map(|(log, from)| log.lag_from(from));
        held.sum()
    }

    /// Its subscriptions, sorted by name.
    pub fn subscriptions(&self) -> Arc<[Arc<Subscription>]> {
        self.subscriptions.read().clone()
    }

    /// The subscription with that name.
    pub fn subscription(&self, name: &str) -> Option<Arc<Subscription>> {
        let subscriptions = self.subscriptions.read();
        let at = subscriptions
            .binary_search_by(|s| s.name().cmp(name))
            .ok()?;
        Some(subscriptions[at].clone())
    }

    /// The subscription with that name, created if there is none.
    pub fn subscription_or_create(
        self: &Arc<Self>,
        name: &str,
        options: impl FnOnce() -> SubscriptionOptions,
    ) -> Result<Arc<Subscription>, CatalogError> {
        if let Some(subscription) = self.subscription(name) {
            return Ok(subscription);
        }
        let _definitions = self.shared.definitions.lock();
        if self.is_deleted() {
            return Err(CatalogError::TopicDeleted {
                topic: self.name.clone(),
            });
        }
        if let Some(subscription) = self.subscription(name) {
            return Ok(subscription);
        }
        self.shared.check_name(name)?;
        let options = options();
        let floors = self.floors_for(options.start);
        let definition = SubscriptionDefinition {
            id: self.shared.next_subscription_id(),
            topic: self.id,
            name: name.to_owned(),
            options,
            paused: false,
            floors,
        };
        let lasts = !definition.options.ephemeral && !self.ephemeral;
        if lasts {
            self.shared
                .write_entries(&[Entry::Subscription(definition.clone())])?;
        }
        let attempts_max = definition.options.attempts_max;
        let ledger = Ledger::new(&definition.floors, attempts_max);
        let subscription = self.add_subscription(&definition, ledger);
        self.shared.notify_changed();
        Ok(subscription)
    }

    pub(crate) fn add_subscription(
        self: &Arc<Self>,
        definition: &SubscriptionDefinition,
        ledger: Ledger,
    ) -> Arc<Subscription> {
        let options = definition.options.clone();
        let subscription = Arc::new(Subscription::new(
            definition.id,
            &definition.name,
            self,
            options,
            ledger,
            definition.paused,
        ));
        let ends = self.written_ends();
        let mut subscriptions = self.subscriptions.write();
        let mut all = subscriptions.to_vec();
        all.push(subscription.clone());
        all.sort_by(|a, b| a.name().cmp(b.name()));
        *subscriptions = all.into();
        drop(subscriptions);
        if let Some(limits) = self.paused_at.lock().clone() {
            subscription.set_limits(Some(limits));
        }
        self.forget_holes(&subscription);
        // Publishes that start from here on count their own bytes.
        subscription.count_bodies(&ends);
        // Delivers messages that were published meanwhile, and handles restored leases that have
        // expired.
        subscription.on_due(self.shared.clock.now_ms());
        subscription
    }

    /// Acknowledges offsets before the first segment and between segments: they have no messages.
    fn forget_holes(&self, subscription: &Arc<Subscription>) {
        for (partition, log) in (0u32..).zip(self.partitions().iter()) {
            for gone in log.gone() {
                subscription.forget_range(partition, gone.start, gone.end);
            }
        }
    }

    fn floors_for(&self, start: StartAt) -> Vec<Offset> {
        let earliest = match start {
            StartAt::Delivery => self.subscriptions().is_empty(),
            StartAt::Earliest => true,
            StartAt::Latest => false,
        };
        let paused_at = self.paused_at.lock().clone();
        let floor = |(partition, log): (usize, &Partition)| match (earliest, &paused_at) {
            (true, _) => log.start_offset(),
            // Messages that a paused topic holds back were not offered to any subscription yet.
            (false, Some(offsets)) if start == StartAt::Delivery => offsets[partition],
            (false, _) => log.written_end(),
        };
        self.partitions().iter().enumerate().map(floor).collect()
    }

    /// Deletes a subscription and closes its consumers. `false`: there is no such subscription.
    pub fn delete_subscription(self: &Arc<Self>, name: &str) -> Result<bool, CatalogError> {
        let Some(subscription) = self.subscription(name) else {
            return Ok(false);
        };
        self.remove_subscription(&subscription)?;
        Ok(true)
    }

    /// As [`Self::delete_subscription`], but deletes this subscription only, not a later one with
    /// its name. Returns `Ok` if it is deleted already.
    pub fn remove_subscription(
        self: &Arc<Self>,
        subscription: &Arc<Subscription>,
    ) -> Result<(), CatalogError> {
        let is_unused = {
            let _definitions = self.shared.definitions.lock();
            let kept: Vec<_> = self
                .subscriptions()
                .iter()
                .filter(|other| other.id() != subscription.id())
                .cloned()
                .collect();
            if kept.len() == self.subscriptions().len() {
                return Ok(());
            }
            let is_last = kept.is_empty();
            // As in nsqd, messages that the last subscription was offered are deleted with it, so
            // that a later subscription does not get them. They stay if the topic has readers by
            // offset.
            let retention = &self.options().retention;
            let has_readers =
                retention.min_ms.is_some() || self.shared.committed.has_topic(self.id);
            let goes = is_last && retention.consumed && !has_readers;
            let ends = self.offered_ends();
            let mut entries = vec![Entry::SubscriptionDeleted(subscription.id())];
            entries.extend(self.next_offsets());
            if goes {
                entries.extend(self.starts_at(&ends));
            }
            if !self.ephemeral {
                self.shared.write_entries(&entries)?;
            }
            *self.subscriptions.write() = kept.into();
            subscription.close();
            if goes {
                for (log, end) in self.partitions().iter().zip(&ends) {
                    crate::broker::truncate(self, log, *end);
                }
            }
            is_last && self.ephemeral
        };
        self.shared.notify_changed();
        if is_unused {
            let is_unused = || self.subscriptions().is_empty();
            self.shared.delete_topic_if(self, is_unused)?;
        }
        Ok(())
    }

    /// The offsets up to which messages were offered to subscriptions.
    fn offered_ends(&self) -> Vec<Offset> {
        let paused_at = self.paused_at.lock().clone();
        paused_at.unwrap_or_else(|| self.written_ends())
    }

    /// Called when an ephemeral subscription has lost its last consumer: deletes it.
    pub(crate) fn delete_if_unused(self: &Arc<Self>, subscription: &Arc<Subscription>) {
        if !subscription.has_consumers()
            && let Err(error) = self.remove_subscription(subscription)
        {
            tracing::warn!(?subscription, %error, "cannot delete an ephemeral subscription");
        }
    }

    /// The next offset of each partition, as journal entries. They keep offsets from being used
    /// twice after the segments and cursors from which a start could tell are deleted.
    pub(crate) fn next_offsets(&self) -> Vec<Entry> {
        let entry = |(partition, log): (u32, &Partition)| Entry::Next {
            topic: self.id,
            partition,
            offset: log.next_offset(),
        };
        (0u32..).zip(self.partitions().iter()).map(entry).collect()
    }

    fn start_offsets(&self) -> Vec<Entry> {
        let starts: Vec<Offset> = self
            .partitions()
            .iter()
            .map(|log| log.start_offset())
            .collect();
        self.starts_at(&starts)
    }

    fn starts_at(&self, offsets: &[Offset]) -> Vec<Entry> {
        let topic = self.id;
        let entry = |(partition, offset): (u32, &Offset)| Entry::Start {
            topic,
            partition,
            offset: *offset,
        };
        (0u32..).zip(offsets).map(entry).collect()
    }

    /// Whether new messages are held back from the subscriptions.
    pub fn is_paused(&self) -> bool {
        self.paused_at.lock().is_some()
    }

    /// Holds back messages published from now on.
    pub fn pause(self: &Arc<Self>) -> Result<(), CatalogError> {
        let _definitions = self.lock_definitions()?;
        let ends = || self.written_ends();
        let limits = self.paused_at.lock().get_or_insert_with(ends).clone();
        self.limits_changed(Some(limits))
    }

    /// Delivers the messages held back, and new ones.
    pub fn unpause(self: &Arc<Self>) -> Result<(), CatalogError> {
        let _definitions = self.lock_definitions()?;
        *self.paused_at.lock() = None;
        self.limits_changed(None)
    }

    pub(crate) fn lock_definitions(&self) -> Result<parking_lot::MutexGuard<'_, ()>, CatalogError> {
        let definitions = self.shared.definitions.lock();
        if self.is_deleted() {
            return Err(CatalogError::TopicDeleted {
                topic: self.name.clone(),
            });
        }
        Ok(definitions)
    }

    /// The caller holds the lock `definitions`.
    fn limits_changed(self: &Arc<Self>, limits: Option<Vec<Offset>>) -> Result<(), CatalogError> {
        for subscription in self.subscriptions().iter() {
            subscription.set_limits(limits.clone());
        }
        if self.ephemeral {
            return Ok(());
        }
        self.shared
            .write_entries(&[Entry::Topic(self.definition())])
    }

    /// Removes the messages that were not offered to any subscription ([`Self::depth`]).
    pub fn discard_unoffered(self: &Arc<Self>) -> Result<(), CatalogError> {
        let _definitions = self.lock_definitions()?;
        let ends = self.written_ends();
        if self.is_paused() {
            for subscription in self.subscriptions().iter() {
                subscription.skip_from_limits(&ends);
            }
            *self.paused_at.lock() = Some(ends.clone());
            self.limits_changed(Some(ends.clone()))?;
        }
        if !self.subscriptions().is_empty() {
            return Ok(());
        }
        if !self.ephemeral {
            self.shared.write_entries(&self.starts_at(&ends))?;
        }
        for (log, end) in self.partitions().iter().zip(&ends) {
            crate::broker::truncate(self, log, *end);
        }
        Ok(())
    }

    pub(crate) fn definition(&self) -> TopicDefinition {
        TopicDefinition {
            paused_at: self.paused_at.lock().clone(),
            ..self.definition_unpaused()
        }
    }

    fn definition_unpaused(&self) -> TopicDefinition {
        TopicDefinition {
            id: self.id,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            created_ms: self.created_ms,
            creation_order: self.creation_order,
            options: (*self.options()).clone(),
            paused_at: None,
            revision: self.revision.load(Ordering::Relaxed),
        }
    }

    /// The definition as a journal entry, without the pause: the log keeps a copy of it in the
    /// topic's folder. The log calls this on a thread that appends, so it must not wait for another
    /// append.
    pub(crate) fn description(&self) -> Vec<u8> {
        Entry::Topic(self.definition_unpaused()).encode()
    }

    /// A copy of the definition with the next revision. The caller holds the lock `definitions`.
    pub(crate) fn next_definition(&self) -> TopicDefinition {
        let mut definition = self.definition();
        definition.revision += 1;
        definition
    }

    /// Called when a new definition is in the journal and in use.
    pub(crate) fn definition_changed(&self, revision: u64) {
        self.revision.store(revision, Ordering::Relaxed);
        self.shared.log.describe(self.id);
    }

    /// The journal entries that a restart needs of this topic.
    pub(crate) fn snapshot(&self) -> Vec<Entry> {
        let mut entries = vec![Entry::Topic(self.definition())];
        if self.ephemeral {
            return entries;
        }
        entries.extend(self.start_offsets());
        entries.extend(self.next_offsets());
        for subscription in self.subscriptions().iter().filter(|s| !s.is_ephemeral()) {
            entries.push(Entry::Subscription(subscription.definition(self.id)));
            entries.extend(subscription.whole_progress());
            entries.extend(subscription.delivered_entries());
        }
        entries
    }

    /// Takes the deleted topic out of use: closes its subscriptions and watchers. Publishes fail
    /// from now on.
    pub(crate) fn close(&self) {
        self.deleted.store(true, Ordering::Release);
        for watchers in self.layout().watchers.iter() {
            watchers.close();
        }
        let subscriptions = std::mem::replace(&mut *self.subscriptions.write(), Arc::new([]));
        for subscription in subscriptions.iter() {
            subscription.close();
        }
    }
}
