//! Settles ranges of offsets, one lease's part at a time.

use cloverleaf_log::Offset;

use super::cursor::{WORD, bits_between};
use super::leases::{ConsumerSlot, LeaseState, NIL};
use super::{Ledger, Retry, SettledDelivery, lower};
use crate::message::DeadReason;

/// How a consumer settles messages.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SettleAction {
    Ack,
    /// Requeues them at their original offsets.
    Nack,
    /// Rejects them: they are dead-lettered or dropped.
    Reject,
}

/// Consecutive offsets that are in flight in one lease, or that are all not in flight.
#[derive(Debug, Clone, Copy)]
struct Piece {
    first: Offset,
    end: Offset,
    /// The lease in which `consumer` has them in flight; [`NIL`] if it does not have them.
    lease: u32,
}

/// A piece that was taken out of its lease.
#[derive(Debug, Clone, Copy)]
struct TakenPiece {
    word: u64,
    mask: u64,
    attempts: u16,
    bytes: u32,
}

impl Ledger {
    /// The first piece of `[first, end)`.
    fn piece(&self, partition: u32, first: Offset, end: Offset, consumer: ConsumerSlot) -> Piece {
        let none_until = |end| Piece {
            first,
            end,
            lease: NIL,
        };
        let Some(cursor) = self.cursors.get(partition as usize) else {
            return none_until(end);
        };
        let word = first / WORD;
        let Some(state) = cursor.word(word) else {
            let next = cursor.words_between(first, end).next();
            return none_until(next.map_or(end, |word| (word * WORD).min(end)));
        };
        let (wanted, shift) = (bits_between(word, first, end), first % WORD);
        let (mut index, mut held) = (state.leases, 0);
        while let Some(lease) = self.leases.get(index) {
            if lease.terms.state == LeaseState::InFlight(consumer) {
                let mask = lease.mask & wanted;
                if (mask >> shift) & 1 == 1 {
                    let count = u64::from((mask >> shift).trailing_ones());
                    return Piece {
                        first,
                        end: first + count,
                        lease: index,
                    };
                }
                held |= mask;
            }
            index = lease.next_in_word;
        }
        match held >> shift {
            0 => none_until(end.min((word + 1).saturating_mul(WORD))),
            held => none_until(first + u64::from(held.trailing_zeros())),
        }
    }

    /// Takes the messages of `[start, end)` that `consumer` has in flight out of their leases and
    /// passes each piece to `each`. `report` is called for every piece of the range, also for those
    /// that are not in flight. Returns the number of messages taken.
    fn take_between(
        &mut self,
        partition: u32,
        (start, end): (Offset, Offset),
        consumer: ConsumerSlot,
        mut each: impl FnMut(&mut Self, TakenPiece),
        mut report: impl FnMut(Offset, u64, Option<SettledDelivery>),
    ) -> u64 {
        let (mut first, mut taken) = (start, 0);
        while first < end {
            let piece = self.piece(partition, first, end, consumer);
            let count = piece.end - piece.first;
            first = piece.end;
            if piece.lease == NIL {
                report(piece.first, count, None);
                continue;
            }
            let settled = self.settled(piece.lease);
            let word = piece.first / WORD;
            let mask = bits_between(word, piece.first, piece.end);
            let bytes = self.take_bits(piece.lease, mask);
            lower(&mut self.in_flight, count);
            taken += count;
            let part = TakenPiece {
                word,
                mask,
                attempts: settled.attempts,
                bytes,
            };
            each(self, part);
            report(piece.first, count, Some(settled));
        }
        taken
    }

    /// Settles the messages of a range that `consumer` has in flight. Returns their number.
    /// `report` is called for each piece of the range, in order, with its delivery if it was in
    /// flight.
    pub(crate) fn settle_between(
        &mut self,
        action: SettleAction,
        partition: u32,
        range: (Offset, Offset),
        consumer: ConsumerSlot,
        report: impl FnMut(Offset, u64, Option<SettledDelivery>),
    ) -> u64 {
        let settle = |ledger: &mut Self, part: TakenPiece| {
            let (word, mask, attempts) = (part.word, part.mask, part.attempts);
            match action {
                SettleAction::Ack => ledger.cursors[partition as usize].ack_bits(word, mask),
                SettleAction::Nack => {
                    ledger.requeue(partition, word, mask, attempts, part.bytes, None);
                }
                SettleAction::Reject => {
                    ledger.make_dead(partition, word, mask, attempts, DeadReason::Rejected);
                }
            }
        };
        self.take_between(partition, range, consumer, settle, report)
    }

    /// Requeues the messages of a range that are leased to `consumer` but never left its outbox, as
    /// if they had not been delivered. Returns their number.
    pub(crate) fn undeliver_between(
        &mut self,
        partition: u32,
        range: (Offset, Offset),
        consumer: ConsumerSlot,
    ) -> u64 {
        let undeliver = |ledger: &mut Self, part: TakenPiece| {
            let (word, mask) = (part.word, part.mask);
            let attempts = part.attempts.saturating_sub(1);
            // The journal has no entry of a first delivery.
            if attempts > 0 && !ledger.volatile {
                let retry = Retry {
                    word,
                    mask,
                    attempts,
                    due_ms: 0,
                };
                ledger.retries_dirty.push((partition, retry));
            }
            ledger.make_ready(partition, word, mask, attempts, part.bytes);
        };
        self.take_between(partition, range, consumer, undeliver, |_, _, _| {})
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::leases::{LeaseGrant, NEVER_MS};
    use super::*;
    use crate::message::MessageId;

    fn grant(now_us: u64) -> LeaseGrant {
        LeaseGrant {
            consumer: 0,
            due_ms: NEVER_MS,
            now_us,
            waited_ms: 0,
        }
    }

    #[test]
    fn unlimited_windows_cost_ranges_not_entries() {
        let mut ledger = Ledger::new(&[0], 0);
        ledger.lease_next(0, 1_000_000, grant(0), 0);
        assert_eq!(ledger.lease_count(), 1_000_000usize.div_ceil(64));
        for offset in 0..1_000_000 {
            ledger
                .ack(
                    MessageId {
                        partition: 0,
                        offset,
                    },
                    0,
                )
                .unwrap();
        }
        assert_eq!(ledger.lease_count(), 0);
        assert_eq!(ledger.floor(0), 1_000_000);
    }

    #[test]
    fn a_range_is_settled_a_word_at_a_time_and_holes_cost_nothing() {
        let mut ledger = Ledger::new(&[0], 0);
        ledger.lease_next(0, 10_000, grant(5), 0);
        let mut pieces = 0;
        let acked =
            ledger.settle_between(SettleAction::Ack, 0, (0, 10_000), 0, |_, _, _| pieces += 1);
        assert_eq!((acked, pieces), (10_000, 10_000 / 64 + 1));
        assert_eq!(ledger.floor(0), 10_000);
        // Nothing is in flight: one piece, however large the range.
        let mut report = Vec::new();
        let mut tell =
            |first, count, settled: Option<SettledDelivery>| report.push((first, count, settled));
        let acked = ledger.settle_between(SettleAction::Ack, 0, (5, u64::MAX), 0, &mut tell);
        assert_eq!(acked, 0);
        assert_eq!(
            ledger.settle_between(SettleAction::Ack, 9, (5, 7), 0, &mut tell),
            0
        );
        assert_eq!(report, [(5, u64::MAX - 5, None), (5, 2, None)]);
    }
}
