//! Recordings of real clients, looked at again: each has the findings that the table beside them
//! says, and no others.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use cloverleaf_doctor::{Advice, Doctor, Finding, Query, read_recording};

/// Most bytes of recordings that the repository has to carry.
const BYTES_MAX: u64 = 5 << 20;

/// Recordings, and the table of what is found in them.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings")
}

/// The recordings by their names.
fn recordings() -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap());
    let named = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().unwrap();
        let name = name.strip_suffix(".recording")?.to_owned();
        Some((name, entry.path()))
    });
    named.collect()
}

/// The rest of each row of the table by its first column.
fn table() -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder().join("README.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.map(|row| {
        let (name, rest) = row.split_once("` | ").unwrap();
        (name.to_owned(), rest.trim_end_matches(" |").to_owned())
    });
    let all: Vec<_> = rows.collect();
    let by_name: BTreeMap<_, _> = all.iter().cloned().collect();
    assert_eq!(by_name.len(), all.len(), "a name stands twice in the table");
    by_name
}

/// The findings of a doctor in a recording, as the table says them.
fn found(path: &Path) -> String {
    let file = File::open(path).unwrap();
    let observations = read_recording(file).unwrap_or_else(|error| {
        panic!("{}: {error}", path.display());
    });
    let mut doctor = Doctor::new(Advice::embedded());
    let mut first_look: BTreeMap<String, usize> = BTreeMap::new();
    for (look, observation) in observations.iter().enumerate() {
        for finding in doctor.observe(observation) {
            first_look.entry(finding.id).or_insert(look);
        }
    }
    let all = Query {
        since_us: Some(u64::MAX),
        client: None,
    };
    let findings = doctor.report(&all).findings;
    let shown: Vec<String> = findings
        .iter()
        .map(|it| shown(it, first_look[&it.id]))
        .collect();
    match shown.as_slice() {
        [] => "nothing".to_owned(),
        some => some.join("; "),
    }
}

/// The rule, of whom, what to change, what that brings, and in which look it was found.
fn shown(finding: &Finding, look: usize) -> String {
    let change = finding.changes.first();
    let change = change.map_or("no change".to_owned(), |it| match &it.value {
        Some(value) => format!("{} = {value}", it.setting),
        None => it.setting.clone(),
    });
    let (rule, gain) = (finding.rule, finding.prediction.gain);
    let client = match finding.client.library.as_str() {
        "" => "an unknown client",
        library => library,
    };
    format!("{rule} of {client}, {change}, × {gain:.2}, look {look}")
}

#[test]
fn each_recording_has_its_findings_and_no_others() {
    let (recordings, table) = (recordings(), table());
    assert!(recordings.len() > 60, "only {}", recordings.len());
    let mut wrong = Vec::new();
    for (name, path) in &recordings {
        let is = found(path);
        if table.get(name) != Some(&is) {
            wrong.push(format!("| `{name}` | {is} |"));
        }
    }
    let unknown = table.keys().filter(|name| !recordings.contains_key(*name));
    wrong.extend(unknown.map(|name| format!("there is no recording {name}")));
    assert!(
        wrong.is_empty(),
        "not as the table says:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn recordings_are_small() {
    let sizes = recordings().into_values();
    let all: u64 = sizes.map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(all <= BYTES_MAX, "{all} bytes");
}
