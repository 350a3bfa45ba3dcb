//! The outcome of a measurement, with the conditions that are needed to judge it.

use serde::{Deserialize, Serialize};

use crate::check::Findings;
use crate::conditions::Conditions;
use crate::driver::Promise;
use crate::plan::Plan;
use crate::recorder::ClientStats;
use crate::usage::Usage;

/// Minimum of CPU seconds of a side for a cost per message. Reading the CPU clocks of all threads
/// takes a part of a millisecond itself.
const CPU_MIN_S: f64 = 0.02;

/// The sides that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Publishing only.
    Produce,
    /// Consuming messages that were published before the measurement.
    Consume,
    /// Publishing and consuming at the same time.
    EndToEnd,
}

/// The subject of figures: a broker, and the client library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Its name in tables, unique in a report.
    pub label: String,
    /// Its URL.
    pub url: String,
    /// The client library and the broker, with their versions.
    pub versions: Vec<(String, String)>,
    /// The durability that its acknowledgements promise.
    pub promise: Promise,
    /// Whether the user states the durability, not the broker.
    #[serde(default)]
    pub is_claimed: bool,
    /// Why messages may arrive at the broker in another order ([`crate::Connect::may_reorder`]).
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
    /// Its plan.
    pub plan: Plan,
    /// When it began, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The producers' side.
    pub produced: Option<ClientStats>,
    /// The consumers' side.
    pub consumed: Option<ClientStats>,
    /// Messages that were lost, duplicated or out of order. `None`: there were no consumers.
    pub findings: Option<Findings>,
    /// CPU time and memory of this program and the broker.
    pub usage: Usage,
    /// Why it ended before its time. The other fields are about the time until then.
    pub cut: Option<String>,
    /// Other remarks, each worded for the middle of a sentence.
    #[serde(default)]
    pub remarks: Vec<String>,
}

impl Outcome {
    /// The side of the main figures: the consumers' if there is one.
    pub fn main(&self) -> Option<&ClientStats> {
        self.consumed.as_ref().or(self.produced.as_ref())
    }

    /// CPU time of the generator per message, in microseconds; `None`: too little to be
    /// significant.
    pub fn client_us(&self) -> Option<f64> {
        self.per_message(self.usage.client_cpu_s)
    }

    /// CPU time of the broker per message, in microseconds; `None`: it is unknown, or too little to
    /// be significant.
    pub fn broker_us(&self) -> Option<f64> {
        self.per_message(self.usage.broker_cpu_s?)
    }

    /// `None` if there are fewer CPU seconds than [`CPU_MIN_S`], or no messages.
    fn per_message(&self, seconds: f64) -> Option<f64> {
        let messages = self.main()?.messages;
        (messages > 0 && seconds >= CPU_MIN_S).then(|| seconds * 1e6 / messages as f64)
    }

    /// Whether the broker acknowledges messages under this plan.
    pub fn has_acks(&self) -> bool {
        self.subject.promise != Promise::None
    }

    /// Whether messages were measured, none of them was refused, unanswered, lost, damaged or out
    /// of order, and the measurement did not end early.
    pub fn is_good(&self) -> bool {
        let is_broken = self.findings.is_some_and(|findings| findings.is_broken());
        let has_any = self.main().is_some_and(|stats| stats.messages > 0);
        let mut sides = [&self.produced, &self.consumed].into_iter().flatten();
        let has_faults = sides.any(|stats| stats.errors > 0 || stats.damaged > 0);
        has_any && self.cut.is_none() && !is_broken && !has_faults
    }
}

/// The setting that differs between the rows of a search for the knee. Beyond the knee, brokers are
/// expected to be late.
pub(crate) const ASKED_RATE: &str = "asked rate, messages/s";

/// A setting that differs between the rows of a report, such as the message size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variation {
    /// Its name with its unit: "message size, bytes".
    pub name: String,
    /// Its value.
    pub value: f64,
}

/// Measurements with the same settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// The settings that differ from other rows of the same subject.
    pub variations: Vec<Variation>,
    /// The runs.
    pub runs: Vec<Outcome>,
}

/// All measurements of one command, which `--json` prints and `--report` draws.
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
    /// Sentences that belong to the figures.
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
    /// The runs whose figures count: those that did not end before their time, or else all.
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
