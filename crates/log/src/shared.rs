//! The state that all partitions of a log share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use crate::disk::Disk;
use crate::housekeeping::Chore;
use crate::journal::Journal;
use crate::metrics::{Counters, count};
use crate::options::LogOptions;
use crate::partition::PartitionLog;
use crate::partition::chunk::ChunkBuffers;
use crate::partition::group_commit::SyncRequest;
use crate::partition::prepared::{Preparation, PreparedFiles};
use crate::partition::tail::TailCache;
use crate::producers::ProducersTotal;
use crate::queue::Queue;
use crate::reader::ReadJob;
use crate::reader::watch::ReaderWatch;
use crate::removal::{Removal, Removals};
use crate::segment::eviction::EvictionQueue;
use crate::space::FreeSpace;
use crate::topic_files::Describer;

/// If a write on the caller's thread takes longer than this, the disk throttles writers. An
/// ordinary write takes some tens of microseconds.
const SLOW_WRITE: Duration = Duration::from_millis(2);
/// Milliseconds of *slow mode* after a slow write, in which callers' threads do not write. The
/// write may have been slow by chance (the thread lost its core), so the time is short. It doubles
/// with each further slow write, and a fast write resets it.
const SLOW_MODE_MS_MIN: u64 = 16;
/// Maximum milliseconds of slow mode, after which a caller's thread tries again.
const SLOW_MODE_MS_MAX: u64 = 1_000;

/// The queues of the log's threads.
pub(crate) struct Queues {
    /// Partitions with batches to write, for "log-writer".
    pub(crate) writes: Queue<Arc<PartitionLog>>,
    /// Partitions with batches to write and without a file yet, for "log-opener".
    pub(crate) openings: Queue<Arc<PartitionLog>>,
    /// For "log-sync".
    pub(crate) syncs: Queue<SyncRequest>,
    /// For "log-housekeeper".
    pub(crate) chores: Queue<Chore>,
    /// For "log-preparer".
    pub(crate) preparations: Queue<Preparation>,
    /// For "log-reader".
    pub(crate) reads: Queue<ReadJob>,
    /// For "log-remover".
    pub(crate) removals: Queue<Removal>,
}

impl Queues {
    pub(crate) fn new() -> Queues {
        Queues {
            writes: Queue::new(),
            openings: Queue::new(),
            syncs: Queue::new(),
            chores: Queue::new(),
            preparations: Queue::new(),
            reads: Queue::new(),
            removals: Queue::new(),
        }
    }

    /// Drops all queued work, because queued partitions have references to the queues.
    pub(crate) fn clear(&self) {
        drop(self.writes.take());
        drop(self.openings.take());
        drop(self.syncs.take());
        drop(self.chores.take());
        drop(self.preparations.take());
        drop(self.reads.take());
        drop(self.removals.take());
    }

    /// Refuses further work. The threads still do the queued work.
    pub(crate) fn stop(&self) {
        self.writes.stop();
        self.openings.stop();
        self.syncs.stop();
        self.chores.stop();
        self.preparations.stop();
        self.reads.stop();
        self.removals.stop();
    }
}

/// All state of a log except its threads.
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: LogOptions,
    pub(crate) producers_total: Arc<ProducersTotal>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) journal: Journal,
    pub(crate) tail: TailCache,
    pub(crate) chunks: ChunkBuffers,
    pub(crate) reader_watch: ReaderWatch,
    /// The threads "log-reader": one, and one more for each that hangs in a read.
    pub(crate) readers: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) space: FreeSpace,
    pub(crate) open_files: EvictionQueue,
    pub(crate) prepared_files: PreparedFiles,
    pub(crate) indexes: EvictionQueue,
    pub(crate) partitions: RwLock<BTreeMap<(Uuid, u32), Arc<PartitionLog>>>,
    pub(crate) removals: Removals,
    pub(crate) describer: OnceLock<Describer>,
    started: Instant,
    slow_until_ms: AtomicU64,
    /// Length of the last slow mode in milliseconds; 0 after a fast write.
    slow_mode_ms: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        options: LogOptions,
        counters: Arc<Counters>,
        queues: Arc<Queues>,
        journal: Journal,
    ) -> Shared {
        Shared {
            tail: TailCache::new(options.tail_bytes_max),
            space: FreeSpace::new(options.disk_free_bytes_min),
            open_files: EvictionQueue::new(options.open_files_max as u64),
            chunks: ChunkBuffers::default(),
            reader_watch: ReaderWatch::default(),
            readers: Mutex::default(),
            indexes: EvictionQueue::new(options.index_bytes_max),
            partitions: RwLock::default(),
            removals: Removals::default(),
            describer: OnceLock::new(),
            prepared_files: PreparedFiles::default(),
            producers_total: ProducersTotal::new(options.producers_total_max),
            started: Instant::now(),
            slow_until_ms: AtomicU64::new(0),
            slow_mode_ms: AtomicU64::new(0),
            disk,
            options,
            counters,
            queues,
            journal,
        }
    }

    /// Whether callers' threads may write now.
    pub(crate) fn writes_inline(&self, now: Instant) -> bool {
        if !self.options.inline_writes {
            return false;
        }
        let now_ms = now.saturating_duration_since(self.started).as_millis() as u64;
        now_ms >= self.slow_until_ms.load(Relaxed)
    }

    /// Measures a write that a caller's thread has just done. Returns whether it was slow, and
    /// enters slow mode if so.
    pub(crate) fn measure_write(&self, began: Instant) -> bool {
        let now = Instant::now();
        let before = self.slow_mode_ms.load(Relaxed);
        if self.options.manual || now.saturating_duration_since(began) < SLOW_WRITE {
            if before != 0 {
                self.slow_mode_ms.store(0, Relaxed);
            }
            return false;
        }
        count(&self.counters.slow_writes, 1);
        let time = (before * 2).clamp(SLOW_MODE_MS_MIN, SLOW_MODE_MS_MAX);
        self.slow_mode_ms.store(time, Relaxed);
        let now_ms = now.saturating_duration_since(self.started).as_millis() as u64;
        self.slow_until_ms.store(now_ms + time, Relaxed);
        true
    }

    /// Drops all partitions, to break the reference cycle between them and this struct.
    pub(crate) fn drop_partitions(&self) {
        let partitions = std::mem::take(&mut *self.partitions.write());
        drop(partitions);
        self.queues.clear();
    }

    /// All partitions that are open.
    pub(crate) fn all_partitions(&self) -> Vec<Arc<PartitionLog>> {
        self.partitions.read().values().cloned().collect()
    }
}
