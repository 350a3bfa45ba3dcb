//! Lists and cleans up the files of a partition's segments at the start.

use std::collections::BTreeMap;

use crate::batch::{BATCH_HEADER_BYTES, Offset};
use crate::compaction::files::CLEAN_SUFFIX;
use crate::disk::{Disk, OpenMode, read_full};
use crate::error::IoFailure;
use crate::partition::prepared::PREPARED_NAME;
use crate::segment::scan::find_batch;
use crate::shared::Shared;

/// The base offsets of a partition's segments, each with `true` if the log file exists and `false`
/// if only the index does. Removes unfinished files of compaction and the prepared file.
pub(crate) fn find_segments(
    shared: &Shared,
    dir: &str,
    report: &mut Vec<String>,
) -> Result<BTreeMap<Offset, bool>, IoFailure> {
    let disk = &*shared.disk;
    let list = disk
        .list(dir)
        .map_err(|error| IoFailure::new("list", dir, &error))?;
    let with_ending = |ending: &'static str, has_log: bool| {
        let stems = list
            .iter()
            .filter_map(|entry| entry.name.strip_suffix(ending));
        stems
            .filter(|stem| stem.len() == 20)
            .filter_map(move |stem| Some((stem.parse().ok()?, has_log)))
            .collect::<Vec<_>>()
    };
    let mut bases: BTreeMap<_, _> = with_ending(".index", false).into_iter().collect();
    bases.extend(with_ending(".log", true));
    for entry in &list {
        let path = format!("{dir}/{}", entry.name);
        let is_prepared = entry.name == PREPARED_NAME;
        if is_prepared && let Some(log) = exchanged_with(shared, dir, &path, &bases) {
            let renamed = disk.rename(&path, &log);
            renamed.map_err(|error| IoFailure::new("rename", &path, &error))?;
            let line = format!("{log} was exchanged with {path}: it is put back");
            tracing::error!("{line}");
            report.push(line);
        } else if is_prepared || entry.name.ends_with(CLEAN_SUFFIX) {
            remove(disk, &path)?;
        }
    }
    Ok(bases)
}

/// The path of the segment's file whose content was exchanged with that of the prepared file: the
/// prepared file, which should have only zeros, contains messages, and the segment's file begins
/// with zeros.
fn exchanged_with(
    shared: &Shared,
    dir: &str,
    prepared: &str,
    bases: &BTreeMap<Offset, bool>,
) -> Option<String> {
    let open = |path: &str| shared.disk.open(path, OpenMode::Existing).ok();
    let bytes_max = shared.options.batch_bytes_max;
    let found = find_batch(&*open(prepared)?, 0..1, 0..Offset::MAX, bytes_max);
    let (_, first) = found.ok()??;
    let (base, _) = bases.range(..=first).next_back()?;
    let log = format!("{dir}/{base:020}.log");
    let mut header = [0; BATCH_HEADER_BYTES];
    read_full(&*open(&log)?, &mut header, 0).ok()?;
    (header == [0; BATCH_HEADER_BYTES]).then_some(log)
}

/// Removes the files of a segment. The index is removed first: recovery takes an index without a
/// log file for lost messages.
pub(crate) fn remove_segment(disk: &dyn Disk, dir: &str, base: Offset) -> Result<(), IoFailure> {
    remove(disk, &format!("{dir}/{base:020}.index"))?;
    remove(disk, &format!("{dir}/{base:020}.log"))
}

fn remove(disk: &dyn Disk, path: &str) -> Result<(), IoFailure> {
    match disk.remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(IoFailure::new("remove", path, &error))
        }
        _ => Ok(()),
    }
}
