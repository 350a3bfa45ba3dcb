//! Scenarios. Each runs a client library with one mistake until the doctor finds it, makes the
//! change that the finding names, and measures whether it helps as much as predicted.

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
    /// The client's mistake, in a sentence.
    pub(crate) title: &'static str,
    /// The client's library, as it calls itself.
    pub(crate) library: &'static str,
    /// The setting that is changed, of those that the finding names.
    pub(crate) setting: &'static str,
    /// Where the finding has the value for it.
    pub(crate) value: ValueIn,
    /// The round trip in milliseconds, unless `--rtt` sets another.
    pub(crate) rtt_ms: u64,
    /// The link's bandwidth in bits per second; `None`: unlimited.
    pub(crate) bandwidth: Option<u64>,
    /// The broker leaves TCP's acknowledgements to the kernel, as other brokers do.
    pub(crate) acks_late: bool,
    /// Whether the broker has a certificate.
    pub(crate) with_tls: bool,
    /// Seconds to measure after the change, unless `--time` sets another time.
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
    /// Runs with the change or without it, until the scenario is over. The error is a text for the
    /// report.
    fn run(&self, context: &ClientContext, change: Option<&AppliedChange>) -> Result<(), String> {
        match self {
            ClientProgram::Kafka(program) => program.run(context, change),
            ClientProgram::Amqp(program) => program.run(context, change),
            ClientProgram::Python(program) => program.run(context, change),
        }
    }
}

/// Where a change of a finding has its value.
pub(crate) enum ValueIn {
    /// In its field `value`.
    Value,
    /// In a line of its code, after these characters.
    Code(&'static str),
    /// It has none: the program has to be written differently.
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

    /// Whether it raises the same setting further than `made` did. Such advice after a change is no
    /// fault: the first step may show that a greater one brings more.
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
    /// All scenarios, the most valuable first.
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

/// The digits after these characters.
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
