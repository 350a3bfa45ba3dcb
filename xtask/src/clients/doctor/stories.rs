//! The stories of `cloverleaf lab`: each makes the change that the finding names, and measures
//! whether it brings as much as was predicted.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::Context;
use super::lab::no_network;
use crate::workspace::tail;

/// Names the interpreter that has the libraries.
const PYTHON: &str = "CLOVERLEAF_LAB_PYTHON";

/// A story.
#[derive(Clone, Copy)]
pub(super) struct Story {
    pub(super) name: &'static str,
    /// The setting that the finding names; `None`: all clients are well.
    setting: Option<&'static str>,
    /// How far away, if not as far as the story has it.
    rtt: Option<&'static str>,
}

const fn story(name: &'static str, setting: &'static str) -> Story {
    Story {
        name,
        setting: Some(setting),
        rtt: None,
    }
}

pub(super) const STORIES: &[Story] = &[
    Story {
        // At the blog post's millisecond the library's own work for a message is a good part of
        // what is left after the change, and cannot be predicted.
        rtt: Some("5ms"),
        ..story("nagle", "socket.nagle.disable")
    },
    story("ack-deadline", "msg_timeout"),
    story("window-too-small", "basic_qos"),
    story(
        "churn",
        "one Connection and Channel for the life of the process",
    ),
    story("partitions", "partitions of the topic"),
    Story {
        setting: None,
        ..story("healthy", "")
    },
];

/// The report of a story, of which only this is read.
#[derive(Debug, Deserialize)]
struct Told {
    found_s: Option<f64>,
    change: Option<Change>,
    #[serde(default)]
    predicted: f64,
    #[serde(default)]
    after: f64,
    problems: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Change {
    setting: String,
}

/// The measurements of a story that went as it should.
pub(super) struct Measured {
    /// Seconds from the first message to the finding.
    pub(super) found_s: Option<f64>,
    /// Measured after the change, in parts of what was predicted.
    pub(super) of_predicted: Option<f64>,
}

/// Plays a story once; what its doctor sees goes to `record`, if there is such a file.
pub(super) fn play(context: &Context, story: &Story, record: Option<&Path>) -> Result<Measured> {
    let mut lab = Command::new(&context.binary);
    lab.args(["lab", story.name, "--json", "--rtt-by", "kernel"])
        .args(story.rtt.map(|rtt| format!("--rtt={rtt}")))
        .args(record.map(|file| format!("--record={}", file.display())))
        .env(PYTHON, context.clients.kafka_python_program())
        .stdin(Stdio::null());
    let output = lab.output().context("cannot start the lab")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    no_network(&output.status, &stderr)?;
    let all: Result<Vec<Told>, _> = serde_json::from_slice(&output.stdout);
    let Some(told) = all.ok().and_then(|all| all.into_iter().next()) else {
        bail!("{}\n{}", output.status, tail(&stderr, 30));
    };
    if !told.problems.is_empty() {
        bail!("{}", told.problems.join(", and "));
    }
    let changed = told.change.as_ref().map(|it| it.setting.as_str());
    if changed != story.setting {
        bail!("{changed:?} was changed, not {:?}", story.setting);
    }
    if !output.status.success() {
        bail!("{}, without a reason", output.status);
    }
    let of_predicted = told.after / told.predicted;
    Ok(Measured {
        found_s: told.found_s,
        of_predicted: Some(of_predicted).filter(|it| it.is_finite()),
    })
}
