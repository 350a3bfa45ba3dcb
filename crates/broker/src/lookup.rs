//! Reads messages by their ids: for the housekeeping, and for who routes dead messages.

use cloverleaf_log::{Batch, BatchError, Offset, Read, ReadError, Record, RecordCursor};
use uuid::Uuid;

use crate::message::MessageId;
use crate::topic::Topic;

/// Read at once: who asks for one message often asks for its neighbours next.
const READ_BYTES: usize = 64 << 10;

/// Why a message cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The message is not what it should be.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// It lies on the disk, or in a large compressed batch, and the caller does not wait.
    #[error("the message has to be waited for")]
    Slow,
}

/// Reads messages, and remembers what it read last.
#[derive(Debug)]
pub struct Lookup {
    /// The caller waits for the disk.
    waits: bool,
    /// Of which topic and partition the batches are.
    place: Option<(Uuid, u32)>,
    batches: Vec<Batch>,
    /// In the batch with this base offset, no record before this position has a higher offset than
    /// the last one that was asked for.
    resume: Option<(Offset, u32, Offset)>,
}

impl Lookup {
    /// For a thread on which nobody waits.
    pub fn waiting() -> Self {
        Self {
            waits: true,
            place: None,
            batches: Vec::new(),
            resume: None,
        }
    }

    /// For a connection's thread: what is not at hand is not read.
    pub fn at_hand() -> Self {
        Self {
            waits: false,
            ..Self::waiting()
        }
    }

    /// Calls `with` with the message; `None` if the log does not hold it any more.
    ///
    /// # Errors
    /// It cannot be read, or would have to be waited for.
    pub fn with_message<R>(
        &mut self,
        topic: &Topic,
        id: MessageId,
        with: impl FnOnce(&Record<'_>) -> R,
    ) -> Result<Option<R>, LookupError> {
        let place = Some((topic.id(), id.partition));
        let holds = |batch: &&Batch| (batch.base_offset()..batch.end_offset()).contains(&id.offset);
        if self.place != place || !self.batches.iter().any(|batch| holds(&batch)) {
            self.batches = read(topic, id, self.waits)?;
            self.place = place;
            self.resume = None;
        }
        let Some(batch) = self.batches.iter_mut().find(|batch| holds(&&**batch)) else {
            return Ok(None);
        };
        if batch.is_compressed() {
            let name = (topic.id(), id.partition, batch.base_offset());
            let inflater = &topic.shared().inflater;
            *batch = match self.waits {
                true => inflater.inflate(name, batch),
                false => inflater.at_once(name, batch).ok_or(LookupError::Slow)?,
            };
        }
        let base = batch.base_offset();
        let position = match self.resume {
            Some((of, position, next)) if of == base && next <= id.offset => position,
            _ => 0,
        };
        let mut records = RecordCursor::at(batch, position);
        while let Some((offset, record)) = records.next_record()? {
            if offset == id.offset {
                self.resume = Some((base, records.position(), offset + 1));
                return Ok(Some(with(&record)));
            }
            if offset > id.offset {
                return Ok(None);
            }
        }
        Ok(None)
    }
}

fn read(topic: &Topic, id: MessageId, waits: bool) -> Result<Vec<Batch>, LookupError> {
    let Some(log) = topic.partition(id.partition) else {
        return Ok(Vec::new());
    };
    match log.read(id.offset, READ_BYTES) {
        Read::Batches(batches) => Ok(batches),
        Read::End => Ok(Vec::new()),
        Read::Cold(read) if waits => Ok(read.run()?),
        Read::Cold(_) => Err(LookupError::Slow),
    }
}
