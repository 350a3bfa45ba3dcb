//! The readers of a subscription, two per partition, and the partition whose turn is next.

use cloverleaf_log::Offset;

use crate::options::PartitionOrder;
use crate::subscription::reader::Reader;

/// Which of a partition's two readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReaderKind {
    New,
    Requeued,
}

/// The readers of all partitions.
#[derive(Debug)]
pub(crate) struct Readers {
    /// For messages that were never delivered, one reader per partition.
    new: Vec<Reader>,
    /// For requeued messages, one reader per partition.
    requeued: Vec<Reader>,
    /// The partition that the next dispatch tries first, in rotation.
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

    /// Adds readers for the topic's new partitions.
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

    /// The partition to try after `tried` others.
    #[inline]
    pub(crate) fn partition_after(&self, tried: usize, order: PartitionOrder) -> usize {
        let count = self.new.len();
        match order {
            PartitionOrder::RoundRobin => (self.turn + tried) % count,
            PartitionOrder::HighestFirst => count - 1 - tried,
        }
    }

    /// Notes that a message of this partition was delivered: the next partition has its turn.
    #[inline]
    pub(crate) fn delivered_from(&mut self, partition: usize) {
        self.turn = (partition + 1) % self.new.len();
    }

    /// Moves the reader of new messages past `end`, to byte `position`.
    pub(crate) fn step_past(&mut self, partition: usize, position: u32, end: Offset) {
        self.new[partition].set_position(position, end);
    }

    /// Drops the batches read ahead.
    pub(crate) fn clear(&mut self) {
        self.new.iter_mut().for_each(Reader::clear);
        self.requeued.iter_mut().for_each(Reader::clear);
    }
}
