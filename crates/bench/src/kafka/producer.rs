//! A connection that publishes through librdkafka.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode;

use crate::book::Book;
use crate::clock::Clock;
use crate::driver::{DriverError, Produce, Stop};
use crate::feed::{Feed, Message, Next};
use crate::pace::{LOOK_NS, Patience, Room};
use crate::plan::Plan;
use crate::slots::Slots;
use crate::url::Url;
use crate::wait::Waiter;

use super::ends::Ends;
use super::native::{NativeProducer, News};
use super::{ANSWER, HELD_MESSAGES};

/// Messages that are sent before reports are looked for.
const LOOK_AFTER: u32 = 32;
/// Messages without a schedule that are sent one right after the other have the time of the first,
/// because asking for it each time costs. Their latency is too large by what eight take to send, a
/// few microseconds.
const SAME_TIME: u32 = 8;
/// Larger messages take longer to be copied, and asking costs next to nothing beside that.
const SAME_TIME_BYTES_MAX: usize = 4 << 10;
/// How long to wait at most before stop is looked at.
const WAIT_MAX: Duration = Duration::from_nanos(LOOK_NS);

/// A producer.
pub(super) struct KafkaProducer {
    native: Arc<NativeProducer>,
    url: Url,
    slots: Slots,
    size_bytes: usize,
    ends: Ends,
}

impl KafkaProducer {
    /// Makes one, and waits until it knows the topic.
    pub(super) fn new(
        url: &Url,
        config: &ClientConfig,
        plan: &Plan,
    ) -> Result<KafkaProducer, DriverError> {
        let native =
            NativeProducer::new(config, &plan.topic).map_err(|error| url.refused(error))?;
        let known = native.client().fetch_metadata(Some(&plan.topic), ANSWER);
        known.map_err(|error| url.unreachable(error))?;
        let most = match plan.in_flight {
            0 => HELD_MESSAGES,
            most => most,
        };
        Ok(KafkaProducer {
            native: Arc::new(native),
            url: url.clone(),
            slots: Slots::new(most as usize),
            size_bytes: plan.size_bytes,
            ends: Ends::default(),
        })
    }

    /// Takes the reports that have come.
    fn serve(&mut self, book: &mut Book, pace: &mut Pace) -> Result<(), DriverError> {
        let (slots, ends, clock) = (&mut self.slots, &mut self.ends, pace.clock);
        let (size_bytes, mut now_ns, mut has_answer) = (self.size_bytes, 0, false);
        self.native.serve(|news| match news {
            News::Report(slot, error) => {
                let Some(message) = slots.take(slot) else {
                    return;
                };
                if now_ns == 0 {
                    now_ns = clock.now_ns();
                }
                match error {
                    None => {
                        has_answer = true;
                        book.acked(&message, size_bytes, now_ns);
                    }
                    Some(code) => {
                        // The broker did not answer messages that the library itself has given up.
                        if code == RDKafkaErrorCode::MessageTimedOut {
                            book.gave_up(&message, &code, now_ns)
                        } else {
                            book.failed(&message, &code, now_ns)
                        }
                        has_answer |= code != RDKafkaErrorCode::MessageTimedOut;
                    }
                }
            }
            News::Trouble(trouble) => ends.hear(trouble),
        });
        if has_answer {
            pace.patience.moved();
        }
        self.ends.check(&self.url)
    }

    /// Hands a message to the library.
    fn send(&mut self, message: &Message, value: &[u8]) -> Result<(), RDKafkaErrorCode> {
        let key = message.key.map(u64::to_be_bytes);
        let slot = self.slots.put(*message);
        let sent = self
            .native
            .send(value, key.as_ref().map(|key| &key[..]), slot);
        if sent.is_err() {
            self.slots.take(slot);
        }
        sent
    }

    fn publish(
        &mut self,
        feed: &mut Feed,
        book: &mut Book,
        stop: &Stop,
        pace: &mut Pace,
    ) -> Result<(), DriverError> {
        let clock = feed.clock();
        let mut value = Vec::with_capacity(feed.size_bytes());
        let same_time = match feed.size_bytes() <= SAME_TIME_BYTES_MAX {
            true if !feed.is_open() => SAME_TIME,
            _ => 1,
        };
        let (mut unlooked, mut now_ns) = (0, 0);
        while !stop.is_set() {
            if self.slots.is_full() || unlooked >= LOOK_AFTER {
                unlooked = 0;
                self.serve(book, pace)?;
                if self.slots.is_full() {
                    pace.room.full(clock.now_ns());
                    if self.wait(WAIT_MAX, stop, pace) {
                        return Ok(());
                    }
                    continue;
                }
            }
            if unlooked.is_multiple_of(same_time) {
                now_ns = clock.now_ns();
                pace.room.look(now_ns);
            }
            match feed.next(now_ns) {
                Next::Send(message) => {
                    if !self.put(message, &mut value, (feed, book), stop, pace)? {
                        // The clock is read again: the time that this message has waited is not the
                        // next one's.
                        unlooked = 0;
                        continue;
                    }
                    unlooked += 1;
                }
                Next::At(due_ns) => {
                    unlooked = 0;
                    pace.room.caught_up();
                    self.serve(book, pace)?;
                    let left_ns = due_ns.saturating_sub(clock.now_ns());
                    if left_ns > 0 && self.wait(Duration::from_nanos(left_ns), stop, pace) {
                        return Ok(());
                    }
                }
                Next::Done => break,
            }
        }
        self.serve(book, pace)?;
        while !self.slots.is_empty() && !self.wait(WAIT_MAX, stop, pace) {
            self.serve(book, pace)?;
        }
        Ok(())
    }

    /// Sends a message, as soon as the library has room for it. `false`: it had none at once.
    #[inline]
    fn put(
        &mut self,
        mut message: Message,
        value: &mut Vec<u8>,
        (feed, book): (&mut Feed, &mut Book),
        stop: &Stop,
        pace: &mut Pace,
    ) -> Result<bool, DriverError> {
        let mut had_room = true;
        let refused = loop {
            value.clear();
            feed.push(&message, value);
            match self.send(&message, value) {
                Ok(()) => break None,
                Err(RDKafkaErrorCode::QueueFull) if !stop.is_set() => {
                    had_room = false;
                    pace.room.full(pace.clock.now_ns());
                    if self.wait(WAIT_MAX, stop, pace) {
                        break Some(RDKafkaErrorCode::QueueFull);
                    }
                    self.serve(book, pace)?;
                    message.sent_ns = pace.clock.now_ns();
                    pace.room.look(message.sent_ns);
                }
                Err(code) => break Some(code),
            }
        };
        book.sent(&message, !had_room || pace.room.waited(message.intended_ns));
        if let Some(code) = refused {
            book.failed(&message, &code, message.sent_ns);
        }
        Ok(had_room)
    }

    /// Waits for reports, but not longer than this. `true`: none are to be waited for any more.
    fn wait(&mut self, most: Duration, stop: &Stop, pace: &mut Pace) -> bool {
        let is_waiting = !self.slots.is_empty();
        let now_ns = pace.clock.now_ns();
        if pace.patience.is_over(now_ns, is_waiting, stop) {
            return true;
        }
        pace.waiter.wait(most.min(WAIT_MAX));
        false
    }
}

/// The clock, wake-up and limits with which a run waits.
struct Pace {
    clock: Clock,
    waiter: Arc<Waiter>,
    patience: Patience,
    room: Room,
}

impl Produce for KafkaProducer {
    fn run(&mut self, feed: &mut Feed, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let clock = feed.clock();
        let mut pace = Pace {
            clock,
            waiter: Waiter::here(),
            patience: Patience::new(clock.now_ns()),
            room: Room::new(feed.is_open()),
        };
        let native = Arc::clone(&self.native);
        let _bell = native.bell(&pace.waiter);
        let result = self.publish(feed, book, stop, &mut pace);
        let now_ns = clock.now_ns();
        self.slots.settle(book, &self.url, stop, (result, now_ns))
    }
}
