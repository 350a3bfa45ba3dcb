//! Records requests and answers: counts all of them, detects rounds, and measures a sample.

use crate::lane::ENABLED;
use crate::probe::Recorder;

impl Recorder {
    /// A request that wants an answer is complete. `messages`: how many it publishes (0 for any
    /// other request); `bytes`: its size; the times: when the reads with its first and its last
    /// byte returned.
    #[inline]
    pub fn request(&self, messages: u64, bytes: u64, first_byte_us: u64, last_byte_us: u64) {
        self.requests(1, messages, bytes, first_byte_us, last_byte_us);
    }

    /// `count` requests of one socket read, together: `messages` and `bytes` are sums, and the
    /// histograms get their mean. The first of them may have begun in an earlier read. Called once
    /// per read, however many small requests it had.
    #[inline]
    pub fn requests(
        &self,
        count: u64,
        messages: u64,
        bytes: u64,
        first_byte_us: u64,
        last_byte_us: u64,
    ) {
        if ENABLED && count > 0 {
            let is_whole = first_byte_us == last_byte_us;
            if is_whole && (messages == count || messages == 0) {
                self.requests_of_one_or_none(count, messages, bytes, last_byte_us);
            } else {
                self.requests_of_many_or_in_parts(
                    (count, messages, bytes),
                    (first_byte_us, last_byte_us),
                );
            }
        }
    }

    /// The most frequent case: requests that came whole and publish one message each, or none. They
    /// are only counted here; [`Recorder::snapshot`] adds them to the histograms.
    ///
    /// Its only call is at its end, so that no value has to be kept across the call.
    #[inline(never)]
    fn requests_of_one_or_none(&self, count: u64, messages: u64, bytes: u64, now_us: u64) {
        self.counters.requests.add(count);
        if messages > 0 {
            self.counters.publishes.add(count);
            self.counters.messages_in.add(messages);
            self.counters.published_bytes.add(bytes);
            self.requests_of_one.add(count);
        }
        self.requests_whole.add(count);
        self.arrived(count, now_us, now_us);
    }

    #[inline(never)]
    fn requests_of_many_or_in_parts(
        &self,
        (count, messages, bytes): (u64, u64, u64),
        (first_byte_us, last_byte_us): (u64, u64),
    ) {
        self.counters.requests.add(count);
        if messages > 0 {
            self.counters.publishes.add(count);
            self.counters.messages_in.add(messages);
            self.counters.published_bytes.add(bytes);
            if messages == count {
                self.requests_of_one.add(count)
            } else {
                self.request_messages.record_many(messages / count, count)
            }
        }
        if first_byte_us == last_byte_us {
            self.requests_whole.add(count);
        } else {
            // One of them had begun in an earlier read; the others came whole.
            self.requests_whole.add(count - 1);
            let published_bytes = if messages > 0 { bytes / count } else { 0 };
            if published_bytes > 0 {
                self.split_request_bytes.record(published_bytes);
            }
            let receive_us = last_byte_us.saturating_sub(first_byte_us);
            self.request_receive_us.record(receive_us);
        }
        self.arrived(count, first_byte_us, last_byte_us);
    }

    #[inline]
    fn arrived(&self, count: u64, first_byte_us: u64, last_byte_us: u64) {
        let in_flight = self.requests_in_flight.get();
        let answered_us = match in_flight {
            0 => self.last_answer_us.get(),
            _ => 0,
        };
        let since_us = || first_byte_us.saturating_sub(self.timed_since_us.get());
        if answered_us > 0 {
            // A gap follows an answer, and only the first request after the answer ends it.
            self.last_answer_us.set(0);
            let gap_us = first_byte_us.saturating_sub(answered_us);
            if !self.rounds.passes_over(gap_us, since_us()) {
                return self.round_begins(gap_us, count, first_byte_us, last_byte_us);
            }
        } else if !self.rounds.is_passing() || self.rounds.ends_passing(since_us()) {
            self.time_service(in_flight + count, last_byte_us);
        }
        self.set_in_flight(in_flight + count);
    }

    /// The first of these requests begins a round that is watched.
    #[inline(never)]
    fn round_begins(&self, gap_us: u64, count: u64, first_byte_us: u64, last_byte_us: u64) {
        let gaps = &self.request_gap_us;
        self.rounds
            .watch(gap_us, first_byte_us, &self.counters, gaps);
        self.time_service(count, last_byte_us);
        self.set_in_flight(count);
    }

    /// Starts to measure the service time of these requests, unless others are being measured.
    #[inline]
    fn time_service(&self, in_flight: u64, last_byte_us: u64) {
        if self.timed_answers.get() == 0 {
            self.timed_answers.set(in_flight);
            self.timed_since_us.set(last_byte_us);
        }
    }

    #[inline]
    fn set_in_flight(&self, in_flight: u64) {
        self.requests_in_flight.set(in_flight);
        if in_flight > self.requests_in_flight_max.get() {
            self.requests_in_flight_max.set(in_flight);
        }
    }

    /// `count` requests were answered, and the answers passed to the kernel at `now_us`.
    #[inline]
    pub fn answered(&self, count: u64, now_us: u64) {
        if !ENABLED || count == 0 {
            return;
        }
        self.counters.responses.add(count);
        let in_flight = self.requests_in_flight.get();
        self.requests_in_flight.set(in_flight.saturating_sub(count));
        self.last_answer_us.set(now_us);
        if (self.timed_answers.get() | self.awaited_answer.get()) > 0 {
            self.answered_awaited(count, now_us);
        }
    }

    /// The answers may end the service time being measured, or complete an exchange of the
    /// timeline.
    #[inline(never)]
    fn answered_awaited(&self, count: u64, now_us: u64) {
        let timed = self.timed_answers.get();
        if timed > 0 {
            if timed <= count {
                let service_us = now_us.saturating_sub(self.timed_since_us.get());
                let weight = self.rounds.weight();
                self.service_us.record_many(service_us, weight);
            }
            self.timed_answers.set(timed.saturating_sub(count));
        }
        if self.awaited_answer.get() > 0 {
            self.note_answers(now_us);
        }
    }

    /// `count` of the requests recorded last want no answer: they are not in flight.
    #[inline]
    pub fn unanswered(&self, count: u64) {
        if ENABLED && count > 0 {
            self.counters.requests_silent.add(count);
            let in_flight = self.requests_in_flight.get();
            if self.timed_answers.get() == in_flight {
                // The request being measured may be one of these.
                self.timed_answers.set(0);
            }
            self.requests_in_flight.set(in_flight.saturating_sub(count));
        }
    }
}
