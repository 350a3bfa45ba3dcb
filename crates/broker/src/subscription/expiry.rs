//! Expiry of messages that no consumer takes: a message is dropped once it has expired and is at
//! the head of its partition.
//!
//! As in RabbitMQ, a message that expires before the one ahead of it stays until it reaches the
//! head.

use std::sync::atomic::{Ordering, fence};

use cloverleaf_log::Offset;

use crate::subscription::Subscription;
use crate::subscription::dispatch::{Blank, DispatchRound, Found, Sight, partition_number};
use crate::subscription::ledger::Ledger;
use crate::subscription::ledger::leases::NEVER_MS;
use crate::subscription::run::Verdict;

/// The head of a partition after the expired messages are gone.
enum Head {
    /// A message that expires at this time, in milliseconds since the epoch.
    Until(u64),
    /// The partition has no message that waits.
    Empty,
    /// The head is not known yet (a read is under way, for example); a dispatch follows.
    Waiting,
}

/// The message at the head of each partition and its expiry time in milliseconds, as far as known.
#[derive(Debug)]
pub(crate) struct ForemostMessages(Vec<Option<(Offset, u64)>>);

impl ForemostMessages {
    pub(crate) fn new(partitions: usize) -> Self {
        Self(vec![None; partitions])
    }

    /// Adds entries for the topic's new partitions.
    pub(crate) fn grow(&mut self, partitions: usize) {
        self.0.resize(partitions, None);
    }

    /// When the message at `front` expires, if that is known and lies in the future.
    fn known(&self, partition: usize, front: impl Fn() -> Offset, now_ms: u64) -> Option<u64> {
        let known = self.0[partition];
        let known = known.filter(|(offset, at_ms)| *offset == front() && *at_ms > now_ms);
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
                Head::Until(at_ms) => expiry_ms = expiry_ms.min(at_ms),
                Head::Waiting | Head::Empty => {}
            }
        }
        self.state.timers.expire_at(expiry_ms);
        if self.state.consumers.is_empty() {
            // Without consumers nothing needs the batches that were read ahead: free their memory.
            self.state.readers.clear();
        }
    }

    fn expire_head(&mut self, partition: usize) -> Head {
        loop {
            if self.is_over() {
                self.state.timers.retry_at(self.now_ms);
                return Head::Waiting;
            }
            let front = || front_of(&self.state.ledger, partition);
            if let Some(expires_ms) = self.state.foremost.known(partition, front, self.now_ms) {
                return Head::Until(expires_ms);
            }
            match self.sight(partition, 1) {
                Sight::Run(seen) if seen.run.verdict == Verdict::Deliver => {
                    self.state
                        .foremost
                        .note(partition, seen.run.first, seen.run.expires_ms);
                    return Head::Until(seen.run.expires_ms);
                }
                Sight::Run(seen) => match self.dispose(&seen) {
                    Found::SteppedOver(bytes) => self.stepped_bytes += u64::from(bytes),
                    Found::Delivered | Found::Blank(_) => return Head::Waiting,
                },
                Sight::SteppedOver => {}
                Sight::Blank(Blank::Waiting) => return Head::Waiting,
                Sight::Blank(Blank::Nothing) => {
                    // The next append must dispatch even if no consumer waits for it, to set its
                    // expiry timer.
                    if self.subscription.hungry.swap(true, Ordering::SeqCst) {
                        return Head::Empty;
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
fn front_of(ledger: &Ledger, partition: usize) -> Offset {
    let index = partition_number(partition);
    let ready = ledger.first_ready(index).map(|ready| ready.first);
    ready.unwrap_or_else(|| ledger.next(index))
}
