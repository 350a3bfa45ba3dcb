//! The sum of workers' reports. Histograms are added, percentiles are not averaged.

use crate::recorder::ClientStats;
use crate::usage::Usage;

use super::message::{Implausible, Reply, plausible, ranges_of, texts};

/// A report may have this many seconds more than have passed, because clocks differ.
const SECONDS_MORE: u32 = 60;
/// Maximum of ranges of all workers. Successive sequences at one worker are one range, so this many
/// ranges need very many messages spread over several workers.
const RANGES_MAX: usize = 100_000_000;

/// The sum of the reports of all workers.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) sent: ClientStats,
    pub(super) came: ClientStats,
    pub(super) errors: Vec<String>,
    pub(super) client_cpu_s: f64,
    pub(super) proxy_cpu_s: f64,
    /// The figure of the worker whose cores were busiest.
    pub(super) cores_busy: Option<f64>,
    /// Ranges received so far from all workers.
    ranges: usize,
}

impl Sum {
    /// Adds one reply of a report. Returns whether it was the worker's last one.
    pub(super) fn add(&mut self, reply: Reply, lasted_s: u32) -> Result<bool, Implausible> {
        match reply {
            Reply::Second {
                is_sent,
                at,
                second,
            } => {
                plausible(&second, at, lasted_s.saturating_add(SECONDS_MORE))?;
                let side = self.side(is_sent);
                let sum = side.seconds.entry(at).or_default();
                sum.add(&second);
                sum.response.pack();
            }
            Reply::Numbers {
                is_sent,
                producer,
                ranges,
            } => {
                self.ranges += 1 + ranges.len();
                if self.ranges > RANGES_MAX {
                    return Err(Implausible);
                }
                let ranges = ranges_of(&ranges)?;
                let side = self.side(is_sent);
                match is_sent {
                    true => {
                        let _ = side.acked.entry(producer).or_default().add(&ranges);
                    }
                    false => side.seen.add_numbers(producer, &ranges),
                }
            }
            Reply::Done {
                sent,
                came,
                errors,
                usage,
            } => {
                sent.add_to(&mut self.sent)?;
                came.add_to(&mut self.came)?;
                self.errors.extend(texts(errors));
                self.add_usage(&usage)?;
                return Ok(true);
            }
            _ => return Err(Implausible),
        }
        Ok(false)
    }

    fn add_usage(&mut self, usage: &Usage) -> Result<(), Implausible> {
        let cpu = [
            usage.client_cpu_s,
            usage.proxy_cpu_s,
            usage.cores_busy.unwrap_or(0.0),
        ];
        if !cpu.iter().all(|seconds| (0.0..1e9).contains(seconds)) {
            return Err(Implausible);
        }
        self.client_cpu_s += usage.client_cpu_s;
        self.proxy_cpu_s += usage.proxy_cpu_s;
        self.cores_busy = match (self.cores_busy, usage.cores_busy) {
            (Some(one), Some(two)) => Some(one.max(two)),
            (one, two) => one.or(two),
        };
        Ok(())
    }

    fn side(&mut self, is_sent: bool) -> &mut ClientStats {
        match is_sent {
            true => &mut self.sent,
            false => &mut self.came,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::clock::Clock;
    use crate::fleet::frame::{Frames, REPLY_BYTES_MAX, encode};
    use crate::fleet::message::report;
    use crate::message_source::Message;
    use crate::payload::Stamp;
    use crate::recorder::{Live, Recorder};
    use crate::sides::Side;

    const MS: u64 = 1_000_000;

    /// The figures of a producer with these latencies.
    fn sent(number: u32, latencies_ms: &[u64]) -> Side {
        let mut recorder = Recorder::new(Clock::new(), 1, number, 0, Live::default());
        for (sequence, ms) in (0..).zip(latencies_ms) {
            let message = Message {
                sequence: 2 * sequence,
                intended_ns: sequence * 100 * MS,
                sent_ns: sequence * 100 * MS,
                key: None,
                is_measured: true,
            };
            recorder.sent(&message, false);
            recorder.acked(&message, 100, message.sent_ns + ms * MS);
        }
        Side {
            stats: recorder.finish(),
            errors: Vec::new(),
        }
    }

    fn came(number: u32, sequences: &[u64]) -> Side {
        let clock = Clock::new();
        let mut recorder = Recorder::new(clock, 1, number, 0, Live::default());
        for sequence in sequences {
            let stamp = Stamp {
                run: 1,
                producer: 7,
                sequence: *sequence,
                intended_unix_ns: clock.to_unix_ns(5),
                lag_us: 0,
            };
            let mut message = [0; 40];
            stamp.write(&mut message);
            recorder.came(&message, None, 5 * MS);
        }
        Side {
            stats: recorder.finish(),
            errors: Vec::new(),
        }
    }

    /// Encodes the report, decodes it, and adds it to the sum.
    fn add(sum: &mut Sum, sent: Side, came: Side) {
        let usage = Usage {
            client_cpu_s: 0.5,
            cores_busy: Some(came.stats.messages as f64 / 10.0),
            ..Usage::default()
        };
        let mut frames = Frames::new(REPLY_BYTES_MAX);
        for reply in report(sent, came, usage) {
            frames.push(&encode(&reply).unwrap());
        }
        loop {
            let reply: Reply = frames.next().unwrap().unwrap();
            if sum.add(reply, 100).unwrap() {
                break;
            }
        }
        assert!(
            frames.next::<Reply>().unwrap().is_none(),
            "the last one is the last"
        );
    }

    #[test]
    fn histograms_are_added_and_not_averaged() {
        let fast: Vec<u64> = vec![1; 99];
        let slow: Vec<u64> = vec![1_000; 1];
        let (one, two) = (sent(0, &fast), sent(1, &slow));
        let mut expected = one.stats.clone();
        expected.add(&two.stats);
        let mut sum = Sum::default();
        add(&mut sum, one, came(0, &[0, 1, 2]));
        add(&mut sum, two, came(1, &[2, 3]));
        for quantile in [0.5, 0.98, 0.99, 0.999] {
            let theirs = expected.response.quantile_ns(quantile);
            assert_eq!(
                sum.sent.response.quantile_ns(quantile),
                theirs,
                "{quantile}"
            );
        }
        // The mean of the two medians would be half a second.
        assert!(sum.sent.response.quantile_ns(0.5) < 2 * MS);
        assert_eq!(sum.sent.span_ns, expected.span_ns);
        assert_eq!(sum.sent.acked, expected.acked);
        let seconds = |stats: &ClientStats| -> Vec<(u32, u64)> {
            stats
                .seconds
                .iter()
                .map(|(at, it)| (*at, it.messages))
                .collect()
        };
        assert_eq!(seconds(&sum.sent), seconds(&expected));
        assert_eq!((sum.client_cpu_s, sum.cores_busy), (1.0, Some(0.3)));
        // Both workers received sequence 2.
        let acked = std::collections::BTreeMap::from([(7, ranges_of(&[(0, 6)]).unwrap())]);
        let findings = sum.came.seen.compare(&acked);
        assert_eq!((findings.lost, findings.duplicates), (2, 1));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let numbers = |ranges| Reply::Numbers {
            is_sent: true,
            producer: 0,
            ranges,
        };
        let mut sum = Sum::default();
        for wrong in [vec![(3, 3)], vec![(4, 2)], vec![(0, u64::MAX)]] {
            assert_eq!(sum.add(numbers(wrong), 1), Err(Implausible));
        }
        let late = Reply::Second {
            is_sent: true,
            at: 1_000,
            second: Box::default(),
        };
        assert_eq!(sum.add(late, 1), Err(Implausible));
        assert_eq!(sum.add(Reply::Ready, 1), Err(Implausible));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damaged_reports_break_nothing(
            latencies in prop::collection::vec(0..100_000u64, 0..20),
            sequences in prop::collection::vec(0..50u64, 0..20),
            damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let side = (sent(0, &latencies), came(0, &sequences));
            let replies = report(side.0, side.1, Usage::default());
            let mut bytes: Vec<u8> = replies.iter().flat_map(|it| encode(it).unwrap()).collect();
            for (at, byte) in damages {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let (mut frames, mut sum) = (Frames::new(REPLY_BYTES_MAX), Sum::default());
            frames.push(&bytes);
            while let Ok(Some(reply)) = frames.next::<Reply>() {
                if sum.add(reply, 1_000).is_err() {
                    break;
                }
            }
        }
    }
}
