//! Deleting queues: on demand, with their connection or their last consumer, and after their topics
//! were deleted through other protocols.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cloverleaf_broker::{CatalogError, Subscription, Topic};

use super::names::{in_use, strip_newlines};
use super::queue::Queue;
use super::queue_use::DeletionCause;
use super::{Definitions, Owner, SUBSCRIPTION, VirtualHost, refused, stored};
use crate::exception::{Exception, Resource};
use crate::queue_arguments::DeadLetter;

/// How many deleted queues are remembered, to dead-letter messages that died just before.
const DELETED_QUEUES_MAX: usize = 4096;

/// The dead-lettering of a queue.
#[derive(Debug, Clone)]
pub(super) struct DeadLetterRule {
    /// The queue's name, for `x-death`.
    pub(super) queue: Arc<str>,
    pub(super) dead_letter: DeadLetter,
}

/// Recently deleted queues, by the names of their topics.
#[derive(Debug, Default)]
pub(super) struct DeletedQueues {
    rules: HashMap<Box<str>, DeadLetterRule>,
    order: VecDeque<Box<str>>,
}

impl DeletedQueues {
    fn add(&mut self, topic: &str, rule: DeadLetterRule) {
        if self.rules.insert(topic.into(), rule).is_none() {
            self.order.push_back(topic.into());
        }
        if self.order.len() > DELETED_QUEUES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.rules.remove(&oldest);
        }
    }

    pub(super) fn get(&self, topic: &str) -> Option<&DeadLetterRule> {
        self.rules.get(topic)
    }
}

impl VirtualHost {
    /// Deletes a queue with its bindings. Returns how many messages were ready; 0 if there is no
    /// such queue. The topic is deleted, too, unless other subscriptions use it.
    ///
    /// # Errors
    /// Another connection uses it exclusively (405); it has messages and `if_empty` is set, or it
    /// has consumers and `if_unused` is set (406).
    pub fn delete_queue(
        &self,
        owner: Owner,
        name: &str,
        if_unused: bool,
        if_empty: bool,
    ) -> Result<u32, Exception> {
        let mut definitions = self.definitions.lock();
        let Ok(queue) = self.find(&strip_newlines(name)) else {
            return Ok(0);
        };
        queue.check_access(owner)?;
        // From here on no consumer can attach.
        let mut life = queue.life.lock();
        let (ready, consumers) = queue.counts();
        if if_empty && ready > 0 {
            let text = format!("{} not empty", queue.resource());
            return Err(Exception::precondition(text));
        }
        if if_unused && consumers > 0 {
            return Err(in_use(&queue.resource()));
        }
        life.is_ending = true;
        drop(life);
        self.remove_queue(&mut definitions, &queue)
            .map_err(|error| refused(&queue.resource(), &error))?;
        Ok(ready)
    }

    /// Drops the ready messages of a queue; returns how many.
    ///
    /// # Errors
    /// No such queue (404), or another connection uses it exclusively (405).
    pub fn purge_queue(&self, owner: Owner, name: &str) -> Result<u32, Exception> {
        let queue = self.queue(owner, name)?;
        Ok(u32::try_from(queue.subscription.purge()).unwrap_or(u32::MAX))
    }

    /// Deletes the exclusive queues of a connection that has ended.
    pub fn connection_closed(&self, owner: Owner) {
        let mut definitions = self.definitions.lock();
        let owned = definitions.owned.remove(&owner).unwrap_or_default();
        for name in owned {
            if let Ok(queue) = self.find(&name) {
                self.delete_soon(&mut definitions, &queue, DeletionCause::Ownerless);
            }
        }
    }

    /// Deletes a queue without a client's request. If the catalog refuses, the queue lives on.
    pub(super) fn delete_now(
        &self,
        definitions: &mut Definitions,
        queue: &Arc<Queue>,
    ) -> Result<(), CatalogError> {
        queue.life.lock().is_ending = true;
        self.remove_queue(definitions, queue)
    }

    /// Deletes a queue that no consumer can attach to anymore.
    fn remove_queue(
        &self,
        definitions: &mut Definitions,
        queue: &Arc<Queue>,
    ) -> Result<(), CatalogError> {
        queue.set_deleted(true);
        let died = queue.subscription.take_dead();
        if !died.is_empty() {
            // The messages are deleted with the topic, so they have to be routed now.
            self.route_died(&queue.subscription, died);
        }
        if let Err(error) = self.remove_topic(queue) {
            queue.life.lock().is_ending = false;
            queue.set_deleted(false);
            return Err(error);
        }
        self.forget_queue(definitions, queue);
        Ok(())
    }

    /// Removes a queue from the tables, and its bindings from the journal. Its topic was deleted or
    /// released before.
    fn forget_queue(&self, definitions: &mut Definitions, queue: &Arc<Queue>) {
        let removed = {
            if !self.is_in_table(queue) {
                return;
            }
            let mut state = self.state.write();
            state.queues.remove(&queue.name);
            state.by_topic.remove(queue.topic.name());
            if let Some(dead_letter) = &queue.arguments.dead_letter {
                let rule = DeadLetterRule {
                    queue: queue.name.clone(),
                    dead_letter: dead_letter.clone(),
                };
                state.deleted_queues.add(queue.topic.name(), rule);
            }
            state.topology.forget_queue(&queue.name)
        };
        self.changed();
        definitions.discharge(stored::queue_bytes(&queue.name, &queue.raw, queue.levels));
        if let Some(owner) = queue.exclusive
            && let Some(owned) = definitions.owned.get_mut(&owner)
        {
            owned.remove(&queue.name);
            if owned.is_empty() {
                definitions.owned.remove(&owner);
            }
        }
        self.forget_definitions(definitions, &removed);
    }

    /// Whether the table has this queue, and not a later one with its name. The caller has locked
    /// `definitions`.
    fn is_in_table(&self, queue: &Arc<Queue>) -> bool {
        let state = self.state.read();
        let slot = state.queues.get(&queue.name);
        slot.is_some_and(|slot| Arc::ptr_eq(&slot.queue, queue))
    }

    /// Deletes a queue's topic. If it is older than the queue or has other users, it stays as a
    /// plain topic.
    fn remove_topic(&self, queue: &Queue) -> Result<(), CatalogError> {
        let topic = &queue.topic;
        let is_unused = || {
            let subscriptions = topic.subscriptions();
            let is_own = |other: &Arc<_>| Arc::ptr_eq(other, &queue.subscription);
            subscriptions.iter().all(is_own) && !self.realm.is_committed(topic.id())
        };
        if !queue.adopted && self.realm.delete_topic_if(topic, is_unused)? {
            return Ok(());
        }
        release_topic(topic, Some(&queue.subscription))
    }

    /// Removes a queue from the table if its topic or subscription was deleted through another
    /// protocol.
    pub(super) fn remove_if_lost(&self, definitions: &mut Definitions, name: &str) {
        let queue = match self.state.read().queues.get(name) {
            Some(slot) => slot.queue.clone(),
            None => return,
        };
        if is_lost(&queue) && !self.realm.is_closed() {
            self.remove_lost(definitions, &queue);
        }
    }

    /// Removes all queues whose topics or subscriptions were deleted through other protocols.
    pub(super) fn remove_lost_queues(&self) {
        // Checks a copy, because there may be very many queues, and routing would wait for the
        // lock.
        let mut lost: Vec<Arc<Queue>> = {
            let state = self.state.read();
            let queues = state.queues.values().map(|slot| &slot.queue);
            queues.cloned().collect()
        };
        lost.retain(|queue| is_lost(queue));
        // While the broker closes, topics vanish without having been deleted. Asked after the check
        // above, because the broker is marked as closed before the first topic vanishes.
        if lost.is_empty() || self.realm.is_closed() {
            return;
        }
        let mut definitions = self.definitions.lock();
        for queue in lost {
            self.remove_lost(&mut definitions, &queue);
        }
    }

    fn remove_lost(&self, definitions: &mut Definitions, queue: &Arc<Queue>) {
        // The queue may have been removed meanwhile, and another declared on the same topic.
        if !self.is_in_table(queue) {
            return;
        }
        queue.life.lock().is_ending = true;
        queue.set_deleted(true);
        if let Err(error) = release_topic(&queue.topic, Some(&queue.subscription)) {
            tracing::warn!(queue = %queue.name, %error, "a topic cannot be told what it is");
        }
        self.forget_queue(definitions, queue);
    }

    /// The dead-lettering of the queue with this topic, or `None` if it has no dead-letter
    /// exchange.
    pub(super) fn dead_letter_rule(&self, topic: &str) -> Option<DeadLetterRule> {
        let state = self.state.read();
        let name = state.by_topic.get(topic).map_or(topic, |name| name);
        let queue = state.queues.get(name).map(|slot| &slot.queue);
        match queue.filter(|queue| queue.topic.name() == topic) {
            Some(queue) => Some(DeadLetterRule {
                queue: queue.name.clone(),
                dead_letter: queue.arguments.dead_letter.clone()?,
            }),
            None => state.deleted_queues.get(topic).cloned(),
        }
    }
}

/// Whether a queue's topic or subscription was deleted through another protocol.
fn is_lost(queue: &Queue) -> bool {
    let subscription = || queue.topic.subscription(SUBSCRIPTION);
    queue.topic.is_deleted()
        || !subscription().is_some_and(|found| Arc::ptr_eq(&found, &queue.subscription))
}

/// Turns a queue's topic into a plain one, and removes `subscription`, which was the queue's. After
/// a crash in between, the next start calls this again.
pub(super) fn release_topic(
    topic: &Arc<Topic>,
    subscription: Option<&Arc<Subscription>>,
) -> Result<(), CatalogError> {
    match release(topic, subscription) {
        // Deleted through another protocol, or ephemeral: such a topic ends with its last
        // subscription.
        Err(CatalogError::TopicDeleted { .. }) => Ok(()),
        outcome => outcome,
    }
}

fn release(
    topic: &Arc<Topic>,
    subscription: Option<&Arc<Subscription>>,
) -> Result<(), CatalogError> {
    topic.set_options(|options| {
        let going = stored::DELETING.to_owned();
        options.settings.insert(stored::QUEUE.to_owned(), going);
    })?;
    if let Some(subscription) = subscription {
        topic.remove_subscription(subscription)?;
    }
    topic.set_options(|options| {
        options.settings.remove(stored::QUEUE);
    })
}

/// 404 for a queue that was deleted.
pub(super) fn not_found(queue: &Queue) -> Exception {
    Exception::not_found(&Resource::queue(&queue.name))
}
