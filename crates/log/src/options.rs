//! Limits and switches of the log; every limit has its reason beside its default.

use crate::clock::LogClock;

/// How durable an append must be before its [`crate::Appended`] is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Nothing is promised: ready at once. Written like [`Durability::Kernel`].
    None,
    /// Handed to the kernel: survives `kill -9` of the broker, not a power loss.
    Kernel,
    /// Synced to the disk: survives a power loss.
    Disk,
}

/// Options of a data folder.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Bytes of recently written batches kept in memory for readers, all partitions together.
    pub tail_bytes_max: u64,
    /// Appends are refused while the file system has fewer bytes left than this.
    pub disk_free_bytes_min: u64,
    /// Largest batch in bytes; what is read back is checked against it too.
    pub batch_bytes_max: u64,
    /// Size of each of the two state journal files in bytes, reserved when they are created.
    pub journal_bytes: u64,
    /// Segment files kept open, all partitions together. Files with data that is not synced yet
    /// stay open beyond this number.
    pub open_files_max: usize,
    /// Bytes of segment indexes kept in memory, all partitions together (24 per 32 KiB of log).
    pub index_bytes_max: u64,
    /// Data that nobody waits for is synced this often, in milliseconds.
    pub sync_interval_ms: u64,
    /// Whether an append may write on the caller's thread while the disk answers fast. With
    /// `false` the thread "log-writer" writes everything.
    pub inline_writes: bool,
    /// Whether the next segment's file is written with zeros ahead, for partitions with appends of
    /// [`Durability::Disk`]: syncs of batches from about 4 KiB take a third less, for twice the
    /// bytes written.
    pub prepare_segments: bool,
    /// Most idempotent producers that a partition remembers, about 400 bytes each. Beyond that the
    /// least recently used are forgotten, and any sequence number is taken from them again.
    pub producers_max: usize,
    /// Most of them in all partitions together. Beyond that a partition forgets the least recently
    /// used of its own, but for the last one.
    pub producers_total_max: usize,
    /// An idempotent producer that was silent for this many milliseconds is forgotten. Kafka's
    /// `producer.id.expiration.ms`.
    pub producer_expiry_ms: u64,
    /// The clock by which ages are counted; best the one that tells this log's caller the time too.
    pub clock: LogClock,
    /// Opens a folder whose journal is lost, and gives up what only that knew. (What else is
    /// damaged needs no leave: it is kept beside, and told.)
    pub repair: bool,
    /// No threads: the owner of the log drives it with `Log::step`. For simulations.
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
    /// A segment that has reached this size in bytes is sealed and the next one begun.
    pub segment_bytes: u64,
    /// A segment that is older than this, in milliseconds, is sealed even if it is small: by the
    /// first append whose timestamps lie that far behind those of its first batch, or by
    /// [`crate::PartitionLog::roll_aged`].
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
