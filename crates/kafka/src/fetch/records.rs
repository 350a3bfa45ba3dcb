//! The records of a partition in an answer: batches in memory, or ranges of files.

use cloverleaf_log::{Batch, Offset, StoredBatches};
use cloverleaf_session::{FileRange, Output};

/// A batch smaller than this, in bytes, is copied into the output: another element of a vectored
/// write costs more.
const COPY_BYTES_MAX: usize = 1024;

/// A piece of an answer's records.
#[derive(Debug)]
pub(super) enum FetchedRecords {
    /// One batch.
    Batch(Batch),
    /// Several batches, which are sent from their file.
    Stored(StoredBatches),
}

impl FetchedRecords {
    pub(super) fn len_bytes(&self) -> usize {
        match self {
            Self::Batch(batch) => batch.bytes().len(),
            Self::Stored(stored) => stored.len_bytes(),
        }
    }

    /// The offset after the last record.
    pub(super) fn end_offset(&self) -> Offset {
        match self {
            Self::Batch(batch) => batch.end_offset(),
            Self::Stored(stored) => stored.end_offset(),
        }
    }

    /// Number of records.
    pub(super) fn count(&self) -> u64 {
        match self {
            Self::Batch(batch) => batch.count().into(),
            Self::Stored(stored) => stored.count(),
        }
    }

    /// Appends the records to an answer.
    pub(super) fn write(&self, out: &mut Output) {
        match self {
            Self::Batch(batch) if batch.bytes().len() < COPY_BYTES_MAX => {
                out.bytes.extend_from_slice(batch.bytes());
            }
            Self::Batch(batch) => out.share(batch.bytes().clone()),
            Self::Stored(stored) => {
                let (position, bytes) = (stored.position(), stored.len_bytes());
                out.share_file(FileRange::new(stored.file().clone(), position, bytes));
            }
        }
    }
}
