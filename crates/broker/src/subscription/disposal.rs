//! Removal of messages at the head of a partition that must not be delivered (now).

use crate::message::DeadReason;
use crate::subscription::dispatch::{
    DEAD_MAX, DispatchRound, DispatchStep, HeadRun, Unavailable, partition_number,
};
use crate::subscription::readers::ReaderKind;
use crate::subscription::run::Verdict;

impl DispatchRound<'_> {
    /// Applies a verdict other than "deliver": delays, skips, dead-letters or drops the messages.
    pub(crate) fn apply_verdict(&mut self, head: &HeadRun) -> DispatchStep {
        let index = partition_number(head.partition);
        let all_removed = match (head.run.verdict, head.kind) {
            (Verdict::Later(due_ms), ReaderKind::New) => {
                let bytes = head.run.body_bytes;
                self.subscription
                    .shared
                    .scheduled
                    .begins(&head.batch, head.run.position);
                self.state
                    .waiting_bytes
                    .subtract(head.partition, head.run.first, bytes.into());
                self.state
                    .ledger
                    .delay_new(index, due_ms, head.run.body_bytes);
                self.step_past(head);
                true
            }
            (Verdict::Later(due_ms), ReaderKind::Requeued) => {
                self.state.ledger.delay_ready(index, due_ms);
                true
            }
            (Verdict::Unwanted, _) => self.discard(head, None),
            (Verdict::Expired | Verdict::Deliver, _) => {
                self.discard(head, Some(DeadReason::Expired))
            }
        };
        if all_removed {
            DispatchStep::SteppedOver(head.run.bytes)
        } else {
            DispatchStep::Unavailable(Unavailable::Pending)
        }
    }

    /// Removes messages from the queue. They become dead letters if there is a `reason` and the
    /// subscription has a dead-letter topic; otherwise they are dropped. Returns `false` if some
    /// stay because too many dead letters wait to be written; a dispatch follows when these are
    /// written.
    pub(crate) fn discard(&mut self, head: &HeadRun, reason: Option<DeadReason>) -> bool {
        let (index, run) = (partition_number(head.partition), head.run);
        let reason = reason.filter(|_| self.subscription.options().dead_letter.is_some());
        let dead_left = DEAD_MAX.saturating_sub(self.state.ledger.dead());
        let count = match reason {
            Some(_) => run.count.min(u32::try_from(dead_left).unwrap_or(u32::MAX)),
            None => run.count,
        };
        if head.kind == ReaderKind::New {
            let share = u64::from(run.body_bytes) * u64::from(count) / u64::from(run.count.max(1));
            self.state
                .waiting_bytes
                .subtract(head.partition, run.first, share);
        }
        match (reason, head.kind) {
            (None, ReaderKind::New) => self.state.ledger.skip_to(index, run.end()),
            (None, ReaderKind::Requeued) => self.state.ledger.drop_ready(index, count),
            (Some(reason), ReaderKind::New) => {
                (0..count).for_each(|_| self.state.ledger.make_next_dead(index, reason));
            }
            (Some(reason), ReaderKind::Requeued) => {
                (0..count).for_each(|_| self.state.ledger.make_first_ready_dead(index, reason));
            }
        }
        let all_removed = count == run.count;
        if all_removed && head.kind == ReaderKind::New {
            self.step_past(head);
        }
        all_removed
    }

    /// Moves the partition's reader past the run.
    fn step_past(&mut self, head: &HeadRun) {
        let (position, end) = (head.run.next_position, head.run.end());
        let readers = &mut self.state.readers;
        readers.step_past(head.partition, position, end);
    }
}
