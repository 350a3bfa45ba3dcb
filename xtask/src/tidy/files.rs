//! Rules about whole files.

use std::path::{Path, PathBuf};

use super::{Finding, Source};

/// One noun, one file: nothing that is one noun is longer.
const LINES_MAX: usize = 600;

pub(super) fn check_length(source: &Source, findings: &mut Vec<Finding>) {
    let lines = source.text.lines().count();
    if source.is(&["rs", "py", "go", "js"]) && lines > LINES_MAX {
        findings.push(source.find(0, format!("{lines} lines: one noun, one file; split it")));
    }
}

/// `docs/decisions/NNN-title.md` are numbered from 001 without a gap.
pub(super) fn check_decisions(sources: &[Source], findings: &mut Vec<Finding>) {
    let folder = Path::new("docs/decisions");
    let mut decisions: Vec<&Source> = sources
        .iter()
        .filter(|source| source.path.parent() == Some(folder))
        .collect();
    decisions.sort_by(|a, b| a.path.cmp(&b.path));
    for (decision, number) in decisions.iter().zip(1..) {
        let name = decision
            .path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if !name.starts_with(&format!("{number:03}-")) || !name.ends_with(".md") {
            let what = format!("decisions are numbered: this one would be {number:03}-title.md");
            findings.push(decision.find(0, what));
        }
    }
}

/// The integration tests of a crate are one binary, which is linked once: `tests/main.rs` names
/// each file, and cargo makes nothing of the others.
pub(super) fn check_tests(sources: &[Source], findings: &mut Vec<Finding>) {
    let text = |path: PathBuf| {
        let source = sources.iter().find(|source| source.path == path);
        source.map_or("", |source| source.text.as_str())
    };
    for source in sources.iter().filter(|source| source.is(&["rs"])) {
        let Some(tests) = source.path.parent().filter(|it| it.ends_with("tests")) else {
            continue;
        };
        let krate = tests.parent().unwrap_or(tests);
        if source.path.ends_with("main.rs") {
            if !text(krate.join("Cargo.toml")).contains("\nautotests = false\n") {
                let what = "autotests = false is missing in Cargo.toml: each file would be linked";
                findings.push(source.find(0, what));
            }
            continue;
        }
        let name = source.path.file_stem().unwrap_or_default();
        let line = format!("mod {};", name.to_string_lossy());
        if !text(tests.join("main.rs")).lines().any(|it| it == line) {
            let what = format!("its tests do not run: tests/main.rs needs \"{line}\"");
            findings.push(source.find(0, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_does_not_run_is_found() {
        let source = |path: &str, text: &str| Source {
            path: PathBuf::from(path),
            text: text.to_owned(),
        };
        let found = |manifest: &str, files: &[&str]| {
            let mut sources = vec![
                source("crates/x/Cargo.toml", manifest),
                source("crates/x/tests/main.rs", "mod a;\n"),
            ];
            sources.extend(files.iter().map(|path| source(path, "")));
            let mut findings = Vec::new();
            check_tests(&sources, &mut findings);
            findings.len()
        };
        let one_binary = "[package]\nautotests = false\n";
        let (a, b) = ("crates/x/tests/a.rs", "crates/x/tests/b.rs");
        assert_eq!(found(one_binary, &[a]), 0);
        assert_eq!(found(one_binary, &[a, b]), 1);
        assert_eq!(found("[package]\n", &[a]), 1);
    }
}
