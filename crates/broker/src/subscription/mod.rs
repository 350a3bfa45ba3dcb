//! A subscription: delivers each message of a topic to one consumer and tracks it until it is
//! settled.
//!
//! NSQ's channel, the consumers of an AMQP queue, a JetStream consumer and a Kafka share group are
//! subscriptions. Its state is one [`Ledger`] behind one lock; [`dispatch`] selects the consumer
//! for each message.

pub(crate) mod delivery_marks;
pub(crate) mod died;
pub(crate) mod dispatch;
pub(crate) mod disposal;
pub(crate) mod expiry;
pub(crate) mod filter;
pub(crate) mod ledger;
pub(crate) mod length;
pub(crate) mod purge;
pub(crate) mod reader;
pub(crate) mod readers;
pub(crate) mod run;
pub(crate) mod stats;
mod timeouts;
pub(crate) mod timers;
pub(crate) mod visible_log;
pub(crate) mod waiting_bytes;

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Weak};

use cloverleaf_log::{Offset, invariant};
use parking_lot::{Mutex, MutexGuard};
use uuid::Uuid;

use crate::broker::{CatalogError, Shared};
use crate::consumer::slots::Consumers;
use crate::journal::entries::{Entry, SubscriptionDefinition};
use crate::namespace::Namespace;
use crate::options::{Dispatch, SubscriptionOptions};
use crate::subscription::died::DeadMessage;
use crate::subscription::expiry::HeadExpiries;
use crate::subscription::filter::Filter;
use crate::subscription::ledger::{Ledger, LedgerDelta};
use crate::subscription::readers::Readers;
use crate::subscription::stats::Counters;
use crate::subscription::timers::Timers;
use crate::subscription::visible_log::VisibleLog;
use crate::subscription::waiting_bytes::WaitingBytes;
use crate::topic::Topic;
use crate::topic::partition::Partition;

/// One subscription of one topic.
pub struct Subscription {
    id: u64,
    name: String,
    topic: Weak<Topic>,
    /// The namespace in which its topic's name and its dead-letter topic's name are resolved.
    pub(crate) namespace: Namespace,
    topic_name: String,
    options: SubscriptionOptions,
    /// Selects the messages that it wants.
    filter: Filter,
    /// Its progress is not written to the journal and ends with the process.
    pub(crate) volatile: bool,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Mutex<SubscriptionState>,
    /// The next append must dispatch: a consumer has free slots and nothing was deliverable, or
    /// the expiry of the next message must be scheduled.
    pub(crate) dispatch_on_append: AtomicBool,
    /// It is on the housekeeping's list of subscriptions with progress to write.
    dirty: AtomicBool,
    pub(crate) counters: Counters,
}

/// The state that the lock protects. Each part owns its fields.
pub(crate) struct SubscriptionState {
    /// Which messages are leased, requeued or acknowledged.
    pub(crate) ledger: Ledger,
    /// The partitions, up to the offsets that may be delivered.
    pub(crate) log: VisibleLog,
    /// The read position in each partition.
    pub(crate) readers: Readers,
    /// The consumers, and the tasks to wake after a change.
    pub(crate) consumers: Consumers,
    /// When the message at the head of each partition expires.
    pub(crate) head_expiries: HeadExpiries,
    /// The bytes of waiting bodies, where they are limited.
    pub(crate) waiting_bytes: WaitingBytes,
    /// The times at which the housekeeping thread must call.
    pub(crate) timers: Timers,
    pub(crate) paused: bool,
    pub(crate) closed: bool,
    /// At the end of the last dispatch a consumer had free slots and no message was left to
    /// deliver.
    pub(crate) caught_up: bool,
    /// The time of the change under way, in microseconds since the epoch.
    pub(crate) now_us: u64,
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
        let state = SubscriptionState {
            ledger,
            readers: Readers::new(partitions.len()),
            head_expiries: HeadExpiries::new(partitions.len()),
            log: VisibleLog::new(partitions),
            consumers: Consumers::new(&options),
            waiting_bytes: WaitingBytes::default(),
            timers: Timers::default(),
            paused,
            closed: false,
            caught_up: false,
            now_us: 0,
        };
        Self {
            id,
            name: name.to_owned(),
            topic: Arc::downgrade(topic),
            namespace: topic.full_name().namespace.clone(),
            topic_name: topic.name().to_owned(),
            options,
            filter,
            volatile,
            shared: topic.shared().clone(),
            state: Mutex::new(state),
            dispatch_on_append: AtomicBool::new(false),
            dirty: AtomicBool::new(false),
            counters: Counters::default(),
        }
    }

    /// The number that names it in the journal.
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

    /// The topic; `None` once it is deleted.
    pub fn topic(&self) -> Option<Arc<Topic>> {
        self.topic.upgrade()
    }

    /// Its options, as they were when it was created.
    pub fn options(&self) -> &SubscriptionOptions {
        &self.options
    }

    /// Whether it is deleted with its last consumer.
    pub fn is_ephemeral(&self) -> bool {
        self.options.ephemeral
    }

    /// Whether delivery is stopped.
    pub fn is_paused(&self) -> bool {
        self.state.lock().paused
    }

    /// Runs `change` under the lock, then dispatches, then puts the subscription on the
    /// housekeeping's lists.
    pub(crate) fn change<R>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut SubscriptionState) -> R,
    ) -> R {
        let (result, state) = self.changed(change);
        self.finish(state);
        result
    }

    /// As [`Self::change`]. If a router replaces the dead-letter topic, returns the dead messages,
    /// and the caller must route them. Otherwise the result is empty, and the housekeeping thread
    /// writes the dead letters.
    pub(crate) fn change_returning_dead(
        self: &Arc<Self>,
        change: impl FnOnce(&mut SubscriptionState),
    ) -> Vec<DeadMessage> {
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
        change: impl FnOnce(&mut SubscriptionState) -> R,
    ) -> (R, MutexGuard<'_, SubscriptionState>) {
        let mut state = self.state.lock();
        let now_us = self.shared.clock.now_us();
        state.now_us = now_us;
        let result = change(&mut state);
        self.dispatch_at(&mut state, now_us);
        (result, state)
    }

    /// Ends every change: updates the housekeeping's lists and, after releasing the lock, wakes
    /// tasks.
    pub(crate) fn finish(self: &Arc<Self>, mut state: MutexGuard<'_, SubscriptionState>) {
        let lease_due_ms = state.ledger.first_due_ms();
        let call_ms = state.timers.next_call(lease_due_ms);
        state.ledger.check();
        let has_dead = state.ledger.has_new_dead();
        let wakes = state.consumers.take_wakes();
        drop(state);
        if let Some(due_ms) = call_ms {
            self.shared.work.due(due_ms, self);
        }
        if has_dead {
            self.notify_dead();
        }
        if !self.volatile && !self.dirty.swap(true, Ordering::AcqRel) {
            self.shared.work.dirty(self.clone());
        }
        wakes.send();
    }

    /// The policy by which it selects the consumer of the next message.
    pub fn dispatch_policy(&self) -> Dispatch {
        self.state.lock().consumers.policy()
    }

    /// Changes that policy while messages are delivered. The change is written to the journal, not
    /// synced, when this returns.
    ///
    /// # Errors
    /// The subscription was deleted, or the journal cannot be written; then nothing has changed.
    pub fn set_dispatch(self: &Arc<Self>, dispatch: Dispatch) -> Result<(), CatalogError> {
        let _definitions = self.shared.definitions.lock();
        let topic = self.existing_topic()?;
        if self.dispatch_policy() == dispatch {
            return Ok(());
        }
        if !self.volatile {
            let mut definition = self.definition(topic.id());
            definition.options.dispatch = dispatch;
            self.shared
                .write_entries(&[Entry::Subscription(definition)])?;
        }
        self.change(|state| state.consumers.set_policy(dispatch));
        self.shared.notify_changed();
        Ok(())
    }

    /// The topic, unless it or the subscription was deleted. The caller holds the lock
    /// `definitions`.
    fn existing_topic(&self) -> Result<Arc<Topic>, CatalogError> {
        let topic = self.topic.upgrade().filter(|topic| !topic.is_deleted());
        topic.filter(|_| !self.state.lock().closed).ok_or_else(|| {
            CatalogError::SubscriptionDeleted {
                subscription: self.name.clone(),
            }
        })
    }

    /// Stops delivery. Messages in flight can still be settled.
    pub fn pause(self: &Arc<Self>) -> Result<(), CatalogError> {
        self.set_paused(true)
    }

    /// Resumes delivery.
    pub fn unpause(self: &Arc<Self>) -> Result<(), CatalogError> {
        self.set_paused(false)
    }

    fn set_paused(self: &Arc<Self>, paused: bool) -> Result<(), CatalogError> {
        let _definitions = self.shared.definitions.lock();
        let topic = self.existing_topic()?;
        self.change(|state| state.paused = paused);
        if self.volatile {
            return Ok(());
        }
        self.shared
            .write_entries(&[Entry::Subscription(self.definition(topic.id()))])
    }

    /// Discards all messages: waiting, in flight and delayed ones.
    pub fn discard_all(self: &Arc<Self>) {
        self.change(|state| {
            state.ledger.discard_all(&state.log.ends());
            state.readers.clear();
            state.waiting_bytes.clear();
            state.consumers.forget_deliveries();
        });
    }

    /// Adds the topic's new partitions. `partitions` lists all of them.
    pub(crate) fn add_partitions(self: &Arc<Self>, partitions: &[Partition]) {
        self.change(|state| {
            let before = state.log.count();
            invariant!(
                partitions.len() >= before,
                "{self:?}: the topic had {before} partitions and has {}",
                partitions.len()
            );
            state.log.grow(partitions);
            state.readers.grow(partitions.len());
            state.head_expiries.grow(partitions.len());
            state.ledger.grow(partitions.len());
        });
    }

    /// See [`VisibleLog::set_limits`].
    pub(crate) fn set_limits(self: &Arc<Self>, limits: Option<Vec<Offset>>) {
        self.change(|state| state.log.set_limits(limits, &state.ledger));
    }

    /// Acknowledges the messages that the paused topic holds back: from the limits up to `ends`.
    pub(crate) fn skip_from_limits(self: &Arc<Self>, ends: &[Offset]) {
        self.change(|state| {
            for ((partition, limit), end) in state.log.limits().zip(ends) {
                state.ledger.forget_range(partition, limit, *end);
            }
        });
    }

    /// Acknowledges `[start, end)` of a partition: it has no messages and never will.
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
                dispatch: state.consumers.policy(),
                ..self.options.clone()
            },
            paused: state.paused,
            floors,
        }
    }

    /// Closes the deleted subscription and detaches all consumers.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.timers.close();
        state.consumers.close();
        let wakes = state.consumers.take_wakes();
        drop(state);
        wakes.send();
    }

    /// The log has new messages. One atomic load if nothing waits for them.
    pub(crate) fn appended(self: &Arc<Self>) {
        // Pairs with the fence in `dispatch`: either dispatch sees the new end, or this call sees
        // `dispatch_on_append`.
        fence(Ordering::SeqCst);
        let wanted = self.dispatch_on_append.load(Ordering::Relaxed) || self.drops_head();
        if !wanted {
            return;
        }
        let mut state = self.state.lock();
        self.dispatch(&mut state);
        self.finish(state);
    }

    /// The journal entries of what changed since the last call.
    pub(crate) fn take_progress(&self) -> Vec<Entry> {
        self.dirty.store(false, Ordering::Release);
        let mut state = self.state.lock();
        let (delta, moved) = (state.ledger.take_delta(), state.ledger.take_moved());
        drop(state);
        self.progress(delta, moved)
    }

    /// The journal entries of its whole state, for a snapshot.
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
