//! Programs in Python with libraries that are not built in: the user has installed them.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use super::{AppliedChange, ClientContext};
use crate::broker::BrokerListener;
use crate::process::ClientProcess;

/// The environment variable that names an interpreter with the libraries.
const PYTHON: &str = "CLOVERLEAF_LAB_PYTHON";

/// Characters kept of the last line on standard error, which says why a program has failed.
const WORDS_CHARS_MAX: usize = 400;

/// A program, and its mistake. It finds the broker in its environment, as programs of `lab run`
/// do. Its arguments are a topic of its own and the value of a setting. For each message that is
/// done it prints a line: `done`, and how many microseconds the message took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PythonProgram {
    module: &'static str,
    /// The package that has the module.
    package: &'static str,
    script: &'static str,
    /// The value of the setting before the change.
    mistaken: &'static str,
    over_tls: bool,
}

impl PythonProgram {
    pub(super) const NAGLE: PythonProgram = PythonProgram {
        module: "confluent_kafka",
        package: "confluent-kafka",
        script: include_str!("nagle.py"),
        mistaken: "false",
        over_tls: true,
    };

    pub(super) const ACK_DEADLINE: PythonProgram = PythonProgram {
        module: "nsq",
        package: "pynsq",
        script: include_str!("ack_deadline.py"),
        // Seconds, and too few.
        mistaken: "1",
        over_tls: false,
    };

    /// Runs until the program fails or the scenario is over.
    pub(super) fn run(
        &self,
        context: &ClientContext,
        change: Option<&AppliedChange>,
    ) -> Result<(), String> {
        let tls = context.addresses.get(BrokerListener::KafkaTls);
        if self.over_tls && tls.is_none() {
            return Err("it needs Kafka over TLS, which no proxy carries".to_owned());
        }
        let python = env::var(PYTHON).unwrap_or_else(|_| "python3".to_owned());
        let import = format!("import {}", self.module);
        let has_it = Command::new(&python).args(["-c", &import]).output();
        if !has_it.is_ok_and(|it| it.status.success()) {
            return Err(format!(
                "it needs a Python with {}: {python} has none ({PYTHON} names another)",
                self.package
            ));
        }
        let changed = change.and_then(|it| it.value.as_deref());
        let mut command = Command::new(&python);
        command
            .args(["-u", "-c", self.script, &context.name])
            .arg(changed.unwrap_or(self.mistaken))
            .envs(context.addresses.variables())
            .envs(tls.map(|address| ("CLOVERLEAF_KAFKA_TLS", address.to_string())))
            .envs(context.authority.as_ref().map(|it| ("AUTHORITY", it)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let process = ClientProcess::start(&mut command);
        watch(
            context,
            process.map_err(|error| format!("{python}: {error}"))?,
        )
    }
}

fn watch(context: &ClientContext, mut process: ClientProcess) -> Result<(), String> {
    let (done, errors) = process.outputs();
    let last = Mutex::new(String::new());
    let ended = thread::scope(|scope| {
        scope.spawn(|| count(context, done.map(BufReader::new)));
        scope.spawn(|| {
            let lines = errors.into_iter().flat_map(|it| BufReader::new(it).lines());
            for line in lines.map_while(Result::ok).filter(|it| !it.is_empty()) {
                if let Ok(mut last) = last.lock() {
                    *last = line.chars().take(WORDS_CHARS_MAX).collect();
                }
            }
        });
        let ended = process.ended_before(|| !context.is_running());
        // Kills the program: that ends both pipes, and with them the threads that read them.
        drop(process);
        ended
    });
    let last = last.into_inner().unwrap_or_default();
    match ended {
        Ok(None) => Ok(()),
        Ok(Some(status)) => Err(format!("the program has ended, {status}: {last}")),
        Err(error) => Err(error.to_string()),
    }
}

fn count(context: &ClientContext, lines: Option<impl BufRead>) {
    let lines = lines.into_iter().flat_map(BufRead::lines);
    for line in lines.map_while(Result::ok) {
        let took = line.strip_prefix("done ").and_then(|us| us.parse().ok());
        if let Some(us) = took {
            context.meter.done(Duration::from_micros(us));
        }
    }
}
