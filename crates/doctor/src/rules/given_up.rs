//! Connections that their clients gave up: they left within a request, or without an answer, while
//! they had more to say.

use std::collections::VecDeque;

use cloverleaf_telemetry::{ClosedConnection, HistogramSnapshot};

/// How many of a client are kept, the last ones.
const KEPT_MAX: usize = 16;

/// Below this much a part of a request is no part of a queue.
const BYTES_MIN: u64 = 4 << 10;

/// No connection does more than this: sums stay far from where they overflow.
const SANE_MAX: u64 = 1 << 40;

/// A connection that its client gave up.
#[derive(Debug, Clone)]
struct GivenUp {
    closed_us: u64,
    lived_us: u64,
    /// In which a request was coming in.
    receiving_us: u64,
    bytes_in: u64,
    published_bytes: u64,
    requests: u64,
    publishes: u64,
    messages: u64,
    request_gap_us: HistogramSnapshot,
    record_age_us: HistogramSnapshot,
}

/// Those of one client, oldest first.
#[derive(Debug, Default)]
pub(crate) struct GivenUps {
    all: VecDeque<GivenUp>,
}

/// What they come to, times in microseconds.
#[derive(Debug, Clone)]
pub(crate) struct GaveUp {
    pub(crate) connections: u64,
    /// From one to the next, on the mean.
    pub(crate) every_us: f64,
    /// The longest that one was open, or that it took from one to the next.
    pub(crate) longest_us: u64,
    /// How long the last one is ago.
    pub(crate) ago_us: u64,
    pub(crate) messages: u64,
    pub(crate) requests: u64,
    pub(crate) publishes: u64,
    /// Messages per second while connections were open, those of requests that came in part
    /// included.
    pub(crate) rate: f64,
    /// Share of that time in which a request was coming in.
    pub(crate) receiving_share: f64,
    /// Of requests that came behind an answer.
    pub(crate) request_gap_us: HistogramSnapshot,
    /// Of first records.
    pub(crate) record_age_us: HistogramSnapshot,
}

impl GivenUps {
    /// Takes note of a closed connection, if it is one of these.
    pub(crate) fn look(&mut self, closed: &ClosedConnection, abandoned: u64, now_us: u64) {
        let counters = &closed.counters;
        let is_inside = closed.is_inside_request && counters.bytes_in >= BYTES_MIN;
        if !is_inside && abandoned == 0 {
            return;
        }
        if self.all.len() == KEPT_MAX {
            self.all.pop_front();
        }
        let lived_us = closed.last_active_us.saturating_sub(closed.opened_us);
        self.all.push_back(GivenUp {
            closed_us: closed.last_active_us.min(now_us),
            lived_us: lived_us.min(SANE_MAX),
            receiving_us: closed.request_receive_us.sum().min(SANE_MAX),
            bytes_in: counters.bytes_in.min(SANE_MAX),
            published_bytes: counters.published_bytes.min(SANE_MAX),
            requests: counters.requests.min(SANE_MAX),
            publishes: counters.publishes.min(SANE_MAX),
            messages: counters.messages_in.min(SANE_MAX),
            request_gap_us: closed.request_gap_us.clone(),
            record_age_us: closed.record_age_us.clone(),
        });
    }

    /// Forgets what is older.
    pub(crate) fn forget_older(&mut self, oldest_us: u64) {
        self.all.retain(|it| it.closed_us >= oldest_us);
    }

    /// All of them together; `None` while there are less than two.
    pub(crate) fn sum(&self, now_us: u64) -> Option<GaveUp> {
        let (first, last) = (self.all.front()?, self.all.back()?);
        let between = self.all.len() as u64 - 1;
        let span_us = last.closed_us.saturating_sub(first.closed_us);
        let sum = |of: fn(&GivenUp) -> u64| self.all.iter().map(of).sum::<u64>();
        let (messages, bytes) = (sum(|it| it.messages), sum(|it| it.published_bytes));
        let message_bytes = bytes as f64 / messages.max(1) as f64;
        let lived_us = sum(|it| it.lived_us);
        let bytes_per_second = sum(|it| it.bytes_in) as f64 * 1e6 / lived_us as f64;
        let closed_us = self.all.iter().map(|it| it.closed_us);
        let gaps_us = closed_us.clone().skip(1).zip(closed_us);
        let gaps_us = gaps_us.map(|(next_us, us)| next_us.saturating_sub(us));
        let longest_us = gaps_us.chain(self.all.iter().map(|it| it.lived_us)).max();
        let mut request_gap_us = HistogramSnapshot::default();
        let mut record_age_us = HistogramSnapshot::default();
        for one in &self.all {
            request_gap_us.merge(&one.request_gap_us);
            record_age_us.merge(&one.record_age_us);
        }
        (between > 0 && bytes > 0 && lived_us > 0).then_some(GaveUp {
            connections: between + 1,
            every_us: span_us as f64 / between as f64,
            longest_us: longest_us.unwrap_or_default(),
            ago_us: now_us.saturating_sub(last.closed_us),
            messages,
            requests: sum(|it| it.requests),
            publishes: sum(|it| it.publishes),
            rate: bytes_per_second / message_bytes,
            receiving_share: sum(|it| it.receiving_us) as f64 / lived_us as f64,
            request_gap_us,
            record_age_us,
        })
    }
}
