//! A subscription: hands each message of a topic to one consumer and tracks it until it is settled.
//!
//! NSQ's channel, the consumers of an AMQP queue, a JetStream consumer and a Kafka share group are
//! all this. Its state is one [`Ledger`] behind one lock; [`crate::dispatch`] decides who gets
//! what.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Weak};
use std::task::Waker;

use cloverleaf_log::{Offset, PartitionLog};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::broker::{CatalogError, Shared};
use crate::choose::Rotation;
use crate::consumer::Consumer;
use crate::entries::{Entry, SubscriptionDefinition};
use crate::filter::Filter;
use crate::ledger::leases::NEVER_MS;
use crate::ledger::{Ledger, LedgerDelta};
use crate::options::{ConsumerOptions, Overflow, SubscriptionOptions};
use crate::outbox::Outbox;
use crate::source::Source;
use crate::stats::Counters;
use crate::topic::Topic;

/// One subscription of one topic.
pub struct Subscription {
    id: u64,
    name: String,
    topic: Weak<Topic>,
    topic_name: String,
    options: SubscriptionOptions,
    /// Its progress dies with the process.
    volatile: bool,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Mutex<State>,
    /// A consumer waits and there was nothing to give: appends must say so.
    pub(crate) hungry: AtomicBool,
    /// On the housekeeping's list of progress to write.
    dirty: AtomicBool,
    pub(crate) counters: Counters,
}

/// What the lock protects.
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) logs: Vec<Arc<PartitionLog>>,
    /// Readers of messages that were never delivered, one per partition.
    pub(crate) sources: Vec<Source>,
    /// Readers of requeued messages, one per partition.
    pub(crate) replays: Vec<Source>,
    pub(crate) consumers: Vec<Option<ConsumerState>>,
    pub(crate) rotation: Rotation,
    pub(crate) filter: Filter,
    pub(crate) paused: bool,
    pub(crate) closed: bool,
    /// The topic is paused: nothing at or above these offsets is delivered.
    pub(crate) limits: Option<Vec<Offset>>,
    /// The time at which the housekeeping will call.
    pub(crate) due_ms: u64,
    /// A source wants to be asked again at this time.
    pub(crate) retry_ms: u64,
    attached: u64,
    /// Whom to wake once the lock is free.
    pub(crate) wakers: Vec<Waker>,
}

/// What the subscription knows of one consumer.
#[derive(Debug)]
pub(crate) struct ConsumerState {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) window: u32,
    pub(crate) in_flight: u32,
    pub(crate) stalled: bool,
    pub(crate) options: ConsumerOptions,
    /// The place in the order of arrival.
    pub(crate) arrival: u64,
    pub(crate) delivered: u64,
}

/// Why a consumer cannot attach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// As many consumers as the subscription allows are there.
    #[error("the subscription has {consumers_max} consumers, as many as it allows")]
    TooMany {
        /// The limit.
        consumers_max: u32,
    },
    /// An exclusive consumer is there, or this one wants to be alone and is not.
    #[error("the subscription is in exclusive use")]
    Exclusive,
    /// The subscription was deleted.
    #[error("the subscription was deleted")]
    Deleted,
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("topic", &self.topic_name)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Subscription {
    pub(crate) fn new(
        id: u64,
        name: &str,
        topic: &Arc<Topic>,
        options: SubscriptionOptions,
        ledger: Ledger,
        paused: bool,
    ) -> Self {
        let logs: Vec<Arc<PartitionLog>> = topic.logs().to_vec();
        let mut ledger = ledger;
        let volatile = options.ephemeral || topic.is_ephemeral();
        if volatile {
            ledger.make_volatile();
        }
        let filter = Filter::new(&options.subjects);
        let state = State {
            sources: logs.iter().map(|_| Source::default()).collect(),
            replays: logs.iter().map(|_| Source::default()).collect(),
            ledger,
            logs,
            consumers: Vec::new(),
            rotation: Rotation::default(),
            filter,
            paused,
            closed: false,
            limits: None,
            due_ms: NEVER_MS,
            retry_ms: NEVER_MS,
            attached: 0,
            wakers: Vec::new(),
        };
        Self {
            id,
            name: name.to_owned(),
            topic: Arc::downgrade(topic),
            topic_name: topic.name().to_owned(),
            options,
            volatile,
            shared: topic.shared().clone(),
            state: Mutex::new(state),
            hungry: AtomicBool::new(false),
            dirty: AtomicBool::new(false),
            counters: Counters::default(),
        }
    }

    /// The number under which its progress is stored.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its name, unique within the topic.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The topic's name.
    pub fn topic_name(&self) -> &str {
        &self.topic_name
    }

    /// The topic, unless it was deleted.
    pub fn topic(&self) -> Option<Arc<Topic>> {
        self.topic.upgrade()
    }

    /// How it delivers.
    pub fn options(&self) -> &SubscriptionOptions {
        &self.options
    }

    /// Whether it lives only as long as it has consumers.
    pub fn is_ephemeral(&self) -> bool {
        self.options.ephemeral
    }

    /// Whether delivery is stopped.
    pub fn is_paused(&self) -> bool {
        self.state.lock().paused
    }

    /// Runs `change` under the lock, delivers what has become deliverable, and tells the
    /// housekeeping.
    pub(crate) fn change<R>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.dispatch(&mut state);
        self.finish(state);
        result
    }

    /// What follows every change: the housekeeping's lists, then the wakers, without the lock.
    pub(crate) fn finish(self: &Arc<Self>, mut state: parking_lot::MutexGuard<'_, State>) {
        let due_ms = state
            .ledger
            .first_due_ms()
            .unwrap_or(NEVER_MS)
            .min(state.retry_ms);
        let call_ms = (due_ms < state.due_ms).then_some(due_ms);
        if let Some(due_ms) = call_ms {
            state.due_ms = due_ms;
        }
        let has_dead = state.ledger.has_died();
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        if let Some(due_ms) = call_ms {
            self.shared.work.due(due_ms, self);
        }
        if has_dead {
            self.shared.work.dead(self.clone());
        }
        if !self.volatile && !self.dirty.swap(true, Ordering::AcqRel) {
            self.shared.work.dirty(self.clone());
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Attaches a consumer; it gets messages once its window is set.
    pub fn attach(self: &Arc<Self>, options: ConsumerOptions) -> Result<Consumer, AttachError> {
        let outbox = Arc::new(Outbox::default());
        let mut state = self.state.lock();
        if state.closed {
            return Err(AttachError::Deleted);
        }
        let mut present = state.consumers.iter().flatten();
        let count = state.consumers.iter().flatten().count();
        if present.any(|consumer| consumer.options.exclusive) || (options.exclusive && count > 0) {
            return Err(AttachError::Exclusive);
        }
        let consumers_max = self.options.consumers_max;
        if consumers_max > 0 && count >= consumers_max as usize {
            return Err(AttachError::TooMany { consumers_max });
        }
        state.attached += 1;
        let consumer = ConsumerState {
            outbox: outbox.clone(),
            window: 0,
            in_flight: 0,
            stalled: false,
            options,
            arrival: state.attached,
            delivered: 0,
        };
        let free = state.consumers.iter().position(Option::is_none);
        let slot = free.unwrap_or(state.consumers.len());
        if slot == state.consumers.len() {
            state.consumers.push(None);
        }
        state.consumers[slot] = Some(consumer);
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        Ok(Consumer::new(self.clone(), slot, outbox))
    }

    pub(crate) fn detach(self: &Arc<Self>, slot: u32) {
        let last = self.change(|state| {
            state.consumers[slot as usize] = None;
            let released = state.ledger.release(slot);
            self.counters
                .requeued
                .fetch_add(released, Ordering::Relaxed);
            while state.consumers.last().is_some_and(Option::is_none) {
                state.consumers.pop();
            }
            let last = state.consumers.is_empty();
            if last {
                // Nobody reads: what was read ahead need not wait in memory.
                state.sources.iter_mut().for_each(Source::clear);
                state.replays.iter_mut().for_each(Source::clear);
            }
            last && !state.closed
        });
        if last && self.options.ephemeral {
            // Deleting touches files: not on the thread of a connection.
            self.shared.work.unused(self.clone());
        }
    }

    pub(crate) fn set_window(self: &Arc<Self>, slot: u32, messages: u32) {
        self.change(|state| {
            if let Some(consumer) = state.consumer_mut(slot) {
                consumer.window = messages;
            }
        });
    }

    pub(crate) fn outbox_taken(self: &Arc<Self>, slot: u32) {
        self.change(|state| {
            if let Some(consumer) = state.consumer_mut(slot) {
                consumer.stalled = false;
            }
        });
    }

    pub(crate) fn in_flight_of(&self, slot: u32) -> u32 {
        let state = self.state.lock();
        state
            .consumers
            .get(slot as usize)
            .and_then(Option::as_ref)
            .map_or(0, |c| c.in_flight)
    }

    /// Stops delivery; what is in flight can still be settled.
    pub fn pause(self: &Arc<Self>) -> Result<(), CatalogError> {
        self.set_paused(true)
    }

    /// Delivers again.
    pub fn unpause(self: &Arc<Self>) -> Result<(), CatalogError> {
        self.set_paused(false)
    }

    fn set_paused(self: &Arc<Self>, paused: bool) -> Result<(), CatalogError> {
        let _definitions = self.shared.definitions.lock();
        let deleted = || CatalogError::SubscriptionDeleted {
            subscription: self.name.clone(),
        };
        let topic = self
            .topic
            .upgrade()
            .filter(|topic| !topic.is_deleted())
            .ok_or_else(deleted)?;
        if self.state.lock().closed {
            return Err(deleted());
        }
        self.change(|state| state.paused = paused);
        if self.volatile {
            return Ok(());
        }
        self.shared
            .write(&[Entry::Subscription(self.definition(topic.id()))])
    }

    /// Forgets all messages: those that wait, those in flight, those delayed.
    pub fn empty(self: &Arc<Self>) {
        self.change(|state| {
            let count = state.logs.len();
            let ends: Vec<Offset> = (0..count).map(|index| state.visible_end(index)).collect();
            state.ledger.purge(&ends);
            state.sources.iter_mut().for_each(Source::clear);
            state.replays.iter_mut().for_each(Source::clear);
            for consumer in state.consumers.iter_mut().flatten() {
                consumer.outbox.clear();
                consumer.in_flight = 0;
                consumer.stalled = false;
            }
        });
    }

    /// The topic has more partitions now: `logs` are all of them.
    pub(crate) fn add_partitions(self: &Arc<Self>, logs: &[Arc<PartitionLog>]) {
        self.change(|state| {
            state.logs = logs.to_vec();
            state.sources.resize_with(logs.len(), Source::default);
            state.replays.resize_with(logs.len(), Source::default);
            state.ledger.grow(logs.len());
            if let Some(limits) = &mut state.limits {
                limits.resize(logs.len(), 0);
            }
        });
    }

    /// Nothing at or above `limits` is delivered (one per partition); `None`: everything is.
    pub(crate) fn set_limits(self: &Arc<Self>, limits: Option<Vec<Offset>>) {
        self.change(|state| state.limits = limits);
    }

    /// Forgets what the paused topic holds back: from the limits up to `ends`.
    pub(crate) fn skip_from_limits(self: &Arc<Self>, ends: &[Offset]) {
        self.change(|state| {
            let limits = state.limits.clone().unwrap_or_default();
            for ((partition, limit), end) in (0u32..).zip(limits).zip(ends) {
                state.ledger.forget_range(partition, limit, *end);
            }
        });
    }

    /// `[start, end)` of a partition holds no messages and never will.
    pub(crate) fn forget_range(self: &Arc<Self>, partition: u32, start: Offset, end: Offset) {
        self.change(|state| state.ledger.forget_range(partition, start, end));
    }

    pub(crate) fn has_consumers(&self) -> bool {
        self.state.lock().consumers.iter().any(Option::is_some)
    }

    pub(crate) fn definition(&self, topic: Uuid) -> SubscriptionDefinition {
        let state = self.state.lock();
        let floors = (0..state.ledger.partitions())
            .map(|p| state.ledger.floor(p))
            .collect();
        SubscriptionDefinition {
            id: self.id,
            topic,
            name: self.name.clone(),
            options: self.options.clone(),
            paused: state.paused,
            floors,
        }
    }

    /// Detaches all consumers for good.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let wakers: Vec<Waker> = state
            .consumers
            .iter()
            .flatten()
            .filter_map(|c| c.outbox.close())
            .collect();
        drop(state);
        for waker in wakers {
            waker.wake();
        }
    }

    /// The log has more messages. Cheap when nobody waits for them.
    pub(crate) fn appended(self: &Arc<Self>) {
        // Pairs with the fence in `dispatch`: either it sees the new end, or this sees it hungry.
        fence(Ordering::SeqCst);
        let wanted = self.hungry.load(Ordering::Relaxed) || self.drops_head();
        if !wanted {
            return;
        }
        let mut state = self.state.lock();
        self.dispatch(&mut state);
        self.finish(state);
    }

    pub(crate) fn drops_head(&self) -> bool {
        self.options.length_max.is_some() && self.options.overflow == Overflow::DropHead
    }

    /// Whether a publish of `count` messages must be refused.
    pub(crate) fn refuses(&self, count: u64) -> bool {
        match self.options.length_max {
            Some(length_max) if self.options.overflow == Overflow::RejectPublish => {
                let state = self.state.lock();
                state.depth().saturating_add(count) > length_max
            }
            _ => false,
        }
    }

    /// What has to be written down since the last call.
    pub(crate) fn take_delta(&self) -> LedgerDelta {
        self.dirty.store(false, Ordering::Release);
        self.state.lock().ledger.take_delta()
    }

    /// Everything that has to be written down.
    pub(crate) fn whole(&self) -> LedgerDelta {
        self.state.lock().ledger.whole()
    }

    /// Whether every message in `[start, end)` of a partition is settled.
    pub(crate) fn covers(&self, partition: u32, start: Offset, end: Offset) -> bool {
        self.state.lock().ledger.covers(partition, start, end)
    }

    /// The offset below which everything is settled.
    pub fn floor(&self, partition: u32) -> Option<Offset> {
        let state = self.state.lock();
        (partition < state.ledger.partitions()).then(|| state.ledger.floor(partition))
    }
}

impl State {
    fn consumer_mut(&mut self, slot: u32) -> Option<&mut ConsumerState> {
        self.consumers
            .get_mut(slot as usize)
            .and_then(Option::as_mut)
    }

    /// Messages of a consumer are no longer in flight.
    pub(crate) fn settle(&mut self, slot: u32, count: u32) {
        if let Some(consumer) = self.consumer_mut(slot) {
            consumer.in_flight = consumer.in_flight.saturating_sub(count);
        }
    }

    /// The end of what may be delivered of a partition.
    pub(crate) fn visible_end(&self, partition: usize) -> Offset {
        let end = self.logs[partition].written_end();
        self.limits
            .as_ref()
            .map_or(end, |limits| end.min(limits[partition]))
    }

    /// As [`Self::depth`], but what is acknowledged ahead after a restart counts too: cheap.
    pub(crate) fn about_waiting(&self) -> u64 {
        let new: u64 = (0u32..)
            .zip(0..self.logs.len())
            .map(|(partition, index)| {
                self.visible_end(index)
                    .saturating_sub(self.ledger.next(partition))
            })
            .sum();
        new + self.ledger.ready()
    }

    /// Messages that wait for a consumer.
    pub(crate) fn depth(&self) -> u64 {
        let new: u64 = (0u32..)
            .zip(0..self.logs.len())
            .map(|(partition, index)| {
                let end = self.visible_end(index);
                self.ledger.undelivered(partition, end)
            })
            .sum();
        new + self.ledger.ready()
    }
}
