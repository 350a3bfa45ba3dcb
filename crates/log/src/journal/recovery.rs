//! Opens the journal: chooses the current file, reads its entries, and repairs damage.
//!
//! Both files are read before anything is written. A damaged file is first copied to
//! `state.N.damaged-1` (or `-2`, `-3`, …), which is synced. Then a new file with the entries that
//! could be read is written, synced, and renamed to the damaged one's name. Until the owner's next
//! snapshot it also stores the number of lost entries.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::format::{HEADER_BYTES, JournalId, JournalNote, NextEntry};
use super::reading::{FileContents, HeaderState, JournalHole, read};
use super::{Journal, JournalFile, JournalState, SnapshotMirror, format_1};
use crate::disk::{Disk, OpenMode, read_whole, replace_file};
use crate::error::IoFailure;
use crate::housekeeping::Chore;
use crate::metrics::Counters;
use crate::options::LogOptions;
use crate::shared::Queues;

/// The two files. The names never change.
const PATHS: [&str; 2] = ["state.0", "state.1"];

/// A journal that is ready for appends, and the result of reading it.
pub(crate) struct OpenedJournal {
    pub(crate) journal: Journal,
    /// The entries, oldest first.
    pub(crate) entries: Vec<Vec<u8>>,
    /// Lower bound of the number of lost entries.
    pub(crate) lost: u32,
    /// One of the files still has format 1, until the next snapshot.
    pub(crate) is_upgraded: bool,
    /// Lines for the start report.
    pub(crate) report: Vec<String>,
}

/// The facts about the previous run, from the lock file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PreviousRun {
    /// No power was lost since, so all of its writes are there, even if they were not synced.
    pub(crate) writes_survived: bool,
    /// Generation and ordinal of the journal's end, if the log was closed cleanly.
    pub(crate) journal_end: Option<(u32, u32)>,
}

/// A journal that was read; nothing was written yet.
#[derive(Default)]
pub(crate) struct FoundJournal {
    files: [FoundFile; 2],
    previous: PreviousRun,
}

/// One of the two files, as it was found.
#[derive(Default)]
struct FoundFile {
    bytes: Vec<u8>,
    content: FoundContent,
}

#[derive(Default)]
enum FoundContent {
    #[default]
    Missing,
    /// Only zeros.
    Blank,
    /// No journal file, or one with an unfinished snapshot.
    Unusable,
    /// A file of format 1: its generation, its entries, and the position after the last one.
    Format1(u32, Vec<Vec<u8>>, usize),
    Current(Box<FileContents>),
}

impl FoundFile {
    fn generation(&self) -> Option<u32> {
        match &self.content {
            FoundContent::Format1(generation, ..) => Some(*generation),
            FoundContent::Current(contents) => Some(contents.id.generation),
            FoundContent::Missing | FoundContent::Blank | FoundContent::Unusable => None,
        }
    }

    fn contents(&self) -> Option<&FileContents> {
        match &self.content {
            FoundContent::Current(contents) => Some(contents),
            _ => None,
        }
    }

    /// Whether the bytes of the header are neither zeros nor a valid header.
    fn has_broken_header(&self) -> bool {
        let header = &self.bytes[..self.bytes.len().min(HEADER_BYTES)];
        matches!(self.content, FoundContent::Unusable) && header.iter().any(|byte| *byte != 0)
    }
}

impl FoundJournal {
    /// Reads both files.
    pub(crate) fn read(disk: &dyn Disk, previous: PreviousRun) -> Result<Self, IoFailure> {
        let find = |path: &str| -> Result<FoundFile, IoFailure> {
            let bytes = match read_whole(disk, path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(FoundFile::default());
                }
                Err(error) => return Err(IoFailure::new("read", path, &error)),
            };
            let content = if bytes.iter().all(|byte| *byte == 0) {
                FoundContent::Blank
            } else if let Some(generation) = format_1::generation(&bytes) {
                let (entries, end) = format_1::entries(&bytes, generation);
                FoundContent::Format1(generation, entries, end)
            } else if previous.writes_survived && bytes.len() < HEADER_BYTES {
                // A kill leaves no partial header: the file was truncated.
                FoundContent::Unusable
            } else {
                let contents = read(&bytes, !previous.writes_survived);
                contents.map_or(FoundContent::Unusable, |it| {
                    FoundContent::Current(Box::new(it))
                })
            };
            Ok(FoundFile { bytes, content })
        };
        let mut files = [find(PATHS[0])?, find(PATHS[1])?];
        // A blank header means that the file's snapshot is unfinished, unless the other file has
        // the note that this file's generation has superseded it: then this header was written, and
        // is damaged.
        for number in [0, 1] {
            let (superseded_by, is_certain) = match &files[1 - number].content {
                FoundContent::Current(other) => {
                    (other.superseded_by, other.header != HeaderState::Blank)
                }
                other => (None, matches!(other, FoundContent::Format1(..))),
            };
            let is_doubtful = files[number].contents().is_some_and(|it| {
                it.header == HeaderState::Blank && superseded_by != Some(it.id.generation)
            });
            if is_doubtful && is_certain {
                files[number].content = FoundContent::Unusable;
            }
        }
        Ok(Self { files, previous })
    }

    /// Whether both files are missing or blank.
    pub(crate) fn is_new(&self) -> bool {
        let is_new = |found: &FoundFile| {
            matches!(found.content, FoundContent::Missing | FoundContent::Blank)
        };
        self.files.iter().all(is_new)
    }

    /// Whether at least one file can be read as a journal file.
    pub(crate) fn is_begun(&self) -> bool {
        self.files.iter().any(|found| found.generation().is_some())
    }

    pub(crate) fn is_of_this_format(&self) -> bool {
        self.files.iter().any(|found| found.contents().is_some())
    }

    /// Prepares the journal for appends. `is_lost`: begins a new one, because no entry can be read.
    pub(crate) fn open(
        self,
        disk: &Arc<dyn Disk>,
        options: &LogOptions,
        queues: &Arc<Queues>,
        counters: &Arc<Counters>,
        is_lost: bool,
    ) -> Result<OpenedJournal, IoFailure> {
        let mut plan = self.plan(is_lost);
        for (path, bytes) in &plan.copies {
            let name = copy_damaged(disk, path, bytes)?;
            plan.report
                .push(format!("{path} is damaged; it was kept as {name}"));
        }
        for line in &plan.report {
            if plan.damaged {
                tracing::error!("state journal: {line}")
            } else {
                tracing::warn!("state journal: {line}")
            }
        }
        let report = plan.report.iter();
        let mut report: Vec<String> = report
            .map(|line| format!("state journal: {line}"))
            .collect();
        let entries = plan.entries;
        let ready = match plan.current {
            CurrentFile::New(at) => {
                let bytes = encode_file(plan.generation, &entries, plan.lost);
                let path = PATHS[at.number];
                let written = replace_file(&**disk, "", path, &bytes, options.journal_bytes);
                written.map_err(|error| IoFailure::new("write", path, &error))?;
                let Some(contents) = read(&bytes, false) else {
                    let error = io::Error::from(io::ErrorKind::InvalidData);
                    return Err(IoFailure::new("write", path, &error));
                };
                ExistingFile {
                    number: at.number,
                    next_entry: NextEntry {
                        id: contents.id,
                        ordinal: contents.ordinal,
                    },
                    end: contents.end,
                    synced: contents.end,
                    repair: CrashRepair::default(),
                }
            }
            CurrentFile::Existing(ready) => ready,
        };
        let mut current = open_file(disk, options, PATHS[ready.number])?;
        let other = open_file(disk, options, PATHS[1 - ready.number])?;
        disk.sync_dir("")
            .map_err(|error| IoFailure::new("sync", "the data folder", &error))?;
        (current.next_entry, current.position) = (ready.next_entry, ready.end);
        current.synced = ready.synced;
        current.repair(ready.repair)?;
        report.push(format!(
            "state journal: {} entries in {}, {} bytes",
            entries.len(),
            current.path,
            current.position
        ));
        let state = JournalState {
            current,
            other,
            mirror: SnapshotMirror::Off,
            // After a kill, entries may be in the page cache and not synced. So the start counts as
            // one unsynced byte.
            appended: 1,
            synced: 0,
            failure: None,
            waiters: Vec::new(),
            dirty_noted: true,
            snapshot_end: 0,
            lost: plan.lost,
            is_upgraded: plan.is_upgraded,
        };
        let _ = queues.chores.push(Chore::JournalDirty);
        let journal = Journal {
            broken: AtomicBool::new(false),
            queues: queues.clone(),
            counters: counters.clone(),
            state: Mutex::new(state),
            sync_lock: Mutex::new(()),
            snapshot_lock: Mutex::new(()),
        };
        Ok(OpenedJournal {
            journal,
            entries,
            lost: plan.lost,
            is_upgraded: plan.is_upgraded,
            report,
        })
    }

    fn plan(self, is_lost: bool) -> RecoveryPlan {
        let previous = self.previous;
        let newest = (0..2)
            .filter(|number| !is_lost && self.files[*number].generation().is_some())
            .max_by_key(|number| self.files[*number].generation());
        let highest = self.files.iter().filter_map(FoundFile::generation).max();
        let is_old = |found: &FoundFile| matches!(found.content, FoundContent::Format1(..));
        let mut plan = RecoveryPlan {
            generation: highest.unwrap_or(0) + 1,
            is_upgraded: !is_lost && self.files.iter().any(is_old),
            ..RecoveryPlan::default()
        };
        let Some(number) = newest else {
            for (path, found) in PATHS.iter().zip(self.files) {
                if !matches!(found.content, FoundContent::Missing | FoundContent::Blank) {
                    plan.damage(path, found.bytes);
                }
            }
            if is_lost {
                plan.lost = 1;
                plan.damaged = true;
                let line = "no entry can be read; what only the journal knew is lost";
                plan.report.push(line.to_owned());
            }
            return plan;
        };
        let mut files = self.files;
        let (path, other_path) = (PATHS[number], PATHS[1 - number]);
        let other = std::mem::take(&mut files[1 - number]);
        let newest = std::mem::take(&mut files[number]);
        if other.has_broken_header() {
            plan.damage(other_path, other.bytes.clone());
        }
        match newest.content {
            FoundContent::Current(contents) => {
                plan.continue_with(number, *contents, newest.bytes, other.contents(), previous);
            }
            FoundContent::Format1(_, entries, end) => {
                // The old file stays until the next snapshot, which is due at once. Format 1 does
                // not say whether the file is complete, so it is kept aside if bytes follow its
                // last entry.
                if newest.bytes[end..].iter().any(|byte| *byte != 0) {
                    plan.copies.push((path, newest.bytes));
                }
                plan.report
                    .push(format!("{path} is of format 1; {other_path} takes over"));
                plan.entries = entries;
                plan.current = CurrentFile::New(FileNumber { number: 1 - number });
            }
            FoundContent::Missing | FoundContent::Blank | FoundContent::Unusable => {}
        }
        plan
    }
}

/// The actions that recovery must take.
#[derive(Default)]
struct RecoveryPlan {
    /// Generation of the file, if a new one is written.
    generation: u32,
    current: CurrentFile,
    entries: Vec<Vec<u8>>,
    lost: u32,
    is_upgraded: bool,
    damaged: bool,
    copies: Vec<(&'static str, Vec<u8>)>,
    report: Vec<String>,
}

/// The file to which entries are appended.
enum CurrentFile {
    /// A file that must be written first.
    New(FileNumber),
    /// An existing file, as it is.
    Existing(ExistingFile),
}

impl Default for CurrentFile {
    fn default() -> Self {
        Self::New(FileNumber { number: 0 })
    }
}

#[derive(Clone, Copy)]
struct FileNumber {
    number: usize,
}

struct ExistingFile {
    number: usize,
    next_entry: NextEntry,
    end: u64,
    synced: u64,
    repair: CrashRepair,
}

/// What a crash has left in a file that is not damaged, and recovery must repair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CrashRepair {
    /// A copy of the header is missing: write both.
    pub(crate) header: bool,
    /// Entries after the end must be ignored: overwrite them with zeros.
    pub(crate) wipe: bool,
}

impl RecoveryPlan {
    fn damage(&mut self, path: &'static str, bytes: Vec<u8>) {
        self.damaged = true;
        self.copies.push((path, bytes));
    }

    /// Plans to continue with the newest file. `other` is the older one.
    fn continue_with(
        &mut self,
        number: usize,
        contents: FileContents,
        bytes: Vec<u8>,
        other: Option<&FileContents>,
        previous: PreviousRun,
    ) {
        let path = PATHS[number];
        let generation = contents.id.generation;
        self.lost = contents.lost_earlier;
        let mut holes: Vec<JournalHole> = contents.holes.clone();
        for hole in &holes {
            self.report.push(format!(
                "{path}: {} entries are missing from {} bytes at byte {}",
                hole.entries, hole.bytes, hole.at
            ));
        }
        let (mut is_damaged, mut earlier) = (!holes.is_empty(), Vec::new());
        if let Some((before, replaces_up_to)) =
            other.and_then(|other| replaced_entries(other, &contents))
        {
            self.report.push(format!(
                "{path}: what it began with stands in {}, too, which is whole",
                PATHS[1 - number]
            ));
            earlier = before;
            holes.retain(|hole| hole.first + hole.entries > replaces_up_to);
        }
        let missing = holes.iter().map(|hole| hole.entries).sum::<u32>();
        self.lost = self.lost.saturating_add(missing);
        if matches!(contents.header, HeaderState::Damaged | HeaderState::Blank) {
            is_damaged = true;
            self.report.push(format!(
                "{path}: its header is damaged; the entries say what it says"
            ));
        }
        if contents.torn_entries > 0 {
            self.report.push(format!(
                "{path}: the power loss took entries from before the last {}, which do not count",
                contents.torn_entries
            ));
        }
        let expected_end = previous.journal_end.filter(|_| previous.writes_survived);
        match expected_end {
            Some((of, ordinal)) if of == generation && ordinal > contents.ordinal => {
                is_damaged = true;
                let missing = ordinal - contents.ordinal;
                self.report
                    .push(format!("{path}: its last {missing} entries are missing"));
                self.lost = self.lost.saturating_add(missing);
            }
            _ if contents.is_end_torn && previous.writes_survived => {
                // The entry may also be torn by a kill. The number of entries after it is unknown,
                // so one is counted as lost.
                is_damaged = true;
                self.lost = self.lost.saturating_add(1);
                let (at, end) = (contents.ordinal, contents.end);
                self.report.push(format!(
                    "{path}: entry {at} at byte {end} is torn or damaged, and none follows"
                ));
            }
            _ if contents.is_end_torn => self.report.push(format!(
                "{path}: a torn entry cut off at byte {}",
                contents.end
            )),
            _ => {}
        }
        let is_newer = |of: u32| of > generation;
        let newer = contents.superseded_by.or(expected_end.map(|(of, _)| of));
        if newer.is_some_and(is_newer) {
            is_damaged = true;
            self.lost = self.lost.saturating_add(1);
            let other = PATHS[1 - number];
            self.report.push(format!(
                "{other} was in use, and is gone or unreadable: what came after {path} is lost"
            ));
        }
        let ready = ExistingFile {
            number,
            next_entry: NextEntry {
                id: contents.id,
                ordinal: contents.ordinal,
            },
            end: contents.end,
            synced: contents.synced,
            repair: CrashRepair {
                header: contents.header != HeaderState::Whole,
                wipe: contents.torn_entries > 0,
            },
        };
        self.entries = earlier;
        self.entries.extend(contents.into_entries());
        if is_damaged {
            self.damage(path, bytes);
            self.current = CurrentFile::New(FileNumber { number });
        } else {
            self.current = CurrentFile::Existing(ready);
        }
    }
}

/// What can stand in for a damaged snapshot, if the older file is undamaged: the older file's
/// entries that the snapshot superseded. Also returns the ordinal in the snapshot's file before
/// which missing entries therefore do not count as lost; 0 if it is unknown.
fn replaced_entries(other: &FileContents, contents: &FileContents) -> Option<(Vec<Vec<u8>>, u32)> {
    let is_whole = other.holes.is_empty() && other.has_header() && other.lost_earlier == 0;
    let first = contents.holes.first().filter(|_| is_whole)?.first;
    let (end, replaces_up_to) = match contents.complete {
        Some((generation, ordinal, at)) => {
            let is_before = generation == other.id.generation && ordinal <= other.ordinal;
            (ordinal, (is_before && first < at).then_some(at)?)
        }
        // The note is missing, too, so the end of the snapshot is unknown.
        None if other.superseded_by == Some(contents.id.generation) => (other.ordinal, 0),
        None => return None,
    };
    let before = other.entries.iter().filter(|(at, _)| *at < end);
    Some((
        before.map(|(_, entry)| entry.clone()).collect(),
        replaces_up_to,
    ))
}

/// The bytes of a new file with these entries.
fn encode_file(generation: u32, entries: &[Vec<u8>], lost: u32) -> Vec<u8> {
    let id = JournalId::new(generation);
    let mut bytes = super::encode_journal_header(id).to_vec();
    let mut next_entry = NextEntry { id, ordinal: 0 };
    for entry in entries {
        next_entry.encode(entry, 0, &mut bytes);
    }
    if lost > 0 {
        next_entry.encode_note(JournalNote::Lost { entries: lost }, 0, &mut bytes);
    }
    let complete = JournalNote::Complete {
        generation: 0,
        ordinal: 0,
    };
    next_entry.encode_note(complete, 0, &mut bytes);
    bytes
}

/// Copies the bytes of a damaged file; returns the copy's name. If an identical copy exists, makes
/// no other.
fn copy_damaged(disk: &Arc<dyn Disk>, path: &str, bytes: &[u8]) -> Result<String, IoFailure> {
    let mut number = 1;
    loop {
        let name = format!("{path}.damaged-{number}");
        match read_whole(&**disk, &name) {
            Ok(known) if known == bytes => return Ok(name),
            Ok(_) => number += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let copied = replace_file(&**disk, "", &name, bytes, 0);
                copied.map_err(|error| IoFailure::new("write", &name, &error))?;
                return Ok(name);
            }
            Err(error) => return Err(IoFailure::new("read", &name, &error)),
        }
    }
}

/// Opens one of the two files, or creates it, and reserves its space. Does not read it: the result
/// has the state of an empty file, and the caller sets the rest.
fn open_file(
    disk: &Arc<dyn Disk>,
    options: &LogOptions,
    path: &'static str,
) -> Result<JournalFile, IoFailure> {
    let fail =
        |operation: &'static str| move |error: io::Error| IoFailure::new(operation, path, &error);
    let file = disk
        .open(path, OpenMode::OpenOrCreate)
        .map_err(fail("create"))?;
    file.allocate(options.journal_bytes)
        .map_err(fail("reserve room in"))?;
    let reserved = file.len().map_err(fail("read"))?;
    let id = JournalId {
        generation: 0,
        tag: 0,
    };
    Ok(JournalFile {
        file,
        path,
        next_entry: NextEntry { id, ordinal: 0 },
        position: HEADER_BYTES as u64,
        synced: 0,
        reserved,
        may_be_chosen: false,
    })
}
