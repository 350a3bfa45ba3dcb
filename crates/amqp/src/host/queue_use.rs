//! Consumers of queues, and the deletion of unused queues.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use cloverleaf_broker::{AttachError, CatalogError, Consumer, ConsumerOptions};

use super::queue::Queue;
use super::queue_deletion::not_found;
use super::{Definitions, Owner, VirtualHost};
use crate::exception::{Exception, ReplyCode};

/// Interval between attempts to delete a queue when the catalog refuses.
const RETRY_MS: u64 = 1_000;
/// Interval at which the router checks whether a queue to be deleted still has dead letters.
const LETTERS_CHECK_MS: u64 = 10;
/// Maximum wait for them: while others publish, there may be new ones without end.
const LETTERS_WAIT_MS_MAX: u64 = 10_000;

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
        let is_pull = options.pull;
        // Held until the consumer is attached, so that the queue is not deleted meanwhile.
        let mut life = queue.life.lock();
        if life.is_ending {
            return Err(not_found(queue));
        }
        let consumer = queue.subscription.attach(options);
        let consumer = consumer.map_err(|error| match error {
            AttachError::Deleted => not_found(queue),
            AttachError::Exclusive | AttachError::TooMany { .. } => exclusive_use(queue),
        })?;
        life.had_consumers |= !is_pull;
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
        self.delete_soon(&mut definitions, queue, DeletionCause::Unused);
    }

    /// Deletes a queue now, or later if it still has dead messages, which would be lost, or if the
    /// catalog refuses.
    pub(super) fn delete_soon(
        &self,
        definitions: &mut Definitions,
        queue: &Arc<Queue>,
        cause: DeletionCause,
    ) {
        if queue.subscription.has_dead() {
            return self.postpone_deletion(queue, cause, LETTERS_CHECK_MS);
        }
        if let Err(error) = self.try_delete(definitions, queue, cause) {
            tracing::warn!(queue = %queue.name, %error, "cannot delete a queue yet");
            self.postpone_deletion(queue, cause, RETRY_MS);
        }
    }

    fn try_delete(
        &self,
        definitions: &mut Definitions,
        queue: &Arc<Queue>,
        cause: DeletionCause,
    ) -> Result<(), CatalogError> {
        match cause {
            DeletionCause::Unused => self.delete_if_unused(definitions, queue),
            DeletionCause::Ownerless | DeletionCause::Expires => {
                self.delete_now(definitions, queue)
            }
        }
    }

    /// Deletes an auto-delete queue if it has lost its last consumer.
    fn delete_if_unused(
        &self,
        definitions: &mut Definitions,
        queue: &Arc<Queue>,
    ) -> Result<(), CatalogError> {
        if self.claim_deletion(queue, |had_consumers| had_consumers) {
            self.delete_now(definitions, queue)
        } else {
            Ok(())
        }
    }

    /// Postpones a deletion: the router retries it until it succeeds.
    fn postpone_deletion(&self, queue: &Arc<Queue>, cause: DeletionCause, after_ms: u64) {
        // The last consumer may leave several times before the retry: one entry is enough.
        let now_ms = self.realm.now_ms();
        let mut life = queue.life.lock();
        if life.wait_until_ms.is_some() && cause == DeletionCause::Unused {
            return;
        }
        let by_ms = now_ms.saturating_add(LETTERS_WAIT_MS_MAX);
        life.wait_until_ms.get_or_insert(by_ms);
        drop(life);
        let due_ms = now_ms.saturating_add(after_ms);
        self.deletions.lock().add(due_ms, queue, cause);
        self.signal.wake_router();
    }

    /// Restarts the expiry of a queue that was used.
    pub fn touch(&self, queue: &Arc<Queue>) {
        if queue.arguments.expires_ms.is_some() {
            queue.touch(self.realm.now_ms());
        }
    }

    /// Whether a queue without consumers is to be deleted; if so, no consumer can attach anymore.
    fn claim_deletion(&self, queue: &Queue, condition: impl FnOnce(bool) -> bool) -> bool {
        let mut life = queue.life.lock();
        let (_, consumers) = queue.counts();
        if life.is_ending || consumers > 0 || !condition(life.had_consumers) {
            return false;
        }
        life.is_ending = true;
        true
    }

    /// Schedules the expiry of a queue with `x-expires`.
    pub(super) fn schedule_expiry(&self, queue: &Arc<Queue>) {
        if let Some(due_ms) = queue.expires_at_ms() {
            self.deletions
                .lock()
                .add(due_ms, queue, DeletionCause::Expires);
            self.signal.wake_router();
        }
    }

    /// Deletes the queues that are due. Returns the time of the next one, in milliseconds since
    /// 1970.
    pub(super) fn delete_due_queues(&self, now_ms: u64) -> Option<u64> {
        loop {
            let (queue, cause) = match self.deletions.lock().take(now_ms) {
                NextDeletion::Now(queue, cause) => (queue, cause),
                NextDeletion::Later(due_ms) => return due_ms,
            };
            // A queue that was deleted meanwhile drops out of the schedule here.
            let Some(queue) = queue.upgrade().filter(|queue| !queue.is_deleted()) else {
                continue;
            };
            let again_ms = match cause {
                DeletionCause::Expires => self.expire_queue(&queue, now_ms),
                DeletionCause::Ownerless | DeletionCause::Unused => {
                    self.retry_deletion(&queue, cause, now_ms)
                }
            };
            if let Some(again_ms) = again_ms {
                self.deletions.lock().add(again_ms, &queue, cause);
            }
        }
    }

    /// Retries a postponed deletion; returns the time of the next attempt, if one is necessary.
    fn retry_deletion(&self, queue: &Arc<Queue>, cause: DeletionCause, now_ms: u64) -> Option<u64> {
        let wait_until_ms = queue.life.lock().wait_until_ms;
        if queue.subscription.has_dead() && wait_until_ms.is_some_and(|by_ms| now_ms < by_ms) {
            return Some(now_ms.saturating_add(LETTERS_CHECK_MS));
        }
        let mut definitions = self.definitions.lock();
        if let Err(error) = self.try_delete(&mut definitions, queue, cause) {
            tracing::debug!(queue = %queue.name, %error, "still cannot delete a queue");
            return Some(now_ms.saturating_add(RETRY_MS));
        }
        queue.life.lock().wait_until_ms = None;
        None
    }

    /// Deletes a queue if it has expired; otherwise returns the time of the next check.
    fn expire_queue(&self, queue: &Arc<Queue>, now_ms: u64) -> Option<u64> {
        let due_ms = queue.expires_at_ms()?;
        if due_ms > now_ms {
            return Some(due_ms);
        }
        if queue.subscription.has_dead() && now_ms < due_ms.saturating_add(LETTERS_WAIT_MS_MAX) {
            return Some(now_ms.saturating_add(LETTERS_CHECK_MS));
        }
        let mut definitions = self.definitions.lock();
        // Checks again under the lock: the queue may have been used meanwhile.
        let is_due = || queue.expires_at_ms().is_some_and(|due_ms| due_ms <= now_ms);
        if self.claim_deletion(queue, |_| is_due()) {
            let Err(error) = self.delete_now(&mut definitions, queue) else {
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
pub(super) enum DeletionCause {
    /// It has `x-expires`.
    Expires,
    /// Its connection has ended, and it could not be deleted then.
    Ownerless,
    /// Its last consumer has left, and it could not be deleted then.
    Unused,
}

/// Queues that expire or have to be deleted, by due time and a sequence number.
#[derive(Debug, Default)]
pub(super) struct DeletionSchedule {
    entries: BTreeMap<(u64, u64), (Weak<Queue>, DeletionCause)>,
    last: u64,
}

/// The next scheduled queue.
enum NextDeletion {
    Now(Weak<Queue>, DeletionCause),
    /// None is due before this time, in milliseconds since 1970.
    Later(Option<u64>),
}

impl DeletionSchedule {
    fn add(&mut self, due_ms: u64, queue: &Arc<Queue>, cause: DeletionCause) {
        self.last += 1;
        let entry = (Arc::downgrade(queue), cause);
        self.entries.insert((due_ms, self.last), entry);
    }

    fn take(&mut self, now_ms: u64) -> NextDeletion {
        match self.entries.first_entry() {
            Some(first) if first.key().0 <= now_ms => {
                let (queue, cause) = first.remove();
                NextDeletion::Now(queue, cause)
            }
            first => NextDeletion::Later(first.map(|first| first.key().0)),
        }
    }
}

fn exclusive_use(queue: &Queue) -> Exception {
    let text = format!("{} in exclusive use", queue.resource());
    Exception::new(ReplyCode::AccessRefused, text)
}
