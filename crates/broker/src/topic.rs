//! A topic: a name, its partitions in the log, and the subscriptions that deliver from it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use cloverleaf_log::{Batch, Durability, Offset, PartitionLog, PartitionOptions, SegmentInfo};
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use crate::broker::{CatalogError, Shared};
use crate::entries::{Entry, SubscriptionDefinition, TopicDefinition};
use crate::ledger::Ledger;
use crate::options::{StartAt, SubscriptionOptions, TopicOptions};
use crate::publish::{PublishError, Published};
use crate::subscription::Subscription;

/// A topic of the catalog.
pub struct Topic {
    id: Uuid,
    name: String,
    created_ms: u64,
    options: TopicOptions,
    shared: Arc<Shared>,
    logs: Vec<Arc<PartitionLog>>,
    /// Sorted by name. Replaced as a whole: a publish reads it, a definition changes it.
    subscriptions: RwLock<Arc<[Arc<Subscription>]>>,
    /// Where each partition stood when the topic was paused.
    paused_at: Mutex<Option<Vec<Offset>>>,
    deleted: AtomicBool,
    next_partition: AtomicU32,
    messages: AtomicU64,
    bytes: AtomicU64,
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
        let options = PartitionOptions {
            segment_bytes: shared.options.segment_bytes,
        };
        let logs = (0..definition.options.partitions)
            .map(|partition| {
                shared
                    .log
                    .partition(definition.id, partition, options.clone())
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| CatalogError::Log {
                reason: error.to_string(),
            })?;
        let topic = Arc::new(Self {
            id: definition.id,
            name: definition.name,
            created_ms: definition.created_ms,
            options: definition.options,
            shared: shared.clone(),
            logs,
            subscriptions: RwLock::new(Arc::new([])),
            paused_at: Mutex::new(definition.paused_at),
            deleted: AtomicBool::new(false),
            next_partition: AtomicU32::new(0),
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        for log in &topic.logs {
            let this: Weak<Self> = Arc::downgrade(&topic);
            log.on_written(Box::new(move |_| {
                if let Some(topic) = this.upgrade() {
                    topic.written();
                }
            }));
        }
        Ok(topic)
    }

    /// The identity that no other topic ever has, not even a later one of the same name.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When it was made, milliseconds since the Unix epoch.
    pub fn created_ms(&self) -> u64 {
        self.created_ms
    }

    /// How it is kept.
    pub fn options(&self) -> &TopicOptions {
        &self.options
    }

    /// Whether it is gone after a restart.
    pub fn is_ephemeral(&self) -> bool {
        self.options.ephemeral
    }

    /// Whether it was deleted; a handle to it can be older than that.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    /// Its partitions' logs, for readers by offset.
    pub fn logs(&self) -> &[Arc<PartitionLog>] {
        &self.logs
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

    /// Messages that no subscription has been offered: the backlog of a topic without
    /// subscriptions, or what came since the topic was paused.
    pub fn depth(&self) -> u64 {
        let paused_at = self.paused_at.lock().clone();
        let from = match paused_at {
            Some(offsets) => offsets,
            None if !self.subscriptions().is_empty() => return 0,
            None => self.logs.iter().map(|log| log.start_offset()).collect(),
        };
        let stored = |(log, from): (&Arc<PartitionLog>, Offset)| -> u64 {
            // Offsets between segments hold nothing.
            let end = log.written_end();
            let within =
                |segment: SegmentInfo| segment.end.min(end).saturating_sub(segment.base.max(from));
            log.segments().into_iter().map(within).sum()
        };
        self.logs.iter().zip(from).map(stored).sum()
    }

    /// The class in which a publish is stored for which the protocol asks `asked`.
    pub fn durability(&self, asked: Durability) -> Durability {
        self.options
            .durability
            .unwrap_or(self.shared.options.durability)
            .class(asked)
    }

    /// Stores a batch in a partition of the broker's choice.
    ///
    /// The promise for `asked` holds once the returned future resolves; messages reach
    /// subscriptions when they are written.
    pub fn publish(&self, batch: Batch, asked: Durability) -> Result<Published, PublishError> {
        let count = self.logs.len();
        let partition = match count {
            1 => 0,
            _ => self.next_partition.fetch_add(1, Ordering::Relaxed) as usize % count.max(1),
        };
        self.publish_to(u32::try_from(partition).unwrap_or(0), batch, asked)
    }

    /// Stores a batch in one partition.
    pub fn publish_to(
        &self,
        partition: u32,
        batch: Batch,
        asked: Durability,
    ) -> Result<Published, PublishError> {
        if self.is_deleted() {
            return Err(PublishError::TopicDeleted {
                topic: self.name.clone(),
            });
        }
        if batch.is_compressed() {
            return Err(PublishError::Compressed);
        }
        let count = u64::from(batch.count());
        for subscription in self.subscriptions().iter() {
            if subscription.refuses(count) {
                let (topic, subscription) = (self.name.clone(), subscription.name().to_owned());
                return Err(PublishError::QueueFull {
                    topic,
                    subscription,
                });
            }
        }
        let Some(log) = self.logs.get(partition as usize) else {
            return Err(PublishError::NoSuchPartition {
                topic: self.name.clone(),
                partition,
            });
        };
        let bytes = batch.bytes().len() as u64;
        let appended = log.append(batch, self.durability(asked))?;
        self.count(count, bytes);
        Ok(Published::new(appended))
    }

    /// Stores a message that the broker itself moves here. It may use the reserve of the disk, and
    /// no length limit refuses it.
    pub(crate) fn publish_moved(
        &self,
        batch: Batch,
        asked: Durability,
    ) -> Result<Published, PublishError> {
        let (count, bytes) = (u64::from(batch.count()), batch.bytes().len() as u64);
        let appended = self.logs[0].append_internal(batch, self.durability(asked))?;
        self.count(count, bytes);
        Ok(Published::new(appended))
    }

    fn count(&self, messages: u64, bytes: u64) {
        self.messages.fetch_add(messages, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Stores one message that is to appear in this topic after `delay_ms`.
    pub fn publish_delayed(
        &self,
        message: &Batch,
        delay_ms: u64,
        asked: Durability,
    ) -> Result<Published, PublishError> {
        if self.is_deleted() {
            return Err(PublishError::TopicDeleted {
                topic: self.name.clone(),
            });
        }
        let asked = self.durability(asked);
        crate::schedule::publish(&self.shared, self.id, message, delay_ms, asked)
    }

    fn written(&self) {
        self.shared.room.written();
        for subscription in self.subscriptions().iter() {
            subscription.appended();
        }
    }

    /// Its subscriptions, sorted by name.
    pub fn subscriptions(&self) -> Arc<[Arc<Subscription>]> {
        self.subscriptions.read().clone()
    }

    /// The subscription of that name.
    pub fn subscription(&self, name: &str) -> Option<Arc<Subscription>> {
        let subscriptions = self.subscriptions.read();
        let at = subscriptions
            .binary_search_by(|s| s.name().cmp(name))
            .ok()?;
        Some(subscriptions[at].clone())
    }

    /// The subscription of that name, made if there is none.
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
        self.shared.check_new(name)?;
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
        let lasts = !definition.options.ephemeral && !self.options.ephemeral;
        if lasts {
            self.shared
                .write(&[Entry::Subscription(definition.clone())])?;
        }
        let attempts_max = definition.options.attempts_max;
        let ledger = Ledger::new(&definition.floors, attempts_max);
        let subscription = self.add_subscription(&definition, ledger);
        self.shared.changed();
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
        // Messages that came while it was being made, and leases that were restored.
        subscription.on_due(self.shared.clock.now_ms());
        subscription
    }

    /// Offsets between segments hold no messages, so no subscription waits for them.
    fn forget_holes(&self, subscription: &Arc<Subscription>) {
        for (partition, log) in (0u32..).zip(&self.logs) {
            let segments = log.segments();
            for pair in segments.windows(2) {
                if pair[0].end < pair[1].base {
                    subscription.forget_range(partition, pair[0].end, pair[1].base);
                }
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
        let floor = |(partition, log): (usize, &Arc<PartitionLog>)| match (earliest, &paused_at) {
            (true, _) => log.start_offset(),
            // What a paused topic holds back has been delivered to nobody.
            (false, Some(offsets)) if start == StartAt::Delivery => offsets[partition],
            (false, _) => log.written_end(),
        };
        self.logs.iter().enumerate().map(floor).collect()
    }

    /// Deletes a subscription and closes its consumers. `false`: there is none of that name.
    pub fn delete_subscription(self: &Arc<Self>, name: &str) -> Result<bool, CatalogError> {
        let Some(subscription) = self.subscription(name) else {
            return Ok(false);
        };
        self.remove_subscription(&subscription)?;
        Ok(true)
    }

    fn remove_subscription(
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
            // What the last subscription was offered goes with it, as nsqd has it: a later one must
            // not meet it again. Groups that read by offset keep it.
            let goes = is_last
                && self.options.retention.consumed
                && !self.shared.committed.has_topic(self.id);
            let ends = self.offered_ends();
            let mut entries = vec![Entry::SubscriptionDeleted(subscription.id())];
            entries.extend(self.next_offsets());
            if goes {
                entries.extend(self.starts_at(&ends));
            }
            if !self.options.ephemeral {
                self.shared.write(&entries)?;
            }
            *self.subscriptions.write() = kept.into();
            subscription.close();
            if goes {
                for (log, end) in self.logs.iter().zip(&ends) {
                    crate::broker::truncate(self, log, *end);
                }
            }
            is_last && self.options.ephemeral
        };
        self.shared.changed();
        if is_unused {
            self.shared.delete_unused_topic(self)?;
        }
        Ok(())
    }

    /// Up to where subscriptions have been offered messages.
    fn offered_ends(&self) -> Vec<Offset> {
        let paused_at = self.paused_at.lock().clone();
        paused_at.unwrap_or_else(|| self.logs.iter().map(|log| log.written_end()).collect())
    }

    /// An ephemeral subscription lost its last consumer.
    pub(crate) fn delete_if_unused(self: &Arc<Self>, subscription: &Arc<Subscription>) {
        if !subscription.has_consumers()
            && let Err(error) = self.remove_subscription(subscription)
        {
            tracing::warn!(?subscription, %error, "cannot delete an ephemeral subscription");
        }
    }

    /// How far offsets have been used: cursors and segments, which tell it too, may go.
    pub(crate) fn next_offsets(&self) -> Vec<Entry> {
        let entry = |(partition, log): (u32, &Arc<PartitionLog>)| Entry::Next {
            topic: self.id,
            partition,
            offset: log.next_offset(),
        };
        (0u32..).zip(&self.logs).map(entry).collect()
    }

    fn start_offsets(&self) -> Vec<Entry> {
        let starts: Vec<Offset> = self.logs.iter().map(|log| log.start_offset()).collect();
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

    /// Whether subscriptions get nothing new.
    pub fn is_paused(&self) -> bool {
        self.paused_at.lock().is_some()
    }

    /// Holds new messages back from all subscriptions.
    pub fn pause(self: &Arc<Self>) -> Result<(), CatalogError> {
        let _definitions = self.lock_definitions()?;
        let ends = || self.logs.iter().map(|log| log.written_end()).collect();
        let limits = self.paused_at.lock().get_or_insert_with(ends).clone();
        self.limits_changed(Some(limits))
    }

    /// Lets messages through again.
    pub fn unpause(self: &Arc<Self>) -> Result<(), CatalogError> {
        let _definitions = self.lock_definitions()?;
        *self.paused_at.lock() = None;
        self.limits_changed(None)
    }

    fn lock_definitions(&self) -> Result<parking_lot::MutexGuard<'_, ()>, CatalogError> {
        let definitions = self.shared.definitions.lock();
        if self.is_deleted() {
            return Err(CatalogError::TopicDeleted {
                topic: self.name.clone(),
            });
        }
        Ok(definitions)
    }

    /// The caller holds `definitions`.
    fn limits_changed(self: &Arc<Self>, limits: Option<Vec<Offset>>) -> Result<(), CatalogError> {
        for subscription in self.subscriptions().iter() {
            subscription.set_limits(limits.clone());
        }
        if self.options.ephemeral {
            return Ok(());
        }
        self.shared.write(&[Entry::Topic(self.definition())])
    }

    /// Removes the messages that no subscription has been offered ([`Self::depth`]).
    pub fn empty(self: &Arc<Self>) -> Result<(), CatalogError> {
        let _definitions = self.lock_definitions()?;
        let ends: Vec<Offset> = self.logs.iter().map(|log| log.written_end()).collect();
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
        if !self.options.ephemeral {
            self.shared.write(&self.starts_at(&ends))?;
        }
        for (log, end) in self.logs.iter().zip(&ends) {
            crate::broker::truncate(self, log, *end);
        }
        Ok(())
    }

    pub(crate) fn definition(&self) -> TopicDefinition {
        TopicDefinition {
            id: self.id,
            name: self.name.clone(),
            created_ms: self.created_ms,
            options: self.options.clone(),
            paused_at: self.paused_at.lock().clone(),
        }
    }

    /// Everything that a restart needs to know of this topic.
    pub(crate) fn snapshot(&self) -> Vec<Entry> {
        let mut entries = vec![Entry::Topic(self.definition())];
        if self.options.ephemeral {
            return entries;
        }
        entries.extend(self.start_offsets());
        entries.extend(self.next_offsets());
        for subscription in self.subscriptions().iter().filter(|s| !s.is_ephemeral()) {
            entries.push(Entry::Subscription(subscription.definition(self.id)));
            for delta in subscription.whole() {
                entries.push(Entry::Progress(subscription.id(), delta));
            }
        }
        entries
    }

    /// Takes the topic out of use: its consumers are closed, publishes fail.
    pub(crate) fn close(&self) {
        self.deleted.store(true, Ordering::Release);
        let subscriptions = std::mem::replace(&mut *self.subscriptions.write(), Arc::new([]));
        for subscription in subscriptions.iter() {
            subscription.close();
        }
    }
}
