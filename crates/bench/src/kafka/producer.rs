//! A connection that publishes through librdkafka.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode;

use crate::book::Book;
use crate::clock::Clock;
use crate::driver::{DriverError, Produce, Stop};
use crate::feed::{Feed, Message, Next};
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
/// How long to wait at most before stop is looked at.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// How long answers are waited for once it is stopped.
const STOP_MAX_NS: u64 = 5_000_000_000;

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
    fn serve(&mut self, book: &mut Book, clock: Clock) -> Result<(), DriverError> {
        let (slots, ends) = (&mut self.slots, &mut self.ends);
        let (size_bytes, mut now_ns) = (self.size_bytes, 0);
        self.native.serve(|news| match news {
            News::Report(slot, error) => {
                let Some(message) = slots.take(slot) else {
                    return;
                };
                if now_ns == 0 {
                    now_ns = clock.now_ns();
                }
                match error {
                    None => book.acked(&message, size_bytes, now_ns),
                    Some(code) => book.failed(&message, &code, now_ns),
                }
            }
            News::Trouble(trouble) => ends.hear(trouble),
        });
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
        waiter: &Waiter,
    ) -> Result<(), DriverError> {
        let clock = feed.clock();
        let mut value = Vec::with_capacity(feed.size_bytes());
        // Until when there was no room: what was due before has waited for it.
        let (mut full_until_ns, mut unlooked) = (0, 0);
        let (is_open, mut now_ns) = (feed.is_open(), 0);
        while !stop.is_set() {
            if self.slots.is_full() || unlooked >= LOOK_AFTER {
                unlooked = 0;
                self.serve(book, clock)?;
                if self.slots.is_full() {
                    waiter.wait(WAIT_MAX);
                    full_until_ns = clock.now_ns();
                    continue;
                }
            }
            if is_open || unlooked.is_multiple_of(SAME_TIME) {
                now_ns = clock.now_ns();
            }
            match feed.next(now_ns) {
                Next::Send(mut message) => {
                    let refused = loop {
                        value.clear();
                        feed.push(&message, &mut value);
                        match self.send(&message, &value) {
                            Ok(()) => break None,
                            Err(RDKafkaErrorCode::QueueFull) => {
                                waiter.wait(WAIT_MAX);
                                self.serve(book, clock)?;
                                full_until_ns = clock.now_ns();
                                message.sent_ns = full_until_ns;
                            }
                            Err(code) => break Some(code),
                        }
                    };
                    book.sent(&message, message.intended_ns < full_until_ns);
                    if let Some(code) = refused {
                        book.failed(&message, &code, message.sent_ns);
                    }
                    unlooked += 1;
                }
                Next::At(due_ns) => {
                    unlooked = 0;
                    self.serve(book, clock)?;
                    let left_ns = due_ns.saturating_sub(clock.now_ns());
                    if left_ns > 0 {
                        waiter.wait(Duration::from_nanos(left_ns).min(WAIT_MAX));
                    }
                }
                Next::Done => break,
            }
        }
        let mut stopped_ns = None;
        while !self.slots.is_empty() {
            self.serve(book, clock)?;
            if stop.is_set() {
                let now_ns = clock.now_ns();
                if now_ns - *stopped_ns.get_or_insert(now_ns) > STOP_MAX_NS {
                    break;
                }
            }
            if !self.slots.is_empty() {
                waiter.wait(WAIT_MAX);
            }
        }
        Ok(())
    }
}

impl Produce for KafkaProducer {
    fn run(&mut self, feed: &mut Feed, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let waiter = Waiter::here();
        let clock = feed.clock();
        let native = Arc::clone(&self.native);
        let _bell = native.bell(&waiter);
        let result = self.publish(feed, book, stop, &waiter);
        let now_ns = clock.now_ns();
        for message in self.slots.take_all() {
            book.failed(&message, &"no answer came", now_ns);
        }
        result
    }
}
