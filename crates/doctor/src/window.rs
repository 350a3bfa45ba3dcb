//! How a connection's numbers changed: over the last seconds, the last minute, the last minutes.
//!
//! ```text
//! now                                                                         10 min ago
//!  ├─2 s─┼─2 s─┼─ … ─┼── 16 s ──┼── 16 s ──┼─ … ─┼──── 64 s ────┼─ … ─┼──── 64 s ────┤
//!    8 to 15 fine spans  4 to 7 middle ones          at most 9 coarse ones
//! ```
//!
//! A span has the traffic of its time, packed; times without traffic have no span. Spans are merged
//! as they grow old, so that a minute of a busy connection takes about 5 KB. A history that exceeds
//! its share of the memory is shortened.

use std::collections::VecDeque;

use cloverleaf_telemetry::ConnectionSnapshot;

use crate::Client;
use crate::ack_log::AckLog;
use crate::pack::{Flow, Pack};
use crate::rules::RoundTrips;

/// Length of a step and of its fine span, in microseconds: short enough for findings within
/// seconds.
pub(crate) const STEP_US: u64 = 2_000_000;

/// Maximum number of first acknowledgements that are kept.
const FIRST_ACKS_MAX: usize = 16;

const MERGED: usize = 8;
const FINE_MAX: usize = 2 * MERGED;
const MIDDLE_MERGED: usize = 4;
const MIDDLE_MAX: usize = 2 * MIDDLE_MERGED;
const COARSE_MAX: usize = 9;

/// Older spans are dropped, even if no newer ones came.
const KEPT_US: u64 = 660_000_000;

/// Steps whose round trip is kept: a minute.
const RTTS_MAX: usize = 30;

#[derive(Debug)]
struct Span {
    from_us: u64,
    to_us: u64,
    pack: Pack,
}

impl Span {
    fn len_bytes(&self) -> usize {
        size_of::<Span>() + self.pack.len_bytes()
    }

    fn window(&self) -> Window {
        Window {
            span_us: self.to_us - self.from_us,
            flow: Pack::sum(std::iter::once(&self.pack)),
        }
    }

    fn together(spans: impl Iterator<Item = Span>) -> Option<Span> {
        let spans: Vec<Span> = spans.collect();
        let flow = Pack::sum(spans.iter().map(|span| &span.pack));
        Some(Span {
            from_us: spans.first()?.from_us,
            to_us: spans.last()?.to_us,
            pack: Pack::of(&flow.counters, &flow.histograms),
        })
    }
}

/// A connection's traffic within a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    /// Length of the time, in microseconds.
    pub(crate) span_us: u64,
    /// The traffic, as counters and histograms.
    pub(crate) flow: Flow,
}

impl Window {
    /// This many events of the window, as a rate per second.
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        count as f64 * 1e6 / self.span_us.max(1) as f64
    }
}

/// Intervals that counters include only when they end: the part that has passed so far.
#[derive(Debug, Default)]
struct OpenIntervals {
    holding_us: u64,
    no_credit_us: u64,
}

/// A connection over the last minutes.
#[derive(Debug)]
pub(crate) struct History {
    /// The client that it belongs to.
    pub(crate) client: Client,
    /// Since when it is observed.
    since_us: u64,
    totals: Pack,
    totals_us: u64,
    fine: VecDeque<Span>,
    middle: VecDeque<Span>,
    coarse: VecDeque<Span>,
    /// Latencies of slow acknowledgements.
    pub(crate) ack_log: AckLog,
    /// When a first acknowledgement was observed, and how long it took (`Gauges::first_ack_us`).
    first_acks: VecDeque<(u64, u64)>,
    /// Unfinished intervals, as of the last step.
    open_intervals: OpenIntervals,
    /// The minimum round trip that the kernel reported, in microseconds; 0 before the first report.
    pub(crate) rtt_us: u32,
    /// The smoothed round trip at the end of each of the last steps, oldest first; 0 for a step in
    /// which nothing was sent, because the kernel's figure is outdated then.
    rtts_us: VecDeque<u32>,
    bytes_out: u64,
}

impl History {
    /// A connection that is observed for the first time. If it was opened after `known_since_us`,
    /// its totals count as traffic since then.
    pub(crate) fn new(seen: &ConnectionSnapshot, client: Client, known_since_us: u64) -> History {
        let is_new = seen.opened_us >= known_since_us;
        let mut history = History {
            client,
            since_us: seen.opened_us,
            totals: Pack::default(),
            totals_us: seen.opened_us,
            ack_log: if is_new {
                AckLog::since(seen.opened_us)
            } else {
                AckLog::default()
            },
            first_acks: VecDeque::new(),
            open_intervals: OpenIntervals::default(),
            fine: VecDeque::new(),
            middle: VecDeque::new(),
            coarse: VecDeque::new(),
            rtt_us: 0,
            rtts_us: VecDeque::new(),
            bytes_out: 0,
        };
        if !is_new {
            history.since_us = known_since_us;
            history.totals_us = known_since_us;
            let latencies = &seen.histograms.ack_latency_us;
            history.ack_log.observe(latencies, known_since_us);
            history.totals = history.totals_of(seen, known_since_us);
        }
        history
    }

    /// Records figures that need a finer resolution than a step.
    pub(crate) fn observe(&mut self, seen: &ConnectionSnapshot, now_us: u64) {
        self.ack_log
            .observe(&seen.histograms.ack_latency_us, now_us);
        let first_us = seen.gauges.first_ack_us;
        let is_known = |last: &(u64, u64)| last.1 == first_us;
        if first_us > 0 && !self.first_acks.back().is_some_and(is_known) {
            if self.first_acks.len() == FIRST_ACKS_MAX {
                self.first_acks.pop_front();
            }
            self.first_acks.push_back((now_us, first_us));
        }
    }

    /// The usual time until the first acknowledgement, after a time with nothing in flight: the
    /// median of those observed since `since_us`, or else the latest one before.
    pub(crate) fn first_ack_us(&self, since_us: u64) -> Option<u64> {
        let recent = self.first_acks.iter().filter(|it| it.0 >= since_us);
        let mut recent: Vec<u64> = recent.map(|it| it.1).collect();
        recent.sort_unstable();
        let middle = recent.get(recent.len() / 2).copied();
        middle.or_else(|| Some(self.first_acks.back()?.1))
    }

    /// Adds the traffic since the last step, as a step that ends now.
    pub(crate) fn step(&mut self, seen: &ConnectionSnapshot, now_us: u64) {
        self.note_rtt(seen);
        let totals = self.totals_of(seen, now_us);
        match totals.since(&self.totals) {
            Some(pack) if pack.is_empty() => {}
            Some(pack) => self.push(Span {
                from_us: self.totals_us.min(now_us),
                to_us: now_us,
                pack,
            }),
            // Totals never fall, so these belong to another connection: the history starts again.
            None => {
                self.open_intervals = OpenIntervals::default();
                self.fine.clear();
                self.middle.clear();
                self.coarse.clear();
                self.rtts_us.clear();
                self.since_us = now_us;
            }
        }
        self.totals = totals;
        self.totals_us = now_us;
        let oldest_us = now_us.saturating_sub(KEPT_US);
        for spans in [&mut self.coarse, &mut self.middle, &mut self.fine] {
            while spans.front().is_some_and(|span| span.to_us < oldest_us) {
                spans.pop_front();
            }
        }
    }

    fn note_rtt(&mut self, seen: &ConnectionSnapshot) {
        let has_sent = seen.counters.bytes_out != self.bytes_out;
        self.bytes_out = seen.counters.bytes_out;
        let Some(tcp) = seen.tcp else { return };
        let least = match tcp.min_rtt_us {
            0 => tcp.rtt_us,
            min_rtt_us => min_rtt_us,
        };
        self.rtt_us = match self.rtt_us {
            0 => least,
            known if least > 0 => known.min(least),
            known => known,
        };
        if self.rtts_us.len() == RTTS_MAX {
            self.rtts_us.pop_front();
        }
        self.rtts_us
            .push_back(if has_sent { tcp.rtt_us } else { 0 });
    }

    /// The minimum of the round trips reported over the last minute; `None` if a step has none.
    pub(crate) fn rtt_of_a_minute_us(&self) -> Option<u32> {
        let shortest = self.rtts_us.iter().copied().min();
        shortest.filter(|rtt_us| self.rtts_us.len() == RTTS_MAX && *rtt_us > 0)
    }

    /// Minimum and maximum of its round trip within that minute.
    pub(crate) fn round_trips(&self) -> RoundTrips {
        RoundTrips {
            least_us: self.rtt_us,
            longest_us: self.rtts_us.iter().copied().max().unwrap_or_default(),
        }
    }

    /// The totals until now, including unfinished intervals.
    fn totals_of(&mut self, seen: &ConnectionSnapshot, now_us: u64) -> Pack {
        let mut counters = seen.counters;
        let until_now = |ended_us: u64, since_us: u64| match since_us {
            0 => ended_us,
            since_us => ended_us.saturating_add(now_us.saturating_sub(since_us)),
        };
        let gauges = &seen.gauges;
        // Counter and gauge of an interval are not read at the same instant, so their sum may seem
        // to fall.
        let OpenIntervals {
            holding_us,
            no_credit_us,
        } = &mut self.open_intervals;
        let now = until_now(counters.holding_us, gauges.holding_since_us);
        *holding_us = now.max(*holding_us);
        let now = until_now(counters.no_credit_us, gauges.no_credit_since_us);
        *no_credit_us = now.max(*no_credit_us);
        (counters.holding_us, counters.no_credit_us) = (*holding_us, *no_credit_us);
        Pack::of(&counters, &seen.histograms)
    }

    fn push(&mut self, span: Span) {
        self.fine.push_back(span);
        if self.fine.len() >= FINE_MAX {
            let merged = Span::together(self.fine.drain(..MERGED));
            self.middle.extend(merged);
        }
        if self.middle.len() >= MIDDLE_MAX {
            let merged = Span::together(self.middle.drain(..MIDDLE_MERGED));
            self.coarse.extend(merged);
        }
        if self.coarse.len() > COARSE_MAX {
            self.coarse.pop_front();
        }
    }

    /// Drops the oldest spans until the history takes at most this many bytes.
    pub(crate) fn shrink(&mut self, bytes_max: usize) {
        let mut bytes = self.len_bytes();
        while bytes > bytes_max {
            let oldest = self
                .coarse
                .pop_front()
                .or_else(|| self.middle.pop_front())
                .or_else(|| self.fine.pop_front());
            let Some(oldest) = oldest else {
                self.ack_log.forget();
                return;
            };
            self.since_us = self.since_us.max(oldest.to_us);
            bytes -= oldest.len_bytes();
        }
    }

    /// Its memory in bytes.
    pub(crate) fn len_bytes(&self) -> usize {
        let spans = self.spans().map(Span::len_bytes).sum::<usize>();
        let looks = 16 * self.first_acks.capacity();
        let looks = looks + self.rtts_us.capacity() * size_of::<u32>() + self.ack_log.len_bytes();
        size_of::<History>() + looks + self.totals.len_bytes() + spans
    }

    /// Whether the last step had traffic.
    pub(crate) fn is_active(&self, now_us: u64) -> bool {
        self.fine.back().is_some_and(|span| span.to_us == now_us)
    }

    /// Whether there is no traffic in it.
    pub(crate) fn is_blank(&self) -> bool {
        self.fine.is_empty() && self.middle.is_empty() && self.coarse.is_empty()
    }

    /// The traffic of the last `length_us`, or since the connection is observed if that is shorter.
    pub(crate) fn window(&self, now_us: u64, length_us: u64) -> Window {
        // Steps do not begin exactly on time.
        let reach_us = now_us.saturating_sub(length_us + STEP_US / 2);
        let mut start_us = self.since_us.max(now_us.saturating_sub(length_us));
        let mut oldest_us = now_us;
        let mut within = Vec::new();
        for span in self.spans().rev() {
            if span.from_us < reach_us && span.to_us < now_us {
                start_us = start_us.max(span.to_us);
                break;
            }
            oldest_us = span.from_us;
            within.push(&span.pack);
        }
        Window {
            span_us: now_us.saturating_sub(start_us.min(oldest_us)),
            flow: Pack::sum(within.into_iter()),
        }
    }

    /// The traffic of each of the last `count` fine spans, oldest first.
    pub(crate) fn steps(&self, count: usize) -> Vec<Window> {
        let skip = self.fine.len().saturating_sub(count);
        self.fine.iter().skip(skip).map(Span::window).collect()
    }

    /// The traffic of each of the spans that began within the last `length_us`, the latest first.
    pub(crate) fn since(&self, now_us: u64, length_us: u64) -> Vec<Window> {
        let from_us = now_us.saturating_sub(length_us);
        let latest = self.spans().rev();
        latest
            .take_while(|span| span.from_us >= from_us)
            .map(Span::window)
            .collect()
    }

    fn spans(&self) -> impl DoubleEndedIterator<Item = &Span> {
        self.coarse.iter().chain(&self.middle).chain(&self.fine)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use cloverleaf_telemetry::{Protocol, Registry};

    use super::*;

    const S: u64 = 1_000_000;

    struct Seen {
        registry: Registry,
        probe: cloverleaf_telemetry::Probe,
    }

    impl Seen {
        fn new(opened_us: u64) -> Seen {
            let registry = Registry::new();
            let peer = std::net::SocketAddr::from(([10, 0, 0, 1], 1));
            let probe = registry.open(Protocol::Nsq, peer, opened_us);
            Seen { registry, probe }
        }

        fn now(&self, now_us: u64) -> ConnectionSnapshot {
            self.registry.snapshot(now_us, |_| None).connections[0].clone()
        }

        fn history(&self, known_since_us: u64) -> History {
            let seen = self.now(0);
            let client = Client::of(seen.protocol, seen.peer, &seen.identity);
            History::new(&seen, client, known_since_us)
        }
    }

    #[test]
    fn windows_of_all_lengths_hold_what_came_within_them() {
        let seen = Seen::new(0);
        let mut history = seen.history(0);
        for second in 1..=600 {
            seen.probe.read(100, second * S);
            if second % 2 == 0 {
                history.step(&seen.now(second * S), second * S);
            }
        }
        let now_us = 600 * S;
        for (seconds, slack) in [(6, 0), (16, 0), (60, 16), (300, 64)] {
            let window = history.window(now_us, seconds * S);
            let reads = window.flow.counters.reads;
            assert_eq!(
                reads,
                window.span_us / S,
                "every second one, over {seconds} s"
            );
            assert!(
                (seconds - slack..=seconds).contains(&reads),
                "{reads} of {seconds}"
            );
        }
        assert!(history.len_bytes() < 2048, "{}", history.len_bytes());
    }

    #[test]
    fn times_in_which_nothing_came_are_part_of_a_window() {
        let seen = Seen::new(0);
        let mut history = seen.history(0);
        seen.probe.read(1, S);
        history.step(&seen.now(2 * S), 2 * S);
        for second in [4, 6, 8, 10, 12, 14] {
            history.step(&seen.now(second * S), second * S);
        }
        assert!(!history.is_active(14 * S) && !history.is_blank());
        let window = history.window(14 * S, 60 * S);
        assert_eq!((window.span_us, window.flow.counters.reads), (14 * S, 1));
        let window = history.window(14 * S, 6 * S);
        assert_eq!((window.span_us, window.flow.counters.reads), (6 * S, 0));
    }

    #[test]
    fn what_came_before_the_doctor_did_is_not_in_a_window() {
        let seen = Seen::new(0);
        seen.probe.read(1, S);
        let mut history = seen.history(100 * S);
        seen.probe.read(1, 101 * S);
        history.step(&seen.now(102 * S), 102 * S);
        let window = history.window(102 * S, 60 * S);
        assert_eq!((window.span_us, window.flow.counters.reads), (2 * S, 1));
    }

    #[test]
    fn numbers_that_fall_begin_a_new_history() {
        let seen = Seen::new(0);
        let mut history = seen.history(0);
        seen.probe.read(1, S);
        history.step(&seen.now(2 * S), 2 * S);
        let other = Seen::new(0);
        history.step(&other.now(4 * S), 4 * S);
        assert!(history.is_blank());
        other.probe.read(1, 5 * S);
        history.step(&other.now(6 * S), 6 * S);
        let window = history.window(6 * S, 60 * S);
        assert_eq!((window.span_us, window.flow.counters.reads), (2 * S, 1));
    }

    #[test]
    fn a_history_that_takes_too_much_is_shortened() {
        let seen = Seen::new(0);
        let mut history = seen.history(0);
        for step in 1..100 {
            seen.probe.read(100, step);
            history.step(&seen.now(step * STEP_US), step * STEP_US);
        }
        let before = history.len_bytes();
        history.shrink(before / 2);
        assert!(history.len_bytes() <= before / 2);
        let now_us = 99 * STEP_US;
        let window = history.window(now_us, 600 * S);
        assert_eq!(window.flow.counters.reads, window.span_us / STEP_US);
        history.shrink(0);
        assert!(history.is_blank());
        assert_eq!(history.window(now_us, 600 * S).span_us, 0);
    }
}
