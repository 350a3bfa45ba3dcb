//! The stories: each lets a client library do one thing wrong, until the doctor says so; makes the
//! change that it names, and looks whether that helps as much as was said.

mod ack_deadline;
mod amqp;
mod churn;
mod client;
mod context;
pub(crate) mod healthy;
mod healthy_kafka;
mod hoarding;
mod nagle;
mod program;
mod render;
mod runner;
mod tls;
mod verdict;
mod window_too_small;

mod kafka;
mod linger;
mod no_compression;
mod one_connection;
mod partitions;
mod sync_produce;
mod tiny_batches;
mod too_many_in_flight;

use std::fmt;
use std::time::Duration;

use cloverleaf_doctor::{Change, Finding, Rule};
use serde::Serialize;

pub(crate) use context::ClientContext;
pub(crate) use runner::perform;

/// A story.
pub(crate) struct Scenario {
    /// The rule that is to be found, which is also the story's name.
    pub(crate) rule: Rule,
    /// The client's doing, in a sentence.
    pub(crate) title: &'static str,
    /// The client's library, as it calls itself.
    pub(crate) library: &'static str,
    /// The change that is made of those that the finding names.
    pub(crate) setting: &'static str,
    /// Where its value stands.
    pub(crate) value: ValueIn,
    /// The round trip, if the user has no other wish.
    pub(crate) rtt: Duration,
    /// The link's bandwidth in bits per second, if that is little.
    pub(crate) bandwidth: Option<u64>,
    /// Options of the broker.
    pub(crate) broker: &'static [(&'static str, &'static str)],
    /// Whether the broker has a certificate.
    pub(crate) with_tls: bool,
    /// How many seconds are measured after the change, if the user has no other wish.
    pub(crate) measured_s: f64,
    /// Plays until the client says that it is enough, with the change or without; in the end it says
    /// what went wrong.
    pub(crate) play: fn(&ClientContext, Option<&AppliedChange>) -> Result<(), String>,
}

/// Where in a change its value stands.
pub(crate) enum ValueIn {
    /// In its value.
    Value,
    /// In a line of its code, behind these characters.
    Code(&'static str),
    /// It has none: something is to be done otherwise.
    Nothing,
}

/// The change that the client makes.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AppliedChange {
    /// The setting, as the finding names it.
    pub(crate) setting: String,
    /// Its value, if it has one.
    pub(crate) value: Option<String>,
}

impl AppliedChange {
    /// The value as a number.
    pub(crate) fn number(&self) -> Result<usize, String> {
        let value = self.value.as_deref().unwrap_or_default();
        let number = value.parse();
        number.map_err(|_| format!("\"{value}\" for {} is no number", self.setting))
    }

    /// Whether it goes further than one that was made: what that brought shows that more of it
    /// would bring more.
    pub(crate) fn exceeds(&self, made: &AppliedChange) -> bool {
        let numbers = self.number().ok().zip(made.number().ok());
        self.setting == made.setting && numbers.is_some_and(|(next, made)| next > made)
    }
}

impl fmt::Display for AppliedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.setting)?;
        self.value.iter().try_for_each(|it| write!(f, " = {it}"))
    }
}

impl Scenario {
    /// All of them, the most valuable first.
    pub(crate) fn all() -> Vec<Scenario> {
        vec![
            sync_produce::story(),
            linger::story(),
            nagle::story(),
            hoarding::story(),
            window_too_small::story(),
            one_connection::story(),
            partitions::story(),
            too_many_in_flight::story(),
            tiny_batches::story(),
            no_compression::story(),
            churn::story(),
            ack_deadline::story(),
        ]
    }

    pub(crate) fn name(&self) -> &'static str {
        self.rule.name()
    }

    /// The change that this story makes, as the finding names it.
    pub(crate) fn fix(&self, finding: &Finding) -> Result<AppliedChange, String> {
        let named = |change: &&Change| change.setting == self.setting;
        let change = finding.changes.iter().find(named).ok_or_else(|| {
            let all: Vec<&str> = finding.changes.iter().map(|it| &*it.setting).collect();
            let (setting, all) = (self.setting, all.join(", "));
            format!("the finding should name {setting}, and names: {all}")
        })?;
        let value = match self.value {
            ValueIn::Nothing => None,
            ValueIn::Value => change.value.clone(),
            ValueIn::Code(before) => change.code.iter().find_map(|code| number_in(code, before)),
        };
        match (&self.value, &value) {
            (ValueIn::Value | ValueIn::Code(_), None) => Err(format!(
                "the finding says no value for {}: {}",
                self.setting, change.say
            )),
            _ => Ok(AppliedChange {
                setting: change.setting.clone(),
                value,
            }),
        }
    }
}

/// The digits behind these characters.
fn number_in(code: &str, before: &str) -> Option<String> {
    let (_, after) = code.split_once(before)?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    (!digits.is_empty()).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_behind_what_is_before_it() {
        let code = "stream.buffer_unordered(10).collect()";
        assert_eq!(number_in(code, "buffer_unordered(").as_deref(), Some("10"));
        assert_eq!(number_in(code, "collect("), None);
        assert_eq!(number_in(code, "map("), None);
    }

    #[test]
    fn a_further_step_is_one_to_a_greater_value_of_the_same_setting() {
        let fix = |setting: &str, value: Option<&str>| AppliedChange {
            setting: setting.to_owned(),
            value: value.map(ToOwned::to_owned),
        };
        let made = fix("basic_qos", Some("10"));
        assert!(fix("basic_qos", Some("77")).exceeds(&made));
        for other in [
            fix("basic_qos", Some("10")),
            fix("basic_qos", Some("9")),
            fix("basic_qos", None),
            fix("concurrency", Some("77")),
        ] {
            assert!(!other.exceeds(&made), "{other}");
        }
        assert_eq!(made.to_string(), "basic_qos = 10");
    }

    #[test]
    fn each_story_is_another() {
        let mut names: Vec<&str> = Scenario::all().iter().map(Scenario::name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
