//! A connection that publishes through lapin.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};

use crate::book::Book;
use crate::clock::Clock;
use crate::driver::{DriverError, Produce, Stop};
use crate::feed::{Feed, Next};
use crate::pace::{LOOK_NS, Patience, Room};
use crate::plan::{Acks, Plan};
use crate::slots::Slots;
use crate::url::Url;
use crate::wait::Waiter;

use super::HELD_MESSAGES;
use super::connection::{AmqpConnection, words};

/// Delivery modes of AMQP 0-9-1.
pub(super) const TRANSIENT: u8 = 1;
pub(super) const PERSISTENT: u8 = 2;

/// A producer.
pub(super) struct AmqpProducer {
    channel: Channel,
    /// Keeps it open.
    _connection: AmqpConnection,
    url: Url,
    queue: ShortString,
    properties: BasicProperties,
    slots: Slots,
    size_bytes: usize,
}

impl AmqpProducer {
    /// Connects, and switches confirms on if the plan wants them.
    pub(super) fn new(url: &Url, plan: &Plan, number: u32) -> Result<AmqpProducer, DriverError> {
        let connection = AmqpConnection::open(url, number)?;
        let channel = connection.channel()?;
        if plan.acks != Acks::None {
            let asked = channel.confirm_select(ConfirmSelectOptions::default());
            let answer = connection.wait(asked)?;
            answer.map_err(|error| url.refused(words(&error)))?;
        }
        let mode = match plan.acks {
            Acks::All => PERSISTENT,
            Acks::None | Acks::One => TRANSIENT,
        };
        let most = match plan.in_flight {
            0 => HELD_MESSAGES,
            most => most,
        };
        Ok(AmqpProducer {
            channel,
            _connection: connection,
            url: url.clone(),
            queue: plan.topic.as_str().into(),
            properties: BasicProperties::default().with_delivery_mode(mode),
            slots: Slots::new(most as usize),
            size_bytes: plan.size_bytes,
        })
    }

    /// Publishes one message. Once this is polled for the first time, lapin has it.
    fn publish(&self, value: Vec<u8>, slot: usize) -> impl Future<Output = Answer> + use<> {
        let (channel, queue) = (self.channel.clone(), self.queue.clone());
        let properties = self.properties.clone();
        async move {
            let options = BasicPublishOptions::default();
            let exchange = ShortString::default();
            let sent = channel.basic_publish(exchange, queue, options, &value, properties);
            let answer = match sent.await {
                Ok(confirm) => confirm.await,
                Err(error) => Err(error),
            };
            (slot, answer)
        }
    }

    /// Takes the answers that have come, and hands over what has not been.
    fn serve<F: Future<Output = Answer>>(
        &mut self,
        pending: &mut FuturesUnordered<F>,
        context: &mut Context<'_>,
        book: &mut Book,
        (clock, patience): (Clock, &mut Patience),
    ) -> Result<(), DriverError> {
        let mut now_ns = 0;
        while let Poll::Ready(Some((slot, answer))) = pending.poll_next_unpin(context) {
            let Some(message) = self.slots.take(slot) else {
                continue;
            };
            if now_ns == 0 {
                now_ns = clock.now_ns();
                patience.moved();
            }
            match answer {
                Ok(Confirmation::Nack(_)) => {
                    book.failed(
                        &message,
                        &"the broker has not taken it (basic.nack)",
                        now_ns,
                    );
                }
                Ok(_) => book.acked(&message, self.size_bytes, now_ns),
                Err(error) => {
                    let words = words(&error);
                    book.failed(&message, &words, now_ns);
                    return Err(self.url.gone(words));
                }
            }
        }
        Ok(())
    }

    fn publish_all(
        &mut self,
        feed: &mut Feed,
        book: &mut Book,
        stop: &Stop,
    ) -> Result<(), DriverError> {
        let clock = feed.clock();
        let waiter = Waiter::here();
        let waker = Waker::from(Arc::clone(&waiter));
        let mut context = Context::from_waker(&waker);
        let mut pending = FuturesUnordered::new();
        let (mut room, mut patience) = (Room::new(feed.is_open()), Patience::new(clock.now_ns()));
        let mut is_done = false;
        loop {
            is_done |= stop.is_set();
            let next = match self.slots.is_full() {
                _ if is_done => Next::Done,
                true => Next::At(u64::MAX),
                false => {
                    let now_ns = clock.now_ns();
                    room.look(now_ns);
                    feed.next(now_ns)
                }
            };
            let due_ns = match next {
                Next::Send(message) => {
                    let mut value = Vec::with_capacity(self.size_bytes);
                    feed.push(&message, &mut value);
                    let slot = self.slots.put(message);
                    pending.push(self.publish(value, slot));
                    book.sent(&message, room.waited(message.intended_ns));
                    let times = (clock, &mut patience);
                    self.serve(&mut pending, &mut context, book, times)?;
                    continue;
                }
                Next::At(due_ns) => due_ns,
                Next::Done => {
                    is_done = true;
                    u64::MAX
                }
            };
            let was_full = self.slots.is_full();
            let times = (clock, &mut patience);
            self.serve(&mut pending, &mut context, book, times)?;
            let now_ns = clock.now_ns();
            if was_full {
                room.full(now_ns)
            } else {
                room.caught_up()
            }
            let is_waiting = !self.slots.is_empty();
            if is_done && !is_waiting {
                return Ok(());
            }
            if patience.is_over(now_ns, is_waiting, stop) {
                return Ok(());
            }
            let has_room = was_full && !self.slots.is_full() && !is_done;
            let left_ns = due_ns.saturating_sub(now_ns).min(LOOK_NS);
            if left_ns > 0 && !has_room {
                waiter.wait(Duration::from_nanos(left_ns));
            }
        }
    }
}

/// The slot of a message, and what became of it.
type Answer = (usize, lapin::Result<Confirmation>);

impl Produce for AmqpProducer {
    fn run(&mut self, feed: &mut Feed, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let result = self.publish_all(feed, book, stop);
        let now_ns = feed.clock().now_ns();
        self.slots.settle(book, &self.url, stop, (result, now_ns))
    }
}
