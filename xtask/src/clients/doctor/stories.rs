//! The stories of `cloverleaf lab` that the tests of the workspace leave out: they need libraries
//! in Python, or a release build, because what is measured is CPU time; or they take their time.

use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;

use super::lab::no_network;
use super::{Context, Report};
use crate::workspace::tail;

/// Names the interpreter that has the libraries.
const PYTHON: &str = "CLOVERLEAF_LAB_PYTHON";

/// When a finding is there at the latest, after the first message.
const FOUND_S_MAX: f64 = 15.0;

/// A story.
#[derive(Clone, Copy)]
struct Story {
    name: &'static str,
    /// What is to be changed in it.
    setting: &'static str,
    /// How far away, if not as far as the story has it.
    rtt: Option<&'static str>,
}

impl Story {
    const fn new(name: &'static str, setting: &'static str) -> Story {
        let rtt = None;
        Story { name, setting, rtt }
    }
}

/// Those of a row play at once; who needs a core for itself plays alone. `tiny-batches` predicts
/// CPU time by what a request and a wake-up took on one machine, so it is played by hand.
const STORIES: &[&[Story]] = &[
    &[
        // A millisecond away, where `doctor/seed-001` is, what the library itself takes for a
        // message is a good part of what is left after the change, and nobody can predict it.
        Story {
            rtt: Some("5ms"),
            ..Story::new("nagle", "socket.nagle.disable")
        },
        Story::new("ack-deadline", "msg_timeout"),
    ],
    &[
        Story::new("window-too-small", "basic_qos"),
        Story::new("churn", CHURN),
    ],
    &[Story::new("partitions", "partitions of the topic")],
];
const CHURN: &str = "one Connection and Channel for the life of the process";

/// What a story has told, of which only this is read.
#[derive(Debug, Deserialize)]
struct Told {
    found_s: Option<f64>,
    change: Option<Change>,
    unit: String,
    before: f64,
    predicted: f64,
    after: f64,
    problems: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Change {
    setting: String,
}

/// What came of it.
enum Outcome {
    Told(Told),
    NoNetwork(String),
}

pub(super) fn play(context: &Context, report: &mut Report) -> Result<()> {
    for row in STORIES {
        let outcomes: Vec<Result<Outcome>> = thread::scope(|scope| {
            let playing = row
                .iter()
                .map(|story| scope.spawn(|| play_twice(context, *story)));
            let playing: Vec<_> = playing.collect();
            let ended = playing.into_iter().map(|it| it.join());
            let panicked = |_| Err(anyhow!("the thread has panicked"));
            ended.map(|it| it.unwrap_or_else(panicked)).collect()
        });
        for (Story { name, .. }, outcome) in row.iter().zip(outcomes) {
            match outcome {
                Ok(Outcome::NoNetwork(reason)) => {
                    println!("SKIPPED {}: ****** {reason} ******", report.group);
                    return Ok(());
                }
                Ok(Outcome::Told(told)) => {
                    println!("        {name}: {}", told.shown());
                    report.pass(name);
                }
                Err(error) => report.fail(name, &format!("{error:#}")),
            }
        }
    }
    Ok(())
}

/// A second time if it is not as it should be: rates are measured, on a machine that may be busy.
fn play_twice(context: &Context, story: Story) -> Result<Outcome> {
    play_once(context, story).or_else(|error| {
        println!("        {}: {error:#}", story.name);
        println!("        once more: the machine may have had other things to do");
        play_once(context, story)
    })
}

fn play_once(context: &Context, story: Story) -> Result<Outcome> {
    let mut lab = Command::new(&context.binary);
    lab.args(["lab", story.name, "--json", "--rtt-by", "kernel"])
        .args(story.rtt.map(|rtt| format!("--rtt={rtt}")))
        .env(PYTHON, context.clients.kafka_python_program())
        .stdin(Stdio::null());
    let output = lab.output().context("cannot start the lab")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if let Some(reason) = no_network(&output.status, &stderr) {
        return Ok(Outcome::NoNetwork(reason));
    }
    let all: Result<Vec<Told>, _> = serde_json::from_slice(&output.stdout);
    let Some(told) = all.ok().and_then(|all| all.into_iter().next()) else {
        bail!("{}\n{}", output.status, tail(&stderr, 30));
    };
    told.check(story.setting)?;
    match output.status.success() {
        true => Ok(Outcome::Told(told)),
        false => bail!("{}, without a reason", output.status),
    }
}

impl Told {
    fn check(&self, setting: &str) -> Result<()> {
        if !self.problems.is_empty() {
            bail!("{}", self.problems.join(", and "));
        }
        let changed = self.change.as_ref().map(|it| it.setting.as_str());
        if changed != Some(setting) {
            bail!("{changed:?} was changed, not {setting:?}");
        }
        match self.found_s {
            Some(found_s) if found_s <= FOUND_S_MAX => Ok(()),
            found_s => bail!("it was found after {found_s:?} seconds"),
        }
    }

    fn shown(&self) -> String {
        // Times are told in microseconds.
        let per_unit = match self.unit.starts_with("ms") {
            true => 1e3,
            false => 1.0,
        };
        format!(
            "found after {:.0} s; before {:.1}, predicted {:.1}, after {:.1} {}",
            self.found_s.unwrap_or_default(),
            self.before / per_unit,
            self.predicted / per_unit,
            self.after / per_unit,
            self.unit
        )
    }
}
