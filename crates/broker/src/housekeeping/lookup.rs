//! Reads single messages by id, for the housekeeping thread and for a router of dead messages.
//!
//! Neither may wait for the disk, which may never answer: both continue with other work and try
//! again when they are woken ([`LookupReads`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use cloverleaf_log::{Batch, BatchError, ColdRead, Offset, Read, ReadError, Record, RecordCursor};
use parking_lot::Mutex;

use crate::committed::TopicPartition;
use crate::message::MessageId;
use crate::topic::Topic;

/// Upper limit of partitions with a read under way.
const READS_MAX: usize = 8;

/// Bytes per read: a caller that asks for one message often asks for its neighbours next.
const READ_BYTES: usize = 64 << 10;

/// Why a message cannot be read now.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The batch that contains the message is damaged.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// It must be read from the disk or inflated first, and the caller does not wait. A caller with
    /// [`LookupReads`] is woken when it should try again.
    #[error("the message has to be waited for")]
    Slow,
}

/// Reads of messages from the disk, at most one per partition at a time.
#[derive(Clone, Debug, Default)]
pub struct LookupReads {
    under_way: Arc<Mutex<HashSet<TopicPartition>>>,
    has_arrived: Arc<AtomicBool>,
}

/// The result of the read for one message, once it has finished.
#[derive(Debug, Default)]
pub struct Fetched(Option<Arc<Mutex<Option<ReadOutcome>>>>);

type ReadOutcome = Result<Vec<Batch>, ReadError>;

impl LookupReads {
    /// A lookup for a thread that does other work meanwhile and is woken by `waker`.
    #[must_use]
    pub fn lookup(&self, waker: &Waker) -> Lookup {
        Lookup {
            reads: Some((self.clone(), waker.clone())),
            ..Lookup::in_memory_only()
        }
    }

    /// Whether a read has finished since the last call.
    #[must_use]
    pub fn take_arrived(&self) -> bool {
        self.has_arrived.swap(false, Ordering::AcqRel)
    }

    fn start(&self, place: TopicPartition, read: ColdRead, fetched: &mut Fetched, waker: &Waker) {
        let mut under_way = self.under_way.lock();
        if under_way.len() >= READS_MAX || !under_way.insert(place) {
            return;
        }
        drop(under_way);
        let slot = Arc::new(Mutex::new(None));
        fetched.0 = Some(slot.clone());
        let (reads, waker) = (self.clone(), waker.clone());
        read.on_ready(Box::new(move |outcome| {
            *slot.lock() = Some(outcome);
            reads.under_way.lock().remove(&place);
            reads.has_arrived.store(true, Ordering::Release);
            waker.wake();
        }));
    }
}

/// Reads messages and keeps the batches of the last read.
#[derive(Debug)]
pub struct Lookup {
    /// Where reads from the disk are started; `None`: they are not.
    reads: Option<(LookupReads, Waker)>,
    /// The topic and partition of `batches`.
    place: Option<TopicPartition>,
    batches: Vec<Batch>,
    /// Base offset of a batch, a byte position in it, and the next offset: no record before the
    /// position has that offset or a higher one.
    resume: Option<(Offset, u32, Offset)>,
}

impl Lookup {
    /// A lookup for a connection's thread: it reads only what is in memory.
    pub fn in_memory_only() -> Self {
        Self {
            reads: None,
            place: None,
            batches: Vec::new(),
            resume: None,
        }
    }

    /// Calls `with` with the message. Returns `None` if the log does not have it any more.
    /// `fetched` belongs to this message and must be passed in again until the call succeeds.
    ///
    /// # Errors
    /// The message cannot be read, or must be waited for.
    pub fn with_message<R>(
        &mut self,
        topic: &Topic,
        id: MessageId,
        fetched: &mut Fetched,
        with: impl FnOnce(&Record<'_>) -> R,
    ) -> Result<Option<R>, LookupError> {
        let place = Some((topic.id(), id.partition));
        let holds = |batch: &&Batch| (batch.base_offset()..batch.end_offset()).contains(&id.offset);
        if self.place != place || !self.batches.iter().any(|batch| holds(&batch)) {
            self.batches = self.read(topic, id, fetched)?;
            self.place = place;
            self.resume = None;
        }
        let Some(batch) = self.batches.iter_mut().find(|batch| holds(&&**batch)) else {
            return Ok(None);
        };
        if batch.is_compressed() {
            let name = (topic.id(), id.partition, batch.base_offset());
            let inflater = &topic.shared().inflater;
            *batch = match self.reads {
                Some(_) => inflater.inflate(name, batch),
                None => inflater
                    .inflate_if_quick(name, batch)
                    .ok_or(LookupError::Slow)?,
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

    fn read(
        &self,
        topic: &Topic,
        id: MessageId,
        fetched: &mut Fetched,
    ) -> Result<Vec<Batch>, LookupError> {
        if let Some(slot) = &fetched.0 {
            let outcome = slot.lock().take().ok_or(LookupError::Slow)?;
            *fetched = Fetched::default();
            return Ok(outcome?);
        }
        let Some(log) = topic.partition(id.partition) else {
            return Ok(Vec::new());
        };
        match log.read(id.offset, READ_BYTES) {
            Read::Batches(batches) => Ok(batches),
            Read::End => Ok(Vec::new()),
            Read::Cold(read) => {
                if let Some((reads, waker)) = &self.reads {
                    reads.start((topic.id(), id.partition), read, fetched, waker);
                }
                Err(LookupError::Slow)
            }
        }
    }
}
