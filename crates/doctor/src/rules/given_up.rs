//! Connections that their clients gave up: closed within a request, or before an answer, while the
//! client had more to send.

use std::collections::VecDeque;

use cloverleaf_telemetry::{ClosedConnection, HistogramSnapshot};

use crate::rules::LONG_US;
use crate::rules::churn::SANE_MAX;

/// Maximum connections kept of a client, the latest ones. `ClosedConnections` limits those of all
/// clients.
const KEPT_MAX: usize = 16;

/// If a connection received less than this in total, an incomplete request means nothing: it was
/// part of a handshake, or sent by a port scanner.
const BYTES_MIN: u64 = 4 << 10;

/// Marks below which gaps are counted: four in an octave, from 64 µs to 14 s.
const MARKS: usize = 72;

/// Where a mark is, in microseconds: at the edge of a histogram's bucket.
fn mark_us(mark: usize) -> u64 {
    (4 + mark as u64 % 4) << (4 + mark / 4)
}

/// A distribution of gaps: how many are shorter than each mark.
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

    /// Upper bound of the number of gaps of at least `us`.
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
    /// Time in which a request was being received.
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

/// A connection's round trips; 0 if the kernel was not asked while it was open.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoundTrips {
    /// The minimum, in microseconds.
    pub(crate) least_us: u32,
    /// The maximum smoothed round trip that was reported, in microseconds.
    pub(crate) longest_us: u32,
}

/// The connections that one client gave up, oldest first.
#[derive(Debug, Default)]
pub(crate) struct GivenUps {
    all: VecDeque<GivenUp>,
}

/// Sums and means of a client's connections that were given up, times in microseconds.
#[derive(Debug, Clone)]
pub(crate) struct GivenUpTotals {
    pub(crate) connections: u64,
    /// Mean interval between two of them.
    pub(crate) every_us: f64,
    /// The longest life of one of them, or the longest interval, if that is longer.
    pub(crate) longest_us: u64,
    /// Time since the last one was closed.
    pub(crate) ago_us: u64,
    pub(crate) messages: u64,
    pub(crate) requests: u64,
    pub(crate) publishes: u64,
    /// Messages per second while connections were open, including those of incomplete requests.
    pub(crate) rate: f64,
    /// Share of that time in which a request was being received.
    pub(crate) receiving_share: f64,
    /// Requests that came long enough after an answer to have waited for it.
    pub(crate) waited: u64,
    /// How many ages of records were measured.
    pub(crate) record_ages: u64,
    /// Mean age of records.
    pub(crate) record_age_us: f64,
    /// Round trips of the connections for which they are known.
    pub(crate) ways: Vec<RoundTrips>,
}

impl GivenUps {
    /// Adds a closed connection, if its client gave it up.
    pub(crate) fn observe(
        &mut self,
        closed: &ClosedConnection,
        abandoned: u64,
        way: RoundTrips,
        now_us: u64,
    ) {
        let counters = &closed.counters;
        let is_inside = closed.is_inside_request && counters.bytes_in >= BYTES_MIN;
        let lived_us = closed.last_active_us.saturating_sub(closed.opened_us);
        // A connection that lived this long was not closed because requests waited for seconds: the
        // program was probably replaced. If it was a timeout, the next connections are short.
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

    /// The number of connections kept.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    #[cfg(test)]
    pub(crate) fn len_bytes(&self) -> usize {
        self.all.capacity() * size_of::<GivenUp>()
    }

    /// When the oldest was closed, in microseconds.
    pub(crate) fn oldest_us(&self) -> Option<u64> {
        self.all.front().map(|it| it.closed_us)
    }

    /// Drops the oldest.
    pub(crate) fn forget_oldest(&mut self) {
        self.all.pop_front();
        self.all.shrink_to(2 * self.all.len());
    }

    /// Drops those that were closed before `oldest_us`.
    pub(crate) fn forget_older(&mut self, oldest_us: u64) {
        self.all.retain(|it| it.closed_us >= oldest_us);
        self.all.shrink_to(2 * self.all.len());
    }

    /// Sums over all of them. A gap of at least `wait_us` counts as waiting for an answer. `None`
    /// if there are fewer than two connections.
    pub(crate) fn sum(&self, now_us: u64, wait_us: u64) -> Option<GivenUpTotals> {
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
        (between > 0 && bytes > 0 && lived_us > 0).then_some(GivenUpTotals {
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
        // All values from 10,240 to 12,287 are between two marks.
        assert_eq!(gaps.as_long_as(12_287), 3);
        assert_eq!(gaps.as_long_as(u64::MAX), 1);
        assert_eq!((mark_us(0), mark_us(MARKS - 1)), (64, 14_680_064));
        // If a mark split a bucket, the bucket would count as longer.
        for mark in 0..MARKS {
            assert_eq!(of(&[mark_us(mark) - 1]).as_long_as(mark_us(mark)), 0);
        }
    }

    #[test]
    fn what_is_kept_of_one_is_small() {
        assert!(size_of::<GivenUp>() <= 512);
    }
}
