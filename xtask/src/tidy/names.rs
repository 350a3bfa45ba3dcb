//! Pages about the code name files, types and functions that exist: a name that a stranger looks for
//! in vain costs the trust in the page.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::{Finding, Source};

/// The pages; what `docs/decisions`, `docs/benchmarks` and the plan tell of is history.
const PAGES: &[&str] = &["README.md", "ARCHITECTURE.md", "docs/guide.md"];

/// The kinds of files that a page names by a path, or by the end of one.
const FILES: &[&str] = &[".rs", ".md", ".toml", ".py"];

/// The words before the name of a type that is declared or has functions.
const DECLARATIONS: &[&str] = &["struct", "enum", "trait", "type", "impl", "for", "mod"];

/// Files of users, of which a page tells.
const OF_USERS: &[&str] = &["cloverleaf.toml"];

pub(super) fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    let paths: Vec<String> = sources.iter().map(|it| slashed(&it.path)).collect();
    let types = types(sources);
    for page in sources.iter().filter(|source| is_page(&source.path)) {
        for (number, line) in (1..).zip(page.text.lines()) {
            // Every second part stands between backticks.
            for name in line.split('`').skip(1).step_by(2) {
                if !exists(name, &paths, &types) {
                    let what = format!("`{name}`: there is none; name what is there now");
                    findings.push(page.find(number, what));
                }
            }
        }
    }
}

fn is_page(path: &Path) -> bool {
    PAGES.iter().any(|page| path == Path::new(page))
        || path.file_name().is_some_and(|name| name == "README.md")
            && (path.starts_with("xtask") || path.starts_with("crates"))
}

fn slashed(path: &Path) -> String {
    format!("/{}", path.display())
}

/// The identifiers of all files that declare a type or give it functions, by the type's name.
type Types<'a> = HashMap<&'a str, HashSet<&'a str>>;

fn types(sources: &[Source]) -> Types<'_> {
    let mut types = Types::new();
    for source in sources.iter().filter(|source| source.is(&["rs"])) {
        let words: Vec<&str> = words(&source.text).collect();
        let declared = words
            .windows(2)
            .filter(|two| DECLARATIONS.contains(&two[0]));
        let declared: HashSet<&str> = declared.map(|two| two[1]).collect();
        for name in declared.into_iter().filter(|name| is_type(name)) {
            types.entry(name).or_default().extend(&words);
        }
    }
    types
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| !word.is_empty())
}

fn is_type(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
}

/// Whether a name is one of a file or of a type's part that is there, or no such name at all.
fn exists(name: &str, paths: &[String], types: &Types<'_>) -> bool {
    if let Some((owner, parts)) = name.split_once("::") {
        if !is_type(owner) || !words(owner).eq([owner]) {
            return true;
        }
        let parts = parts.split('(').next().unwrap_or_default();
        let known = types.get(owner);
        return known.is_some_and(|known| words(parts).all(|part| known.contains(part)));
    }
    let is_file = FILES.iter().any(|end| name.ends_with(end))
        || name.contains("/src/")
        || name.contains("/tests/");
    let is_path = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c));
    if !is_file || !is_path || OF_USERS.contains(&name) {
        return true;
    }
    let name = name.trim_end_matches('/');
    let (file, folder) = (format!("/{name}"), format!("/{name}/"));
    paths
        .iter()
        .any(|path| path.ends_with(&file) || path.contains(&folder))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_page_names_what_there_is() {
        let source = |path: &str, text: &str| Source {
            path: PathBuf::from(path),
            text: text.to_owned(),
        };
        let code = "pub struct Topic;\nimpl Topic {\n    pub fn publish(&self) {}\n}\n";
        let found = |text: &str| {
            let code = source("crates/broker/src/publishing.rs", code);
            let mut findings = Vec::new();
            check(&[code, source("ARCHITECTURE.md", text)], &mut findings);
            findings.len()
        };
        for there in [
            "`broker/src/publishing.rs`, `publishing.rs`, `broker/src/`",
            "`Topic::publish`, `Topic::publish(batch)`, `Topic::{publish}`",
            "`serve --data-dir /x`, `std::fs`, `advice/*.toml`, `a b.rs`",
        ] {
            assert_eq!(found(there), 0, "{there}");
        }
        for gone in [
            "`broker/src/topic.rs`",
            "`ublishing.rs`",
            "`broker/tests/crashes`",
            "`Topic::append`",
            "`Queue::publish`",
            "`Topic::{publish, append}`",
        ] {
            assert_eq!(found(gone), 1, "{gone}");
        }
    }
}
