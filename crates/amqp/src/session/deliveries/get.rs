//! `basic.get`: one message from a queue.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cloverleaf_broker::ConsumerOptions;
use cloverleaf_log::RecordCursor;

use super::Deliveries;
use super::slots::Limits;
use super::unacked::{Run, range_of};
use super::writer::properties_of;
use crate::exception::Exception;
use crate::host::Queue;
use crate::message::Message;
use crate::session::channel::Channels;
use crate::session::connection::Connection;
use crate::wire::{Method, method};

/// Maximum number of queues of a channel for which `basic.get` keeps its pull consumer.
const GETTERS_MAX: usize = 16;

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
        let known = channel.getters.get(&queue.name).copied();
        // The queue may have been deleted and declared again since.
        let is_same = |slot: &u32| {
            let consuming = self.consumers.get_mut(*slot);
            consuming.is_some_and(|consuming| Arc::ptr_eq(&consuming.queue, &queue))
        };
        let slot = match known.filter(is_same) {
            Some(slot) => slot,
            None => self.add_getter(connection, number, &queue)?,
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

    fn add_getter(
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
        let (queue, limits) = (Arc::clone(queue), Limits::default());
        let slot = self.consumers.insert(number, tag, queue, consumer, limits);
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(slot);
        };
        channel.slots.insert(slot);
        let before = channel.getters.insert(queue_name, slot);
        let mut others = channel.getters.iter().filter(|(_, other)| **other != slot);
        let surplus = if channel.getters.len() > GETTERS_MAX {
            others.next().map(|(name, _)| Arc::clone(name))
        } else {
            None
        };
        let surplus = surplus.and_then(|name| channel.getters.remove(&name));
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
        let Some(consuming) = self.consumers.get_mut(get.slot) else {
            self.pending_get = None;
            return false;
        };
        let Poll::Ready(taken) = consuming.consumer.poll_take(cx) else {
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
            consuming.consumer.reject_ranges(&[range_of(&delivery)]);
            return true;
        };
        self.pending_get = None;
        let Some(channel) = self.channels.get_mut(&get.channel) else {
            return false;
        };
        let tag = channel.take_tags(1);
        let (ready, _) = consuming.queue.counts();
        let mut scratch = Vec::new();
        let message = Message::read(&record, &consuming.queue.name, &mut scratch);
        let ok = Method::BasicGetOk(method::BasicGetOk {
            delivery_tag: tag,
            redelivered: delivery.redelivered,
            exchange: message.exchange,
            routing_key: message.routing_key,
            message_count: ready,
        });
        let mut counted = Vec::new();
        let properties = properties_of(&message, &delivery, &consuming.queue, &mut counted);
        let batch = Some(delivery.batch.bytes());
        connection.reply_with_content(get.channel, &ok, properties, message.body, batch);
        connection
            .meter
            .probe
            .delivered(1, delivery.redelivered.into());
        if get.no_ack {
            consuming
                .consumer
                .ack_ranges(&[range_of(&delivery)], |_, _| {})
        } else {
            consuming.unacked += 1;
            let run = Run::of(&delivery, tag, get.slot, consuming.incarnation);
            channel.unacked.push(run);
            self.consumers.delivered(1);
        }
        false
    }
}
