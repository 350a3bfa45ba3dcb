//! Reads messages by their ids: for the housekeeping, and for the router of dead messages.
//!
//! Neither waits for the disk, which may never answer: both do other things meanwhile, and come
//! again when they are woken ([`LookupReads`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use cloverleaf_log::{Batch, BatchError, ColdRead, Offset, Read, ReadError, Record, RecordCursor};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::message::MessageId;
use crate::topic::Topic;

/// A partition.
type Place = (Uuid, u32);

/// Most partitions from which messages are read at once.
const READS_MAX: usize = 8;

/// Read at once: a caller that asks for one message often asks for its neighbours next.
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
    /// It lies on the disk, or in a large compressed batch, and the caller does not wait. Where it
    /// has [`LookupReads`], it is woken when it should ask again.
    #[error("the message has to be waited for")]
    Slow,
}

/// Reads of messages that only the disk has, of one from a partition at a time.
#[derive(Clone, Debug, Default)]
pub struct LookupReads {
    under_way: Arc<Mutex<HashSet<Place>>>,
    has_arrived: Arc<AtomicBool>,
}

/// The result of the read for one message, now or later.
#[derive(Debug, Default)]
pub struct Fetched(Option<Arc<Mutex<Option<Outcome>>>>);

type Outcome = Result<Vec<Batch>, ReadError>;

impl LookupReads {
    /// A lookup for a thread that goes on meanwhile, and whom this wakes.
    #[must_use]
    pub fn lookup(&self, waker: &Waker) -> Lookup {
        Lookup {
            reads: Some((self.clone(), waker.clone())),
            ..Lookup::at_hand()
        }
    }

    /// Whether one is over since this was asked last.
    #[must_use]
    pub fn take_arrived(&self) -> bool {
        self.has_arrived.swap(false, Ordering::AcqRel)
    }

    fn start(&self, place: Place, read: ColdRead, fetched: &mut Fetched, waker: &Waker) {
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

/// Reads messages, and remembers what it read last.
#[derive(Debug)]
pub struct Lookup {
    /// The caller comes again.
    reads: Option<(LookupReads, Waker)>,
    /// Of which topic and partition the batches are.
    place: Option<Place>,
    batches: Vec<Batch>,
    /// In the batch with this base offset, no record before this position has a higher offset than
    /// the last one that was asked for.
    resume: Option<(Offset, u32, Offset)>,
}

impl Lookup {
    /// For a connection's thread: what is not at hand is not read.
    pub fn at_hand() -> Self {
        Self {
            reads: None,
            place: None,
            batches: Vec::new(),
            resume: None,
        }
    }

    /// Calls `with` with the message; `None` if the log does not hold it any more. Until then
    /// `fetched` belongs to the message.
    ///
    /// # Errors
    /// It cannot be read, or would have to be waited for.
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
                None => inflater.at_once(name, batch).ok_or(LookupError::Slow)?,
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
