//! Messages between a coordinator and its workers, and checks of whether they can be true.

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

/// Of this conversation; both sides have to have the same.
pub(super) const VERSION: u16 = 2;
/// Connections of one side on all machines together.
const CONNECTIONS_MAX: u32 = 100_000;
const SIZE_BYTES_MAX: usize = 1 << 30;
/// As many as the command line takes: thirty days.
const SECONDS_MAX: f64 = 2_592_000.0;
/// As many partitions as the command line takes.
const PARTITIONS_MAX: usize = 100_000;
const RATE_MAX: f64 = 1e9;
/// No count of anything that was measured is as high.
const COUNT_MAX: u64 = 1 << 53;
/// Ranges in one piece.
const RANGES: usize = 20_000;
const TEXT_BYTES_MAX: usize = 1_000;
const TEXTS_MAX: usize = 100;

/// A coordinator's words.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Request {
    /// The first one.
    Hello { version: u16, token: String },
    /// Asks for the worker's time.
    Time { number: u32 },
    /// Make connections.
    Prepare(Box<Job>),
    /// Begin at this moment of the coordinator's clock. The worker's is `ahead_ns` ahead of it.
    Begin {
        zero_unix_ns: u64,
        start_ns: u64,
        ahead_ns: i64,
    },
    /// Everything has come: report.
    End,
    /// Stop at once, and report.
    Abort,
}

/// A worker's words.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Reply {
    /// To the first one.
    Welcome { conditions: Box<Conditions> },
    /// Nothing more follows.
    Refused { reason: String },
    /// Nanoseconds since 1970.
    Time { number: u32, unix_ns: u64 },
    /// Connections are made.
    Ready,
    /// The work that was asked for cannot be done.
    Failed { reason: String },
    /// How it goes.
    Standing(Place),
    /// One second, to be shown.
    Live {
        at: u32,
        produced: Box<Second>,
        consumed: Box<Second>,
    },
    /// One second of the report.
    Second {
        is_sent: bool,
        at: u32,
        second: Box<Second>,
    },
    /// Sequences of the report: acknowledged ones, or such that came.
    Numbers {
        is_sent: bool,
        producer: u32,
        ranges: Vec<(u64, u64)>,
    },
    /// The rest of the report.
    Done {
        sent: Box<Figures>,
        came: Box<Figures>,
        errors: Vec<String>,
        usage: Usage,
    },
}

/// [`Standing`] without its time, which is the coordinator's.
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
    /// The broker, with everything that is needed to connect to it.
    pub(super) url: Url,
    /// The distance to it.
    pub(super) link: Link,
    /// The messages that are consumed were put in before.
    pub(super) is_filled: bool,
    /// Where each partition ended before the first message, if the protocol has such.
    pub(super) starts: Vec<i64>,
    pub(super) plan: Plan,
    /// Numbers of the first one and behind the last one.
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

    /// Fails with a reason, in words, if the job cannot be done.
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
            // One of both ends may be a standstill.
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

/// A [`ClientStats`] without what comes in pieces.
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

/// Figures of a worker that cannot be true.
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

    /// Adds them to what others have reported.
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

/// A second, if it can be: of a measurement that has lasted so many seconds.
pub(super) fn plausible(second: &Second, at: u32, lasted_s: u32) -> Result<(), Implausible> {
    let counts = [second.messages, second.bytes, second.errors];
    if at <= lasted_s && counts.iter().all(|count| *count <= COUNT_MAX) {
        Ok(())
    } else {
        Err(Implausible)
    }
}

/// Ranges as a worker reports them.
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

/// The first errors in words, of such a length that they can be printed.
pub(super) fn texts(texts: Vec<String>) -> Vec<String> {
    texts.into_iter().take(TEXTS_MAX).map(short).collect()
}

/// A text that is not too long.
pub(super) fn short(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    // Others' words do not move the cursor.
    text.replace(char::is_control, " ")
}

/// Both sides of a report, in pieces.
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
