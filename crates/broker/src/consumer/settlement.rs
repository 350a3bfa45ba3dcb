//! Settlement: a consumer acknowledges, requeues or rejects messages in flight to it.

use std::sync::atomic::Ordering;

use cloverleaf_log::Offset;

use crate::consumer::holds::{DeliveryEnd, HoldRecorder};
use crate::consumer::{Consumer, Settlement};
use crate::message::{Delivery, MessageId, MessageRange};
use crate::subscription::SubscriptionState;
use crate::subscription::died::DeadMessage;
use crate::subscription::ledger::leases::NEVER_MS;
use crate::subscription::ledger::{NotInFlight, SettleAction, SettledDelivery};

impl Consumer {
    /// Acknowledges one message.
    pub fn ack(&self, id: MessageId) -> Result<Settlement, NotInFlight> {
        let mut result = Err(NotInFlight);
        self.ack_many(&[id], |_, settled, _| result = settled);
        result
    }

    /// Acknowledges messages in one call. `settled` is called for each message; it must not call
    /// the broker. Its last argument is set only if the acknowledgement comes after the message's
    /// ack deadline and that delivery is remembered: how long the consumer had the message, in
    /// microseconds.
    pub fn ack_many(
        &self,
        ids: &[MessageId],
        mut settled: impl FnMut(MessageId, Result<Settlement, NotInFlight>, Option<u64>),
    ) {
        self.subscription.change(|state| {
            let now_us = state.now_us;
            let mut count = 0;
            // Nearly always `None`.
            let mut overdue = state.consumers.take_overdue_deliveries(self.slot);
            let mut recorder =
                HoldRecorder::new(&mut state.consumers, self.slot, DeliveryEnd::Acked, now_us);
            for id in ids {
                let result = state.ledger.ack(*id, self.slot);
                match result {
                    Ok(done) => {
                        if let Some(overdue) = &mut overdue {
                            overdue.acked_again(*id, now_us);
                        }
                        recorder.add(id.partition, id.offset, 1, done);
                        count += 1;
                        settled(*id, Ok(done.settlement(now_us)), None);
                    }
                    Err(error) => {
                        let overdue = overdue.as_mut();
                        let late_us = overdue.and_then(|it| it.acked_late(*id, now_us));
                        settled(*id, Err(error), late_us);
                    }
                }
            }
            recorder.finish(count.into());
            state.consumers.put_back_overdue(self.slot, overdue, now_us);
            state.consumers.settle(self.slot, count);
            self.subscription
                .counters
                .acknowledged
                .fetch_add(u64::from(count), Ordering::Relaxed);
        });
    }

    /// Requeues a message at its original offset: at once, or after `delay_ms`.
    pub fn nack(&self, id: MessageId, delay_ms: u64) -> Result<Settlement, NotInFlight> {
        let due_ms = (delay_ms > 0).then(|| {
            self.subscription
                .shared
                .clock
                .now_ms()
                .saturating_add(delay_ms)
        });
        self.subscription.change(|state| {
            let settled = state.ledger.nack(id, self.slot, due_ms)?;
            let end = DeliveryEnd::Nacked;
            let runs = [(id, 1)];
            state
                .consumers
                .note_end(self.slot, runs, settled, end, state.now_us);
            state.consumers.settle(self.slot, 1);
            self.subscription
                .counters
                .requeued
                .fetch_add(1, Ordering::Relaxed);
            Ok(settled.settlement(state.now_us))
        })
    }

    /// Rejects a message: it is dead-lettered, or dropped if there is no dead-letter topic.
    pub fn reject(&self, id: MessageId) -> Result<Settlement, NotInFlight> {
        self.subscription.change(|state| {
            let settled = state.ledger.reject(id, self.slot)?;
            let end = DeliveryEnd::Rejected;
            let runs = [(id, 1)];
            state
                .consumers
                .note_end(self.slot, runs, settled, end, state.now_us);
            state.consumers.settle(self.slot, 1);
            Ok(settled.settlement(state.now_us))
        })
    }

    /// Restarts a message's ack deadline (NSQ's TOUCH).
    pub fn extend(&self, id: MessageId) -> Result<(), NotInFlight> {
        let now_ms = self.subscription.shared.clock.now_ms();
        self.subscription.change(|state| {
            let Some(consumer) = state.consumers.get(self.slot) else {
                return Err(NotInFlight);
            };
            let wait_ms = consumer.options.ack_wait_ms;
            let wait_max_ms = consumer.options.ack_wait_max_ms;
            state.ledger.extend(id, self.slot, |settled| {
                let due_ms = wait_ms.map_or(NEVER_MS, |wait| now_ms.saturating_add(wait));
                let latest_ms = wait_max_ms.map_or(NEVER_MS, |wait| {
                    (settled.delivered_us / 1000).saturating_add(wait)
                });
                due_ms.min(latest_ms)
            })
        })
    }

    /// Acknowledges ranges in one call. `settled` is called for consecutive messages with the same
    /// delivery: with `None` for messages that are not in flight to this consumer. It must not call
    /// the broker.
    pub fn ack_ranges(
        &self,
        ranges: &[MessageRange],
        mut settled: impl FnMut(MessageRange, Option<Settlement>),
    ) {
        self.subscription.change(|state| {
            let now_us = state.now_us;
            let mut count = 0;
            let mut recorder =
                HoldRecorder::new(&mut state.consumers, self.slot, DeliveryEnd::Acked, now_us);
            for range in ranges {
                let mut report = RangeReport {
                    range: MessageRange { count: 0, ..*range },
                    settled: None,
                    now_us,
                    tell: &mut settled,
                };
                let on_piece = |first, count, settled: Option<SettledDelivery>| {
                    if let Some(settled) = settled {
                        recorder.add(range.partition, first, count, settled);
                    }
                    report.add(first, count, settled);
                };
                let place = (range.first, range.end());
                let (action, partition) = (SettleAction::Ack, range.partition);
                count += state
                    .ledger
                    .settle_between(action, partition, place, self.slot, on_piece);
                report.finish();
            }
            recorder.finish(count);
            self.acknowledged(state, count);
        });
    }

    /// Requeues ranges at once, at their original offsets. Messages in them that are not in flight
    /// to this consumer are ignored.
    pub fn nack_ranges(&self, ranges: &[MessageRange]) {
        self.settle_ranges(SettleAction::Nack, ranges);
    }

    /// Rejects ranges: they are dead-lettered, or dropped if there is no dead-letter topic.
    /// Messages in them that are not in flight to this consumer are ignored.
    pub fn reject_ranges(&self, ranges: &[MessageRange]) {
        self.settle_ranges(SettleAction::Reject, ranges);
    }

    /// As [`Self::nack_ranges`]. If a router replaces the dead-letter topic
    /// ([`crate::Broker::route_dead`]), returns the messages that are dead now because they were
    /// delivered too often. The caller must route these, because the router is not notified of
    /// them.
    #[must_use]
    pub fn nack_ranges_returning_dead(&self, ranges: &[MessageRange]) -> Vec<DeadMessage> {
        self.settle_ranges_taking(SettleAction::Nack, ranges)
    }

    /// As [`Self::reject_ranges`]. Returns dead messages like [`Self::nack_ranges_taking`].
    #[must_use]
    pub fn reject_ranges_returning_dead(&self, ranges: &[MessageRange]) -> Vec<DeadMessage> {
        self.settle_ranges_taking(SettleAction::Reject, ranges)
    }

    /// Acknowledges deliveries that a consumer with `auto_ack` has taken out of its outbox.
    pub(crate) fn auto_acked(&self, taken: &[Delivery]) {
        self.subscription.change(|state| {
            state.consumers.outbox_taken(self.slot);
            self.ack_deliveries(state, taken);
        });
    }

    pub(crate) fn ack_deliveries(&self, state: &mut SubscriptionState, taken: &[Delivery]) {
        let ranges = taken.iter().map(Delivery::range);
        self.settle_in(state, SettleAction::Ack, ranges);
    }

    fn acknowledged(&self, state: &mut SubscriptionState, count: u64) {
        state
            .consumers
            .settle(self.slot, u32::try_from(count).unwrap_or(u32::MAX));
        self.subscription
            .counters
            .acknowledged
            .fetch_add(count, Ordering::Relaxed);
    }

    fn settle_ranges(&self, action: SettleAction, ranges: &[MessageRange]) {
        self.subscription
            .change(|state| self.settle_in(state, action, ranges.iter().copied()));
    }

    /// As [`Self::settle_ranges`]. Returns dead messages if a router replaces the dead-letter
    /// topic; the caller must route them.
    fn settle_ranges_taking(
        &self,
        action: SettleAction,
        ranges: &[MessageRange],
    ) -> Vec<DeadMessage> {
        self.subscription
            .change_returning_dead(|state| self.settle_in(state, action, ranges.iter().copied()))
    }

    /// Settles the messages of these ranges that are in flight to the consumer.
    fn settle_in(
        &self,
        state: &mut SubscriptionState,
        action: SettleAction,
        ranges: impl Iterator<Item = MessageRange>,
    ) {
        let end = match action {
            SettleAction::Ack => DeliveryEnd::Acked,
            SettleAction::Nack => DeliveryEnd::Nacked,
            SettleAction::Reject => DeliveryEnd::Rejected,
        };
        let mut count = 0;
        let mut recorder = HoldRecorder::new(&mut state.consumers, self.slot, end, state.now_us);
        let ledger = &mut state.ledger;
        for range in ranges {
            let (partition, place) = (range.partition, (range.first, range.end()));
            let on_piece = |first, count, settled: Option<SettledDelivery>| {
                if let Some(settled) = settled {
                    recorder.add(partition, first, count, settled);
                }
            };
            count += ledger.settle_between(action, partition, place, self.slot, on_piece);
        }
        recorder.finish(count);
        match action {
            SettleAction::Ack => return self.acknowledged(state, count),
            SettleAction::Nack => drop(
                self.subscription
                    .counters
                    .requeued
                    .fetch_add(count, Ordering::Relaxed),
            ),
            SettleAction::Reject => {}
        }
        state
            .consumers
            .settle(self.slot, u32::try_from(count).unwrap_or(u32::MAX));
    }
}

/// Reports a range in as few pieces as possible: one per delivery.
struct RangeReport<'a, F: FnMut(MessageRange, Option<Settlement>)> {
    range: MessageRange,
    settled: Option<Settlement>,
    now_us: u64,
    tell: &'a mut F,
}

impl<F: FnMut(MessageRange, Option<Settlement>)> RangeReport<'_, F> {
    fn add(&mut self, first: Offset, count: u64, settled: Option<SettledDelivery>) {
        let settled = settled.map(|settled| settled.settlement(self.now_us));
        if settled != self.settled || self.range.count == 0 {
            self.tell();
            self.range.first = first;
            self.range.count = 0;
            self.settled = settled;
        }
        // Fits in u32: a piece is part of a range, which counts its messages in a `u32`.
        self.range.count += u32::try_from(count).unwrap_or(u32::MAX - self.range.count);
    }

    fn tell(&mut self) {
        if self.range.count > 0 {
            (self.tell)(self.range, self.settled);
        }
    }

    fn finish(mut self) {
        self.tell();
    }
}

impl SettledDelivery {
    /// The facts of the delivery that the session gets.
    fn settlement(self, now_us: u64) -> Settlement {
        Settlement {
            held_us: now_us.saturating_sub(self.delivered_us),
            attempts: self.attempts,
        }
    }
}
