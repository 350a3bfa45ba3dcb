//! Messages between a coordinator and its workers, and plausibility checks of their values.

use serde::{Deserialize, Serialize};

use crate::check::Ranges;
use crate::conditions::Conditions;
use crate::histogram::Histogram;
use crate::payload::STAMP_BYTES;
use crate::plan::{Amount, Plan};
use crate::proxy::Link;
use crate::recorder::{ClientStats, Second};
use crate::schedule::Arrivals;
use crate::sides::{Part, Side, Standing};
use crate::url::Url;
use crate::usage::Usage;

/// Version of this protocol. Coordinator and worker must have the same.
pub(super) const VERSION: u16 = 2;
/// Maximum of producers, and of consumers, on all machines together.
const CONNECTIONS_MAX: u32 = 100_000;
const SIZE_BYTES_MAX: usize = 1 << 30;
/// Maximum of a duration, the same as on the command line: thirty days.
const SECONDS_MAX: f64 = 2_592_000.0;
/// Maximum of partitions, the same as on the command line.
const PARTITIONS_MAX: usize = 100_000;
const RATE_MAX: f64 = 1e9;
/// Maximum of any measured count. No real one reaches it.
const COUNT_MAX: u64 = 1 << 53;
/// Maximum of ranges in one [`Reply::Numbers`].
const RANGES: usize = 20_000;
const TEXT_BYTES_MAX: usize = 1_000;
const TEXTS_MAX: usize = 100;

/// A message of the coordinator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Request {
    /// The first request of a connection.
    Hello { version: u16, token: String },
    /// Asks for the worker's time.
    Time { number: u32 },
    /// Asks the worker to open its connections to the broker.
    Prepare(Box<Job>),
    /// Asks the worker to begin at `start_ns` after `zero_unix_ns`, both by the coordinator's
    /// clock. The worker's clock is `ahead_ns` ahead of it.
    Begin {
        zero_unix_ns: u64,
        start_ns: u64,
        ahead_ns: i64,
    },
    /// Asks the worker to finish, because all messages have arrived, and to report.
    End,
    /// Asks the worker to stop at once, and to report.
    Abort,
}

/// A message of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Reply {
    /// Accepts the Hello.
    Welcome { conditions: Box<Conditions> },
    /// Refuses the Hello. The worker then closes the connection.
    Refused { reason: String },
    /// The worker's time in nanoseconds since 1970.
    Time { number: u32, unix_ns: u64 },
    /// The connections to the broker are open.
    Ready,
    /// The worker cannot do the requested work.
    Failed { reason: String },
    /// The worker's progress.
    Standing(Place),
    /// The figures of one second, which are shown during the measurement.
    Live {
        at: u32,
        produced: Box<Second>,
        consumed: Box<Second>,
    },
    /// A part of the report: the figures of one second.
    Second {
        is_sent: bool,
        at: u32,
        second: Box<Second>,
    },
    /// A part of the report: a producer's sequences, as ranges whose ends are excluded. They are of
    /// acknowledged messages if `is_sent`, otherwise of received ones.
    Numbers {
        is_sent: bool,
        producer: u32,
        ranges: Vec<(u64, u64)>,
    },
    /// The last part of the report.
    Done {
        sent: Box<Figures>,
        came: Box<Figures>,
        errors: Vec<String>,
        usage: Usage,
    },
}

/// [`Standing`] without its time: the coordinator uses its own clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) stored: u64,
    pub(super) came: u64,
    pub(super) producers_are_done: bool,
    pub(super) consumers_are_gone: bool,
}

impl Place {
    pub(super) fn of(standing: &Standing) -> Place {
        Place {
            stored: standing.stored,
            came: standing.came,
            producers_are_done: standing.producers_are_done,
            consumers_are_gone: standing.consumers_are_gone,
        }
    }
}

/// A worker's part of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Job {
    /// The broker, with user, password and options.
    pub(super) url: Url,
    /// The simulated network between client and broker.
    pub(super) link: Link,
    /// The topic was filled before the measurement, which only consumes.
    pub(super) is_filled: bool,
    /// The end offset of each partition before the first message; empty if the protocol has no
    /// offsets.
    pub(super) starts: Vec<i64>,
    pub(super) plan: Plan,
    /// Number of the worker's first producer, and of its last one plus 1. `consumers` likewise.
    pub(super) producers: (u32, u32),
    pub(super) consumers: (u32, u32),
}

impl Job {
    /// The worker's connections.
    pub(super) fn part(&self) -> Part {
        Part {
            producers: self.producers.0..self.producers.1,
            consumers: self.consumers.0..self.consumers.1,
        }
    }

    /// Checks the job's limits. The error is a reason in words.
    pub(super) fn check(&self) -> Result<(), String> {
        let plan = &self.plan;
        let side = |(first, end): (u32, u32), all: u32| {
            first <= end && end <= all && all <= CONNECTIONS_MAX
        };
        if !side(self.producers, plan.producers) || !side(self.consumers, plan.consumers) {
            return Err(format!(
                "there can be {CONNECTIONS_MAX} connections at most"
            ));
        }
        if !(STAMP_BYTES..=SIZE_BYTES_MAX).contains(&plan.size_bytes) {
            return Err(format!("messages cannot have {} bytes", plan.size_bytes));
        }
        let time = |seconds: f64| (0.0..=SECONDS_MAX).contains(&seconds);
        let amount = match plan.amount {
            Amount::Messages(messages) => messages <= COUNT_MAX,
            Amount::Seconds(seconds) => time(seconds),
        };
        if self.starts.len() > PARTITIONS_MAX || self.starts.iter().any(|start| *start < 0) {
            return Err("partitions cannot begin there".to_owned());
        }
        let rate = |rate: f64| rate > 0.0 && rate <= RATE_MAX;
        let arrivals = match plan.arrivals {
            Arrivals::Closed => true,
            Arrivals::Constant { rate: it } | Arrivals::Poisson { rate: it } => rate(it),
            Arrivals::Bursts { rate: it, .. } => rate(it),
            // A ramp may begin or end with a rate of 0.
            Arrivals::Ramp { from, to, seconds } => {
                from >= 0.0 && to >= 0.0 && rate(from.max(to)) && time(seconds)
            }
        };
        if amount && arrivals && time(plan.warm_up_s) {
            Ok(())
        } else {
            Err("no measurement can be so long or so fast".to_owned())
        }
    }
}

/// A [`ClientStats`] without the seconds and sequences, which have replies of their own.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Figures {
    sent: u64,
    messages: u64,
    bytes: u64,
    errors: u64,
    unanswered: u64,
    error_texts: Vec<String>,
    foreign: u64,
    early: u64,
    damaged: u64,
    response: Histogram,
    service: Histogram,
    lag: Histogram,
    busy: f64,
    span_ns: Option<(u64, u64)>,
    duplicates: u64,
    out_of_order: u64,
}

/// A worker reported figures that are impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it reports what cannot be")]
pub(super) struct Implausible;

impl Figures {
    fn of(stats: &ClientStats) -> Figures {
        let (duplicates, out_of_order) = stats.seen.faults();
        Figures {
            sent: stats.sent,
            messages: stats.messages,
            bytes: stats.bytes,
            errors: stats.errors,
            unanswered: stats.unanswered,
            error_texts: stats.error_texts.clone(),
            foreign: stats.foreign,
            early: stats.early,
            damaged: stats.damaged,
            response: stats.response.clone(),
            service: stats.service.clone(),
            lag: stats.lag.clone(),
            busy: stats.busy,
            span_ns: stats.span_ns,
            duplicates,
            out_of_order,
        }
    }

    /// Adds the figures to the sum of other workers' figures.
    pub(super) fn add_to(self, sum: &mut ClientStats) -> Result<(), Implausible> {
        let counts = [
            self.sent,
            self.messages,
            self.bytes,
            self.errors,
            self.unanswered,
            self.foreign,
            self.early,
            self.damaged,
            self.duplicates,
            self.out_of_order,
        ];
        let span = self.span_ns.is_none_or(|(first, last)| first <= last);
        let busy = (0.0..1e9).contains(&self.busy);
        if !span || !busy || counts.iter().any(|count| *count > COUNT_MAX) {
            return Err(Implausible);
        }
        sum.seen.add_faults(self.duplicates, self.out_of_order);
        sum.add(&ClientStats {
            sent: self.sent,
            messages: self.messages,
            bytes: self.bytes,
            errors: self.errors,
            unanswered: self.unanswered,
            error_texts: self.error_texts.into_iter().map(short).collect(),
            foreign: self.foreign,
            early: self.early,
            damaged: self.damaged,
            response: self.response,
            service: self.service,
            lag: self.lag,
            busy: self.busy,
            span_ns: self.span_ns,
            ..ClientStats::default()
        });
        Ok(())
    }
}

/// Checks the figures of a second in a measurement that has lasted `lasted_s` seconds.
pub(super) fn plausible(second: &Second, at: u32, lasted_s: u32) -> Result<(), Implausible> {
    let counts = [second.messages, second.bytes, second.errors];
    if at <= lasted_s && counts.iter().all(|count| *count <= COUNT_MAX) {
        Ok(())
    } else {
        Err(Implausible)
    }
}

/// Checks and collects the ranges that a worker reported.
pub(super) fn ranges_of(pairs: &[(u64, u64)]) -> Result<Ranges, Implausible> {
    let mut ranges = Ranges::default();
    for (start, end) in pairs {
        if start >= end || *end > COUNT_MAX {
            return Err(Implausible);
        }
        ranges.insert_range(*start, *end);
    }
    Ok(ranges)
}

/// The first error texts, each shortened so that it can be printed.
pub(super) fn texts(texts: Vec<String>) -> Vec<String> {
    texts.into_iter().take(TEXTS_MAX).map(short).collect()
}

/// A text of at most [`TEXT_BYTES_MAX`] bytes and an ellipsis.
pub(super) fn short(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    // Control characters of a peer must not reach the terminal.
    text.replace(char::is_control, " ")
}

/// Splits a report of both sides into replies.
pub(super) fn report(sent: Side, came: Side, usage: Usage) -> Vec<Reply> {
    let mut replies = Vec::new();
    let mut errors: Vec<String> = Vec::new();
    let mut figures = Vec::new();
    for (is_sent, mut side) in [(true, sent), (false, came)] {
        errors.extend(side.errors.iter().map(ToString::to_string));
        for (at, second) in std::mem::take(&mut side.stats.seconds) {
            let second = Box::new(second);
            replies.push(Reply::Second {
                is_sent,
                at,
                second,
            });
        }
        let numbers = if is_sent {
            std::mem::take(&mut side.stats.acked)
        } else {
            side.stats.seen.take_numbers()
        };
        for (producer, ranges) in numbers {
            let pairs: Vec<(u64, u64)> = ranges.iter().collect();
            for piece in pairs.chunks(RANGES) {
                replies.push(Reply::Numbers {
                    is_sent,
                    producer,
                    ranges: piece.to_vec(),
                });
            }
        }
        figures.push(Box::new(Figures::of(&side.stats)));
    }
    errors.truncate(TEXTS_MAX);
    let came = figures.pop().unwrap_or_default();
    replies.push(Reply::Done {
        sent: figures.pop().unwrap_or_default(),
        came,
        errors,
        usage,
    });
    replies
}
