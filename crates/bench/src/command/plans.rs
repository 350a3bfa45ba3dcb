//! From arguments to plans.

use super::BenchError;
use super::args::LoadArgs;
use super::values::{ArrivalsArg, PayloadArg};
use crate::outcome::Variation;
use crate::plan::{Acks, Amount, Plan};
use crate::schedule::Arrivals;

/// A sub-command's defaults, for arguments that are not given.
#[derive(Debug, Clone, PartialEq)]
pub struct Defaults {
    /// Seconds of a measurement.
    pub seconds: f64,
    /// Seconds before it.
    pub warm_up_s: f64,
    /// Bytes of a message.
    pub sizes_bytes: &'static [usize],
    /// Most messages of one request.
    pub batch_messages: u32,
    /// Most messages that are not acknowledged.
    pub in_flight: u32,
    /// Messages per second; `None`: as fast as it goes.
    pub rate: Option<f64>,
}

/// As fast as it goes.
pub const THROUGHPUT: Defaults = Defaults {
    seconds: 10.0,
    warm_up_s: 1.0,
    sizes_bytes: &[SIZE_BYTES],
    batch_messages: 200,
    in_flight: 1_000,
    rate: None,
};
/// Far below what any broker can do, one message at a time.
pub const LATENCY: Defaults = Defaults {
    batch_messages: 1,
    rate: Some(1_000.0),
    ..THROUGHPUT
};
/// Bytes of a message where nothing else is said.
pub const SIZE_BYTES: usize = 128;

/// A row of a table: the settings in which it differs from others, and the plan that is measured.
pub type Variant = (Vec<Variation>, Plan);

impl LoadArgs {
    /// A plan for each message size, without topic and run: these belong to a measurement.
    ///
    /// # Errors
    /// The arguments contradict each other, or a file cannot be read.
    pub fn plans(&self, defaults: &Defaults) -> Result<Vec<Variant>, BenchError> {
        let mut sizes = self.messages.message_size.clone();
        if sizes.is_empty() {
            sizes.extend_from_slice(defaults.sizes_bytes);
        }
        let plan = self.plan(defaults)?;
        let several = sizes.len() > 1;
        let variant = |size_bytes: usize| {
            let variation = Variation {
                name: "message size, bytes".to_owned(),
                value: size_bytes as f64,
            };
            let plan = Plan {
                size_bytes,
                ..plan.clone()
            };
            (several.then_some(variation).into_iter().collect(), plan)
        };
        Ok(sizes.into_iter().map(variant).collect())
    }

    /// The plan for the first message size.
    ///
    /// # Errors
    /// As [`LoadArgs::plans`].
    pub fn plan(&self, defaults: &Defaults) -> Result<Plan, BenchError> {
        let (messages, clients) = (&self.messages, &self.clients);
        let amount = match (messages.count, messages.duration) {
            (Some(_), Some(_)) => return Err(BenchError::settings(BOTH_AMOUNTS)),
            (Some(count), None) => Amount::Messages(count),
            (None, seconds) => Amount::Seconds(seconds.unwrap_or(defaults.seconds)),
        };
        if amount == Amount::Seconds(0.0) {
            return Err(BenchError::settings("--duration 0 measures nothing"));
        }
        let warm_up_s = messages.warm_up.unwrap_or(defaults.warm_up_s);
        let payload = messages.payload.clone().unwrap_or(PayloadArg::Random);
        let payload = payload.load().map_err(BenchError::file)?;
        let in_flight = clients.in_flight.unwrap_or(defaults.in_flight);
        let batch_messages = clients.batch_size.unwrap_or(defaults.batch_messages);
        let size_bytes = messages
            .message_size
            .first()
            .or(defaults.sizes_bytes.first());
        Ok(Plan {
            run: 0,
            topic: String::new(),
            producers: clients.producers.unwrap_or(clients.concurrency).max(1),
            consumers: clients.consumers.unwrap_or(clients.concurrency).max(1),
            size_bytes: size_bytes.copied().unwrap_or(SIZE_BYTES),
            payload,
            amount,
            warm_up_s,
            arrivals: self.arrivals(defaults, amount, warm_up_s)?,
            batch_messages: match in_flight {
                0 => batch_messages,
                // No more than that can be on its way.
                window => batch_messages.min(window),
            },
            in_flight,
            acks: clients.acks.unwrap_or(Acks::One),
            partitions: self.target.partitions.unwrap_or(1),
            keys: messages.keys.unwrap_or(0),
            seed: self.pace.seed,
        })
    }

    fn arrivals(
        &self,
        defaults: &Defaults,
        amount: Amount,
        warm_up_s: f64,
    ) -> Result<Arrivals, BenchError> {
        let rate = self.pace.rate;
        let needs_rate = |name: &str| {
            let text = format!(
                "--arrivals {name} needs a rate: say --rate 1000 for a thousand messages per second"
            );
            rate.or(defaults.rate).ok_or(BenchError::Settings(text))
        };
        Ok(match self.pace.arrivals {
            None => match rate.or(defaults.rate) {
                Some(rate) => Arrivals::Constant { rate },
                None => Arrivals::Closed,
            },
            Some(ArrivalsArg::Constant) => Arrivals::Constant {
                rate: needs_rate("constant")?,
            },
            Some(ArrivalsArg::Poisson) => Arrivals::Poisson {
                rate: needs_rate("poisson")?,
            },
            Some(ArrivalsArg::Burst(size)) => Arrivals::Bursts {
                rate: needs_rate("burst")?,
                size,
            },
            Some(ArrivalsArg::Ramp(from, to)) => {
                if rate.is_some() {
                    return Err(BenchError::settings(
                        "--arrivals ramp:FROM-TO has its own rates: leave --rate out",
                    ));
                }
                let Amount::Seconds(seconds) = amount else {
                    return Err(BenchError::settings(
                        "--arrivals ramp:FROM-TO grows over a time: say --duration, not --count",
                    ));
                };
                Arrivals::Ramp {
                    from,
                    to,
                    seconds: warm_up_s + seconds,
                }
            }
        })
    }
}

const BOTH_AMOUNTS: &str = "--count and --duration exclude each other: say when it is over once";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;
    use crate::payload::PayloadKind;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn plans(line: &str, defaults: &Defaults) -> Result<Vec<Variant>, String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let parsed = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        let plans = parsed.load.plans(defaults);
        plans.map_err(|error| error.to_string())
    }

    fn plan(line: &str) -> Plan {
        plans(line, &THROUGHPUT).unwrap().remove(0).1
    }

    #[test]
    fn nothing_said_is_ten_seconds_in_a_closed_loop() {
        let plan = plan("");
        assert_eq!(plan.amount, Amount::Seconds(10.0));
        assert_eq!(plan.arrivals, Arrivals::Closed);
        assert_eq!(
            (plan.size_bytes, plan.batch_messages, plan.in_flight),
            (128, 200, 1_000)
        );
        assert_eq!((plan.producers, plan.consumers, plan.partitions), (1, 1, 1));
        assert_eq!((plan.acks, plan.payload), (Acks::One, PayloadKind::Random));
    }

    #[test]
    fn latency_is_measured_at_a_rate() {
        let plan = plans("", &LATENCY).unwrap().remove(0).1;
        assert_eq!(plan.arrivals, Arrivals::Constant { rate: 1_000.0 });
        assert_eq!(plan.batch_messages, 1);
        let plan = plans("--arrivals poisson", &LATENCY).unwrap().remove(0).1;
        assert_eq!(plan.arrivals, Arrivals::Poisson { rate: 1_000.0 });
    }

    #[test]
    fn users_of_mem_bench_find_their_words() {
        let line =
            "--message-size 128,512,1024,5120 --count 500000 --concurrency 4 --batch-size 500";
        let plans = plans(line, &THROUGHPUT).unwrap();
        let sizes: Vec<f64> = plans
            .iter()
            .map(|(variations, _)| variations[0].value)
            .collect();
        assert_eq!(sizes, [128.0, 512.0, 1_024.0, 5_120.0]);
        let (_, last) = &plans[3];
        assert_eq!(
            (last.size_bytes, last.producers, last.consumers),
            (5_120, 4, 4)
        );
        assert_eq!(
            (last.amount, last.batch_messages),
            (Amount::Messages(500_000), 500)
        );
    }

    #[test]
    fn a_synchronous_producer_sends_one_at_a_time() {
        let plan = plan("--in-flight 1 -c 3 --producers 2 --acks all");
        assert_eq!((plan.in_flight, plan.batch_messages), (1, 1));
        assert_eq!(
            (plan.producers, plan.consumers, plan.acks),
            (2, 3, Acks::All)
        );
    }

    #[test]
    fn a_ramp_takes_the_whole_time() {
        let plan = plan("--arrivals ramp:1k-50k --duration 20s --warm-up 4");
        let expected = Arrivals::Ramp {
            from: 1_000.0,
            to: 50_000.0,
            seconds: 24.0,
        };
        assert_eq!(plan.arrivals, expected);
    }

    #[test]
    fn what_contradicts_itself_is_said() {
        for (line, part) in [
            ("--count 5 --duration 3s", "cannot be used with"),
            ("--arrivals poisson", "needs a rate: say --rate 1000"),
            ("--arrivals burst:10", "needs a rate"),
            ("--arrivals ramp:1-2 --rate 5", "leave --rate out"),
            (
                "--arrivals ramp:1-2 --count 5",
                "say --duration, not --count",
            ),
            ("--duration 0s", "measures nothing"),
            ("--message-size 20", "too small: each carries 36 bytes"),
            ("--message-size 100,20", "too small"),
            ("--payload file:/there/is/none", "/there/is/none"),
            ("--concurrency 0", "0 is not in 1..=10000"),
            ("--batch-size 0", "0 is not in 1.."),
            ("--url localhost:4150", "does not say what is spoken there"),
            ("--url nsq://a --protocol kafka", "cannot be used with"),
        ] {
            let error = plans(line, &THROUGHPUT).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
