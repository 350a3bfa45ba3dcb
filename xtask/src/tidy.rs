//! `cargo xtask tidy`: the house rules that no compiler checks, each with what to do instead.
//!
//! It runs as a test too, so that `cargo test` says what CI will say.

mod clocks;
mod edges;
mod files;
mod lines;
mod links;
mod names;
mod protocols;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// Folders that hold nothing of ours.
const FOREIGN: &[&str] = &[
    "target",
    ".git",
    "node_modules",
    "__pycache__",
    "cloverleaf-data",
    "corpus",
    "artifacts",
];

/// One broken rule.
struct Finding {
    path: PathBuf,
    /// From 1; 0 when it is about the whole file.
    line: usize,
    what: String,
}

/// A text file of the checkout, by its path from the root.
struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    fn is(&self, extensions: &[&str]) -> bool {
        let extension = self
            .path
            .extension()
            .and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| extensions.contains(&extension))
    }

    /// The lines of tests, without comments: all of the programs in `tests/` and of the code that
    /// runs them, and those behind `#[cfg(test)]` (by habit tests stand at the end of a file).
    fn test_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let comment = if self.is(&["py"]) { "#" } else { "//" };
        let mut in_tests = self.is(&["rs", "py", "go", "js", "java"])
            && (self.path.iter().any(|part| part == "tests")
                || self.path.starts_with("xtask")
                || self.path.to_string_lossy().ends_with("tests.rs"));
        let is_rust = self.is(&["rs"]);
        let lines = (1..).zip(self.text.lines());
        lines.filter_map(move |(number, line)| {
            in_tests |= is_rust && line.starts_with("#[cfg(test)]");
            in_tests.then(|| (number, line.split(comment).next().unwrap_or_default()))
        })
    }

    fn find(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding {
            path: self.path.clone(),
            line,
            what: what.into(),
        }
    }
}

pub(crate) fn main(workspace: &Workspace) -> Result<bool> {
    let findings = findings(workspace)?;
    for Finding { path, line, what } in &findings {
        match line {
            0 => println!("{}: {what}", path.display()),
            line => println!("{}:{line}: {what}", path.display()),
        }
    }
    println!("tidy: {} findings", findings.len());
    Ok(findings.is_empty())
}

fn findings(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut sources = Vec::new();
    read(workspace.root(), workspace.root(), &mut sources)?;
    let mut findings = edges::check(workspace)?;
    for source in &sources {
        lines::check(source, &mut findings);
        clocks::check(source, &mut findings);
        files::check_length(source, &mut findings);
        links::check(workspace.root(), source, &mut findings);
    }
    files::check_decisions(&sources, &mut findings);
    files::check_tests(&sources, &mut findings);
    protocols::check(&sources, &mut findings);
    names::check(&sources, &mut findings);
    Ok(findings)
}

fn read(root: &Path, folder: &Path, sources: &mut Vec<Source>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        if FOREIGN.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            read(root, &path, sources)?;
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            sources.push(Source {
                path: path.strip_prefix(root)?.to_path_buf(),
                text,
            });
        }
    }
    Ok(())
}

/// How many findings a rule has in a text at this path.
#[cfg(test)]
fn found(check: fn(&Source, &mut Vec<Finding>), path: &str, text: &str) -> usize {
    let source = Source {
        path: PathBuf::from(path),
        text: text.to_owned(),
    };
    let mut findings = Vec::new();
    check(&source, &mut findings);
    findings.len()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_house_rules_hold() {
        assert!(
            main(&Workspace::find().unwrap()).unwrap(),
            "see the findings above"
        );
    }
}
