//! Ack timeouts: messages that a consumer does not settle in time are requeued.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::consumer::holds::DeliveryEnd;
use crate::subscription::Subscription;
use crate::subscription::ledger::Expired;

impl Subscription {
    /// Ends leases that have expired. The housekeeping thread calls it.
    pub(crate) fn on_due(self: &Arc<Self>, now_ms: u64) {
        self.change(|state| {
            state.timers.called(now_ms);
            self.lower_idle_marks(&mut state.ledger, &mut state.timers, now_ms);
            while let Some(expired) = state.ledger.expire(now_ms) {
                if let Expired::TimedOut {
                    consumer,
                    messages,
                    settled,
                } = expired
                {
                    let count = messages.count();
                    let end = DeliveryEnd::TimedOut;
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
