//! Connections that their clients gave up: they left within a request, or without an answer, while
//! they had more to say.

use std::collections::VecDeque;

use cloverleaf_telemetry::{ClosedConnection, HistogramSnapshot};

use crate::rules::LONG_US;
use crate::rules::churn::SANE_MAX;

/// How many of a client are kept, the last ones. Of all clients see `ClosedConnections`.
const KEPT_MAX: usize = 16;

/// Of a connection that brought less than this altogether, what is cut off says nothing: it was a
/// greeting, or a scanner's guess at one.
const BYTES_MIN: u64 = 4 << 10;

/// Marks below which gaps are counted: four in an octave, from 64 µs to 14 s.
const MARKS: usize = 72;

/// Where a mark is, in microseconds: at the edge of a histogram's bucket.
fn mark_us(mark: usize) -> u64 {
    (4 + mark as u64 % 4) << (4 + mark / 4)
}

/// How many gaps are shorter than each mark.
#[derive(Debug, Clone)]
struct Gaps {
    count: u64,
    shorter: [u32; MARKS],
}

impl Gaps {
    fn of(histogram: &HistogramSnapshot) -> Gaps {
        let shorter = |mark| histogram.count_at_most(mark_us(mark) - 1);
        Gaps {
            count: histogram.count().min(SANE_MAX),
            shorter: std::array::from_fn(|mark| shorter(mark).try_into().unwrap_or(u32::MAX)),
        }
    }

    /// How many may be as long as this, or longer.
    fn as_long_as(&self, us: u64) -> u64 {
        let mark = (0..MARKS).rev().find(|&mark| mark_us(mark) <= us);
        let shorter = mark.map_or(0, |mark| u64::from(self.shorter[mark]));
        self.count.saturating_sub(shorter)
    }
}

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
    gaps: Gaps,
    record_ages: u64,
    record_ages_us: u64,
    way: RoundTrips,
}

/// How long a connection's round trip was; all 0 if nobody asked the kernel while it was open.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoundTrips {
    /// The least, in microseconds.
    pub(crate) least_us: u32,
    /// The longest that was told, smoothed.
    pub(crate) longest_us: u32,
}

/// Those of one client, oldest first.
#[derive(Debug, Default)]
pub(crate) struct GivenUps {
    all: VecDeque<GivenUp>,
}

/// Sums and means of a client's connections that were given up, times in microseconds.
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
    /// Requests that came so long after an answer that they may have waited for it.
    pub(crate) waited: u64,
    /// How many ages of records were taken.
    pub(crate) record_ages: u64,
    /// Their mean.
    pub(crate) record_age_us: f64,
    /// The ways of those of which they are known.
    pub(crate) ways: Vec<RoundTrips>,
}

impl GivenUps {
    /// Takes note of a closed connection, if it is one of these.
    pub(crate) fn look(
        &mut self,
        closed: &ClosedConnection,
        abandoned: u64,
        way: RoundTrips,
        now_us: u64,
    ) {
        let counters = &closed.counters;
        let is_inside = closed.is_inside_request && counters.bytes_in >= BYTES_MIN;
        let lived_us = closed.last_active_us.saturating_sub(closed.opened_us);
        // A client that was well for so long has not lost patience with requests that wait for
        // seconds: a program is replaced. Where it is patience, the next connections are short.
        if (!is_inside && abandoned == 0) || lived_us >= LONG_US {
            return;
        }
        if self.all.len() == KEPT_MAX {
            self.all.pop_front();
        }
        self.all.push_back(GivenUp {
            closed_us: closed.last_active_us.min(now_us),
            lived_us,
            receiving_us: closed.receiving_us.min(SANE_MAX),
            bytes_in: counters.bytes_in.min(SANE_MAX),
            published_bytes: counters.published_bytes.min(SANE_MAX),
            requests: counters.requests.min(SANE_MAX),
            publishes: counters.publishes.min(SANE_MAX),
            messages: counters.messages_in.min(SANE_MAX),
            gaps: Gaps::of(&closed.request_gap_us),
            record_ages: closed.record_ages.min(SANE_MAX),
            record_ages_us: closed.record_ages_us,
            way,
        });
    }

    /// How many are kept.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    #[cfg(test)]
    pub(crate) fn len_bytes(&self) -> usize {
        self.all.capacity() * size_of::<GivenUp>()
    }

    /// When the oldest was closed.
    pub(crate) fn oldest_us(&self) -> Option<u64> {
        self.all.front().map(|it| it.closed_us)
    }

    /// Forgets the oldest.
    pub(crate) fn forget_oldest(&mut self) {
        self.all.pop_front();
        self.all.shrink_to(2 * self.all.len());
    }

    /// Forgets what is older.
    pub(crate) fn forget_older(&mut self, oldest_us: u64) {
        self.all.retain(|it| it.closed_us >= oldest_us);
        self.all.shrink_to(2 * self.all.len());
    }

    /// All of them together, where who waits has gaps of `wait_us` and more; `None` while there
    /// are less than two.
    pub(crate) fn sum(&self, now_us: u64, wait_us: u64) -> Option<GaveUp> {
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
        let record_ages = sum(|it| it.record_ages);
        let record_ages_us = self.all.iter().map(|it| it.record_ages_us as f64);
        let waited = self.all.iter().map(|it| it.gaps.as_long_as(wait_us));
        let ways = self.all.iter().map(|it| it.way);
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
            waited: waited.sum(),
            record_ages,
            record_age_us: record_ages_us.sum::<f64>() / record_ages.max(1) as f64,
            ways: ways.filter(|it| it.longest_us > 0).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn gaps_are_counted_as_long_when_in_doubt() {
        let of = |values: &[u64]| {
            let recorded = cloverleaf_telemetry::Histogram::new();
            values.iter().for_each(|&us| recorded.record(us));
            Gaps::of(&recorded.snapshot())
        };
        let gaps = of(&[0, 63, 64, 9_000, 10_239, 10_240, 20_000, u64::MAX]);
        assert_eq!(gaps.as_long_as(63), 8);
        assert_eq!(gaps.as_long_as(64), 6);
        assert_eq!(gaps.as_long_as(10_240), 3);
        // From 10,240 to 12,287 all is between two marks.
        assert_eq!(gaps.as_long_as(12_287), 3);
        assert_eq!(gaps.as_long_as(u64::MAX), 1);
        assert_eq!((mark_us(0), mark_us(MARKS - 1)), (64, 14_680_064));
        // A bucket that a mark cut in two would count as longer.
        for mark in 0..MARKS {
            assert_eq!(of(&[mark_us(mark) - 1]).as_long_as(mark_us(mark)), 0);
        }
    }

    #[test]
    fn what_is_kept_of_one_is_small() {
        assert!(size_of::<GivenUp>() <= 512);
    }
}
