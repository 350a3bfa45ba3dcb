//! `cloverleaf lab run` with many programs, and its report.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::patients::Patient;
use crate::clients::Context;
use crate::workspace::tail;

/// Exit status of `lab run` when the program did well, with and without findings.
const GOOD: [i32; 2] = [0, 1];

/// What `lab run` says where it can make no network.
const NO_NETWORK: &str = "no --rtt-by kernel";

/// The report, of which only this is read.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    pub(super) findings: Vec<Finding>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Finding {
    pub(super) rule: String,
    pub(super) cause: String,
    pub(super) client: Client,
    pub(super) changes: Vec<Change>,
    evidence: Vec<Fact>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Client {
    pub(super) library: String,
    pub(super) version: String,
    pub(super) client_id: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Change {
    pub(super) client: String,
    pub(super) setting: String,
    pub(super) value: Option<String>,
    pub(super) code: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Fact {
    text: String,
}

/// Who a patient says that it is.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Says {
    pub(super) library: String,
    pub(super) version: String,
}

/// What came of it.
pub(super) enum Outcome {
    Played(Played),
    /// The machine lets nobody make a network, for this reason: behind a proxy nobody can tell
    /// waiting from thinking.
    NoNetwork(String),
}

/// What the doctor has found, and who has played.
pub(super) struct Played {
    pub(super) answer: Answer,
    each: Vec<Ended>,
}

/// What a patient has left.
struct Ended {
    name: &'static str,
    says: Result<Says>,
    /// What it has died of.
    failed: Option<String>,
}

impl Played {
    /// Who a patient says that it is.
    pub(super) fn says(&self, patient: &Patient) -> Result<&Says> {
        match &self.ended(patient)?.says {
            Ok(says) => Ok(says),
            Err(error) => bail!("{error:#}"),
        }
    }

    /// Whether it has played until the end.
    pub(super) fn is_whole(&self, patient: &Patient) -> Result<()> {
        match &self.ended(patient)?.failed {
            None => Ok(()),
            Some(why) => bail!("{why}"),
        }
    }

    fn ended(&self, patient: &Patient) -> Result<&Ended> {
        let ended = self.each.iter().find(|it| it.name == patient.name);
        ended.with_context(|| format!("{} has not played", patient.name))
    }
}

impl Ended {
    fn of(patient: &Patient, folder: &Path) -> Ended {
        let read = |kind: &str| std::fs::read_to_string(file(patient, folder, kind));
        let says = || -> Result<Says> {
            let text = read(SAYS);
            let text = text.with_context(|| format!("{} has not said who it is", patient.name))?;
            Ok(serde_json::from_str(&text)?)
        };
        let failed = read(FAILED).ok().map(|status| {
            let log = read(LOG).unwrap_or_default();
            format!("it has ended with {}\n{}", status.trim(), tail(&log, 30))
        });
        Ended {
            name: patient.name,
            says: says(),
            failed,
        }
    }
}

/// The broker's settings for TLS beside the clear.
pub(super) fn with_tls(context: &Context) -> Vec<String> {
    let (certificate, key) = context.tls_files();
    vec![
        format!("kafka-tls-address={TLS}"),
        format!("kafka-tls-cert={}", certificate.display()),
        format!("kafka-tls-key={}", key.display()),
    ]
}

/// In the lab's own network nobody else has it.
const TLS: &str = "127.0.0.1:9093";

/// What lies between the patients and the broker.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) rtt: &'static str,
    /// What goes over it each way, if that is little.
    pub(super) bandwidth: Option<&'static str>,
}

impl Link {
    /// One that carries all there is.
    pub(super) const fn far(rtt: &'static str) -> Link {
        Link {
            rtt,
            bandwidth: None,
        }
    }
}

/// Plays all of them at once for so many seconds.
pub(super) fn play(
    context: &Context,
    link: Link,
    settings: &[String],
    patients: &[(&Patient, Command)],
    seconds: &str,
) -> Result<Outcome> {
    let folder = context.workspace.temp_folder("doctor")?;
    let script = folder.path().join("patients.sh");
    std::fs::write(&script, together(patients, folder.path())?)?;
    let mut lab = Command::new(&context.binary);
    lab.args(["lab", "run", "--json", "--rtt-by", "kernel"]);
    lab.args(["--rtt", link.rtt]);
    if let Some(bandwidth) = link.bandwidth {
        lab.args(["--bandwidth", bandwidth]);
    }
    for setting in settings {
        lab.args(["--set", setting]);
    }
    lab.args(["--", "sh"]).arg(&script);
    lab.env("SECONDS", seconds)
        .env("SAYS", folder.path())
        .env("CLOVERLEAF_KAFKA_TLS", TLS)
        .env("CLOVERLEAF_TLS_CA", context.tls_authority())
        .stdin(Stdio::null());
    let output = lab.output().context("cannot start the lab")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.code().is_some_and(|it| GOOD.contains(&it)) {
        if let Some(reason) = no_network(&output.status, &stderr) {
            return Ok(Outcome::NoNetwork(reason));
        }
        bail!("{}\n{}", output.status, tail(&stderr, 60));
    }
    let patients = patients.iter();
    Ok(Outcome::Played(Played {
        answer: Answer::of(&String::from_utf8_lossy(&output.stdout))?,
        each: patients
            .map(|(patient, _)| Ended::of(patient, folder.path()))
            .collect(),
    }))
}

/// Why the machine lets nobody make a network, if that is why the lab has failed.
pub(super) fn no_network(status: &ExitStatus, stderr: &str) -> Option<String> {
    let mut lines = stderr.lines().filter(|_| !status.success());
    let reason = lines.find(|line| line.contains(NO_NETWORK));
    reason.map(str::to_owned)
}

/// A script that runs all of them at once. Who fails leaves its status: the others are judged all
/// the same.
fn together(patients: &[(&Patient, Command)], folder: &Path) -> Result<String> {
    let mut script = String::new();
    for (patient, command) in patients {
        let mut words = vec!["env".to_owned()];
        words.push(format!("PATIENT={}", name(patient, SAYS)));
        for (name, value) in command.get_envs() {
            let value = value.unwrap_or_default();
            words.push(format!("{}={}", name.display(), value.display()));
        }
        words.push(command.get_program().display().to_string());
        words.extend(command.get_args().map(|it| it.display().to_string()));
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let file = |kind| quoted(&file(patient, folder, kind).display().to_string());
        writeln!(
            script,
            "{{ {} >{} 2>&1 || echo $? >{}; }} &",
            words.join(" "),
            file(LOG),
            file(FAILED),
        )?;
    }
    script.push_str("wait\n");
    Ok(script)
}

/// Who a patient is, by its own words.
const SAYS: &str = "json";
/// What it has printed.
const LOG: &str = "log";
/// The exit status of one that has failed.
const FAILED: &str = "failed";

/// The name of a file of a patient's.
fn name(patient: &Patient, kind: &str) -> String {
    format!("{}.{kind}", patient.name.replace([' ', '/', ':'], "-"))
}

fn file(patient: &Patient, folder: &Path, kind: &str) -> PathBuf {
    folder.join(name(patient, kind))
}

/// A word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Findings in a sentence.
pub(super) fn shown(findings: &[&Finding]) -> String {
    if findings.is_empty() {
        return "nothing".to_owned();
    }
    let shown = findings.iter().map(|finding| {
        let facts = finding.evidence.iter().map(|fact| fact.text.as_str());
        format!(
            "{} of {} {} {:?} ({} {})",
            finding.rule,
            finding.client.library,
            finding.client.version,
            finding.client.client_id,
            finding.cause,
            facts.collect::<Vec<_>>().join("; ")
        )
    });
    shown.collect::<Vec<_>>().join(", and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_a_program_as_they_are() {
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        let output = Command::new("sh")
            .arg("-c")
            .arg(format!("printf %s {}", quoted("it's $HOME *")))
            .output();
        let output = output.map(|output| output.stdout);
        assert!(matches!(output.as_deref(), Ok(b"it's $HOME *")));
    }
}
