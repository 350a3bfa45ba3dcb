//! The clients that measure, and what they print.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Sub;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use super::super::record::Record;
use super::super::{Args, Bench, machine};
use super::intervals::{Interval, Sample, summarise, whole_p99_us};
use super::subject::Started;
use super::{Cell, Queue};
use crate::kafka_server::java;
use crate::process::{Usage, tree};
use crate::workspace::{output, tail};

/// The heap that PerfTest may use, and its numbers with points and in UTF-8 wherever it runs.
const JVM_OPTIONS: &[&str] = &[
    "-Xmx1G",
    "-Duser.language=en",
    "-Duser.country=US",
    "-Dstdout.encoding=UTF-8",
    "-Dfile.encoding=UTF-8",
];
const PERF_TEST: &str = "com.rabbitmq.perf.PerfTest";
/// Confirms that PerfTest lets stand out, and messages that its consumers hold.
const WINDOW: &str = "500";
pub(super) const PREFETCH: &str = "200";
/// PerfTest's own compiler is busy for so long.
const WARM_UP_SECONDS: u32 = 3;
/// A client that is not done so long after its time is killed: it hangs on a broker that is gone.
const GRACE_SECONDS: u32 = 60;

/// User and system time in seconds, since something began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Used {
    /// Of all processes of the broker.
    pub(super) broker_cpu_s: f64,
    pub(super) client_cpu_s: f64,
    /// Of everything, these two included.
    pub(super) machine_cpu_s: f64,
}

impl Used {
    fn now(started: &mut Started, client: Usage) -> Result<Self> {
        Ok(Self {
            broker_cpu_s: started.usage()?.cpu_s,
            client_cpu_s: client.cpu_s,
            machine_cpu_s: machine::busy_s()?,
        })
    }
}

impl Sub for Used {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            broker_cpu_s: self.broker_cpu_s - earlier.broker_cpu_s,
            client_cpu_s: self.client_cpu_s - earlier.client_cpu_s,
            machine_cpu_s: self.machine_cpu_s - earlier.machine_cpu_s,
        }
    }
}

/// What a client and the broker have done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// Received ones, where there are consumers.
    pub(super) messages: u64,
    pub(super) sent: Option<u64>,
    pub(super) seconds: f64,
    pub(super) used: Used,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) mean_us: Option<f64>,
    pub(super) confirm_p50_us: Option<f64>,
    pub(super) confirm_p99_us: Option<f64>,
    pub(super) whole_p99_us: Option<f64>,
    /// Which library, where it is not PerfTest.
    pub(super) client: Option<&'static str>,
}

impl Outcome {
    pub(super) fn write_to(self, record: &mut Record) {
        record.messages = self.messages;
        record.sent = self.sent;
        record.seconds = self.seconds;
        let used = self.used;
        record.broker_cpu_s = used.broker_cpu_s;
        record.client_cpu_s = Some(used.client_cpu_s);
        let foreign = used.machine_cpu_s - used.broker_cpu_s - used.client_cpu_s;
        // The clocks of processes and machine tick apart.
        record.foreign_cpu_s = Some(foreign.max(0.0));
        record.p50_us = self.p50_us;
        record.p99_us = self.p99_us;
        record.mean_us = self.mean_us;
        record.confirm_p50_us = self.confirm_p50_us;
        record.confirm_p99_us = self.confirm_p99_us;
        record.whole_p99_us = self.whole_p99_us;
        record.client = self.client.map(str::to_owned);
    }
}

pub(super) struct Programs<'a> {
    bench: &'a Bench,
    jars: PathBuf,
    warm_up_s: u32,
    seconds: u32,
}

impl<'a> Programs<'a> {
    pub(super) fn new(bench: &'a Bench, args: &Args) -> Result<Self> {
        let (warm_up_s, seconds) = match args.quick {
            true => (1, 2),
            false => (WARM_UP_SECONDS, args.seconds),
        };
        Ok(Self {
            bench,
            jars: bench.clients.perf_test_jars()?,
            warm_up_s,
            seconds,
        })
    }

    pub(super) fn delete(&self, started: &Started, queue: &str) -> Result<()> {
        output(&mut self.python(started, "delete", queue)).map(drop)
    }

    fn python(&self, started: &Started, mode: &str, queue: &str) -> Command {
        let mut command = Command::new(self.bench.clients.amqp_python_program());
        let script = self.bench.client_tests.join("amqp/python/bench_client.py");
        command.arg(script).arg(started.amqp().to_string());
        command.arg(mode).arg(format!("--queue={queue}"));
        command
    }

    /// Publishes and consumes for some seconds.
    pub(super) fn perf_test(
        &self,
        started: &mut Started,
        queue: &str,
        cell: &Cell,
    ) -> Result<Outcome> {
        let time_s = self.warm_up_s + self.seconds;
        let mut command = java(&self.jars, JVM_OPTIONS, PERF_TEST);
        let uri = format!("amqp://guest:guest@{}/%2f", started.amqp());
        command.args(["--uri", &uri, "--queue", queue]);
        command.args(["--producers", &cell.clients.to_string()]);
        command.args(["--consumers", &cell.clients.to_string()]);
        command.args(["--size", &cell.size_bytes.to_string()]);
        command.args(["--time", &time_s.to_string()]);
        if let Some(rate) = cell.rate {
            command.args(["--rate", &(rate / cell.clients).to_string()]);
        }
        // A queue stays until it is deleted, so that all of it is measured alike.
        command.args(["--auto-delete", "false"]);
        match cell.queue {
            Queue::Classic | Queue::Quorum => {
                command.args([
                    "--flag",
                    "persistent",
                    "--confirm",
                    WINDOW,
                    "--qos",
                    PREFETCH,
                ]);
            }
            Queue::Transient => {
                command.arg("--autoack");
            }
        }
        if cell.queue == Queue::Quorum {
            command.arg("--quorum-queue");
        }
        let mut samples = Vec::new();
        let text = watch(command, time_s, |line, client| {
            if let Some(interval) = Interval::parse(line) {
                if interval.nacked_per_s > 0.0 {
                    bail!("the broker has nacked: {line}");
                }
                samples.push(Sample {
                    interval,
                    used: Used::now(started, client)?,
                });
            }
            Ok(())
        })?;
        let outcome = summarise(&samples, self.warm_up_s.into());
        let mut outcome = outcome.with_context(|| format!("no result in {text}"))?;
        outcome.whole_p99_us = whole_p99_us(&text);
        if outcome.messages == 0 {
            bail!("no message was received: {text}");
        }
        Ok(outcome)
    }

    /// One message, its confirm, and again; the queue is made and deleted by the client.
    pub(super) fn bench_client(
        &self,
        started: &mut Started,
        client: &'static str,
        queue: &str,
        cell: &Cell,
        messages: u64,
    ) -> Result<Outcome> {
        let mut command = self.python(started, client, queue);
        command.arg(format!("--kind={}", cell.queue.name()));
        command.arg(format!("--size={}", cell.size_bytes));
        command.arg(format!("--messages={messages}"));
        let mut used = Vec::new();
        let text = watch(command, 0, |line, client| {
            if line == "measuring" || line.starts_with('{') {
                used.push(Used::now(started, client)?);
            }
            Ok(())
        })?;
        let line = text.lines().rfind(|line| line.starts_with('{'));
        let found: serde_json::Value =
            serde_json::from_str(line.unwrap_or_default()).with_context(|| text.clone())?;
        let [before, after] = used[..] else {
            bail!("no beginning and end in {text}");
        };
        Ok(Outcome {
            messages,
            seconds: messages as f64 / found["rate"].as_f64().context("no rate")?,
            used: after - before,
            p50_us: found["p50_us"].as_f64(),
            p99_us: found["p99_us"].as_f64(),
            mean_us: found["mean_us"].as_f64(),
            client: Some(client),
            ..Outcome::default()
        })
    }
}

/// `timeout` with a client below it. Both end when an error ends their owner.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        // There is nobody left to tell about an error.
        let Ok(None) = self.0.try_wait() else {
            return;
        };
        // SIGKILL would end `timeout` alone; this it hands on, and kills what does not listen.
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// Runs a client, calls `each` with each line that it prints and what it has used by then, and
/// returns all that it has printed.
fn watch(
    command: Command,
    time_s: u32,
    mut each: impl FnMut(&str, Usage) -> Result<()>,
) -> Result<String> {
    let errors = tempfile::NamedTempFile::new()?;
    let mut limited = Command::new("timeout");
    limited.arg("--kill-after=5");
    limited.arg((time_s + GRACE_SECONDS).to_string());
    limited.arg(command.get_program()).args(command.get_args());
    let child = limited
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::options().append(true).open(errors.path())?)
        .spawn()
        .context("cannot start a client")?;
    let mut client = Client(child);
    let pid = client.0.id();
    let out = client.0.stdout.take().context("its output is a pipe")?;
    let mut text = String::new();
    for line in BufReader::new(out).lines() {
        let line = line?;
        each(&line, tree::usage(pid)?)?;
        text.push_str(&line);
        text.push('\n');
    }
    let status = client.0.wait()?;
    if !status.success() {
        let errors = std::fs::read_to_string(errors.path())?;
        bail!(
            "{:?}: {status}\n{}{}",
            command.get_program(),
            tail(&text, 20),
            tail(&errors, 20)
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wait;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_come_with_what_the_client_has_used() -> Result<()> {
        let mut lines = Vec::new();
        let text = watch(shell("echo one; echo two"), 1, |line, used| {
            lines.push((line.to_owned(), used.rss_peak_bytes > 0));
            Ok(())
        })?;
        assert_eq!(text, "one\ntwo\n");
        // The last line may be read when the client has ended.
        assert_eq!(lines[0].0, "one");
        assert_eq!(lines.len(), 2);
        Ok(())
    }

    #[test]
    fn a_client_that_fails_is_an_error_with_what_it_said() {
        let failed = watch(shell("echo why >&2; exit 3"), 1, |_, _| Ok(()));
        let text = failed.map_err(|error| format!("{error:#}")).err();
        assert!(text.is_some_and(|text| text.contains("why") && text.contains('3')));
    }

    #[test]
    fn an_error_ends_the_client_and_what_it_has_started() -> Result<()> {
        let mut started = String::new();
        let script = "tail -f /dev/null & echo $!; wait";
        let watched = watch(shell(script), 60, |line, _| {
            line.clone_into(&mut started);
            bail!("no")
        });
        assert!(watched.is_err());
        assert!(started.parse::<u32>().is_ok(), "{started}");
        // One that has ended has no command line, whether somebody has asked for it or not.
        let command = format!("/proc/{started}/cmdline");
        let is_gone = || Ok(std::fs::read(&command).map_or(true, |line| line.is_empty()));
        wait::until("it is gone", Duration::from_secs(10), is_gone)
    }
}
