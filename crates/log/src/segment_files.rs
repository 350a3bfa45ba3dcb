//! The files of a partition's segments, as a start finds them.

use std::collections::BTreeMap;

use crate::batch::Offset;
use crate::compaction_files::CLEAN_SUFFIX;
use crate::disk::Disk;
use crate::error::IoFailure;
use crate::prepared::PREPARED_NAME;

/// Base offsets of the segments of a partition, and whether they have more than an index; removes
/// what compaction had not finished, and what was prepared for later.
pub(crate) fn find_segments(
    disk: &dyn Disk,
    dir: &str,
) -> Result<BTreeMap<Offset, bool>, IoFailure> {
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
        if entry.name == PREPARED_NAME || entry.name.ends_with(CLEAN_SUFFIX) {
            remove(disk, &format!("{dir}/{}", entry.name))?;
        }
    }
    Ok(bases)
}

/// Removes what is left of a segment. The index first: one without a log says that messages are
/// lost.
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
