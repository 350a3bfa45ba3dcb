//! The recorder of a connection's messages, and how the statistics of several are added up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::check::{Ranges, Seen};
use crate::clock::Clock;
use crate::histogram::Histogram;
use crate::meanwhile::Meanwhile;
use crate::message_source::Message;
use crate::payload::Stamp;
use crate::times::WarmUpEnd;

const SECOND_NS: u64 = 1_000_000_000;

/// Messages and response times of one second of the measurement.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Second {
    /// Messages that were acknowledged to a producer, or that came to a consumer.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Messages that were refused, or that were given up without an answer.
    pub errors: u64,
    /// Response times.
    pub response: Histogram,
}

impl Second {
    /// Adds the measurements of another connection in the same second.
    pub fn add(&mut self, other: &Second) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.response.add(&other.response);
    }
}

/// Statistics of one connection, or of all connections of one side (producers or consumers).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ClientStats {
    /// Messages of the measurement that were passed to the client library.
    pub sent: u64,
    /// Messages that were acknowledged, or that were received.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Messages that were refused, or whose acknowledgement did not come.
    pub errors: u64,
    /// Of these, messages that got no answer until they were given up. The latencies include the
    /// time until then; without it they would describe successful messages only.
    #[serde(default)]
    pub unanswered: u64,
    /// The texts of the first errors.
    pub error_texts: Vec<String>,
    /// Messages that were received and are not of this measurement.
    pub foreign: u64,
    /// Messages that were received before they were sent, by the clocks of two machines. Their
    /// latency counts as 0.
    #[serde(default)]
    pub early: u64,
    /// Messages of this measurement whose bytes were changed on the way.
    #[serde(default)]
    pub damaged: u64,
    /// Times from when messages were due to the acknowledgement, or to the consumer.
    pub response: Histogram,
    /// Times from when messages were sent to the same.
    pub service: Histogram,
    /// How late messages were passed to the client library without backpressure: the delay that the
    /// generator itself caused. Only in an open loop.
    pub lag: Histogram,
    /// The interval for which rates are computed, in nanoseconds of the measurement's clock: from
    /// the end of the warm-up until the last message was acknowledged or received. If the plan says
    /// how long producers send, it has at least that length ([`crate::Plan::least_s`]). `None`:
    /// there is no message.
    pub span_ns: Option<(u64, u64)>,
    /// For consumers: their work while producers sent. `None`: there were no producers, or they
    /// sent only briefly.
    #[serde(default)]
    pub meanwhile: Option<Meanwhile>,
    /// The share of its time that the busiest thread of these connections was on a CPU. Near 1, the
    /// thread never waited for the broker, so the generator was the bottleneck. Threads of a client
    /// library are not included.
    pub busy: f64,
    /// By the number of the second, from the beginning of the measurement on.
    pub seconds: BTreeMap<u32, Second>,
    /// Sequences that were acknowledged, by producer, including the warm-up.
    pub acked: BTreeMap<u32, Ranges>,
    /// Messages that were received, including the warm-up.
    pub seen: Seen,
}

/// Maximum of error texts that are kept.
const ERROR_TEXTS_MAX: usize = 5;

impl ClientStats {
    /// Adds the statistics of another connection.
    pub fn add(&mut self, other: &ClientStats) {
        self.sent += other.sent;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.foreign += other.foreign;
        self.early += other.early;
        self.unanswered += other.unanswered;
        self.damaged += other.damaged;
        for text in &other.error_texts {
            self.note(text);
        }
        self.response.add(&other.response);
        self.service.add(&other.service);
        self.lag.add(&other.lag);
        self.busy = self.busy.max(other.busy);
        self.span_ns = match (self.span_ns, other.span_ns) {
            (Some(mine), Some(theirs)) => Some((mine.0.min(theirs.0), mine.1.max(theirs.1))),
            (mine, theirs) => mine.or(theirs),
        };
        for (at, second) in &other.seconds {
            let mine = self.seconds.entry(*at).or_default();
            mine.add(second);
            mine.response.pack();
        }
        for (producer, acked) in &other.acked {
            let _ = self.acked.entry(*producer).or_default().add(acked);
        }
        self.seen.add(&other.seen);
    }

    /// Seconds from the end of the warm-up to the last message ([`ClientStats::span_ns`]).
    pub fn span_s(&self) -> f64 {
        let span = self.span_ns.map_or(0, |(first, last)| last - first);
        span as f64 / 1e9
    }

    /// [`ClientStats::span_s`] without the service time of the fastest message, which a distance
    /// determines: how long the broker needed.
    pub(crate) fn taken_s(&self) -> f64 {
        (self.span_s() - self.service.min_ns() as f64 / 1e9).max(0.0)
    }

    /// Messages per second.
    ///
    /// The interval begins with the end of the warm-up, not with the first answer, and ends with
    /// the last message. So it includes the first and the last round trip: N messages one after the
    /// other take N round trips. The rate of consumers that work beside producers is that of the
    /// time in which the producers sent ([`Meanwhile`]).
    pub fn rate(&self) -> f64 {
        match (&self.meanwhile, self.span_s()) {
            (Some(meanwhile), _) => meanwhile.rate(),
            (None, 0.0) => 0.0,
            (None, seconds) => self.messages as f64 / seconds,
        }
    }

    /// Bytes per second.
    pub fn byte_rate(&self) -> f64 {
        self.rate() * self.bytes as f64 / self.messages.max(1) as f64
    }

    /// Extends the interval to at least this many seconds.
    pub(crate) fn lasted(&mut self, seconds: f64) {
        if let Some((from, to)) = &mut self.span_ns {
            *to = (*to).max(from.saturating_add((seconds * 1e9) as u64));
        }
    }

    fn note(&mut self, text: &str) {
        let is_known = self.error_texts.iter().any(|known| known == text);
        if self.error_texts.len() < ERROR_TEXTS_MAX && !is_known {
            self.error_texts.push(text.to_owned());
        }
    }
}

/// Figures that are shown during the measurement: the sums of all recorders of a side, by second.
#[derive(Debug, Clone, Default)]
pub struct Live {
    seconds: Arc<Mutex<BTreeMap<u32, Second>>>,
    /// The number of messages of each recorder so far, including the warm-up.
    counts: Arc<Mutex<Vec<Arc<AtomicU64>>>>,
    failures: Arc<AtomicU64>,
}

impl Live {
    /// Removes and returns the seconds before `before`, which are complete.
    pub fn take(&self, before: u32) -> BTreeMap<u32, Second> {
        let mut seconds = self.seconds.lock();
        let later = seconds.split_off(&before);
        std::mem::replace(&mut *seconds, later)
    }

    /// Messages that were acknowledged, or received for the first time, including the warm-up.
    pub fn count(&self) -> u64 {
        let counts = self.counts.lock();
        counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    /// Messages that were refused or given up, including the warm-up.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn counter(&self) -> Arc<AtomicU64> {
        let counter = Arc::new(AtomicU64::new(0));
        self.counts.lock().push(counter.clone());
        counter
    }

    fn add(&self, at: u32, second: &Second) {
        self.seconds.lock().entry(at).or_default().add(second);
    }
}

/// Records the messages of one connection.
#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    run: u32,
    measured_from_ns: u64,
    /// If set, a message counts if it was received after this time, whenever it was sent.
    by_arrival: Option<WarmUpEnd>,
    stats: ClientStats,
    producer: u32,
    acked: Ranges,
    /// Number of the second that `second` is.
    at: u32,
    second: Second,
    live: Live,
    /// The number of messages, which [`Live::count`] adds up. Only this recorder writes it.
    counter: Arc<AtomicU64>,
}

impl Recorder {
    /// A recorder for the connection with this number in measurement `run`, whose warm-up ends at
    /// `measured_from_ns`.
    pub fn new(clock: Clock, run: u32, number: u32, measured_from_ns: u64, live: Live) -> Recorder {
        Recorder {
            clock,
            run,
            measured_from_ns,
            by_arrival: None,
            stats: ClientStats::default(),
            producer: number,
            acked: Ranges::default(),
            at: 0,
            second: Second::default(),
            counter: live.counter(),
            live,
        }
    }

    /// For messages that were published before the measurement: those that are received after the
    /// warm-up count.
    pub fn by_arrival(self, warm_up_end: WarmUpEnd) -> Recorder {
        Recorder {
            by_arrival: Some(warm_up_end),
            ..self
        }
    }

    /// The measurement's clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Records that a message was passed to the client library. `waited`: backpressure delayed it,
    /// so its lateness is not the generator's.
    #[inline]
    pub fn sent(&mut self, message: &Message, waited: bool) {
        if message.is_measured {
            self.stats.sent += 1;
            if !waited {
                let lag_ns = message.sent_ns.saturating_sub(message.intended_ns);
                self.stats.lag.record(lag_ns);
            }
        }
    }

    /// Records that a message was acknowledged.
    #[inline]
    pub fn acked(&mut self, message: &Message, bytes: usize, now_ns: u64) {
        self.acked_many(message, 1, bytes, now_ns);
    }

    /// Records that `count` consecutive messages of `bytes` bytes each, with the same times, were
    /// acknowledged.
    #[inline]
    pub fn acked_many(&mut self, first: &Message, count: u32, bytes: usize, now_ns: u64) {
        let count = u64::from(count);
        let new = self.acked.insert_many(first.sequence, count);
        self.step(new);
        if first.is_measured {
            let response_ns = now_ns.saturating_sub(first.intended_ns);
            let service_ns = now_ns.saturating_sub(first.sent_ns);
            self.count(count, now_ns, bytes, response_ns, service_ns);
        }
    }

    /// Records that a message got no answer in time. For a message whose connection has ended,
    /// [`Recorder::failed`] is called instead: its time until then says nothing.
    pub fn gave_up(&mut self, message: &Message, error: &dyn std::fmt::Display, now_ns: u64) {
        if message.is_measured {
            self.turn(now_ns);
            self.stats.unanswered += 1;
            let service_ns = now_ns.saturating_sub(message.sent_ns);
            self.stats.service.record(service_ns);
            let response_ns = now_ns.saturating_sub(message.intended_ns);
            self.second.response.record(response_ns);
        }
        self.failed(message, error, now_ns);
    }

    /// Records that a message was refused, or was lost with its connection.
    pub fn failed(&mut self, message: &Message, error: &dyn std::fmt::Display, now_ns: u64) {
        self.live.failures.fetch_add(1, Ordering::Relaxed);
        if message.is_measured {
            self.turn(now_ns);
            self.second.errors += 1;
            self.stats.errors += 1;
        }
        self.stats.note(&error.to_string());
    }

    /// Records that a message was received. `stream`: within which messages keep their order
    /// ([`Seen::came`]). `false`: it is not of this measurement, or was damaged.
    #[inline]
    pub fn came(&mut self, message: &[u8], stream: Option<u32>, now_ns: u64) -> bool {
        let stamp = Stamp::read(message).filter(|stamp| stamp.run == self.run);
        let Some(stamp) = stamp else {
            if Stamp::was_of(self.run, message) {
                self.stats.damaged += 1
            } else {
                self.stats.foreign += 1
            }
            return false;
        };
        if self.stats.seen.came(stamp.producer, stamp.sequence, stream) {
            self.step(1);
        }
        let intended_ns = self.clock.from_unix_ns(stamp.intended_unix_ns);
        let counts_from_ns = match &self.by_arrival {
            Some(warm_up_end) => {
                self.measured_from_ns = warm_up_end.came(now_ns);
                now_ns
            }
            None => intended_ns,
        };
        if counts_from_ns >= self.measured_from_ns {
            self.stats.early += u64::from(now_ns < intended_ns);
            let response_ns = now_ns.saturating_sub(intended_ns);
            let lag_ns = u64::from(stamp.lag_us) * 1_000;
            let service_ns = response_ns.saturating_sub(lag_ns);
            self.count(1, now_ns, message.len(), response_ns, service_ns);
        }
        true
    }

    /// Adds to the number of messages.
    #[inline]
    fn step(&self, more: u64) {
        let count = self.counter.load(Ordering::Relaxed);
        self.counter.store(count + more, Ordering::Relaxed);
    }

    #[inline]
    fn count(
        &mut self,
        messages: u64,
        now_ns: u64,
        bytes: usize,
        response_ns: u64,
        service_ns: u64,
    ) {
        self.turn(now_ns);
        // The sums of a second are added to the statistics when it is over, to save time per
        // message.
        self.stats.service.record_n(service_ns, messages);
        self.second.messages += messages;
        self.second.bytes += bytes as u64 * messages;
        self.second.response.record_n(response_ns, messages);
        self.stats.span_ns = Some((self.measured_from_ns, now_ns.max(self.measured_from_ns)));
    }

    /// Begins a new second if the current one is over.
    #[inline]
    fn turn(&mut self, now_ns: u64) {
        let since_ns = now_ns.saturating_sub(self.measured_from_ns);
        let at = u32::try_from(since_ns / SECOND_NS).unwrap_or(u32::MAX);
        if at != self.at {
            self.close_second();
            self.at = at;
        }
    }

    fn close_second(&mut self) {
        if self.second.messages > 0 || self.second.errors > 0 {
            self.live.add(self.at, &self.second);
            let mut second = std::mem::take(&mut self.second);
            self.stats.messages += second.messages;
            self.stats.bytes += second.bytes;
            self.stats.response.add(&second.response);
            // Packed, because a long run has thousands of seconds.
            second.response.pack();
            self.stats.seconds.entry(self.at).or_default().add(&second);
        }
    }

    /// Ends the recording.
    pub fn finish(mut self) -> ClientStats {
        self.close_second();
        if !self.acked.is_empty() {
            self.stats.acked.insert(self.producer, self.acked);
        }
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sequence: u64, intended_ns: u64, sent_ns: u64) -> Message {
        Message {
            sequence,
            intended_ns,
            sent_ns,
            key: None,
            is_measured: intended_ns >= SECOND_NS,
        }
    }

    #[test]
    fn a_rate_is_that_of_the_time_since_the_warm_up() {
        let recorder = || Recorder::new(Clock::new(), 1, 3, SECOND_NS, Live::default());
        // One answer for all of them, after half a second.
        let mut one = recorder();
        one.acked_many(
            &message(0, SECOND_NS, SECOND_NS),
            200,
            100,
            SECOND_NS * 3 / 2,
        );
        let mut stats = one.finish();
        assert_eq!((stats.span_s(), stats.rate()), (0.5, 400.0));
        assert_eq!(stats.byte_rate(), 40_000.0);
        assert!(
            stats.taken_s() < 0.001,
            "a second answer would come as soon"
        );
        // It was to be sent for a second.
        stats.lasted(1.0);
        assert_eq!((stats.span_s(), stats.rate()), (1.0, 200.0));
        // Ten round trips of a tenth of a second are a second.
        let mut trips = recorder();
        for number in 0..10 {
            let sent_ns = SECOND_NS + number * SECOND_NS / 10;
            trips.acked(
                &message(number, sent_ns, sent_ns),
                100,
                sent_ns + SECOND_NS / 10,
            );
        }
        assert_eq!(trips.finish().rate(), 10.0);
        // Messages that came to consumers afterwards do not count in their rate meanwhile.
        stats.meanwhile = Some(Meanwhile {
            messages: 50,
            seconds: 0.5,
            ..Meanwhile::default()
        });
        assert_eq!(stats.rate(), 100.0);
    }

    #[test]
    fn what_was_put_in_before_counts_when_it_comes_after_the_warm_up() {
        let clock = Clock::new();
        let recorder = Recorder::new(clock, 1, 0, 0, Live::default());
        let mut recorder = recorder.by_arrival(WarmUpEnd::at(SECOND_NS));
        let mut message = [0; 40];
        for sequence in 0..3 {
            let stamp = Stamp {
                run: 1,
                producer: 0,
                sequence,
                intended_unix_ns: 5,
                lag_us: 0,
            };
            stamp.write(&mut message);
            recorder.came(&message, None, (sequence + 1) * SECOND_NS / 2);
        }
        let stats = recorder.finish();
        assert_eq!((stats.messages, stats.rate()), (2, 4.0));
    }

    #[test]
    fn what_is_not_answered_is_not_left_out_of_latency() {
        let mut recorder = Recorder::new(Clock::new(), 1, 3, SECOND_NS, Live::default());
        for sequence in 0..98 {
            let fast = message(sequence, SECOND_NS, SECOND_NS);
            recorder.acked(&fast, 100, SECOND_NS + 1_000_000);
        }
        let late_ns = 31 * SECOND_NS;
        // Sent half a second after its time.
        let never = message(98, SECOND_NS, SECOND_NS * 3 / 2);
        recorder.gave_up(&never, &"no answer came", late_ns);
        // That one was refused soon: no latency of an acknowledgement.
        let refused = message(99, SECOND_NS, SECOND_NS);
        recorder.failed(&refused, &"no", SECOND_NS + 5);
        recorder.gave_up(&message(100, 0, 0), &"no answer came", late_ns);
        let stats = recorder.finish();
        assert_eq!((stats.messages, stats.errors, stats.unanswered), (98, 2, 1));
        assert_eq!((stats.response.len(), stats.service.len()), (99, 99));
        assert_eq!(stats.response.quantile_ns(0.5) / 1_000_000, 1);
        assert_eq!(stats.response.max_ns() / 100_000_000, 300);
        assert_eq!(stats.service.max_ns() / 100_000_000, 295);
    }

    #[test]
    fn damaged_messages_are_told_from_other_programs() {
        let mut recorder = Recorder::new(Clock::new(), 7, 0, 0, Live::default());
        let mut one = [0; 60];
        let mut stamp = Stamp {
            run: 7,
            producer: 0,
            sequence: 0,
            intended_unix_ns: 5,
            lag_us: 0,
        };
        stamp.write(&mut one);
        assert!(recorder.came(&one, None, 9));
        assert!(!recorder.came(&one[..59], None, 9), "its end is missing");
        one[50] ^= 1;
        assert!(!recorder.came(&one, None, 9), "a bit of its body");
        stamp.run = 6;
        stamp.write(&mut one);
        assert!(!recorder.came(&one, None, 9), "an earlier measurement's");
        assert!(!recorder.came(b"hello", None, 9));
        let stats = recorder.finish();
        assert_eq!((stats.messages, stats.damaged, stats.foreign), (1, 2, 2));
    }

    #[test]
    fn both_latencies_are_counted_and_the_warm_up_is_not() {
        let live = Live::default();
        let mut recorder = Recorder::new(Clock::new(), 1, 3, SECOND_NS, live.clone());
        recorder.acked(&message(0, 5, 5), 100, 10);
        // Due in the first second, sent in the second one, answered in the third.
        let late = message(1, SECOND_NS + 1_000_000, 2 * SECOND_NS);
        recorder.sent(&late, true);
        recorder.acked(&late, 100, 3 * SECOND_NS + 1_000_000);
        recorder.failed(
            &message(2, 2 * SECOND_NS, 2 * SECOND_NS),
            &"no",
            3 * SECOND_NS + 2,
        );
        let stats = recorder.finish();
        assert_eq!((stats.sent, stats.messages, stats.errors), (1, 1, 1));
        assert_eq!(stats.response.max_ns() / 1_000_000, 2_000);
        assert_eq!(stats.service.max_ns() / 1_000_000, 1_001);
        assert!(stats.lag.is_empty(), "it waited for room");
        assert_eq!(stats.seconds.keys().copied().collect::<Vec<_>>(), [2]);
        assert_eq!(stats.acked[&3].len(), 2, "the check knows the warm-up too");
        assert_eq!(live.take(3).len(), 1);
        let mut sum = ClientStats::default();
        sum.add(&stats);
        sum.add(&stats);
        assert_eq!(
            (sum.messages, sum.response.len(), sum.seconds[&2].messages),
            (2, 2, 2)
        );
        assert_eq!(sum.error_texts, ["no"]);
    }
}
