//! A subscription's reader: a read position in one partition's log, with batches read ahead. It
//! never blocks.

use std::collections::VecDeque;

use cloverleaf_log::{Batch, ColdRead, Offset, Read};

use crate::topic::partition::Partition;

/// A reader of one partition.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    batches: VecDeque<Batch>,
    /// The log has no message between this offset and the first batch in `batches`.
    covered_from: Offset,
    /// Byte position of the next record in the first batch; 0: its start.
    position: u32,
    /// No record before `position` has this offset or a higher one.
    next_offset: Offset,
    /// A cold read is under way on the log's reader thread.
    reading: bool,
    /// The first batch is being inflated.
    inflating: bool,
    /// After a failed read: no read before this time, in milliseconds since the epoch.
    retry_ms: u64,
}

/// The reader's data at an offset.
pub(crate) enum ReaderHead {
    /// A batch that contains the offset or is the next one after it, and the byte position to read
    /// from.
    Batch(Batch, u32),
    /// As `Batch`, but its records are compressed: the caller inflates it and passes it to
    /// [`Reader::inflated`].
    Compressed(Batch),
    /// The log has nothing at this offset yet.
    End,
    /// The caller must start this cold read.
    StartRead(ColdRead),
    /// A cold read or an inflation is under way, or a failed read waits for its retry.
    Wait,
}

impl Reader {
    /// Finds the batch with the first message at or above `from`.
    pub(crate) fn head(
        &mut self,
        log: &Partition,
        from: Offset,
        bytes_max: usize,
        now_ms: u64,
    ) -> ReaderHead {
        while let Some(batch) = self.batches.front() {
            if batch.end_offset() > from {
                return self.first_batch();
            }
            self.covered_from = batch.end_offset();
            self.batches.pop_front();
            self.position = 0;
        }
        if self.reading || now_ms < self.retry_ms {
            return ReaderHead::Wait;
        }
        if from >= log.written_end() {
            return ReaderHead::End;
        }
        self.covered_from = from;
        match log.read(from, bytes_max) {
            Read::Batches(batches) => {
                self.position = 0;
                self.batches = batches.into();
                while self
                    .batches
                    .front()
                    .is_some_and(|batch| batch.end_offset() <= from)
                {
                    self.batches.pop_front();
                }
                self.first_batch()
            }
            Read::End => ReaderHead::End,
            Read::Cold(read) => {
                self.reading = true;
                ReaderHead::StartRead(read)
            }
        }
    }

    fn first_batch(&mut self) -> ReaderHead {
        let Some(batch) = self.batches.front() else {
            return ReaderHead::End;
        };
        if !batch.is_compressed() {
            return ReaderHead::Batch(batch.clone(), self.position);
        }
        if self.inflating {
            return ReaderHead::Wait;
        }
        self.inflating = true;
        ReaderHead::Compressed(batch.clone())
    }

    /// Replaces the first batch by its inflated copy, unless another batch is the first one now.
    pub(crate) fn inflated(&mut self, inflated: Batch) {
        self.inflating = false;
        if let Some(batch) = self.batches.front_mut()
            && batch.is_compressed()
            && batch.base_offset() == inflated.base_offset()
        {
            *batch = inflated;
            self.position = 0;
            self.next_offset = 0;
        }
    }

    /// Prepares the reader for an offset that may lie before the last one, because requeued
    /// messages are not read in order. An offset that an earlier read has shown to be gone is not
    /// read again.
    pub(crate) fn rewind_to(&mut self, from: Offset) {
        let is_ahead = |batch: &Batch| batch.base_offset() > from;
        if from < self.covered_from && self.batches.front().is_some_and(is_ahead) {
            self.clear();
        }
        if from < self.next_offset {
            self.position = 0;
            self.next_offset = 0;
        }
    }

    /// Records how far the first batch has been read: the record of `next_offset` is at `position`
    /// or after it.
    pub(crate) fn set_position(&mut self, position: u32, next_offset: Offset) {
        self.position = position;
        self.next_offset = next_offset;
    }

    /// Stores the batches of a cold read.
    pub(crate) fn read_succeeded(&mut self, batches: Vec<Batch>) {
        self.reading = false;
        self.position = 0;
        self.batches = batches.into();
    }

    /// Notes that a cold read failed.
    pub(crate) fn read_failed(&mut self, retry_ms: u64) {
        self.reading = false;
        self.retry_ms = retry_ms;
    }

    /// Drops the batches read ahead. A read that is under way still delivers its batches.
    pub(crate) fn clear(&mut self) {
        self.batches.clear();
        self.position = 0;
    }
}
