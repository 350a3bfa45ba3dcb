//! The durable log of Cloverleaf: segments, sparse index, recovery, retention, group commit.
//!
//! **Architecture invariant:** this crate knows files. It knows no topic names, no subscriptions,
//! no network and no protocol, and depends on no other crate of the project.
//!
//! A data folder contains
//!
//! ```text
//! lock                                        the lock, with the holder's process id
//! format                                      the format, and the first version that reads it
//! state.0, state.1                            the state journal ([`Journal`])
//! topics/<uuid>/topic                         the owner's description of the topic
//! topics/<uuid>/<partition>/<base>.log        a segment: batches ([`Batch`])
//! topics/<uuid>/<partition>/<base>.index      the sparse index of this segment
//! topics/<uuid>/<partition>/producers         idempotent producers ([`ProducerSnapshot`])
//! topics/<uuid>/<partition>/compaction        the checkpoint of compaction
//! ```
//!
//! To append: [`BatchBuilder`] or [`Batch::parse`], then [`PartitionLog::append`], which returns an
//! [`Appended`] that is ready once the batch is as durable as was asked. To read:
//! [`PartitionLog::read`] and [`RecordCursor`]. All file operations go through [`Disk`].

// First, because a macro can be used only after its definition.
#[macro_use]
mod invariant;

mod batch;
mod clock;
mod compaction;
mod condvar;
mod damage;
mod data_folder;
mod disk;
mod error;
mod housekeeping;
mod journal;
mod log;
mod metrics;
mod options;
mod partition;
mod producers;
mod queue;
mod reader;
mod recovery;
mod removal;
mod segment;
mod shared;
mod space;
mod topic_files;

pub use batch::builder::{BatchBuilder, Header};
pub use batch::inflate::{InflateError, lz4_len};
pub use batch::record::{Headers, Record, RecordCursor};
pub use batch::validate::RecordsSummary;
pub use batch::{BATCH_HEADER_BYTES, Batch, Codec, Offset};
pub use clock::LogClock;
pub use compaction::{Compacted, CompactionOptions, CompactionStatus};
pub use disk::{
    Descriptor, DirEntry, Disk, DiskFile, DiskLock, Faults, FaultyDisk, LockFailure, OpenMode,
    RealDisk, SimDisk,
};
pub use error::{AppendError, BatchError, IoFailure, LogError, OpenError, ReadError};
pub use invariant::{break_invariant, engine_has_failed, panic_is_contained};
pub use journal::{
    Journal, JournalId, JournalPosition, decode_journal_entries, decode_journal_header,
    encode_journal_header,
};
pub use log::{DiskSpace, Log};
pub use metrics::LogMetrics;
pub use options::{Durability, LogOptions, PartitionOptions};
pub use partition::appended::{Appended, Pending};
pub use partition::read::{ColdRead, Read};
pub use partition::stored::StoredBatches;
pub use partition::{PartitionLog, WrittenListener};
pub use producers::snapshot::{
    ProducerSnapshot, SnapshotProducer, decode_producers, encode_producers,
};
pub use producers::{ProducerBatch, ProducerInfo};
pub use reader::ColdReader;
pub use recovery::{RecoveredPartition, Recovery};
pub use segment::SegmentInfo;
pub use segment::index::{
    INDEX_ENTRY_BYTES, IndexContents, IndexEntry, IndexItem, decode_index, decode_index_item,
    encode_index_item,
};
pub use topic_files::{Describer, RecoveredTopic, decode_topic_file, encode_topic_file};
