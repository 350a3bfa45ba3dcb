//! How client programs in Go, Java and Node are compiled and started.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::workspace::output;

/// Compiles all Go programs below a folder into the folder `programs`.
pub(super) fn go_build(source: &Path, programs: &Path) -> Result<()> {
    std::fs::create_dir_all(programs)?;
    let mut go = Command::new("go");
    go.current_dir(source);
    go.args(["build", "-buildvcs=false", "-o"]).arg(programs);
    output(go.arg("./...")).map(drop)
}

/// Compiles Java sources into the folder `classes`, with the libraries in the folder `jars`.
pub(super) fn javac(jars: &Path, sources: &[PathBuf], classes: &Path) -> Result<()> {
    std::fs::create_dir_all(classes)?;
    let mut javac = Command::new("javac");
    javac.arg("-cp").arg(jars.join("*")).arg("-d").arg(classes);
    output(javac.args(sources)).map(drop)
}

/// The command that runs a class that [`javac`] has compiled, with these options of the virtual
/// machine.
pub(super) fn java(options: &[&str], jars: &Path, classes: &Path, class: &str) -> Result<Command> {
    let path = std::env::join_paths([&jars.join("*"), classes])?;
    let mut java = Command::new("java");
    java.args(options).arg("-cp").arg(path).arg(class);
    Ok(java)
}

/// The command that runs a script with the packages of this folder.
pub(super) fn node(packages: &Path, script: &Path) -> Command {
    let mut node = Command::new("node");
    node.arg(script);
    node.env("NODE_PATH", packages.join("node_modules"));
    node
}
