//! Messages that expire while no consumer takes them: they go when they are the foremost ones.
//!
//! As RabbitMQ has it, a message behind one that lives longer expires when it comes to the front.

use std::sync::atomic::{Ordering, fence};

use cloverleaf_log::Offset;

use crate::subscription::Subscription;
use crate::subscription::dispatch::{Blank, DispatchRound, Found, Sight, partition_number};
use crate::subscription::ledger::Ledger;
use crate::subscription::ledger::leases::NEVER_MS;
use crate::subscription::run::Verdict;

/// The front of a partition once everything that has expired is gone.
enum Head {
    /// A message that expires then.
    Until(u64),
    /// No message.
    Empty,
    /// Something is under way; a dispatch follows.
    Waiting,
}

/// The foremost message of each partition and when it expires, as far as that is known.
#[derive(Debug)]
pub(crate) struct ForemostMessages(Vec<Option<(Offset, u64)>>);

impl ForemostMessages {
    pub(crate) fn new(partitions: usize) -> Self {
        Self(vec![None; partitions])
    }

    /// The topic has more partitions now.
    pub(crate) fn grow(&mut self, partitions: usize) {
        self.0.resize(partitions, None);
    }

    /// When the message at `front` expires, if that is known and still to come.
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
    /// Takes away what has expired at the front of each partition, and sees to it that the
    /// housekeeping calls when the next message does.
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
            // Without consumers, batches that were read ahead need not wait in memory.
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
                    // The next append has to be looked at, whether or not a consumer waits for it.
                    if self.subscription.hungry.swap(true, Ordering::SeqCst) {
                        return Head::Empty;
                    }
                    // It may have come meanwhile: look once more.
                    fence(Ordering::SeqCst);
                }
            }
        }
    }
}

/// The offset of the foremost message that waits, about: messages may be missing there.
fn front_of(ledger: &Ledger, partition: usize) -> Offset {
    let index = partition_number(partition);
    let ready = ledger.first_ready(index).map(|ready| ready.first);
    ready.unwrap_or_else(|| ledger.next(index))
}
