//! Opens the journal: chooses the current file, reads its entries, and repairs damage.
//!
//! Both files are read before anything is written. A damaged file is first copied to
//! `state.N.damaged-1` (2, 3, …), which is synced. Then a new file with the entries that could be
//! read is written, synced, and renamed to the damaged one's name. Until the owner's next snapshot
//! it also stores the number of lost entries.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::format::{EntryPlace, HEADER_BYTES, JournalId, JournalNote};
use super::reading::{Contents, HeaderState, Hole, read};
use super::{Journal, JournalFile, JournalState, Mirror, format_1};
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
    pub(crate) kept_power: bool,
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
    content: Content,
}

#[derive(Default)]
enum Content {
    #[default]
    Missing,
    /// Only zeros.
    Blank,
    /// No journal file, or one with an unfinished snapshot.
    Unusable,
    /// A file of format 1: its generation, its entries, and the position after the last one.
    Old(u32, Vec<Vec<u8>>, usize),
    Ours(Box<Contents>),
}

impl FoundFile {
    fn generation(&self) -> Option<u32> {
        match &self.content {
            Content::Old(generation, ..) => Some(*generation),
            Content::Ours(contents) => Some(contents.id.generation),
            Content::Missing | Content::Blank | Content::Unusable => None,
        }
    }

    fn ours(&self) -> Option<&Contents> {
        match &self.content {
            Content::Ours(contents) => Some(contents),
            _ => None,
        }
    }

    /// Whether the bytes of the header are neither zeros nor a valid header.
    fn has_broken_header(&self) -> bool {
        let header = &self.bytes[..self.bytes.len().min(HEADER_BYTES)];
        matches!(self.content, Content::Unusable) && header.iter().any(|byte| *byte != 0)
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
                Content::Blank
            } else if let Some(generation) = format_1::generation(&bytes) {
                let (entries, end) = format_1::entries(&bytes, generation);
                Content::Old(generation, entries, end)
            } else if previous.kept_power && bytes.len() < HEADER_BYTES {
                // A kill leaves no partial header: the file was truncated.
                Content::Unusable
            } else {
                let contents = read(&bytes, !previous.kept_power);
                contents.map_or(Content::Unusable, |it| Content::Ours(Box::new(it)))
            };
            Ok(FoundFile { bytes, content })
        };
        let mut files = [find(PATHS[0])?, find(PATHS[1])?];
        // A file with a blank header has an unfinished snapshot, unless the other file says that it
        // was superseded by this generation: then the header is damaged.
        for number in [0, 1] {
            let (superseded_by, is_certain) = match &files[1 - number].content {
                Content::Ours(other) => (other.superseded_by, other.header != HeaderState::Blank),
                other => (None, matches!(other, Content::Old(..))),
            };
            let is_doubtful = files[number].ours().is_some_and(|it| {
                it.header == HeaderState::Blank && superseded_by != Some(it.id.generation)
            });
            if is_doubtful && is_certain {
                files[number].content = Content::Unusable;
            }
        }
        Ok(Self { files, previous })
    }

    /// Whether both files are missing or blank.
    pub(crate) fn is_new(&self) -> bool {
        let is_new = |found: &FoundFile| matches!(found.content, Content::Missing | Content::Blank);
        self.files.iter().all(is_new)
    }

    /// Whether at least one file can be read as a journal file.
    pub(crate) fn is_begun(&self) -> bool {
        self.files.iter().any(|found| found.generation().is_some())
    }

    pub(crate) fn is_of_this_format(&self) -> bool {
        self.files.iter().any(|found| found.ours().is_some())
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
        for (path, bytes) in &plan.asides {
            let name = set_aside(disk, path, bytes)?;
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
        let place = match plan.current {
            Current::Written(at) => {
                let bytes = whole_file(plan.generation, &entries, plan.lost);
                let path = PATHS[at.number];
                let written = replace_file(&**disk, "", path, &bytes, options.journal_bytes);
                written.map_err(|error| IoFailure::new("write", path, &error))?;
                let Some(contents) = read(&bytes, false) else {
                    let error = io::Error::from(io::ErrorKind::InvalidData);
                    return Err(IoFailure::new("write", path, &error));
                };
                Ready {
                    number: at.number,
                    place: EntryPlace {
                        id: contents.id,
                        ordinal: contents.ordinal,
                    },
                    end: contents.end,
                    synced: contents.end,
                    repair: Repair::default(),
                }
            }
            Current::Kept(ready) => ready,
        };
        let mut current = open_side(disk, options, PATHS[place.number])?;
        let other = open_side(disk, options, PATHS[1 - place.number])?;
        disk.sync_dir("")
            .map_err(|error| IoFailure::new("sync", "the data folder", &error))?;
        (current.place, current.position) = (place.place, place.end);
        current.synced = place.synced;
        current.repair(place.repair)?;
        report.push(format!(
            "state journal: {} entries in {}, {} bytes",
            entries.len(),
            current.path,
            current.position
        ));
        let state = JournalState {
            current,
            other,
            mirror: Mirror::Off,
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

    fn plan(self, is_lost: bool) -> Plan {
        let previous = self.previous;
        let newest = (0..2)
            .filter(|number| !is_lost && self.files[*number].generation().is_some())
            .max_by_key(|number| self.files[*number].generation());
        let highest = self.files.iter().filter_map(FoundFile::generation).max();
        let is_old = |found: &FoundFile| matches!(found.content, Content::Old(..));
        let mut plan = Plan {
            generation: highest.unwrap_or(0) + 1,
            is_upgraded: !is_lost && self.files.iter().any(is_old),
            ..Plan::default()
        };
        let Some(number) = newest else {
            for (path, found) in PATHS.iter().zip(self.files) {
                if !matches!(found.content, Content::Missing | Content::Blank) {
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
            Content::Ours(contents) => {
                plan.take(number, *contents, newest.bytes, other.ours(), previous);
            }
            Content::Old(_, entries, end) => {
                // The old file stays until the next snapshot, which is due at once. Format 1 does
                // not say whether the file is complete, so it is kept aside if bytes follow its
                // last entry.
                if newest.bytes[end..].iter().any(|byte| *byte != 0) {
                    plan.asides.push((path, newest.bytes));
                }
                plan.report
                    .push(format!("{path} is of format 1; {other_path} takes over"));
                plan.entries = entries;
                plan.current = Current::Written(At { number: 1 - number });
            }
            Content::Missing | Content::Blank | Content::Unusable => {}
        }
        plan
    }
}

/// The actions that recovery must take.
#[derive(Default)]
struct Plan {
    /// Generation of the file, if a new one is written.
    generation: u32,
    current: Current,
    entries: Vec<Vec<u8>>,
    lost: u32,
    is_upgraded: bool,
    damaged: bool,
    asides: Vec<(&'static str, Vec<u8>)>,
    report: Vec<String>,
}

/// The file to which entries are appended.
enum Current {
    /// A file that must be written first.
    Written(At),
    /// An existing file, as it is.
    Kept(Ready),
}

impl Default for Current {
    fn default() -> Self {
        Self::Written(At { number: 0 })
    }
}

#[derive(Clone, Copy)]
struct At {
    number: usize,
}

struct Ready {
    number: usize,
    place: EntryPlace,
    end: u64,
    synced: u64,
    repair: Repair,
}

/// The traces of a crash that must be removed from a file without damage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Repair {
    /// A copy of the header is missing: write both.
    pub(crate) header: bool,
    /// Entries after the end must be ignored: overwrite them with zeros.
    pub(crate) wipe: bool,
}

impl Plan {
    fn damage(&mut self, path: &'static str, bytes: Vec<u8>) {
        self.damaged = true;
        self.asides.push((path, bytes));
    }

    /// Plans to continue with the newest file. `other` is the older one.
    fn take(
        &mut self,
        number: usize,
        contents: Contents,
        bytes: Vec<u8>,
        other: Option<&Contents>,
        previous: PreviousRun,
    ) {
        let path = PATHS[number];
        let generation = contents.id.generation;
        self.lost = contents.lost_earlier;
        let mut holes: Vec<Hole> = contents.holes.clone();
        for hole in &holes {
            self.report.push(format!(
                "{path}: {} entries are missing from {} bytes at byte {}",
                hole.entries, hole.bytes, hole.at
            ));
        }
        let (mut is_damaged, mut earlier) = (!holes.is_empty(), Vec::new());
        if let Some((before, made_up)) = other.and_then(|other| stands_in(other, &contents)) {
            self.report.push(format!(
                "{path}: what it began with stands in {}, too, which is whole",
                PATHS[1 - number]
            ));
            earlier = before;
            holes.retain(|hole| hole.first + hole.entries > made_up);
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
        let told = previous.journal_end.filter(|_| previous.kept_power);
        match told {
            Some((of, ordinal)) if of == generation && ordinal > contents.ordinal => {
                is_damaged = true;
                let missing = ordinal - contents.ordinal;
                self.report
                    .push(format!("{path}: its last {missing} entries are missing"));
                self.lost = self.lost.saturating_add(missing);
            }
            _ if contents.torn_end && previous.kept_power => {
                // The entry may also be torn by a kill. The number of entries after it is unknown,
                // so one is counted as lost.
                is_damaged = true;
                self.lost = self.lost.saturating_add(1);
                let (at, end) = (contents.ordinal, contents.end);
                self.report.push(format!(
                    "{path}: entry {at} at byte {end} is torn or damaged, and none follows"
                ));
            }
            _ if contents.torn_end => self.report.push(format!(
                "{path}: a torn entry cut off at byte {}",
                contents.end
            )),
            _ => {}
        }
        let is_told = |of: u32| of > generation;
        let newer = contents.superseded_by.or(told.map(|(of, _)| of));
        if newer.is_some_and(is_told) {
            is_damaged = true;
            self.lost = self.lost.saturating_add(1);
            let other = PATHS[1 - number];
            self.report.push(format!(
                "{other} was in use, and is gone or unreadable: what came after {path} is lost"
            ));
        }
        let ready = Ready {
            number,
            place: EntryPlace {
                id: contents.id,
                ordinal: contents.ordinal,
            },
            end: contents.end,
            synced: contents.synced,
            repair: Repair {
                header: contents.header != HeaderState::Whole,
                wipe: contents.torn_entries > 0,
            },
        };
        self.entries = earlier;
        self.entries.extend(contents.into_entries());
        if is_damaged {
            self.damage(path, bytes);
            self.current = Current::Written(At { number });
        } else {
            self.current = Current::Kept(ready);
        }
    }
}

/// If a snapshot is damaged and the older file is not: the older file's entries that the snapshot
/// has replaced, and the number of the snapshot's entries that they replace in turn.
fn stands_in(other: &Contents, contents: &Contents) -> Option<(Vec<Vec<u8>>, u32)> {
    let is_whole = other.holes.is_empty() && other.has_header() && other.lost_earlier == 0;
    let first = contents.holes.first().filter(|_| is_whole)?.first;
    let (end, made_up) = match contents.complete {
        Some((generation, ordinal, at)) => {
            let is_before = generation == other.id.generation && ordinal <= other.ordinal;
            (ordinal, (is_before && first < at).then_some(at)?)
        }
        // The note is missing, too, so the end of the snapshot is unknown.
        None if other.superseded_by == Some(contents.id.generation) => (other.ordinal, 0),
        None => return None,
    };
    let before = other.entries.iter().filter(|(at, _)| *at < end);
    Some((before.map(|(_, entry)| entry.clone()).collect(), made_up))
}

/// The bytes of a new file with these entries.
fn whole_file(generation: u32, entries: &[Vec<u8>], lost: u32) -> Vec<u8> {
    let id = JournalId::new(generation);
    let mut bytes = super::encode_journal_header(id).to_vec();
    let mut place = EntryPlace { id, ordinal: 0 };
    for entry in entries {
        place.encode(entry, 0, &mut bytes);
    }
    if lost > 0 {
        place.encode_mark(JournalNote::Lost { entries: lost }, 0, &mut bytes);
    }
    let complete = JournalNote::Complete {
        generation: 0,
        ordinal: 0,
    };
    place.encode_mark(complete, 0, &mut bytes);
    bytes
}

/// Copies the bytes of a damaged file; returns the copy's name. If an identical copy exists, makes
/// no other.
fn set_aside(disk: &Arc<dyn Disk>, path: &str, bytes: &[u8]) -> Result<String, IoFailure> {
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

/// Opens one of the two files, as an empty one.
fn open_side(
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
        place: EntryPlace { id, ordinal: 0 },
        position: HEADER_BYTES as u64,
        synced: 0,
        reserved,
        may_win: false,
    })
}
