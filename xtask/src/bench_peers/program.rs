//! A program that measures: the load that it is asked for, and the figures that it reports.

use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::workspace::output;

/// A program that is not done then is killed: it hangs on a broker that is gone.
const SECONDS_MAX: &str = "600";

/// The load that the programs are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Load {
    /// Or queue.
    #[serde(skip)]
    pub(crate) topic: String,
    pub(crate) size_bytes: u32,
    /// Connections that publish, and that consume.
    pub(crate) clients: u32,
    #[serde(skip)]
    pub(crate) seconds: u32,
    /// Messages per second, of all clients together; `None`: as many as they can.
    pub(crate) rate: Option<u32>,
    pub(crate) partitions: u32,
    /// Kafka's `acks`, or the kind of an AMQP queue.
    pub(crate) setting: String,
}

/// The figures that a program reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Figures {
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
    /// From publish to delivery, or to the answer where nobody consumes.
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
}

/// A program, ready to run.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) command: Command,
    /// Finds the figures in what it prints.
    pub(crate) read: fn(&str) -> Option<Figures>,
}

impl Program {
    pub(crate) fn run(self) -> Result<Figures> {
        let mut limited = Command::new("timeout");
        limited.args(["--foreground", "--kill-after=5", SECONDS_MAX]);
        // Some print their figures as errors.
        limited.args(["sh", "-c", "exec \"$@\" 2>&1", "sh"]);
        limited.arg(self.command.get_program());
        let text = output(limited.args(self.command.get_args()))?;
        let figures = (self.read)(&text).filter(|figures| figures.messages > 0);
        figures.with_context(|| format!("no result in {text}"))
    }
}

/// The number just before some words.
pub(super) fn before<T: FromStr>(line: &str, words: &str) -> Option<T> {
    let (head, _) = line.split_once(words)?;
    head.rsplit([' ', ',']).next()?.parse().ok()
}

/// The number just behind some words.
pub(super) fn behind<T: FromStr>(line: &str, words: &str) -> Option<T> {
    let (_, rest) = line.rsplit_once(words)?;
    rest.split([' ', ',']).next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Program {
            name: "sh",
            command,
            read: |text| {
                let messages = behind(text.trim(), "messages: ")?;
                Some(Figures {
                    messages,
                    ..Figures::default()
                })
            },
        }
    }

    #[test]
    fn figures_on_either_output_are_read() -> Result<()> {
        assert_eq!(shell("echo messages: 3").run()?.messages, 3);
        assert_eq!(shell("echo messages: 4 >&2").run()?.messages, 4);
        Ok(())
    }

    #[test]
    fn a_program_that_fails_or_measures_nothing_is_an_error_with_what_it_said() {
        for script in ["echo why; exit 3", "echo why", "echo why messages: 0"] {
            let error = shell(script).run().err().map(|error| error.to_string());
            assert!(error.is_some_and(|text| text.contains("why")), "{script}");
        }
    }
}
