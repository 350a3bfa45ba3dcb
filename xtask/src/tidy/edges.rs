//! Crates and those that they may know: dependencies run downward only.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Finding;
use crate::workspace::{Workspace, output};

/// A crate of ours, and those of ours that it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("cloverleaf-telemetry", &[]),
    ("cloverleaf-log", &[]),
    (
        "cloverleaf-doctor",
        &["cloverleaf-page", "cloverleaf-telemetry"],
    ),
    (
        "cloverleaf-broker",
        &[
            "cloverleaf-access",
            "cloverleaf-log",
            "cloverleaf-telemetry",
        ],
    ),
    ("cloverleaf-session", &["cloverleaf-telemetry"]),
    ("cloverleaf-access", &[]),
    ("cloverleaf-subjects", &[]),
    (
        "cloverleaf-nsq",
        &[
            "cloverleaf-access",
            "cloverleaf-log",
            "cloverleaf-broker",
            "cloverleaf-session",
            "cloverleaf-telemetry",
        ],
    ),
    (
        "cloverleaf-kafka",
        &[
            "cloverleaf-access",
            "cloverleaf-log",
            "cloverleaf-broker",
            "cloverleaf-session",
            "cloverleaf-telemetry",
        ],
    ),
    (
        "cloverleaf-amqp",
        &[
            "cloverleaf-access",
            "cloverleaf-log",
            "cloverleaf-broker",
            "cloverleaf-session",
            "cloverleaf-telemetry",
        ],
    ),
    (
        "cloverleaf-echo",
        &["cloverleaf-session", "cloverleaf-telemetry"],
    ),
    (
        "cloverleaf-server",
        &[
            "cloverleaf-access",
            "cloverleaf-echo",
            "cloverleaf-log",
            "cloverleaf-broker",
            "cloverleaf-session",
            "cloverleaf-telemetry",
            "cloverleaf-doctor",
            "cloverleaf-page",
            "cloverleaf-kafka",
            "cloverleaf-amqp",
            "cloverleaf-nsq",
        ],
    ),
    ("cloverleaf-page", &[]),
    ("cloverleaf-program", &["cloverleaf-page"]),
    (
        "cloverleaf-bench",
        &["cloverleaf-page", "cloverleaf-telemetry"],
    ),
    ("cloverleaf-lab", &["cloverleaf-bench", "cloverleaf-doctor"]),
    (
        "cloverleaf",
        &[
            "cloverleaf-page",
            "cloverleaf-program",
            "cloverleaf-server",
            "cloverleaf-doctor",
        ],
    ),
    (
        "cloverleaf-workbench",
        &[
            "cloverleaf-page",
            "cloverleaf-program",
            "cloverleaf-bench",
            "cloverleaf-lab",
            "cloverleaf-server",
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
    "cloverleaf-access",
    "cloverleaf-subjects",
    "cloverleaf-nsq",
    "cloverleaf-kafka",
    "cloverleaf-amqp",
    "cloverleaf-echo",
];
/// Crates that a crate without sockets has no use for.
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

/// The package of the broker's program.
const BROKER: &str = "cloverleaf";
/// These belong to tests or to the workbench: who builds the broker waits for none of them, and
/// needs no C++ compiler.
const NOT_IN_BROKER: &[&str] = &[
    "cloverleaf-echo",
    "cloverleaf-bench",
    "cloverleaf-lab",
    "cloverleaf-workbench",
    "comfy-table",
    "hdrhistogram",
    "indicatif",
    "lapin",
    "rcgen",
    "rdkafka",
    "rdkafka-sys",
];

/// Looks at direct dependencies, and at all that the broker's program is built from.
pub(super) fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut cargo = workspace.cargo();
    let tree = ["tree", "--locked", "--edges=normal,build", "--prefix=none"];
    let tree = output(cargo.args(tree).args(["--package", BROKER]))?;
    let mut findings = in_broker(&tree);
    findings.extend(direct(workspace)?);
    Ok(findings)
}

/// `tree` is `cargo tree`'s: a name and a version a line.
fn in_broker(tree: &str) -> Vec<Finding> {
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let mut found: Vec<&str> = names.filter(|name| NOT_IN_BROKER.contains(name)).collect();
    found.sort_unstable();
    found.dedup();
    let findings = found.into_iter().map(|name| Finding {
        path: PathBuf::from(BROKER),
        line: 0,
        what: format!("it is built from {name}, which belongs into tests or cloverleaf-workbench"),
    });
    findings.collect()
}

fn direct(workspace: &Workspace) -> Result<Vec<Finding>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_of_the_workbench_in_the_broker_is_found_once() {
        let tree = "cloverleaf v0.1.0\nrdkafka v0.39.0\nserde v1.0.229\nrdkafka v0.39.0 (*)\n";
        let found = in_broker(tree);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("rdkafka"));
        assert!(in_broker("cloverleaf v0.1.0\nlapin-like v1.0.0\n").is_empty());
    }
}
