//! A connection that publishes: what is due goes out as one write, up to the window.

use std::collections::VecDeque;
use std::time::Duration;

use crate::book::Book;
use crate::driver::{DriverError, Produce, Stop};
use crate::feed::{Feed, Message, Next};
use crate::pace::{LOOK_NS, Patience, Room, UNANSWERED, answered};
use crate::plan::{Acks, Plan};
use crate::url::Url;
use crate::wire::WireError;

use super::codec::{self, FRAME_EXTRA_BYTES, Frame, publish_head, put_body};
use super::{RawConnection, closing};
use crate::amqp::producer::{PERSISTENT, TRANSIENT};

/// More is not written before the system has taken what is.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Messages on their way that have no other bound.
const HELD_MESSAGES: usize = 100_000;

/// A producer.
pub(crate) struct RawProducer {
    connection: RawConnection,
    /// `basic.publish` and the content header.
    head: Vec<u8>,
    /// Most messages that are not confirmed.
    window: usize,
    is_confirmed: bool,
    /// A message that does not fit into one frame.
    body: Vec<u8>,
    unconfirmed: Unconfirmed,
}

impl RawProducer {
    /// Connects, and switches confirms on if the plan wants them.
    pub(crate) fn new(url: &Url, plan: &Plan, number: u32) -> Result<RawProducer, DriverError> {
        let mut connection = RawConnection::open(url, plan, number)?;
        let is_confirmed = plan.acks != Acks::None;
        if is_confirmed {
            let (confirm, confirm_ok) = (codec::CONFIRM, codec::CONFIRM_OK);
            connection.ask(codec::CHANNEL, confirm, confirm_ok, |out| out.push(0))?;
        }
        let mode = match plan.acks {
            Acks::All => PERSISTENT,
            Acks::None | Acks::One => TRANSIENT,
        };
        Ok(RawProducer {
            connection,
            head: publish_head(&plan.topic, plan.size_bytes, mode),
            window: match plan.in_flight {
                0 => HELD_MESSAGES,
                window => window as usize,
            },
            is_confirmed,
            body: Vec::new(),
            unconfirmed: Unconfirmed::default(),
        })
    }

    fn work(&mut self, feed: &mut Feed, book: &mut Book, stop: &Stop) -> Result<(), WireError> {
        let clock = feed.clock();
        let bytes = feed.size_bytes();
        let mut room = Room::new(feed.is_open());
        let (mut is_done, mut patience) = (false, Patience::new(clock.now_ns()));
        loop {
            is_done |= stop.is_set();
            let mut due_ns = u64::MAX;
            while !is_done {
                let has_room = self.unconfirmed.len() < self.window
                    && self.connection.wire.waiting_bytes() < WAITING_BYTES_MAX;
                let now_ns = clock.now_ns();
                if !has_room {
                    room.full(now_ns);
                    break;
                }
                room.look(now_ns);
                match feed.next(now_ns) {
                    Next::Send(message) => {
                        self.put(&message, feed);
                        book.sent(&message, room.waited(message.intended_ns));
                        self.unconfirmed.push(message);
                    }
                    Next::At(at_ns) => {
                        room.caught_up();
                        due_ns = at_ns;
                        break;
                    }
                    Next::Done => is_done = true,
                }
            }
            self.connection.wire.send()?;
            let now_ns = clock.now_ns();
            if !self.is_confirmed && self.connection.wire.waiting_bytes() == 0 {
                // No confirm will come: messages count as acknowledged once the system has them.
                patience.moved();
                let all = self.unconfirmed.len() as u64;
                self.unconfirmed
                    .settle_first(all, |message| book.acked(&message, bytes, now_ns));
            }
            if self.connection.wire.has_moved() {
                patience.moved();
            }
            let is_waiting = !self.unconfirmed.is_empty();
            if is_done && !is_waiting || patience.is_over(now_ns, is_waiting, stop) {
                return Ok(());
            }
            let most_ns = due_ns.saturating_sub(now_ns).min(LOOK_NS);
            if self.connection.exchange(Duration::from_nanos(most_ns))? {
                patience.moved();
                self.answers(book, bytes, clock.now_ns())?;
            }
        }
    }

    /// Writes one message.
    #[inline]
    fn put(&mut self, message: &Message, feed: &mut Feed) {
        let out = self.connection.wire.out();
        out.extend_from_slice(&self.head);
        let most = self.connection.frame_bytes_max - FRAME_EXTRA_BYTES;
        let out = self.connection.wire.out();
        if feed.size_bytes() <= most {
            put_body(out, |out| feed.push(message, out));
            return;
        }
        self.body.clear();
        feed.push(message, &mut self.body);
        for part in self.body.chunks(most) {
            put_body(out, |out| out.extend_from_slice(part));
        }
    }

    fn answers(&mut self, book: &mut Book, bytes: usize, now_ns: u64) -> Result<(), WireError> {
        let unconfirmed = &mut self.unconfirmed;
        self.connection.read(|frame| match frame {
            Frame::Answer {
                tag,
                is_multiple,
                is_ack,
            } => {
                unconfirmed.answer(tag, is_multiple, |message| {
                    if is_ack {
                        book.acked(&message, bytes, now_ns)
                    } else {
                        let words = "the broker has not taken it (basic.nack)";
                        book.failed(&message, &words, now_ns);
                    }
                });
                Ok(())
            }
            frame => closing(&frame),
        })
    }
}

impl Produce for RawProducer {
    fn run(&mut self, feed: &mut Feed, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let result = self.work(feed, book, stop);
        let now_ns = feed.clock().now_ns();
        let unanswered = self.unconfirmed.len();
        self.unconfirmed
            .settle_first(u64::MAX, |message| match result {
                Ok(()) => book.gave_up(&message, &UNANSWERED, now_ns),
                Err(_) => book.failed(&message, &UNANSWERED, now_ns),
            });
        result.map_err(|error| self.connection.error(error))?;
        answered(unanswered == 0, &self.connection.url, stop)
    }
}

/// Messages in the order in which they were published. The broker numbers them from 1, and may
/// answer them in any order.
#[derive(Debug, Default)]
struct Unconfirmed {
    messages: VecDeque<Option<Message>>,
    /// The number before that of the first one.
    before: u64,
    open: usize,
}

impl Unconfirmed {
    #[inline]
    fn len(&self) -> usize {
        self.open
    }

    fn is_empty(&self) -> bool {
        self.open == 0
    }

    #[inline]
    fn push(&mut self, message: Message) {
        self.messages.push_back(Some(message));
        self.open += 1;
    }

    /// The broker has answered number `tag`, or all up to it.
    #[inline]
    fn answer(&mut self, tag: u64, is_multiple: bool, mut each: impl FnMut(Message)) {
        // 0 means all.
        if is_multiple {
            let count = match tag {
                0 => u64::MAX,
                tag => tag.saturating_sub(self.before),
            };
            return self.settle_first(count, each);
        }
        let place = tag.checked_sub(self.before + 1);
        let place = place.and_then(|place| usize::try_from(place).ok());
        let message = place.and_then(|place| self.messages.get_mut(place)?.take());
        if let Some(message) = message {
            self.open -= 1;
            each(message);
        }
        while let Some(None) = self.messages.front() {
            self.messages.pop_front();
            self.before += 1;
        }
    }

    /// Settles the first so many.
    fn settle_first(&mut self, count: u64, mut each: impl FnMut(Message)) {
        for _ in 0..count {
            let Some(message) = self.messages.pop_front() else {
                return;
            };
            self.before += 1;
            if let Some(message) = message {
                self.open -= 1;
                each(message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_any_order() {
        let mut unconfirmed = Unconfirmed::default();
        for sequence in 0..6 {
            unconfirmed.push(Message {
                sequence,
                intended_ns: 0,
                sent_ns: 0,
                key: None,
                is_measured: true,
            });
        }
        let mut answered = Vec::new();
        for (tag, is_multiple) in [(3, false), (2, true), (3, false), (9, false), (5, false)] {
            unconfirmed.answer(tag, is_multiple, |message| answered.push(message.sequence));
        }
        assert_eq!(answered, [2, 0, 1, 4]);
        assert_eq!((unconfirmed.len(), unconfirmed.before), (2, 3));
        unconfirmed.answer(0, true, |message| answered.push(message.sequence));
        assert_eq!(answered[4..], [3, 5]);
        assert!(unconfirmed.is_empty());
        unconfirmed.answer(6, true, |_| unreachable!("it was answered"));
    }
}
