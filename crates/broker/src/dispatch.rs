//! Who gets the next messages: the way from the log to a consumer's outbox.
//!
//! A message goes to a consumer with room in its window; among those of the highest priority to the
//! one with the fewest messages in flight, in turn where that is a tie. Requeued messages of a
//! partition go before new ones. Everything happens under the subscription's lock and touches no
//! disk.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use cloverleaf_log::{Batch, ColdRead, Offset, Record, RecordCursor};

use crate::ledger::Claim;
use crate::ledger::leases::NEVER_MS;
use crate::message::{DeadReason, Delivery, headers};
use crate::options::PartitionOrder;
use crate::source::{Front, Source};
use crate::subscription::{State, Subscription};

/// After a failed read the subscription asks again this much later.
const READ_RETRY_MS: u64 = 1_000;

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
    /// Something was stepped over: look again.
    SteppedOver,
    /// The partition has nothing now.
    Nothing,
}

/// What a look at one record decides.
enum Verdict {
    Deliver,
    Unwanted,
    Expired,
    Later(u64),
}

/// The instant at which a round of dispatch happens.
#[derive(Clone, Copy)]
struct Now {
    us: u64,
    ms: u64,
}

impl Subscription {
    /// Delivers as much as consumers have room for.
    pub(crate) fn dispatch(self: &Arc<Self>, state: &mut State) {
        if state.closed {
            return;
        }
        let us = self.shared.clock.now_us();
        let now = Now { us, ms: us / 1000 };
        if self.drops_head() {
            self.drop_head(state);
        }
        if state.paused {
            self.hungry.store(false, Ordering::Relaxed);
            return;
        }
        loop {
            let Some((slot, quota)) = state.choose(self.options().single_active) else {
                self.hungry.store(false, Ordering::Relaxed);
                return;
            };
            if self.deliver_some(state, slot, quota, now) {
                continue;
            }
            if self.hungry.swap(true, Ordering::SeqCst) {
                return;
            }
            // An append may have come between the last look and `hungry`: look once more.
            fence(Ordering::SeqCst);
        }
    }

    /// Gives one run of at most `quota` messages to a consumer, from the partition whose turn it
    /// is.
    fn deliver_some(
        self: &Arc<Self>,
        state: &mut State,
        slot: usize,
        quota: u64,
        now: Now,
    ) -> bool {
        let count = state.logs.len();
        for turn in 0..count {
            let partition = match self.options().order {
                PartitionOrder::RoundRobin => (state.rotation.partition + turn) % count,
                PartitionOrder::HighestFirst => count - 1 - turn,
            };
            loop {
                match self.look_into(state, partition, slot, quota, now) {
                    Found::Delivered => {
                        state.rotation.partition = (partition + 1) % count;
                        return true;
                    }
                    Found::SteppedOver => {}
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
        slot: usize,
        quota: u64,
        now: Now,
    ) -> Found {
        let index = partition_number(partition);
        match state.ledger.first_ready(index) {
            Some(_) => self.look_into_requeued(state, partition, slot, quota, now),
            None => self.look_into_new(state, partition, slot, quota, now),
        }
    }

    fn look_into_requeued(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        slot: usize,
        quota: u64,
        now: Now,
    ) -> Found {
        let index = partition_number(partition);
        let Some(run) = state.ledger.first_ready(index) else {
            return Found::Nothing;
        };
        if run.first >= state.visible_end(partition) {
            return Found::Nothing;
        }
        let Some((batch, position)) = self.front(state, partition, Kind::Requeued, run.first, now)
        else {
            return Found::Nothing;
        };
        if batch.base_offset() > run.first {
            let gone = (batch.base_offset() - run.first).min(u64::from(run.count));
            state.ledger.drop_ready(index, count32(gone));
            return Found::SteppedOver;
        }
        let records = RecordCursor::at(&batch, position);
        let seek = Seek {
            from: run.first,
            end: run.first + u64::from(run.count),
            quota,
        };
        let picked = match self.pick(state, records, &batch, seek, now) {
            Pick::Run(picked) => picked,
            Pick::Gap(to) => {
                let gone = to.min(seek.end) - run.first;
                state.ledger.drop_ready(index, count32(gone.max(1)));
                return Found::SteppedOver;
            }
            Pick::Dead(reason) => {
                state.ledger.bury_ready(index, reason);
                return Found::SteppedOver;
            }
            // Filters and schedules had their say at the first delivery.
            Pick::Unwanted | Pick::Later(_) => {
                state.ledger.drop_ready(index, 1);
                return Found::SteppedOver;
            }
        };
        let due_ms = state.ack_due_ms(slot, now);
        state
            .ledger
            .take_ready(index, picked.count, slot_number(slot), due_ms, now.us);
        state.replays[partition].set_position(picked.next_position);
        self.hand_over(
            state,
            slot,
            batch,
            picked,
            index,
            run.attempts.saturating_add(1),
            now,
        );
        Found::Delivered
    }

    fn look_into_new(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        slot: usize,
        quota: u64,
        now: Now,
    ) -> Found {
        let index = partition_number(partition);
        let next = state.ledger.next(index);
        let end = state.visible_end(partition);
        if next >= end {
            return Found::Nothing;
        }
        let free = match state.ledger.claim(index, quota) {
            Claim::Taken(count) => {
                state.ledger.step_over(index, count);
                return Found::SteppedOver;
            }
            Claim::Free(count) => count,
        };
        let Some((batch, position)) = self.front(state, partition, Kind::New, next, now) else {
            return Found::Nothing;
        };
        if batch.base_offset() > next {
            state.ledger.skip_to(index, batch.base_offset().min(end));
            return Found::SteppedOver;
        }
        let records = RecordCursor::at(&batch, position);
        let seek = Seek {
            from: next,
            end: end.min(next + free),
            quota: free,
        };
        let picked = match self.pick(state, records, &batch, seek, now) {
            Pick::Run(picked) => picked,
            Pick::Gap(to) => {
                state.ledger.skip_to(index, to.min(end));
                return Found::SteppedOver;
            }
            Pick::Unwanted => {
                state.ledger.skip_to(index, next + 1);
                return Found::SteppedOver;
            }
            Pick::Dead(reason) => {
                state.ledger.bury_new(index, reason);
                return Found::SteppedOver;
            }
            Pick::Later(due_ms) => {
                state.ledger.delay_new(index, due_ms);
                return Found::SteppedOver;
            }
        };
        let due_ms = state.ack_due_ms(slot, now);
        let count = u64::from(picked.count);
        state
            .ledger
            .take_new(index, count, slot_number(slot), due_ms, now.us);
        state.sources[partition].set_position(picked.next_position);
        self.hand_over(state, slot, batch, picked, index, 1, now);
        Found::Delivered
    }

    /// The batch that holds or follows `from`, unless it has to be waited for.
    fn front(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        kind: Kind,
        from: Offset,
        now: Now,
    ) -> Option<(Batch, u32)> {
        let log = state.logs[partition].clone();
        let bytes_max = match kind {
            Kind::New => self.shared.options.read_bytes_max,
            // One message is wanted, its neighbours perhaps.
            Kind::Requeued => self.shared.options.read_bytes_max / 8,
        };
        let source = match kind {
            Kind::New => &mut state.sources[partition],
            Kind::Requeued => &mut state.replays[partition],
        };
        if kind == Kind::Requeued {
            source.rewind_to(from);
        }
        match source.front(&log, from, bytes_max, now.ms) {
            Front::Batch(batch, position) => Some((batch, position)),
            Front::End | Front::Wait => None,
            Front::Start(read) => {
                self.start_read(partition, kind, read);
                None
            }
        }
    }

    fn start_read(self: &Arc<Self>, partition: usize, kind: Kind, read: ColdRead) {
        let subscription = Arc::downgrade(self);
        read.on_ready(Box::new(move |result| {
            let Some(subscription) = subscription.upgrade() else {
                return;
            };
            let now_ms = subscription.shared.clock.now_ms();
            let mut state = subscription.state.lock();
            let source: &mut Source = match kind {
                Kind::New => &mut state.sources[partition],
                Kind::Requeued => &mut state.replays[partition],
            };
            match result {
                Ok(batches) if !batches.is_empty() => source.arrived(batches),
                // Nothing readable there yet: as good as an error, for now.
                Ok(_) => {
                    source.failed(now_ms + READ_RETRY_MS);
                    state.retry_ms = now_ms + READ_RETRY_MS;
                }
                Err(error) => {
                    tracing::error!(?subscription, partition, %error, "cannot read from the log");
                    source.failed(now_ms + READ_RETRY_MS);
                    state.retry_ms = now_ms + READ_RETRY_MS;
                }
            }
            subscription.dispatch(&mut state);
            subscription.finish(state);
        }));
    }

    /// Picks consecutive messages from `seek.from` on, as far as they are alike.
    fn pick(
        &self,
        state: &State,
        mut records: RecordCursor<'_>,
        batch: &Batch,
        seek: Seek,
        now: Now,
    ) -> Pick {
        let inspects = self.inspects();
        let mut picked = Picked::default();
        loop {
            let position = records.position();
            let step = if inspects {
                records.next_record().map(|next| {
                    next.map(|(offset, record)| {
                        let bytes = records.position() - position;
                        (
                            offset,
                            bytes,
                            self.verdict(state, &record, offset, seek, now),
                        )
                    })
                })
            } else {
                records
                    .skip_record()
                    .map(|next| next.map(|(offset, bytes)| (offset, bytes, Verdict::Deliver)))
            };
            let (offset, bytes, verdict) = match step {
                Ok(Some(step)) => step,
                Ok(None) => return picked.or(Pick::Gap(batch.end_offset())),
                Err(error) => {
                    // Its checksum holds, so its producer wrote it like this.
                    tracing::error!(subscription = ?self, offset = seek.from, %error,
                        "a batch holds a record that cannot be read; its rest is skipped");
                    return picked.or(Pick::Gap(batch.end_offset()));
                }
            };
            if offset < seek.from {
                continue;
            }
            let expected = seek.from + u64::from(picked.count);
            if offset != expected {
                return picked.or(Pick::Gap(offset));
            }
            if offset >= seek.end {
                return picked.or(Pick::Gap(offset));
            }
            match verdict {
                Verdict::Deliver => {}
                Verdict::Unwanted => return picked.or(Pick::Unwanted),
                Verdict::Expired => return picked.or(Pick::Dead(DeadReason::Expired)),
                Verdict::Later(due_ms) => return picked.or(Pick::Later(due_ms)),
            }
            if picked.count == 0 {
                (picked.position, picked.first) = (position, offset);
            }
            picked.count += 1;
            picked.bytes = picked.bytes.saturating_add(bytes);
            picked.next_position = records.position();
            if u64::from(picked.count) >= seek.quota
                || offset + 1 >= seek.end
                || picked.bytes >= self.shared.options.outbox_bytes_max
            {
                return Pick::Run(picked);
            }
        }
    }

    /// Whether records have to be looked at before they are delivered.
    fn inspects(&self) -> bool {
        let options = self.options();
        options.expires || options.scheduled || !options.subjects.is_empty()
    }

    fn verdict(
        &self,
        state: &State,
        record: &Record<'_>,
        offset: Offset,
        seek: Seek,
        now: Now,
    ) -> Verdict {
        if offset < seek.from {
            return Verdict::Deliver;
        }
        let header = |name: &[u8]| record.headers.value_of(name).flatten();
        let options = self.options();
        if !state.filter.passes_all() && !state.filter.matches(header(headers::NATS_SUBJECT)) {
            return Verdict::Unwanted;
        }
        if options.expires && time_of(header(headers::EXPIRES)).is_some_and(|at| at <= now.ms) {
            return Verdict::Expired;
        }
        if options.scheduled
            && let Some(due_ms) = time_of(header(headers::SCHEDULE_DUE))
            && due_ms > now.ms
        {
            return Verdict::Later(due_ms);
        }
        Verdict::Deliver
    }

    #[allow(clippy::too_many_arguments)] // the parts of a delivery
    fn hand_over(
        &self,
        state: &mut State,
        slot: usize,
        batch: Batch,
        picked: Picked,
        partition: u32,
        attempts: u16,
        now: Now,
    ) {
        let delivery = Delivery {
            first: picked.first,
            batch,
            position: picked.position,
            partition,
            count: picked.count,
            attempts,
            bytes: picked.bytes,
            delivered_us: now.us,
        };
        let bytes_max = u64::from(self.shared.options.outbox_bytes_max);
        let Some(consumer) = state.consumers.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        consumer.in_flight += picked.count;
        consumer.delivered += u64::from(picked.count);
        let (full, waker) = consumer.outbox.push(delivery, bytes_max);
        consumer.stalled = full;
        state.wakers.extend(waker);
        state.rotation.consumer = slot;
        self.count_delivered(picked.count);
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
                if state.ledger.first_ready(index).is_some() {
                    state.ledger.bury_ready(index, DeadReason::Length);
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

/// Which records are looked for in a batch.
#[derive(Clone, Copy)]
struct Seek {
    from: Offset,
    /// Not at or above this.
    end: Offset,
    /// Not more than this many.
    quota: u64,
}

/// Consecutive records of one batch.
#[derive(Default, Clone, Copy)]
struct Picked {
    position: u32,
    next_position: u32,
    count: u32,
    bytes: u32,
    first: Offset,
}

impl Picked {
    fn or(self, otherwise: Pick) -> Pick {
        if self.count > 0 {
            Pick::Run(self)
        } else {
            otherwise
        }
    }
}

/// What stands at the offset that was looked for.
enum Pick {
    Run(Picked),
    /// No message below this offset.
    Gap(Offset),
    Unwanted,
    Dead(DeadReason),
    Later(u64),
}

fn time_of(header: Option<&[u8]>) -> Option<u64> {
    header
        .and_then(|value| value.try_into().ok())
        .map(u64::from_be_bytes)
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
    fn ack_due_ms(&self, slot: usize, now: Now) -> u64 {
        let consumer = self.consumers.get(slot).and_then(Option::as_ref);
        consumer
            .and_then(|consumer| consumer.options.ack_wait_ms)
            .map_or(NEVER_MS, |wait| now.ms.saturating_add(wait))
    }
}
