//! A connection that publishes: what is due goes out in batches, up to a window.

use std::collections::VecDeque;
use std::time::Duration;

use rdkafka::metadata::Metadata;

use crate::book::Book;
use crate::clock::Clock;
use crate::driver::{DriverError, Produce, Stop};
use crate::feed::{Feed, Message, Next};
use crate::pace::{LOOK_NS, Patience, Room, UNANSWERED, answered};
use crate::plan::{Acks, Plan};
use crate::url::Url;
use crate::wire::WireError;

use super::codec::{ProduceRequest, answer, produced};
use super::{RawConnection, words};

/// More is not written before the system has taken what is.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Messages on their way that have no other bound.
const HELD_MESSAGES: usize = 100_000;
/// A batch is cut here: brokers refuse larger ones (`message.max.bytes` is 1 MiB).
const BATCH_BYTES_MAX: usize = 1_000_000;
/// Most bytes of an answer to a batch: a topic's name and some numbers.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Bytes of a message beside its value, at most.
const RECORD_EXTRA_BYTES: usize = 32;

/// A producer.
pub(crate) struct RawProducer {
    connection: RawConnection,
    topic: String,
    partitions: i32,
    /// The next batch's.
    partition: i32,
    acks: i16,
    batch_messages: usize,
    window: usize,
    /// Messages without an answer, and how many of them each request has.
    messages: VecDeque<Message>,
    requests: VecDeque<usize>,
}

impl RawProducer {
    /// Connects producer number `number`.
    pub(crate) fn new(
        url: &Url,
        plan: &Plan,
        number: u32,
        metadata: &Metadata,
    ) -> Result<RawProducer, DriverError> {
        if plan.keys > 0 {
            return Err(DriverError::Unsupported {
                what: "?client=raw has no keys; librdkafka has".to_owned(),
            });
        }
        let partitions = plan.partitions.max(1);
        let fitting = BATCH_BYTES_MAX / (plan.size_bytes + RECORD_EXTRA_BYTES);
        Ok(RawProducer {
            connection: RawConnection::open(url, plan, metadata)?,
            topic: plan.topic.clone(),
            partitions: i32::try_from(partitions).unwrap_or(i32::MAX),
            // Producers do not all begin with the same one.
            partition: i32::try_from(number % partitions).unwrap_or(0),
            acks: match plan.acks {
                Acks::None => 0,
                Acks::One => 1,
                Acks::All => -1,
            },
            batch_messages: (plan.batch_messages as usize).min(fitting).max(1),
            window: match plan.in_flight {
                0 => HELD_MESSAGES,
                window => window as usize,
            },
            messages: VecDeque::new(),
            requests: VecDeque::new(),
        })
    }

    fn work(&mut self, feed: &mut Feed, book: &mut Book, stop: &Stop) -> Result<(), WireError> {
        let clock = feed.clock();
        let bytes = feed.size_bytes();
        let mut work = Work {
            room: Room::new(feed.is_open()),
            is_done: false,
            patience: Patience::new(clock.now_ns()),
        };
        loop {
            work.is_done |= stop.is_set();
            let due_ns = self.publish(&mut work, feed, book);
            self.connection.wire.send()?;
            let now_ns = clock.now_ns();
            if self.acks == 0 && self.connection.wire.waiting_bytes() == 0 {
                // No answer will come: messages count as acknowledged once the system has them.
                work.patience.moved();
                self.requests.clear();
                for message in self.messages.drain(..) {
                    book.acked(&message, bytes, now_ns);
                }
            }
            if self.connection.wire.has_moved() {
                work.patience.moved();
            }
            let is_waiting = !self.messages.is_empty();
            if work.is_done && !is_waiting || work.patience.is_over(now_ns, is_waiting, stop) {
                return Ok(());
            }
            let most_ns = due_ns.saturating_sub(now_ns).min(LOOK_NS);
            if self.connection.exchange(Duration::from_nanos(most_ns))? {
                work.patience.moved();
                self.answers(book, bytes, clock.now_ns())?;
            }
        }
    }

    /// Writes the messages that are due and fit into the window. Returns when the next one is due.
    fn publish(&mut self, work: &mut Work, feed: &mut Feed, book: &mut Book) -> u64 {
        let clock = feed.clock();
        while !work.is_done {
            let room = if self.connection.wire.waiting_bytes() < WAITING_BYTES_MAX {
                self.window.saturating_sub(self.messages.len())
            } else {
                0
            };
            let now_ns = clock.now_ns();
            if room == 0 {
                work.room.full(now_ns);
                return u64::MAX;
            }
            work.room.look(now_ns);
            match feed.next(now_ns) {
                Next::Send(message) => {
                    let most = self.batch_messages.min(room);
                    if let Some(due_ns) = self.put(message, most, work, feed, book, clock) {
                        return due_ns;
                    }
                }
                Next::At(due_ns) => {
                    work.room.caught_up();
                    return due_ns;
                }
                Next::Done => work.is_done = true,
            }
        }
        u64::MAX
    }

    /// Writes a request with this message and those that are due with it, up to `most`. Returns
    /// when the next message is due if nothing more is now.
    fn put(
        &mut self,
        first: Message,
        most: usize,
        work: &mut Work,
        feed: &mut Feed,
        book: &mut Book,
        clock: Clock,
    ) -> Option<u64> {
        let number = self.connection.next_number();
        let out = self.connection.wire.out();
        let now_ms = clock.to_unix_ns(first.sent_ns) / 1_000_000;
        let place = (self.topic.as_str(), self.partition);
        let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
        let mut request = ProduceRequest::begin(out, number, self.acks, place, now_ms);
        let (mut message, mut due_ns) = (first, None);
        let bytes = feed.size_bytes();
        for count in 1.. {
            request.push(out, bytes, |out| feed.push(&message, out));
            book.sent(&message, work.room.waited(message.intended_ns));
            self.messages.push_back(message);
            let next = if count < most {
                feed.next(first.sent_ns)
            } else {
                Next::At(0)
            };
            match next {
                Next::Send(another) => {
                    message = another;
                    continue;
                }
                Next::At(0) => {}
                Next::At(at_ns) => {
                    work.room.caught_up();
                    due_ns = Some(at_ns);
                }
                Next::Done => work.is_done = true,
            }
            self.requests.push_back(count);
            break;
        }
        request.end(out);
        self.partition = (self.partition + 1) % self.partitions;
        due_ns
    }

    fn answers(&mut self, book: &mut Book, bytes: usize, now_ns: u64) -> Result<(), WireError> {
        while let Some((body, used)) = answer(self.connection.wire.received(), ANSWER_BYTES_MAX)? {
            let code = produced(body);
            self.connection.wire.take(used);
            let code = code.ok_or_else(|| {
                WireError::Protocol("it sent an answer that is cut short".to_owned())
            })?;
            let count = self.requests.pop_front().unwrap_or(0);
            for message in self.messages.drain(..count.min(self.messages.len())) {
                match code {
                    0 => book.acked(&message, bytes, now_ns),
                    code => book.failed(&message, &words(code), now_ns),
                }
            }
        }
        Ok(())
    }
}

/// Where a run stands.
struct Work {
    room: Room,
    /// Nothing more is to be sent.
    is_done: bool,
    patience: Patience,
}

impl Produce for RawProducer {
    fn run(&mut self, feed: &mut Feed, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let result = self.work(feed, book, stop);
        let now_ns = feed.clock().now_ns();
        let unanswered = self.messages.len();
        for message in self.messages.drain(..) {
            match result {
                Ok(()) => book.gave_up(&message, &UNANSWERED, now_ns),
                Err(_) => book.failed(&message, &UNANSWERED, now_ns),
            }
        }
        result.map_err(|error| self.connection.error(error))?;
        answered(unanswered == 0, &self.connection.url, stop)
    }
}
