//! Scenarios: each lets a client library do one thing wrong, until the doctor says so; makes the
//! change that it names, and looks whether that helps as much as was said.

mod amqp;
mod client;
mod context;
pub(crate) mod healthy;
mod kafka;
mod python;
mod render;
mod runner;
mod table;
mod tls;
mod verdict;

use std::fmt;

use cloverleaf_doctor::{Change, Finding, Rule};
use serde::Serialize;

pub(crate) use context::ClientContext;
pub(crate) use runner::perform;

/// A client program, its link to the broker, and the expected finding.
pub(crate) struct Scenario {
    /// The rule that is to be found, which is also the scenario's name.
    pub(crate) rule: Rule,
    /// The client's doing, in a sentence.
    pub(crate) title: &'static str,
    /// The client's library, as it calls itself.
    pub(crate) library: &'static str,
    /// The change that is made of those that the finding names.
    pub(crate) setting: &'static str,
    /// Where its value stands.
    pub(crate) value: ValueIn,
    /// The round trip in milliseconds, if the user has no other wish.
    pub(crate) rtt_ms: u64,
    /// The link's bandwidth in bits per second, if that is little.
    pub(crate) bandwidth: Option<u64>,
    /// The broker leaves acknowledgements to the kernel, as others do.
    pub(crate) acks_late: bool,
    /// Whether the broker has a certificate.
    pub(crate) with_tls: bool,
    /// How many seconds are measured after the change, if the user has no other wish.
    pub(crate) measured_s: f64,
    pub(crate) program: ClientProgram,
}

/// A program with one of the client libraries.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ClientProgram {
    /// librdkafka, built in.
    Kafka(kafka::KafkaProgram),
    /// lapin, built in.
    Amqp(amqp::AmqpProgram),
    /// A library that the user has installed.
    Python(python::PythonProgram),
}

impl ClientProgram {
    /// Runs until the context says that it is enough, with the change or without; in the end it
    /// says what went wrong.
    fn run(&self, context: &ClientContext, change: Option<&AppliedChange>) -> Result<(), String> {
        match self {
            ClientProgram::Kafka(program) => program.run(context, change),
            ClientProgram::Amqp(program) => program.run(context, change),
            ClientProgram::Python(program) => program.run(context, change),
        }
    }
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
    pub(crate) fn all() -> &'static [Scenario] {
        table::SCENARIOS
    }

    pub(crate) fn name(&self) -> &'static str {
        self.rule.name()
    }

    /// The change that this scenario makes, as the finding names it.
    pub(crate) fn change(&self, finding: &Finding) -> Result<AppliedChange, String> {
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
        let change = |setting: &str, value: Option<&str>| AppliedChange {
            setting: setting.to_owned(),
            value: value.map(ToOwned::to_owned),
        };
        let made = change("basic_qos", Some("10"));
        assert!(change("basic_qos", Some("77")).exceeds(&made));
        for other in [
            change("basic_qos", Some("10")),
            change("basic_qos", Some("9")),
            change("basic_qos", None),
            change("concurrency", Some("77")),
        ] {
            assert!(!other.exceeds(&made), "{other}");
        }
        assert_eq!(made.to_string(), "basic_qos = 10");
    }

    #[test]
    fn each_scenario_is_another() {
        let mut names: Vec<&str> = Scenario::all().iter().map(Scenario::name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
