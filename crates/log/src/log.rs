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
use crate::queue::{Queue, Queued};
use crate::recovery::{Recovery, recover_partitions};
use crate::removal::{Removal, Remover};
use crate::segment::Close;
use crate::shared::{Queues, Shared};

/// Lock file of the data folder.
const LOCK_PATH: &str = "lock";

/// One data folder. Clones are the same log; it ends with [`Log::close`], or less tidily with the
/// last clone.
#[derive(Clone)]
pub struct Log {
    inner: Arc<Inner>,
}

/// How full the file system of the data folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Its size, in bytes.
    pub total_bytes: u64,
    /// The space that an ordinary process may still write, in bytes.
    pub free_bytes: u64,
}

struct Inner {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Of manual mode; else the thread "log-housekeeper" has its own.
    housekeeper: Mutex<Housekeeper>,
    /// Of manual mode; else the thread "log-remover" has its own.
    remover: Mutex<Remover>,
    /// Given back by `close`.
    lock: Mutex<Option<Box<dyn DiskLock>>>,
}

impl Log {
    /// Opens a data folder: takes its lock, reads the journal, finds the end of every partition,
    /// and starts the log's threads (unless `options.manual`).
    ///
    /// # Errors
    /// The folder is in use by another broker, cannot be written to, or cannot be read.
    pub fn open(disk: Arc<dyn Disk>, options: LogOptions) -> Result<(Log, Recovery), OpenError> {
        let folder = disk.folder();
        let lock = take_lock(&*disk, &folder)?;
        let boot_id = disk.boot_id();
        let mut recovery = Recovery {
            clean: data_folder::is_clean(lock.previous_text()),
            boot_id: boot_id.clone(),
            ..Recovery::default()
        };
        let shared = open_folder(disk, options, &mut recovery, lock.previous_text())?;
        let text = data_folder::open_text(&holder_text(), &boot_id);
        lock.set_text(&text).map_err(not_writable(&folder))?;
        let inner = Inner {
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
            let running = Running(name.to_owned());
            threads.push(named.spawn(move || {
                work(&shared);
                drop(running);
            })?);
            Ok(())
        };
        start("log-writer", |shared| write_queued(&shared.queues.writes))?;
        start("log-opener", |shared| write_queued(&shared.queues.openings))?;
        start("log-sync", |shared| {
            while let Queued::Items(requests) = shared.queues.syncs.wait(None) {
                commit_group(shared, requests);
            }
        })?;
        start("log-preparer", |shared| {
            while let Queued::Items(items) = shared.queues.preparations.wait(None) {
                items.into_iter().for_each(|work| shared.prepare(work));
            }
        })?;
        start("log-remover", |shared| {
            let mut remover = Remover::default();
            while let Queued::Items(removals) = shared.queues.removals.wait(remover.due()) {
                remover.work(shared, removals);
            }
        })?;
        start("log-housekeeper", |shared| {
            let mut housekeeper = Housekeeper::default();
            while let Queued::Items(chores) = shared.queues.chores.wait(housekeeper.due()) {
                housekeeper.work(shared, chores, false);
            }
        })?;
        drop(threads);
        self.inner.shared.start_reader()
    }

    /// The log of a partition; it is created if it is new, its files with the first append.
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
        log.tell_losses();
        Ok(log)
    }

    /// The log of a partition that is open, as it is. For tests that look below the broker.
    #[doc(hidden)]
    pub fn opened(&self, topic: Uuid, partition: u32) -> Option<Arc<PartitionLog>> {
        let partitions = self.inner.shared.partitions.read();
        partitions.get(&(topic, partition)).cloned()
    }

    /// Closes all partitions of a topic. Their files are removed later, by the thread "log-remover"
    /// and after a sync of the journal: the caller has written there that the topic is deleted, and
    /// writes it again into each snapshot as long as [`Log::being_removed`] names the topic.
    pub fn delete_topic(&self, topic: Uuid) {
        let shared = &self.inner.shared;
        shared.removals.note(topic);
        let partitions: Vec<Arc<PartitionLog>> = {
            let mut partitions = shared.partitions.write();
            let gone = partitions.extract_if((topic, 0)..=(topic, u32::MAX), |_, _| true);
            gone.map(|(_, partition)| partition).collect()
        };
        for partition in &partitions {
            let mut state = partition.state.lock();
            state.is_deleted = true;
            state.producers.clear();
            drop(state);
            partition.close_now();
        }
        // A log that is closed removes nothing any more: the next start does.
        let _ = shared.queues.removals.push(Removal { topic, partitions });
    }

    /// Deleted topics whose files may still be there after a power loss.
    pub fn being_removed(&self) -> Vec<Uuid> {
        self.inner.shared.removals.all()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// The state journal.
    pub fn journal(&self) -> &Journal {
        &self.inner.shared.journal
    }

    /// The log's counters at the moment.
    pub fn metrics(&self) -> LogMetrics {
        let shared = &self.inner.shared;
        let stalled = self.stalled_reads().len() as u64;
        shared.counters.snapshot(shared.tail.bytes(), stalled)
    }

    /// Whether the disk is full up to the reserve, so that nothing is taken from producers. Asks
    /// the system ten times a second at most.
    pub fn is_storage_full(&self) -> bool {
        let shared = &self.inner.shared;
        let admitted = shared.space.admit(&*shared.disk, Instant::now(), 0);
        admitted.is_err()
    }

    /// How full the file system is. Asks the system: not for threads that serve connections.
    ///
    /// # Errors
    /// The system does not know.
    pub fn disk_space(&self) -> std::io::Result<DiskSpace> {
        let disk = &self.inner.shared.disk;
        Ok(DiskSpace {
            total_bytes: disk.total_bytes()?,
            free_bytes: disk.free_bytes()?,
        })
    }

    /// Bytes accepted and not yet handed to the kernel: what publishers are held back by.
    pub fn unwritten_bytes(&self) -> u64 {
        self.inner.shared.counters.unwritten_bytes.load(Relaxed)
    }

    /// Manual mode: does everything that the threads would do, once.
    pub fn step(&self) {
        let shared = &self.inner.shared;
        // First, because it must not lean on the syncs of the others.
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

    /// Manual mode: queued writes and one group commit, no housekeeping.
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

    /// The reads that the disk has not answered for ten seconds. The caller that finds one first
    /// has it told in the log, too, and those who want it that it failed, and another thread
    /// started for the reads behind it: to be asked now and then, without a lock that readers take.
    pub fn stalled_reads(&self) -> Vec<String> {
        self.inner.shared.look_after_reads()
    }

    /// Lets go all who wait for a read, with [`crate::ReadError::Closed`]: the first step of an
    /// end, which is not to wait for the disk. Those who are to be called with what was read still
    /// are, until [`Log::close`].
    pub fn stop_waiting(&self) {
        self.inner.shared.reader_watch.stop_waiting();
    }

    /// Why the folder should not be used although it could be opened: it has topics, and its owner
    /// finds nothing in the journal.
    pub fn journal_lost(&self, recovery: &Recovery) -> OpenError {
        data_folder::journal_lost(self.shared().disk.folder(), &recovery.topics)
    }

    /// Whether whoever holds the log drives it ([`LogOptions::manual`]).
    pub fn is_manual(&self) -> bool {
        self.inner.shared.options.manual
    }

    /// Hands everything that was appended before this call to the kernel, and syncs all partitions
    /// and the journal. The log stays open. Blocks on the disk; works in manual mode, too.
    ///
    /// # Errors
    /// A sync has failed: not everything is on the disk. (Of a failed write those are told who
    /// appended.)
    pub fn sync_all(&self) -> Result<(), LogError> {
        let shared = &self.inner.shared;
        let partitions = shared.all_partitions();
        for partition in &partitions {
            partition.wait_written(partition.next_offset());
        }
        let (_, outcome) = try_sync_partitions(shared, &partitions);
        Ok(outcome?)
    }

    /// Ends the log: refuses appends, writes and syncs everything, leaves nothing for the next
    /// start to scan, and gives the folder's lock back. Blocks on the disk.
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
        // Chores that the threads have left, and data whose sync nobody waits for.
        let chores = shared.queues.chores.take();
        self.inner.housekeeper.lock().work(shared, chores, false);
        sync_partitions(shared, &partitions);
        for partition in &partitions {
            partition.promise_synced(shared, Close::Promise);
            partition.discard_prepared();
            partition.cut_room();
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
        self.inner.shared.forget_partitions();
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Log({})", self.inner.shared.disk.folder())
    }
}

impl Inner {
    /// Lets the threads finish what is queued and ends them.
    ///
    /// A read that the disk does not answer is not waited for: it changes nothing, and whoever
    /// wanted it is not told any more.
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
            // A panic there was reported by its own thread.
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop_threads();
        for partition in self.shared.all_partitions() {
            partition.close_now();
        }
        self.shared.journal.close_now();
        self.shared.forget_partitions();
    }
}

impl PartitionLog {
    /// Writes what is pending and waits until nobody else does. Writes are short.
    pub(crate) fn wait_for_writer(self: &Arc<Self>) {
        self.wait_written(Offset::MAX);
    }

    /// Writes what is pending and waits until nothing below `end` is unwritten.
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

/// A thread of the log at work. If it panics, the process ends at once: nobody would write or sync
/// any more while appends were still answered. Everything that was acknowledged survives that as it
/// survives `kill -9`.
pub(crate) struct Running(pub(crate) String);

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            let name = &self.0;
            // Where the panic came from, its own message has said.
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

/// Opens the folder: from here on something is written.
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
    // A folder that says its format has had a journal: so that of a new one comes first.
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
        shared.forget_partitions();
        return Err(failure);
    }
    Ok(shared)
}

/// Writes what is pending in the partitions of a queue, until it is stopped.
fn write_queued(queue: &Queue<Arc<PartitionLog>>) {
    while let Queued::Items(partitions) = queue.wait(None) {
        partitions.iter().for_each(PartitionLog::write_pending);
    }
}

/// Tells others who holds the lock.
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
