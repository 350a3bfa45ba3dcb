//! The outcome of a measurement, with all that is needed to judge it.

use serde::{Deserialize, Serialize};

use crate::check::Findings;
use crate::conditions::Conditions;
use crate::driver::Promise;
use crate::plan::Plan;
use crate::recorder::ClientStats;
use crate::usage::Usage;

/// CPU seconds of a side below which nothing is said of its cost per message: reading the clocks of
/// all threads takes a part of a millisecond, and so does what is waked for it.
const CPU_MIN_S: f64 = 0.02;

/// The sides that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Publishing alone.
    Produce,
    /// Taking out what was put in before.
    Consume,
    /// Both at the same time.
    EndToEnd,
}

/// The subject of the figures: a broker, and the client library that it was reached with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// How it is called in tables, unique in a report.
    pub label: String,
    /// Where it was.
    pub url: String,
    /// The client library and the broker, with their versions.
    pub versions: Vec<(String, String)>,
    /// Durability that its acknowledgements promise.
    pub promise: Promise,
    /// The user says so, not the broker.
    #[serde(default)]
    pub is_claimed: bool,
    /// Why order may break before messages are at the broker ([`crate::Connect::may_reorder`]).
    #[serde(default)]
    pub may_reorder: Option<String>,
}

/// One measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// The measured broker.
    pub subject: Subject,
    /// The sides that were measured.
    pub kind: Kind,
    /// The plan of it.
    pub plan: Plan,
    /// When it began, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The producers' side.
    pub produced: Option<ClientStats>,
    /// The consumers' side.
    pub consumed: Option<ClientStats>,
    /// Messages that were lost, came twice or out of order. `None`: there were no consumers.
    pub findings: Option<Findings>,
    /// Costs for this program and the broker.
    pub usage: Usage,
    /// Why it ended before its time; then what was measured until then is here.
    pub cut: Option<String>,
    /// Other remarks, each worded for the middle of a sentence.
    #[serde(default)]
    pub remarks: Vec<String>,
}

impl Outcome {
    /// The side that a title speaks of: the consumers' if there is one.
    pub fn main(&self) -> Option<&ClientStats> {
        self.consumed.as_ref().or(self.produced.as_ref())
    }

    /// CPU time of the generator per message, in microseconds; `None`: too little to say.
    pub fn client_us(&self) -> Option<f64> {
        self.per_message(self.usage.client_cpu_s)
    }

    /// CPU time of the broker per message, in microseconds; `None`: it cannot be seen, or is too
    /// little to say.
    pub fn broker_us(&self) -> Option<f64> {
        self.per_message(self.usage.broker_cpu_s?)
    }

    /// `None` too if it was so little that looking at it costs as much.
    fn per_message(&self, seconds: f64) -> Option<f64> {
        let messages = self.main()?.messages;
        (messages > 0 && seconds >= CPU_MIN_S).then(|| seconds * 1e6 / messages as f64)
    }

    /// Whether messages were acknowledged at all under this plan.
    pub fn has_acks(&self) -> bool {
        self.subject.promise != Promise::None
    }

    /// Whether something was measured, nothing was refused, unanswered, lost, damaged or out of
    /// order, and nothing was cut short.
    pub fn is_good(&self) -> bool {
        let is_broken = self.findings.is_some_and(|findings| findings.is_broken());
        let has_any = self.main().is_some_and(|stats| stats.messages > 0);
        let mut sides = [&self.produced, &self.consumed].into_iter().flatten();
        let has_faults = sides.any(|stats| stats.errors > 0 || stats.damaged > 0);
        has_any && self.cut.is_none() && !is_broken && !has_faults
    }
}

/// The setting that differs between the rows of a search for the knee: beyond it brokers are meant
/// to be late.
pub(crate) const ASKED_RATE: &str = "asked rate, messages/s";

/// A setting that differs between the rows of a report, such as the message size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variation {
    /// Its name with its unit: "message size, bytes".
    pub name: String,
    /// Its value.
    pub value: f64,
}

/// Measurements that differ by chance alone.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Differences from other rows of the same subject.
    pub variations: Vec<Variation>,
    /// The runs.
    pub runs: Vec<Outcome>,
}

/// Everything that one command has measured: what `--json` prints and `--report` draws.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The title, without the durability class.
    pub title: String,
    /// The command line.
    pub command: Vec<String>,
    /// The machine.
    pub conditions: Conditions,
    /// The rows, in the order of the table.
    pub rows: Vec<Row>,
    /// Sentences that belong to the figures: what was noticed, what to think of.
    pub notes: Vec<String>,
    /// Why rows are missing.
    pub failure: Option<String>,
}

impl Report {
    /// Whether all measurements were good ([`Outcome::is_good`]).
    pub fn is_good(&self) -> bool {
        let runs = self.rows.iter().flat_map(|row| &row.runs);
        self.failure.is_none() && runs.into_iter().all(Outcome::is_good)
    }
}

impl Row {
    /// The runs whose figures count: not those that ended before their time, if there are others.
    pub fn counted(&self) -> impl Iterator<Item = &Outcome> {
        let is_whole = |run: &Outcome| run.cut.is_none();
        let has_whole = self.runs.iter().any(is_whole);
        let counts = move |run: &&Outcome| is_whole(run) || !has_whole;
        self.runs.iter().filter(counts)
    }

    /// The median of a value over the runs that count, the lower of two middle ones; `None`: none
    /// of them has it.
    pub fn median(&self, value: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        let values = self.sorted(value);
        values.get(values.len().saturating_sub(1) / 2).copied()
    }

    /// The least and the greatest value over the runs that count.
    pub fn spread(&self, value: impl Fn(&Outcome) -> Option<f64>) -> Option<(f64, f64)> {
        let values = self.sorted(value);
        Some((*values.first()?, *values.last()?))
    }

    fn sorted(&self, value: impl Fn(&Outcome) -> Option<f64>) -> Vec<f64> {
        let mut values: Vec<f64> = self.counted().filter_map(value).collect();
        values.sort_by(f64::total_cmp);
        values
    }
}
