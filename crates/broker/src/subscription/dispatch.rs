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
use crate::subscription::ledger::leases::LeaseGrant;
use crate::subscription::ledger::{NextSpan, ReadyRun};
use crate::subscription::reader::ReaderHead;
use crate::subscription::readers::ReaderKind;
use crate::subscription::run::{RecordInspector, Run, RunSearch, SearchResult, Verdict};
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
pub(crate) enum Unavailable {
    /// The partition has no further message.
    Empty,
    /// The head is being read or inflated, or something else must finish first. A dispatch follows
    /// then.
    Pending,
}

/// The head of a partition, as one scan finds it.
pub(crate) enum HeadScan {
    Run(HeadRun),
    /// Offsets without messages were stepped over: scan again.
    SteppedOver,
    Unavailable(Unavailable),
}

/// A run of messages with the same verdict at the head of a partition.
pub(crate) struct HeadRun {
    pub(crate) partition: usize,
    pub(crate) kind: ReaderKind,
    pub(crate) run: Run,
    pub(crate) batch: Batch,
    /// How often these messages were delivered before.
    attempts: u16,
}

/// The result of one attempt to deliver from the head of a partition.
pub(crate) enum DispatchStep {
    /// Messages were put into a consumer's outbox.
    Delivered,
    /// Messages or empty offsets were stepped over, with this many bytes: try again.
    SteppedOver(u32),
    /// No message can be delivered now.
    Unavailable(Unavailable),
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
    fn inspector(&self) -> RecordInspector<'_> {
        RecordInspector::new(&self.options, &self.filter)
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
                Ok(batches) if !batches.is_empty() => source.read_succeeded(batches),
                // The log has nothing readable at this offset yet: retry as after an error.
                Ok(_) => {
                    source.read_failed(retry_ms);
                    timers.retry_at(retry_ms);
                }
                Err(error) => {
                    tracing::error!(?subscription, partition, %error, "cannot read from the log");
                    source.read_failed(retry_ms);
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
    pub(super) fn is_step_limit_reached(&self) -> bool {
        self.stepped_bytes >= STEPPED_BYTES_MAX
    }

    fn deliver_all(&mut self) {
        let was_caught_up = std::mem::take(&mut self.state.caught_up);
        if self.state.paused {
            self.subscription
                .dispatch_on_append
                .store(false, Ordering::Relaxed);
            return;
        }
        let dispatches_on_append = self.subscription.dispatch_on_append.load(Ordering::Relaxed);
        if was_caught_up
            && dispatches_on_append
            && self.state.log.waiting_at_most(&self.state.ledger) == 0
        {
            // The usual case after an acknowledgement: nothing to deliver. `dispatch_on_append`
            // stays set, so the next append dispatches.
            self.state.caught_up = true;
            return;
        }
        self.is_direct = was_caught_up && dispatches_on_append;
        loop {
            let (log, ledger) = (&self.state.log, &self.state.ledger);
            let waiting = || log.waiting_at_most(ledger);
            let Some((slot, wanted)) = self.state.consumers.choose(self.subscription, waiting)
            else {
                self.state
                    .consumers
                    .wait_for_shared_windows(self.subscription);
                self.subscription
                    .dispatch_on_append
                    .store(false, Ordering::Relaxed);
                return;
            };
            let found = match self.state.consumers.charged_window_of(slot) {
                None => {
                    let quota = wanted;
                    self.deliver_run(slot, quota)
                }
                Some(shared) => match self.deliver_in_shared_window(&shared, slot, wanted) {
                    Some(found) => found,
                    // Other consumers took the last slots of the shared window.
                    None => continue,
                },
            };
            let unavailable = match found {
                DispatchStep::Delivered => continue,
                DispatchStep::SteppedOver(_) => {
                    self.state.timers.retry_at(self.now_ms);
                    return;
                }
                DispatchStep::Unavailable(unavailable) => unavailable,
            };
            if self
                .subscription
                .dispatch_on_append
                .swap(true, Ordering::SeqCst)
            {
                self.state.caught_up = unavailable == Unavailable::Empty;
                return;
            }
            // An append may have happened after the scan and before `dispatch_on_append` was set:
            // scan once more.
            fence(Ordering::SeqCst);
        }
    }

    /// As [`Self::deliver_run`], for a consumer that shares a window: reserves slots in the shared
    /// window first. `None`: the shared window is full.
    fn deliver_in_shared_window(
        &mut self,
        shared: &Arc<SharedWindow>,
        slot: u32,
        wanted: u64,
    ) -> Option<DispatchStep> {
        // Reserve at most as many slots as there may be waiting messages (but at least one),
        // because other consumers cannot use a reserved slot meanwhile.
        let quota =
            shared.reserve(wanted.min(self.state.log.waiting_at_most(&self.state.ledger).max(1)));
        if quota == 0 {
            return None;
        }
        let before = self.state.consumers.in_flight_at(slot);
        let found = self.deliver_run(slot, quota);
        let used = u64::from(
            self.state
                .consumers
                .in_flight_at(slot)
                .saturating_sub(before),
        );
        if used < quota {
            shared.release(quota - used);
            self.state.consumers.window_released(Some(shared.clone()));
        }
        Some(found)
    }

    /// Delivers one run of messages to a consumer, from the partition whose turn it is. Returns
    /// [`DispatchStep::SteppedOver`] when this dispatch has stepped over enough.
    pub(crate) fn deliver_run(&mut self, slot: u32, quota: u64) -> DispatchStep {
        let count = self.state.log.count();
        let mut unavailable = Unavailable::Empty;
        for turn in 0..count {
            let order = self.subscription.options().order;
            let partition = self.state.readers.partition_after(turn, order);
            loop {
                match self.deliver_from(partition, slot, quota) {
                    DispatchStep::Delivered => {
                        self.state.readers.delivered_from(partition);
                        return DispatchStep::Delivered;
                    }
                    DispatchStep::SteppedOver(bytes) => {
                        self.stepped_bytes += u64::from(bytes);
                        if self.is_step_limit_reached() {
                            return DispatchStep::SteppedOver(0);
                        }
                    }
                    DispatchStep::Unavailable(Unavailable::Empty) => break,
                    DispatchStep::Unavailable(Unavailable::Pending) => {
                        unavailable = Unavailable::Pending;
                        break;
                    }
                }
            }
        }
        DispatchStep::Unavailable(unavailable)
    }

    fn deliver_from(&mut self, partition: usize, slot: u32, quota: u64) -> DispatchStep {
        match self.scan_head(partition, quota) {
            HeadScan::Run(head) if head.run.verdict == Verdict::Deliver => {
                invariant!(
                    u64::from(head.run.count) <= quota,
                    "a consumer gets more messages than its window allows"
                );
                self.deliver(slot, head);
                DispatchStep::Delivered
            }
            HeadScan::Run(head) => self.apply_verdict(&head),
            HeadScan::SteppedOver => DispatchStep::SteppedOver(0),
            HeadScan::Unavailable(unavailable) => DispatchStep::Unavailable(unavailable),
        }
    }

    /// Finds the next run at the head of a partition: requeued messages first, then new ones.
    /// `quota` limits only a run that can be delivered.
    pub(crate) fn scan_head(&mut self, partition: usize, quota: u64) -> HeadScan {
        match self.state.ledger.first_ready(partition_number(partition)) {
            Some(ready) => self.scan_requeued(partition, ready, quota),
            None => self.scan_new(partition, quota),
        }
    }

    fn scan_requeued(&mut self, partition: usize, ready: ReadyRun, quota: u64) -> HeadScan {
        let index = partition_number(partition);
        if ready.first >= self.state.log.end(partition) {
            return HeadScan::Unavailable(Unavailable::Empty);
        }
        let (batch, position) = match self.head_batch(partition, ReaderKind::Requeued, ready.first)
        {
            Ok(found) => found,
            Err(unavailable) => return HeadScan::Unavailable(unavailable),
        };
        let end = ready.first + u64::from(ready.count);
        if batch.base_offset() > ready.first {
            let gone = batch.base_offset().min(end) - ready.first;
            self.state.ledger.drop_ready(index, count32(gone));
            return HeadScan::SteppedOver;
        }
        let until = self
            .state
            .ledger
            .same_redelivered_until(partition, ready.first, end);
        let search = self.search(ready.first, until, quota, false);
        match self
            .subscription
            .inspector()
            .find_run(&batch, position, search)
        {
            SearchResult::Run(run) => HeadScan::Run(HeadRun {
                partition,
                kind: ReaderKind::Requeued,
                run,
                batch,
                attempts: ready.attempts,
            }),
            SearchResult::Gap(to) => {
                let gone = to.min(end) - ready.first;
                self.state.ledger.drop_ready(index, count32(gone.max(1)));
                HeadScan::SteppedOver
            }
        }
    }

    fn scan_new(&mut self, partition: usize, quota: u64) -> HeadScan {
        let index = partition_number(partition);
        let next = self.state.ledger.next(index);
        let end = self.state.log.end(partition);
        if next >= end {
            return HeadScan::Unavailable(Unavailable::Empty);
        }
        let free = match self.state.ledger.next_span(index, end - next) {
            NextSpan::Taken(count) => {
                self.state.ledger.step_over(index, count);
                return HeadScan::SteppedOver;
            }
            NextSpan::Free(count) => count,
        };
        let (batch, position) = match self.head_batch(partition, ReaderKind::New, next) {
            Ok(found) => found,
            Err(unavailable) => return HeadScan::Unavailable(unavailable),
        };
        if batch.base_offset() > next {
            self.state
                .ledger
                .skip_to(index, batch.base_offset().min(end));
            return HeadScan::SteppedOver;
        }
        let until = self
            .state
            .ledger
            .same_redelivered_until(partition, next, end.min(next + free));
        let search = self.search(next, until, quota, true);
        match self
            .subscription
            .inspector()
            .find_run(&batch, position, search)
        {
            SearchResult::Run(run) => HeadScan::Run(HeadRun {
                partition,
                kind: ReaderKind::New,
                run,
                batch,
                attempts: 0,
            }),
            SearchResult::Gap(to) => {
                self.state.ledger.skip_to(index, to.min(end));
                HeadScan::SteppedOver
            }
        }
    }

    fn deliver(&mut self, slot: u32, head: HeadRun) {
        let (partition, run) = (head.partition, head.run);
        let index = partition_number(partition);
        let to = LeaseGrant {
            consumer: slot,
            due_ms: self.state.consumers.ack_due_ms(slot, self.now_ms),
            now_us: self.now_us,
            waited_ms: waited_ms(&head.batch, self.now_ms),
        };
        match head.kind {
            ReaderKind::New => {
                let SubscriptionState { ledger, timers, .. } = &mut *self.state;
                self.subscription
                    .raise_mark(ledger, timers, index, run.end(), self.now_ms);
                self.state.check_new(self.subscription, partition, &run);
                let (count, bytes) = (u64::from(run.count), run.body_bytes);
                self.state
                    .waiting_bytes
                    .subtract(partition, run.first, bytes.into());
                self.state.ledger.lease_next(index, count, to, bytes);
            }
            ReaderKind::Requeued => {
                self.state.ledger.lease_ready(index, run.count, to);
            }
        }
        self.state
            .readers
            .of(partition, head.kind)
            .set_position(run.next_position, run.end());
        let earlier = self.state.ledger.marks()[partition].redelivered_below();
        let delivery = Delivery {
            batch: head.batch,
            position: run.position,
            partition: index,
            first: run.first,
            count: run.count,
            attempts: head.attempts.saturating_add(1),
            redelivered: head.attempts > 0 || run.first < earlier,
            bytes: run.bytes,
            delivered_us: self.now_us,
        };
        self.push_delivery(slot, delivery);
    }

    /// Puts a delivery into the consumer's outbox and counts it.
    fn push_delivery(&mut self, slot: u32, delivery: Delivery) {
        let count = delivery.count;
        let bytes_max = u64::from(self.subscription.shared.options.outbox_bytes_max);
        if !self
            .state
            .consumers
            .push_delivery(slot, delivery, bytes_max)
        {
            return;
        }
        self.subscription
            .counters
            .delivered
            .fetch_add(u64::from(count), Ordering::Relaxed);
    }

    fn search(&self, from: Offset, end: Offset, quota: u64, is_new: bool) -> RunSearch {
        RunSearch {
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
    fn head_batch(
        &mut self,
        partition: usize,
        kind: ReaderKind,
        from: Offset,
    ) -> Result<(Batch, u32), Unavailable> {
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
            match source.head(&log, from, bytes_max, self.now_ms) {
                ReaderHead::Batch(batch, position) => return Ok((batch, position)),
                ReaderHead::Compressed(batch) => {
                    let name = (log.topic(), log.number(), batch.base_offset());
                    match self
                        .subscription
                        .shared
                        .inflater
                        .inflate_if_quick(name, &batch)
                    {
                        Some(inflated) => source.inflated(inflated),
                        None => {
                            self.subscription
                                .start_inflating(partition, kind, name, batch);
                            return Err(Unavailable::Pending);
                        }
                    }
                }
                ReaderHead::End => return Err(Unavailable::Empty),
                ReaderHead::Wait => return Err(Unavailable::Pending),
                ReaderHead::StartRead(read) => {
                    self.subscription.start_read(partition, kind, read);
                    return Err(Unavailable::Pending);
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
