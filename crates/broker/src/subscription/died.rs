//! Dead messages for a caller that routes them itself, without a dead-letter topic in between.
//!
//! A dead message stays in its subscription until the caller confirms that its copy is stored
//! elsewhere, so no crash loses one.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::broker::Broker;
use crate::message::{DeadReason, MessageId};
use crate::namespace::Name;
use crate::subscription::{Subscription, SubscriptionState};

/// A message that will not be delivered again and waits to be dead-lettered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadMessage {
    /// Its partition and offset.
    pub id: MessageId,
    /// Why it is dead.
    pub reason: DeadReason,
    /// How often it was delivered.
    pub attempts: u16,
}

/// Called with a subscription that has new dead messages.
type DeadMessageListener = Box<dyn Fn(&Arc<Subscription>) + Send + Sync>;

/// The registration of a caller that routes dead messages itself, in place of a dead-letter topic.
pub(crate) struct DeadRouter {
    /// The name of the dead-letter topic that is replaced.
    to: String,
    on_dead: DeadMessageListener,
}

impl Broker {
    /// Registers a router: from now on, dead messages of subscriptions whose dead-letter topic is
    /// `to` are not written to that topic. Instead `on_dead` is called with each subscription that
    /// has some, and the router fetches them later by [`Subscription::take_dead`]; `on_dead` itself
    /// must not call the broker. A namespace keeps its first router; a later registration is logged
    /// and ignored.
    pub fn route_dead<'a>(
        &self,
        to: impl Into<Name<'a>>,
        on_dead: impl Fn(&Arc<Subscription>) + Send + Sync + 'static,
    ) {
        let Name { namespace, text } = to.into();
        let router = Arc::new(DeadRouter {
            to: text.to_owned(),
            on_dead: Box::new(on_dead),
        });
        match self.shared.dead_routers.write().entry(namespace.clone()) {
            Entry::Vacant(place) => drop(place.insert(router)),
            Entry::Occupied(_) => {
                tracing::error!(to = text, "dead messages are routed by somebody else");
            }
        }
    }
}

impl Subscription {
    /// Takes the dead messages that no earlier call has taken. They stay in the ledger until
    /// [`Self::settle_dead`] confirms them.
    #[must_use]
    pub fn take_dead(&self) -> Vec<DeadMessage> {
        self.state.lock().take_died()
    }

    /// Whether it has dead messages whose dead letters are not written yet.
    #[must_use]
    pub fn has_dead(&self) -> bool {
        self.state.lock().ledger.dead() > 0
    }

    /// Settles dead messages: their dead letters are written, or no dead letters are wanted.
    pub fn settle_dead(self: &Arc<Self>, ids: &[MessageId]) {
        self.change(|state| {
            for id in ids {
                state.ledger.ack_dead(*id);
            }
        });
        let count = u64::try_from(ids.len()).unwrap_or(u64::MAX);
        self.counters
            .dead_lettered
            .fetch_add(count, Ordering::Relaxed);
    }

    /// Records in the journal that copies of these messages are written to their destination but
    /// not synced yet: after `kill -9` the originals count as acknowledged, after a power loss they
    /// do not. Once the copies are synced, the caller acknowledges the originals, or calls
    /// [`Self::settle_dead`] for dead ones. `has_moved` false revokes the record,
    /// because the copies failed.
    pub fn note_moved(self: &Arc<Self>, ids: &[MessageId], has_moved: bool) {
        let mut state = self.state.lock();
        state.ledger.note_moved(ids, has_moved);
        self.finish(state);
    }

    /// Notifies the router or, without one, the housekeeping thread that the subscription has dead
    /// messages.
    pub(crate) fn notify_dead(self: &Arc<Self>) {
        match self.dead_router() {
            Some(router) => (router.on_dead)(self),
            None => self.shared.work.dead(self.clone()),
        }
    }

    /// The router that replaces its dead-letter topic, if there is one.
    pub(crate) fn dead_router(&self) -> Option<Arc<DeadRouter>> {
        let options = self.options();
        let to = options.dead_letter.as_deref()?;
        let routers = self.shared.dead_routers.read();
        let router = routers.get(&self.namespace)?;
        (to == router.to).then(|| router.clone())
    }
}

impl SubscriptionState {
    pub(crate) fn take_died(&mut self) -> Vec<DeadMessage> {
        let died = self.ledger.take_dead().into_iter();
        died.map(|(id, reason)| DeadMessage {
            id,
            reason,
            attempts: self.ledger.attempts_of(id).unwrap_or(0),
        })
        .collect()
    }
}
