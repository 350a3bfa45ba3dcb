//! Dead messages for a caller that routes them itself, without a dead-letter topic in between.
//!
//! They stay in their subscription until it is told that they are elsewhere, so no crash loses one.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::broker::Broker;
use crate::message::{DeadReason, MessageId};
use crate::namespace::Name;
use crate::subscription::{Subscription, SubscriptionState};

/// A message that is delivered to nobody any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Died {
    /// Where it lies.
    pub id: MessageId,
    /// Why.
    pub reason: DeadReason,
    /// How often it was delivered.
    pub attempts: u16,
}

/// Hears of a subscription with dead messages.
type DeathListener = Box<dyn Fn(&Arc<Subscription>) + Send + Sync>;

/// A router of the messages that would go to a dead-letter topic.
pub(crate) struct DeadRouter {
    /// The dead-letter topic that it replaces.
    to: String,
    told: DeathListener,
}

impl Broker {
    /// Messages whose dead letters would go to the topic `to` are not written there from now on:
    /// `told` hears of the subscriptions that have some ([`Subscription::take_died`]). It must not
    /// call the broker. The first one who asks for it in a namespace stays.
    pub fn route_dead<'a>(
        &self,
        to: impl Into<Name<'a>>,
        told: impl Fn(&Arc<Subscription>) + Send + Sync + 'static,
    ) {
        let Name { namespace, text } = to.into();
        let router = Arc::new(DeadRouter {
            to: text.to_owned(),
            told: Box::new(told),
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
    /// Takes what has died and nobody has taken yet. It is gone once [`Self::letters_written`] says
    /// so.
    #[must_use]
    pub fn take_died(&self) -> Vec<Died> {
        self.state.lock().take_died()
    }

    /// Whether it has dead messages whose letters are not written yet.
    #[must_use]
    pub fn has_dead(&self) -> bool {
        self.state.lock().ledger.dead() > 0
    }

    /// The letters of these dead messages are written, or not wanted: they are done with.
    pub fn letters_written(self: &Arc<Self>, ids: &[MessageId]) {
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

    /// Notes that copies of these messages are written where they go but not synced yet: after
    /// `kill -9` the originals count as acknowledged, after a power loss they do not. Once the
    /// copies are synced, the caller acknowledges the originals, or calls [`Self::letters_written`]
    /// for dead ones. With `has_moved` false it takes the note back: the copies failed.
    pub fn note_moved(self: &Arc<Self>, ids: &[MessageId], has_moved: bool) {
        let mut state = self.state.lock();
        state.ledger.note_moved(ids, has_moved);
        self.finish(state);
    }

    /// Tells the one that sees to the dead messages of this subscription that there are some.
    pub(crate) fn tell_died(self: &Arc<Self>) {
        match self.dead_router() {
            Some(router) => (router.told)(self),
            None => self.shared.work.dead(self.clone()),
        }
    }

    /// The router of its dead messages, if they are not written to their topic.
    pub(crate) fn dead_router(&self) -> Option<Arc<DeadRouter>> {
        let options = self.options();
        let to = options.dead_letter.as_deref()?;
        let routers = self.shared.dead_routers.read();
        let router = routers.get(&self.namespace)?;
        (to == router.to).then(|| router.clone())
    }
}

impl SubscriptionState {
    pub(crate) fn take_died(&mut self) -> Vec<Died> {
        let died = self.ledger.take_died().into_iter();
        died.map(|(id, reason)| Died {
            id,
            reason,
            attempts: self.ledger.attempts_of(id).unwrap_or(0),
        })
        .collect()
    }
}
