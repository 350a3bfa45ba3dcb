//! Removal of messages at the head of a partition that must not be delivered (now).

use crate::message::DeadReason;
use crate::subscription::dispatch::{
    Blank, DEAD_MAX, DispatchRound, Found, Seen, partition_number,
};
use crate::subscription::readers::ReaderKind;
use crate::subscription::run::Verdict;

impl DispatchRound<'_> {
    /// Applies a verdict other than "deliver": delays, skips, dead-letters or drops the messages.
    pub(crate) fn dispose(&mut self, seen: &Seen) -> Found {
        let index = partition_number(seen.partition);
        let all_went = match (seen.run.verdict, seen.kind) {
            (Verdict::Later(due_ms), ReaderKind::New) => {
                let bytes = seen.run.body_bytes;
                self.subscription
                    .shared
                    .scheduled
                    .begins(&seen.batch, seen.run.position);
                self.state
                    .waiting_bytes
                    .leave(seen.partition, seen.run.first, bytes.into());
                self.state
                    .ledger
                    .delay_new(index, due_ms, seen.run.body_bytes);
                self.step_behind(seen);
                true
            }
            (Verdict::Later(due_ms), ReaderKind::Requeued) => {
                self.state.ledger.delay_ready(index, due_ms);
                true
            }
            (Verdict::Unwanted, _) => self.discard(seen, None),
            (Verdict::Expired | Verdict::Deliver, _) => {
                self.discard(seen, Some(DeadReason::Expired))
            }
        };
        if all_went {
            Found::SteppedOver(seen.run.bytes)
        } else {
            Found::Blank(Blank::Waiting)
        }
    }

    /// Removes messages from the queue. They become dead letters if there is a `reason` and the
    /// subscription has a dead-letter topic; otherwise they are dropped. Returns `false` if some
    /// stay because too many dead letters wait to be written; a dispatch follows when these are
    /// written.
    pub(crate) fn discard(&mut self, seen: &Seen, reason: Option<DeadReason>) -> bool {
        let (index, run) = (partition_number(seen.partition), seen.run);
        let reason = reason.filter(|_| self.subscription.options().dead_letter.is_some());
        let room = DEAD_MAX.saturating_sub(self.state.ledger.dead());
        let count = match reason {
            Some(_) => run.count.min(u32::try_from(room).unwrap_or(u32::MAX)),
            None => run.count,
        };
        if seen.kind == ReaderKind::New {
            let share = u64::from(run.body_bytes) * u64::from(count) / u64::from(run.count.max(1));
            self.state
                .waiting_bytes
                .leave(seen.partition, run.first, share);
        }
        match (reason, seen.kind) {
            (None, ReaderKind::New) => self.state.ledger.skip_to(index, run.end()),
            (None, ReaderKind::Requeued) => self.state.ledger.drop_ready(index, count),
            (Some(reason), ReaderKind::New) => {
                (0..count).for_each(|_| self.state.ledger.bury_new(index, reason));
            }
            (Some(reason), ReaderKind::Requeued) => {
                (0..count).for_each(|_| self.state.ledger.bury_ready(index, reason));
            }
        }
        let all_went = count == run.count;
        if all_went && seen.kind == ReaderKind::New {
            self.step_behind(seen);
        }
        all_went
    }

    /// Moves the partition's reader past the run.
    fn step_behind(&mut self, seen: &Seen) {
        let (position, end) = (seen.run.next_position, seen.run.end());
        let readers = &mut self.state.readers;
        readers.step_behind(seen.partition, position, end);
    }
}
