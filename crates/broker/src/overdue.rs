//! Deliveries whose deadline has passed, as long as their consumer may still answer them.
//!
//! ```text
//! delivered ──── deadline ─┐                      ┌ acknowledged after all: this much too late
//!     │◄──────────────────►│◄────────────────────►│
//!     └────────────────────┴──── overdue ─────────┘
//! ```
//!
//! The ledger forgets them, because the message goes to others. Only the telemetry wants to know
//! how long the work took, so a few of them are enough.

use std::collections::BTreeMap;

use crate::message::MessageId;

/// Deliveries that are remembered per consumer: 3 KB.
const OVERDUE_MAX: usize = 64;

/// A consumer's deliveries that it has not answered in time: when they were made, in microseconds
/// by the broker's clock.
#[derive(Debug, Default)]
pub(crate) struct Overdue(BTreeMap<MessageId, u64>);

impl Overdue {
    /// The deadline of a run of messages has passed.
    pub(crate) fn add(&mut self, first: MessageId, count: u32, delivered_us: u64) {
        let count = u64::from(count);
        for offset in first.offset..first.offset.saturating_add(count.min(OVERDUE_MAX as u64)) {
            let id = MessageId { offset, ..first };
            // The client answers the oldest of several deliveries first.
            self.0.entry(id).or_insert(delivered_us);
            if self.0.len() > OVERDUE_MAX {
                self.0.pop_first();
            }
        }
    }

    /// The client acknowledges a message. Returns how long it has had it, if it is overdue. If the
    /// message had been delivered to it again meanwhile, then that is done, too: the client will
    /// find out only when it comes to it.
    pub(crate) fn answered(
        &mut self,
        id: MessageId,
        again_us: Option<u64>,
        now_us: u64,
    ) -> Option<u64> {
        let delivered_us = match again_us {
            Some(again_us) => std::mem::replace(self.0.get_mut(&id)?, again_us),
            None => self.0.remove(&id)?,
        };
        Some(now_us.saturating_sub(delivered_us))
    }

    /// Nothing is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(offset: u64) -> MessageId {
        MessageId {
            partition: 1,
            offset,
        }
    }

    #[test]
    fn an_answer_says_how_long_the_client_had_it() {
        let mut overdue = Overdue::default();
        overdue.add(id(5), 2, 100);
        // Delivered to the same client again: it answers the first delivery.
        overdue.add(id(5), 1, 300);
        assert_eq!(overdue.answered(id(4), None, 900), None);
        assert_eq!(overdue.answered(id(5), Some(600), 900), Some(800));
        assert_eq!(overdue.answered(id(5), None, 900), Some(300));
        assert_eq!(overdue.answered(id(5), None, 900), None);
        assert_eq!(overdue.answered(id(6), None, 101), Some(1));
        assert!(overdue.is_empty());
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut overdue = Overdue::default();
        overdue.add(id(0), u32::MAX, 1);
        overdue.add(id(1_000_000), 10, 2);
        assert_eq!(overdue.0.len(), OVERDUE_MAX);
        assert_eq!(overdue.answered(id(1_000_009), None, 3), Some(1));
    }
}
