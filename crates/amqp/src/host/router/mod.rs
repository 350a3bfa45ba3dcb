//! The router: takes dead messages out of their queues, and delayed ones whose time has come out of
//! a hidden topic, and publishes them by the current bindings.
//!
//! A message is acknowledged at its source only after all its publishes are durable, so a crash may
//! route it a second time but never loses it. Once all its publishes are written but not yet
//! synced, the message counts as moved: after `kill -9` it is not routed again, after a power loss
//! it is. A message that cannot be stored now is retried.

mod dead;
mod outgoing;
mod pending;
mod routing;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cloverleaf_broker::{
    Consumer, ConsumerOptions, Delivery, LookupReads, MessageId, PublishError, Topic,
};
use cloverleaf_log::{AppendError, RecordCursor};
use uuid::Uuid;

use self::dead::{RoutableDeadMessage, settle_dead};
use self::outgoing::OutgoingBatches;
use self::pending::{MessageOrigin, PendingMessage, PendingMessages};
use super::VirtualHost;
use crate::log_throttle::LogThrottle;

pub use self::dead::DeadLetterWait;
pub(super) use self::dead::RouterInbox;

/// The name of the router's subscription in the hidden topics.
pub(super) const ROUTER: &str = "router";
/// Maximum number of messages of a topic that are being routed at once.
const PENDING_MAX: u32 = 4096;
/// A failed publish is retried after this time.
const RETRY_MS: u64 = 1_000;
/// Minimum time between two scans for queues whose topics were deleted.
const SCAN_INTERVAL_MS: u64 = 200;
/// For at most this many messages to be retried, the router remembers which of their queues have a
/// copy already. A retry of any further message gives all its queues a copy again.
const RETRY_COPIES_MAX: usize = 100_000;
/// Interval at which the router checks whether pending publishes are written.
const UNWRITTEN_MS: u64 = 2;
/// The router runs at least this often, even with nothing to do.
const IDLE_MS: u64 = 3_600_000;

/// Throttles the log's lines about publishes that are retried.
static FAILED_PUBLISHES: LogThrottle = LogThrottle::new();

/// A hidden topic from which the router takes messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum HiddenTopic {
    /// Dead-lettered messages that were never stored in a queue, and all those that an older
    /// version of the broker has left here.
    Dead,
    Delayed,
}

const HIDDEN_TOPICS: [HiddenTopic; 2] = [HiddenTopic::Dead, HiddenTopic::Delayed];

/// The state of the router.
#[derive(Default)]
pub(super) struct Router {
    consumers: [Option<Consumer>; 2],
    pending: PendingMessages,
    /// Messages that connections' threads have routed and published; the router settles them once
    /// their publishes are durable.
    handed_over: Vec<PendingMessages>,
    /// Messages that died in their queues, to be routed.
    dead: VecDeque<RoutableDeadMessage>,
    /// Dead messages that are being read from the disk, and later ones of the same queues: the end
    /// of a read wakes them, not a timer.
    awaiting_disk: VecDeque<RoutableDeadMessage>,
    /// The ids of the subscriptions with messages in `awaiting_disk`. Their later dead messages are
    /// appended there without being read, which keeps each queue's order.
    subscriptions_awaiting_disk: HashSet<u64>,
    reads: LookupReads,
    /// For each message to be retried: the topics of the queues that have a copy already.
    copied_to: HashMap<(HiddenTopic, MessageId), Vec<Uuid>>,
    next_scan_ms: u64,
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the router has panicked: the broker ends, start it again");
            std::process::abort();
        }
    }
}

impl VirtualHost {
    /// Routes dead and delayed messages and deletes expired queues, until [`VirtualHost::close`];
    /// for a thread of its own.
    ///
    /// A panic here would stop dead-lettering while everything else seems to work. So it ends the
    /// process: by design a restart loses nothing that was acknowledged.
    pub fn run_router(&self) {
        let _guard = AbortOnPanic;
        while let Some(until_ms) = self.router_tick() {
            self.signal.wait(self.realm.now_ms(), until_ms);
        }
    }

    /// Ends the router. Call it before the broker is closed.
    pub fn close(&self) {
        self.signal.close();
        self.router.lock().stop();
    }

    /// Does the router's pending work. Returns when it has to be called again at the latest, in
    /// milliseconds since 1970; `None`: never.
    pub fn router_tick(&self) -> Option<u64> {
        let mut router = self.router.lock();
        if self.signal.is_closed() {
            router.stop();
            return None;
        }
        let now_ms = self.realm.now_ms();
        let mut until_ms = now_ms.saturating_add(IDLE_MS);
        if self.signal.has_catalog_changed() && now_ms >= router.next_scan_ms {
            router.next_scan_ms = now_ms + SCAN_INTERVAL_MS;
            self.signal.begin_catalog_check();
            self.remove_lost_queues();
        }
        if self.signal.has_catalog_changed() {
            until_ms = until_ms.min(router.next_scan_ms);
        }
        if let Some(due_ms) = self.delete_due_queues(now_ms) {
            until_ms = until_ms.min(due_ms);
        }
        router.advance(self, &Waker::from(self.signal.clone()), now_ms);
        if let Some(retry_ms) = router.retry_ms(now_ms) {
            until_ms = until_ms.min(retry_ms);
        }
        if router.has_unwritten() {
            until_ms = until_ms.min(now_ms + UNWRITTEN_MS);
        }
        Some(until_ms)
    }
}

impl Router {
    fn stop(&mut self) {
        *self = Self::default();
    }

    fn advance(&mut self, host: &VirtualHost, waker: &Waker, now_ms: u64) {
        let mut context = Context::from_waker(waker);
        loop {
            self.finish(&mut context, now_ms);
            // Like every producer, the router waits while the disk is behind.
            if host
                .realm
                .write_budget()
                .poll_free(&mut context)
                .is_pending()
            {
                return;
            }
            self.take_work(host);
            let mut any = self.route_dead_messages(host, waker, now_ms);
            for hidden in HIDDEN_TOPICS {
                any |= self.route_hidden_topic(host, hidden, &mut context, now_ms);
            }
            if !any {
                return;
            }
        }
    }

    /// Takes and routes the messages that have arrived in a hidden topic. `false`: there were none.
    fn route_hidden_topic(
        &mut self,
        host: &VirtualHost,
        hidden: HiddenTopic,
        context: &mut Context<'_>,
        now_ms: u64,
    ) -> bool {
        let slot = &mut self.consumers[hidden as usize];
        if slot.is_none() {
            *slot = attach(hidden.topic(host));
        }
        let Some(consumer) = slot else {
            return false;
        };
        let mut deliveries: Vec<Delivery> = Vec::new();
        match consumer.poll_deliveries(context, &mut deliveries) {
            Poll::Pending => return false,
            Poll::Ready(None) => {
                *slot = None;
                return false;
            }
            Poll::Ready(Some(())) => {}
        }
        let subscription = consumer.subscription().clone();
        let mut outgoing = OutgoingBatches::new(now_ms, usize::MAX);
        for delivery in &deliveries {
            let mut records = RecordCursor::at(&delivery.batch, delivery.position);
            for _ in 0..delivery.count {
                // Cannot fail: this broker has encoded the records of its hidden topics.
                let Ok(Some((offset, record))) = records.next_record() else {
                    break;
                };
                let id = MessageId {
                    partition: delivery.partition,
                    offset,
                };
                let reached = self.copied_to.remove(&(hidden, id)).unwrap_or_default();
                let origin = MessageOrigin::HiddenTopic(hidden);
                let number = self.pending.add(&subscription, id, origin, reached);
                self.pending
                    .route(host, hidden, number, &record, &mut outgoing);
            }
        }
        outgoing.flush(&mut self.pending);
        self.pending.end_round();
        true
    }

    /// Whether a publish is not written yet. There is no wake-up for that, so the router polls.
    fn has_unwritten(&self) -> bool {
        let mut all = std::iter::once(&self.pending).chain(&self.handed_over);
        all.any(PendingMessages::has_unwritten)
    }

    /// Settles the messages whose publishes have all succeeded or failed.
    fn finish(&mut self, context: &mut Context<'_>, now_ms: u64) {
        let mut done = self.pending.finish(context, now_ms);
        for handed_over in &mut self.handed_over {
            done.extend(handed_over.finish(context, now_ms));
        }
        self.handed_over.retain(|handed_over| handed_over.len() > 0);
        self.settle(done, now_ms);
    }

    /// Acknowledges routed messages, and requeues failed ones.
    fn settle(&mut self, done: Vec<PendingMessage>, now_ms: u64) {
        for hidden in HIDDEN_TOPICS {
            let Some(consumer) = &self.consumers[hidden as usize] else {
                continue;
            };
            let of_topic = |has_failed: bool| {
                done.iter().filter_map(move |message| match message.origin {
                    MessageOrigin::HiddenTopic(of) => {
                        (of == hidden && message.has_failed == has_failed).then_some(message.id)
                    }
                    MessageOrigin::Queue(_) => None,
                })
            };
            let routed_ids: Vec<MessageId> = of_topic(false).collect();
            if !routed_ids.is_empty() {
                // A message that is no longer in flight needs no acknowledgement.
                consumer.ack_many(&routed_ids, |_, _, _| {});
            }
            for id in of_topic(true) {
                consumer.subscription().note_moved(&[id], false);
                if consumer.nack(id, RETRY_MS).is_err() {
                    tracing::debug!(?id, now_ms, "a letter was settled by others");
                }
            }
        }
        for message in done.iter().filter(|message| message.has_failed) {
            if let MessageOrigin::HiddenTopic(hidden) = message.origin
                && !message.copied_to.is_empty()
                && self.copied_to.len() < RETRY_COPIES_MAX
            {
                let reached = message.copied_to.clone();
                self.copied_to.insert((hidden, message.id), reached);
            }
        }
        self.dead.extend(settle_dead(done, now_ms));
    }
}

/// Logs an error after which the publish is retried.
fn log_retry(error: &PublishError, now_ms: u64) {
    if let Some(times) = FAILED_PUBLISHES.count(now_ms * 1000) {
        tracing::warn!(%error, times, "cannot route dead or delayed messages yet");
    }
}

impl HiddenTopic {
    fn topic(self, host: &VirtualHost) -> &Arc<Topic> {
        match self {
            Self::Dead => &host.dead,
            Self::Delayed => &host.delayed,
        }
    }
}

fn attach(topic: &Arc<Topic>) -> Option<Consumer> {
    let options = ConsumerOptions {
        label: ROUTER.to_owned(),
        ..ConsumerOptions::default()
    };
    let consumer = topic.subscription(ROUTER)?.attach(options).ok()?;
    consumer.set_window(PENDING_MAX);
    Some(consumer)
}

/// Whether a failed publish is worth a retry.
fn is_worth_retry(error: &PublishError) -> bool {
    match error {
        PublishError::Log(AppendError::TooLarge { .. }) => false,
        PublishError::Log(_)
        | PublishError::ScheduleFull { .. }
        | PublishError::NoSchedule { .. } => true,
        PublishError::TopicDeleted { .. }
        | PublishError::QueueFull { .. }
        | PublishError::NoSuchPartition { .. }
        | PublishError::ForeignAppendTime
        | PublishError::NotOneMessage
        | PublishError::TooLarge { .. }
        | PublishError::Timestamp { .. }
        | PublishError::NoKey { .. }
        | PublishError::Batch(_)
        | PublishError::Inflate(_) => false,
    }
}
