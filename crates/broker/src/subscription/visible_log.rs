//! The partitions of the topic, as far as the subscription may deliver from them: a paused topic
//! holds back what came after the pause.

use cloverleaf_log::Offset;

use crate::subscription::dispatch::partition_number;
use crate::subscription::ledger::Ledger;
use crate::topic::partition::Partition;

/// The partitions, and how far each may be delivered.
#[derive(Debug)]
pub(crate) struct VisibleLog {
    partitions: Vec<Partition>,
    /// The topic is paused: nothing at or above these offsets is delivered.
    limits: Option<Vec<Offset>>,
}

impl VisibleLog {
    pub(crate) fn new(partitions: Vec<Partition>) -> Self {
        Self {
            partitions,
            limits: None,
        }
    }

    /// The number of partitions.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.partitions.len()
    }

    #[inline]
    pub(crate) fn partition(&self, partition: usize) -> &Partition {
        &self.partitions[partition]
    }

    /// The topic has more partitions now: `partitions` are all of them.
    pub(crate) fn grow(&mut self, partitions: &[Partition]) {
        self.partitions = partitions.to_vec();
        if let Some(limits) = &mut self.limits {
            limits.resize(partitions.len(), 0);
        }
    }

    /// Nothing at or above `limits` is delivered (one per partition); `None`: everything is.
    ///
    /// Messages that were delivered already, while the topic was being paused, are not held back:
    /// to empty the topic would acknowledge them although they are leased.
    pub(crate) fn set_limits(&mut self, limits: Option<Vec<Offset>>, ledger: &Ledger) {
        let raise = |(partition, limit): (u32, Offset)| limit.max(ledger.delivered_end(partition));
        self.limits = limits.map(|limits| (0u32..).zip(limits).map(raise).collect());
    }

    /// The limits, of those partitions that have one.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (u32, Offset)> {
        (0u32..).zip(self.limits.iter().flatten().copied())
    }

    /// The end of what may be delivered of a partition.
    #[inline]
    pub(crate) fn end(&self, partition: usize) -> Offset {
        self.end_below(partition, self.partitions[partition].written_end())
    }

    /// The end of the deliverable messages in a partition of which so much is written.
    #[inline]
    fn end_below(&self, partition: usize, written: Offset) -> Offset {
        let limits = self.limits.as_ref();
        limits.map_or(written, |limits| written.min(limits[partition]))
    }

    pub(crate) fn ends(&self) -> Vec<Offset> {
        (0..self.count()).map(|index| self.end(index)).collect()
    }

    /// As [`Self::depth`], but what is acknowledged ahead after a restart counts too: cheap.
    #[inline]
    pub(crate) fn about_waiting(&self, ledger: &Ledger) -> u64 {
        let new: u64 = (0u32..)
            .zip(0..self.count())
            .map(|(partition, index)| self.end(index).saturating_sub(ledger.next(partition)))
            .sum();
        new + ledger.ready()
    }

    /// Messages that wait for a consumer.
    pub(crate) fn depth(&self, ledger: &Ledger) -> u64 {
        let new: u64 = (0u32..)
            .zip(0..self.count())
            .map(|(partition, index)| ledger.undelivered(partition, self.end(index)))
            .sum();
        new + ledger.ready()
    }

    /// Messages that wait for a consumer, and those that are accepted and not written yet: these
    /// have a place in the queue too.
    pub(crate) fn depth_accepted(&self, ledger: &Ledger) -> u64 {
        let new: u64 = (0u32..)
            .zip(&self.partitions)
            .map(|(partition, log)| {
                let (written, unwritten) = log.written_and_unwritten();
                let end = self.end_below(partition as usize, written);
                ledger.undelivered(partition, end) + unwritten
            })
            .sum();
        new + ledger.ready()
    }

    /// Whether nothing waits, and nothing is about to be written.
    pub(crate) fn has_passed_all(&self, ledger: &Ledger) -> bool {
        let mut partitions = self.partitions.iter().enumerate();
        ledger.ready() == 0
            && partitions
                .all(|(index, log)| ledger.next(partition_number(index)) >= log.accepted_end())
    }
}
