//! Writes deliveries from the broker straight into the output.

use std::task::{Context, Poll};

use cloverleaf_broker::Delivery;
use cloverleaf_log::RecordCursor;
use cloverleaf_session::Output;

use super::slots::ConsumerSlot;
use super::unacked::{UnackedRun, range_of};
use super::{ChannelDeliveries, Deliveries};
use crate::host::Queue;
use crate::message::Message;
use crate::session::connection::Connection;
use crate::session::frames::{push_content, push_method};
use crate::wire::{Method, Properties, Table, Value, Writer, method, table_bytes};

/// No further message is written once a poll's output has this many bytes.
const OUTPUT_BYTES_MAX: usize = 128 << 10;

impl Deliveries {
    /// Writes deliveries of the woken consumers until the output is full or no more are ready.
    pub(in crate::session) fn deliver(
        &mut self,
        connection: &Connection,
        cx: &Context<'_>,
        out: &mut Output,
    ) {
        let mut slots = std::mem::take(&mut self.ready_slots);
        self.consumers.take_ready(cx, &mut slots);
        let (mut messages, mut redelivered, mut done) = (0, 0, 0);
        let (mut unacked, mut last_slot) = (0, None);
        while let Some(slot) = slots.get(done) {
            let Some(entry) = self.consumers.get_mut(*slot) else {
                done += 1;
                continue;
            };
            let Some(channel) = self.channels.get_mut(&entry.channel) else {
                done += 1;
                continue;
            };
            let frame_bytes_max = connection.limits.frame_bytes_max;
            last_slot = Some(*slot);
            let mut turn = ConsumerTurn {
                out: &mut *out,
                slot: *slot,
                frame_bytes_max,
                bytes_max: OUTPUT_BYTES_MAX,
                messages: &mut messages,
                redelivered: &mut redelivered,
                unacked: &mut unacked,
            };
            match turn.deliver(entry, channel) {
                TurnOutcome::Full => break,
                TurnOutcome::Pending => done += 1,
                TurnOutcome::Ended => {
                    done += 1;
                    let slot = *slot;
                    self.consumers.delivered(std::mem::take(&mut unacked));
                    self.queue_deleted(connection, slot, out);
                }
            }
        }
        self.consumers.delivered(unacked);
        slots.drain(..done);
        if !slots.is_empty() {
            // The next poll begins with another consumer, so that one with a backlog does not
            // starve the rest.
            slots.rotate_left(1);
        }
        if slots.is_empty() && slots.capacity() > 64 {
            slots = Vec::new();
        }
        self.ready_slots = slots;
        if messages > 0 {
            connection.meter.probe.delivered(messages, redelivered);
        }
        if let Some(slot) = last_slot {
            self.report_in_flight(connection, slot);
        }
    }

    /// Writes the pending deliveries of a channel's consumers that use `no-ack`.
    pub(in crate::session) fn write_pending_of_channel(
        &mut self,
        connection: &mut Connection,
        number: u16,
    ) {
        let slots = self.channels.get(&number).map(|it| &it.slots);
        let slots: Vec<u32> = slots.into_iter().flatten().copied().collect();
        for slot in slots {
            if self.consumers.get_mut(slot).is_some_and(|it| it.no_ack) {
                self.write_pending(connection, slot);
            }
        }
    }

    /// Writes a `no-ack` consumer's pending deliveries: the broker counts them as acknowledged, so
    /// no other consumer would get them.
    pub(super) fn write_pending(&mut self, connection: &mut Connection, slot: u32) {
        let Some(entry) = self.consumers.get_mut(slot) else {
            return;
        };
        let Some(channel) = self.channels.get_mut(&entry.channel) else {
            return;
        };
        let (mut messages, mut redelivered) = (0, 0);
        let mut turn = ConsumerTurn {
            out: &mut connection.replies,
            slot,
            frame_bytes_max: connection.limits.frame_bytes_max,
            // The outbox is bounded, so this is, too.
            bytes_max: usize::MAX,
            messages: &mut messages,
            redelivered: &mut redelivered,
            unacked: &mut 0,
        };
        while entry.deliveries_written < entry.deliveries.len() {
            turn.write_delivery(entry, channel);
        }
        connection.meter.probe.delivered(messages, redelivered);
    }

    /// Ends a consumer whose queue was deleted, and notifies the client if it understands
    /// `basic.cancel`.
    fn queue_deleted(&mut self, connection: &Connection, slot: u32, out: &mut Output) {
        let Some(entry) = self.remove_slot(slot) else {
            return;
        };
        if entry.is_retired || entry.tag.is_empty() {
            return;
        }
        if let Some(channel) = self.channels.get_mut(&entry.channel) {
            channel.consumers.remove(&entry.tag);
        }
        if connection.capabilities.consumer_cancel_notify {
            let cancel = Method::BasicCancel(method::BasicCancel {
                consumer_tag: &entry.tag,
                no_wait: true,
            });
            push_method(&mut out.bytes, entry.channel, &cancel);
        }
    }
}

/// The outcome of one consumer's turn.
enum TurnOutcome {
    /// The output is full.
    Full,
    /// Nothing more is ready; the slot is woken when there is.
    Pending,
    /// The queue was deleted.
    Ended,
}

/// One consumer's turn to write deliveries.
struct ConsumerTurn<'r> {
    out: &'r mut Output,
    slot: u32,
    frame_bytes_max: u32,
    /// The size from which on the output is full, in bytes.
    bytes_max: usize,
    messages: &'r mut u64,
    redelivered: &'r mut u64,
    /// Number of written messages that need an acknowledgement.
    unacked: &'r mut u64,
}

impl ConsumerTurn<'_> {
    fn deliver(
        &mut self,
        entry: &mut ConsumerSlot,
        channel: &mut ChannelDeliveries,
    ) -> TurnOutcome {
        loop {
            if entry.deliveries_written == entry.deliveries.len() {
                entry.deliveries.clear();
                entry.deliveries_written = 0;
                if self.out.len() >= self.bytes_max {
                    return TurnOutcome::Full;
                }
                let mut cx = entry.signal.context();
                let consumer = &entry.consumer;
                match consumer.poll_deliveries(&mut cx, &mut entry.deliveries) {
                    Poll::Ready(Some(())) => continue,
                    Poll::Ready(None) => return TurnOutcome::Ended,
                    Poll::Pending => {
                        if entry.deliveries.capacity() > 16 {
                            entry.deliveries = Vec::new();
                        }
                        return TurnOutcome::Pending;
                    }
                }
            }
            self.write_delivery(entry, channel);
            if entry.deliveries_written < entry.deliveries.len() && self.out.len() >= self.bytes_max
            {
                return TurnOutcome::Full;
            }
        }
    }

    /// Writes messages of the first pending delivery until all are written or the output is full.
    fn write_delivery(&mut self, entry: &mut ConsumerSlot, channel: &mut ChannelDeliveries) {
        let ConsumerSlot {
            deliveries,
            deliveries_written,
            queue,
            tag,
            ..
        } = entry;
        let delivery = &mut deliveries[*deliveries_written];
        let batch = delivery.batch.clone();
        let mut records = RecordCursor::at(&batch, delivery.position);
        let first_tag = channel.next_delivery_tag;
        let mut sent = 0;
        let (mut scratch, mut counted) = (Vec::new(), Vec::new());
        while sent < delivery.count && self.out.len() < self.bytes_max {
            let record = match records.next_record() {
                Ok(Some((_, record))) => record,
                Ok(None) => break,
                Err(error) => {
                    // The batch's checksum is valid: its producer wrote a malformed record.
                    let offset = delivery.first;
                    tracing::error!(%error, offset, "a delivered batch is malformed");
                    break;
                }
            };
            let message = Message::read(&record, &queue.name, &mut scratch);
            let delivery_tag = first_tag + u64::from(sent);
            let deliver = Method::BasicDeliver(method::BasicDeliver {
                consumer_tag: tag,
                delivery_tag,
                redelivered: delivery.redelivered,
                exchange: message.exchange,
                routing_key: message.routing_key,
            });
            push_method(&mut self.out.bytes, entry.channel, &deliver);
            let properties = delivery_properties(&message, delivery, queue, &mut counted);
            push_content(
                self.out,
                entry.channel,
                properties,
                message.body,
                self.frame_bytes_max,
                Some(batch.bytes()),
            );
            sent += 1;
        }
        let is_broken = sent == 0 && self.out.len() < self.bytes_max;
        channel.take_tags(sent);
        *self.messages += u64::from(sent);
        *self.redelivered += u64::from(sent) * u64::from(delivery.redelivered);
        if !entry.no_ack && sent > 0 {
            entry.unacked += u64::from(sent);
            *self.unacked += u64::from(sent);
            channel.unacked.push(UnackedRun {
                count: sent,
                ..UnackedRun::of(delivery, first_tag, self.slot, entry.incarnation)
            });
        }
        delivery.position = records.position();
        delivery.first += u64::from(sent);
        delivery.count -= sent;
        if is_broken {
            // The record can never be parsed, so it is dead-lettered.
            entry.consumer.reject_ranges(&[range_of(delivery)]);
        }
        if delivery.count == 0 || is_broken {
            *deliveries_written += 1;
        }
    }
}

/// The properties of a delivered message. A quorum queue adds `x-delivery-count`, the number of
/// earlier deliveries.
pub(super) fn delivery_properties<'m>(
    message: &Message<'m>,
    delivery: &Delivery,
    queue: &Queue,
    counted: &'m mut Vec<u8>,
) -> &'m [u8] {
    if !queue.counts_deliveries || delivery.attempts <= 1 {
        return message.properties;
    }
    let count = Value::I64(i64::from(delivery.attempts) - 1);
    let mut properties = Properties::read(message.properties).unwrap_or_default();
    let table = properties.headers.unwrap_or_default();
    let others = table
        .fields()
        .filter(|(name, _)| *name != "x-delivery-count");
    let fields: Vec<_> = others.chain([("x-delivery-count", count)]).collect();
    let bytes = table_bytes(&fields);
    properties.headers = Table::check(&bytes).ok();
    counted.clear();
    properties.write(&mut Writer::new(counted));
    counted
}
