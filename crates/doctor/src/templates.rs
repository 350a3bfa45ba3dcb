//! The sentences about each fault: those of `findings.toml`, filled with a rule's numbers.
//!
//! A rule measures and has no sentences. The beginning of that file describes the placeholders and
//! brackets of the sentences.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::Rule;
use crate::advice::{Picture, Side};
use crate::fill::fill;
use crate::finding::{Confidence, Fact};
use crate::units::{bytes, messages, number, percent, time};

/// Measured numbers by their names.
pub(crate) type Numbers = BTreeMap<&'static str, f64>;

/// The templates, parsed when the first fault is seen. They are built in, and tests parse them.
pub(crate) static TEMPLATES: LazyLock<Templates> = LazyLock::new(|| {
    toml::from_str(include_str!("../findings.toml"))
        .unwrap_or_else(|error| panic!("findings.toml: {error}"))
});

/// A template for each form in which a rule's fault shows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Templates {
    pub(crate) sync_produce: Template,
    pub(crate) hoarding_idle_others: Template,
    pub(crate) hoarding_waves: Template,
    pub(crate) window_too_small: Template,
    pub(crate) linger: Template,
    pub(crate) nagle_of_requests: Template,
    pub(crate) nagle_of_acknowledgements: Template,
    pub(crate) ack_deadline: Template,
    pub(crate) too_few_partitions: Template,
    pub(crate) skewed_partitions: Template,
    pub(crate) one_connection_bunches: Template,
    pub(crate) one_connection_old_records: Template,
    pub(crate) one_connection_full_batches: Template,
    pub(crate) too_many_in_broker: Template,
    pub(crate) too_many_given_up: Template,
    pub(crate) too_many_on_link: Template,
    pub(crate) tiny_batches: Template,
    pub(crate) no_compression: Template,
    pub(crate) churn_of_connections: Template,
    pub(crate) churn_of_channels: Template,
    pub(crate) fetch_rhythm: Template,
}

/// A finding with placeholders for its numbers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Template {
    pub(crate) rule: Rule,
    pub(crate) side: Side,
    pub(crate) confidence: Confidence,
    #[serde(default)]
    pub(crate) picture: Picture,
    cause: String,
    /// The computation of the prediction.
    arithmetic: String,
    /// Pairs of a number's name and its sentence.
    evidence: Vec<(String, String)>,
    unseen: Vec<String>,
    /// Pairs of a number's name and a sentence that is left out without that number.
    #[serde(default)]
    unseen_if: Vec<(String, String)>,
}

impl Template {
    pub(crate) fn cause(&self, numbers: &Numbers) -> String {
        sentence(&self.cause, numbers)
    }

    pub(crate) fn arithmetic(&self, numbers: &Numbers) -> String {
        sentence(&self.arithmetic, numbers)
    }

    pub(crate) fn evidence(&self, numbers: &Numbers) -> Vec<Fact> {
        let facts = self.evidence.iter().filter_map(|(name, text)| {
            Some(Fact {
                name: name.clone(),
                value: *numbers.get(name.as_str())?,
                text: sentence(text, numbers),
            })
        });
        facts.collect()
    }

    pub(crate) fn unseen(&self, numbers: &Numbers) -> Vec<String> {
        let is_measured = |(name, _): &&(String, String)| numbers.contains_key(name.as_str());
        let conditional = self.unseen_if.iter().filter(is_measured);
        let texts = self.unseen.iter().chain(conditional.map(|(_, text)| text));
        texts.map(|text| sentence(text, numbers)).collect()
    }
}

/// A sentence with its numbers, without the bracketed parts whose numbers are missing.
fn sentence(text: &str, numbers: &Numbers) -> String {
    let mut sentence = String::new();
    for (at, part) in text.split('[').enumerate() {
        let (optional, rest) = match part.split_once(']') {
            Some((optional, rest)) if at > 0 => (optional, rest),
            _ => ("", part),
        };
        sentence.extend(filled(optional, numbers));
        let certain = filled(rest, numbers);
        debug_assert!(
            certain.is_some(),
            "not measured, but in {rest:?}: {numbers:?}"
        );
        sentence.extend(certain);
    }
    sentence
}

/// A text with its numbers, if all of them were measured.
fn filled(text: &str, numbers: &Numbers) -> Option<String> {
    let mut is_whole = true;
    let text = fill(text, |blank| {
        let value = value_of(blank, numbers);
        is_whole &= value.is_some();
        value
    });
    is_whole.then_some(text)
}

/// The text that replaces a placeholder.
fn value_of(blank: &str, numbers: &Numbers) -> Option<String> {
    if let Some((name, words)) = blank.split_once('?') {
        let (one, many) = words.split_once('|')?;
        let is_one = numbers.get(name).is_some_and(|it| number(*it) == "1");
        return Some(if is_one { one } else { many }.to_owned());
    }
    let (name, format) = match blank.split_once(':') {
        Some((name, format)) => (name, format),
        None if blank.ends_with("_us") => (blank, "time"),
        None if blank.ends_with("_bytes") => (blank, "bytes"),
        None if blank.ends_with("_share") => (blank, "percent"),
        None => (blank, ""),
    };
    let value = *numbers.get(name)?;
    Some(match (format, format.parse()) {
        ("time", _) => time(value),
        ("bytes", _) => bytes(value),
        ("percent", _) => percent(value),
        ("messages", _) => messages(value),
        (_, Ok(digits)) => format!("{value:.digits$}"),
        _ => number(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_template_can_be_read() {
        assert_eq!(TEMPLATES.linger.rule, Rule::Linger);
    }

    #[test]
    fn numbers_are_filled_in_by_their_units() {
        let numbers = Numbers::from([
            ("gap_us", 1_500.0),
            ("read_bytes", 64_000.0),
            ("late_share", 0.25),
            ("jobs", 1.0),
            ("held", 3.0),
            ("in_time", 20.0),
        ]);
        for (text, expect) in [
            (
                "{gap_us}, {read_bytes}, {late_share}",
                "1.5 ms, 64 KB, 25 %",
            ),
            (
                "{held:messages} of {jobs:messages}",
                "3 messages of 1 message",
            ),
            ("{held:2}, {held:percent}, {held:time}", "3.00, 300 %, 3 µs"),
            ("{jobs} {jobs?job|jobs}, {in_time?one|many}", "1 job, many"),
            ("{in_time} in time", "20 in time"),
            ("{gone?one|many}[ in {gone}][ of {held}].", "many of 3."),
        ] {
            assert_eq!(sentence(text, &numbers), expect);
        }
    }
}
