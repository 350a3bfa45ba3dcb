//! Consumers of queues, and queues that go when nobody uses them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use cloverleaf_broker::{AttachError, Consumer, ConsumerOptions};

use super::deleting::gone;
use super::queue::Queue;
use super::{Owner, VirtualHost};
use crate::exception::{Exception, ReplyCode};

impl VirtualHost {
    /// Attaches a consumer to a queue. When it has gone, [`VirtualHost::consumer_left`] must hear.
    ///
    /// # Errors
    /// The queue is gone (404), another connection has it for itself (405), another consumer has
    /// it for itself or this one cannot have it so (403).
    pub fn consume(
        &self,
        owner: Owner,
        queue: &Arc<Queue>,
        options: ConsumerOptions,
    ) -> Result<Consumer, Exception> {
        queue.check_access(owner)?;
        // A single active consumer is chosen among several: none of them has the queue for itself.
        if options.exclusive && queue.arguments.single_active {
            return Err(exclusive_use(queue));
        }
        let pulls = options.pull;
        // Held until it is attached: so the queue does not go meanwhile.
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

    /// A consumer has retired or was dropped: an auto-delete queue goes with its last one.
    pub fn consumer_left(&self, queue: &Arc<Queue>) {
        self.touch(queue);
        if !queue.auto_delete {
            return;
        }
        let mut definitions = self.definitions.lock();
        if self.is_over(queue, |life_had_consumers| life_had_consumers) {
            self.end_queue(&mut definitions, queue);
        }
    }

    /// A queue was used: its time to expire begins anew.
    pub fn touch(&self, queue: &Arc<Queue>) {
        if queue.arguments.expires_ms.is_some() {
            queue.used(self.broker.now_ms());
        }
    }

    /// Whether a queue without consumers is to go; if so, nobody attaches any more.
    fn is_over(&self, queue: &Queue, wanted: impl FnOnce(bool) -> bool) -> bool {
        let mut life = queue.life.lock();
        let (_, consumers) = queue.counts();
        if life.over || consumers > 0 || !wanted(life.had_consumers) {
            return false;
        }
        life.over = true;
        true
    }

    /// The router is to look after a queue that can expire.
    pub(super) fn arm(&self, queue: &Arc<Queue>) {
        if let Some(due_ms) = queue.expires_at_ms() {
            self.expiries.lock().add(due_ms, queue);
            self.signal.kick();
        }
    }

    /// Deletes the queues whose time is over. Says when to come again, milliseconds since 1970.
    pub(super) fn expire_queues(&self, now_ms: u64) -> Option<u64> {
        loop {
            let queue = match self.expiries.lock().take(now_ms) {
                Due::Now(queue) => queue,
                Due::Later(due_ms) => return due_ms,
            };
            // One that is gone has no entry any more from here on.
            if let Some(queue) = queue.upgrade().filter(|queue| !queue.is_deleted())
                && let Some(again_ms) = self.expire_queue(&queue, now_ms)
            {
                self.expiries.lock().add(again_ms, &queue);
            }
        }
    }

    /// Deletes a queue if its time is over; otherwise says when to look again.
    fn expire_queue(&self, queue: &Arc<Queue>, now_ms: u64) -> Option<u64> {
        let due_ms = queue.expires_at_ms()?;
        if due_ms > now_ms {
            return Some(due_ms);
        }
        let mut definitions = self.definitions.lock();
        // Somebody may have used it just now.
        let is_due = || queue.expires_at_ms().is_some_and(|due_ms| due_ms <= now_ms);
        if self.is_over(queue, |_| is_due()) {
            self.end_queue(&mut definitions, queue);
            if queue.is_deleted() {
                return None;
            }
        }
        // In use: its time begins when its last consumer leaves, and cannot be over before then.
        Some(now_ms.saturating_add(queue.arguments.expires_ms?))
    }
}

/// Queues that can expire, by the time at which to look after them.
#[derive(Debug, Default)]
pub(super) struct Expiries {
    entries: BTreeMap<(u64, u64), Weak<Queue>>,
    last: u64,
}

/// What is to be looked after.
enum Due {
    Now(Weak<Queue>),
    /// Nothing before this time.
    Later(Option<u64>),
}

impl Expiries {
    fn add(&mut self, due_ms: u64, queue: &Arc<Queue>) {
        self.last += 1;
        self.entries
            .insert((due_ms, self.last), Arc::downgrade(queue));
    }

    fn take(&mut self, now_ms: u64) -> Due {
        match self.entries.first_entry() {
            Some(first) if first.key().0 <= now_ms => Due::Now(first.remove()),
            first => Due::Later(first.map(|first| first.key().0)),
        }
    }
}

fn exclusive_use(queue: &Queue) -> Exception {
    let text = format!("{} in exclusive use", queue.resource());
    Exception::new(ReplyCode::AccessRefused, text)
}
