//! The findings of the doctor.

use serde::{Deserialize, Serialize};

use crate::advice::Change;
use crate::client::printable;
use crate::{Client, Rule};

/// How much it costs: the gain to expect of the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Less than twice as much.
    Low,
    /// At least twice as much.
    Medium,
    /// At least five times as much.
    High,
}

impl Severity {
    /// Of a gain to expect.
    fn of_gain(gain: f64) -> Severity {
        match gain {
            gain if gain >= 5.0 => Severity::High,
            gain if gain >= 2.0 => Severity::Medium,
            _ => Severity::Low,
        }
    }

    /// The name, lower case. Stable.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Low => "low",
            Severity::Medium => "medium",
            Severity::High => "high",
        }
    }
}

/// How sure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Another cause looks the same from here; the finding says which.
    Medium,
    /// Nothing else known looks like this.
    High,
}

impl Confidence {
    /// The name, lower case. Stable.
    pub fn name(self) -> &'static str {
        match self {
            Confidence::Medium => "medium",
            Confidence::High => "high",
        }
    }
}

/// A measured number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// The measured quantity: `gap`, `rtt`, … Stable within a rule.
    pub name: String,
    /// The value, in the unit of the name's ending, or a plain number.
    pub value: f64,
    /// The sentence to print.
    pub text: String,
}

/// The quantity that is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Messages per second, on one connection.
    ConnectionMessagesPerSecond,
    /// Messages per second, of the whole subscription or group.
    SubscriptionMessagesPerSecond,
    /// Microseconds that a request or message takes.
    LatencyUs,
    /// The broker's cost of a message; one of many in a request costs 1.
    Cost,
}

/// How exact a prediction is, where something that the gain depends on is known from one side only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// So much, as far as the numbers are right.
    #[default]
    Exact,
    /// So much or more.
    AtLeast,
    /// So much or less.
    AtMost,
}

impl Bound {
    /// The words before the number, with a space behind them.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Bound::Exact => "",
            Bound::AtLeast => "at least ",
            Bound::AtMost => "up to ",
        }
    }
}

/// The effect of the change, by the numbers that were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The quantity.
    pub measure: Measure,
    /// Its value in the window.
    pub now: f64,
    /// Its value after the change.
    pub after: f64,
    /// How many times better.
    pub gain: f64,
    /// Whether the gain is that, or that at least, or at most.
    #[serde(default)]
    pub bound: Bound,
    /// Whether it may be meant as it is, because nobody is seen to suffer.
    #[serde(default)]
    pub may_be_meant: bool,
    /// How that was reckoned.
    pub arithmetic: String,
}

impl Prediction {
    /// How much it matters. A cost of the broker for which nobody waits matters little, and so does
    /// what may be meant; what may be less than is said is not put before what is sure.
    pub(crate) fn severity(&self) -> Severity {
        match (self.measure, self.bound) {
            _ if self.may_be_meant => Severity::Low,
            (Measure::Cost, _) => Severity::Low,
            (_, Bound::AtMost) => Severity::of_gain(self.gain).min(Severity::Medium),
            _ => Severity::of_gain(self.gain),
        }
    }

    /// Of a rate, which should rise, or of a time or a cost, which should fall. The sentence that
    /// says how it was reckoned comes with the others of a finding.
    pub(crate) fn new(measure: Measure, now: f64, after: f64) -> Prediction {
        let gain = match measure {
            Measure::LatencyUs | Measure::Cost => now / after,
            _ => after / now,
        };
        Prediction {
            measure,
            now,
            after,
            // Nothing where that cannot be reckoned.
            gain: if gain.is_finite() { gain } else { 0.0 },
            bound: Bound::Exact,
            may_be_meant: false,
            arithmetic: String::new(),
        }
    }

    /// The same, as what it is.
    pub(crate) fn bounded(self, bound: Bound) -> Prediction {
        Prediction { bound, ..self }
    }
}

/// One cause of slowness, of one client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The same for the same rule, client and subscription, whenever it is found.
    pub id: String,
    /// Which rule found it.
    pub rule: Rule,
    /// How much it costs.
    pub severity: Severity,
    /// How sure it is.
    pub confidence: Confidence,
    /// The client that it is about.
    pub client: Client,
    /// Library and version as the advice writes them, where what the client says of itself does
    /// not tell its library from others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library_shown: Option<String>,
    /// How many of its connections show it.
    pub connections: u64,
    /// The topic, where it is known.
    pub topic: Option<String>,
    /// The subscription or group, where it is about one.
    pub subscription: Option<String>,
    /// The cause, in one sentence.
    pub cause: String,
    /// The measured numbers, on the connection that shows it most.
    pub evidence: Vec<Fact>,
    /// How long the window was that it was measured in, in microseconds.
    pub window_us: u64,
    /// The effect of the change.
    pub prediction: Prediction,
    /// The changes to make, best first.
    pub changes: Vec<Change>,
    /// Reasons against it, and facts that cannot be seen from here.
    pub unseen: Vec<String>,
    /// When it was seen first, in microseconds since 1970.
    pub first_seen_unix_us: u64,
    /// When it was seen last.
    pub last_seen_unix_us: u64,
    /// Whether it still is.
    pub is_active: bool,
}

impl Finding {
    /// The client that it is about, for a terminal.
    pub(crate) fn who(&self) -> String {
        match &self.library_shown {
            Some(library) => self.client.shown_as(library),
            None => self.client.to_string(),
        }
    }

    /// Topic and subscription for a terminal, where they are known.
    pub(crate) fn place(&self) -> Option<String> {
        let place = match (&self.topic, &self.subscription) {
            (Some(topic), Some(name)) if topic != name => format!("{topic}, {name}"),
            (Some(topic), _) => topic.clone(),
            _ => return None,
        };
        Some(printable(&place, 200))
    }
}
