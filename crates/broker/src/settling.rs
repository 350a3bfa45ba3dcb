//! How a subscription hears of its messages' ends: from consumers, from the clock, from the dead
//! letters.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::consumer::Settlement;
use crate::ledger::leases::NEVER_MS;
use crate::ledger::{Expired, NotInFlight};
use crate::message::{DeadReason, MessageId};
use crate::subscription::Subscription;

impl Subscription {
    pub(crate) fn ack_many(
        self: &Arc<Self>,
        slot: u32,
        ids: &[MessageId],
        mut settled: impl FnMut(MessageId, Result<Settlement, NotInFlight>),
    ) {
        self.change(|state| {
            let mut count = 0;
            for id in ids {
                let result = state.ledger.ack(*id, slot).map(Settlement::from);
                count += u32::from(result.is_ok());
                settled(*id, result);
            }
            state.settle(slot, count);
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
            state.settle(slot, 1);
            self.counters.requeued.fetch_add(1, Ordering::Relaxed);
            Ok(settled.into())
        })
    }

    pub(crate) fn reject(
        self: &Arc<Self>,
        slot: u32,
        id: MessageId,
    ) -> Result<Settlement, NotInFlight> {
        self.change(|state| {
            let settled = state.ledger.reject(id, slot)?;
            state.settle(slot, 1);
            Ok(settled.into())
        })
    }

    pub(crate) fn extend(self: &Arc<Self>, slot: u32, id: MessageId) -> Result<(), NotInFlight> {
        let now_ms = self.shared.clock.now_ms();
        self.change(|state| {
            let Some(consumer) = state.consumers.get(slot as usize).and_then(Option::as_ref) else {
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

    /// Ends leases whose time has come. Called by the housekeeping.
    pub(crate) fn on_due(self: &Arc<Self>, now_ms: u64) {
        self.change(|state| {
            state.due_ms = NEVER_MS;
            if state.retry_ms <= now_ms {
                state.retry_ms = NEVER_MS;
            }
            while let Some(expired) = state.ledger.expire(now_ms) {
                if let Expired::TimedOut { consumer, count } = expired {
                    state.settle(consumer, count);
                    self.counters
                        .timed_out
                        .fetch_add(u64::from(count), Ordering::Relaxed);
                }
            }
        });
    }

    /// Dead messages whose letters have to be written, with their attempts.
    pub(crate) fn take_died(&self) -> Vec<(MessageId, DeadReason, u16)> {
        let mut state = self.state.lock();
        let died = state.ledger.take_died();
        let attempts = |id| state.ledger.attempts_of(id).unwrap_or(0);
        died.into_iter()
            .map(|(id, reason)| (id, reason, attempts(id)))
            .collect()
    }

    /// The letters of these dead messages are written, or not wanted: they are done with.
    pub(crate) fn letters_written(self: &Arc<Self>, ids: &[MessageId]) {
        self.change(|state| {
            for id in ids {
                state.ledger.ack_dead(*id);
            }
        });
        let count = u64::try_from(ids.len()).unwrap_or(u64::MAX);
        self.counters
            .dead_lettered
            .fetch_add(count, Ordering::Relaxed);
    }
}

impl From<crate::ledger::Settled> for Settlement {
    fn from(settled: crate::ledger::Settled) -> Self {
        Self {
            delivered_us: settled.delivered_us,
            attempts: settled.attempts,
        }
    }
}
