//! Routing of messages that died in a queue (dead-lettering).
//!
//! A dead message stays in its queue until all its publishes are durable, so a crash loses none.
//! Messages that a client rejects are routed on the connection's own thread, so that the client's
//! next method finds them. The router routes the rest, and whatever would take that thread too
//! long.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cloverleaf_broker::{Died, Fetched, Lookup, LookupError, MessageId, Subscription};
use parking_lot::Mutex;
use uuid::Uuid;

use super::super::VirtualHost;
use super::super::queue::Queue;
use super::outgoing::Outgoing;
use super::routing::Death;
use super::under_way::{Letter, Origin, UnderWay, tell};
use super::{MOVING_MAX, RETRY_MS, Router};

/// With this many messages and copies a connection's thread routes no further message: the router,
/// which delays no other connection, does the rest.
const STEPS_MAX: usize = 256;
/// Maximum number of messages that the router begins to route in one round.
const ROUND_MAX: usize = 1024;

/// A dead message that the router has to route.
pub(in super::super) struct Dead {
    subscription: Arc<Subscription>,
    died: Died,
    /// The topics of the queues that have a copy already.
    reached: Vec<Uuid>,
    /// The router does not try before this time, in milliseconds since 1970.
    due_ms: u64,
    /// Keeps connections waiting until the message is routed.
    owed: Vec<Arc<Owed>>,
    fetched: Fetched,
}

/// Work handed to the router.
#[derive(Default)]
pub(in super::super) struct Inbox {
    /// Subscriptions that reported dead messages, by id.
    died: BTreeMap<u64, Arc<Subscription>>,
    dead: Vec<Dead>,
    /// Subscriptions for whose dead messages a connection waits.
    asked: Vec<(Arc<Subscription>, Arc<Owed>)>,
    /// Messages that connections' threads have published, but whose publishes are pending.
    under_way: Vec<UnderWay>,
}

/// A connection's wait for the routing of dead messages.
#[derive(Debug)]
pub struct Routing(Arc<Mutex<Waited>>);

#[derive(Debug, Default)]
struct Waited {
    is_over: bool,
    waker: Option<Waker>,
}

/// Ends the wait when its last clone is dropped, for whatever reason.
pub(super) struct Owed(Arc<Mutex<Waited>>);

impl Drop for Owed {
    fn drop(&mut self) {
        let mut waited = self.0.lock();
        waited.is_over = true;
        if let Some(waker) = waited.waker.take() {
            waker.wake();
        }
    }
}

impl Routing {
    /// A wait, and the guard that ends it.
    fn new() -> (Self, Arc<Owed>) {
        let waited = Arc::new(Mutex::new(Waited::default()));
        (Self(waited.clone()), Arc::new(Owed(waited)))
    }

    /// Ready once the messages are routed, or it is known that they cannot be routed now.
    pub fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut waited = self.0.lock();
        if waited.is_over {
            return Poll::Ready(());
        }
        waited.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Inbox {
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
        died: Vec<Died>,
    ) -> (usize, Option<Routing>) {
        let now_ms = self.realm.now_ms();
        let mut outgoing = Outgoing::new(now_ms, STEPS_MAX);
        let (mut under_way, mut lookup) = (UnderWay::default(), Lookup::at_hand());
        let mut rest = died.into_iter();
        let mut left = Vec::new();
        while outgoing.steps() < STEPS_MAX && self.realm.room().is_free() {
            let Some(died) = rest.next() else { break };
            let mut dead = Dead::new(subscription, died);
            let routed = under_way.route_died(self, &mut dead, &mut lookup, &mut outgoing);
            if routed.is_err() {
                left.push(dead);
                break;
            }
        }
        left.extend(rest.map(|died| Dead::new(subscription, died)));
        outgoing.flush(&mut under_way);
        under_way.end_round();
        let mut routing = None;
        if !left.is_empty() {
            let (waiting, owed) = Routing::new();
            for dead in &mut left {
                dead.owed.push(owed.clone());
            }
            routing = Some(waiting);
        }
        let done = under_way.finish(&mut Context::from_waker(Waker::noop()), now_ms);
        left.extend(arrived(done, now_ms));
        if !left.is_empty() || under_way.len() > 0 {
            self.signal.hand(|inbox| {
                inbox.dead.extend(left);
                inbox.under_way.push(under_way);
            });
        }
        (outgoing.steps(), routing)
    }

    /// Has the router route the dead messages of a queue, so that the queue's deletion can wait for
    /// them. `None`: there are none.
    pub fn route_dead_of(&self, queue: &Queue) -> Option<Routing> {
        let subscription = &queue.subscription;
        subscription.has_dead().then(|| {
            let (routing, owed) = Routing::new();
            self.signal
                .hand(|inbox| inbox.asked.push((subscription.clone(), owed)));
            routing
        })
    }
}

impl Dead {
    fn new(subscription: &Arc<Subscription>, died: Died) -> Self {
        Self {
            subscription: subscription.clone(),
            died,
            reached: Vec::new(),
            due_ms: 0,
            owed: Vec::new(),
            fetched: Fetched::default(),
        }
    }
}

impl UnderWay {
    /// Routes a dead message.
    fn route_died(
        &mut self,
        host: &VirtualHost,
        dead: &mut Dead,
        lookup: &mut Lookup,
        outgoing: &mut Outgoing,
    ) -> Result<(), LookupError> {
        let Dead {
            subscription,
            died,
            reached,
            fetched,
            ..
        } = dead;
        let topic = subscription.topic().filter(|topic| !topic.is_deleted());
        // Without its topic the message is gone; without a dead-letter exchange it is dropped.
        let grave = topic.and_then(|topic| Some((host.grave(topic.name())?, topic)));
        let Some((grave, topic)) = grave else {
            subscription.letters_written(&[died.id]);
            return Ok(());
        };
        let death = Death::of(&grave, died.reason.as_str().as_bytes(), outgoing.now_ms());
        let (origin, reached) = (Origin::Queue(*died), reached.clone());
        let letter = self.add(subscription, died.id, origin, reached);
        let found = lookup.with_message(&topic, died.id, fetched, |record| {
            self.route_dead(host, letter, record, &death, outgoing);
        });
        match found {
            Ok(_) if outgoing.take_was_too_many() => {
                self.forget(letter);
                Err(LookupError::Slow)
            }
            Ok(_) => Ok(()),
            Err(LookupError::Batch(error)) => {
                tracing::error!(queue = %grave.queue, id = ?died.id, %error,
                    "a dead message can never be routed: it is dropped");
                Ok(())
            }
            Err(error) => {
                self.forget(letter);
                Err(error)
            }
        }
    }
}

impl Router {
    /// Takes the work that other threads have handed to the router.
    pub(super) fn take_up(&mut self, host: &VirtualHost) {
        let inbox = host.signal.take_inbox();
        for subscription in inbox.died.into_values() {
            let died = subscription.take_died().into_iter();
            self.dead
                .extend(died.map(|died| Dead::new(&subscription, died)));
        }
        self.dead.extend(inbox.dead);
        for (subscription, owed) in inbox.asked {
            // A message that failed and is to be retried keeps no connection waiting.
            let is_asked = |dead: &&mut Dead| {
                dead.due_ms == 0 && Arc::ptr_eq(&dead.subscription, &subscription)
            };
            let all = self.dead.iter_mut().chain(&mut self.coming);
            let asked = all.filter(is_asked);
            asked.for_each(|dead| dead.owed.push(owed.clone()));
        }
        self.handed.extend(inbox.under_way);
    }

    /// Routes dead messages. `false`: none could be routed now.
    pub(super) fn route_some(&mut self, host: &VirtualHost, waker: &Waker, now_ms: u64) -> bool {
        if self.reads.take_arrived() {
            self.coming.append(&mut self.dead);
            std::mem::swap(&mut self.coming, &mut self.dead);
            self.coming_of.clear();
        }
        let room = (MOVING_MAX as usize).saturating_sub(self.under_way.len());
        let mut outgoing = Outgoing::new(now_ms, usize::MAX);
        let mut lookup = self.reads.lookup(waker);
        let (mut any, mut owed) = (false, Vec::new());
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
            if self.coming_of.contains(&queue) {
                self.coming.push_back(dead);
                continue;
            }
            let under_way = &mut self.under_way;
            let routed = under_way.route_died(host, &mut dead, &mut lookup, &mut outgoing);
            if let Err(LookupError::Slow) = routed {
                self.coming_of.insert(queue);
                self.coming.push_back(dead);
                continue;
            }
            (any, left) = (true, left - 1);
            // Connections stop waiting once the publishes are made, or have failed for now.
            owed.append(&mut dead.owed);
            if let Err(error) = routed {
                tracing::warn!(subscription = ?dead.subscription, %error,
                    "cannot route a dead message yet");
                dead.due_ms = now_ms + RETRY_MS;
                self.dead.push_back(dead);
            }
        }
        outgoing.flush(&mut self.under_way);
        self.under_way.end_round();
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
pub(super) fn arrived(done: Vec<Letter>, now_ms: u64) -> VecDeque<Dead> {
    let mut again = VecDeque::new();
    let mut well: Vec<(Arc<Subscription>, MessageId)> = Vec::new();
    for letter in done {
        let Origin::Queue(died) = letter.origin else {
            continue;
        };
        if !letter.failed {
            well.push((letter.subscription, died.id));
            continue;
        }
        letter.subscription.note_moved(&[died.id], false);
        again.push_back(Dead {
            reached: letter.reached,
            due_ms: now_ms + RETRY_MS,
            ..Dead::new(&letter.subscription, died)
        });
    }
    tell(&well, |subscription, ids| subscription.letters_written(ids));
    again
}
