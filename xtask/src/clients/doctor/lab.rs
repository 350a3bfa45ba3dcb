//! `cloverleaf lab run` with a patient's program, and its report.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::patients::Patient;
use super::programs::Says;
use super::wards::Ward;
use super::{Change, Context, Programs};
use crate::workspace::tail;

/// Exit status of `lab run` when the program did well, with and without findings.
const GOOD: [i32; 2] = [0, 1];

/// The words of `lab run` where it can make no network.
const NO_NETWORK: &str = "no --rtt-by kernel";

/// The report, of which only this is read.
#[derive(Debug, Deserialize)]
struct Answer {
    findings: Vec<Finding>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Finding {
    rule: String,
    cause: String,
    client: Client,
    changes: Vec<Change>,
    evidence: Vec<Fact>,
    pub(super) prediction: Prediction,
}

#[derive(Debug, Deserialize)]
struct Client {
    library: String,
    version: String,
    client_id: String,
}

#[derive(Debug, Deserialize)]
struct Fact {
    text: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Prediction {
    pub(super) gain: f64,
}

/// The doctor's findings about a patient, and the library that the patient reports.
pub(super) struct Played {
    pub(super) findings: Vec<Finding>,
    says: Says,
}

impl Played {
    /// Whether there is the finding that the patient should have, about it, and nothing else.
    pub(super) fn check(&self, patient: &Patient) -> Result<()> {
        match (&patient.expected, self.findings.as_slice()) {
            (None, []) => Ok(()),
            (Some(expected), [finding]) => {
                finding.is_about(patient, &self.says)?;
                expected.check(&finding.rule, &finding.changes)
            }
            (None, _) => bail!("it is well, but there is {}", self.shown()),
            (Some(expected), _) => bail!("{} is expected, not {}", expected.rule, self.shown()),
        }
    }

    /// Findings in a sentence.
    fn shown(&self) -> String {
        let shown: Vec<String> = self.findings.iter().map(Finding::shown).collect();
        match shown.as_slice() {
            [] => "nothing".to_owned(),
            shown => shown.join(", and "),
        }
    }
}

impl Finding {
    fn is_about(&self, patient: &Patient, says: &Says) -> Result<()> {
        let client = &self.client;
        let is = client.client_id == patient.client_id
            && client.library == says.library
            && client.version == says.version;
        if !is {
            bail!(
                "{} is found; the library says that it is {says:?}",
                self.shown()
            );
        }
        Ok(())
    }

    fn shown(&self) -> String {
        let facts = self.evidence.iter().map(|fact| fact.text.as_str());
        format!(
            "{} of {} {} {:?} ({} {})",
            self.rule,
            self.client.library,
            self.client.version,
            self.client.client_id,
            self.cause,
            facts.collect::<Vec<_>>().join("; ")
        )
    }
}

/// Plays a patient beside a broker of its own for so many seconds; what its doctor sees goes to
/// `record`, if there is such a file.
pub(super) fn play(
    context: &Context,
    programs: &Programs,
    ward: &Ward,
    patient: &Patient,
    seconds: u64,
    record: Option<&Path>,
) -> Result<Played> {
    let folder = context.workspace.temp_folder("doctor")?;
    let says = folder.path().join("says.json");
    let program = programs.command(context, patient, seconds, &says)?;
    let mut lab = Command::new(&context.binary);
    lab.args(["lab", "run", "--json", "--rtt-by", "kernel"]);
    lab.args(["--rtt", ward.link.rtt]);
    if let Some(bandwidth) = ward.link.bandwidth {
        lab.args(["--bandwidth", bandwidth]);
    }
    if let Some(file) = record {
        lab.arg("--record").arg(file);
    }
    for setting in settings(context, ward) {
        lab.args(["--set", &setting]);
    }
    lab.arg("--")
        .arg(program.get_program())
        .args(program.get_args());
    for (name, value) in program.get_envs() {
        lab.env(name, value.unwrap_or_default());
    }
    lab.env("CLOVERLEAF_KAFKA_TLS", TLS).stdin(Stdio::null());
    let output = lab.output().context("cannot start the lab")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    no_network(&output.status, &stderr)?;
    if !output.status.code().is_some_and(|it| GOOD.contains(&it)) {
        bail!("{}\n{}", output.status, tail(&stderr, 60));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let answer: Answer =
        serde_json::from_str(&text).with_context(|| format!("no report: {text}"))?;
    Ok(Played {
        findings: answer.findings,
        says: Says::read(&says)?,
    })
}

/// The broker's settings: TLS beside the clear, and what the ward needs.
fn settings(context: &Context, ward: &Ward) -> Vec<String> {
    let (certificate, key) = context.tls_files();
    let mut settings = vec![
        format!("kafka-tls-address={TLS}"),
        format!("kafka-tls-cert={}", certificate.display()),
        format!("kafka-tls-key={}", key.display()),
    ];
    if ward.acks_late {
        settings.push("quick-ack=false".to_owned());
    }
    settings
}

/// In the lab's own network no other program has it.
const TLS: &str = "127.0.0.1:9093";

/// An error where the machine lets no program make a network: behind a proxy the doctor cannot
/// tell waiting from thinking, so that a play there says nothing.
pub(super) fn no_network(status: &ExitStatus, stderr: &str) -> Result<()> {
    let mut lines = stderr.lines().filter(|_| !status.success());
    match lines.find(|line| line.contains(NO_NETWORK)) {
        Some(reason) => bail!("no network can be made: {reason}"),
        None => Ok(()),
    }
}
