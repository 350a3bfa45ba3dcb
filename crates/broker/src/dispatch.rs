//! Who gets the next messages: the way from the log to a consumer's outbox.
//!
//! A message goes to a consumer with room in its window; among those of the highest priority to the
//! one with the fewest messages in flight, in turn where that is a tie (`choose.rs`). Requeued
//! messages of a partition go before new ones. Everything happens under the subscription's lock and
//! touches no disk.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use cloverleaf_log::{Batch, ColdRead, Offset};

use crate::inflater::BatchName;
use crate::ledger::Claim;
use crate::ledger::leases::NEVER_MS;
use crate::message::{DeadReason, Delivery};
use crate::options::PartitionOrder;
use crate::pick::{Inspection, Pick, Run, Seek, Verdict};
use crate::source::{Front, Source};
use crate::subscription::{State, Subscription};

/// After a failed read the subscription asks again this much later.
const READ_RETRY_MS: u64 = 1_000;

/// Bytes of records that are stepped over in one go; then the housekeeping goes on with it, so that
/// a filter over a long backlog holds up nobody.
const STEPPED_BYTES_MAX: u64 = 1 << 20;

/// Dead messages that wait for their letters; more wait in the log.
const DEAD_MAX: u64 = 4_096;

/// Which of a partition's two readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    New,
    Requeued,
}

/// What was found for a consumer.
enum Found {
    /// Messages were handed over.
    Delivered,
    /// Something was stepped over, so many bytes: look again.
    SteppedOver(u32),
    /// The partition has nothing now.
    Nothing,
}

/// A round of dispatch.
#[derive(Clone, Copy)]
struct Round {
    now_us: u64,
    now_ms: u64,
    stepped_bytes: u64,
}

/// For whom messages are looked for, and how many.
#[derive(Clone, Copy)]
struct Wanted {
    slot: usize,
    quota: u64,
}

impl Subscription {
    /// Delivers as much as consumers have room for.
    pub(crate) fn dispatch(self: &Arc<Self>, state: &mut State) {
        if state.closed {
            return;
        }
        let now_us = self.shared.clock.now_us();
        let mut round = Round {
            now_us,
            now_ms: now_us / 1000,
            stepped_bytes: 0,
        };
        if self.drops_head() {
            self.drop_head(state);
        }
        if state.paused {
            self.hungry.store(false, Ordering::Relaxed);
            return;
        }
        loop {
            let chosen = state.choose(self.options().single_active);
            let Some((slot, quota)) = chosen else {
                self.hungry.store(false, Ordering::Relaxed);
                return;
            };
            if self.deliver_some(state, Wanted { slot, quota }, &mut round) {
                continue;
            }
            if round.stepped_bytes >= STEPPED_BYTES_MAX {
                state.retry_ms = round.now_ms;
                return;
            }
            if self.hungry.swap(true, Ordering::SeqCst) {
                return;
            }
            // An append may have come between the last look and `hungry`: look once more.
            fence(Ordering::SeqCst);
        }
    }

    /// Gives one run of messages to a consumer, from the partition whose turn it is.
    fn deliver_some(
        self: &Arc<Self>,
        state: &mut State,
        wanted: Wanted,
        round: &mut Round,
    ) -> bool {
        let count = state.logs.len();
        for turn in 0..count {
            let partition = match self.options().order {
                PartitionOrder::RoundRobin => (state.rotation.partition + turn) % count,
                PartitionOrder::HighestFirst => count - 1 - turn,
            };
            loop {
                match self.look_into(state, partition, wanted, *round) {
                    Found::Delivered => {
                        state.rotation.partition = (partition + 1) % count;
                        return true;
                    }
                    Found::SteppedOver(bytes) => {
                        round.stepped_bytes += u64::from(bytes);
                        if round.stepped_bytes >= STEPPED_BYTES_MAX {
                            return false;
                        }
                    }
                    Found::Nothing => break,
                }
            }
        }
        false
    }

    fn look_into(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        wanted: Wanted,
        round: Round,
    ) -> Found {
        match state.ledger.first_ready(partition_number(partition)) {
            Some(_) => self.look_into_requeued(state, partition, wanted, round),
            None => self.look_into_new(state, partition, wanted, round),
        }
    }

    fn look_into_requeued(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        wanted: Wanted,
        round: Round,
    ) -> Found {
        let index = partition_number(partition);
        let Some(ready) = state.ledger.first_ready(index) else {
            return Found::Nothing;
        };
        if ready.first >= state.visible_end(partition) {
            return Found::Nothing;
        }
        let front = self.front(state, partition, Kind::Requeued, ready.first, round);
        let Some((batch, position)) = front else {
            return Found::Nothing;
        };
        let end = ready.first + u64::from(ready.count);
        if batch.base_offset() > ready.first {
            let gone = batch.base_offset().min(end) - ready.first;
            state.ledger.drop_ready(index, count32(gone));
            return Found::SteppedOver(0);
        }
        let seek = self.seek(ready.first, end, wanted, round);
        let run = match Inspection::new(self.options(), &state.filter).pick(&batch, position, seek)
        {
            Pick::Run(run) => run,
            Pick::Gap(to) => {
                let gone = to.min(end) - ready.first;
                state.ledger.drop_ready(index, count32(gone.max(1)));
                return Found::SteppedOver(0);
            }
        };
        match run.verdict {
            Verdict::Deliver => {
                let due_ms = state.ack_due_ms(wanted.slot, round.now_ms);
                let slot = slot_number(wanted.slot);
                state
                    .ledger
                    .take_ready(index, run.count, slot, due_ms, round.now_us);
                state.replays[partition].set_position(run.next_position, run.end());
                let attempts = ready.attempts.saturating_add(1);
                self.hand_over(state, wanted.slot, batch, run, index, attempts, round);
                return Found::Delivered;
            }
            Verdict::Unwanted => state.ledger.drop_ready(index, run.count),
            Verdict::Expired if self.options().dead_letter.is_none() => {
                state.ledger.drop_ready(index, run.count);
            }
            Verdict::Expired => {
                if state.ledger.dead() >= DEAD_MAX {
                    return Found::Nothing;
                }
                state.ledger.bury_ready(index, DeadReason::Expired);
            }
            Verdict::Later(due_ms) => state.ledger.delay_ready(index, due_ms),
        }
        Found::SteppedOver(run.bytes)
    }

    fn look_into_new(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        wanted: Wanted,
        round: Round,
    ) -> Found {
        let index = partition_number(partition);
        let next = state.ledger.next(index);
        let end = state.visible_end(partition);
        if next >= end {
            return Found::Nothing;
        }
        let free = match state.ledger.claim(index, end - next) {
            Claim::Taken(count) => {
                state.ledger.step_over(index, count);
                return Found::SteppedOver(0);
            }
            Claim::Free(count) => count,
        };
        let front = self.front(state, partition, Kind::New, next, round);
        let Some((batch, position)) = front else {
            return Found::Nothing;
        };
        if batch.base_offset() > next {
            state.ledger.skip_to(index, batch.base_offset().min(end));
            return Found::SteppedOver(0);
        }
        let seek = self.seek(next, end.min(next + free), wanted, round);
        let run = match Inspection::new(self.options(), &state.filter).pick(&batch, position, seek)
        {
            Pick::Run(run) => run,
            Pick::Gap(to) => {
                state.ledger.skip_to(index, to.min(end));
                return Found::SteppedOver(0);
            }
        };
        match run.verdict {
            Verdict::Deliver => {
                let due_ms = state.ack_due_ms(wanted.slot, round.now_ms);
                let (count, slot) = (u64::from(run.count), slot_number(wanted.slot));
                state
                    .ledger
                    .take_new(index, count, slot, due_ms, round.now_us);
                state.sources[partition].set_position(run.next_position, run.end());
                self.hand_over(state, wanted.slot, batch, run, index, 1, round);
                return Found::Delivered;
            }
            Verdict::Unwanted => state.ledger.skip_to(index, run.end()),
            Verdict::Expired if self.options().dead_letter.is_none() => {
                state.ledger.skip_to(index, run.end());
            }
            Verdict::Expired => {
                for _ in 0..run.count {
                    if state.ledger.dead() >= DEAD_MAX {
                        return Found::Nothing;
                    }
                    state.ledger.bury_new(index, DeadReason::Expired);
                }
            }
            Verdict::Later(due_ms) => state.ledger.delay_new(index, due_ms),
        }
        state.sources[partition].set_position(run.next_position, run.end());
        Found::SteppedOver(run.bytes)
    }

    fn seek(&self, from: Offset, end: Offset, wanted: Wanted, round: Round) -> Seek {
        Seek {
            from,
            end,
            quota: wanted.quota,
            bytes_max: self.shared.options.outbox_bytes_max,
            now_ms: round.now_ms,
        }
    }

    /// The batch that holds or follows `from`, unless it has to be waited for.
    fn front(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        kind: Kind,
        from: Offset,
        round: Round,
    ) -> Option<(Batch, u32)> {
        let log = state.logs[partition].clone();
        let bytes_max = match kind {
            Kind::New => self.shared.options.read_bytes_max,
            // One message is wanted, its neighbours perhaps.
            Kind::Requeued => self.shared.options.read_bytes_max / 8,
        };
        let source = source_of(state, partition, kind);
        if kind == Kind::Requeued {
            source.rewind_to(from);
        }
        loop {
            match source.front(&log, from, bytes_max, round.now_ms) {
                Front::Batch(batch, position) => return Some((batch, position)),
                Front::Compressed(batch) => {
                    let name = (log.topic(), log.number(), batch.base_offset());
                    match self.shared.inflater.at_once(name, &batch) {
                        Some(inflated) => source.inflated(inflated),
                        None => {
                            self.start_inflating(partition, kind, name, batch);
                            return None;
                        }
                    }
                }
                Front::End | Front::Wait => return None,
                Front::Start(read) => {
                    self.start_read(partition, kind, read);
                    return None;
                }
            }
        }
    }

    /// A batch that takes long to inflate is not inflated under the lock.
    fn start_inflating(
        self: &Arc<Self>,
        partition: usize,
        kind: Kind,
        name: BatchName,
        batch: Batch,
    ) {
        let subscription = Arc::downgrade(self);
        self.shared.inflater.queue(Box::new(move || {
            let Some(subscription) = subscription.upgrade() else {
                return;
            };
            let inflated = subscription.shared.inflater.inflate(name, &batch);
            let mut state = subscription.state.lock();
            source_of(&mut state, partition, kind).inflated(inflated);
            subscription.dispatch(&mut state);
            subscription.finish(state);
        }));
    }

    fn start_read(self: &Arc<Self>, partition: usize, kind: Kind, read: ColdRead) {
        let subscription = Arc::downgrade(self);
        read.on_ready(Box::new(move |result| {
            let Some(subscription) = subscription.upgrade() else {
                return;
            };
            let retry_ms = subscription.shared.clock.now_ms() + READ_RETRY_MS;
            let mut state = subscription.state.lock();
            let source = source_of(&mut state, partition, kind);
            match result {
                Ok(batches) if !batches.is_empty() => source.arrived(batches),
                // Nothing readable there yet: as good as an error, for now.
                Ok(_) => {
                    source.failed(retry_ms);
                    state.retry_ms = retry_ms;
                }
                Err(error) => {
                    tracing::error!(?subscription, partition, %error, "cannot read from the log");
                    source.failed(retry_ms);
                    state.retry_ms = retry_ms;
                }
            }
            subscription.dispatch(&mut state);
            subscription.finish(state);
        }));
    }

    #[allow(clippy::too_many_arguments)] // the parts of a delivery
    fn hand_over(
        &self,
        state: &mut State,
        slot: usize,
        batch: Batch,
        run: Run,
        partition: u32,
        attempts: u16,
        round: Round,
    ) {
        let delivery = Delivery {
            batch,
            position: run.position,
            partition,
            first: run.first,
            count: run.count,
            attempts,
            bytes: run.bytes,
            delivered_us: round.now_us,
        };
        let bytes_max = u64::from(self.shared.options.outbox_bytes_max);
        let Some(consumer) = state.consumers.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        consumer.in_flight += run.count;
        consumer.delivered += u64::from(run.count);
        let (full, waker) = consumer.outbox.push(delivery, bytes_max);
        consumer.stalled = full;
        state.wakers.extend(waker);
        state.rotation.consumer = slot;
        self.counters
            .delivered
            .fetch_add(u64::from(run.count), Ordering::Relaxed);
    }

    /// Drops the oldest waiting messages of a queue that is longer than it may be.
    fn drop_head(self: &Arc<Self>, state: &mut State) {
        let Some(length_max) = self.options().length_max else {
            return;
        };
        let mut excess = state.depth().saturating_sub(length_max);
        let keep_letters = self.options().dead_letter.is_some();
        for partition in 0..state.logs.len() {
            let index = partition_number(partition);
            while excess > 0 {
                // What waits for its letter holds the rest up: letters go on, and then so does
                // this.
                if keep_letters && state.ledger.dead() >= DEAD_MAX {
                    return;
                }
                if state.ledger.first_ready(index).is_some() {
                    match keep_letters {
                        true => state.ledger.bury_ready(index, DeadReason::Length),
                        false => state.ledger.drop_ready(index, 1),
                    }
                    excess -= 1;
                    continue;
                }
                let (next, end) = (state.ledger.next(index), state.visible_end(partition));
                if next >= end {
                    break;
                }
                match state.ledger.claim(index, excess.min(end - next)) {
                    Claim::Taken(count) => state.ledger.step_over(index, count),
                    Claim::Free(_) if keep_letters => {
                        state.ledger.bury_new(index, DeadReason::Length);
                        excess -= 1;
                    }
                    Claim::Free(count) => {
                        state.ledger.skip_to(index, next + count);
                        excess -= count;
                    }
                }
            }
        }
    }
}

fn source_of(state: &mut State, partition: usize, kind: Kind) -> &mut Source {
    match kind {
        Kind::New => &mut state.sources[partition],
        Kind::Requeued => &mut state.replays[partition],
    }
}

fn partition_number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn slot_number(slot: usize) -> u32 {
    u32::try_from(slot).unwrap_or(u32::MAX)
}

fn count32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl State {
    /// When a message has to be settled that is delivered to this consumer now.
    fn ack_due_ms(&self, slot: usize, now_ms: u64) -> u64 {
        let consumer = self.consumers.get(slot).and_then(Option::as_ref);
        consumer
            .and_then(|consumer| consumer.options.ack_wait_ms)
            .map_or(NEVER_MS, |wait| now_ms.saturating_add(wait))
    }
}
