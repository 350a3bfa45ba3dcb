//! `basic.consume`, `basic.cancel` and `basic.qos`.

use std::sync::Arc;

use cloverleaf_broker::{ConsumerOptions, MessageRange, SharedWindow};
use uuid::Uuid;

use super::Deliveries;
use super::slots::{ConsumerLimits, ConsumerSlot};
use super::unacked::range_of;
use crate::exception::{Exception, ReplyCode};
use crate::host::Queue;
use crate::queue_arguments::consumer_priority;
use crate::session::channel::Channels;
use crate::session::connection::Connection;
use crate::session::publishes::REPLY_TO;
use crate::wire::{Method, method};

/// Maximum number of consumers of a connection, including cancelled ones with unacknowledged
/// deliveries.
const CONSUMERS_MAX: usize = 65_536;

impl Deliveries {
    /// `basic.qos`.
    pub(in crate::session) fn set_prefetch(
        &mut self,
        number: u16,
        qos: &method::BasicQos,
    ) -> Result<(), Exception> {
        if qos.prefetch_size != 0 {
            return Err(Exception::new(
                ReplyCode::NotImplemented,
                format!("prefetch_size!=0 ({})", qos.prefetch_size),
            ));
        }
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(());
        };
        let limit = window(qos.prefetch_count);
        match (qos.global, &channel.window) {
            (true, Some(shared)) => shared.set(limit),
            (true, None) if qos.prefetch_count == 0 => {}
            (true, None) => {
                let shared = SharedWindow::new(limit);
                channel.window = Some(Arc::clone(&shared));
                // Includes cancelled consumers that still have unacknowledged deliveries.
                for slot in &channel.slots {
                    if let Some(entry) = self.consumers.get_mut(*slot)
                        && !entry.tag.is_empty()
                    {
                        let shared = Some(Arc::clone(&shared));
                        entry.consumer.set_shared_window(shared);
                    }
                }
            }
            (false, shared) => {
                // As in RabbitMQ, setting a limit per consumer removes the channel's limit.
                if let Some(shared) = shared {
                    shared.set(u32::MAX);
                }
                channel.prefetch = qos.prefetch_count;
            }
        }
        Ok(())
    }

    /// `basic.consume`.
    pub(in crate::session) fn consume(
        &mut self,
        connection: &mut Connection,
        channels: &Channels,
        number: u16,
        consume: &method::BasicConsume<'_>,
    ) -> Result<(), Exception> {
        let Some(channel) = self.channels.get(&number) else {
            return Ok(());
        };
        if channel.consumers.contains_key(consume.consumer_tag) {
            let tag = consume.consumer_tag;
            return Err(not_allowed(format!(
                "attempt to reuse consumer tag '{tag}'"
            )));
        }
        let consumers_max = connection.options.consumers_max;
        if self.consumers.len() >= CONSUMERS_MAX {
            return Err(not_allowed(format!(
                "reached maximum ({CONSUMERS_MAX}) of consumers per connection"
            )));
        }
        if channel.consumers.len() >= consumers_max {
            return Err(not_allowed(format!(
                "reached maximum ({consumers_max}) of consumers per channel"
            )));
        }
        let queue = match consume.queue {
            REPLY_TO => self.take_reply_queue(connection, number, consume.no_ack)?,
            name => {
                let name = channels.queue_name(number, name)?;
                connection.host.queue(connection.owner, &name)?
            }
        };
        connection.meter.called(1);
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(());
        };
        let tag = match consume.consumer_tag {
            "" => format!("amq.ctag-{}", Uuid::new_v4().simple()),
            tag => tag.to_owned(),
        };
        let options = ConsumerOptions {
            priority: consumer_priority(&queue.name, queue.arguments.kind, consume.arguments)?,
            exclusive: consume.exclusive,
            label: tag.clone(),
            connection: connection.meter.probe.id(),
            shared_window: channel.window.clone(),
            auto_ack: consume.no_ack,
            ..ConsumerOptions::default()
        };
        let consumer = connection.host.consume(connection.owner, &queue, options)?;
        let prefetch = channel.prefetch;
        let ok = method::BasicConsumeOk { consumer_tag: &tag };
        connection.reply_unless(consume.no_wait, number, &Method::BasicConsumeOk(ok));
        let window = if consume.no_ack {
            u32::MAX
        } else {
            window(prefetch)
        };
        let limits = ConsumerLimits {
            no_ack: consume.no_ack,
            prefetch,
        };
        let slot = self
            .consumers
            .insert(number, tag.clone(), queue, consumer, limits);
        channel.consumers.insert(tag, slot);
        channel.slots.insert(slot);
        if let Some(entry) = self.consumers.get_mut(slot) {
            entry.consumer.set_window(window);
            // Deliveries may be waiting already.
            entry.signal.wake();
        }
        self.report_credit(connection);
        Ok(())
    }

    /// Creates the queue for the replies of direct reply-to.
    fn take_reply_queue(
        &mut self,
        connection: &Connection,
        number: u16,
        no_ack: bool,
    ) -> Result<Arc<Queue>, Exception> {
        let Some(channel) = self.channels.get_mut(&number) else {
            return Err(Exception::precondition("no such channel"));
        };
        if !no_ack {
            return Err(Exception::precondition("reply consumer cannot acknowledge"));
        }
        if channel.reply_queue.is_some() {
            return Err(Exception::precondition("reply consumer already set"));
        }
        let queue = connection.host.reply_queue(connection.owner)?;
        channel.reply_queue = Some(Arc::clone(&queue.name));
        Ok(queue)
    }

    /// `basic.cancel`: deliveries that were sent can still be acknowledged.
    pub(in crate::session) fn cancel(
        &mut self,
        connection: &mut Connection,
        number: u16,
        tag: &str,
    ) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        let Some(slot) = channel.consumers.remove(tag) else {
            return;
        };
        self.settle_acks(connection);
        connection.meter.called(1);
        if self.consumers.get_mut(slot).is_some_and(|it| it.no_ack) {
            self.write_pending(connection, slot);
        }
        let queue = self.retire(slot);
        if let Some(queue) = queue {
            if let Some(channel) = self.channels.get_mut(&number)
                && channel.reply_queue.as_ref() == Some(&queue.name)
            {
                channel.reply_queue = None;
            }
            connection.host.consumer_left(&queue);
        }
        self.remove_if_done(slot);
        self.report_credit(connection);
    }

    /// Stops the deliveries to a consumer. Messages not yet sent to the client are requeued as not
    /// delivered.
    pub(super) fn retire(&mut self, slot: u32) -> Option<Arc<Queue>> {
        let entry = self.consumers.retire(slot)?;
        let unseen = entry.deliveries.drain(entry.deliveries_written..);
        let unseen: Vec<MessageRange> = unseen.map(|run| range_of(&run)).collect();
        entry.deliveries.clear();
        entry.deliveries_written = 0;
        entry.consumer.retire_unseen(&unseen);
        Some(Arc::clone(&entry.queue))
    }

    /// Frees the slot of a cancelled consumer once it has no unacknowledged deliveries.
    pub(super) fn remove_if_done(&mut self, slot: u32) {
        let is_done = self
            .consumers
            .get_mut(slot)
            .is_some_and(|entry| entry.is_retired && entry.unacked == 0 && entry.acks.is_empty());
        if is_done {
            self.remove_slot(slot);
        }
    }

    /// Frees a slot.
    pub(super) fn remove_slot(&mut self, slot: u32) -> Option<ConsumerSlot> {
        let entry = self.consumers.remove(slot)?;
        if let Some(channel) = self.channels.get_mut(&entry.channel) {
            channel.slots.remove(&slot);
        }
        Some(entry)
    }

    /// Ends all consumers of a channel. Their unacknowledged messages are requeued.
    pub(super) fn release_consumers(&mut self, connection: &mut Connection, number: u16) {
        self.settle_acks(connection);
        let channel = self.channels.get_mut(&number);
        let slots = channel.map(|channel| std::mem::take(&mut channel.slots));
        for slot in slots.unwrap_or_default() {
            if let Some(entry) = self.consumers.remove(slot) {
                let (queue, counts) = (entry.queue, !entry.is_retired);
                connection.meter.called(1);
                drop(entry.consumer);
                if counts && !entry.tag.is_empty() {
                    connection.host.consumer_left(&queue);
                }
            }
        }
        self.report_credit(connection);
    }

    /// Reports to the probe how many messages may be in flight to this client.
    fn report_credit(&self, connection: &Connection) {
        connection
            .meter
            .probe
            .credit_granted(self.consumers.credit());
        connection
            .meter
            .probe
            .credit_used(self.consumers.unacked(), connection.now.us);
    }

    /// Reports to the probe how many messages are in flight, after a change at the consumer in
    /// `slot`.
    pub(super) fn report_in_flight(&mut self, connection: &Connection, slot: u32) {
        let now_us = connection.now.us;
        connection
            .meter
            .probe
            .credit_used(self.consumers.unacked(), now_us);
        if self.consumers.is_out_of_credit(slot, now_us) {
            connection.meter.probe.no_credit_begins(now_us)
        } else {
            connection.meter.probe.no_credit_ends(now_us)
        }
    }
}

/// Converts a prefetch count, in which 0 means no limit, into a window.
fn window(prefetch: u16) -> u32 {
    match prefetch {
        0 => u32::MAX,
        prefetch => prefetch.into(),
    }
}

fn not_allowed(explanation: String) -> Exception {
    Exception::new(ReplyCode::NotAllowed, explanation)
}
