//! A subscription: hands each message of a topic to one consumer and tracks it until it is settled.
//!
//! NSQ's channel, the consumers of an AMQP queue, a JetStream consumer and a Kafka share group are
//! all this. Its state is one [`Ledger`] behind one lock; [`dispatch`] decides who gets what.

pub(crate) mod delivery_marks;
pub(crate) mod died;
pub(crate) mod dispatch;
pub(crate) mod disposal;
pub(crate) mod expiry;
pub(crate) mod filter;
pub(crate) mod ledger;
pub(crate) mod length;
pub(crate) mod pull;
pub(crate) mod purge;
pub(crate) mod reader;
pub(crate) mod run;
pub(crate) mod settlement;
pub(crate) mod stats;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Weak};
use std::task::Waker;

use cloverleaf_log::{Offset, invariant};
use parking_lot::{Mutex, MutexGuard};
use uuid::Uuid;

use crate::broker::{CatalogError, Shared};
use crate::consumer::holds::DepartedHolds;
use crate::consumer::shared_window::{self, SharedWindow};
use crate::consumer::slots::Consumers;
use crate::consumer::slots::choice::Rotation;
use crate::journal::entries::{Entry, SubscriptionDefinition};
use crate::namespace::Namespace;
use crate::options::{Dispatch, SubscriptionOptions};
use crate::subscription::died::Died;
use crate::subscription::filter::Filter;
use crate::subscription::ledger::leases::NEVER_MS;
use crate::subscription::ledger::{Ledger, LedgerDelta};
use crate::subscription::length::Bodies;
use crate::subscription::reader::Source;
use crate::subscription::stats::Counters;
use crate::topic::Topic;
use crate::topic::partition::Partition;

/// One subscription of one topic.
pub struct Subscription {
    id: u64,
    name: String,
    topic: Weak<Topic>,
    /// Where the names of its topic and of that of its dead letters count.
    pub(crate) namespace: Namespace,
    topic_name: String,
    options: SubscriptionOptions,
    /// Its progress dies with the process.
    pub(crate) volatile: bool,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Mutex<State>,
    /// A consumer waits and there was nothing to give: appends must say so.
    pub(crate) hungry: AtomicBool,
    /// On the housekeeping's list of progress to write.
    dirty: AtomicBool,
    pub(crate) counters: Counters,
}

/// The state that the lock protects.
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) partitions: Vec<Partition>,
    /// Readers of messages that were never delivered, one per partition.
    pub(crate) sources: Vec<Source>,
    /// Readers of requeued messages, one per partition.
    pub(crate) replays: Vec<Source>,
    pub(crate) consumers: Consumers,
    pub(crate) rotation: Rotation,
    pub(crate) filter: Filter,
    pub(crate) paused: bool,
    pub(crate) closed: bool,
    /// The policy that chooses the consumer of the next message.
    pub(crate) policy: Dispatch,
    /// At the end of the last dispatch a consumer waited, and every message had been delivered.
    pub(crate) caught_up: bool,
    /// The foremost message of each partition and when it expires, as far as that is known.
    pub(crate) heads: Vec<Option<(Offset, u64)>>,
    /// When the first of the foremost messages expires.
    pub(crate) expiry_ms: u64,
    /// Bodies of messages that were never delivered, where their bytes are limited.
    pub(crate) bodies: Bodies,
    /// When the marks of delivery are looked at.
    pub(crate) rest_ms: u64,
    /// Consumers that pull and wait for the disk.
    pub(crate) pull_waits: BTreeSet<u32>,
    /// The topic is paused: nothing at or above these offsets is delivered.
    pub(crate) limits: Option<Vec<Offset>>,
    /// The time at which the housekeeping will call.
    pub(crate) due_ms: u64,
    /// A source wants to be asked again at this time.
    pub(crate) retry_ms: u64,
    /// The time of the change under way.
    pub(crate) now_us: u64,
    /// The holds of consumers that have left.
    pub(crate) departed: DepartedHolds,
    /// The wakers to wake once the lock is free.
    pub(crate) wakers: Vec<Waker>,
    /// Shared windows with new room: their waiters look again once the lock is free.
    pub(crate) freed: Vec<Arc<SharedWindow>>,
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
        let partitions: Vec<Partition> = topic.partitions().to_vec();
        let mut ledger = ledger;
        let volatile = options.ephemeral || topic.is_ephemeral();
        if volatile {
            ledger.make_volatile();
        }
        let filter = Filter::new(&options.subjects);
        let state = State {
            sources: partitions.iter().map(|_| Source::default()).collect(),
            replays: partitions.iter().map(|_| Source::default()).collect(),
            heads: vec![None; partitions.len()],
            ledger,
            partitions,
            consumers: Consumers::new(&options),
            rotation: Rotation::default(),
            filter,
            paused,
            closed: false,
            policy: options.dispatch,
            caught_up: false,
            expiry_ms: NEVER_MS,
            bodies: Bodies::default(),
            rest_ms: NEVER_MS,
            pull_waits: BTreeSet::new(),
            limits: None,
            due_ms: NEVER_MS,
            retry_ms: NEVER_MS,
            now_us: 0,
            departed: DepartedHolds::default(),
            wakers: Vec::new(),
            freed: Vec::new(),
        };
        Self {
            id,
            name: name.to_owned(),
            topic: Arc::downgrade(topic),
            namespace: topic.full_name().namespace.clone(),
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
        let (result, state) = self.changed(change);
        self.finish(state);
        result
    }

    /// As [`Self::change`]. Messages that have died are the caller's to see to, where somebody
    /// routes them.
    pub(crate) fn change_taking(self: &Arc<Self>, change: impl FnOnce(&mut State)) -> Vec<Died> {
        let ((), mut state) = self.changed(change);
        let died = match self.dead_router() {
            Some(_) => state.take_died(),
            None => Vec::new(),
        };
        self.finish(state);
        died
    }

    fn changed<R>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut State) -> R,
    ) -> (R, MutexGuard<'_, State>) {
        let mut state = self.state.lock();
        let now_us = self.shared.clock.now_us();
        state.now_us = now_us;
        let result = change(&mut state);
        self.dispatch_at(&mut state, now_us);
        (result, state)
    }

    /// The end of every change: the housekeeping's lists, then the wakers, without the lock.
    pub(crate) fn finish(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let due_ms = state
            .ledger
            .first_due_ms()
            .unwrap_or(NEVER_MS)
            .min(state.retry_ms)
            .min(state.expiry_ms)
            .min(state.rest_ms);
        let call_ms = (due_ms < state.due_ms).then_some(due_ms);
        if let Some(due_ms) = call_ms {
            state.due_ms = due_ms;
        }
        state.ledger.check();
        let has_dead = state.ledger.has_died();
        let wakers = std::mem::take(&mut state.wakers);
        let freed = std::mem::take(&mut state.freed);
        drop(state);
        if let Some(due_ms) = call_ms {
            self.shared.work.due(due_ms, self);
        }
        if has_dead {
            self.tell_died();
        }
        if !self.volatile && !self.dirty.swap(true, Ordering::AcqRel) {
            self.shared.work.dirty(self.clone());
        }
        for waker in wakers {
            waker.wake();
        }
        if !freed.is_empty() {
            shared_window::serve(freed);
        }
    }

    /// Which consumer gets the next message.
    pub fn dispatch_policy(&self) -> Dispatch {
        self.state.lock().policy
    }

    /// Changes who gets the next message, while messages are delivered. It is in the kernel when
    /// this returns.
    ///
    /// # Errors
    /// The subscription was deleted, or the journal does not take it; nothing has changed then.
    pub fn set_dispatch(self: &Arc<Self>, dispatch: Dispatch) -> Result<(), CatalogError> {
        let _definitions = self.shared.definitions.lock();
        let topic = self.living_topic()?;
        if self.dispatch_policy() == dispatch {
            return Ok(());
        }
        if !self.volatile {
            let mut definition = self.definition(topic.id());
            definition.options.dispatch = dispatch;
            self.shared.write(&[Entry::Subscription(definition)])?;
        }
        self.change(|state| {
            state.policy = dispatch;
            state.consumers.set_policy(dispatch);
        });
        self.shared.changed();
        Ok(())
    }

    /// The topic, for a change of the definition. The caller holds `definitions`.
    fn living_topic(&self) -> Result<Arc<Topic>, CatalogError> {
        let topic = self.topic.upgrade().filter(|topic| !topic.is_deleted());
        topic.filter(|_| !self.state.lock().closed).ok_or_else(|| {
            CatalogError::SubscriptionDeleted {
                subscription: self.name.clone(),
            }
        })
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
        let topic = self.living_topic()?;
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
            let count = state.partitions.len();
            let ends: Vec<Offset> = (0..count).map(|index| state.visible_end(index)).collect();
            state.ledger.purge(&ends);
            state.sources.iter_mut().for_each(Source::clear);
            state.replays.iter_mut().for_each(Source::clear);
            state.bodies.clear();
            let mut freed = Vec::new();
            state.consumers.change_all(|consumer| {
                consumer.outbox.clear();
                consumer.stalled = false;
                freed.extend(consumer.settle(u32::MAX));
            });
            state.freed.extend(freed);
        });
    }

    /// The topic has more partitions now: `partitions` are all of them.
    pub(crate) fn add_partitions(self: &Arc<Self>, partitions: &[Partition]) {
        self.change(|state| {
            let before = state.partitions.len();
            invariant!(
                partitions.len() >= before,
                "{self:?}: the topic had {before} partitions and has {}",
                partitions.len()
            );
            state.partitions = partitions.to_vec();
            state.sources.resize_with(partitions.len(), Source::default);
            state.replays.resize_with(partitions.len(), Source::default);
            state.heads.resize(partitions.len(), None);
            state.ledger.grow(partitions.len());
            if let Some(limits) = &mut state.limits {
                limits.resize(partitions.len(), 0);
            }
        });
    }

    /// Nothing at or above `limits` is delivered (one per partition); `None`: everything is.
    ///
    /// Messages that were delivered already, while the topic was being paused, are not held back:
    /// to empty the topic would acknowledge them although they are leased.
    pub(crate) fn set_limits(self: &Arc<Self>, limits: Option<Vec<Offset>>) {
        self.change(|state| {
            let raise = |(partition, limit): (u32, Offset)| {
                limit.max(state.ledger.delivered_end(partition))
            };
            state.limits = limits.map(|limits| (0u32..).zip(limits).map(raise).collect());
        });
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

    pub(crate) fn definition(&self, topic: Uuid) -> SubscriptionDefinition {
        let state = self.state.lock();
        let floors = (0..state.ledger.partitions())
            .map(|p| state.ledger.floor(p))
            .collect();
        SubscriptionDefinition {
            id: self.id,
            topic,
            name: self.name.clone(),
            options: SubscriptionOptions {
                dispatch: state.policy,
                ..self.options.clone()
            },
            paused: state.paused,
            floors,
        }
    }

    /// Detaches all consumers for good.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        (state.expiry_ms, state.rest_ms) = (NEVER_MS, NEVER_MS);
        let (mut wakers, mut freed) = (Vec::new(), Vec::new());
        state.consumers.change_all(|consumer| {
            wakers.extend(consumer.outbox.close());
            // Messages that were in flight can be settled no more.
            freed.extend(consumer.settle(u32::MAX));
        });
        drop(state);
        for waker in wakers {
            waker.wake();
        }
        if !freed.is_empty() {
            shared_window::serve(freed);
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

    /// The entries that have to be written down since the last call.
    pub(crate) fn take_progress(&self) -> Vec<Entry> {
        self.dirty.store(false, Ordering::Release);
        let mut state = self.state.lock();
        let (delta, moved) = (state.ledger.take_delta(), state.ledger.take_moved());
        drop(state);
        self.progress(delta, moved)
    }

    /// Everything that has to be written down.
    pub(crate) fn whole_progress(&self) -> Vec<Entry> {
        let state = self.state.lock();
        let (delta, moved) = (state.ledger.whole(), state.ledger.whole_moved());
        drop(state);
        self.progress(delta, moved)
    }

    fn progress(&self, delta: LedgerDelta, moved: LedgerDelta) -> Vec<Entry> {
        let progress = delta.into_iter().map(|it| Entry::Progress(self.id, it));
        let moved = moved.into_iter().map(|it| Entry::Moved(self.id, it));
        progress.chain(moved).collect()
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
    /// The end of what may be delivered of a partition.
    pub(crate) fn visible_end(&self, partition: usize) -> Offset {
        self.visible_below(partition, self.partitions[partition].written_end())
    }

    /// The end of the deliverable messages in a partition of which so much is written.
    fn visible_below(&self, partition: usize, end: Offset) -> Offset {
        let limits = self.limits.as_ref();
        limits.map_or(end, |limits| end.min(limits[partition]))
    }

    /// As [`Self::depth`], but what is acknowledged ahead after a restart counts too: cheap.
    pub(crate) fn about_waiting(&self) -> u64 {
        let new: u64 = (0u32..)
            .zip(0..self.partitions.len())
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
            .zip(0..self.partitions.len())
            .map(|(partition, index)| {
                let end = self.visible_end(index);
                self.ledger.undelivered(partition, end)
            })
            .sum();
        new + self.ledger.ready()
    }

    /// Messages that wait for a consumer, and those that are accepted and not written yet: these
    /// have a place in the queue too.
    pub(crate) fn depth_accepted(&self) -> u64 {
        let new: u64 = (0u32..)
            .zip(&self.partitions)
            .map(|(partition, log)| {
                let (written, unwritten) = log.written_and_unwritten();
                let end = self.visible_below(partition as usize, written);
                self.ledger.undelivered(partition, end) + unwritten
            })
            .sum();
        new + self.ledger.ready()
    }
}
