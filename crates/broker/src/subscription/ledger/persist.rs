//! The parts of a [`Ledger`] that survive a restart: acknowledgements, attempts and delays.
//!
//! In-flight leases do not survive: their messages are delivered again after a restart.

use std::collections::BTreeMap;
use std::ops::Range;

use cloverleaf_log::Offset;

use super::Ledger;
use super::cursor::{CursorDelta, WORD, bits_between};
use super::leases::{LeaseState, LeaseTerms};
use crate::broker::PARTITIONS_MAX;
use crate::message::DeadReason;

/// Messages of one word that were delivered before, or that are delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retry {
    pub(crate) word: u64,
    pub(crate) mask: u64,
    pub(crate) attempts: u16,
    /// When the delay ends, in milliseconds since the epoch; 0: ready.
    pub(crate) due_ms: u64,
}

/// The changes of one partition.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct PartitionDelta {
    pub(crate) partition: u32,
    pub(crate) cursor: CursorDelta,
    /// Later entries replace earlier ones for the same messages.
    pub(crate) retries: Vec<Retry>,
}

/// The changes of a ledger.
pub(crate) type LedgerDelta = Vec<PartitionDelta>;

impl Ledger {
    /// The changes since the last call.
    pub(crate) fn take_delta(&mut self) -> LedgerDelta {
        let mut retries: BTreeMap<u32, Vec<Retry>> = BTreeMap::new();
        for (partition, retry) in std::mem::take(&mut self.retries_dirty) {
            retries.entry(partition).or_default().push(retry);
        }
        let mut deltas = Vec::new();
        for (partition, cursor) in (0u32..).zip(self.cursors.iter_mut()) {
            let retries = retries.remove(&partition).unwrap_or_default();
            let floor = cursor.floor();
            let change = cursor.take_delta();
            if change.is_none() && retries.is_empty() {
                continue;
            }
            let cursor = change.unwrap_or(CursorDelta {
                floor,
                ..CursorDelta::default()
            });
            deltas.push(PartitionDelta {
                partition,
                cursor,
                retries,
            });
        }
        deltas
    }

    /// The whole state, for a snapshot.
    pub(crate) fn whole(&self) -> LedgerDelta {
        let mut deltas: LedgerDelta = (0u32..)
            .zip(self.cursors.iter())
            .map(|(partition, cursor)| PartitionDelta {
                partition,
                cursor: cursor.whole(),
                retries: Vec::new(),
            })
            .collect();
        for lease in self.leases.iter() {
            let due_ms = match lease.terms.state {
                LeaseState::Delayed => lease.terms.due_ms,
                LeaseState::InFlight(_) | LeaseState::Ready | LeaseState::Dead => 0,
            };
            // A first delivery in flight needs no entry: after a restart it counts as never
            // delivered.
            let attempts = lease.terms.attempts;
            if matches!(lease.terms.state, LeaseState::InFlight(_)) && attempts <= 1 {
                continue;
            }
            let (word, mask) = (lease.word, lease.mask);
            if let Some(delta) = deltas.get_mut(lease.partition as usize) {
                delta.retries.push(Retry {
                    word,
                    mask,
                    attempts,
                    due_ms,
                });
            }
        }
        deltas
    }

    /// Applies a delta that an earlier process wrote. Call in the order in which the deltas were
    /// written.
    ///
    /// Call [`Self::finish_restore`] with the collected retries afterwards.
    pub(crate) fn restore(&mut self, delta: &PartitionDelta, retries: &mut RestoredRetries) {
        // The partition may have been added after the subscription's definition was written.
        if delta.partition < PARTITIONS_MAX {
            self.grow(delta.partition as usize + 1);
        }
        let Some(cursor) = self.cursors.get_mut(delta.partition as usize) else {
            return;
        };
        cursor.restore(&delta.cursor);
        for retry in &delta.retries {
            if retry.word >= u64::MAX / WORD {
                continue;
            }
            let word = retries.entry((delta.partition, retry.word)).or_default();
            word.retain_mut(|earlier| {
                earlier.mask &= !retry.mask;
                earlier.mask != 0
            });
            if retry.mask != 0 {
                word.push(*retry);
            }
        }
    }

    /// Applies a delivery mark that an earlier process wrote. The last one counts.
    pub(crate) fn restore_mark(&mut self, partition: u32, journaled_end: Offset) {
        if partition < PARTITIONS_MAX {
            self.grow(partition as usize + 1);
        }
        if let Some(mark) = self.marks.get_mut(partition as usize) {
            mark.restore(journaled_end);
        }
    }

    /// Creates the leases of messages that were requeued or delayed when the process ended. `ends`
    /// are the partitions' ends. `gone` lists the offsets that each partition has lost: no lease is
    /// created for them, because the caller acknowledges them afterwards.
    pub(crate) fn finish_restore(
        &mut self,
        retries: RestoredRetries,
        ends: &[Offset],
        gone: &[Vec<Range<Offset>>],
    ) {
        for ((partition, word), retries) in retries {
            let end = ends.get(partition as usize).copied().unwrap_or(0);
            let gone = gone.get(partition as usize).into_iter().flatten();
            let held = gone.fold(bits_between(word, 0, end), |held, gone| {
                held & !bits_between(word, gone.start, gone.end)
            });
            for retry in retries {
                let cursor = &mut self.cursors[partition as usize];
                let mask = retry.mask & held & !cursor.acked_bits(word);
                // A delayed message that was never delivered is scanned again, and its header has
                // the due time.
                if mask == 0 || retry.attempts == 0 && retry.due_ms > 0 {
                    continue;
                }
                let end = (word + 1) * WORD - u64::from(mask.leading_zeros());
                cursor.restored_end = cursor.restored_end.max(end);
                if self.attempts_max > 0 && retry.attempts >= self.attempts_max {
                    self.make_dead(partition, word, mask, retry.attempts, DeadReason::Attempts);
                } else if retry.due_ms == 0 {
                    self.make_ready(partition, word, mask, retry.attempts, 0);
                } else {
                    let terms =
                        LeaseTerms::timed(LeaseState::Delayed, retry.attempts, retry.due_ms, 0);
                    self.link(partition, word, mask, terms);
                    self.delayed += u64::from(mask.count_ones());
                }
            }
        }
        (0..self.partitions()).for_each(|partition| self.count_free(partition));
    }
}

/// Retries read from the journal so far, by partition and word.
pub(crate) type RestoredRetries = BTreeMap<(u32, u64), Vec<Retry>>;

/// One above the highest offset of a partition that the retries name.
pub(crate) fn retries_end(retries: &RestoredRetries, partition: u32) -> Offset {
    let mut words = retries.range((partition, 0)..=(partition, u64::MAX)).rev();
    words.next().map_or(0, |((_, word), retries)| {
        let mask = retries.iter().fold(0, |mask, retry| mask | retry.mask);
        word * WORD + (WORD - u64::from(mask.leading_zeros()))
    })
}
