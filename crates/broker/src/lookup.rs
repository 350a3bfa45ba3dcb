//! Reads one message by its id, waiting for the disk if need be. For the housekeeping, not for
//! sessions.

use cloverleaf_log::{Batch, BatchError, Read, ReadError, Record, RecordCursor};

use crate::message::MessageId;
use crate::topic::Topic;

/// One batch is enough: it holds the message.
const READ_BYTES: usize = 16 << 10;

/// Why a message cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Batch(#[from] BatchError),
}

/// Calls `with` with the message; `None` if the log does not hold it any more.
pub(crate) fn with_message<R>(
    topic: &Topic,
    id: MessageId,
    with: impl FnOnce(&Record<'_>) -> R,
) -> Result<Option<R>, LookupError> {
    let Some(log) = topic.partition(id.partition) else {
        return Ok(None);
    };
    let batches: Vec<Batch> = match log.read(id.offset, READ_BYTES) {
        Read::Batches(batches) => batches,
        Read::End => return Ok(None),
        Read::Cold(read) => read.run()?,
    };
    for batch in batches
        .iter()
        .filter(|batch| batch.end_offset() > id.offset)
    {
        let inflated;
        let batch = match batch.is_compressed() {
            true => {
                let name = (topic.id(), id.partition, batch.base_offset());
                inflated = topic.shared().inflater.inflate(name, batch);
                &inflated
            }
            false => batch,
        };
        let mut records: RecordCursor<'_> = batch.records();
        while let Some((offset, record)) = records.next_record()? {
            if offset == id.offset {
                return Ok(Some(with(&record)));
            }
            if offset > id.offset {
                return Ok(None);
            }
        }
    }
    Ok(None)
}
