//! Limits and switches of the log.

use crate::clock::LogClock;

/// How durable an append must be before its [`crate::Appended`] is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// No guarantee: ready at once. The batch is written as with [`Durability::Kernel`].
    None,
    /// Written to the kernel: survives `kill -9` of the broker, but not a power loss.
    Kernel,
    /// Synced to the disk: survives a power loss.
    Disk,
}

/// Options of a data folder.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Maximum bytes of recently written batches in memory for readers, over all partitions.
    pub tail_bytes_max: u64,
    /// Appends are refused while the file system has fewer bytes left than this.
    pub disk_free_bytes_min: u64,
    /// Maximum bytes of a batch; checked by appends and by reads.
    pub batch_bytes_max: u64,
    /// Size of each of the two state journal files in bytes, reserved when the files are created.
    pub journal_bytes: u64,
    /// Maximum number of open segment files, over all partitions. Files with unsynced data stay
    /// open beyond this number.
    pub open_files_max: usize,
    /// Maximum bytes of segment indexes in memory, over all partitions (24 per 32 KiB of log).
    pub index_bytes_max: u64,
    /// Interval, in milliseconds, at which data without waiters is synced.
    pub sync_interval_ms: u64,
    /// Whether an append may write on the caller's thread while the disk is fast. If not, the
    /// thread "log-writer" does all writes.
    pub inline_writes: bool,
    /// Whether the next segment's file is filled with zeros in advance, for partitions with appends
    /// of [`Durability::Disk`]. Syncs of batches from about 4 KiB on take a third less time, but
    /// twice as many bytes are written.
    pub prepare_segments: bool,
    /// Maximum number of idempotent producers of a partition, about 400 bytes each. For new ones
    /// the least recently used are evicted, and any sequence number of an evicted producer is
    /// accepted.
    pub producers_max: usize,
    /// Maximum number of idempotent producers in all partitions together. Once it is reached, a
    /// partition evicts the least recently used of its own for a new one, but keeps at least some
    /// (64).
    pub producers_total_max: usize,
    /// An idempotent producer without a batch for this many milliseconds is forgotten. Kafka's
    /// `producer.id.expiration.ms`.
    pub producer_expiry_ms: u64,
    /// The clock by which ages are computed; should be the same clock that the log's caller uses.
    pub clock: LogClock,
    /// Whether to open a folder whose journal is lost, although the state that only the journal had
    /// is lost, too. (Other damage needs no permission: damaged files are kept aside and reported.)
    pub repair: bool,
    /// Whether the log has no threads, and its owner drives it with `Log::step`. For simulations.
    pub manual: bool,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            tail_bytes_max: 32 << 20,
            disk_free_bytes_min: 64 << 20,
            batch_bytes_max: 128 << 20,
            journal_bytes: 4 << 20,
            open_files_max: 512,
            index_bytes_max: 32 << 20,
            sync_interval_ms: 1_000,
            inline_writes: true,
            prepare_segments: true,
            producers_max: 4_096,
            producers_total_max: 100_000,
            producer_expiry_ms: 24 * 3_600_000,
            clock: LogClock::default(),
            repair: false,
            manual: false,
        }
    }
}

/// Options of one partition.
#[derive(Clone, Debug)]
pub struct PartitionOptions {
    /// Bytes at which a segment is sealed and the next one is begun.
    pub segment_bytes: u64,
    /// A segment that is older than this many milliseconds is sealed even if it is small: by the
    /// first append whose timestamp is this much later than the segment's first one, or by
    /// [`crate::PartitionLog::roll_aged`]. `None`: no limit.
    pub segment_ms: Option<u64>,
}

impl Default for PartitionOptions {
    fn default() -> PartitionOptions {
        PartitionOptions {
            segment_bytes: 64 << 20,
            segment_ms: None,
        }
    }
}
