//! Messages that expire while no consumer takes them: they go when they are the foremost ones.
//!
//! As RabbitMQ has it, a message behind one that lives longer expires when it comes to the front.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use cloverleaf_log::Offset;

use crate::subscription::dispatch::{Blank, Found, Round, Sight, partition_number};
use crate::subscription::ledger::leases::NEVER_MS;
use crate::subscription::reader::Source;
use crate::subscription::run::Verdict;
use crate::subscription::{State, Subscription};

/// The front of a partition once everything that has expired is gone.
enum Head {
    /// A message that expires then.
    Until(u64),
    /// No message.
    Empty,
    /// Something is under way; a dispatch follows.
    Waiting,
}

impl Subscription {
    /// Whether messages may expire.
    pub(crate) fn expires(&self) -> bool {
        self.options().expires || self.options().message_ttl_ms.is_some()
    }

    /// Takes away what has expired at the front of each partition, and sees to it that the
    /// housekeeping calls when the next message does.
    pub(crate) fn expire_heads(self: &Arc<Self>, state: &mut State, round: &mut Round) {
        state.expiry_ms = NEVER_MS;
        for partition in 0..state.partitions.len() {
            match self.expire_head(state, partition, round) {
                Head::Until(at_ms) => state.expiry_ms = state.expiry_ms.min(at_ms),
                Head::Waiting | Head::Empty => {}
            }
        }
        if state.consumers.is_empty() {
            // Without consumers, batches that were read ahead need not wait in memory.
            state.sources.iter_mut().for_each(Source::clear);
            state.replays.iter_mut().for_each(Source::clear);
        }
    }

    fn expire_head(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        round: &mut Round,
    ) -> Head {
        loop {
            if round.is_over() {
                state.retry_ms = round.now_ms;
                return Head::Waiting;
            }
            let known = state.heads[partition].filter(|(offset, expires_ms)| {
                *offset == state.front_of(partition) && *expires_ms > round.now_ms
            });
            if let Some((_, expires_ms)) = known {
                return Head::Until(expires_ms);
            }
            match self.sight(state, partition, 1, *round) {
                Sight::Run(seen) if seen.run.verdict == Verdict::Deliver => {
                    state.heads[partition] = Some((seen.run.first, seen.run.expires_ms));
                    return Head::Until(seen.run.expires_ms);
                }
                Sight::Run(seen) => match self.dispose(state, &seen) {
                    Found::SteppedOver(bytes) => round.stepped_bytes += u64::from(bytes),
                    Found::Delivered | Found::Blank(_) => return Head::Waiting,
                },
                Sight::SteppedOver => {}
                Sight::Blank(Blank::Waiting) => return Head::Waiting,
                Sight::Blank(Blank::Nothing) => {
                    // The next append has to be looked at, whether or not a consumer waits for it.
                    if self.hungry.swap(true, Ordering::SeqCst) {
                        return Head::Empty;
                    }
                    // It may have come meanwhile: look once more.
                    fence(Ordering::SeqCst);
                }
            }
        }
    }
}

impl State {
    /// The offset of the foremost message that waits, about: messages may be missing there.
    fn front_of(&self, partition: usize) -> Offset {
        let index = partition_number(partition);
        let ready = self.ledger.first_ready(index).map(|ready| ready.first);
        ready.unwrap_or_else(|| self.ledger.next(index))
    }
}
