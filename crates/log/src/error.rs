//! The errors of the log, one type per kind of operation.

use std::io;
use std::sync::Arc;

/// A file operation that has failed, with the details that an operator needs to find the cause.
///
/// It can be cloned, because one failed sync is reported to all its waiters.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot {operation} {path}: {message}")]
pub struct IoFailure {
    /// The operation that was attempted, a verb phrase such as `write to`.
    pub operation: &'static str,
    /// The file or folder, relative to the data folder.
    pub path: Arc<str>,
    /// The operating system's error message.
    pub message: Arc<str>,
    /// The kind of the error, for code that must distinguish a full disk from a broken one.
    pub kind: io::ErrorKind,
}

impl IoFailure {
    /// Wraps an error of the operating system.
    pub(crate) fn new(operation: &'static str, path: &str, error: &io::Error) -> IoFailure {
        IoFailure {
            operation,
            path: path.into(),
            message: error.to_string().into(),
            kind: error.kind(),
        }
    }
}

/// The reason why a data folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the folder open.
    #[error("the data folder {folder} is in use by another broker ({holder})")]
    Locked {
        /// The data folder.
        folder: String,
        /// The other process's text in the lock file: its process id and start time.
        holder: String,
    },
    /// The folder cannot be written to.
    #[error("the data folder {folder} cannot be written to: {message}")]
    NotWritable {
        /// The data folder.
        folder: String,
        /// The operating system's error message.
        message: String,
    },
    /// The folder was written by a later version.
    #[error(
        "the data folder {folder} has format {format}, and this version reads formats up to \
         {known}: it needs cloverleaf {least_version} or later"
    )]
    TooNew {
        /// The data folder.
        folder: String,
        /// The folder's format.
        format: u32,
        /// The first version that reads it.
        least_version: String,
        /// The highest format that this version reads.
        known: u32,
    },
    /// No entry of the state journal can be read, and the folder is not new.
    #[error(
        "the data folder {folder} holds {topics} topics, and nothing of its state journal \
         (state.0, state.1) can be read: it is not taken for a new one. Put the two files back \
         from a copy, or start once with --repair. That keeps the messages of all topics, of \
         {named} with name and settings, of {unnamed} under names of the form recovered-ID; it \
         gives up subscriptions, their progress, committed offsets, exchanges and bindings"
    )]
    JournalLost {
        /// The data folder.
        folder: String,
        /// Number of topics with messages.
        topics: usize,
        /// Number of these whose folder has a description (name and settings).
        named: usize,
        /// Number of these without a description.
        unnamed: usize,
    },
    /// A file operation failed.
    #[error("the data folder {folder} cannot be opened: {failure}")]
    Io {
        /// The data folder.
        folder: String,
        /// The operation that has failed.
        failure: IoFailure,
    },
}

/// The reason why an operation on the whole log, or on its files, has failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoFailure),
    /// The log or the partition was closed or deleted.
    #[error("the log is closed")]
    Closed,
}

/// The reason why an append was refused, or is not as durable as was asked.
///
/// After an error the batch may or may not be in the log after a restart. Its offsets are never
/// assigned to another batch.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// The disk is full, or only the reserve is left. Nothing was written.
    #[error("the disk has {free_bytes} bytes left, which is below the reserve")]
    StorageFull {
        /// Free bytes when the disk was last measured.
        free_bytes: u64,
    },
    /// A write or a sync failed.
    #[error(transparent)]
    Failed(#[from] IoFailure),
    /// The log or the partition was closed or deleted.
    #[error("the log is closed")]
    Closed,
    /// The batch is larger than the limit.
    #[error("a batch of {bytes} bytes is larger than the limit of {bytes_max} bytes")]
    TooLarge {
        /// Size of the refused batch in bytes.
        bytes: u64,
        /// The limit in bytes, `LogOptions::batch_bytes_max`.
        bytes_max: u64,
    },
    /// The batch's sequence numbers do not follow those of the idempotent producer's last batch
    /// (or, in a new epoch, do not begin at 0). Nothing was stored.
    #[error("producer {producer_id}: sequence {found} found, {expected} expected")]
    OutOfOrderSequence {
        /// The producer's id.
        producer_id: i64,
        /// The first sequence number that would have been accepted.
        expected: i32,
        /// The batch's first sequence number.
        found: i32,
    },
    /// The batch has an older epoch than the newest one of its producer. Nothing was stored.
    #[error("producer {producer_id}: epoch {epoch} is fenced by epoch {current_epoch}")]
    ProducerFenced {
        /// The producer's id.
        producer_id: i64,
        /// The batch's epoch.
        epoch: i16,
        /// The newest epoch of the producer.
        current_epoch: i16,
    },
    /// A duplicate of a batch that is so old that its offsets are not in memory any more. It was
    /// not stored again.
    #[error("producer {producer_id}: the batch with sequence {sequence} was stored before")]
    DuplicateSequence {
        /// The producer's id.
        producer_id: i64,
        /// The batch's first sequence number.
        sequence: i32,
    },
}

impl From<LogError> for AppendError {
    fn from(error: LogError) -> AppendError {
        match error {
            LogError::Io(failure) => AppendError::Failed(failure),
            LogError::Closed => AppendError::Closed,
        }
    }
}

/// The reason why a cold read has failed. Corrupt data is not an error: it is reported once and
/// skipped.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// A file could not be opened or read.
    #[error(transparent)]
    Failed(#[from] IoFailure),
    /// The log was closed before the read ran.
    #[error("the log is closed")]
    Closed,
}

/// The reason why bytes are not a valid record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// There are fewer bytes than a batch header has, or than the header says.
    #[error("a record batch is cut off: {actual} bytes of {declared}")]
    Length {
        /// Bytes according to the header, or the bytes of a header.
        declared: u64,
        /// Bytes present.
        actual: u64,
    },
    /// Not message format 2.
    #[error("record batch of message format {0}, only 2 is supported")]
    Magic(i8),
    /// The checksum does not match the bytes.
    #[error("record batch checksum {computed:08x} does not match the stored {stored:08x}")]
    Checksum {
        /// The checksum in the header.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// Record count and last offset delta contradict each other.
    #[error("record batch with {count} records and last offset delta {last_offset_delta}")]
    Count {
        /// The header's record count.
        count: i32,
        /// The header's last offset delta.
        last_offset_delta: i32,
    },
    /// Base offset out of range.
    #[error("record batch with base offset {0} is out of range")]
    BaseOffset(i64),
    /// A compression codec that the format does not define.
    #[error("record batch with unknown compression codec {0}")]
    Codec(u8),
    /// A record is malformed, or does not fit its batch.
    #[error("malformed record at byte {position} of its batch")]
    Record {
        /// Position of the record, in bytes from the batch's first byte.
        position: u32,
    },
    /// The batch is compressed: inflate it before its records are walked.
    #[error("the records of a compressed batch cannot be walked")]
    Compressed,
}
