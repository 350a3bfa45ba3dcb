//! Opening the journal: which file wins, and what it holds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::format::{Chain, ENTRY_HEADER_BYTES, HEADER_BYTES, decode_journal_header, entry_len};
use super::{Journal, Mirror, Side, State};
use crate::disk::{Disk, OpenMode, read_full};
use crate::error::{AppendError, IoFailure};
use crate::housekeeping::Chore;
use crate::metrics::Counters;
use crate::options::LogOptions;
use crate::shared::Queues;

/// The two files; the names are stable.
const PATHS: [&str; 2] = ["state.0", "state.1"];

/// A journal as it was found.
pub(crate) struct OpenedJournal {
    pub(crate) journal: Journal,
    /// Its entries, oldest first.
    pub(crate) entries: Vec<Vec<u8>>,
    /// Lines for the start report.
    pub(crate) report: Vec<String>,
}

/// What was read from one file.
struct Candidate {
    side: Side,
    /// `None` when the header is no valid one.
    generation: Option<u64>,
    entries: Vec<Vec<u8>>,
    /// Whether it has any content: a new file reads as zeros.
    blank: bool,
}

impl Journal {
    /// Opens the journal and reads its entries.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        options: &LogOptions,
        queues: &Arc<Queues>,
        counters: &Arc<Counters>,
    ) -> Result<OpenedJournal, IoFailure> {
        let [first, second] = PATHS;
        let (first, second) = (
            read_file(disk, first, options)?,
            read_file(disk, second, options)?,
        );
        let mut report = Vec::new();
        let blank = first.blank && second.blank;
        let (mut current, other) = if second.generation > first.generation {
            (second, first)
        } else {
            (first, second)
        };
        if current.generation.is_none() {
            if !blank {
                let line = "state journal: no valid file found, starting with an empty one";
                tracing::error!("{line}");
                report.push(line.to_owned());
            }
            begin(disk, &mut current.side)?;
        }
        // Entries that a crash took from the middle must not bring those behind them back once they
        // are written again.
        let failure = match current.side.mark() {
            Ok(()) => None,
            Err(AppendError::Failed(failure)) => return Err(failure),
            Err(error) => {
                let full = io::Error::new(io::ErrorKind::StorageFull, error);
                Some(IoFailure::new("write to", current.side.path, &full))
            }
        };
        let entries = current.entries;
        report.push(format!(
            "state journal: {} entries in {}, {} bytes",
            entries.len(),
            current.side.path,
            current.side.position
        ));
        let state = State {
            current: current.side,
            other: other.side,
            mirror: Mirror::Off,
            // What a kill has left in the kernel's memory was never synced, so the beginning counts
            // as one byte that is not.
            appended: 1,
            synced: 0,
            failure,
            waiters: Vec::new(),
            dirty_noted: true,
            snapshot_end: 0,
        };
        let _ = queues.chores.push(Chore::JournalDirty);
        let journal = Journal {
            broken: AtomicBool::new(state.failure.is_some()),
            queues: queues.clone(),
            counters: counters.clone(),
            state: Mutex::new(state),
            sync_lock: Mutex::new(()),
            snapshot_lock: Mutex::new(()),
        };
        Ok(OpenedJournal {
            journal,
            entries,
            report,
        })
    }
}

/// Makes a blank file the current one.
fn begin(disk: &Arc<dyn Disk>, side: &mut Side) -> Result<(), IoFailure> {
    let fail = |error: io::Error| IoFailure::new("write to", side.path, &error);
    let header = super::encode_journal_header(1);
    side.file
        .write_all_at(&[io::IoSlice::new(&header)], 0)
        .map_err(fail)?;
    side.file.sync_data().map_err(fail)?;
    disk.sync_dir("").map_err(fail)?;
    side.generation = 1;
    side.chain = Chain::of_generation(1);
    Ok(())
}

fn read_file(
    disk: &Arc<dyn Disk>,
    path: &'static str,
    options: &LogOptions,
) -> Result<Candidate, IoFailure> {
    let fail =
        |operation: &'static str| move |error: io::Error| IoFailure::new(operation, path, &error);
    let file = disk
        .open(path, OpenMode::OpenOrCreate)
        .map_err(fail("create"))?;
    file.allocate(options.journal_bytes)
        .map_err(fail("reserve room in"))?;
    let reserved = file.len().map_err(fail("read"))?;
    let mut header = [0; HEADER_BYTES];
    let got = read_full(&*file, &mut header, 0).map_err(fail("read"))?;
    let generation = decode_journal_header(&header[..got]);
    let mut side = Side {
        file,
        path,
        generation: generation.unwrap_or(0),
        position: HEADER_BYTES as u64,
        chain: Chain::of_generation(generation.unwrap_or(0)),
        reserved,
        may_win: false,
    };
    let mut entries = Vec::new();
    if generation.is_some() {
        entries = read_entries(&mut side).map_err(fail("read"))?;
    }
    let blank = header.iter().all(|byte| *byte == 0);
    Ok(Candidate {
        side,
        generation,
        entries,
        blank,
    })
}

/// Reads entries until the first invalid one and leaves the side's position behind the last.
fn read_entries(side: &mut Side) -> io::Result<Vec<Vec<u8>>> {
    let mut entries = Vec::new();
    let mut window = vec![0; 64 << 10];
    let (mut filled, mut at) = (0, 0);
    loop {
        if let Some(entry) = side.chain.decode(&window[at..filled]) {
            entries.extend(entry.payload().map(<[u8]>::to_vec));
            at += entry.size();
            side.position += entry.size() as u64;
            continue;
        }
        // Cut off by the window, or the end: an entry that the file can hold is worth a larger one.
        window.copy_within(at..filled, 0);
        filled -= at;
        at = 0;
        if filled == window.len() {
            let wanted = entry_len(&window).map_or(0, |len| len + ENTRY_HEADER_BYTES);
            let left = side.reserved.saturating_sub(side.position);
            if wanted <= window.len() || wanted as u64 > left {
                return Ok(entries);
            }
            window.resize(wanted, 0);
        }
        let got = read_full(
            &*side.file,
            &mut window[filled..],
            side.position + filled as u64,
        )?;
        if got == 0 {
            return Ok(entries);
        }
        filled += got;
    }
}
