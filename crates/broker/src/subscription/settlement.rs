//! Settling: a subscription hears of its messages' ends, from consumers, from the clock, from the
//! dead letters.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cloverleaf_log::Offset;

use crate::consumer::Settlement;
use crate::consumer::holds::{Ending, HoldEnd};
use crate::message::{Delivery, MessageId, MessageRange};
use crate::subscription::died::Died;
use crate::subscription::ledger::leases::NEVER_MS;
use crate::subscription::ledger::{Expired, NotInFlight, Settled};
use crate::subscription::{State, Subscription};

/// The answer of a consumer to messages that it has in hand.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Settle {
    Ack,
    /// Gives them back.
    Nack,
    /// Gives them up.
    Reject,
}

impl Subscription {
    pub(crate) fn ack_many(
        self: &Arc<Self>,
        slot: u32,
        ids: &[MessageId],
        mut settled: impl FnMut(MessageId, Result<Settlement, NotInFlight>, Option<u64>),
    ) {
        self.change(|state| {
            let now_us = state.now_us;
            let mut count = 0;
            // Nearly always there are none.
            let mut overdue = state.consumers.take_overdue(slot);
            let mut ending = Ending::new(&mut state.consumers, slot, HoldEnd::Acked, now_us);
            for id in ids {
                let result = state.ledger.ack(*id, slot);
                match result {
                    Ok(done) => {
                        if let Some(overdue) = &mut overdue {
                            overdue.acked_again(*id, now_us);
                        }
                        ending.add(id.partition, id.offset, 1, done);
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
            ending.finish(count.into());
            state.consumers.keep_overdue(slot, overdue, now_us);
            state.consumers.settle(slot, count);
            self.counters
                .acknowledged
                .fetch_add(u64::from(count), Ordering::Relaxed);
        });
    }

    pub(crate) fn nack(
        self: &Arc<Self>,
        slot: u32,
        id: MessageId,
        delay_ms: u64,
    ) -> Result<Settlement, NotInFlight> {
        let due_ms = (delay_ms > 0).then(|| self.shared.clock.now_ms().saturating_add(delay_ms));
        self.change(|state| {
            let settled = state.ledger.nack(id, slot, due_ms)?;
            let end = HoldEnd::Nacked;
            let runs = [(id, 1)];
            state
                .consumers
                .note_end(slot, runs, settled, end, state.now_us);
            state.consumers.settle(slot, 1);
            self.counters.requeued.fetch_add(1, Ordering::Relaxed);
            Ok(settled.settlement(state.now_us))
        })
    }

    pub(crate) fn reject(
        self: &Arc<Self>,
        slot: u32,
        id: MessageId,
    ) -> Result<Settlement, NotInFlight> {
        self.change(|state| {
            let settled = state.ledger.reject(id, slot)?;
            let end = HoldEnd::Rejected;
            let runs = [(id, 1)];
            state
                .consumers
                .note_end(slot, runs, settled, end, state.now_us);
            state.consumers.settle(slot, 1);
            Ok(settled.settlement(state.now_us))
        })
    }

    pub(crate) fn extend(self: &Arc<Self>, slot: u32, id: MessageId) -> Result<(), NotInFlight> {
        let now_ms = self.shared.clock.now_ms();
        self.change(|state| {
            let Some(consumer) = state.consumers.get(slot) else {
                return Err(NotInFlight);
            };
            let wait_ms = consumer.options.ack_wait_ms;
            let wait_max_ms = consumer.options.ack_wait_max_ms;
            state.ledger.extend(id, slot, |settled| {
                let due_ms = wait_ms.map_or(NEVER_MS, |wait| now_ms.saturating_add(wait));
                let latest_ms = wait_max_ms.map_or(NEVER_MS, |wait| {
                    (settled.delivered_us / 1000).saturating_add(wait)
                });
                due_ms.min(latest_ms)
            })
        })
    }

    pub(crate) fn ack_ranges(
        self: &Arc<Self>,
        slot: u32,
        ranges: &[MessageRange],
        mut settled: impl FnMut(MessageRange, Option<Settlement>),
    ) {
        self.change(|state| {
            let now_us = state.now_us;
            let mut count = 0;
            let mut ending = Ending::new(&mut state.consumers, slot, HoldEnd::Acked, now_us);
            for range in ranges {
                let mut report = Report {
                    range: MessageRange { count: 0, ..*range },
                    settled: None,
                    now_us,
                    tell: &mut settled,
                };
                let told = |first, count, settled: Option<Settled>| {
                    if let Some(settled) = settled {
                        ending.add(range.partition, first, count, settled);
                    }
                    report.add(first, count, settled);
                };
                let place = (range.first, range.end());
                count += state.ledger.ack_between(range.partition, place, slot, told);
                report.finish();
            }
            ending.finish(count);
            self.acknowledged(state, slot, count);
        });
    }

    /// A consumer with `auto_ack` has taken these out of its outbox.
    pub(crate) fn auto_acked(self: &Arc<Self>, slot: u32, taken: &[Delivery]) {
        self.change(|state| {
            state.consumers.outbox_taken(slot);
            self.ack_deliveries(state, slot, taken);
        });
    }

    pub(crate) fn ack_deliveries(&self, state: &mut State, slot: u32, taken: &[Delivery]) {
        let ranges = taken.iter().map(Delivery::range);
        self.settle_in(state, slot, Settle::Ack, ranges);
    }

    fn acknowledged(&self, state: &mut State, slot: u32, count: u64) {
        state
            .consumers
            .settle(slot, u32::try_from(count).unwrap_or(u32::MAX));
        self.counters
            .acknowledged
            .fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn settle_ranges(
        self: &Arc<Self>,
        slot: u32,
        settle: Settle,
        ranges: &[MessageRange],
    ) {
        self.change(|state| self.settle_in(state, slot, settle, ranges.iter().copied()));
    }

    /// As [`Self::settle_ranges`]; what has died, and is routed by somebody, is the caller's to see
    /// to.
    pub(crate) fn settle_ranges_taking(
        self: &Arc<Self>,
        slot: u32,
        settle: Settle,
        ranges: &[MessageRange],
    ) -> Vec<Died> {
        self.change_taking(|state| self.settle_in(state, slot, settle, ranges.iter().copied()))
    }

    /// Ends what a consumer holds of these ranges.
    fn settle_in(
        &self,
        state: &mut State,
        slot: u32,
        settle: Settle,
        ranges: impl Iterator<Item = MessageRange>,
    ) {
        let end = match settle {
            Settle::Ack => HoldEnd::Acked,
            Settle::Nack => HoldEnd::Nacked,
            Settle::Reject => HoldEnd::Rejected,
        };
        let mut count = 0;
        let mut ending = Ending::new(&mut state.consumers, slot, end, state.now_us);
        let ledger = &mut state.ledger;
        for range in ranges {
            let (partition, place) = (range.partition, (range.first, range.end()));
            let told = |first, count, settled: Option<Settled>| {
                if let Some(settled) = settled {
                    ending.add(partition, first, count, settled);
                }
            };
            count += match settle {
                Settle::Ack => ledger.ack_between(partition, place, slot, told),
                Settle::Nack => ledger.nack_between(partition, place, slot, told),
                Settle::Reject => ledger.reject_between(partition, place, slot, told),
            };
        }
        ending.finish(count);
        match settle {
            Settle::Ack => return self.acknowledged(state, slot, count),
            Settle::Nack => drop(self.counters.requeued.fetch_add(count, Ordering::Relaxed)),
            Settle::Reject => {}
        }
        state
            .consumers
            .settle(slot, u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Ends leases whose time has come. Called by the housekeeping.
    pub(crate) fn on_due(self: &Arc<Self>, now_ms: u64) {
        self.change(|state| {
            state.timers.called(now_ms);
            self.rest_marks(state, now_ms);
            while let Some(expired) = state.ledger.expire(now_ms) {
                if let Expired::TimedOut {
                    consumer,
                    messages,
                    settled,
                } = expired
                {
                    let count = messages.count();
                    let end = HoldEnd::TimedOut;
                    let (runs, now_us) = (messages.runs(), state.now_us);
                    state
                        .consumers
                        .note_end(consumer, runs, settled, end, now_us);
                    state.consumers.time_out(consumer, count);
                    state.consumers.change(consumer, |it| {
                        let overdue = it.overdue.get_or_insert_default();
                        overdue.add(messages, settled.delivered_us, now_us);
                    });
                    self.counters
                        .timed_out
                        .fetch_add(u64::from(count), Ordering::Relaxed);
                }
            }
        });
    }
}

/// Tells of a range in as few pieces as there are fates.
struct Report<'a, F: FnMut(MessageRange, Option<Settlement>)> {
    range: MessageRange,
    settled: Option<Settlement>,
    now_us: u64,
    tell: &'a mut F,
}

impl<F: FnMut(MessageRange, Option<Settlement>)> Report<'_, F> {
    fn add(&mut self, first: Offset, count: u64, settled: Option<Settled>) {
        let settled = settled.map(|settled| settled.settlement(self.now_us));
        if settled != self.settled || self.range.count == 0 {
            self.tell();
            self.range.first = first;
            self.range.count = 0;
            self.settled = settled;
        }
        // A range counts its messages in 32 bits, and this is a part of one.
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

impl Settled {
    /// The facts that the session hears of it.
    fn settlement(self, now_us: u64) -> Settlement {
        Settlement {
            held_us: now_us.saturating_sub(self.delivered_us),
            attempts: self.attempts,
        }
    }
}
