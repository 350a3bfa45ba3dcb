//! Deliveries that missed their ack deadline and that the consumer may still acknowledge late.
//!
//! ```text
//! delivered ──── deadline ─┐                      ┌ acknowledged after all: this much too late
//!     │◄──────────────────►│◄────────────────────►│
//!     └────────────────────┴──── overdue ─────────┘
//! ```
//!
//! The ledger forgets these deliveries, because their messages are requeued. Only the telemetry
//! needs them, to measure how long the work took, so a sample is enough.
//!
//! A message may be delivered to the same consumer again, and an acknowledgement does not name the
//! delivery that it answers. The first acknowledgement counts for the second delivery, because that
//! one is in flight. If another acknowledgement follows, the consumer worked on both deliveries,
//! and the first acknowledgement was the answer to the first delivery.

use std::collections::BTreeMap;

use crate::message::MessageId;
use crate::subscription::ledger::WordMask;

/// How many deliveries are remembered per consumer: 5 KB.
const OVERDUE_MAX: usize = 64;

/// A delivery is forgotten after this time, in microseconds. No ack deadline is that long.
const FORGET_US: u64 = 3_600_000_000;

/// A second acknowledgement counts if it follows within this multiple of the time that the first
/// one took: the second delivery waited in the client's queue.
const SECOND_MAX: u64 = 4;

/// A delivery that missed its ack deadline.
#[derive(Debug)]
struct OverdueDelivery {
    delivered_us: u64,
    /// When the message was acknowledged, which counted for its later delivery.
    acked_us: Option<u64>,
}

impl OverdueDelivery {
    /// The time from which on the delivery is forgotten.
    fn forget_us(&self) -> u64 {
        match self.acked_us {
            None => self.delivered_us.saturating_add(FORGET_US),
            Some(acked_us) => {
                let held_us = acked_us.saturating_sub(self.delivered_us);
                acked_us.saturating_add(held_us.saturating_mul(SECOND_MAX))
            }
        }
    }
}

/// A consumer's deliveries that missed their ack deadline. Times are in microseconds by the
/// broker's clock.
#[derive(Debug)]
pub(crate) struct Overdue {
    deliveries: BTreeMap<MessageId, OverdueDelivery>,
    /// One in `2^sample_shift` messages is remembered, chosen by a hash of its offset. Keeping the
    /// first ones instead would bias the sample, because they are acknowledged first.
    sample_shift: u32,
    /// Nothing has to be forgotten before this time.
    forget_us: u64,
}

impl Default for Overdue {
    fn default() -> Self {
        Self {
            deliveries: BTreeMap::new(),
            sample_shift: 0,
            forget_us: u64::MAX,
        }
    }
}

impl Overdue {
    /// Adds messages whose ack deadline has passed.
    pub(crate) fn add(&mut self, messages: WordMask, delivered_us: u64, now_us: u64) {
        self.forget(now_us);
        if self.deliveries.len() < OVERDUE_MAX / 4 {
            self.sample_shift = self.sample_shift.saturating_sub(1);
        }
        for (first, count) in messages.runs() {
            for offset in first.offset..first.offset + u64::from(count) {
                let id = MessageId { offset, ..first };
                if is_sampled(id, self.sample_shift) {
                    self.insert(id, delivered_us);
                }
            }
        }
    }

    fn insert(&mut self, id: MessageId, delivered_us: u64) {
        // The client acknowledges the oldest of several deliveries first.
        let delivery = self.deliveries.entry(id).or_insert(OverdueDelivery {
            delivered_us,
            acked_us: None,
        });
        self.forget_us = self.forget_us.min(delivery.forget_us());
        while self.deliveries.len() > OVERDUE_MAX {
            self.sample_shift += 1;
            let sample_shift = self.sample_shift;
            self.deliveries
                .retain(|id, _| is_sampled(*id, sample_shift));
        }
    }

    /// The client acknowledges a message that it has in flight again.
    pub(crate) fn acked_again(&mut self, id: MessageId, now_us: u64) {
        if let Some(delivery) = self.deliveries.get_mut(&id) {
            delivery.acked_us = Some(now_us);
            self.forget_us = self.forget_us.min(delivery.forget_us());
        }
    }

    /// The client acknowledges a message that it does not have in flight. Returns how long it had
    /// the overdue delivery, in microseconds, if that is remembered.
    pub(crate) fn acked_late(&mut self, id: MessageId, now_us: u64) -> Option<u64> {
        self.forget(now_us);
        let delivery = self.deliveries.remove(&id)?;
        let acked_us = delivery.acked_us.unwrap_or(now_us);
        Some(acked_us.saturating_sub(delivery.delivered_us))
    }

    /// Whether no delivery is remembered.
    pub(crate) fn is_done(&mut self, now_us: u64) -> bool {
        self.forget(now_us);
        self.deliveries.is_empty()
    }

    fn forget(&mut self, now_us: u64) {
        if now_us < self.forget_us {
            return;
        }
        self.deliveries
            .retain(|_, delivery| now_us < delivery.forget_us());
        let next_us = self
            .deliveries
            .values()
            .map(OverdueDelivery::forget_us)
            .min();
        self.forget_us = next_us.unwrap_or(u64::MAX);
    }
}

/// Whether a message belongs to the sample of one in `2^sample_shift`. The multiplier is 2^64
/// divided by the golden ratio: it spreads consecutive offsets evenly.
fn is_sampled(id: MessageId, sample_shift: u32) -> bool {
    let place = id.offset ^ (u64::from(id.partition) << 40);
    place.wrapping_mul(0x9E37_79B9_7F4A_7C15).leading_zeros() >= sample_shift
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

    fn word(word: u64, bits: &[u32]) -> WordMask {
        WordMask {
            partition: 1,
            word,
            mask: bits.iter().map(|bit| 1 << bit).sum(),
        }
    }

    #[test]
    fn an_acknowledgement_reports_how_long_the_client_had_it() {
        let mut overdue = Overdue::default();
        overdue.add(word(0, &[5, 6]), 100, 200);
        // Delivered to the same client again: this keeps the first delivery's time.
        overdue.add(word(0, &[5]), 300, 400);
        assert_eq!(overdue.acked_late(id(4), 900), None);
        overdue.acked_again(id(5), 900);
        // The second acknowledgement shows that the first one answered the first delivery.
        assert_eq!(overdue.acked_late(id(5), 1_000), Some(800));
        assert_eq!(overdue.acked_late(id(5), 1_000), None);
        assert_eq!(overdue.acked_late(id(6), 1_001), Some(901));
        assert!(overdue.is_done(1_001));
    }

    #[test]
    fn only_deliveries_that_timed_out_are_remembered() {
        let mut overdue = Overdue::default();
        // The messages between were acknowledged in time.
        overdue.add(word(2, &[3, 17, 40, 63]), 100, 200);
        for other in [4, 5, 6, 16, 18] {
            assert_eq!(overdue.acked_late(id(128 + other), 300), None, "{other}");
        }
        for late in [3, 17, 40, 63] {
            let held_us = overdue.acked_late(id(128 + late), 300);
            assert_eq!(held_us, Some(200), "{late}");
        }
    }

    #[test]
    fn a_redelivery_that_is_acknowledged_in_time_is_not_reported_as_late() {
        let mut overdue = Overdue::default();
        overdue.add(word(0, &[1]), 0, 1_000);
        overdue.acked_again(id(1), 1_300);
        assert!(!overdue.is_done(1_300), "another answer may follow");
        assert!(overdue.is_done(1_300 + SECOND_MAX * 1_300));
        assert_eq!(overdue.acked_late(id(1), 1_300), None);
        // A delivery that is never acknowledged is forgotten too.
        overdue.add(word(0, &[2]), 0, 1_000);
        assert!(!overdue.is_done(FORGET_US - 1));
        assert!(overdue.is_done(FORGET_US));
    }

    #[test]
    fn of_many_deliveries_a_fair_sample_is_remembered() {
        let mut overdue = Overdue::default();
        let all: Vec<u32> = (0..64).collect();
        for number in 0..40 {
            overdue.add(word(number, &all), 1, 60_000_001);
        }
        let count = overdue.deliveries.len();
        assert!((16..=OVERDUE_MAX).contains(&count), "{count}");
        // They are acknowledged in order, ten per second: half of them in the first half of the
        // time.
        let answers = (0..40 * 64).map(|n| (n, 60_000_001 + n * 100_000));
        let answers = answers.filter_map(|(n, at_us)| overdue.acked_late(id(n), at_us));
        let mut ages: Vec<u64> = answers.collect();
        assert_eq!(ages.len(), count);
        ages.sort_unstable();
        let (half, most) = (ages[count / 2], ages[count * 95 / 100]);
        assert!(half.abs_diff(188_000_000) < 15_000_000, "{half}");
        assert!(most.abs_diff(303_000_000) < 15_000_000, "{most}");
        assert!(overdue.is_done(400_000_000));
    }

    #[test]
    fn after_many_deliveries_few_are_all_remembered_again() {
        let mut overdue = Overdue::default();
        let all: Vec<u32> = (0..64).collect();
        for number in 0..10_000 {
            overdue.add(word(number, &all), 1, 2);
        }
        assert!(overdue.deliveries.len() <= OVERDUE_MAX && overdue.sample_shift > 10);
        // These were never acknowledged.
        for number in 0..24 {
            overdue.add(word(20_000 + number, &[0]), FORGET_US, FORGET_US + 2);
        }
        assert_eq!(
            overdue.sample_shift, 0,
            "one step for each while there are few"
        );
        let last = id(20_023 * 64);
        assert_eq!(overdue.acked_late(last, FORGET_US + 9), Some(9));
    }
}
