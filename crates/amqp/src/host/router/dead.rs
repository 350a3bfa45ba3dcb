//! Routing of messages that died in a queue (dead-lettering).
//!
//! A dead message stays in its queue until all its publishes are durable, so a crash loses none.
//! Messages that a client rejects are routed on the connection's own thread, so that the client's
//! next method finds them. The router routes the rest, and whatever would take that thread too
//! long.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cloverleaf_broker::{DeadMessage, Fetched, Lookup, LookupError, MessageId, Subscription};
use parking_lot::Mutex;
use uuid::Uuid;

use super::super::VirtualHost;
use super::super::queue::Queue;
use super::outgoing::OutgoingBatches;
use super::pending::{MessageOrigin, PendingMessage, PendingMessages, for_each_subscription};
use super::routing::DeathFacts;
use super::{PENDING_MAX, RETRY_MS, Router};

/// With this many messages and copies a connection's thread routes no further message: the router,
/// which delays no other connection, does the rest.
const STEPS_MAX: usize = 256;
/// Maximum number of messages that the router begins to route in one round.
const ROUND_MAX: usize = 1024;

/// A dead message that the router has to route.
pub(in super::super) struct RoutableDeadMessage {
    subscription: Arc<Subscription>,
    died: DeadMessage,
    /// The topics of the queues that have a copy already.
    copied_to: Vec<Uuid>,
    /// The router does not try before this time, in milliseconds since 1970.
    due_ms: u64,
    /// Keeps connections waiting until the message is routed.
    guards: Vec<Arc<DeadLetterWaitGuard>>,
    fetched: Fetched,
}

/// Work handed to the router.
#[derive(Default)]
pub(in super::super) struct RouterInbox {
    /// Subscriptions that reported dead messages, by id.
    died: BTreeMap<u64, Arc<Subscription>>,
    dead: Vec<RoutableDeadMessage>,
    /// Subscriptions for whose dead messages a connection waits.
    awaited: Vec<(Arc<Subscription>, Arc<DeadLetterWaitGuard>)>,
    /// Messages that connections' threads have published, but whose publishes are pending.
    pending: Vec<PendingMessages>,
}

/// A connection's wait for the routing of dead messages.
#[derive(Debug)]
pub struct DeadLetterWait(Arc<Mutex<DeadLetterWaitState>>);

#[derive(Debug, Default)]
struct DeadLetterWaitState {
    is_over: bool,
    waker: Option<Waker>,
}

/// Ends the wait when its last clone is dropped, for whatever reason.
pub(super) struct DeadLetterWaitGuard(Arc<Mutex<DeadLetterWaitState>>);

impl Drop for DeadLetterWaitGuard {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_over = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

impl DeadLetterWait {
    /// A wait, and the guard that ends it.
    fn new() -> (Self, Arc<DeadLetterWaitGuard>) {
        let state = Arc::new(Mutex::new(DeadLetterWaitState::default()));
        (Self(state.clone()), Arc::new(DeadLetterWaitGuard(state)))
    }

    /// Ready once the messages are routed, or it is known that they cannot be routed now.
    pub fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if state.is_over {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl RouterInbox {
    /// Notes that a subscription has dead messages.
    pub(in super::super) fn died(&mut self, subscription: &Arc<Subscription>) {
        // Each change reports it again, until the router has taken the messages.
        self.died.insert(subscription.id(), subscription.clone());
    }
}

impl VirtualHost {
    /// Routes messages of a queue that have just died, as far as that takes little time; the router
    /// does the rest. Returns the amount of work, and what the client's next method has to wait
    /// for.
    pub fn route_died(
        &self,
        subscription: &Arc<Subscription>,
        died: Vec<DeadMessage>,
    ) -> (usize, Option<DeadLetterWait>) {
        let now_ms = self.realm.now_ms();
        let mut outgoing = OutgoingBatches::new(now_ms, STEPS_MAX);
        let (mut pending, mut lookup) = (PendingMessages::default(), Lookup::in_memory_only());
        let mut rest = died.into_iter();
        let mut left = Vec::new();
        while outgoing.steps() < STEPS_MAX && self.realm.write_budget().is_free() {
            let Some(died) = rest.next() else { break };
            let mut dead = RoutableDeadMessage::new(subscription, died);
            let routed = pending.route_died(self, &mut dead, &mut lookup, &mut outgoing);
            if routed.is_err() {
                left.push(dead);
                break;
            }
        }
        left.extend(rest.map(|died| RoutableDeadMessage::new(subscription, died)));
        outgoing.flush(&mut pending);
        pending.end_round();
        let mut wait_for_router = None;
        if !left.is_empty() {
            let (wait, guard) = DeadLetterWait::new();
            for dead in &mut left {
                dead.guards.push(guard.clone());
            }
            wait_for_router = Some(wait);
        }
        let done = pending.finish(&mut Context::from_waker(Waker::noop()), now_ms);
        left.extend(settle_dead(done, now_ms));
        if !left.is_empty() || pending.len() > 0 {
            self.signal.give_work(|inbox| {
                inbox.dead.extend(left);
                inbox.pending.push(pending);
            });
        }
        (outgoing.steps(), wait_for_router)
    }

    /// Has the router route the dead messages of a queue, so that the queue's deletion can wait for
    /// them. `None`: there are none.
    pub fn route_all_dead(&self, queue: &Queue) -> Option<DeadLetterWait> {
        let subscription = &queue.subscription;
        subscription.has_dead().then(|| {
            let (wait, guard) = DeadLetterWait::new();
            self.signal
                .give_work(|inbox| inbox.awaited.push((subscription.clone(), guard)));
            wait
        })
    }
}

impl RoutableDeadMessage {
    fn new(subscription: &Arc<Subscription>, died: DeadMessage) -> Self {
        Self {
            subscription: subscription.clone(),
            died,
            copied_to: Vec::new(),
            due_ms: 0,
            guards: Vec::new(),
            fetched: Fetched::default(),
        }
    }
}

impl PendingMessages {
    /// Routes a dead message.
    fn route_died(
        &mut self,
        host: &VirtualHost,
        dead: &mut RoutableDeadMessage,
        lookup: &mut Lookup,
        outgoing: &mut OutgoingBatches,
    ) -> Result<(), LookupError> {
        let RoutableDeadMessage {
            subscription,
            died,
            copied_to: reached,
            fetched,
            ..
        } = dead;
        let topic = subscription.topic().filter(|topic| !topic.is_deleted());
        // Without its topic the message is gone; without a dead-letter exchange it is dropped.
        let rule = topic.and_then(|topic| Some((host.dead_letter_rule(topic.name())?, topic)));
        let Some((rule, topic)) = rule else {
            subscription.settle_dead(&[died.id]);
            return Ok(());
        };
        let death = DeathFacts::of(&rule, died.reason.as_str().as_bytes(), outgoing.now_ms());
        let (origin, reached) = (MessageOrigin::Queue(*died), reached.clone());
        let number = self.add(subscription, died.id, origin, reached);
        let found = lookup.with_message(&topic, died.id, fetched, |record| {
            self.route_dead(host, number, record, &death, outgoing);
        });
        match found {
            Ok(_) if outgoing.take_had_too_many_copies() => {
                self.remove(number);
                Err(LookupError::Slow)
            }
            Ok(_) => Ok(()),
            Err(LookupError::Batch(error)) => {
                tracing::error!(queue = %rule.queue, id = ?died.id, %error,
                    "a dead message can never be routed: it is dropped");
                Ok(())
            }
            Err(error) => {
                self.remove(number);
                Err(error)
            }
        }
    }
}

impl Router {
    /// Takes the work that other threads have handed to the router.
    pub(super) fn take_work(&mut self, host: &VirtualHost) {
        let inbox = host.signal.take_inbox();
        for subscription in inbox.died.into_values() {
            let died = subscription.take_dead().into_iter();
            self.dead
                .extend(died.map(|died| RoutableDeadMessage::new(&subscription, died)));
        }
        self.dead.extend(inbox.dead);
        for (subscription, guard) in inbox.awaited {
            // A message that failed and is to be retried keeps no connection waiting.
            let is_awaited = |dead: &&mut RoutableDeadMessage| {
                dead.due_ms == 0 && Arc::ptr_eq(&dead.subscription, &subscription)
            };
            let all = self.dead.iter_mut().chain(&mut self.awaiting_disk);
            let awaited = all.filter(is_awaited);
            awaited.for_each(|dead| dead.guards.push(guard.clone()));
        }
        self.handed_over.extend(inbox.pending);
    }

    /// Routes dead messages. `false`: none could be routed now.
    pub(super) fn route_dead_messages(
        &mut self,
        host: &VirtualHost,
        waker: &Waker,
        now_ms: u64,
    ) -> bool {
        if self.reads.take_arrived() {
            self.awaiting_disk.append(&mut self.dead);
            std::mem::swap(&mut self.awaiting_disk, &mut self.dead);
            self.subscriptions_awaiting_disk.clear();
        }
        let room = (PENDING_MAX as usize).saturating_sub(self.pending.len());
        let mut outgoing = OutgoingBatches::new(now_ms, usize::MAX);
        let mut lookup = self.reads.lookup(waker);
        let (mut any, mut guards) = (false, Vec::new());
        let mut left = room.min(ROUND_MAX);
        for _ in 0..self.dead.len() {
            if left == 0 {
                break;
            }
            let Some(mut dead) = self.dead.pop_front() else {
                break;
            };
            if dead.due_ms > now_ms {
                self.dead.push_back(dead);
                continue;
            }
            let queue = dead.subscription.id();
            if self.subscriptions_awaiting_disk.contains(&queue) {
                self.awaiting_disk.push_back(dead);
                continue;
            }
            let pending = &mut self.pending;
            let routed = pending.route_died(host, &mut dead, &mut lookup, &mut outgoing);
            if let Err(LookupError::Slow) = routed {
                self.subscriptions_awaiting_disk.insert(queue);
                self.awaiting_disk.push_back(dead);
                continue;
            }
            (any, left) = (true, left - 1);
            // Connections stop waiting once the publishes are made, or have failed for now.
            guards.append(&mut dead.guards);
            if let Err(error) = routed {
                tracing::warn!(subscription = ?dead.subscription, %error,
                    "cannot route a dead message yet");
                dead.due_ms = now_ms + RETRY_MS;
                self.dead.push_back(dead);
            }
        }
        outgoing.flush(&mut self.pending);
        self.pending.end_round();
        any
    }

    /// The time of the earliest retry. Messages that are due already wait for the router's next
    /// wake-up.
    pub(super) fn retry_ms(&self, now_ms: u64) -> Option<u64> {
        let due = self.dead.iter().map(|dead| dead.due_ms);
        due.filter(|due_ms| *due_ms > now_ms).min()
    }
}

/// Settles the dead messages that are routed in their subscriptions. Returns those that failed and
/// have to be routed again.
pub(super) fn settle_dead(done: Vec<PendingMessage>, now_ms: u64) -> VecDeque<RoutableDeadMessage> {
    let mut again = VecDeque::new();
    let mut routed_ids: Vec<(Arc<Subscription>, MessageId)> = Vec::new();
    for message in done {
        let MessageOrigin::Queue(died) = message.origin else {
            continue;
        };
        if !message.has_failed {
            routed_ids.push((message.subscription, died.id));
            continue;
        }
        message.subscription.note_moved(&[died.id], false);
        again.push_back(RoutableDeadMessage {
            copied_to: message.copied_to,
            due_ms: now_ms + RETRY_MS,
            ..RoutableDeadMessage::new(&message.subscription, died)
        });
    }
    for_each_subscription(&routed_ids, |subscription, ids| {
        subscription.settle_dead(ids)
    });
    again
}
