//! The loop of a producer and the loop of a consumer, the same for every client library: when to
//! send, how much may be in flight, which messages are acknowledged, when to end. Two traits, the
//! ports, hide the differences between protocols and libraries.

use std::fmt::Display;

use crate::clock::Clock;
use crate::driver::{Consume, DriverError, Produce, Stop};
use crate::in_flight::InFlight;
use crate::message_source::{Message, MessageSource, Next};
use crate::pace::{Backpressure, LOOK_NS, Patience, UNANSWERED, answered};
use crate::recorder::Recorder;
use crate::url::Url;

/// Bounds of a producer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum of messages in flight.
    pub(crate) window: usize,
    /// Maximum of messages in a request.
    pub(crate) batch_messages: usize,
    /// This many messages that are sent one right after the other get the time of the first one,
    /// because reading the clock for each costs CPU time.
    pub(crate) same_time_messages: usize,
    /// After this many messages, answers are read.
    pub(crate) look_after_messages: usize,
}

impl Limits {
    /// One message in a request, and answers are read when the window is full.
    pub(crate) fn new(window: u32) -> Limits {
        Limits {
            window: window as usize,
            batch_messages: 1,
            same_time_messages: 1,
            look_after_messages: usize::MAX,
        }
    }
}

/// Why a client library did not accept a message.
#[derive(Debug)]
pub(crate) enum NotTaken {
    /// Its buffer is full, and it may accept the message later. The text is recorded as the
    /// message's error if the run ends before that.
    Full(String),
    /// It will never accept the message, for this reason.
    Refused(String),
}

/// A client library as a producer uses it.
pub(crate) trait PublishPort: Send {
    fn url(&self) -> &Url;

    fn limits(&self, source: &MessageSource) -> Limits;

    /// Called before the first message, on the thread that uses the library from then on.
    fn start(&mut self) {}

    /// Whether the output buffer can take more.
    fn has_room(&self) -> bool {
        true
    }

    /// Begins a request of at most `messages_max` messages, at this time.
    fn begin_request(&mut self, _messages_max: usize, _unix_ns: u64) {}

    /// Passes a message on, whose bytes [`MessageSource::push`] appends.
    fn put(&mut self, message: &Message, source: &mut MessageSource) -> Result<(), NotTaken>;

    fn end_request(&mut self) {}

    /// Sends the messages, waits at most this long for answers, and reports them to `answers`.
    fn exchange(&mut self, most_ns: u64, answers: &mut Answers<'_>) -> Result<(), DriverError>;
}

/// A client library as a consumer uses it.
pub(crate) trait ReceivePort: Send {
    /// Begins to consume.
    fn start(&mut self) -> Result<(), DriverError>;

    /// Waits at most this long for messages, reports them to `arrivals`, and acknowledges them.
    fn receive(&mut self, most_ns: u64, arrivals: &mut Arrivals<'_>) -> Result<(), DriverError>;

    /// Acknowledges the messages that remain.
    fn end(&mut self) -> Result<(), DriverError> {
        Ok(())
    }
}

/// Receives the answers of one [`PublishPort::exchange`]. The clock is read at the first
/// acknowledgement or refusal, and the later ones get the same time.
pub(crate) struct Answers<'a> {
    in_flight: &'a mut InFlight,
    recorder: &'a mut Recorder,
    clock: Clock,
    size_bytes: usize,
    now_ns: Option<u64>,
    /// The broker has answered, or has accepted bytes after it accepted none.
    is_alive: bool,
}

impl Answers<'_> {
    /// Records that the broker is alive, though it may not have answered.
    pub(crate) fn alive(&mut self) {
        self.is_alive = true;
    }

    #[inline]
    fn now_ns(&mut self) -> u64 {
        self.is_alive = true;
        *self.now_ns.get_or_insert_with(|| self.clock.now_ns())
    }

    /// Whether no message is in flight.
    pub(crate) fn has_all(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The message with this sequence was acknowledged.
    #[inline]
    pub(crate) fn acked(&mut self, sequence: u64) {
        if let Some(message) = self.in_flight.take(sequence) {
            let now_ns = self.now_ns();
            self.recorder.acked(&message, self.size_bytes, now_ns);
        }
    }

    /// All messages up to this sequence were acknowledged.
    pub(crate) fn acked_to(&mut self, last: u64) {
        let now_ns = self.now_ns();
        while let Some((first, count)) = self.in_flight.take_oldest_to(last) {
            self.recorder
                .acked_many(&first, count, self.size_bytes, now_ns);
        }
    }

    /// The message with this sequence was refused.
    pub(crate) fn failed(&mut self, sequence: u64, words: &dyn Display) {
        if let Some(message) = self.in_flight.take(sequence) {
            let now_ns = self.now_ns();
            self.recorder.failed(&message, words, now_ns);
        }
    }

    /// All messages up to this sequence were refused.
    pub(crate) fn failed_to(&mut self, last: u64, words: &dyn Display) {
        let now_ns = self.now_ns();
        for message in self.in_flight.drain_to(last) {
            self.recorder.failed(&message, words, now_ns);
        }
    }

    /// The client library gave up on the message with this sequence: the broker did not answer.
    pub(crate) fn gave_up(&mut self, sequence: u64, words: &dyn Display) {
        if let Some(message) = self.in_flight.take(sequence) {
            self.recorder.gave_up(&message, words, self.clock.now_ns());
        }
    }
}

/// A producer that publishes through the port of a client library.
pub(crate) struct Producer<P>(pub(crate) P);

impl<P: PublishPort> Produce for Producer<P> {
    fn run(
        &mut self,
        source: &mut MessageSource,
        recorder: &mut Recorder,
        stop: &Stop,
    ) -> Result<(), DriverError> {
        let mut run = Run {
            clock: source.clock(),
            limits: self.0.limits(source),
            backpressure: Backpressure::new(source.is_open()),
            in_flight: InFlight::default(),
            held: None,
            is_done: false,
            port: &mut self.0,
            source,
            recorder,
            stop,
        };
        let result = run.work();
        run.end(result)
    }
}

/// One run of a producer.
struct Run<'r, P> {
    port: &'r mut P,
    source: &'r mut MessageSource,
    recorder: &'r mut Recorder,
    stop: &'r Stop,
    clock: Clock,
    limits: Limits,
    backpressure: Backpressure,
    in_flight: InFlight,
    /// The message that the library did not accept because its buffer is full, and the error text.
    held: Option<(Message, String)>,
    /// No more messages are sent.
    is_done: bool,
}

impl<P: PublishPort> Run<'_, P> {
    fn work(&mut self) -> Result<(), DriverError> {
        self.port.start();
        let mut patience = Patience::new(self.clock.now_ns());
        loop {
            let now_ns = self.clock.now_ns();
            if patience.is_over(now_ns, !self.in_flight.is_empty(), self.stop) {
                return Ok(());
            }
            self.is_done |= self.stop.is_set();
            let due_ns = self.publish(now_ns);
            if self.is_done && self.in_flight.is_empty() {
                return Ok(());
            }
            let most_ns = match due_ns {
                None => LOOK_NS,
                Some(0) => 0,
                // Sending has taken time.
                Some(due_ns) => due_ns.saturating_sub(self.clock.now_ns()).min(LOOK_NS),
            };
            let mut answers = Answers {
                in_flight: &mut self.in_flight,
                recorder: self.recorder,
                clock: self.clock,
                size_bytes: self.source.size_bytes(),
                now_ns: None,
                is_alive: false,
            };
            self.port.exchange(most_ns, &mut answers)?;
            if answers.is_alive {
                patience.moved();
            }
        }
    }

    /// Passes on the messages that are due and fit into the window. Returns when to try the next
    /// one (0: at once); `None`: after an answer, or never, because no more messages are sent.
    fn publish(&mut self, mut now_ns: u64) -> Option<u64> {
        let (mut sent, mut unread) = (0, 0);
        while !self.is_done {
            let free = if self.port.has_room() {
                self.limits.window.saturating_sub(self.in_flight.len())
            } else {
                0
            };
            if free == 0 {
                self.backpressure.full(self.clock.now_ns());
                return None;
            }
            if sent >= self.limits.look_after_messages {
                return Some(0);
            }
            if unread >= self.limits.same_time_messages || self.backpressure.is_behind() {
                (now_ns, unread) = (self.clock.now_ns(), 0);
            }
            self.backpressure.look(now_ns);
            match self.request(self.limits.batch_messages.min(free), now_ns) {
                Ok(count) => (sent, unread) = (sent + count, unread + count),
                Err(due_ns) => return due_ns,
            }
        }
        None
    }

    /// Passes on one request. Returns the number of its messages, or, if no message can be passed
    /// on now, when one can.
    #[inline]
    fn request(&mut self, messages_max: usize, now_ns: u64) -> Result<usize, Option<u64>> {
        let (mut message, mut was_held) = match self.held.take() {
            Some((held, _)) => (
                Message {
                    sent_ns: now_ns,
                    ..held
                },
                true,
            ),
            None => (self.next(now_ns)?, false),
        };
        let unix_ns = self.clock.to_unix_ns(message.sent_ns);
        self.port.begin_request(messages_max, unix_ns);
        let mut count = 0;
        let result = loop {
            if let Err(due_ns) = self.put(message, std::mem::take(&mut was_held)) {
                break Err(due_ns);
            }
            count += 1;
            if count == messages_max {
                break Ok(count);
            }
            match self.next(now_ns) {
                Ok(next) => message = next,
                Err(due_ns) => break Err(due_ns),
            }
        };
        self.port.end_request();
        result
    }

    #[inline]
    fn put(&mut self, message: Message, was_held: bool) -> Result<(), Option<u64>> {
        let taken = self.port.put(&message, self.source);
        if let Err(NotTaken::Full(words)) = taken {
            self.held = Some((message, words));
            self.backpressure.full(self.clock.now_ns());
            return Err(None);
        }
        let waited = was_held || self.backpressure.waited(message.intended_ns);
        self.recorder.sent(&message, waited);
        match taken {
            Err(NotTaken::Refused(words)) => {
                self.recorder.failed(&message, &words, message.sent_ns)
            }
            _ => self.in_flight.push(&message),
        }
        Ok(())
    }

    /// The next message, or when it is due; `None`: there are no more messages.
    #[inline]
    fn next(&mut self, now_ns: u64) -> Result<Message, Option<u64>> {
        match self.source.next(now_ns) {
            Next::Send(message) => Ok(message),
            Next::At(due_ns) => {
                self.backpressure.caught_up();
                Err(Some(due_ns))
            }
            Next::Done => {
                self.is_done = true;
                Err(None)
            }
        }
    }

    /// Records messages without an answer. They are an error of the broker unless the producer was
    /// stopped.
    fn end(mut self, result: Result<(), DriverError>) -> Result<(), DriverError> {
        let now_ns = self.clock.now_ns();
        if let Some((message, words)) = self.held.take() {
            self.recorder.sent(&message, true);
            self.recorder.failed(&message, &words, message.sent_ns);
        }
        let has_all = self.in_flight.is_empty();
        for message in self.in_flight.drain_to(u64::MAX) {
            match result {
                Ok(()) => self.recorder.gave_up(&message, &UNANSWERED, now_ns),
                Err(_) => self.recorder.failed(&message, &UNANSWERED, now_ns),
            }
        }
        result.and_then(|()| answered(has_all, self.port.url(), self.stop))
    }
}

/// Receives the messages of one [`ReceivePort::receive`]. The clock is read at the first one, and
/// the others get the same time.
pub(crate) struct Arrivals<'a> {
    recorder: &'a mut Recorder,
    now_ns: Option<u64>,
}

impl Arrivals<'_> {
    /// A message was received. `stream`: the partition or queue within which messages keep their
    /// order; `None`: order is not checked ([`Recorder::came`]).
    #[inline]
    pub(crate) fn came(&mut self, message: &[u8], stream: Option<u32>) {
        let clock = self.recorder.clock();
        let now_ns = *self.now_ns.get_or_insert_with(|| clock.now_ns());
        self.recorder.came(message, stream, now_ns);
    }
}

/// A consumer that receives through the port of a client library.
pub(crate) struct Consumer<P>(pub(crate) P);

impl<P: ReceivePort> Consume for Consumer<P> {
    fn run(&mut self, recorder: &mut Recorder, stop: &Stop) -> Result<(), DriverError> {
        self.0.start()?;
        while !stop.is_set() {
            let mut arrivals = Arrivals {
                recorder,
                now_ns: None,
            };
            self.0.receive(LOOK_NS, &mut arrivals)?;
        }
        self.0.end()
    }
}

#[cfg(test)]
#[path = "pump_tests.rs"]
mod tests;
