//! A connection that publishes: what is due goes out in batches, up to a window.

use crate::book::Book;
use crate::clock::Clock;
use crate::driver::{DriverError, Produce, Stop};
use crate::feed::{Feed, Next};
use crate::flights::Flights;
use crate::nsq::codec::{Frame, HEARTBEAT, Publish, command};
use crate::nsq::wire::{Wire, WireError};
use crate::url::Url;

/// How often a producer that has nothing to do looks whether it is stopped.
const LOOK_NS: u64 = 50_000_000;
/// An answer that has not come for so long once everything is sent does not come.
const PATIENCE_NS: u64 = 30_000_000_000;
/// The same after the user has said that it is enough.
const STOPPED_PATIENCE_NS: u64 = 2_000_000_000;
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
            answered_ns: 0,
            refused: None,
            free_since_ns: 0,
            was_full: false,
        };
        let url = self.url.clone();
        let result = self.work(&mut work, feed, book, stop);
        let now_ns = work.clock.now_ns();
        let unanswered = work.flights.give_up(book, "it was not answered", now_ns);
        result.map_err(|error| match work.refused {
            // A broker that refuses closes the connection; its words say more.
            Some(refused) => url.refused(refused),
            None => url.gone(error),
        })?;
        match unanswered {
            0 => Ok(()),
            _ if stop.is_set() => Ok(()),
            _ => Err(url.gone("answers did not come within 30 seconds")),
        }
    }
}

/// Where a run stands.
struct Work {
    clock: Clock,
    flights: Flights,
    /// Nothing more is to be sent.
    is_done: bool,
    /// When the last answer came, or the last message was sent.
    answered_ns: u64,
    /// The words of the last refusal.
    refused: Option<String>,
    /// Since when there is room; what was due before that has waited for the broker.
    free_since_ns: u64,
    was_full: bool,
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
            let due_ns = match work.is_done {
                true => u64::MAX,
                false => self.publish(work, feed, book, now_ns),
            };
            work.is_done |= stop.is_set();
            self.wire.send()?;
            if work.is_done {
                let patience_ns = match stop.is_set() {
                    true => STOPPED_PATIENCE_NS,
                    false => PATIENCE_NS,
                };
                let is_over = now_ns.saturating_sub(work.answered_ns) > patience_ns;
                if work.flights.is_empty() || is_over {
                    return Ok(());
                }
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

    /// Writes what is due and has room. Returns when the next message is due.
    fn publish(&mut self, work: &mut Work, feed: &mut Feed, book: &mut Book, now_ns: u64) -> u64 {
        let bytes = feed.size_bytes();
        let fitting = u32::try_from(BODY_BYTES_MAX / (bytes + 4)).unwrap_or(u32::MAX);
        let batch = self.batch_messages.min(fitting).max(1);
        loop {
            let room = match self.wire.waiting_bytes() < WAITING_BYTES_MAX {
                true => self.window.saturating_sub(work.flights.len()),
                false => 0,
            };
            if room == 0 {
                work.was_full = true;
                return u64::MAX;
            }
            if std::mem::take(&mut work.was_full) {
                work.free_since_ns = now_ns;
            }
            let mut message = match feed.next(now_ns) {
                Next::Send(message) => message,
                Next::At(due_ns) => return due_ns,
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
                let waited = message.intended_ns < work.free_since_ns;
                book.sent(&message, waited);
                work.flights.push(&message);
                if count == most {
                    break;
                }
                match feed.next(now_ns) {
                    Next::Send(next) => message = next,
                    Next::At(at_ns) => {
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
            work.answered_ns = now_ns;
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
                work.answered_ns = now_ns;
                work.flights.acked(book, bytes, now_ns);
            }
            Frame::Error(words) => {
                work.answered_ns = now_ns;
                let words = String::from_utf8_lossy(words).into_owned();
                work.flights.failed(book, &words, now_ns);
                work.refused = Some(words);
            }
            // Nothing was subscribed.
            Frame::Message { .. } => {}
        })
    }
}
