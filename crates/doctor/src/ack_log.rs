//! Latencies of single slow acknowledgements, as far as one observation per second can separate
//! them.
//!
//! ```text
//! seen    |         |         |         |         |     one observation a second
//! acks          x x                  x x
//! log                2 of J              2 of 2 J       (since the observation before)
//! ```
//!
//! Latencies of less than a tenth of a second are not logged, and neither are those of a client
//! with so many at once that observations cannot separate them. Windows cover both.

use std::collections::VecDeque;

use cloverleaf_telemetry::HistogramSnapshot;

/// The first bucket of latencies that are logged: it begins at 2^17 microseconds.
const SLOW_BUCKET: u16 = 120;

/// Maximum entries: about two dozen groups of jobs of most clients.
const ENTRIES_MAX: usize = 48;

/// Maximum entries, and maximum acknowledgements, that one observation may add.
const ADDED_MAX: usize = 8;
const ACKS_MAX: u64 = 256;

/// Messages with about the same latency, acknowledged between two observations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acked {
    /// Times of the observation before, and of the one that showed the acknowledgements.
    pub(crate) since_us: u64,
    pub(crate) at_us: u64,
    pub(crate) latency_us: u64,
    pub(crate) count: u64,
}

/// The latest slow acknowledgements of a connection.
#[derive(Debug, Default)]
pub(crate) struct AckLog {
    looked_us: u64,
    /// Counts of the slow buckets, and the sum of all latencies, at the last observation.
    slow: Vec<(u16, u64)>,
    sum: u64,
    entries: VecDeque<Acked>,
    /// The log is complete for messages delivered since this time.
    pub(crate) whole_since_us: u64,
}

impl AckLog {
    /// The log of a connection that was opened at this time, so nothing is missing.
    pub(crate) fn since(opened_us: u64) -> AckLog {
        AckLog {
            looked_us: opened_us.max(1),
            ..AckLog::default()
        }
    }

    /// Logs the latencies that are new since the last call. Those of the first call are not new.
    pub(crate) fn observe(&mut self, latencies: &HistogramSnapshot, now_us: u64) {
        let buckets = latencies.buckets();
        let first = buckets.partition_point(|(bucket, _)| *bucket < SLOW_BUCKET);
        let since_us = std::mem::replace(&mut self.looked_us, now_us);
        let is_first = since_us == 0;
        let sum_before = std::mem::replace(&mut self.sum, latencies.sum());
        if self.slow == buckets[first..] {
            self.whole_since_us = if is_first {
                now_us
            } else {
                self.whole_since_us
            };
            return;
        }
        let before = std::mem::replace(&mut self.slow, buckets[first..].to_vec());
        let mut added = Vec::new();
        let mut is_known = !is_first;
        for (bucket, count) in &self.slow {
            let at = before.binary_search_by_key(bucket, |(bucket, _)| *bucket);
            let known = at.map_or(0, |at| before[at].1);
            match count.checked_sub(known) {
                Some(0) => {}
                Some(count) => added.push((*bucket, count)),
                None => is_known = false,
            }
        }
        let acks: u64 = added.iter().map(|(_, count)| count).sum();
        if !is_known || added.len() > ADDED_MAX || acks > ACKS_MAX {
            self.entries.clear();
            self.whole_since_us = now_us;
            return;
        }
        let gained_us = latencies.sum().wrapping_sub(sum_before);
        let is_one = added.len() == 1;
        for (bucket, count) in added {
            let one = HistogramSnapshot::from_buckets(vec![(bucket, count)], 0, u64::MAX);
            let middle_us = one.map_or(0, |one| one.quantile(0.5));
            // If only one bucket has grown, the mean is exact.
            let mean_us = gained_us / count;
            let is_mean = is_one && mean_us.abs_diff(middle_us) <= middle_us / 12;
            if self.entries.len() == ENTRIES_MAX {
                let oldest = self.entries.pop_front();
                let at_us = oldest.map_or(0, |oldest| oldest.at_us);
                self.whole_since_us = self.whole_since_us.max(at_us);
            }
            self.entries.push_back(Acked {
                since_us,
                at_us: now_us,
                latency_us: if is_mean { mean_us } else { middle_us },
                count,
            });
        }
    }

    /// Drops all entries and frees their memory.
    pub(crate) fn forget(&mut self) {
        self.entries = VecDeque::new();
        self.whole_since_us = self.looked_us;
    }

    /// Its entries, oldest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Acked> {
        self.entries.iter()
    }

    /// Bytes that it has allocated.
    pub(crate) fn len_bytes(&self) -> usize {
        size_of::<(u16, u64)>() * self.slow.capacity()
            + size_of::<Acked>() * self.entries.capacity()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use cloverleaf_telemetry::{Probe, Protocol, Registry};

    use super::*;

    const S: u64 = 1_000_000;

    /// The lower bound of the first logged bucket.
    const SLOW_US: u64 = 1 << 17;

    fn observe(log: &mut AckLog, probe: &Probe, now_us: u64) {
        log.observe(&probe.snapshot(|_| None).histograms.ack_latency_us, now_us);
    }

    fn probe() -> Probe {
        Registry::new().open(Protocol::Amqp, SocketAddr::from(([127, 0, 0, 1], 9)), 1)
    }

    #[test]
    fn slow_work_is_logged_with_its_time_and_quick_work_is_not() {
        let (probe, mut log) = (probe(), AckLog::default());
        probe.acked_many(1, 9 * S);
        observe(&mut log, &probe, S);
        probe.acked_many(2, 3 * S);
        observe(&mut log, &probe, 2 * S);
        probe.acked_many(1, SLOW_US - 1);
        observe(&mut log, &probe, 3 * S);
        probe.acked_many(1, SLOW_US);
        observe(&mut log, &probe, 5 * S);
        let seen: Vec<_> = log.entries().copied().collect();
        let entry = |since_us, at_us, latency_us, count| Acked {
            since_us,
            at_us,
            latency_us,
            count,
        };
        let expected = [entry(S, 2 * S, 3 * S, 2), entry(3 * S, 5 * S, SLOW_US, 1)];
        assert_eq!(seen, expected);
        assert_eq!(log.whole_since_us, S);
    }

    #[test]
    fn times_that_come_together_are_told_apart_about() {
        let (probe, mut log) = (probe(), AckLog::default());
        observe(&mut log, &probe, S);
        probe.acked_many(2, S);
        probe.acked_many(1, 2 * S);
        observe(&mut log, &probe, 2 * S);
        let seen: Vec<_> = log.entries().map(|it| (it.latency_us, it.count)).collect();
        for ((latency_us, count), expected) in seen.into_iter().zip([(S, 2), (2 * S, 1)]) {
            assert!(
                latency_us.abs_diff(expected.0) <= expected.0 / 16,
                "{latency_us}"
            );
            assert_eq!(count, expected.1);
        }
    }

    #[test]
    fn a_log_is_bounded_and_says_what_it_lost() {
        let (probe, mut log) = (probe(), AckLog::default());
        for second in 1..=100 {
            observe(&mut log, &probe, second * S);
            probe.acked_many(1, S);
        }
        assert_eq!(log.entries().count(), ENTRIES_MAX);
        assert_eq!(log.whole_since_us, 52 * S);
        assert!(log.len_bytes() < 4096);
        probe.acked_many(ACKS_MAX + 1, S);
        observe(&mut log, &probe, 101 * S);
        assert_eq!((log.entries().count(), log.whole_since_us), (0, 101 * S));
    }
}
