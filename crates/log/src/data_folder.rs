//! The format of a data folder, and the lock file's text about the previous run.
//!
//! The file `format` is text, so that an operator can read it:
//!
//! ```text
//! a data folder of Cloverleaf
//! format 2
//! least version 0.1.0
//! crc32c 0123abcd
//! ```
//!
//! The hexadecimal checksum covers the lines above it. A later version may add lines. Format 1 has
//! no such file. The names of the lines never change.

use std::io::ErrorKind;

use crate::disk::{Disk, read_whole, replace_file};
use crate::error::{IoFailure, OpenError};
use crate::journal::{FoundJournal, PreviousRun};
use crate::recovery::{Recovery, find_partitions};
use crate::topic_files::RecoveredTopic;

/// The format that this version writes, and the highest that it reads.
const FORMAT: u32 = 2;
/// The first version that reads [`FORMAT`].
const LEAST_VERSION: &str = "0.1.0";
const FORMAT_PATH: &str = "format";

/// The first text in the lock file after a clean stop.
const CLEAN_TEXT: &str = "closed cleanly";
/// Precedes the journal's end after a clean stop: generation, `/`, ordinal.
const JOURNAL_TEXT: &str = ", journal ";
/// Precedes the boot id. It is written only once recovery is complete.
const BOOT_TEXT: &str = ", boot ";
/// Precedes the text of the previous run, until recovery is complete.
const PREVIOUS_TEXT: &str = ", opening after ";

/// The state of the file `format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderFormat {
    /// It names a format that this version reads.
    Current,
    /// There is no such file.
    Missing,
    Damaged,
}

impl FolderFormat {
    /// Reads the file.
    ///
    /// # Errors
    /// The folder is of a later format, or the file cannot be read.
    pub(crate) fn read(disk: &dyn Disk) -> Result<FolderFormat, OpenError> {
        let bytes = match read_whole(disk, FORMAT_PATH) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(FolderFormat::Missing),
            Err(error) => {
                return Err(OpenError::Io {
                    folder: disk.folder(),
                    failure: IoFailure::new("read", FORMAT_PATH, &error),
                });
            }
        };
        match decode_format(&bytes) {
            None => Ok(FolderFormat::Damaged),
            Some((format, least_version)) if format > FORMAT => Err(OpenError::TooNew {
                folder: disk.folder(),
                format,
                least_version,
                known: FORMAT,
            }),
            Some(_) => Ok(FolderFormat::Current),
        }
    }

    /// Writes the file if it is missing or damaged. Reports that it was, unless the folder is new
    /// or has format 1.
    pub(crate) fn write(
        self,
        disk: &dyn Disk,
        journal: &FoundJournal,
        report: &mut Vec<String>,
    ) -> Result<(), IoFailure> {
        let is_missing = self == FolderFormat::Missing && journal.is_of_this_format();
        if self == FolderFormat::Current {
            return Ok(());
        }
        if is_missing || self == FolderFormat::Damaged {
            let line = "the file `format` is missing or damaged; it is written again";
            tracing::error!("{line}");
            report.push(line.to_owned());
        }
        let written = replace_file(disk, "", FORMAT_PATH, &encode_format(), 0);
        written.map_err(|error| IoFailure::new("write", FORMAT_PATH, &error))
    }
}

fn encode_format() -> Vec<u8> {
    let text =
        format!("a data folder of Cloverleaf\nformat {FORMAT}\nleast version {LEAST_VERSION}\n");
    let crc = crc32c::crc32c(text.as_bytes());
    format!("{text}crc32c {crc:08x}\n").into_bytes()
}

/// Format and least version; `None` if the file is damaged.
fn decode_format(bytes: &[u8]) -> Option<(u32, String)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (text, crc) = text.trim_end().rsplit_once("crc32c ")?;
    if u32::from_str_radix(crc, 16).ok()? != crc32c::crc32c(text.as_bytes()) {
        return None;
    }
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let format = line("format ")?.parse().ok()?;
    Some((format, line("least version ")?.to_owned()))
}

/// The text of the lock file once recovery is complete.
pub(crate) fn open_text(holder: &str, boot_id: &str) -> String {
    format!("{holder}{BOOT_TEXT}{boot_id}")
}

/// The text of the lock file until recovery is complete. It keeps the previous run's text, so that
/// after an interrupted start the next one knows as much as this one.
pub(crate) fn opening_text(holder: &str, previous: &str) -> String {
    let before = previous.split_once(PREVIOUS_TEXT);
    let before = before.map_or(previous, |(_, before)| before);
    format!("{holder}{PREVIOUS_TEXT}{}", before.trim_end())
}

/// The text of the lock file after a clean stop.
pub(crate) fn clean_text(journal_end: Option<(u32, u32)>, boot_id: &str) -> String {
    let end = journal_end.map(|(generation, ordinal)| format!("{generation}/{ordinal}"));
    let end = end.map_or_else(String::new, |end| format!("{JOURNAL_TEXT}{end}"));
    format!("{CLEAN_TEXT}{end}{BOOT_TEXT}{boot_id}")
}

/// Whether the last run was stopped cleanly, and no start was interrupted since.
pub(crate) fn is_clean(previous: &str) -> bool {
    previous.starts_with(CLEAN_TEXT)
}

/// Whether the last run was in this boot of the machine, and no start was interrupted since.
pub(crate) fn is_same_boot(previous: &str, boot_id: &str) -> bool {
    !previous.contains(PREVIOUS_TEXT) && boot_of(previous) == Some(boot_id) && !boot_id.is_empty()
}

fn boot_of(text: &str) -> Option<&str> {
    text.trim_end().rsplit_once(BOOT_TEXT).map(|(_, id)| id)
}

/// The facts about the last run, for the journal. Interrupted starts are ignored.
pub(crate) fn previous_run(previous: &str, boot_id: &str) -> PreviousRun {
    let text = previous.split_once(PREVIOUS_TEXT);
    let text = text.map_or(previous, |(_, before)| before);
    let end = text.split_once(JOURNAL_TEXT).and_then(|(_, rest)| {
        let (generation, rest) = rest.split_once('/')?;
        let ordinal = rest.split(',').next()?;
        Some((generation.parse().ok()?, ordinal.parse().ok()?))
    });
    PreviousRun {
        writes_survived: is_clean(text) || is_same_boot(text, boot_id),
        journal_end: end.filter(|_| is_clean(text)),
    }
}

/// The error for a folder without a readable journal; `None` if the journal is readable or the
/// folder is new.
pub(crate) fn refuse_without_journal(
    disk: &dyn Disk,
    journal: &FoundJournal,
    format: FolderFormat,
) -> Result<Option<OpenError>, IoFailure> {
    if journal.is_begun() {
        return Ok(None);
    }
    let mut recovery = Recovery::default();
    match find_partitions(disk, &mut recovery) {
        // The folder "topics" is created before the journal.
        Err(failure) if failure.kind == ErrorKind::NotFound => {}
        found => drop(found?),
    }
    let refused = journal_lost(disk.folder(), &recovery.topics);
    let is_new = journal.is_new() && format == FolderFormat::Missing;
    let has_topics = recovery.topics.iter().any(|found| found.has_partitions);
    Ok((has_topics || !is_new).then_some(refused))
}

/// The error for a folder whose journal is lost.
pub(crate) fn journal_lost(folder: String, topics: &[RecoveredTopic]) -> OpenError {
    let topics = topics.iter().filter(|found| found.has_partitions);
    let (named, unnamed): (Vec<_>, Vec<_>) = topics.partition(|found| found.description.is_some());
    OpenError::JournalLost {
        folder,
        topics: named.len() + unnamed.len(),
        named: named.len(),
        unnamed: unnamed.len(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_format_is_read_as_it_was_written() {
        let bytes = encode_format();
        assert_eq!(decode_format(&bytes), Some((2, "0.1.0".to_owned())));
        for at in 0..bytes.len() - 1 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode_format(&damaged), None, "byte {at}");
        }
    }

    #[test]
    fn an_interrupted_start_changes_nothing() {
        let clean = clean_text(Some((3, 77)), "b");
        let once = opening_text("pid 1 since x", &clean);
        let twice = opening_text("pid 2 since y", &once);
        for text in [&clean, &once, &twice] {
            let run = previous_run(text, "c");
            assert!(run.writes_survived);
            assert_eq!(run.journal_end, Some((3, 77)));
        }
        assert!(is_clean(&clean) && !is_clean(&once));
        assert!(is_same_boot(&clean, "b") && !is_same_boot(&once, "b"));
        let killed = opening_text("pid 3 since z", &open_text("pid 1 since x", "b"));
        assert!(previous_run(&killed, "b").writes_survived);
        assert!(!previous_run(&killed, "c").writes_survived);
        assert!(!previous_run("", "").writes_survived);
    }
}
