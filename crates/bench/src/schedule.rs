//! The schedule of messages. In an open loop it does not depend on the broker.

use serde::{Deserialize, Serialize};

/// How messages arrive at all producers together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Arrivals {
    /// As soon as the window is not full: a closed loop.
    Closed,
    /// At even intervals.
    Constant {
        /// Messages per second.
        rate: f64,
    },
    /// At random times, as from many independent sources.
    Poisson {
        /// Messages per second.
        rate: f64,
    },
    /// In bursts at even intervals.
    Bursts {
        /// Messages per second.
        rate: f64,
        /// Messages of one burst.
        size: u32,
    },
    /// At a rate that changes linearly.
    Ramp {
        /// Messages per second at the beginning.
        from: f64,
        /// Messages per second at the end.
        to: f64,
        /// Seconds until that. The rate is constant afterwards.
        seconds: f64,
    },
}

/// The times of one producer's messages.
#[derive(Debug, Clone)]
pub struct Schedule {
    arrivals: Arrivals,
    /// The producer's number, from 0, and how many producers there are.
    place: (u32, u32),
    random: Random,
    /// Number of messages so far.
    count: u64,
    /// The time of the last message in seconds. Only Poisson arrivals use it: they compute each
    /// time from the one before.
    last_s: f64,
}

impl Schedule {
    /// The schedule of one of `producers` producers. The same seed gives the same times.
    pub fn new(arrivals: Arrivals, producer: u32, producers: u32, seed: u64) -> Schedule {
        Schedule {
            arrivals,
            place: (producer, producers.max(1)),
            random: Random(seed ^ (u64::from(producer) << 32)),
            count: 0,
            last_s: 0.0,
        }
    }

    /// Whether this is a closed loop.
    pub fn is_closed(&self) -> bool {
        self.arrivals == Arrivals::Closed
    }

    /// When the next message is due, in nanoseconds from the beginning; `None` in a closed loop.
    pub fn next_ns(&mut self) -> Option<u64> {
        let (producer, producers) = (f64::from(self.place.0), f64::from(self.place.1));
        // Its number among the messages of all producers, which take turns.
        let number = self.count as f64 * producers + producer;
        self.count += 1;
        let seconds = match self.arrivals {
            Arrivals::Closed => return None,
            Arrivals::Constant { rate } => number / rate,
            Arrivals::Poisson { rate } => {
                self.last_s += self.random.exponential() * producers / rate;
                self.last_s
            }
            Arrivals::Bursts { rate, size } => {
                let size = f64::from(size.max(1));
                (number / size).floor() * size / rate
            }
            Arrivals::Ramp { from, to, seconds } => ramp_time(number, from, to, seconds),
        };
        Some((seconds * 1e9) as u64)
    }
}

/// When the message with this number is due if the rate changes linearly from `from` to `to`.
fn ramp_time(number: f64, from: f64, to: f64, seconds: f64) -> f64 {
    let in_ramp = (from + to) / 2.0 * seconds;
    if number >= in_ramp {
        return seconds + (number - in_ramp) / to;
    }
    // number = from * t + slope * t^2 / 2
    let slope = (to - from) / seconds;
    if slope.abs() < 1e-9 {
        return number / from;
    }
    let root = (from * from + 2.0 * slope * number).max(0.0).sqrt();
    (root - from) / slope
}

/// SplitMix64, which gives the same numbers on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number above 0 and at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// An exponentially distributed number with mean 1.
    fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The times of all producers, sorted, in milliseconds.
    fn times(arrivals: Arrivals, producers: u32, each: usize) -> Vec<f64> {
        let mut all = Vec::new();
        for producer in 0..producers {
            let mut schedule = Schedule::new(arrivals, producer, producers, 7);
            let next = || schedule.next_ns().unwrap() as f64 / 1e6;
            all.extend(std::iter::repeat_with(next).take(each));
        }
        all.sort_by(f64::total_cmp);
        all
    }

    #[test]
    fn producers_share_an_even_rate() {
        let all = times(Arrivals::Constant { rate: 1_000.0 }, 3, 4);
        let expected: Vec<f64> = (0..12).map(f64::from).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn bursts_come_at_one_time() {
        let arrivals = Arrivals::Bursts {
            rate: 1_000.0,
            size: 4,
        };
        assert_eq!(
            times(arrivals, 2, 4),
            [0.0, 0.0, 0.0, 0.0, 4.0, 4.0, 4.0, 4.0]
        );
    }

    #[test]
    fn random_arrivals_have_the_mean_and_the_spread_that_they_should() {
        let all = times(Arrivals::Poisson { rate: 1_000.0 }, 4, 25_000);
        let last = all.last().unwrap();
        assert!((99_000.0..101_000.0).contains(last), "{last}");
        let gaps = all.windows(2).map(|pair| pair[1] - pair[0]);
        let short = gaps.filter(|gap| *gap < 1.0).count() as f64 / all.len() as f64;
        // 1 - 1/e
        assert!((0.62..0.645).contains(&short), "{short}");
    }

    #[test]
    fn a_ramp_reaches_its_rate_and_stays() {
        let arrivals = Arrivals::Ramp {
            from: 0.0,
            to: 1_000.0,
            seconds: 2.0,
        };
        let all = times(arrivals, 1, 2_001);
        // 1,000 messages in the first two seconds, 250 of them in the first.
        assert!((999.0..1_001.0).contains(&all[250]), "{}", all[250]);
        assert!((all[1_000] - 2_000.0).abs() < 0.001, "{}", all[1_000]);
        assert!((all[2_000] - 3_000.0).abs() < 0.001, "{}", all[2_000]);
    }
}
