//! Links between our markdown files lead somewhere.

use std::path::Path;

use super::{Finding, Source};

pub(super) fn check(root: &Path, source: &Source, findings: &mut Vec<Finding>) {
    if !source.is(&["md"]) {
        return;
    }
    let folder = root.join(&source.path);
    let folder = folder.parent().unwrap_or(root);
    let mut in_code = false;
    for (index, line) in source.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in targets(line) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains("://") && !folder.join(path).exists() {
                findings.push(source.find(index + 1, format!("the link to {path} leads nowhere")));
            }
        }
    }
}

/// The targets of the line's links: the text within `](...)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_links_of_a_line_are_found() {
        let found: Vec<&str> = targets("see [a](b.md) and [c](../d#e), (not this)").collect();
        assert_eq!(found, ["b.md", "../d#e"]);
    }
}
