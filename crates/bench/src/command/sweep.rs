//! `bench sweep`: how a broker behaves under more and more of something.

use clap::{Args, ValueEnum};

use super::BenchError;
use super::args::LoadArgs;
use super::compare::What;
use super::fit::all_have_partitions;
use super::knee::{Bend, Knee, Probe, search};
use super::live::LiveLine;
use super::opened::Opened;
use super::plans::{Defaults, THROUGHPUT};
use super::session::{Session, Task};
use super::values::{self, ArrivalsArg};
use crate::figures;
use crate::outcome::{ASKED_RATE, Kind, Outcome, Report, Row, Variation};
use crate::plan::{Amount, Plan};
use crate::schedule::Arrivals;
use crate::words;

/// As for the arguments of the same names.
const CONNECTIONS_MAX: u32 = 10_000;
const PARTITIONS_MAX: u32 = 100_000;
/// Measurements at each share of the knee if nothing is said.
const RUNS: u32 = 3;
/// Shares of the knee at which latency is measured, in percent.
const SHARES: [f64; 3] = [50.0, 75.0, 90.0];
/// Many short measurements.
const SWEEP: Defaults = Defaults {
    seconds: 3.0,
    warm_up_s: 0.5,
    ..THROUGHPUT
};

/// What grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// The rate, until the knee
    Rate,
    /// Bytes of a message
    MessageSize,
    /// Connections on each side
    Connections,
    /// Partitions of the topic
    Partitions,
    /// Messages that lie there before they are consumed
    Backlog,
}

/// A load that grows.
#[derive(Debug, Clone, Args)]
pub struct SweepArgs {
    /// What grows
    #[arg(long, value_enum, default_value_t = Over::Rate)]
    pub over: Over,
    /// Its values, but for the rate [default: some that fit]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = values::count)]
    pub values: Vec<u64>,
    /// The low load with which the search for the knee begins, in messages per second
    #[arg(long, value_name = "RATE", default_value = "1000", value_parser = values::rate)]
    pub start: f64,
    /// The search for the knee goes no higher, in messages per second
    #[arg(long, value_name = "RATE", default_value = "20M", value_parser = values::rate)]
    pub limit: f64,
    /// What to measure: producer or end-to-end (consumer for a backlog) [default: producer]
    #[arg(long, value_enum)]
    pub what: Option<What>,
    /// The load, and on whom.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Measures, prints, writes. `false`: something was lost, out of order or cut short.
pub(super) fn run(session: &mut Session<'_>, args: &SweepArgs) -> Result<bool, BenchError> {
    let kind = args.kind()?;
    let strangers = args.strangers()?;
    let opened = session.open_all(&args.load.target)?;
    let names: Vec<&str> = opened.iter().map(|it| it.label.as_str()).collect();
    let names = names.join(", ");
    let mut report = match args.over {
        Over::Rate => {
            let mut report = session.report(&format!("Where it bends: {names}"));
            let plan = args.rate_plan()?;
            for opened in &opened {
                knee_of(session, args, (opened, kind, &plan), &mut report)?;
            }
            report
        }
        over => {
            let title = format!("Growth with {}: {names}", over.name());
            let mut report = session.report(&title);
            let plans = args.plans()?;
            let tasks: Vec<Task<'_>> = opened
                .iter()
                .flat_map(|opened| {
                    plans.iter().map(move |(variation, plan)| Task {
                        opened,
                        kind,
                        variations: vec![variation.clone()],
                        plan: plan.clone(),
                    })
                })
                .collect();
            let runs = args.load.pace.runs.unwrap_or(1);
            session.measure_all(&tasks, runs, &args.load.output, &mut report)?;
            report
        }
    };
    report.notes.extend(strangers);
    args.load.output.finish(&report)
}

impl Over {
    fn name(self) -> &'static str {
        match self {
            Over::Rate => "the rate",
            Over::MessageSize => "message size",
            Over::Connections => "connections",
            Over::Partitions => "partitions",
            Over::Backlog => "backlog",
        }
    }

    fn values(self) -> &'static [u64] {
        match self {
            Over::Rate => &[],
            Over::MessageSize => &[64, 128, 512, 1_024, 5_120, 20_480, 102_400],
            Over::Connections => &[1, 2, 4, 8, 16, 32],
            Over::Partitions => &[1, 2, 4, 8, 16],
            Over::Backlog => &[10_000, 50_000, 100_000, 500_000, 1_000_000],
        }
    }

    /// As it stands at an axis.
    fn variation(self, value: u64) -> Variation {
        let name = match self {
            Over::Rate => ASKED_RATE,
            Over::MessageSize => "message size, bytes",
            Over::Connections => "connections",
            Over::Partitions => "partitions",
            Over::Backlog => "backlog, messages",
        };
        Variation {
            name: name.to_owned(),
            value: value as f64,
        }
    }
}

impl SweepArgs {
    fn kind(&self) -> Result<Kind, BenchError> {
        let kind = match (self.what, self.over) {
            (None, Over::Backlog) => Kind::Consume,
            (None | Some(What::Producer), _) => Kind::Produce,
            (Some(What::Consumer), _) => Kind::Consume,
            (Some(What::EndToEnd | What::Latency), _) => Kind::EndToEnd,
        };
        match (self.over, kind) {
            (Over::Rate, Kind::Consume) => Err(BenchError::settings(
                "the rate of a consumer is what the topic has: sweep with --what producer or \
                 --what end-to-end",
            )),
            (Over::Backlog, Kind::Produce | Kind::EndToEnd) => Err(BenchError::settings(
                "a backlog is there to be consumed: sweep it with --what consumer",
            )),
            _ => Ok(kind),
        }
    }

    /// Sentences about options that do not concern some of the brokers.
    fn strangers(&self) -> Result<Vec<String>, BenchError> {
        let urls = self.load.target.urls();
        if self.over == Over::Partitions {
            all_have_partitions(&urls)?;
        }
        self.load.strangers(&urls)
    }

    /// The plan whose rate grows.
    fn rate_plan(&self) -> Result<Plan, BenchError> {
        if self.load.pace.rate.is_some() || !self.values.is_empty() {
            return Err(BenchError::settings(
                "sweep finds the rates itself: leave --rate and --values out; --start and --limit \
                 are its ends",
            ));
        }
        if matches!(self.load.pace.arrivals, Some(ArrivalsArg::Ramp(..))) {
            return Err(BenchError::settings(
                "sweep measures at one rate after the other: take --arrivals constant, poisson or \
                 burst:SIZE",
            ));
        }
        if self.load.messages.message_size.len() > 1 {
            return Err(BenchError::settings(
                "a knee is that of one message size; --over message-size takes several",
            ));
        }
        let mut load = self.load.clone();
        load.pace.rate = Some(self.start);
        // Clients are many and know nothing of each other, if nothing else is said.
        load.pace.arrivals = load.pace.arrivals.or(Some(ArrivalsArg::Poisson));
        load.plan(&SWEEP)
    }

    /// The plans of a growing setting with what is different.
    fn plans(&self) -> Result<Vec<(Variation, Plan)>, BenchError> {
        let own = match (self.over, self.load.messages.message_size.len()) {
            (Over::MessageSize, _) => &self.load.messages.message_size[..],
            (_, 0 | 1) => &[],
            _ => {
                return Err(BenchError::settings(
                    "one thing grows at a time: give one --message-size",
                ));
            }
        };
        let mut values: Vec<u64> = self.values.clone();
        if values.is_empty() {
            values.extend(own.iter().map(|size| *size as u64));
        }
        if values.is_empty() {
            values.extend_from_slice(self.over.values());
        }
        let base = self.load.plan(&SWEEP)?;
        let each = values.iter().map(|value| {
            let mut plan = base.clone();
            self.set(&mut plan, *value)?;
            Ok((self.over.variation(*value), plan))
        });
        each.collect()
    }

    /// Sets what grows.
    fn set(&self, plan: &mut Plan, value: u64) -> Result<(), BenchError> {
        let too_many = |most: u32| {
            let (name, most) = (self.over.name(), words::count(most.into()));
            BenchError::Settings(format!("{value} {name}: at most {most}"))
        };
        let within = |most: u32| match u32::try_from(value) {
            Ok(value) if value <= most => Ok(value),
            _ => Err(too_many(most)),
        };
        match self.over {
            Over::Rate => (),
            Over::MessageSize => {
                let size = values::size(&value.to_string());
                plan.size_bytes = size.map_err(BenchError::Settings)?;
            }
            Over::Connections => {
                let connections = within(CONNECTIONS_MAX)?;
                (plan.producers, plan.consumers) = (connections, connections);
            }
            Over::Partitions => plan.partitions = within(PARTITIONS_MAX)?,
            Over::Backlog => (plan.amount, plan.warm_up_s) = (Amount::Messages(value), 0.0),
        }
        Ok(())
    }
}

/// Searches the knee of one broker, and measures at shares of it.
fn knee_of(
    session: &mut Session<'_>,
    args: &SweepArgs,
    (opened, kind, plan): (&Opened, Kind, &Plan),
    report: &mut Report,
) -> Result<(), BenchError> {
    let mut outcomes: Vec<(f64, Outcome)> = Vec::new();
    let stop = session.stop().clone();
    let mut was_cut = false;
    let measure = |rate: f64| {
        if stop.is_set() {
            return Ok(None);
        }
        let task = Task {
            opened,
            kind,
            variations: Vec::new(),
            plan: at_rate(plan, rate),
        };
        let what = format!("{} · {}", opened.label, words::rate(rate));
        let live = LiveLine::new(what, kind, &task.plan, args.load.output.quiet);
        let outcome = session.measure(&task, &live)?;
        let (probe, is_cut) = (probe(&outcome, rate), outcome.cut.is_some());
        outcomes.push((rate, outcome));
        // A rate at which it goes wrong once is bad, and measured again; twice, and it is the
        // broker.
        let is_broken = std::mem::replace(&mut was_cut, is_cut) && is_cut;
        Ok(if is_cut {
            (!is_broken && !stop.is_set()).then_some(Probe::of_nothing(rate))
        } else {
            probe
        })
    };
    let found = search(args.start, args.limit, measure);
    add_rows(outcomes, report);
    let knee = match found {
        Ok(knee) => knee,
        Err(error) if report.rows.is_empty() => return Err(error),
        Err(error) => {
            report.failure = Some(error.to_string());
            return Ok(());
        }
    };
    let Some(knee) = knee else {
        report.notes.push(format!(
            "{}: no knee was found: it was stopped, cut short, or no rate was low enough.",
            opened.label
        ));
        return Ok(());
    };
    report.notes.push(sentence(&opened.label, &knee));
    let tasks = SHARES.map(|share| Task {
        opened,
        kind,
        variations: vec![Variation {
            name: "share of the knee, %".to_owned(),
            value: share,
        }],
        plan: at_rate(plan, (knee.rate() * share / 100.0).round().max(1.0)),
    });
    let runs = args.load.pace.runs.unwrap_or(RUNS);
    let before = report.rows.len();
    let measured = session.measure_all(&tasks, runs, &args.load.output, report);
    match measured {
        Err(error) if before > 0 => report.failure = Some(error.to_string()),
        measured => measured?,
    }
    Ok(())
}

/// Rows by their rate; what was measured twice at one rate is one row.
fn add_rows(mut outcomes: Vec<(f64, Outcome)>, report: &mut Report) {
    outcomes.sort_by(|(one, _), (two, _)| one.total_cmp(two));
    let mut last = None;
    for (rate, outcome) in outcomes {
        match report.rows.last_mut() {
            Some(row) if last == Some(rate) => row.runs.push(outcome),
            _ => report.rows.push(Row {
                variations: vec![Variation {
                    name: ASKED_RATE.to_owned(),
                    value: rate,
                }],
                runs: vec![outcome],
            }),
        }
        last = Some(rate);
    }
}

/// The same load at another rate.
fn at_rate(plan: &Plan, rate: f64) -> Plan {
    let arrivals = match plan.arrivals {
        Arrivals::Bursts { size, .. } => Arrivals::Bursts { rate, size },
        Arrivals::Constant { .. } => Arrivals::Constant { rate },
        Arrivals::Poisson { .. } | Arrivals::Closed | Arrivals::Ramp { .. } => {
            Arrivals::Poisson { rate }
        }
    };
    Plan {
        arrivals,
        ..plan.clone()
    }
}

/// The figures that the search wants to know. `None`: there are none.
///
/// Random arrivals are never exactly as many as were asked for; so what was done is compared to
/// what was to be sent, and to the time in which that was to be done.
fn probe(outcome: &Outcome, asked: f64) -> Option<Probe> {
    let stats = figures::measured(outcome)?;
    let sent = outcome.produced.as_ref()?.sent as f64;
    let seconds = match outcome.plan.amount {
        Amount::Seconds(seconds) => seconds,
        Amount::Messages(messages) => messages as f64 / asked,
    };
    let done = stats.messages as f64 / sent.max(1.0);
    let in_time = seconds / stats.taken_s().max(seconds);
    Some(Probe {
        asked,
        achieved: asked * (done * in_time).min(1.0),
        p99_ns: stats.response.quantile_ns(0.99) as f64,
    })
}

/// The knee in words.
fn sentence(label: &str, knee: &Knee) -> String {
    let of = |probe: &Probe| {
        let p99 = words::time(probe.p99_ns);
        format!("{} (p99 {p99})", words::rate(probe.asked))
    };
    let low = of(&knee.low);
    let Some((bad, bend)) = &knee.bad else {
        return format!(
            "{label}: no knee up to {}; the low load was {low}. Raise --limit.",
            of(&knee.good)
        );
    };
    let why = match bend {
        Bend::Late => "more than ten times that of the low load",
        Bend::Short => "less than 98 % of the rate was done",
    };
    let mut text = format!(
        "{label}: the knee is at {}: {why}, {low}; at {} all was well.",
        of(bad),
        of(&knee.good)
    );
    if *bend == Bend::Short {
        text.push_str(&format!(" Done were {}.", words::rate(bad.achieved)));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;
    use crate::command::fake::Fake;
    use crate::command::{EmbedOptions, EmbeddedBroker};
    use crate::driver::Stop;

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        args: SweepArgs,
    }

    fn args(line: &str) -> SweepArgs {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Words::try_parse_from(words).unwrap().args
    }

    fn no_broker(_: &EmbedOptions) -> Result<EmbeddedBroker, String> {
        Err("not here".to_owned())
    }

    #[test]
    fn the_knee_of_a_simulated_broker_is_not_beyond_what_it_can_do() {
        // 2,000 messages per second at most.
        let opened = Fake {
            service_ns: 500_000,
            ..Fake::default()
        }
        .opened("fake");
        let mut session = Session::new(&no_broker, Stop::default(), Vec::new());
        let args = args("--start 200 --limit 50k --duration 300ms --warm-up 0 --runs 1 -q");
        let plan = args.rate_plan().unwrap();
        let mut report = session.report("test");
        knee_of(
            &mut session,
            &args,
            (&opened, Kind::Produce, &plan),
            &mut report,
        )
        .unwrap();
        let note = report.notes.last().unwrap();
        assert!(note.contains("fake: the knee is at"), "{note}");
        let rates = report
            .rows
            .iter()
            .filter(|row| row.variations[0].name == ASKED_RATE);
        let rates: Vec<f64> = rates.map(|row| row.variations[0].value).collect();
        assert!(rates.is_sorted(), "{rates:?}");
        // Above what it can do nothing is searched but the first rate that was too high.
        assert!(rates[rates.len() - 1] <= 4_500.0, "{rates:?}");
        let shares = &report.rows[report.rows.len() - 3..];
        let values = shares.iter().map(|row| row.variations[0].value);
        assert_eq!(values.collect::<Vec<_>>(), SHARES);
        let asked = |at: usize| words::asked(&shares[at].runs[0].plan.arrivals).unwrap();
        assert!(asked(0) < 1_200.0 && asked(0) < asked(1) && asked(1) < asked(2));
        assert_eq!(report.failure, None);
    }

    #[test]
    fn what_is_cut_short_once_ends_no_search() {
        let knee = |breaks: Vec<u32>| {
            let opened = Fake {
                service_ns: 500_000,
                breaks,
                ..Fake::default()
            }
            .opened("fake");
            let mut session = Session::new(&no_broker, Stop::default(), Vec::new());
            let args = args("--start 200 --limit 400 --duration 200ms --warm-up 0 --runs 1 -q");
            let plan = args.rate_plan().unwrap();
            let mut report = session.report("test");
            let found = (&opened, Kind::Produce, &plan);
            knee_of(&mut session, &args, found, &mut report).unwrap();
            report.notes.last().unwrap().clone()
        };
        for once in [0, 2] {
            // A machine that is busy may show a knee; what matters is that the search went on.
            let note = knee(vec![once]);
            assert!(!note.contains("no knee was found"), "{once}: {note}");
            assert!(note.contains("knee"), "{once}: {note}");
        }
        let note = knee(vec![2, 3]);
        assert!(note.contains("no knee was found"), "{note}");
    }

    #[test]
    fn each_setting_grows_alone() {
        for (over, first, last) in [
            ("message-size", 64.0, 102_400.0),
            ("connections", 1.0, 32.0),
            ("partitions", 1.0, 16.0),
            ("backlog", 10_000.0, 1_000_000.0),
        ] {
            let plans = args(&format!("--over {over}")).plans().unwrap();
            let values: Vec<f64> = plans.iter().map(|(variation, _)| variation.value).collect();
            assert_eq!(
                (values[0], values[values.len() - 1]),
                (first, last),
                "{over}"
            );
        }
        let plans = args("--over connections --values 2,3").plans().unwrap();
        assert_eq!((plans[1].1.producers, plans[1].1.consumers), (3, 3));
        let plans = args("--over message-size --message-size 100,200")
            .plans()
            .unwrap();
        assert_eq!(plans[1].1.size_bytes, 200);
        let plans = args("--over backlog --values 5k").plans().unwrap();
        assert_eq!(plans[0].1.amount, Amount::Messages(5_000));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let plans = |line: &str| {
            let args = args(line);
            let made = args.kind().and_then(|_| match args.over {
                Over::Rate => args.rate_plan().map(drop),
                _ => args.plans().map(drop),
            });
            made.err()
                .map(|error| error.to_string())
                .unwrap_or_default()
        };
        for (line, part) in [
            ("--rate 5k", "finds the rates itself"),
            ("--arrivals ramp:1-5k", "one rate after the other"),
            ("--message-size 100,200", "one message size"),
            ("--what consumer", "what the topic has"),
            ("--over backlog --what producer", "there to be consumed"),
            (
                "--over connections --message-size 100,200",
                "one thing grows",
            ),
            ("--over connections --values 5M", "at most 10,000"),
            ("--over message-size --values 10", "too small"),
        ] {
            let error = plans(line);
            assert!(error.contains(part), "{line}: {error}");
        }
        assert_eq!(plans("--over partitions --rate 5k"), "");
    }
}
