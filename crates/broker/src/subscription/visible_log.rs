//! The partitions of the topic, up to the offsets that the subscription may deliver: a paused topic
//! holds back messages published after the pause.

use cloverleaf_log::Offset;

use crate::subscription::dispatch::partition_number;
use crate::subscription::ledger::Ledger;
use crate::topic::partition::Partition;

/// The partitions, and the end of the deliverable messages of each.
#[derive(Debug)]
pub(crate) struct VisibleLog {
    partitions: Vec<Partition>,
    /// The offsets at which the topic was paused, one per partition: nothing at or above is
    /// delivered.
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

    /// Adds the topic's new partitions. `partitions` lists all of them.
    pub(crate) fn grow(&mut self, partitions: &[Partition]) {
        self.partitions = partitions.to_vec();
        if let Some(limits) = &mut self.limits {
            limits.resize(partitions.len(), 0);
        }
    }

    /// Stops delivery at `limits`, one per partition; `None` lifts the limits.
    ///
    /// A limit is never below what is delivered already: a message may be delivered while the topic
    /// is being paused. Emptying the topic acknowledges messages above the limit, and a leased
    /// message must not be acknowledged.
    pub(crate) fn set_limits(&mut self, limits: Option<Vec<Offset>>, ledger: &Ledger) {
        let raise = |(partition, limit): (u32, Offset)| limit.max(ledger.delivered_end(partition));
        self.limits = limits.map(|limits| (0u32..).zip(limits).map(raise).collect());
    }

    /// The limit of each partition, if the topic is paused.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (u32, Offset)> {
        (0u32..).zip(self.limits.iter().flatten().copied())
    }

    /// The end of the deliverable messages of a partition.
    #[inline]
    pub(crate) fn end(&self, partition: usize) -> Offset {
        self.end_below(partition, self.partitions[partition].written_end())
    }

    /// The end of the deliverable messages of a partition that is written up to `written`.
    #[inline]
    fn end_below(&self, partition: usize, written: Offset) -> Offset {
        let limits = self.limits.as_ref();
        limits.map_or(written, |limits| written.min(limits[partition]))
    }

    pub(crate) fn ends(&self) -> Vec<Offset> {
        (0..self.count()).map(|index| self.end(index)).collect()
    }

    /// Upper bound of [`Self::depth`], cheap: after a restart it also counts messages that are
    /// acknowledged out of order.
    #[inline]
    pub(crate) fn waiting_at_most(&self, ledger: &Ledger) -> u64 {
        let new: u64 = (0u32..)
            .zip(0..self.count())
            .map(|(partition, index)| self.end(index).saturating_sub(ledger.next(partition)))
            .sum();
        new + ledger.ready()
    }

    /// The number of messages that wait for a consumer.
    pub(crate) fn depth(&self, ledger: &Ledger) -> u64 {
        let new: u64 = (0u32..)
            .zip(0..self.count())
            .map(|(partition, index)| ledger.undelivered(partition, self.end(index)))
            .sum();
        new + ledger.ready()
    }

    /// The number of messages that wait for a consumer, plus those accepted but not written yet:
    /// these count against the queue's limit too.
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

    /// Whether no message waits and none is about to be written.
    pub(crate) fn is_drained(&self, ledger: &Ledger) -> bool {
        let mut partitions = self.partitions.iter().enumerate();
        ledger.ready() == 0
            && partitions
                .all(|(index, log)| ledger.next(partition_number(index)) >= log.accepted_end())
    }
}
