//! Records requests and answers one by one for the timeline, up to its rate limit.

use crate::exchanges::{Exchange, Exchanges, Topics};
use crate::lane::ENABLED;
use crate::probe::Recorder;

impl Recorder {
    /// Records requests that publish to these topics, for the timeline too (unlike
    /// [`Recorder::requests`]). `silent` of them want no answer.
    #[inline]
    pub fn publishes(
        &self,
        (count, silent): (u64, u64),
        (messages, bytes): (u64, u64),
        topics: &Topics,
        first_byte_us: u64,
        last_byte_us: u64,
    ) {
        if !ENABLED || count == 0 {
            return;
        }
        self.requests(count, messages, bytes, first_byte_us, last_byte_us);
        if messages > 0 {
            if self.exchanges.pace.may_record(last_byte_us) {
                let exchange = Exchange {
                    wants_answer: silent < count,
                    requested_us: first_byte_us,
                    received_us: last_byte_us,
                    ..Exchange::publish(count, messages, bytes)
                };
                self.note_publishes(topics, exchange, silent);
            } else {
                self.exchanges.pace.leave_out(messages)
            }
        }
        self.unanswered(silent);
    }

    /// Answers were sent while an exchange was unanswered.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_answers(&self, now_us: u64) {
        let answers = self.counters.responses.get();
        if self.awaited_answer.get() <= answers {
            let next = self.exchanges.answered(answers, now_us);
            self.awaited_answer.set(next);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_publishes(&self, topics: &Topics, exchange: Exchange, silent: u64) {
        let asked = self.counters.requests.get() - self.counters.requests_silent.get();
        let answer = asked.saturating_sub(silent);
        if self.exchanges.published(topics, exchange, answer) && self.awaited_answer.get() == 0 {
            self.awaited_answer.set(answer);
        }
    }

    /// A fetch of the client begins to wait for messages.
    #[inline]
    pub fn fetch_begun(&self, now_us: u64) {
        if ENABLED && self.fetching_since_us.get() == 0 {
            self.fetching_since_us.set(now_us.max(1));
        }
    }

    /// Whether the next answer to a fetch may be recorded as exchanges. If not, its messages are
    /// counted as left out.
    #[inline]
    pub fn may_record_fetch(&self, messages: u64, now_us: u64) -> bool {
        if !ENABLED || messages == 0 {
            return false;
        }
        let may = self.exchanges.pace.may_record(now_us);
        if !may {
            self.exchanges.pace.leave_out(messages);
            self.fetching_since_us.set(0);
        }
        may
    }

    /// The answer to a fetch is being sent: one exchange for each topic.
    pub fn fetch_answered(&self, exchanges: impl Iterator<Item = Exchange>, now_us: u64) {
        if !ENABLED {
            return;
        }
        let since_us = self.fetching_since_us.get();
        for exchange in exchanges {
            let times = Exchange {
                requested_us: if since_us > 0 { since_us } else { now_us },
                received_us: now_us,
                answered_us: now_us.max(1),
                ..exchange
            };
            self.exchanges.read(times, None);
        }
        self.fetching_since_us.set(0);
    }

    /// The client has committed an offset for a consumer group.
    pub fn committed(&self, group: &str, exchange: Exchange, now_us: u64) {
        if ENABLED && self.exchanges.pace.may_record(now_us) {
            let times = Exchange {
                requested_us: now_us,
                received_us: now_us,
                answered_us: now_us.max(1),
                ..exchange
            };
            self.exchanges
                .read(times, Some(crate::identity::short(group)));
        }
    }

    pub(crate) fn exchanges(&self) -> &Exchanges {
        &self.exchanges
    }
}
