//! Which crate may know which: dependencies run downward only.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Finding;
use crate::workspace::{Workspace, output};

/// A crate of ours, and those of ours that it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("cloverleaf-telemetry", &[]),
    ("cloverleaf-log", &[]),
    ("cloverleaf-doctor", &["cloverleaf-telemetry"]),
    (
        "cloverleaf-broker",
        &["cloverleaf-log", "cloverleaf-telemetry"],
    ),
    ("cloverleaf-session", &[]),
    (
        "cloverleaf-nsq",
        &[
            "cloverleaf-log",
            "cloverleaf-broker",
            "cloverleaf-session",
            "cloverleaf-telemetry",
        ],
    ),
    (
        "cloverleaf-kafka",
        &[
            "cloverleaf-log",
            "cloverleaf-broker",
            "cloverleaf-session",
            "cloverleaf-telemetry",
        ],
    ),
    (
        "cloverleaf-amqp",
        &[
            "cloverleaf-log",
            "cloverleaf-broker",
            "cloverleaf-session",
            "cloverleaf-telemetry",
        ],
    ),
    (
        "cloverleaf-server",
        &[
            "cloverleaf-log",
            "cloverleaf-broker",
            "cloverleaf-session",
            "cloverleaf-telemetry",
            "cloverleaf-doctor",
            "cloverleaf-kafka",
            "cloverleaf-amqp",
            "cloverleaf-nsq",
        ],
    ),
    ("cloverleaf-bench", &[]),
    ("cloverleaf-lab", &["cloverleaf-bench", "cloverleaf-doctor"]),
    (
        "cloverleaf",
        &[
            "cloverleaf-bench",
            "cloverleaf-lab",
            "cloverleaf-server",
            "cloverleaf-broker",
            "cloverleaf-log",
            "cloverleaf-nsq",
            "cloverleaf-doctor",
        ],
    ),
    ("xtask", &[]),
];

/// These know bytes and no socket: everything in them can be run by a test without a network.
const SANS_IO: &[&str] = &[
    "cloverleaf-telemetry",
    "cloverleaf-doctor",
    "cloverleaf-log",
    "cloverleaf-broker",
    "cloverleaf-session",
    "cloverleaf-nsq",
    "cloverleaf-kafka",
    "cloverleaf-amqp",
];
/// What a crate without sockets has no use for.
const IO_CRATES: &[&str] = &[
    "tokio",
    "tokio-rustls",
    "mio",
    "socket2",
    "axum",
    "hyper",
    "rustls",
    "async-std",
    "smol",
];

pub(super) fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut cargo = workspace.cargo();
    let text = output(cargo.args(["metadata", "--no-deps", "--offline", "--format-version=1"]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata without packages")?;
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().context("a package without name")?;
        let mut find = |what: String| {
            findings.push(Finding {
                path: PathBuf::from(name),
                line: 0,
                what,
            });
        };
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
            find("an unknown crate: say in tidy/edges.rs what it may depend on".to_owned());
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = dependency["name"]
                .as_str()
                .context("a dependency without name")?;
            let ours = ALLOWED.iter().any(|(known, _)| *known == other);
            if ours && !allowed.contains(&other) {
                find(format!(
                    "it depends on {other}; edges run downward only: move what it needs below both"
                ));
            }
            // Tests may use what they like.
            let shipped = dependency["kind"].is_null();
            if shipped && SANS_IO.contains(&name) && IO_CRATES.contains(&other) {
                find(format!(
                    "it depends on {other}; sockets belong into cloverleaf-server"
                ));
            }
        }
    }
    Ok(findings)
}
