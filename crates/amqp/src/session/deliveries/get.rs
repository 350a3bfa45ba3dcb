//! `basic.get`: one message from a queue.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cloverleaf_broker::ConsumerOptions;
use cloverleaf_log::RecordCursor;

use super::Deliveries;
use super::slots::ConsumerLimits;
use super::unacked::{UnackedRun, range_of};
use super::writer::delivery_properties;
use crate::exception::Exception;
use crate::host::Queue;
use crate::message::Message;
use crate::session::channel::Channels;
use crate::session::connection::Connection;
use crate::wire::{Method, method};

/// Maximum number of queues of a channel for which `basic.get` keeps its pull consumer.
const PULL_CONSUMERS_MAX: usize = 16;

/// A `basic.get` that waits for a read from the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingGet {
    channel: u16,
    slot: u32,
    no_ack: bool,
}

impl Deliveries {
    /// `basic.get`.
    pub(in crate::session) fn get(
        &mut self,
        connection: &mut Connection,
        channels: &Channels,
        number: u16,
        get: &method::BasicGet<'_>,
    ) -> Result<(), Exception> {
        let name = channels.queue_name(number, get.queue)?;
        let queue = connection.host.queue(connection.owner, &name)?;
        self.settle_acks(connection);
        connection.meter.called(1);
        connection.host.touch(&queue);
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(());
        };
        let known = channel.pull_slots.get(&queue.name).copied();
        // The queue may have been deleted and declared again since.
        let is_same = |slot: &u32| {
            let entry = self.consumers.get_mut(*slot);
            entry.is_some_and(|entry| Arc::ptr_eq(&entry.queue, &queue))
        };
        let slot = match known.filter(is_same) {
            Some(slot) => slot,
            None => self.add_pull_consumer(connection, number, &queue)?,
        };
        let pending = PendingGet {
            channel: number,
            slot,
            no_ack: get.no_ack,
        };
        self.pending_get = Some(pending);
        self.poll_get(connection, &mut Context::from_waker(Waker::noop()));
        Ok(())
    }

    fn add_pull_consumer(
        &mut self,
        connection: &Connection,
        number: u16,
        queue: &Arc<Queue>,
    ) -> Result<u32, Exception> {
        let options = ConsumerOptions {
            pull: true,
            connection: connection.meter.probe.id(),
            ..ConsumerOptions::default()
        };
        let consumer = connection.host.consume(connection.owner, queue, options)?;
        let (tag, queue_name) = (String::new(), Arc::clone(&queue.name));
        let (queue, limits) = (Arc::clone(queue), ConsumerLimits::default());
        let slot = self.consumers.insert(number, tag, queue, consumer, limits);
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(slot);
        };
        channel.slots.insert(slot);
        let before = channel.pull_slots.insert(queue_name, slot);
        let mut others = channel
            .pull_slots
            .iter()
            .filter(|(_, other)| **other != slot);
        let surplus = if channel.pull_slots.len() > PULL_CONSUMERS_MAX {
            others.next().map(|(name, _)| Arc::clone(name))
        } else {
            None
        };
        let surplus = surplus.and_then(|name| channel.pull_slots.remove(&name));
        for old in before.into_iter().chain(surplus) {
            self.retire(old);
            self.remove_if_done(old);
        }
        Ok(slot)
    }

    /// Continues a pending `basic.get`.
    pub(super) fn poll_get(&mut self, connection: &mut Connection, cx: &mut Context<'_>) {
        while self.take_next(connection, cx) {}
    }

    /// Takes a message for the pending `basic.get`. `true`: the message cannot be parsed and was
    /// dead-lettered; try the next one.
    fn take_next(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> bool {
        let Some(get) = self.pending_get else {
            return false;
        };
        let Some(entry) = self.consumers.get_mut(get.slot) else {
            self.pending_get = None;
            return false;
        };
        let Poll::Ready(taken) = entry.consumer.poll_take(cx) else {
            return false;
        };
        let Some(delivery) = taken else {
            self.pending_get = None;
            let empty = Method::BasicGetEmpty(method::BasicGetEmpty::default());
            connection.reply(get.channel, &empty);
            return false;
        };
        let mut records = RecordCursor::at(&delivery.batch, delivery.position);
        let Ok(Some((_, record))) = records.next_record() else {
            tracing::error!(offset = delivery.first, "a batch to be taken is malformed");
            entry.consumer.reject_ranges(&[range_of(&delivery)]);
            return true;
        };
        self.pending_get = None;
        let Some(channel) = self.channels.get_mut(&get.channel) else {
            return false;
        };
        let tag = channel.take_tags(1);
        let (ready, _) = entry.queue.counts();
        let mut scratch = Vec::new();
        let message = Message::read(&record, &entry.queue.name, &mut scratch);
        let ok = Method::BasicGetOk(method::BasicGetOk {
            delivery_tag: tag,
            redelivered: delivery.redelivered,
            exchange: message.exchange,
            routing_key: message.routing_key,
            message_count: ready,
        });
        let mut counted = Vec::new();
        let properties = delivery_properties(&message, &delivery, &entry.queue, &mut counted);
        let batch = Some(delivery.batch.bytes());
        connection.reply_with_content(get.channel, &ok, properties, message.body, batch);
        connection
            .meter
            .probe
            .delivered(1, delivery.redelivered.into());
        if get.no_ack {
            entry.consumer.ack_ranges(&[range_of(&delivery)], |_, _| {})
        } else {
            entry.unacked += 1;
            let run = UnackedRun::of(&delivery, tag, get.slot, entry.incarnation);
            channel.unacked.push(run);
            self.consumers.delivered(1);
        }
        false
    }
}
