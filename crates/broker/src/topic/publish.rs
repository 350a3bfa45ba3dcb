//! Publishes to a topic.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cloverleaf_log::{Batch, Durability};

use crate::subscription::Subscription;
use crate::subscription::length::LengthReservation;
use crate::topic::Topic;
use crate::topic::admission::BatchSource;
use crate::topic::published::{PublishError, Published};

impl Topic {
    /// Stores a batch in a partition that the broker chooses in turn. The broker itself has built
    /// the batch, so its records are not validated again.
    ///
    /// The future resolves when the batch is as durable as `asked` says. Subscriptions get the
    /// messages as soon as they are written.
    ///
    /// # Errors
    /// As [`Topic::publish_to`].
    pub fn publish(&self, batch: Batch, asked: Durability) -> Result<Published, PublishError> {
        let count = self.partition_count();
        let partition = match count {
            1 => 0,
            _ => self.next_partition.fetch_add(1, Ordering::Relaxed) % count.max(1),
        };
        self.store(partition, batch, asked, BatchSource::Broker)
    }

    /// As [`Topic::publish`], in a given partition.
    ///
    /// # Errors
    /// As [`Topic::publish_to`].
    pub fn publish_in(
        &self,
        partition: u32,
        batch: Batch,
        asked: Durability,
    ) -> Result<Published, PublishError> {
        self.store(partition, batch, asked, BatchSource::Broker)
    }

    /// Stores a client's batch in one partition unchanged. Its records are validated unless they
    /// are compressed.
    ///
    /// # Errors
    /// The topic or the log refuses the batch; then nothing was stored.
    pub fn publish_to(
        &self,
        partition: u32,
        batch: Batch,
        asked: Durability,
    ) -> Result<Published, PublishError> {
        self.store(partition, batch, asked, BatchSource::Client)
    }

    fn store(
        &self,
        partition: u32,
        batch: Batch,
        asked: Durability,
        source: BatchSource,
    ) -> Result<Published, PublishError> {
        if self.is_deleted() {
            return Err(self.deleted_error());
        }
        let count = u64::from(batch.count());
        let full = |subscription: Arc<Subscription>| PublishError::QueueFull {
            topic: self.name().to_owned(),
            subscription: subscription.name().to_owned(),
        };
        let reservation = LengthReservation::reserve(self, &batch, true).map_err(full)?;
        let layout = self.layout();
        let Some(log) = layout.partitions.get(partition as usize) else {
            return Err(PublishError::NoSuchPartition {
                topic: self.name().to_owned(),
                partition,
            });
        };
        let (batch, body_bytes) = layout.admit(self.shared(), batch, source)?;
        let is_stamped = batch.has_append_time();
        let bytes = batch.bytes().len() as u64;
        let appended = log.append(batch, layout.durability(self.shared(), asked))?;
        if !appended.is_duplicate {
            reservation.keep();
            self.count(count, bytes, body_bytes);
        }
        // A duplicate batch gets the append time of the first one.
        let append_time_ms = is_stamped.then_some(appended.timestamp_ms);
        Ok(Published::new(appended, append_time_ms))
    }

    /// Stores a message that the broker itself moves here. It may use the disk's reserve, and no
    /// length limit refuses it.
    pub(crate) fn publish_moved(
        &self,
        batch: Batch,
        asked: Durability,
    ) -> Result<Published, PublishError> {
        let (count, bytes) = (u64::from(batch.count()), batch.bytes().len() as u64);
        let body_bytes = u64::from(batch.body_bytes());
        let published = self.publish_uncounted(batch, asked)?;
        self.count(count, bytes, body_bytes);
        Ok(published)
    }

    /// As [`Topic::publish_moved`], for a delayed message whose delay has passed. It does not raise
    /// the topic's counters, because [`Topic::publish_delayed`] has done so.
    pub(crate) fn publish_uncounted(
        &self,
        batch: Batch,
        asked: Durability,
    ) -> Result<Published, PublishError> {
        let layout = self.layout();
        let Some(log) = layout.partitions.first() else {
            return Err(self.deleted_error());
        };
        let reservation = LengthReservation::reserve(self, &batch, false).ok();
        let appended = log.append_internal(batch, layout.durability(self.shared(), asked))?;
        if let Some(reservation) = reservation {
            reservation.keep();
        }
        Ok(Published::new(appended, None))
    }

    fn count(&self, messages: u64, bytes: u64, body_bytes: u64) {
        self.messages.fetch_add(messages, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.body_bytes.fetch_add(body_bytes, Ordering::Relaxed);
    }

    fn deleted_error(&self) -> PublishError {
        PublishError::TopicDeleted {
            topic: self.name().to_owned(),
        }
    }

    /// Stores one message that appears in this topic after `delay_ms`.
    ///
    /// # Errors
    /// As [`Topic::publish_to`]; also when too many delayed messages wait.
    pub fn publish_delayed(
        &self,
        message: &Batch,
        delay_ms: u64,
        asked: Durability,
    ) -> Result<Published, PublishError> {
        if self.is_deleted() {
            return Err(self.deleted_error());
        }
        let asked = self.durability(asked);
        let published = crate::housekeeping::schedule::publish(
            self.shared(),
            self.id(),
            message,
            delay_ms,
            asked,
        )?;
        let (count, bytes) = (u64::from(message.count()), message.bytes().len() as u64);
        self.count(count, bytes, u64::from(message.body_bytes()));
        Ok(published)
    }

    /// The log has written to one of the partitions: notifies producers and subscriptions.
    pub(crate) fn written(self: &Arc<Self>) {
        self.shared().write_budget.written();
        for subscription in self.subscriptions().iter() {
            subscription.appended();
        }
    }
}
