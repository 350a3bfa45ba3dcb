//! A connection that publishes: what is due goes out in batches, up to a window.

use crate::book::Book;
use crate::clock::Clock;
use crate::driver::{DriverError, Produce, Stop};
use crate::feed::{Feed, Next};
use crate::flights::Flights;
use crate::nsq::codec::{Frame, HEARTBEAT, Publish, command};
use crate::nsq::wire::{Wire, WireError};
use crate::pace::{LOOK_NS, Patience, Room, answered};
use crate::url::Url;

/// More is not written before the system has taken what is.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// A publish is cut here: brokers refuse larger ones (nsqd's `max-body-size` is 5 MiB).
const BODY_BYTES_MAX: usize = 4 << 20;

/// A connection that publishes.
pub(super) struct Producer {
    pub(super) wire: Wire,
    pub(super) url: Url,
    pub(super) topic: String,
    pub(super) batch_messages: u32,
    /// Most messages that are not answered.
    pub(super) window: u32,
}

impl Produce for Producer {
    fn run(&mut self, feed: &mut Feed, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let mut work = Work {
            clock: feed.clock(),
            flights: Flights::default(),
            is_done: false,
            patience: Patience::new(feed.clock().now_ns()),
            refused: None,
            room: Room::new(feed.is_open()),
        };
        let url = self.url.clone();
        let result = self.work(&mut work, feed, book, stop);
        let now_ns = work.clock.now_ns();
        let unanswered = work.flights.give_up(book, result.is_ok(), now_ns);
        result.map_err(|error| match work.refused {
            // A broker that refuses closes the connection; its words say more.
            Some(refused) => url.refused(refused),
            None => url.gone(error),
        })?;
        answered(unanswered == 0, &url, stop)
    }
}

/// Where a run stands.
struct Work {
    clock: Clock,
    flights: Flights,
    /// Nothing more is to be sent.
    is_done: bool,
    patience: Patience,
    /// The words of the last refusal.
    refused: Option<String>,
    room: Room,
}

impl Producer {
    fn work(
        &mut self,
        work: &mut Work,
        feed: &mut Feed,
        book: &mut Book,
        stop: &Stop,
    ) -> Result<(), WireError> {
        loop {
            let now_ns = work.clock.now_ns();
            let due_ns = if work.is_done {
                u64::MAX
            } else {
                self.publish(work, feed, book, now_ns)
            };
            work.is_done |= stop.is_set();
            self.wire.send()?;
            if self.wire.has_moved() {
                work.patience.moved();
            }
            let is_waiting = !work.flights.is_empty();
            if work.is_done && !is_waiting || work.patience.is_over(now_ns, is_waiting, stop) {
                return Ok(());
            }
            let most_ns = match due_ns {
                u64::MAX => LOOK_NS,
                // Sending has taken time.
                due_ns => due_ns.saturating_sub(work.clock.now_ns()).min(LOOK_NS),
            };
            if self.wire.wait(most_ns)? && self.wire.receive()? {
                self.answers(work, book, feed.size_bytes())?;
            }
        }
    }

    /// Writes the messages that are due and fit into the window. Returns when the next one is due.
    fn publish(
        &mut self,
        work: &mut Work,
        feed: &mut Feed,
        book: &mut Book,
        mut now_ns: u64,
    ) -> u64 {
        let bytes = feed.size_bytes();
        let fitting = u32::try_from(BODY_BYTES_MAX / (bytes + 4)).unwrap_or(u32::MAX);
        let batch = self.batch_messages.min(fitting).max(1);
        loop {
            let room = if self.wire.waiting_bytes() < WAITING_BYTES_MAX {
                self.window.saturating_sub(work.flights.len())
            } else {
                0
            };
            if room == 0 {
                work.room.full(work.clock.now_ns());
                return u64::MAX;
            }
            if work.room.is_behind() {
                now_ns = work.clock.now_ns();
            }
            work.room.look(now_ns);
            let mut message = match feed.next(now_ns) {
                Next::Send(message) => message,
                Next::At(due_ns) => {
                    work.room.caught_up();
                    return due_ns;
                }
                Next::Done => {
                    work.is_done = true;
                    return u64::MAX;
                }
            };
            let most = batch.min(room);
            let out = self.wire.out();
            let mut publish = Publish::begin(out, &self.topic, most > 1);
            let mut due_ns = 0;
            for count in 1.. {
                publish.message(out, bytes);
                feed.push(&message, out);
                let waited = work.room.waited(message.intended_ns);
                book.sent(&message, waited);
                work.flights.push(&message);
                if count == most {
                    break;
                }
                match feed.next(now_ns) {
                    Next::Send(next) => message = next,
                    Next::At(at_ns) => {
                        work.room.caught_up();
                        due_ns = at_ns;
                        break;
                    }
                    Next::Done => {
                        work.is_done = true;
                        due_ns = u64::MAX;
                        break;
                    }
                }
            }
            publish.end(out);
            work.flights.end_request();
            if due_ns > 0 {
                return due_ns;
            }
        }
    }

    /// Writes down what has come.
    fn answers(&mut self, work: &mut Work, book: &mut Book, bytes: usize) -> Result<(), WireError> {
        let now_ns = work.clock.now_ns();
        self.wire.frames(|frame, out| match frame {
            Frame::Response(HEARTBEAT) => command(out, &["NOP"]),
            Frame::Response(_) => {
                work.patience.moved();
                work.flights.acked(book, bytes, now_ns);
            }
            Frame::Error(words) => {
                work.patience.moved();
                let words = String::from_utf8_lossy(words).into_owned();
                work.flights.failed(book, &words, now_ns);
                work.refused = Some(words);
            }
            // Nothing was subscribed.
            Frame::Message { .. } => {}
        })
    }
}
