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
use crate::subscription::readers::ReaderKind;
use crate::subscription::run::{Inspection, Pick, Run, Seek, Verdict};
use crate::subscription::{Subscription, SubscriptionState};

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
    pub(crate) kind: ReaderKind,
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

/// A look for messages that can be delivered, under the subscription's lock.
pub(crate) struct DispatchRound<'a> {
    pub(super) subscription: &'a Arc<Subscription>,
    pub(super) state: &'a mut SubscriptionState,
    now_us: u64,
    pub(super) now_ms: u64,
    pub(super) stepped_bytes: u64,
    /// A consumer was waiting already when these messages came: they are delivered even if they
    /// expire at once (a TTL of 0).
    is_direct: bool,
}

impl Subscription {
    /// Delivers as much as consumers have room for, and looks after what stays.
    pub(crate) fn dispatch(self: &Arc<Self>, state: &mut SubscriptionState) {
        self.dispatch_at(state, self.shared.clock.now_us());
    }

    /// As [`Self::dispatch`], for who knows the time.
    pub(crate) fn dispatch_at(self: &Arc<Self>, state: &mut SubscriptionState, now_us: u64) {
        if !state.closed {
            DispatchRound::new(self, state, now_us).run();
        }
    }

    #[inline]
    fn inspection(&self) -> Inspection<'_> {
        Inspection::new(&self.options, &self.filter)
    }

    /// A batch that takes long to inflate is not inflated under the lock.
    fn start_inflating(
        self: &Arc<Self>,
        partition: usize,
        kind: ReaderKind,
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

    fn start_read(self: &Arc<Self>, partition: usize, kind: ReaderKind, read: ColdRead) {
        let subscription = Arc::downgrade(self);
        read.on_ready(Box::new(move |result| {
            let Some(subscription) = subscription.upgrade() else {
                return;
            };
            let retry_ms = subscription.shared.clock.now_ms() + READ_RETRY_MS;
            let mut state = subscription.state.lock();
            let SubscriptionState {
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

impl<'a> DispatchRound<'a> {
    pub(crate) fn new(
        subscription: &'a Arc<Subscription>,
        state: &'a mut SubscriptionState,
        now_us: u64,
    ) -> Self {
        Self {
            subscription,
            state,
            now_us,
            now_ms: now_us / 1000,
            stepped_bytes: 0,
            is_direct: false,
        }
    }

    fn run(&mut self) {
        self.deliver_all();
        if self.subscription.drops_head() {
            self.drop_head();
        }
        if self.subscription.expires() {
            self.expire_heads();
        }
        self.state.consumers.wake_pulls();
    }

    /// Whether enough was stepped over in one go.
    pub(super) fn is_over(&self) -> bool {
        self.stepped_bytes >= STEPPED_BYTES_MAX
    }

    fn deliver_all(&mut self) {
        let was_caught_up = std::mem::take(&mut self.state.caught_up);
        if self.state.paused {
            self.subscription.hungry.store(false, Ordering::Relaxed);
            return;
        }
        let is_hungry = self.subscription.hungry.load(Ordering::Relaxed);
        if was_caught_up && is_hungry && self.state.log.about_waiting(&self.state.ledger) == 0 {
            // The usual case of an acknowledgement: nothing to deliver. `hungry` stays set, so the
            // next append dispatches.
            self.state.caught_up = true;
            return;
        }
        self.is_direct = was_caught_up && is_hungry;
        loop {
            let (log, ledger) = (&self.state.log, &self.state.ledger);
            let waiting = || log.about_waiting(ledger);
            let Some((slot, wanted)) = self.state.consumers.choose(self.subscription, waiting)
            else {
                self.state
                    .consumers
                    .wait_for_shared_windows(self.subscription);
                self.subscription.hungry.store(false, Ordering::Relaxed);
                return;
            };
            let found = match self.state.consumers.places_of(slot) {
                None => {
                    let quota = wanted;
                    self.deliver_some(slot, quota)
                }
                Some(shared) => match self.deliver_within(&shared, slot, wanted) {
                    Some(found) => found,
                    // Others took the last places in the shared window.
                    None => continue,
                },
            };
            let blank = match found {
                Found::Delivered => continue,
                Found::SteppedOver(_) => {
                    self.state.timers.retry_at(self.now_ms);
                    return;
                }
                Found::Blank(blank) => blank,
            };
            if self.subscription.hungry.swap(true, Ordering::SeqCst) {
                self.state.caught_up = blank == Blank::Nothing;
                return;
            }
            // An append may have come between the last look and `hungry`: look once more.
            fence(Ordering::SeqCst);
        }
    }

    /// As [`Self::deliver_some`], for a consumer that shares a window: places in it are taken
    /// first. `None`: there are none.
    fn deliver_within(
        &mut self,
        shared: &Arc<SharedWindow>,
        slot: u32,
        wanted: u64,
    ) -> Option<Found> {
        // Reserve no more places than messages may be waiting: a reserved place is lost to the
        // other consumers of this window meanwhile.
        let quota =
            shared.reserve(wanted.min(self.state.log.about_waiting(&self.state.ledger).max(1)));
        if quota == 0 {
            return None;
        }
        let before = self.state.consumers.in_flight_at(slot);
        let found = self.deliver_some(slot, quota);
        let used = u64::from(
            self.state
                .consumers
                .in_flight_at(slot)
                .saturating_sub(before),
        );
        if used < quota {
            shared.release(quota - used);
            self.state.consumers.window_freed(Some(shared.clone()));
        }
        Some(found)
    }

    /// Gives one run of messages to a consumer, from the partition whose turn it is.
    /// [`Found::SteppedOver`]: that was enough for one go.
    pub(crate) fn deliver_some(&mut self, slot: u32, quota: u64) -> Found {
        let count = self.state.log.count();
        let mut blank = Blank::Nothing;
        for turn in 0..count {
            let order = self.subscription.options().order;
            let partition = self.state.readers.partition_after(turn, order);
            loop {
                match self.look_into(partition, slot, quota) {
                    Found::Delivered => {
                        self.state.readers.delivered_from(partition);
                        return Found::Delivered;
                    }
                    Found::SteppedOver(bytes) => {
                        self.stepped_bytes += u64::from(bytes);
                        if self.is_over() {
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

    fn look_into(&mut self, partition: usize, slot: u32, quota: u64) -> Found {
        match self.sight(partition, quota) {
            Sight::Run(seen) if seen.run.verdict == Verdict::Deliver => {
                invariant!(
                    u64::from(seen.run.count) <= quota,
                    "a consumer gets more messages than it has room for"
                );
                self.deliver(slot, seen);
                Found::Delivered
            }
            Sight::Run(seen) => self.dispose(&seen),
            Sight::SteppedOver => Found::SteppedOver(0),
            Sight::Blank(blank) => Found::Blank(blank),
        }
    }

    /// Looks at the front of a partition: up to `quota` messages, if they can be delivered.
    pub(crate) fn sight(&mut self, partition: usize, quota: u64) -> Sight {
        match self.state.ledger.first_ready(partition_number(partition)) {
            Some(ready) => self.sight_requeued(partition, ready, quota),
            None => self.sight_new(partition, quota),
        }
    }

    fn sight_requeued(&mut self, partition: usize, ready: ReadyRun, quota: u64) -> Sight {
        let index = partition_number(partition);
        if ready.first >= self.state.log.end(partition) {
            return Sight::Blank(Blank::Nothing);
        }
        let (batch, position) = match self.front(partition, ReaderKind::Requeued, ready.first) {
            Ok(front) => front,
            Err(blank) => return Sight::Blank(blank),
        };
        let end = ready.first + u64::from(ready.count);
        if batch.base_offset() > ready.first {
            let gone = batch.base_offset().min(end) - ready.first;
            self.state.ledger.drop_ready(index, count32(gone));
            return Sight::SteppedOver;
        }
        let until = self
            .state
            .ledger
            .delivered_together(partition, ready.first, end);
        let seek = self.seek(ready.first, until, quota, false);
        match self.subscription.inspection().pick(&batch, position, seek) {
            Pick::Run(run) => Sight::Run(Seen {
                partition,
                kind: ReaderKind::Requeued,
                run,
                batch,
                attempts: ready.attempts,
            }),
            Pick::Gap(to) => {
                let gone = to.min(end) - ready.first;
                self.state.ledger.drop_ready(index, count32(gone.max(1)));
                Sight::SteppedOver
            }
        }
    }

    fn sight_new(&mut self, partition: usize, quota: u64) -> Sight {
        let index = partition_number(partition);
        let next = self.state.ledger.next(index);
        let end = self.state.log.end(partition);
        if next >= end {
            return Sight::Blank(Blank::Nothing);
        }
        let free = match self.state.ledger.claim(index, end - next) {
            Claim::Taken(count) => {
                self.state.ledger.step_over(index, count);
                return Sight::SteppedOver;
            }
            Claim::Free(count) => count,
        };
        let (batch, position) = match self.front(partition, ReaderKind::New, next) {
            Ok(front) => front,
            Err(blank) => return Sight::Blank(blank),
        };
        if batch.base_offset() > next {
            self.state
                .ledger
                .skip_to(index, batch.base_offset().min(end));
            return Sight::SteppedOver;
        }
        let until = self
            .state
            .ledger
            .delivered_together(partition, next, end.min(next + free));
        let seek = self.seek(next, until, quota, true);
        match self.subscription.inspection().pick(&batch, position, seek) {
            Pick::Run(run) => Sight::Run(Seen {
                partition,
                kind: ReaderKind::New,
                run,
                batch,
                attempts: 0,
            }),
            Pick::Gap(to) => {
                self.state.ledger.skip_to(index, to.min(end));
                Sight::SteppedOver
            }
        }
    }

    fn deliver(&mut self, slot: u32, seen: Seen) {
        let (partition, run) = (seen.partition, seen.run);
        let index = partition_number(partition);
        let to = Grant {
            consumer: slot,
            due_ms: self.state.consumers.ack_due_ms(slot, self.now_ms),
            now_us: self.now_us,
            waited_ms: waited_ms(&seen.batch, self.now_ms),
        };
        match seen.kind {
            ReaderKind::New => {
                let now_ms = self.now_ms;
                self.subscription.mark(self.state, index, run.end(), now_ms);
                self.state.check_new(self.subscription, partition, &run);
                let (count, bytes) = (u64::from(run.count), run.body_bytes);
                self.state
                    .waiting_bytes
                    .leave(partition, run.first, bytes.into());
                self.state.ledger.take_new(index, count, to, bytes);
            }
            ReaderKind::Requeued => {
                self.state.ledger.take_ready(index, run.count, to);
            }
        }
        self.state
            .readers
            .of(partition, seen.kind)
            .set_position(run.next_position, run.end());
        let earlier = self.state.ledger.marks()[partition].earlier();
        let delivery = Delivery {
            batch: seen.batch,
            position: run.position,
            partition: index,
            first: run.first,
            count: run.count,
            attempts: seen.attempts.saturating_add(1),
            redelivered: seen.attempts > 0 || run.first < earlier,
            bytes: run.bytes,
            delivered_us: self.now_us,
        };
        self.hand_over(slot, delivery);
    }

    /// Hands over a delivery and counts it.
    fn hand_over(&mut self, slot: u32, delivery: Delivery) {
        let count = delivery.count;
        let bytes_max = u64::from(self.subscription.shared.options.outbox_bytes_max);
        if !self.state.consumers.hand_over(slot, delivery, bytes_max) {
            return;
        }
        self.subscription
            .counters
            .delivered
            .fetch_add(u64::from(count), Ordering::Relaxed);
    }

    fn seek(&self, from: Offset, end: Offset, quota: u64, is_new: bool) -> Seek {
        Seek {
            from,
            end,
            quota,
            bytes_max: self.subscription.shared.options.outbox_bytes_max,
            now_ms: self.now_ms,
            is_new,
            // Requeued messages have been in the queue before, so their TTL applies even if a
            // consumer is waiting now.
            is_direct: is_new && self.is_direct,
        }
    }

    /// The batch that holds or follows `from`, unless it has to be waited for.
    fn front(
        &mut self,
        partition: usize,
        kind: ReaderKind,
        from: Offset,
    ) -> Result<(Batch, u32), Blank> {
        let log = self.state.log.partition(partition).clone();
        let bytes_max = match kind {
            ReaderKind::New => self.subscription.shared.options.read_bytes_max,
            // One message is wanted, its neighbours perhaps.
            ReaderKind::Requeued => self.subscription.shared.options.read_bytes_max / 8,
        };
        let source = self.state.readers.of(partition, kind);
        if kind == ReaderKind::Requeued {
            source.rewind_to(from);
        }
        loop {
            match source.front(&log, from, bytes_max, self.now_ms) {
                Front::Batch(batch, position) => return Ok((batch, position)),
                Front::Compressed(batch) => {
                    let name = (log.topic(), log.number(), batch.base_offset());
                    match self.subscription.shared.inflater.at_once(name, &batch) {
                        Some(inflated) => source.inflated(inflated),
                        None => {
                            self.subscription
                                .start_inflating(partition, kind, name, batch);
                            return Err(Blank::Waiting);
                        }
                    }
                }
                Front::End => return Err(Blank::Nothing),
                Front::Wait => return Err(Blank::Waiting),
                Front::Start(read) => {
                    self.subscription.start_read(partition, kind, read);
                    return Err(Blank::Waiting);
                }
            }
        }
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
