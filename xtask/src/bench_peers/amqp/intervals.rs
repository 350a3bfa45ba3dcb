//! What PerfTest prints once a second, and what comes of it.

use super::programs::{Outcome, Used};

/// A line of PerfTest, and what had been used when it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) interval: Interval,
    pub(super) used: Used,
}

/// A second, more or less. Latencies are `None` where nothing came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    /// Seconds since the start.
    end_s: f64,
    sent_per_s: f64,
    received_per_s: f64,
    pub(super) nacked_per_s: f64,
    consumer: Option<Latency>,
    confirm: Option<Latency>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Latency {
    p50_us: f64,
    p99_us: f64,
}

impl Interval {
    /// Reads `id: X, time 1.000 s, sent: 1 msg/s, confirmed: 1 msg/s, nacked: 0 msg/s, received: 1
    /// msg/s, min/median/75th/95th/99th consumer latency: 1/2/3/4/5 µs, confirm latency: …`.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let number = |words: &str| -> Option<f64> {
            let (_, rest) = line.split_once(words)?;
            rest.split(' ').next()?.parse().ok()
        };
        Some(Self {
            end_s: number(", time ")?,
            sent_per_s: number(" sent: ")?,
            received_per_s: number(" received: ")?,
            nacked_per_s: number(" nacked: ").unwrap_or(0.0),
            consumer: Latency::after(line, " consumer latency: "),
            confirm: Latency::after(line, " confirm latency: "),
        })
    }
}

impl Latency {
    /// From `min/median/75th/95th/99th` behind these words.
    fn after(line: &str, words: &str) -> Option<Self> {
        let (_, rest) = line.rsplit_once(words)?;
        let mut fields = rest.split(' ').next()?.split('/');
        let found = Self {
            p50_us: fields.nth(1)?.parse().ok()?,
            p99_us: fields.nth(2)?.parse().ok()?,
        };
        // All of them are 0 where nothing came.
        (found.p99_us > 0.0).then_some(found)
    }
}

/// The p99 of the whole run, from the line at its end.
pub(super) fn whole_p99_us(text: &str) -> Option<f64> {
    let words = " consumer latency min/median/75th/95th/99th ";
    let line = text.lines().rfind(|line| line.contains(words))?;
    Some(Latency::after(line, words)?.p99_us)
}

/// What was done behind the first `warm_up_s` seconds. Latencies are the medians of the intervals'
/// own: the start of the JVM is in none of them.
pub(super) fn summarise(samples: &[Sample], warm_up_s: f64) -> Option<Outcome> {
    // A line comes some milliseconds late.
    let is_warm = |s: &Sample| s.interval.end_s < warm_up_s + 0.5;
    let start = samples.iter().rposition(is_warm)?;
    let (first, last) = (samples[start], *samples.last()?);
    let measured = &samples[start + 1..];
    if measured.is_empty() {
        return None;
    }
    let count = |rate: fn(&Interval) -> f64| -> u64 {
        let pairs = samples[start..].windows(2);
        let counts = pairs.map(|pair| {
            let seconds = pair[1].interval.end_s - pair[0].interval.end_s;
            rate(&pair[1].interval) * seconds
        });
        counts.sum::<f64>().round() as u64
    };
    let middle = |value: fn(&Interval) -> Option<f64>| -> Option<f64> {
        let mut values: Vec<f64> = measured.iter().filter_map(|s| value(&s.interval)).collect();
        (!values.is_empty()).then(|| super::median(&mut values))
    };
    let used = last.used - first.used;
    Some(Outcome {
        messages: count(|i| i.received_per_s),
        sent: Some(count(|i| i.sent_per_s)),
        seconds: last.interval.end_s - first.interval.end_s,
        used,
        p50_us: middle(|i| Some(i.consumer?.p50_us)),
        p99_us: middle(|i| Some(i.consumer?.p99_us)),
        confirm_p50_us: middle(|i| Some(i.confirm?.p50_us)),
        confirm_p99_us: middle(|i| Some(i.confirm?.p99_us)),
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, Result};

    use super::*;

    const CONFIRMED: &str = "id: test-020101-011, time 2.003 s, sent: 39326 msg/s, confirmed: \
                             39259 msg/s, nacked: 7 msg/s, received: 39329 msg/s, \
                             min/median/75th/95th/99th consumer latency: \
                             54/57544/160369/168528/169628 µs, confirm latency: \
                             114/5086/9834/31861/36309 µs";

    #[test]
    fn lines_of_perf_test_are_read() {
        let latency = |p50_us, p99_us| Some(Latency { p50_us, p99_us });
        let mut expected = Interval {
            end_s: 2.003,
            sent_per_s: 39326.0,
            received_per_s: 39329.0,
            nacked_per_s: 7.0,
            consumer: latency(57544.0, 169_628.0),
            confirm: latency(5086.0, 36309.0),
        };
        assert_eq!(Interval::parse(CONFIRMED), Some(expected));
        let line = "id: test-1, time 1.000 s, sent: 17961 msg/s, received: 12486 msg/s, \
                    min/median/75th/95th/99th consumer latency: 619/185989/227933/257770/267822 µs";
        expected = Interval {
            end_s: 1.0,
            sent_per_s: 17961.0,
            received_per_s: 12486.0,
            nacked_per_s: 0.0,
            consumer: latency(185_989.0, 267_822.0),
            confirm: None,
        };
        assert_eq!(Interval::parse(line), Some(expected));
        let line = "id: test-1, time 1.000 s, sent: 5 msg/s, received: 0 msg/s, \
                    min/median/75th/95th/99th consumer latency: 0/0/0/0/0 µs";
        assert!(Interval::parse(line).is_some_and(|interval| interval.consumer.is_none()));
        let line = "id: test-1, consumer latency min/median/75th/95th/99th 24/22483/3/4/353827 µs";
        assert_eq!(Interval::parse(line), None);
        assert_eq!(whole_p99_us(line), Some(353_827.0));
    }

    #[test]
    fn the_warm_up_is_left_out() -> Result<()> {
        let interval = Interval::parse(CONFIRMED).context("it is read")?;
        let sample = |second: f64, received_per_s: f64, cpu_s: f64| {
            let mut interval = interval;
            interval.end_s = second;
            interval.received_per_s = received_per_s;
            let used = Used {
                broker_cpu_s: cpu_s,
                client_cpu_s: 2.0 * cpu_s,
                machine_cpu_s: 4.0 * cpu_s,
            };
            Sample { interval, used }
        };
        let samples = [
            sample(1.0, 1.0, 1.0),
            sample(2.002, 1.0, 2.0),
            sample(3.002, 10.0, 2.5),
            sample(5.002, 20.0, 2.75),
        ];
        let outcome = summarise(&samples, 2.0).context("there is enough")?;
        assert_eq!(outcome.messages, 50);
        assert_eq!(outcome.seconds, 3.0);
        let used = Used {
            broker_cpu_s: 0.75,
            client_cpu_s: 1.5,
            machine_cpu_s: 3.0,
        };
        assert_eq!(outcome.used, used);
        assert_eq!(outcome.p50_us, Some(57544.0));
        assert!(summarise(&samples[..2], 2.0).is_none());
        assert!(summarise(&[], 2.0).is_none());
        Ok(())
    }
}
