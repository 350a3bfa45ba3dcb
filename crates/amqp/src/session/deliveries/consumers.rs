//! `basic.consume`, `basic.cancel`, `basic.qos` and `basic.get`.

use std::sync::Arc;
use std::task::{Context, Poll};

use cloverleaf_broker::{ConsumerOptions, Delivery, MessageRange, SharedWindow};
use cloverleaf_log::RecordCursor;
use uuid::Uuid;

use super::settlement::Run;
use super::slots::Consuming;
use super::writer::properties_of;
use crate::exception::{Exception, ReplyCode};
use crate::host::Queue;
use crate::message::Message;
use crate::queue_arguments::consumer_priority;
use crate::session::Session;
use crate::session::frames::{push_content, push_method};
use crate::session::publishes::batches::REPLY_TO;
use crate::wire::{Method, method};

/// Most consumers of a connection, those that were cancelled and hold deliveries among them.
const CONSUMERS_MAX: usize = 65_536;
/// Queues of which `basic.get` keeps what it takes from.
const GETTERS_MAX: usize = 16;

/// A `basic.get` that waits for the disk.
#[derive(Clone, Copy, Debug)]
pub(in crate::session) struct PendingGet {
    channel: u16,
    slot: u32,
    no_ack: bool,
}

impl Session {
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
                // Those that were cancelled too, as long as deliveries of theirs are unsettled.
                for slot in &channel.slots {
                    if let Some(consuming) = self.consumers.get_mut(*slot)
                        && !consuming.tag.is_empty()
                    {
                        let shared = Some(Arc::clone(&shared));
                        consuming.consumer.set_shared_window(shared);
                    }
                }
            }
            (false, shared) => {
                // As in RabbitMQ, a limit per consumer takes that of the channel away.
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
        let consumers_max = self.options.consumers_max;
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
            REPLY_TO => self.reply_queue(number, consume.no_ack)?,
            name => {
                let name = self.queue_name(number, name)?;
                self.host.queue(self.owner, &name)?
            }
        };
        self.meter.called(1);
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
            connection: self.meter.probe.id(),
            shared_window: channel.window.clone(),
            auto_ack: consume.no_ack,
            ..ConsumerOptions::default()
        };
        let consumer = self.host.consume(self.owner, &queue, options)?;
        let prefetch = channel.prefetch;
        if !consume.no_wait {
            let consumer_tag = &tag;
            let ok = Method::BasicConsumeOk(method::BasicConsumeOk { consumer_tag });
            push_method(&mut self.replies.bytes, number, &ok);
        }
        let window = if consume.no_ack {
            u32::MAX
        } else {
            window(prefetch)
        };
        let slot = self.consumers.insert(|signal, incarnation| Consuming {
            incarnation,
            channel: number,
            tag: tag.clone(),
            queue,
            consumer,
            signal,
            no_ack: consume.no_ack,
            is_retired: false,
            runs: Vec::new(),
            runs_done: 0,
            unacked: 0,
            acks: Vec::new(),
            last_ack: None,
            prefetch,
        });
        channel.consumers.insert(tag, slot);
        channel.slots.insert(slot);
        if let Some(consuming) = self.consumers.get_mut(slot) {
            consuming.consumer.set_window(window);
            // Its first deliveries may be there already.
            consuming.signal.wake();
        }
        self.tell_credit();
        Ok(())
    }

    /// The queue for the answers of direct reply-to.
    fn reply_queue(&mut self, number: u16, no_ack: bool) -> Result<Arc<Queue>, Exception> {
        let Some(channel) = self.channels.get_mut(&number) else {
            return Err(Exception::precondition("no such channel"));
        };
        if !no_ack {
            return Err(Exception::precondition("reply consumer cannot acknowledge"));
        }
        if channel.reply_queue.is_some() {
            return Err(Exception::precondition("reply consumer already set"));
        }
        let queue = self.host.reply_queue(self.owner)?;
        channel.reply_queue = Some(Arc::clone(&queue.name));
        Ok(queue)
    }

    /// `basic.cancel`: what was delivered can still be acknowledged.
    pub(in crate::session) fn cancel(&mut self, number: u16, tag: &str) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        let Some(slot) = channel.consumers.remove(tag) else {
            return;
        };
        self.settle_acks();
        self.meter.called(1);
        if self.consumers.get_mut(slot).is_some_and(|it| it.no_ack) {
            self.write_rest(slot);
        }
        let queue = self.retire(slot);
        if let Some(queue) = queue {
            if let Some(channel) = self.channels.get_mut(&number)
                && channel.reply_queue.as_ref() == Some(&queue.name)
            {
                channel.reply_queue = None;
            }
            self.host.consumer_left(&queue);
        }
        self.remove_if_done(slot);
        self.tell_credit();
    }

    /// Ends the deliveries to a consumer. Messages that the client has not seen go back.
    fn retire(&mut self, slot: u32) -> Option<Arc<Queue>> {
        let consuming = self.consumers.retire(slot)?;
        let unseen = consuming.runs.drain(consuming.runs_done..);
        let unseen: Vec<MessageRange> = unseen.map(|run| range_of(&run)).collect();
        consuming.runs.clear();
        consuming.runs_done = 0;
        consuming.consumer.retire_unseen(&unseen);
        Some(Arc::clone(&consuming.queue))
    }

    /// Frees the slot of a cancelled consumer that has nothing unacknowledged.
    pub(in crate::session) fn remove_if_done(&mut self, slot: u32) {
        let is_done = self.consumers.get_mut(slot).is_some_and(|consuming| {
            consuming.is_retired && consuming.unacked == 0 && consuming.acks.is_empty()
        });
        if is_done {
            self.remove_slot(slot);
        }
    }

    /// Frees a slot.
    pub(in crate::session) fn remove_slot(&mut self, slot: u32) -> Option<Consuming> {
        let consuming = self.consumers.remove(slot)?;
        if let Some(channel) = self.channels.get_mut(&consuming.channel) {
            channel.slots.remove(&slot);
        }
        Some(consuming)
    }

    /// Ends all consumers of a channel. Unacknowledged messages go back.
    pub(in crate::session) fn release_consumers(&mut self, number: u16) {
        self.settle_acks();
        let channel = self.channels.get_mut(&number);
        let slots = channel.map(|channel| std::mem::take(&mut channel.slots));
        for slot in slots.unwrap_or_default() {
            if let Some(consuming) = self.consumers.remove(slot) {
                let (queue, counts) = (consuming.queue, !consuming.is_retired);
                self.meter.called(1);
                drop(consuming.consumer);
                if counts && !consuming.tag.is_empty() {
                    self.host.consumer_left(&queue);
                }
            }
        }
        self.tell_credit();
    }

    /// `basic.get`.
    pub(in crate::session) fn get(
        &mut self,
        number: u16,
        get: &method::BasicGet<'_>,
    ) -> Result<(), Exception> {
        let name = self.queue_name(number, get.queue)?;
        let queue = self.host.queue(self.owner, &name)?;
        self.settle_acks();
        self.meter.called(1);
        self.host.touch(&queue);
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(());
        };
        let known = channel.getters.get(&queue.name).copied();
        // A queue of that name may be another one by now.
        let is_same = |slot: &u32| {
            let consuming = self.consumers.get_mut(*slot);
            consuming.is_some_and(|consuming| Arc::ptr_eq(&consuming.queue, &queue))
        };
        let slot = match known.filter(is_same) {
            Some(slot) => slot,
            None => self.add_getter(number, &queue)?,
        };
        let pending = PendingGet {
            channel: number,
            slot,
            no_ack: get.no_ack,
        };
        self.pending_get = Some(pending);
        self.take_one(&mut Context::from_waker(std::task::Waker::noop()));
        Ok(())
    }

    fn add_getter(&mut self, number: u16, queue: &Arc<Queue>) -> Result<u32, Exception> {
        let options = ConsumerOptions {
            pull: true,
            connection: self.meter.probe.id(),
            ..ConsumerOptions::default()
        };
        let consumer = self.host.consume(self.owner, queue, options)?;
        let slot = self.consumers.insert(|signal, incarnation| Consuming {
            incarnation,
            channel: number,
            tag: String::new(),
            queue: Arc::clone(queue),
            consumer,
            signal,
            no_ack: false,
            is_retired: false,
            runs: Vec::new(),
            runs_done: 0,
            unacked: 0,
            acks: Vec::new(),
            last_ack: None,
            prefetch: 0,
        });
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(slot);
        };
        channel.slots.insert(slot);
        let before = channel.getters.insert(Arc::clone(&queue.name), slot);
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

    /// Goes on with a `basic.get`.
    pub(in crate::session) fn take_one(&mut self, cx: &mut Context<'_>) {
        while self.take_next(cx) {}
    }

    /// Takes a message for a `basic.get`; `true`: it cannot be read, and counts as dead.
    fn take_next(&mut self, cx: &mut Context<'_>) -> bool {
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
            push_method(&mut self.replies.bytes, get.channel, &empty);
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
        push_method(&mut self.replies.bytes, get.channel, &ok);
        let mut counted = Vec::new();
        let properties = properties_of(&message, &delivery, &consuming.queue, &mut counted);
        let frame_bytes_max = self.negotiated.frame_bytes_max;
        push_content(
            &mut self.replies,
            get.channel,
            properties,
            message.body,
            frame_bytes_max,
            Some(delivery.batch.bytes()),
        );
        self.meter.probe.delivered(1, delivery.redelivered.into());
        if get.no_ack {
            consuming
                .consumer
                .ack_ranges(&[range_of(&delivery)], |_, _| {})
        } else {
            consuming.unacked += 1;
            let run = run_of(&delivery, tag, get.slot, consuming.incarnation);
            channel.unacked.push(run);
            self.consumers.delivered(1);
        }
        false
    }

    /// Tells the telemetry how much may be on its way to this client.
    fn tell_credit(&self) {
        self.meter.probe.credit_granted(self.consumers.credit());
        self.meter
            .probe
            .credit_used(self.consumers.unacked(), self.now.us);
    }

    /// Tells the telemetry how much is with this client, after a change at one consumer.
    pub(in crate::session) fn tell_in_flight(&mut self, slot: u32) {
        let now_us = self.now.us;
        self.meter
            .probe
            .credit_used(self.consumers.unacked(), now_us);
        if self.consumers.is_short(slot, now_us) {
            self.meter.probe.no_credit_begins(now_us)
        } else {
            self.meter.probe.no_credit_ends(now_us)
        }
    }
}

/// A prefetch as a window: 0 is no limit.
fn window(prefetch: u16) -> u32 {
    match prefetch {
        0 => u32::MAX,
        prefetch => prefetch.into(),
    }
}

fn not_allowed(explanation: String) -> Exception {
    Exception::new(ReplyCode::NotAllowed, explanation)
}

pub(in crate::session) fn range_of(delivery: &Delivery) -> MessageRange {
    MessageRange {
        partition: delivery.partition,
        first: delivery.first,
        count: delivery.count,
    }
}

pub(in crate::session) fn run_of(
    delivery: &Delivery,
    first_tag: u64,
    slot: u32,
    incarnation: u64,
) -> Run {
    Run {
        first_tag,
        count: delivery.count,
        slot,
        incarnation,
        partition: delivery.partition,
        first: delivery.first,
    }
}
