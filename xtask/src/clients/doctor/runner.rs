//! Runs a scenario in `cloverleaf lab`, and compares the report with what is expected.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::programs::reported_library;
use super::table::Scenario;
use super::{Context, Programs};
use crate::workspace::tail;

/// The lab's error where it can make no network.
const NO_NETWORK: &str = "no --rtt-by kernel";

/// The environment variable that names an interpreter for the lab's own scenarios.
const PYTHON: &str = "CLOVERLEAF_LAB_PYTHON";

/// The Kafka listener with TLS. In the network of the lab the port is free.
const TLS: &str = "127.0.0.1:9093";

/// The measurements of a run.
#[derive(Debug, Default, Serialize)]
pub(super) struct PlayMeasurements {
    /// The gain that the finding predicts.
    pub(super) gain: Option<f64>,
    /// The value that the lab measured after the change, divided by the predicted one.
    pub(super) of_predicted: Option<f64>,
    /// Seconds from the lab's first message to the finding.
    pub(super) found_s: Option<f64>,
}

/// Runs a scenario with a broker of its own; a client program runs for this many seconds. What the
/// doctor observes is recorded in the file `record`. The error says what is not as expected.
pub(super) fn run(
    context: &Context,
    programs: &Programs,
    scenario: &Scenario,
    seconds: u64,
    record: Option<&Path>,
    measured: &mut PlayMeasurements,
) -> Result<()> {
    let mut lab = Command::new(&context.binary);
    lab.arg("lab");
    if !scenario.program.is_lab() {
        lab.arg("run");
    }
    let link = &scenario.link;
    lab.args(["--json", "--rtt-by", "kernel"])
        .args(link.rtt.map(|rtt| format!("--rtt={rtt}")))
        .args(link.bandwidth.map(|it| format!("--bandwidth={it}")))
        .args(record.map(|file| format!("--record={}", file.display())))
        .stdin(Stdio::null());
    if scenario.program.is_lab() {
        run_lab(context, scenario, lab, measured)
    } else {
        run_program(context, programs, scenario, seconds, lab, measured)
    }
}

fn run_program(
    context: &Context,
    programs: &Programs,
    scenario: &Scenario,
    seconds: u64,
    mut lab: Command,
    measured: &mut PlayMeasurements,
) -> Result<()> {
    let folder = context.workspace.temp_folder("doctor")?;
    let identity = folder.path().join("identity.json");
    let program = programs.command(context, scenario, seconds, &identity)?;
    // A listener with TLS beside the one without.
    let (certificate, key) = context.tls_files();
    lab.arg(format!("--set=kafka-tls-address={TLS}"));
    lab.arg(format!("--set=kafka-tls-cert={}", certificate.display()));
    lab.arg(format!("--set=kafka-tls-key={}", key.display()));
    if scenario.link.acks_late {
        lab.arg("--set=quick-ack=false");
    }
    lab.arg("--")
        .arg(program.get_program())
        .args(program.get_args())
        .envs(
            program
                .get_envs()
                .filter_map(|(name, it)| Some((name, it?))),
        )
        .env("CLOVERLEAF_KAFKA_TLS", TLS);
    let (output, stderr) = output(lab)?;
    // The exit status is 1 if there are findings.
    if !matches!(output.status.code(), Some(0 | 1)) {
        bail!("{}\n{}", output.status, tail(&stderr, 60));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value =
        serde_json::from_str(&text).with_context(|| format!("no report: {text}"))?;
    let findings = report["findings"].as_array().context("no findings")?;
    measured.gain = report["findings"][0]["prediction"]["gain"].as_f64();
    let reported = reported_library(&identity)?;
    match (&scenario.expected, findings.as_slice()) {
        (None, []) => Ok(()),
        (Some(expected), [finding]) => {
            if !scenario.is_client(&finding["client"], &reported) {
                let shown = shown(findings);
                bail!("{shown} is found; the library says that it is {reported}");
            }
            measured.gain.context("the finding predicts no gain")?;
            expected.check(finding)
        }
        (None, all) => bail!("it does nothing wrong, but there is {}", shown(all)),
        (Some(expected), all) => bail!("not {}, but {}", expected.rule, shown(all)),
    }
}

/// Runs one of the lab's own scenarios. The lab checks the finding, makes its change and measures
/// the effect.
fn run_lab(
    context: &Context,
    scenario: &Scenario,
    mut lab: Command,
    measured: &mut PlayMeasurements,
) -> Result<()> {
    lab.arg(scenario.behaviour)
        .env(PYTHON, context.clients.kafka_python_program());
    let (output, stderr) = output(lab)?;
    let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let (report, finding) = (&all[0], &all[0]["finding"]);
    let Some(problems) = report["problems"].as_array() else {
        bail!("{}\n{}", output.status, tail(&stderr, 30));
    };
    measured.gain = finding["prediction"]["gain"].as_f64();
    if !finding.is_null() {
        measured.gain.context("the finding predicts no gain")?;
    }
    measured.found_s = report["found_s"].as_f64();
    let gains = report["after"].as_f64().zip(report["predicted"].as_f64());
    measured.of_predicted = gains.map(|(after, predicted)| after / predicted);
    measured.of_predicted = measured.of_predicted.filter(|it| it.is_finite());
    if !problems.is_empty() {
        bail!("{}", report["problems"]);
    }
    let (found, changed) = (
        finding["rule"].as_str(),
        report["change"]["setting"].as_str(),
    );
    let expected = scenario.expected.as_ref();
    if (found, changed) != (expected.map(|it| it.rule), expected.map(|it| it.setting)) {
        bail!("{found:?} is found, {changed:?} was changed, not {expected:?}");
    }
    if !output.status.success() {
        bail!("{}, without a reason", output.status);
    }
    Ok(())
}

/// Runs the lab, and returns its output and its standard error. It is an error if the machine lets
/// no program make a network: behind a proxy the doctor cannot tell waiting from thinking, so that
/// such a run would show nothing.
fn output(mut lab: Command) -> Result<(Output, String)> {
    let output = lab.output().context("cannot start the lab")?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut lines = stderr.lines().filter(|_| !output.status.success());
    match lines.find(|line| line.contains(NO_NETWORK)) {
        Some(reason) => bail!("no network can be made: {reason}"),
        None => Ok((output, stderr)),
    }
}

fn shown(findings: &[Value]) -> String {
    let shown = findings.iter().map(|finding| {
        let facts = finding["evidence"].as_array().into_iter().flatten();
        let facts: Vec<String> = facts.map(|fact| fact["text"].to_string()).collect();
        let (rule, client, cause) = (&finding["rule"], &finding["client"], &finding["cause"]);
        format!("{rule} of {client} ({cause} {})", facts.join("; "))
    });
    match shown.collect::<Vec<_>>().as_slice() {
        [] => "nothing".to_owned(),
        shown => shown.join(", and "),
    }
}
