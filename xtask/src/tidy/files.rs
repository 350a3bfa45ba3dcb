//! Rules about whole files.

use std::path::Path;

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
