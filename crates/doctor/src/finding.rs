//! The findings of the doctor.

use serde::{Deserialize, Serialize};

use crate::advice::Change;
use crate::client::printable;
use crate::{Client, Rule};

/// How much the fault costs, by the gain to expect from the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A gain of less than 2.
    Low,
    /// A gain of at least 2.
    Medium,
    /// A gain of at least 5.
    High,
}

impl Severity {
    /// The severity for a gain.
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

/// How certain a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Another cause looks the same to the broker; the finding says which.
    Medium,
    /// No other known cause looks like this.
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
    /// The value, in the unit of the name's suffix, or a plain number.
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
    /// The broker's cost of a message; a message in a large batch costs 1.
    Cost,
}

/// How exact a prediction is, if for a quantity that the gain depends on only an upper or lower
/// bound is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The gain is this, if the numbers are right.
    #[default]
    Exact,
    /// The gain is this or more.
    AtLeast,
    /// The gain is this or less.
    AtMost,
}

impl Bound {
    /// The words before the number, with a space after them.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Bound::Exact => "",
            Bound::AtLeast => "at least ",
            Bound::AtMost => "up to ",
        }
    }
}

/// The effect of the change, computed from the measured numbers.
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
    /// Whether the gain is exact, a minimum or a maximum.
    #[serde(default)]
    pub bound: Bound,
    /// Whether the client may behave like this on purpose, because no harm is visible.
    #[serde(default)]
    pub may_be_meant: bool,
    /// How the prediction was computed, in words.
    pub arithmetic: String,
}

impl Prediction {
    /// The severity. It is low for a cost of the broker that delays no client, and for behaviour
    /// that may be on purpose. A gain that is only a maximum counts less than an exact one.
    pub(crate) fn severity(&self) -> Severity {
        match (self.measure, self.bound) {
            _ if self.may_be_meant => Severity::Low,
            (Measure::Cost, _) => Severity::Low,
            (_, Bound::AtMost) => Severity::of_gain(self.gain).min(Severity::Medium),
            _ => Severity::of_gain(self.gain),
        }
    }

    /// For a rate, which should rise, or for a time or a cost, which should fall. The template of
    /// the finding adds the sentence about the arithmetic.
    pub(crate) fn new(measure: Measure, now: f64, after: f64) -> Prediction {
        let gain = match measure {
            Measure::LatencyUs | Measure::Cost => now / after,
            _ => after / now,
        };
        Prediction {
            measure,
            now,
            after,
            // 0 if it cannot be computed.
            gain: if gain.is_finite() { gain } else { 0.0 },
            bound: Bound::Exact,
            may_be_meant: false,
            arithmetic: String::new(),
        }
    }

    /// The same prediction with this bound.
    pub(crate) fn bounded(self, bound: Bound) -> Prediction {
        Prediction { bound, ..self }
    }
}

/// One cause of slowness, of one client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable: the same for the same rule, client and subscription, whenever it is found.
    pub id: String,
    /// Which rule found it.
    pub rule: Rule,
    /// How much the fault costs.
    pub severity: Severity,
    /// How certain the finding is.
    pub confidence: Confidence,
    /// The client that it is about.
    pub client: Client,
    /// Library and version as the advice writes them, if the library that the client declares is
    /// ambiguous.
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
    /// Length of the window in which it was measured, in microseconds.
    pub window_us: u64,
    /// The effect of the change.
    pub prediction: Prediction,
    /// The changes to make, best first.
    pub changes: Vec<Change>,
    /// Reasons against it, and facts that the broker cannot see.
    pub unseen: Vec<String>,
    /// When it was seen first, in microseconds since 1970.
    pub first_seen_unix_us: u64,
    /// When it was seen last, in microseconds since 1970.
    pub last_seen_unix_us: u64,
    /// Whether the case is still open.
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
