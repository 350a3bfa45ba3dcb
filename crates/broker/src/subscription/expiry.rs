//! Expiry of messages that no consumer takes: a message is dropped once it has expired and is at
//! the head of its partition.
//!
//! As in RabbitMQ, a message that expires before the one ahead of it stays until it reaches the
//! head.

use std::sync::atomic::{Ordering, fence};

use cloverleaf_log::Offset;

use crate::subscription::Subscription;
use crate::subscription::dispatch::{
    DispatchRound, DispatchStep, HeadScan, Unavailable, partition_number,
};
use crate::subscription::ledger::Ledger;
use crate::subscription::ledger::leases::NEVER_MS;
use crate::subscription::run::Verdict;

/// The head of a partition after the expired messages are gone.
enum HeadExpiry {
    /// A message that expires at this time, in milliseconds since the epoch.
    At(u64),
    /// The partition has no message that waits.
    Empty,
    /// The head is not known yet (a read is under way, for example); a dispatch follows.
    Pending,
}

/// The message at the head of each partition and its expiry time in milliseconds, as far as known.
#[derive(Debug)]
pub(crate) struct HeadExpiries(Vec<Option<(Offset, u64)>>);

impl HeadExpiries {
    pub(crate) fn new(partitions: usize) -> Self {
        Self(vec![None; partitions])
    }

    /// Adds entries for the topic's new partitions.
    pub(crate) fn grow(&mut self, partitions: usize) {
        self.0.resize(partitions, None);
    }

    /// When the message at `first_offset` expires, if that is known and lies in the future.
    fn known(
        &self,
        partition: usize,
        first_offset: impl Fn() -> Offset,
        now_ms: u64,
    ) -> Option<u64> {
        let known = self.0[partition];
        let known = known.filter(|(offset, at_ms)| *offset == first_offset() && *at_ms > now_ms);
        known.map(|(_, expires_ms)| expires_ms)
    }

    fn note(&mut self, partition: usize, offset: Offset, expires_ms: u64) {
        self.0[partition] = Some((offset, expires_ms));
    }
}

impl Subscription {
    /// Whether messages may expire.
    pub(crate) fn expires(&self) -> bool {
        self.options().expires || self.options().message_ttl_ms.is_some()
    }
}

impl DispatchRound<'_> {
    /// Drops expired messages from the head of each partition, and sets the timer for the next
    /// expiry.
    pub(crate) fn expire_heads(&mut self) {
        let mut expiry_ms = NEVER_MS;
        for partition in 0..self.state.log.count() {
            match self.expire_head(partition) {
                HeadExpiry::At(at_ms) => expiry_ms = expiry_ms.min(at_ms),
                HeadExpiry::Pending | HeadExpiry::Empty => {}
            }
        }
        self.state.timers.expire_at(expiry_ms);
        if self.state.consumers.is_empty() {
            // Without consumers nothing needs the batches that were read ahead: free their memory.
            self.state.readers.clear();
        }
    }

    fn expire_head(&mut self, partition: usize) -> HeadExpiry {
        loop {
            if self.is_step_limit_reached() {
                self.state.timers.retry_at(self.now_ms);
                return HeadExpiry::Pending;
            }
            let first_offset = || first_waiting(&self.state.ledger, partition);
            if let Some(expires_ms) =
                self.state
                    .head_expiries
                    .known(partition, first_offset, self.now_ms)
            {
                return HeadExpiry::At(expires_ms);
            }
            match self.scan_head(partition, 1) {
                HeadScan::Run(head) if head.run.verdict == Verdict::Deliver => {
                    self.state
                        .head_expiries
                        .note(partition, head.run.first, head.run.expires_ms);
                    return HeadExpiry::At(head.run.expires_ms);
                }
                HeadScan::Run(head) => match self.apply_verdict(&head) {
                    DispatchStep::SteppedOver(bytes) => self.stepped_bytes += u64::from(bytes),
                    DispatchStep::Delivered | DispatchStep::Unavailable(_) => {
                        return HeadExpiry::Pending;
                    }
                },
                HeadScan::SteppedOver => {}
                HeadScan::Unavailable(Unavailable::Pending) => return HeadExpiry::Pending,
                HeadScan::Unavailable(Unavailable::Empty) => {
                    // The next append must dispatch even if no consumer waits for it, to set its
                    // expiry timer.
                    if self
                        .subscription
                        .dispatch_on_append
                        .swap(true, Ordering::SeqCst)
                    {
                        return HeadExpiry::Empty;
                    }
                    // An append may have happened before the flag was set: scan once more.
                    fence(Ordering::SeqCst);
                }
            }
        }
    }
}

/// The offset of the first waiting message. Approximate: the log may have no message at that
/// offset.
fn first_waiting(ledger: &Ledger, partition: usize) -> Offset {
    let index = partition_number(partition);
    let ready = ledger.first_ready(index).map(|ready| ready.first);
    ready.unwrap_or_else(|| ledger.next(index))
}
