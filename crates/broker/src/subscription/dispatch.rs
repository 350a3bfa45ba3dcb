//! Dispatch: moves messages from the log to a consumer's outbox.
//!
//! Each run of messages goes to a consumer with free slots in its window;
//! `consumer/slots/choice.rs` selects the consumer. Requeued messages of a partition go before new
//! ones. Dispatch runs under the subscription's lock and never waits for the disk: batches that are
//! neither in the log's memory nor in the page cache are read by a reader thread, and the end of
//! that read dispatches again.
//!
//! Messages that no consumer takes are examined afterwards: `length.rs` drops the oldest messages
//! of a queue that is too long, and `expiry.rs` drops expired messages at the head.

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

/// Delay before a failed read is tried again.
const READ_RETRY_MS: u64 = 1_000;

/// One dispatch steps over at most this many bytes of records. The housekeeping thread then
/// continues, so that a filter over a long backlog does not hold the lock for long.
pub(crate) const STEPPED_BYTES_MAX: u64 = 1 << 20;

/// Upper limit of messages whose dead letters are not written yet. When it is reached, dying
/// messages stay in the queue.
pub(crate) const DEAD_MAX: u64 = 4_096;

/// Why the head of a partition offers no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blank {
    /// The partition has no further message.
    Nothing,
    /// The head is being read or inflated, or something else must finish first. A dispatch follows
    /// then.
    Waiting,
}

/// The head of a partition, as one scan finds it.
pub(crate) enum Sight {
    Run(Seen),
    /// Offsets without messages were stepped over: scan again.
    SteppedOver,
    Blank(Blank),
}

/// A run of messages with the same verdict at the head of a partition.
pub(crate) struct Seen {
    pub(crate) partition: usize,
    pub(crate) kind: ReaderKind,
    pub(crate) run: Run,
    pub(crate) batch: Batch,
    /// How often these messages were delivered before.
    attempts: u16,
}

/// The result of one attempt to deliver from the head of a partition.
pub(crate) enum Found {
    /// Messages were put into a consumer's outbox.
    Delivered,
    /// Messages or empty offsets were stepped over, with this many bytes: try again.
    SteppedOver(u32),
    /// No message can be delivered now.
    Blank(Blank),
}

/// One dispatch of a subscription, under its lock.
pub(crate) struct DispatchRound<'a> {
    pub(super) subscription: &'a Arc<Subscription>,
    pub(super) state: &'a mut SubscriptionState,
    now_us: u64,
    pub(super) now_ms: u64,
    pub(super) stepped_bytes: u64,
    /// A consumer was idle when these messages were published: they are delivered even if they
    /// expire at once (a TTL of 0).
    is_direct: bool,
}

impl Subscription {
    /// Delivers as many messages as consumers' windows allow, then drops excess and expired
    /// messages from the head.
    pub(crate) fn dispatch(self: &Arc<Self>, state: &mut SubscriptionState) {
        self.dispatch_at(state, self.shared.clock.now_us());
    }

    /// As [`Self::dispatch`], with a time that the caller has read already.
    pub(crate) fn dispatch_at(self: &Arc<Self>, state: &mut SubscriptionState, now_us: u64) {
        if !state.closed {
            DispatchRound::new(self, state, now_us).run();
        }
    }

    #[inline]
    fn inspection(&self) -> Inspection<'_> {
        Inspection::new(&self.options, &self.filter)
    }

    /// Inflates a batch on the inflater's thread, because it is too large to inflate under the
    /// lock.
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
                // The log has nothing readable at this offset yet: retry as after an error.
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

    /// Whether this dispatch has stepped over as many bytes as it may ([`STEPPED_BYTES_MAX`]).
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
            // The usual case after an acknowledgement: nothing to deliver. `hungry` stays set, so
            // the next append dispatches.
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
                    // Other consumers took the last slots of the shared window.
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
            // An append may have happened after the scan and before `hungry` was set: scan once
            // more.
            fence(Ordering::SeqCst);
        }
    }

    /// As [`Self::deliver_some`], for a consumer that shares a window: reserves slots in the shared
    /// window first. `None`: the shared window is full.
    fn deliver_within(
        &mut self,
        shared: &Arc<SharedWindow>,
        slot: u32,
        wanted: u64,
    ) -> Option<Found> {
        // Reserve no more slots than messages may be waiting, because other consumers cannot use a
        // reserved slot meanwhile.
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

    /// Delivers one run of messages to a consumer, from the partition whose turn it is. Returns
    /// [`Found::SteppedOver`] when this dispatch has stepped over enough.
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

    /// Scans the head of a partition: finds the next run, of up to `quota` messages if they can be
    /// delivered.
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

    /// Puts a delivery into the consumer's outbox and counts it.
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

    /// The batch that contains `from` or is the next one after it. `Err`: there is none, or it must
    /// be read or inflated first.
    fn front(
        &mut self,
        partition: usize,
        kind: ReaderKind,
        from: Offset,
    ) -> Result<(Batch, u32), Blank> {
        let log = self.state.log.partition(partition).clone();
        let bytes_max = match kind {
            ReaderKind::New => self.subscription.shared.options.read_bytes_max,
            // Requeued messages lie scattered: the read wants one message and perhaps its
            // neighbours.
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

/// Milliseconds since the last message of the batch was published.
fn waited_ms(batch: &Batch, now_ms: u64) -> u32 {
    let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
    // The log marks a batch without a timestamp by a negative one.
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
