//! Consumers of queues, and the deletion of unused queues.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use cloverleaf_broker::{AttachError, CatalogError, Consumer, ConsumerOptions};

use super::queue::Queue;
use super::queue_deletion::gone;
use super::{Definitions, Owner, VirtualHost};
use crate::exception::{Exception, ReplyCode};

/// Interval between attempts to delete a queue when the catalog refuses.
const RETRY_MS: u64 = 1_000;
/// Interval at which the router checks whether a queue to be deleted still has dead letters.
const LETTERS_MS: u64 = 10;
/// Maximum wait for them: while others publish, there may be new ones without end.
const LETTERS_MS_MAX: u64 = 10_000;

impl VirtualHost {
    /// Attaches a consumer to a queue. After its end [`VirtualHost::consumer_left`] must be called.
    ///
    /// # Errors
    /// The queue was deleted (404); another connection uses it exclusively (405); another consumer
    /// is exclusive, or this one cannot be (403).
    pub fn consume(
        &self,
        owner: Owner,
        queue: &Arc<Queue>,
        options: ConsumerOptions,
    ) -> Result<Consumer, Exception> {
        queue.check_access(owner)?;
        // As in RabbitMQ, a queue with a single active consumer has no exclusive consumers.
        if options.exclusive && queue.arguments.single_active {
            return Err(exclusive_use(queue));
        }
        let pulls = options.pull;
        // Held until the consumer is attached, so that the queue is not deleted meanwhile.
        let mut life = queue.life.lock();
        if life.over {
            return Err(gone(queue));
        }
        let consumer = queue.subscription.attach(options);
        let consumer = consumer.map_err(|error| match error {
            AttachError::Deleted => gone(queue),
            AttachError::Exclusive | AttachError::TooMany { .. } => exclusive_use(queue),
        })?;
        life.had_consumers |= !pulls;
        drop(life);
        self.touch(queue);
        Ok(consumer)
    }

    /// Handles the end of a consumer: an auto-delete queue is deleted with its last one.
    pub fn consumer_left(&self, queue: &Arc<Queue>) {
        self.touch(queue);
        if !queue.auto_delete {
            return;
        }
        let mut definitions = self.definitions.lock();
        self.end_soon(&mut definitions, queue, Why::Unused);
    }

    /// Deletes a queue now, or later if it still has dead messages, which would be lost, or if the
    /// catalog refuses.
    pub(super) fn end_soon(&self, definitions: &mut Definitions, queue: &Arc<Queue>, why: Why) {
        if queue.subscription.has_dead() {
            return self.end_later(queue, why, LETTERS_MS);
        }
        if let Err(error) = self.end(definitions, queue, why) {
            tracing::warn!(queue = %queue.name, %error, "cannot delete a queue yet");
            self.end_later(queue, why, RETRY_MS);
        }
    }

    fn end(
        &self,
        definitions: &mut Definitions,
        queue: &Arc<Queue>,
        why: Why,
    ) -> Result<(), CatalogError> {
        match why {
            Why::Unused => self.end_unused(definitions, queue),
            Why::Ownerless | Why::Expires => self.end_queue(definitions, queue),
        }
    }

    /// Deletes an auto-delete queue if it has lost its last consumer.
    fn end_unused(
        &self,
        definitions: &mut Definitions,
        queue: &Arc<Queue>,
    ) -> Result<(), CatalogError> {
        if self.is_over(queue, |had_consumers| had_consumers) {
            self.end_queue(definitions, queue)
        } else {
            Ok(())
        }
    }

    /// Postpones a deletion: the router retries it until it succeeds.
    fn end_later(&self, queue: &Arc<Queue>, why: Why, after_ms: u64) {
        // The last consumer may leave several times before the retry: one entry is enough.
        let now_ms = self.realm.now_ms();
        let mut life = queue.life.lock();
        if life.leaves_by_ms.is_some() && why == Why::Unused {
            return;
        }
        let by_ms = now_ms.saturating_add(LETTERS_MS_MAX);
        life.leaves_by_ms.get_or_insert(by_ms);
        drop(life);
        let due_ms = now_ms.saturating_add(after_ms);
        self.expiries.lock().add(due_ms, queue, why);
        self.signal.kick();
    }

    /// Restarts the expiry of a queue that was used.
    pub fn touch(&self, queue: &Arc<Queue>) {
        if queue.arguments.expires_ms.is_some() {
            queue.used(self.realm.now_ms());
        }
    }

    /// Whether a queue without consumers is to be deleted; if so, no consumer can attach anymore.
    fn is_over(&self, queue: &Queue, wanted: impl FnOnce(bool) -> bool) -> bool {
        let mut life = queue.life.lock();
        let (_, consumers) = queue.counts();
        if life.over || consumers > 0 || !wanted(life.had_consumers) {
            return false;
        }
        life.over = true;
        true
    }

    /// Schedules the expiry of a queue with `x-expires`.
    pub(super) fn arm(&self, queue: &Arc<Queue>) {
        if let Some(due_ms) = queue.expires_at_ms() {
            self.expiries.lock().add(due_ms, queue, Why::Expires);
            self.signal.kick();
        }
    }

    /// Deletes the queues that are due. Returns the time of the next one, in milliseconds since
    /// 1970.
    pub(super) fn expire_queues(&self, now_ms: u64) -> Option<u64> {
        loop {
            let (queue, why) = match self.expiries.lock().take(now_ms) {
                Due::Now(queue, why) => (queue, why),
                Due::Later(due_ms) => return due_ms,
            };
            // A queue that was deleted meanwhile drops out of the schedule here.
            let Some(queue) = queue.upgrade().filter(|queue| !queue.is_deleted()) else {
                continue;
            };
            let again_ms = match why {
                Why::Expires => self.expire_queue(&queue, now_ms),
                Why::Ownerless | Why::Unused => self.end_again(&queue, why, now_ms),
            };
            if let Some(again_ms) = again_ms {
                self.expiries.lock().add(again_ms, &queue, why);
            }
        }
    }

    /// Retries a postponed deletion; returns the time of the next attempt, if one is necessary.
    fn end_again(&self, queue: &Arc<Queue>, why: Why, now_ms: u64) -> Option<u64> {
        let leaves_by_ms = queue.life.lock().leaves_by_ms;
        if queue.subscription.has_dead() && leaves_by_ms.is_some_and(|by_ms| now_ms < by_ms) {
            return Some(now_ms.saturating_add(LETTERS_MS));
        }
        let mut definitions = self.definitions.lock();
        if let Err(error) = self.end(&mut definitions, queue, why) {
            tracing::debug!(queue = %queue.name, %error, "still cannot delete a queue");
            return Some(now_ms.saturating_add(RETRY_MS));
        }
        queue.life.lock().leaves_by_ms = None;
        None
    }

    /// Deletes a queue if it has expired; otherwise returns the time of the next check.
    fn expire_queue(&self, queue: &Arc<Queue>, now_ms: u64) -> Option<u64> {
        let due_ms = queue.expires_at_ms()?;
        if due_ms > now_ms {
            return Some(due_ms);
        }
        if queue.subscription.has_dead() && now_ms < due_ms.saturating_add(LETTERS_MS_MAX) {
            return Some(now_ms.saturating_add(LETTERS_MS));
        }
        let mut definitions = self.definitions.lock();
        // Checks again under the lock: the queue may have been used meanwhile.
        let is_due = || queue.expires_at_ms().is_some_and(|due_ms| due_ms <= now_ms);
        if self.is_over(queue, |_| is_due()) {
            let Err(error) = self.end_queue(&mut definitions, queue) else {
                return None;
            };
            tracing::warn!(queue = %queue.name, %error, "cannot delete an expired queue yet");
            return Some(now_ms.saturating_add(RETRY_MS));
        }
        // It has consumers. Its expiry restarts when the last one leaves, so it cannot end earlier
        // than this.
        Some(now_ms.saturating_add(queue.arguments.expires_ms?))
    }
}

/// Why a queue is scheduled for deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// It has `x-expires`.
    Expires,
    /// Its connection has ended, and it could not be deleted then.
    Ownerless,
    /// Its last consumer has left, and it could not be deleted then.
    Unused,
}

/// Queues that expire or have to be deleted, by due time and a sequence number.
#[derive(Debug, Default)]
pub(super) struct Expiries {
    entries: BTreeMap<(u64, u64), (Weak<Queue>, Why)>,
    last: u64,
}

/// The next scheduled queue.
enum Due {
    Now(Weak<Queue>, Why),
    /// None is due before this time, in milliseconds since 1970.
    Later(Option<u64>),
}

impl Expiries {
    fn add(&mut self, due_ms: u64, queue: &Arc<Queue>, why: Why) {
        self.last += 1;
        let entry = (Arc::downgrade(queue), why);
        self.entries.insert((due_ms, self.last), entry);
    }

    fn take(&mut self, now_ms: u64) -> Due {
        match self.entries.first_entry() {
            Some(first) if first.key().0 <= now_ms => {
                let (queue, why) = first.remove();
                Due::Now(queue, why)
            }
            first => Due::Later(first.map(|first| first.key().0)),
        }
    }
}

fn exclusive_use(queue: &Queue) -> Exception {
    let text = format!("{} in exclusive use", queue.resource());
    Exception::new(ReplyCode::AccessRefused, text)
}
