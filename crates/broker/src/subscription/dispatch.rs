//! Dispatch: the way of messages from the log to a consumer's outbox.
//!
//! A message goes to a consumer with room in its window; `consumer/slots/choice.rs` says to which.
//! Requeued messages of a partition go before new ones. Everything happens under the subscription's
//! lock and waits for no disk: what memory and page cache do not have is read elsewhere, and
//! dispatched when it comes.
//!
//! Messages that no consumer takes are looked at by others afterwards: `length.rs` drops the head
//! of a queue that is too long, `expiry.rs` messages that have expired there.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use cloverleaf_log::{Batch, ColdRead, Offset, invariant};

use crate::consumer::shared_window::SharedWindow;
use crate::housekeeping::inflater::BatchName;
use crate::message::Delivery;
use crate::subscription::ledger::leases::Grant;
use crate::subscription::ledger::{Claim, ReadyRun};
use crate::subscription::reader::Front;
use crate::subscription::readers::Kind;
use crate::subscription::run::{Inspection, Pick, Run, Seek, Verdict};
use crate::subscription::{State, Subscription};

/// After a failed read the subscription asks again this much later.
const READ_RETRY_MS: u64 = 1_000;

/// Bytes of records that are stepped over in one go; then the housekeeping goes on with it, so that
/// a filter over a long backlog holds up nobody.
pub(crate) const STEPPED_BYTES_MAX: u64 = 1 << 20;

/// Dead messages that wait for their letters; more wait in the log.
pub(crate) const DEAD_MAX: u64 = 4_096;

/// Why there is nothing to see in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blank {
    /// There is nothing.
    Nothing,
    /// It is being read or inflated, or waits for something else: a dispatch follows.
    Waiting,
}

/// The front of a partition, as a dispatch finds it.
pub(crate) enum Sight {
    Run(Seen),
    /// Offsets without messages were stepped over: look again.
    SteppedOver,
    Blank(Blank),
}

/// Messages with one fate at the front of a partition.
pub(crate) struct Seen {
    pub(crate) partition: usize,
    pub(crate) kind: Kind,
    pub(crate) run: Run,
    pub(crate) batch: Batch,
    /// How often they were delivered so far.
    attempts: u16,
}

/// The outcome for the front of a partition.
pub(crate) enum Found {
    /// Messages were handed over.
    Delivered,
    /// Something was stepped over, so many bytes: look again.
    SteppedOver(u32),
    /// Nothing that can be delivered now.
    Blank(Blank),
}

/// A round of dispatch.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    now_us: u64,
    pub(crate) now_ms: u64,
    pub(crate) stepped_bytes: u64,
    /// A consumer has waited for what is there now.
    is_direct: bool,
}

impl Round {
    pub(crate) fn at(now_us: u64) -> Self {
        Self {
            now_us,
            now_ms: now_us / 1000,
            stepped_bytes: 0,
            is_direct: false,
        }
    }

    /// Whether enough was stepped over in one go.
    pub(crate) fn is_over(&self) -> bool {
        self.stepped_bytes >= STEPPED_BYTES_MAX
    }
}

/// For whom messages are looked for, and how many.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) slot: u32,
    pub(crate) quota: u64,
}

impl Subscription {
    /// Delivers as much as consumers have room for, and looks after what stays.
    pub(crate) fn dispatch(self: &Arc<Self>, state: &mut State) {
        self.dispatch_at(state, self.shared.clock.now_us());
    }

    /// As [`Self::dispatch`], for who knows the time.
    pub(crate) fn dispatch_at(self: &Arc<Self>, state: &mut State, now_us: u64) {
        if state.closed {
            return;
        }
        let mut round = Round::at(now_us);
        self.deliver_all(state, &mut round);
        if self.drops_head() {
            self.drop_head(state, &mut round);
        }
        if self.expires() {
            self.expire_heads(state, &mut round);
        }
        state.consumers.wake_pulls();
    }

    fn deliver_all(self: &Arc<Self>, state: &mut State, round: &mut Round) {
        let was_caught_up = std::mem::take(&mut state.caught_up);
        if state.paused {
            self.hungry.store(false, Ordering::Relaxed);
            return;
        }
        let is_hungry = self.hungry.load(Ordering::Relaxed);
        if was_caught_up && is_hungry && state.log.about_waiting(&state.ledger) == 0 {
            // Most acknowledgements: there is nothing to give. An append says so from now on, too.
            state.caught_up = true;
            return;
        }
        round.is_direct = was_caught_up && is_hungry;
        loop {
            let (log, ledger) = (&state.log, &state.ledger);
            let waiting = || log.about_waiting(ledger);
            let Some((slot, wanted)) = state.consumers.choose(self, waiting) else {
                state.consumers.wait_for_shared_windows(self);
                self.hungry.store(false, Ordering::Relaxed);
                return;
            };
            let found = match state.consumers.places_of(slot) {
                None => {
                    let quota = wanted;
                    self.deliver_some(state, Wanted { slot, quota }, round)
                }
                Some(shared) => match self.deliver_within(state, &shared, slot, wanted, round) {
                    Some(found) => found,
                    // Others took the last places in the shared window.
                    None => continue,
                },
            };
            let blank = match found {
                Found::Delivered => continue,
                Found::SteppedOver(_) => {
                    state.timers.retry_at(round.now_ms);
                    return;
                }
                Found::Blank(blank) => blank,
            };
            if self.hungry.swap(true, Ordering::SeqCst) {
                state.caught_up = blank == Blank::Nothing;
                return;
            }
            // An append may have come between the last look and `hungry`: look once more.
            fence(Ordering::SeqCst);
        }
    }

    /// As [`Self::deliver_some`], for a consumer that shares a window: places in it are taken
    /// first. `None`: there are none.
    fn deliver_within(
        self: &Arc<Self>,
        state: &mut State,
        shared: &Arc<SharedWindow>,
        slot: u32,
        wanted: u64,
        round: &mut Round,
    ) -> Option<Found> {
        // No more than there may be to deliver: others wait for what is reserved.
        let quota = shared.reserve(wanted.min(state.log.about_waiting(&state.ledger).max(1)));
        if quota == 0 {
            return None;
        }
        let before = state.consumers.in_flight_at(slot);
        let found = self.deliver_some(state, Wanted { slot, quota }, round);
        let used = u64::from(state.consumers.in_flight_at(slot).saturating_sub(before));
        if used < quota {
            shared.release(quota - used);
            state.consumers.window_freed(Some(shared.clone()));
        }
        Some(found)
    }

    /// Gives one run of messages to a consumer, from the partition whose turn it is.
    /// [`Found::SteppedOver`]: that was enough for one go.
    pub(crate) fn deliver_some(
        self: &Arc<Self>,
        state: &mut State,
        wanted: Wanted,
        round: &mut Round,
    ) -> Found {
        let count = state.log.count();
        let mut blank = Blank::Nothing;
        for turn in 0..count {
            let order = self.options().order;
            let partition = state.readers.partition_after(turn, order);
            loop {
                match self.look_into(state, partition, wanted, *round) {
                    Found::Delivered => {
                        state.readers.delivered_from(partition);
                        return Found::Delivered;
                    }
                    Found::SteppedOver(bytes) => {
                        round.stepped_bytes += u64::from(bytes);
                        if round.is_over() {
                            return Found::SteppedOver(0);
                        }
                    }
                    Found::Blank(Blank::Nothing) => break,
                    Found::Blank(Blank::Waiting) => {
                        blank = Blank::Waiting;
                        break;
                    }
                }
            }
        }
        Found::Blank(blank)
    }

    fn look_into(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        wanted: Wanted,
        round: Round,
    ) -> Found {
        match self.sight(state, partition, wanted.quota, round) {
            Sight::Run(seen) if seen.run.verdict == Verdict::Deliver => {
                invariant!(
                    u64::from(seen.run.count) <= wanted.quota,
                    "a consumer gets more messages than it has room for"
                );
                self.deliver(state, wanted.slot, seen, round);
                Found::Delivered
            }
            Sight::Run(seen) => self.dispose(state, &seen),
            Sight::SteppedOver => Found::SteppedOver(0),
            Sight::Blank(blank) => Found::Blank(blank),
        }
    }

    /// Looks at the front of a partition: up to `quota` messages, if they can be delivered.
    pub(crate) fn sight(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        quota: u64,
        round: Round,
    ) -> Sight {
        match state.ledger.first_ready(partition_number(partition)) {
            Some(ready) => self.sight_requeued(state, partition, ready, quota, round),
            None => self.sight_new(state, partition, quota, round),
        }
    }

    fn sight_requeued(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        ready: ReadyRun,
        quota: u64,
        mut round: Round,
    ) -> Sight {
        let index = partition_number(partition);
        if ready.first >= state.log.end(partition) {
            return Sight::Blank(Blank::Nothing);
        }
        let (batch, position) =
            match self.front(state, partition, Kind::Requeued, ready.first, round) {
                Ok(front) => front,
                Err(blank) => return Sight::Blank(blank),
            };
        let end = ready.first + u64::from(ready.count);
        if batch.base_offset() > ready.first {
            let gone = batch.base_offset().min(end) - ready.first;
            state.ledger.drop_ready(index, count32(gone));
            return Sight::SteppedOver;
        }
        // These have waited, whoever waits for them now.
        round.is_direct = false;
        let until = state.ledger.delivered_together(partition, ready.first, end);
        let seek = self.seek(ready.first, until, quota, false, round);
        match Inspection::new(self.options(), &self.filter).pick(&batch, position, seek) {
            Pick::Run(run) => Sight::Run(Seen {
                partition,
                kind: Kind::Requeued,
                run,
                batch,
                attempts: ready.attempts,
            }),
            Pick::Gap(to) => {
                let gone = to.min(end) - ready.first;
                state.ledger.drop_ready(index, count32(gone.max(1)));
                Sight::SteppedOver
            }
        }
    }

    fn sight_new(
        self: &Arc<Self>,
        state: &mut State,
        partition: usize,
        quota: u64,
        round: Round,
    ) -> Sight {
        let index = partition_number(partition);
        let next = state.ledger.next(index);
        let end = state.log.end(partition);
        if next >= end {
            return Sight::Blank(Blank::Nothing);
        }
        let free = match state.ledger.claim(index, end - next) {
            Claim::Taken(count) => {
                state.ledger.step_over(index, count);
                return Sight::SteppedOver;
            }
            Claim::Free(count) => count,
        };
        let (batch, position) = match self.front(state, partition, Kind::New, next, round) {
            Ok(front) => front,
            Err(blank) => return Sight::Blank(blank),
        };
        if batch.base_offset() > next {
            state.ledger.skip_to(index, batch.base_offset().min(end));
            return Sight::SteppedOver;
        }
        let until = state
            .ledger
            .delivered_together(partition, next, end.min(next + free));
        let seek = self.seek(next, until, quota, true, round);
        match Inspection::new(self.options(), &self.filter).pick(&batch, position, seek) {
            Pick::Run(run) => Sight::Run(Seen {
                partition,
                kind: Kind::New,
                run,
                batch,
                attempts: 0,
            }),
            Pick::Gap(to) => {
                state.ledger.skip_to(index, to.min(end));
                Sight::SteppedOver
            }
        }
    }

    fn deliver(self: &Arc<Self>, state: &mut State, slot: u32, seen: Seen, round: Round) {
        let (partition, run) = (seen.partition, seen.run);
        let index = partition_number(partition);
        let to = Grant {
            consumer: slot,
            due_ms: state.consumers.ack_due_ms(slot, round.now_ms),
            now_us: round.now_us,
            waited_ms: waited_ms(&seen.batch, round.now_ms),
        };
        match seen.kind {
            Kind::New => {
                self.mark(state, index, run.end(), round.now_ms);
                state.check_new(self, partition, &run);
                let (count, bytes) = (u64::from(run.count), run.body_bytes);
                state
                    .waiting_bytes
                    .leave(partition, run.first, bytes.into());
                state.ledger.take_new(index, count, to, bytes);
            }
            Kind::Requeued => {
                state.ledger.take_ready(index, run.count, to);
            }
        }
        state
            .readers
            .of(partition, seen.kind)
            .set_position(run.next_position, run.end());
        let earlier = state.ledger.marks()[partition].earlier();
        let delivery = Delivery {
            batch: seen.batch,
            position: run.position,
            partition: index,
            first: run.first,
            count: run.count,
            attempts: seen.attempts.saturating_add(1),
            redelivered: seen.attempts > 0 || run.first < earlier,
            bytes: run.bytes,
            delivered_us: round.now_us,
        };
        self.hand_over(state, slot, delivery);
    }

    /// Hands over a delivery and counts it.
    fn hand_over(&self, state: &mut State, slot: u32, delivery: Delivery) {
        let count = delivery.count;
        let bytes_max = u64::from(self.shared.options.outbox_bytes_max);
        if !state.consumers.hand_over(slot, delivery, bytes_max) {
            return;
        }
        self.counters
            .delivered
            .fetch_add(u64::from(count), Ordering::Relaxed);
    }

    fn seek(&self, from: Offset, end: Offset, quota: u64, is_new: bool, round: Round) -> Seek {
        Seek {
            from,
            end,
            quota,
            bytes_max: self.shared.options.outbox_bytes_max,
            now_ms: round.now_ms,
            is_new,
            is_direct: round.is_direct,
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
    ) -> Result<(Batch, u32), Blank> {
        let log = state.log.partition(partition).clone();
        let bytes_max = match kind {
            Kind::New => self.shared.options.read_bytes_max,
            // One message is wanted, its neighbours perhaps.
            Kind::Requeued => self.shared.options.read_bytes_max / 8,
        };
        let source = state.readers.of(partition, kind);
        if kind == Kind::Requeued {
            source.rewind_to(from);
        }
        loop {
            match source.front(&log, from, bytes_max, round.now_ms) {
                Front::Batch(batch, position) => return Ok((batch, position)),
                Front::Compressed(batch) => {
                    let name = (log.topic(), log.number(), batch.base_offset());
                    match self.shared.inflater.at_once(name, &batch) {
                        Some(inflated) => source.inflated(inflated),
                        None => {
                            self.start_inflating(partition, kind, name, batch);
                            return Err(Blank::Waiting);
                        }
                    }
                }
                Front::End => return Err(Blank::Nothing),
                Front::Wait => return Err(Blank::Waiting),
                Front::Start(read) => {
                    self.start_read(partition, kind, read);
                    return Err(Blank::Waiting);
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
            state.readers.of(partition, kind).inflated(inflated);
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
            let State {
                readers, timers, ..
            } = &mut *state;
            let source = readers.of(partition, kind);
            match result {
                Ok(batches) if !batches.is_empty() => source.arrived(batches),
                // Nothing readable there yet: as good as an error, for now.
                Ok(_) => {
                    source.failed(retry_ms);
                    timers.retry_at(retry_ms);
                }
                Err(error) => {
                    tracing::error!(?subscription, partition, %error, "cannot read from the log");
                    source.failed(retry_ms);
                    timers.retry_at(retry_ms);
                }
            }
            subscription.dispatch(&mut state);
            subscription.finish(state);
        }));
    }
}

pub(crate) fn partition_number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// How long a batch has waited since its last message was published.
fn waited_ms(batch: &Batch, now_ms: u64) -> u32 {
    let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
    // A batch without a time has a negative one.
    match batch.max_timestamp_ms() {
        published_ms @ 0.. => {
            u32::try_from(now_ms.saturating_sub(published_ms).max(0)).unwrap_or(u32::MAX)
        }
        _ => 0,
    }
}

fn count32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
