//! The log: one data folder, its partitions, its journal and its threads.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use jiff::Timestamp;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::batch::Offset;
use crate::data_folder::{self, FolderFormat};
use crate::disk::{Disk, DiskLock, LockFailure};
use crate::error::{IoFailure, LogError, OpenError};
use crate::housekeeping::Housekeeper;
use crate::journal::{FoundJournal, Journal};
use crate::metrics::{Counters, LogMetrics};
use crate::options::{LogOptions, PartitionOptions};
use crate::partition::group_commit::{commit_group, sync_partitions, try_sync_partitions};
use crate::partition::{PartitionLog, RecoveredState};
use crate::producers::snapshot::SNAPSHOT_BYTES_AT_CLOSE;
use crate::queue::{Queue, QueueWait};
use crate::recovery::{Recovery, recover_partitions};
use crate::removal::{Removal, Remover};
use crate::segment::FinalIndexItem;
use crate::shared::{Queues, Shared};

/// Lock file of the data folder.
const LOCK_PATH: &str = "lock";

/// An open data folder. Clones share the same log. [`Log::close`] stops it cleanly; if the last
/// clone is dropped without it, the next start must scan the unsealed segments.
#[derive(Clone)]
pub struct Log {
    inner: Arc<LogInner>,
}

/// The size and the free space of the data folder's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Size of the file system, in bytes.
    pub total_bytes: u64,
    /// Free space for an ordinary process, in bytes.
    pub free_bytes: u64,
}

struct LogInner {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Used in manual mode only; otherwise the thread "log-housekeeper" has its own.
    housekeeper: Mutex<Housekeeper>,
    /// Used in manual mode only; otherwise the thread "log-remover" has its own.
    remover: Mutex<Remover>,
    /// Released by `close`.
    lock: Mutex<Option<Box<dyn DiskLock>>>,
}

impl Log {
    /// Opens a data folder: takes its lock, reads the journal, finds the end of each partition, and
    /// starts the log's threads (unless `options.manual`).
    ///
    /// # Errors
    /// The folder is in use by another broker, cannot be written to or read, has a later format, or
    /// has lost its journal.
    pub fn open(disk: Arc<dyn Disk>, options: LogOptions) -> Result<(Log, Recovery), OpenError> {
        let folder = disk.folder();
        let lock = take_lock(&*disk, &folder)?;
        let boot_id = disk.boot_id();
        let mut recovery = Recovery {
            was_closed_cleanly: data_folder::is_clean(lock.previous_text()),
            boot_id: boot_id.clone(),
            ..Recovery::default()
        };
        let shared = open_folder(disk, options, &mut recovery, lock.previous_text())?;
        let text = data_folder::open_text(&holder_text(), &boot_id);
        lock.set_text(&text).map_err(not_writable(&folder))?;
        let inner = LogInner {
            shared: shared.clone(),
            threads: Mutex::default(),
            housekeeper: Mutex::default(),
            remover: Mutex::default(),
            lock: Mutex::new(Some(lock)),
        };
        let log = Log {
            inner: Arc::new(inner),
        };
        if !shared.options.manual {
            log.start_threads().map_err(|error| OpenError::Io {
                folder: shared.disk.folder(),
                failure: IoFailure::new("start a thread for", "the log", &error),
            })?;
        }
        Ok((log, recovery))
    }

    fn start_threads(&self) -> io::Result<()> {
        let mut threads = self.inner.threads.lock();
        let mut start = |name: &str, work: fn(&Shared)| -> io::Result<()> {
            let shared = self.inner.shared.clone();
            let named = thread::Builder::new().name(name.to_owned());
            let running = AbortOnPanic(name.to_owned());
            threads.push(named.spawn(move || {
                work(&shared);
                drop(running);
            })?);
            Ok(())
        };
        start("log-writer", |shared| write_queued(&shared.queues.writes))?;
        start("log-opener", |shared| write_queued(&shared.queues.openings))?;
        start("log-sync", |shared| {
            while let QueueWait::Items(requests) = shared.queues.syncs.wait(None) {
                commit_group(shared, requests);
            }
        })?;
        start("log-preparer", |shared| {
            while let QueueWait::Items(items) = shared.queues.preparations.wait(None) {
                items.into_iter().for_each(|work| shared.prepare(work));
            }
        })?;
        start("log-remover", |shared| {
            let mut remover = Remover::default();
            while let QueueWait::Items(removals) = shared.queues.removals.wait(remover.due()) {
                remover.work(shared, removals);
            }
        })?;
        start("log-housekeeper", |shared| {
            let mut housekeeper = Housekeeper::default();
            while let QueueWait::Items(chores) = shared.queues.chores.wait(housekeeper.due()) {
                housekeeper.work(shared, chores, false);
            }
        })?;
        drop(threads);
        self.inner.shared.start_reader()
    }

    /// The log of a partition. Creates it if it is new; its files are created by the first append.
    ///
    /// # Errors
    /// The log is closed.
    pub fn partition(
        &self,
        topic: Uuid,
        partition: u32,
        options: PartitionOptions,
    ) -> Result<Arc<PartitionLog>, LogError> {
        let shared = &self.inner.shared;
        let mut partitions = shared.partitions.write();
        let log = partitions.entry((topic, partition)).or_insert_with(|| {
            let empty = RecoveredState::empty(shared);
            PartitionLog::new(shared.clone(), topic, partition, empty)
        });
        log.set_options(&options);
        let log = log.clone();
        drop(partitions);
        log.report_losses();
        Ok(log)
    }

    /// The log of a partition, if it is open. For tests that inspect the log below the broker.
    #[doc(hidden)]
    pub fn opened_partition(&self, topic: Uuid, partition: u32) -> Option<Arc<PartitionLog>> {
        let partitions = self.inner.shared.partitions.read();
        partitions.get(&(topic, partition)).cloned()
    }

    /// Closes all partitions of a topic. The thread "log-remover" removes their files later, after
    /// a sync of the journal. The caller must have appended the deletion to the journal, and must
    /// repeat it in each snapshot while [`Log::topics_being_removed`] names the topic.
    pub fn delete_topic(&self, topic: Uuid) {
        let shared = &self.inner.shared;
        shared.removals.note(topic);
        let partitions: Vec<Arc<PartitionLog>> = {
            let mut partitions = shared.partitions.write();
            let removed = partitions.extract_if((topic, 0)..=(topic, u32::MAX), |_, _| true);
            removed.map(|(_, partition)| partition).collect()
        };
        for partition in &partitions {
            let mut state = partition.state.lock();
            state.is_deleted = true;
            state.producers.clear();
            drop(state);
            partition.close_now();
        }
        // Fails if the log is closed; then the next start removes the files.
        let _ = shared.queues.removals.push(Removal { topic, partitions });
    }

    /// Deleted topics whose files may still exist after a power loss.
    pub fn topics_being_removed(&self) -> Vec<Uuid> {
        self.inner.shared.removals.all()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// The state journal.
    pub fn journal(&self) -> &Journal {
        &self.inner.shared.journal
    }

    /// The current values of the log's counters.
    pub fn metrics(&self) -> LogMetrics {
        let shared = &self.inner.shared;
        let stalled = self.stalled_reads().len() as u64;
        shared.counters.snapshot(shared.tail.bytes(), stalled)
    }

    /// Whether only the reserve is left on the disk, so that appends of producers are refused. Asks
    /// the system at most ten times a second.
    pub fn is_storage_full(&self) -> bool {
        let shared = &self.inner.shared;
        let admitted = shared.space.admit(&*shared.disk, Instant::now(), 0);
        admitted.is_err()
    }

    /// The size and the free space of the file system. Makes system calls, so it must not run on
    /// threads that serve connections.
    ///
    /// # Errors
    /// The system call has failed.
    pub fn disk_space(&self) -> std::io::Result<DiskSpace> {
        let disk = &self.inner.shared.disk;
        Ok(DiskSpace {
            total_bytes: disk.total_bytes()?,
            free_bytes: disk.free_bytes()?,
        })
    }

    /// Bytes that were accepted and are not written yet. The broker applies backpressure to
    /// publishers by this number.
    pub fn unwritten_bytes(&self) -> u64 {
        self.inner.shared.counters.unwritten_bytes.load(Relaxed)
    }

    /// In manual mode: does the work of all threads, once.
    pub fn step(&self) {
        let shared = &self.inner.shared;
        // First, because removal must sync the journal itself and not rely on the syncs below.
        let removals = shared.queues.removals.take();
        self.inner.remover.lock().work(shared, removals);
        self.step_commit();
        let chores = shared.queues.chores.take();
        self.inner.housekeeper.lock().work(shared, chores, true);
        for work in shared.queues.preparations.take() {
            shared.prepare(work);
        }
        for job in shared.queues.reads.take() {
            job.run(shared);
        }
    }

    /// In manual mode: does the queued writes and one group commit, without housekeeping.
    pub fn step_commit(&self) {
        let shared = &self.inner.shared;
        let openings = shared.queues.openings.take();
        for partition in openings.iter().chain(&shared.queues.writes.take()) {
            partition.write_pending();
        }
        let requests = shared.queues.syncs.take();
        if !requests.is_empty() {
            commit_group(shared, requests);
        }
    }

    /// The reads that the disk has not answered for ten seconds, as lines of text. The first call
    /// that finds such a read also logs it, reports the failure to the reader, and starts another
    /// thread for the queued reads. Call it regularly, without a lock that readers take.
    pub fn stalled_reads(&self) -> Vec<String> {
        self.inner.shared.check_stalled_reads()
    }

    /// Ends all blocking waits for a read with [`crate::ReadError::Closed`]. It is the first step
    /// of a stop, which must not wait for the disk. Readers with a callback are still called, until
    /// [`Log::close`].
    pub fn stop_waiting(&self) {
        self.inner.shared.reader_watch.stop_waiting();
    }

    /// The error for a folder that was opened but should not be used: it has topics, and the owner
    /// finds no definitions in the journal.
    pub fn journal_lost(&self, recovery: &Recovery) -> OpenError {
        data_folder::journal_lost(self.shared().disk.folder(), &recovery.topics)
    }

    /// Whether the log's owner drives it by [`Log::step`] ([`LogOptions::manual`]).
    pub fn is_manual(&self) -> bool {
        self.inner.shared.options.manual
    }

    /// Writes all batches that were appended before this call, and syncs all partitions and the
    /// journal. The log stays open. Blocks on the disk. Works in manual mode, too.
    ///
    /// # Errors
    /// A sync has failed, so some data is not durable. (A failed write is reported only to the
    /// callers of the append.)
    pub fn sync_all(&self) -> Result<(), LogError> {
        let shared = &self.inner.shared;
        let partitions = shared.all_partitions();
        for partition in &partitions {
            partition.wait_written(partition.next_offset());
        }
        let (_, outcome) = try_sync_partitions(shared, &partitions);
        Ok(outcome?)
    }

    /// Stops the log cleanly: refuses appends, writes and syncs all data, completes the indexes so
    /// that the next start need not scan, and releases the folder's lock. Blocks on the disk.
    pub fn close(&self) {
        let shared = &self.inner.shared;
        shared.stop_reads();
        let partitions = shared.all_partitions();
        for partition in &partitions {
            partition.state.lock().is_closed = true;
            partition.wait_for_writer();
            partition.wait_for_compaction();
        }
        self.inner.stop_threads();
        // Does the chores that the threads have left, and syncs data without waiters.
        let chores = shared.queues.chores.take();
        self.inner.housekeeper.lock().work(shared, chores, false);
        sync_partitions(shared, &partitions);
        for partition in &partitions {
            partition.flush_active_index(shared, FinalIndexItem::End);
            partition.discard_prepared();
            partition.truncate_reserved();
            partition.try_snapshot_producers(SNAPSHOT_BYTES_AT_CLOSE);
            partition.close_now();
        }
        let journal_end = shared.journal.end();
        shared.journal.close_now();
        let lock = self.inner.lock.lock().take();
        let text = data_folder::clean_text(journal_end, &shared.disk.boot_id());
        if let Some(Err(error)) = lock.map(|lock| lock.set_text(&text)) {
            tracing::warn!(%error, "the lock file does not say that the log was closed cleanly");
        }
        self.inner.shared.drop_partitions();
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Log({})", self.inner.shared.disk.folder())
    }
}

impl LogInner {
    /// Stops the threads after they have finished the queued work.
    ///
    /// A thread that hangs in a read is not joined: the read changes no data, and its reader is not
    /// called any more.
    fn stop_threads(&self) {
        self.shared.queues.stop();
        let mut threads = std::mem::take(&mut *self.threads.lock());
        let readers = std::mem::take(&mut *self.shared.readers.lock());
        if !self.shared.stop_reads() {
            threads.extend(readers);
        }
        let me = thread::current().id();
        for thread in threads
            .into_iter()
            .filter(|thread| thread.thread().id() != me)
        {
            // A panic was already reported by the thread itself.
            let _ = thread.join();
        }
    }
}

impl Drop for LogInner {
    fn drop(&mut self) {
        self.stop_threads();
        for partition in self.shared.all_partitions() {
            partition.close_now();
        }
        self.shared.journal.close_now();
        self.shared.drop_partitions();
    }
}

impl PartitionLog {
    /// Writes the pending batches, and waits until no other thread writes. Writes are short, so it
    /// yields in a loop.
    pub(crate) fn wait_for_writer(self: &Arc<Self>) {
        self.wait_written(Offset::MAX);
    }

    /// Writes the pending batches, and waits until all batches below `end` are written or have
    /// failed.
    fn wait_written(self: &Arc<Self>, end: Offset) {
        loop {
            self.write_pending();
            let state = self.state.lock();
            let is_left = state.writes.is_writing() || state.writes.is_pending_below(end);
            if self.written_end() >= end || !is_left {
                return;
            }
            drop(state);
            thread::yield_now();
        }
    }
}

/// A guard for a running thread of the log. If the thread panics, the process aborts: without the
/// thread, appends would still be accepted and never be written or synced. Acknowledged data
/// survives the abort as it survives `kill -9`.
pub(crate) struct AbortOnPanic(pub(crate) String);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            let name = &self.0;
            // The panic's own message has said where it happened.
            let _ = writeln!(
                io::stderr(),
                "thread {name} has panicked: the broker ends now"
            );
            std::process::abort();
        }
    }
}

fn open_folder(
    disk: Arc<dyn Disk>,
    options: LogOptions,
    recovery: &mut Recovery,
    previous: &str,
) -> Result<Arc<Shared>, OpenError> {
    let folder = disk.folder();
    let failed = |failure: IoFailure| OpenError::Io {
        folder: folder.clone(),
        failure,
    };
    let format = FolderFormat::read(&*disk)?;
    let run = data_folder::previous_run(previous, &recovery.boot_id);
    let found = FoundJournal::read(&*disk, run).map_err(failed)?;
    let refusal = data_folder::refuse_without_journal(&*disk, &found, format).map_err(failed)?;
    let is_lost = refusal.is_some();
    if let Some(refused) = refusal.filter(|_| !options.repair) {
        return Err(refused);
    }
    let failed = |failure: IoFailure| OpenError::Io { folder, failure };
    let opened = open_files(disk, options, recovery, (format, found, is_lost), previous);
    opened.map_err(failed)
}

/// Opens the folder. From here on files are changed.
fn open_files(
    disk: Arc<dyn Disk>,
    options: LogOptions,
    recovery: &mut Recovery,
    (format, found, is_lost): (FolderFormat, FoundJournal, bool),
    previous: &str,
) -> Result<Arc<Shared>, IoFailure> {
    let fail = |operation: &'static str| {
        move |error: io::Error| IoFailure::new(operation, "topics", &error)
    };
    disk.create_dir_all("topics").map_err(fail("create"))?;
    disk.sync_dir("").map_err(fail("sync"))?;
    let (queues, counters) = (Arc::new(Queues::new()), Arc::new(Counters::default()));
    let write_format =
        |found: &FoundJournal, report: &mut Vec<String>| format.write(&*disk, found, report);
    // A folder with the file `format` must have a journal, so in a new folder the journal is
    // created first.
    let is_new = found.is_new();
    if !is_new {
        write_format(&found, &mut recovery.report)?;
    }
    let opened = found.open(&disk, &options, &queues, &counters, is_lost)?;
    if is_new {
        write_format(&FoundJournal::default(), &mut recovery.report)?;
    }
    recovery.journal = opened.entries;
    recovery.lost_entries = opened.lost;
    recovery.is_upgraded = opened.is_upgraded;
    recovery.report.extend(opened.report);
    let shared = Shared::new(disk, options, counters, queues, opened.journal);
    let shared = Arc::new(shared);
    let same_boot = data_folder::is_same_boot(previous, &recovery.boot_id);
    if let Err(failure) = recover_partitions(&shared, recovery, same_boot) {
        shared.drop_partitions();
        return Err(failure);
    }
    Ok(shared)
}

/// Writes the pending batches of the partitions in a queue, until the queue is stopped.
fn write_queued(queue: &Queue<Arc<PartitionLog>>) {
    while let QueueWait::Items(partitions) = queue.wait(None) {
        partitions.iter().for_each(PartitionLog::write_pending);
    }
}

/// The lock file's text about this process, shown to other processes.
fn holder_text() -> String {
    let since = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    format!("pid {} since {since}", std::process::id())
}

fn not_writable(folder: &str) -> impl Fn(io::Error) -> OpenError {
    |error| OpenError::NotWritable {
        folder: folder.to_owned(),
        message: error.to_string(),
    }
}

fn take_lock(disk: &dyn Disk, folder: &str) -> Result<Box<dyn DiskLock>, OpenError> {
    let not_writable = not_writable(folder);
    match disk.lock(LOCK_PATH) {
        Ok(lock) => {
            let text = data_folder::opening_text(&holder_text(), lock.previous_text());
            lock.set_text(&text).map_err(not_writable)?;
            Ok(lock)
        }
        Err(LockFailure::Held(holder)) => Err(OpenError::Locked {
            folder: folder.to_owned(),
            holder,
        }),
        Err(LockFailure::Io(error)) => Err(not_writable(error)),
    }
}
