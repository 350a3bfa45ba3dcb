//! The readers of a subscription, two per partition, and the partition whose turn it is.

use cloverleaf_log::Offset;

use crate::options::PartitionOrder;
use crate::subscription::reader::Reader;

/// Which of a partition's two readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReaderKind {
    New,
    Requeued,
}

/// The readers.
#[derive(Debug)]
pub(crate) struct Readers {
    /// Of messages that were never delivered, one per partition.
    new: Vec<Reader>,
    /// Of requeued messages, one per partition.
    requeued: Vec<Reader>,
    /// The partition that is looked at first, in rotation.
    turn: usize,
}

impl Readers {
    pub(crate) fn new(partitions: usize) -> Self {
        let readers = || (0..partitions).map(|_| Reader::default()).collect();
        Self {
            new: readers(),
            requeued: readers(),
            turn: 0,
        }
    }

    /// The topic has more partitions now.
    pub(crate) fn grow(&mut self, partitions: usize) {
        self.new.resize_with(partitions, Reader::default);
        self.requeued.resize_with(partitions, Reader::default);
    }

    #[inline]
    pub(crate) fn of(&mut self, partition: usize, kind: ReaderKind) -> &mut Reader {
        match kind {
            ReaderKind::New => &mut self.new[partition],
            ReaderKind::Requeued => &mut self.requeued[partition],
        }
    }

    /// The partition that is looked at after `looks` others.
    #[inline]
    pub(crate) fn partition_after(&self, looks: usize, order: PartitionOrder) -> usize {
        let count = self.new.len();
        match order {
            PartitionOrder::RoundRobin => (self.turn + looks) % count,
            PartitionOrder::HighestFirst => count - 1 - looks,
        }
    }

    /// Messages of this partition were delivered: it is the turn of the next one.
    #[inline]
    pub(crate) fn delivered_from(&mut self, partition: usize) {
        self.turn = (partition + 1) % self.new.len();
    }

    /// New messages up to `end` were seen: their reader goes on behind them, at `position`.
    pub(crate) fn step_behind(&mut self, partition: usize, position: u32, end: Offset) {
        self.new[partition].set_position(position, end);
    }

    /// Forgets what was read ahead.
    pub(crate) fn clear(&mut self) {
        self.new.iter_mut().for_each(Reader::clear);
        self.requeued.iter_mut().for_each(Reader::clear);
    }
}
