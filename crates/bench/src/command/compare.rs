//! `bench compare`: several brokers under the same load, in turns.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};

use super::args::LoadArgs;
use super::live::LiveLine;
use super::opened::Opened;
use super::plans::{Defaults, LATENCY, THROUGHPUT};
use super::session::{Session, Task};
use super::{BenchError, TargetArgs};
use crate::clients::CLIENTS;
use crate::driver::{DriverError, Promise};
use crate::outcome::{Kind, Outcome, Report, Row, Subject, Variation};
use crate::plan::Plan;
use crate::report::side_by_side;
use crate::schedule::Arrivals;
use crate::url::Url;
use crate::usage::Usage;

/// Measurements of each if nothing is said: fewer show no spread.
const RUNS: u32 = 3;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Publishing
    Producer,
    /// Consuming what was put in before
    Consumer,
    /// Both at the same time
    EndToEnd,
    /// Both at a rate that each broker bears easily
    Latency,
}

/// Several brokers under the same load.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// What to measure, one after the other
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values_t = [What::Producer, What::Consumer]
    )]
    pub what: Vec<What>,
    /// The load, and on whom.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// A broker that was named, whether or not it can be measured.
struct Candidate {
    subject: Subject,
    /// Or why it cannot.
    opened: Result<Opened, String>,
}

/// One load, under which each broker has a row.
struct Load {
    kind: Kind,
    variations: Vec<Variation>,
    plan: Plan,
}

/// Measures, prints, writes. `false`: something was lost, out of order, cut short or failed.
pub(super) fn run(session: &mut Session<'_>, args: &CompareArgs) -> Result<bool, BenchError> {
    let loads = loads(args)?;
    let urls = urls(&args.load.target)?;
    let strangers = args.load.strangers(&urls)?;
    session.settle(&args.load.target)?;
    let mut candidates = open(session, &urls, args.load.target.topic.as_deref())?;
    let labels = candidates.iter().map(|it| it.subject.label.as_str());
    let mut report = session.report(&labels.collect::<Vec<_>>().join(", "));
    report.notes.extend(strangers);
    let runs = args.load.pace.runs.unwrap_or(RUNS);
    let is_quiet = args.load.output.quiet;
    let mut measure = |opened: &Opened, load: &Load, round: u32| {
        let what = format!("{} · run {} of {runs}", opened.label, round + 1);
        let live = LiveLine::new(what, load.kind, &load.plan, is_quiet);
        let task = Task {
            opened,
            kind: load.kind,
            variations: load.variations.clone(),
            plan: load.plan.clone(),
        };
        (!session.stop().is_set()).then(|| session.measure(&task, &live))
    };
    measure_in_turns(&mut candidates, &loads, runs, &mut report, &mut measure);
    args.load.output.finish_as(&report, side_by_side)
}

fn loads(args: &CompareArgs) -> Result<Vec<Load>, BenchError> {
    let mut loads = Vec::new();
    let has_both = args.what.contains(&What::EndToEnd) && args.what.contains(&What::Latency);
    for (at, what) in args.what.iter().enumerate() {
        if args.what[..at].contains(what) {
            continue;
        }
        let (kind, defaults): (Kind, &Defaults) = match what {
            What::Producer => (Kind::Produce, &THROUGHPUT),
            What::Consumer => (Kind::Consume, &THROUGHPUT),
            What::EndToEnd => (Kind::EndToEnd, &THROUGHPUT),
            What::Latency => (Kind::EndToEnd, &LATENCY),
        };
        for (mut variations, plan) in args.load.plans(defaults)? {
            if let (What::Latency, true, Arrivals::Constant { rate }) =
                (what, has_both, plan.arrivals)
            {
                variations.push(Variation {
                    name: "rate, messages/s".to_owned(),
                    value: rate,
                });
            }
            loads.push(Load {
                kind,
                variations,
                plan,
            });
        }
    }
    Ok(loads)
}

/// All brokers that are named; none: the embedded one by each of its protocols.
fn urls(target: &TargetArgs) -> Result<Vec<Url>, BenchError> {
    let urls = if target.urls.is_empty() && target.protocol.is_none() {
        CLIENTS
            .iter()
            .map(|client| Url::embedded(client.protocol))
            .collect()
    } else {
        target.urls()
    };
    if urls.len() < 2 {
        return Err(BenchError::settings(
            "compare needs two brokers at least: say --url more than once, or leave it out to \
             compare the protocols of the embedded broker",
        ));
    }
    if !target.broker_pid.is_empty() {
        return Err(BenchError::settings(
            "--broker-pid is for one broker; with several write nsq://host:4150?pid=1234",
        ));
    }
    Ok(urls)
}

/// Clients for them.
fn open(
    session: &mut Session<'_>,
    urls: &[Url],
    topic: Option<&str>,
) -> Result<Vec<Candidate>, BenchError> {
    let mut candidates: Vec<Candidate> = Vec::new();
    for url in urls {
        let mut label = url.name();
        if candidates.iter().any(|other| other.subject.label == label) {
            label = format!("{label} ({})", candidates.len() + 1);
        }
        let opened = match session.open(url) {
            Ok(opened) => Ok(Opened {
                label: label.clone(),
                topic: topic.map(str::to_owned),
                ..opened
            }),
            Err(BenchError::Driver(error)) => Err(error.to_string()),
            // A mistake in the arguments is not the broker's fault.
            Err(error) => return Err(error),
        };
        let subject = Subject {
            label,
            url: url.shown(),
            versions: Vec::new(),
            promise: Promise::Configured,
            is_claimed: false,
            may_reorder: None,
        };
        candidates.push(Candidate { subject, opened });
    }
    Ok(candidates)
}

/// The order in which brokers have their turns in a round: each round begins with another one, so
/// that none always follows the same.
fn order(brokers: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..brokers).map(move |at| (at + round as usize) % brokers)
}

/// Measures a broker under a load in a round. `None`: all is to end.
type Measure<'a> = dyn FnMut(&Opened, &Load, u32) -> Option<Result<Outcome, BenchError>> + 'a;

/// All loads on all brokers: one round after the other, and within a round the brokers in turns,
/// so that what happens on the machine meanwhile meets all alike. A broker that fails has a row
/// that says so, and the others go on.
fn measure_in_turns(
    candidates: &mut [Candidate],
    loads: &[Load],
    runs: u32,
    report: &mut Report,
    measure: &mut Measure<'_>,
) {
    let first = report.rows.len();
    for load in loads {
        report.rows.extend(candidates.iter().map(|_| Row {
            variations: load.variations.clone(),
            runs: Vec::new(),
        }));
    }
    'all: for round in 0..runs {
        for (at, load) in loads.iter().enumerate() {
            for which in order(candidates.len(), round) {
                let row = &mut report.rows[first + at * candidates.len() + which];
                let candidate = &mut candidates[which];
                // Once is enough to know, and the next broker need not wait for it.
                let has_failed = row.runs.last().is_some_and(|run| run.main().is_none());
                if has_failed {
                    continue;
                }
                let measured = match &candidate.opened {
                    Ok(opened) => measure(opened, load, round),
                    Err(reason) => {
                        row.runs
                            .push(failed(&candidate.subject, load, reason.clone()));
                        continue;
                    }
                };
                match measured {
                    None => break 'all,
                    Some(Ok(outcome)) => {
                        candidate
                            .subject
                            .versions
                            .clone_from(&outcome.subject.versions);
                        candidate.subject.promise = outcome.subject.promise;
                        candidate.subject.is_claimed = outcome.subject.is_claimed;
                        row.runs.push(outcome);
                    }
                    Some(Err(error)) => {
                        let reason = error.to_string();
                        row.runs
                            .push(failed(&candidate.subject, load, reason.clone()));
                        if is_for_good(&error) {
                            candidate.opened = Err(reason);
                        }
                    }
                }
            }
        }
    }
    report.rows.retain(|row| !row.runs.is_empty());
    same_subjects(candidates, report);
}

/// Whether there is no use in asking this broker for anything else: another message size may do,
/// another connection will not.
fn is_for_good(error: &BenchError) -> bool {
    matches!(
        error,
        BenchError::Driver(DriverError::Connect { .. } | DriverError::Gone { .. })
    )
}

/// Copies a broker's subject, as it is known by now, into rows that failed before it was known.
fn same_subjects(candidates: &[Candidate], report: &mut Report) {
    for outcome in report.rows.iter_mut().flat_map(|row| &mut row.runs) {
        let mut known = candidates.iter().map(|candidate| &candidate.subject);
        let known = known.find(|subject| subject.label == outcome.subject.label);
        if let Some(known) = known.filter(|_| outcome.main().is_none()) {
            outcome.subject = known.clone();
        }
    }
}

/// A measurement of which there is nothing but the reason.
fn failed(subject: &Subject, load: &Load, reason: String) -> Outcome {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = since.map_or(0, |since| since.as_millis());
    Outcome {
        subject: subject.clone(),
        kind: load.kind,
        plan: load.plan.clone(),
        started_unix_ms: u64::try_from(now_ms).unwrap_or(u64::MAX),
        produced: None,
        consumed: None,
        findings: None,
        usage: Usage::default(),
        remarks: Vec::new(),
        cut: Some(reason),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;
    use crate::command::fake::Fake;
    use crate::command::{EmbedOptions, EmbeddedBroker};
    use crate::conditions::Conditions;
    use crate::driver::Stop;

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        args: CompareArgs,
    }

    fn args(line: &str) -> CompareArgs {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Words::try_parse_from(words).unwrap().args
    }

    fn no_broker(_: &EmbedOptions) -> Result<EmbeddedBroker, String> {
        Err("not here".to_owned())
    }

    /// Candidates whose brokers nobody asks, because the measuring is done by the test.
    fn candidates(names: &[&str]) -> Vec<Candidate> {
        let each = names.iter().map(|name| Candidate {
            subject: Subject {
                label: (*name).to_owned(),
                url: String::new(),
                versions: Vec::new(),
                promise: Promise::Configured,
                is_claimed: false,
                may_reorder: None,
            },
            opened: Ok(Fake::default().opened(name)),
        });
        each.collect()
    }

    fn good(label: &str, load: &Load) -> Outcome {
        let subject = Subject {
            label: label.to_owned(),
            url: "nsq://127.0.0.1:1".to_owned(),
            versions: vec![("broker".to_owned(), "1".to_owned())],
            promise: Promise::Kernel,
            is_claimed: false,
            may_reorder: None,
        };
        Outcome {
            produced: Some(crate::ClientStats {
                messages: 1,
                ..crate::ClientStats::default()
            }),
            cut: None,
            ..failed(&subject, load, String::new())
        }
    }

    fn empty() -> Report {
        Report {
            title: String::new(),
            command: Vec::new(),
            conditions: Conditions::default(),
            rows: Vec::new(),
            notes: Vec::new(),
            failure: None,
        }
    }

    #[test]
    fn brokers_take_turns_and_each_is_first_once() {
        let mut candidates = candidates(&["a", "b", "c"]);
        let loads = loads(&args("--what producer --message-size 100,200")).unwrap();
        let (mut report, mut turns) = (empty(), Vec::new());
        measure_in_turns(
            &mut candidates,
            &loads,
            3,
            &mut report,
            &mut |opened, load, _| {
                turns.push(format!("{}{}", opened.label, load.plan.size_bytes / 100));
                Some(Ok(good(&opened.label, load)))
            },
        );
        let expected = "a1 b1 c1 a2 b2 c2 b1 c1 a1 b2 c2 a2 c1 a1 b1 c2 a2 b2";
        assert_eq!(turns.join(" "), expected);
        let rows = report.rows.iter().map(|row| {
            let label = row.runs[0].subject.label.clone();
            (label, row.variations[0].value as u32, row.runs.len())
        });
        let expected = ["a", "b", "c"].map(|label| (label.to_owned(), 100, 3));
        assert_eq!(rows.take(3).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn who_fails_is_shown_and_the_others_go_on() {
        let mut candidates = candidates(&["gone", "small", "good"]);
        let loads = loads(&args("--what producer --message-size 100,200,300")).unwrap();
        let (mut report, mut asked) = (empty(), Vec::new());
        measure_in_turns(
            &mut candidates,
            &loads,
            2,
            &mut report,
            &mut |opened, load, _| {
                let size = load.plan.size_bytes;
                asked.push(format!("{} {size}", opened.label));
                let url = opened.label.clone();
                let refused = |reason: &str| DriverError::Refused {
                    url: url.clone(),
                    reason: reason.to_owned(),
                };
                Some(match opened.label.as_str() {
                    "gone" if size == 200 => Err(BenchError::Driver(DriverError::Gone {
                        url: url.clone(),
                        reason: "reset".to_owned(),
                    })),
                    "small" if size == 200 => Err(BenchError::Driver(refused("too large"))),
                    label => Ok(good(label, load)),
                })
            },
        );
        let count = |what: &str| asked.iter().filter(|it| *it == what).count();
        assert_eq!(
            (count("good 100"), count("good 200"), count("good 300")),
            (2, 2, 2)
        );
        // Another size may go, but a broker that is gone is not asked again.
        assert_eq!((count("small 200"), count("small 300")), (1, 2));
        assert_eq!(
            (count("gone 100"), count("gone 200"), count("gone 300")),
            (1, 1, 0)
        );
        assert_eq!(report.rows.len(), 9);
        assert!(!report.is_good());
        let text = side_by_side(&report, 160);
        for part in [
            "FAILED: gone: gone went away: reset.",
            "small refuses: too large",
            "failed",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        let gone = &report.rows[6].runs[0];
        assert_eq!(
            (gone.subject.label.as_str(), gone.subject.promise),
            ("gone", Promise::Kernel)
        );
    }

    #[test]
    fn it_ends_when_it_is_told_to() {
        let mut candidates = candidates(&["a", "b"]);
        let loads = loads(&args("--what producer,latency,producer")).unwrap();
        assert_eq!(loads.len(), 2);
        let (mut report, mut left) = (empty(), 3);
        measure_in_turns(
            &mut candidates,
            &loads,
            5,
            &mut report,
            &mut |opened, load, _| {
                left -= 1;
                (left >= 0).then(|| Ok(good(&opened.label, load)))
            },
        );
        assert_eq!(report.rows.len(), 3);
    }

    #[test]
    fn one_broker_is_no_comparison() {
        let mut session = Session::new(&no_broker, Stop::default(), Vec::new());
        let one = args("--url nsq://127.0.0.1:1");
        let error = urls(&one.load.target).unwrap_err();
        assert!(
            error.to_string().contains("two brokers at least"),
            "{error}"
        );
        let same = args("--url a=nsq://127.0.0.1:1 --url a=nats://127.0.0.1:1");
        let same = urls(&same.load.target).unwrap();
        let same = open(&mut session, &same, None).unwrap();
        assert_eq!(same[1].subject.label, "a (2)");
        assert!(same[1].opened.as_ref().err().unwrap().contains("NATS"));
    }

    #[test]
    fn loads_that_would_look_alike_are_told_apart() {
        let all = loads(&args("--what end-to-end,latency --rate 500")).unwrap();
        assert!(all[0].variations.is_empty());
        assert_eq!(all[1].variations[0].value, 500.0);
    }
}
