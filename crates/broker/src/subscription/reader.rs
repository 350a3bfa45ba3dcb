//! A subscription's reader: a position in one partition's log; it never blocks.

use std::collections::VecDeque;

use cloverleaf_log::{Batch, ColdRead, Offset, Read};

use crate::topic::partition::Partition;

/// A reader of one partition.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    batches: VecDeque<Batch>,
    /// From here on no message lies before the foremost batch.
    reaches_back: Offset,
    /// Byte position of the next record in the foremost batch; 0: at its start.
    position: u32,
    /// No record before `position` has this offset or a higher one.
    next_offset: Offset,
    /// A cold read is under way on the log's reader thread.
    reading: bool,
    /// The foremost batch is being inflated.
    inflating: bool,
    /// After a failed read: not before this time.
    retry_ms: u64,
}

/// The front of a source, at an offset.
pub(crate) enum Front {
    /// A batch that holds the offset or follows it, and the byte position to read on from.
    Batch(Batch, u32),
    /// As `Batch`, but its records are compressed: the caller inflates it and gives it back with
    /// [`Reader::inflated`].
    Compressed(Batch),
    /// Nothing yet.
    End,
    /// A cold read has to be started by the caller.
    Start(ColdRead),
    /// A cold read is under way, or has to wait after an error.
    Wait,
}

impl Reader {
    /// Finds the batch with the first message at or above `from`.
    pub(crate) fn front(
        &mut self,
        log: &Partition,
        from: Offset,
        bytes_max: usize,
        now_ms: u64,
    ) -> Front {
        while let Some(batch) = self.batches.front() {
            if batch.end_offset() > from {
                return self.foremost();
            }
            self.reaches_back = batch.end_offset();
            self.batches.pop_front();
            self.position = 0;
        }
        if self.reading || now_ms < self.retry_ms {
            return Front::Wait;
        }
        if from >= log.written_end() {
            return Front::End;
        }
        self.reaches_back = from;
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
                self.foremost()
            }
            Read::End => Front::End,
            Read::Cold(read) => {
                self.reading = true;
                Front::Start(read)
            }
        }
    }

    fn foremost(&mut self) -> Front {
        let Some(batch) = self.batches.front() else {
            return Front::End;
        };
        if !batch.is_compressed() {
            return Front::Batch(batch.clone(), self.position);
        }
        if self.inflating {
            return Front::Wait;
        }
        self.inflating = true;
        Front::Compressed(batch.clone())
    }

    /// Takes the foremost batch back inflated, unless another one is foremost now.
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

    /// Makes ready for an offset that may lie before the last one: requeued messages are not read
    /// in one direction only. One that is gone, as a read has shown, is not looked for again.
    pub(crate) fn rewind_to(&mut self, from: Offset) {
        let is_ahead = |batch: &Batch| batch.base_offset() > from;
        if from < self.reaches_back && self.batches.front().is_some_and(is_ahead) {
            self.clear();
        }
        if from < self.next_offset {
            self.position = 0;
            self.next_offset = 0;
        }
    }

    /// Remembers how far the foremost batch has been read: `next_offset` stands at `position` or
    /// behind it.
    pub(crate) fn set_position(&mut self, position: u32, next_offset: Offset) {
        self.position = position;
        self.next_offset = next_offset;
    }

    /// A cold read brought these.
    pub(crate) fn arrived(&mut self, batches: Vec<Batch>) {
        self.reading = false;
        self.position = 0;
        self.batches = batches.into();
    }

    /// A cold read failed.
    pub(crate) fn failed(&mut self, retry_ms: u64) {
        self.reading = false;
        self.retry_ms = retry_ms;
    }

    /// Forgets what was read ahead. A read under way is taken in when it comes.
    pub(crate) fn clear(&mut self) {
        self.batches.clear();
        self.position = 0;
    }
}
