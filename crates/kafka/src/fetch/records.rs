//! The records that an answer gives of a partition: batches from memory, or where they lie in a
//! file.

use cloverleaf_log::{Batch, Offset, StoredBatches};
use cloverleaf_session::{FileRange, Output};

/// A batch that is smaller than this is copied beside its neighbours: one more part of a vectored
/// write costs more than that.
const COPY_BYTES_MAX: usize = 1024;

/// A part of an answer's records.
#[derive(Debug)]
pub(super) enum Records {
    /// One batch.
    Batch(Batch),
    /// Several, which are sent from their file.
    Stored(StoredBatches),
}

impl Records {
    pub(super) fn len_bytes(&self) -> usize {
        match self {
            Self::Batch(batch) => batch.bytes().len(),
            Self::Stored(stored) => stored.len_bytes(),
        }
    }

    /// The offset behind the last of them.
    pub(super) fn end_offset(&self) -> Offset {
        match self {
            Self::Batch(batch) => batch.end_offset(),
            Self::Stored(stored) => stored.end_offset(),
        }
    }

    /// How many records they are.
    pub(super) fn count(&self) -> u64 {
        match self {
            Self::Batch(batch) => batch.count().into(),
            Self::Stored(stored) => stored.count(),
        }
    }

    /// Appends them to an answer.
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
