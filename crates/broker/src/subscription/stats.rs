//! A subscription in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::subscription::Subscription;

/// Counted since the process began.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) delivered: AtomicU64,
    pub(crate) acknowledged: AtomicU64,
    pub(crate) requeued: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) dead_lettered: AtomicU64,
}

/// One consumer in the statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerStats {
    /// As the session set it.
    pub label: String,
    /// The most messages it wants in flight.
    pub window: u32,
    /// Messages in flight to it.
    pub in_flight: u32,
    /// Messages delivered to it so far.
    pub delivered: u64,
}

/// A subscription in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscriptionStats {
    /// Messages that wait for a consumer, requeued ones included; not those in flight or delayed.
    pub depth: u64,
    /// Messages that consumers hold.
    pub in_flight: u64,
    /// Messages that wait for their delay to pass.
    pub delayed: u64,
    /// Messages delivered in this process, again counted.
    pub delivered: u64,
    /// Messages acknowledged in this process.
    pub acknowledged: u64,
    /// Messages given back by consumers in this process.
    pub requeued: u64,
    /// Messages whose consumer did not answer in time, in this process.
    pub timed_out: u64,
    /// Messages that went to the dead-letter topic, or were dropped for want of one, in this
    /// process.
    pub dead_lettered: u64,
    /// Entries that the in-flight table holds: what its memory follows.
    pub leases: u64,
    /// The consumers, without those that only pull or have retired.
    pub consumers: Vec<ConsumerStats>,
}

/// The few numbers of a subscription that protocols ask for often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubscriptionCounts {
    /// Messages that wait for a consumer, requeued ones included; not those in flight or delayed.
    pub depth: u64,
    /// Messages that consumers hold.
    pub in_flight: u64,
    /// The consumers, without those that only pull or have retired.
    pub consumers: u32,
}

/// One consumer as the doctor looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerLook {
    /// The number of its connection, as telemetry has it; 0: it has none.
    pub connection: u64,
    /// Messages that it may have in flight at present, `u32::MAX` without a limit. While it waits
    /// for its turn, behind a single active consumer or one of a higher priority: those it has.
    pub credit: u32,
    /// Messages in flight to it.
    pub in_flight: u32,
    /// How long it may take for a message, in milliseconds; `None` without a limit.
    pub ack_wait_ms: Option<u64>,
    /// How long that could be at most, if it asked for it; `None` without a limit.
    pub ack_wait_max_ms: Option<u64>,
}

/// A subscription as the doctor looks at it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscriptionLook {
    /// Messages that wait for a consumer, requeued ones included; not those in flight or delayed.
    pub depth: u64,
    /// The consumers, without those that only pull or have retired.
    pub consumers: Vec<ConsumerLook>,
}

impl Subscription {
    /// The consumers, and whether messages wait. Asked for once a second, of all subscriptions:
    /// under the lock one list is made and nothing else.
    pub fn look(&self) -> SubscriptionLook {
        let state = self.state.lock();
        let mut consumers = Vec::with_capacity(state.consumers.counted());
        for (consumer, is_served) in state.consumers.iter_served() {
            let room = if is_served {
                u32::try_from(consumer.room()).unwrap_or(u32::MAX)
            } else {
                0
            };
            consumers.push(ConsumerLook {
                connection: consumer.options.connection,
                credit: consumer.in_flight.saturating_add(room),
                in_flight: consumer.in_flight,
                ack_wait_ms: consumer.options.ack_wait_ms,
                ack_wait_max_ms: consumer.options.ack_wait_max_ms,
            });
        }
        SubscriptionLook {
            depth: state.log.depth(&state.ledger),
            consumers,
        }
    }

    /// Its most important numbers: they cost no allocation.
    pub fn counts(&self) -> SubscriptionCounts {
        let state = self.state.lock();
        SubscriptionCounts {
            depth: state.log.depth(&state.ledger),
            in_flight: state.ledger.in_flight(),
            consumers: u32::try_from(state.consumers.counted()).unwrap_or(u32::MAX),
        }
    }

    /// The subscription in numbers.
    pub fn stats(&self) -> SubscriptionStats {
        let state = self.state.lock();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SubscriptionStats {
            depth: state.log.depth(&state.ledger),
            in_flight: state.ledger.in_flight(),
            delayed: state.ledger.delayed(),
            delivered: count(&self.counters.delivered),
            acknowledged: count(&self.counters.acknowledged),
            requeued: count(&self.counters.requeued),
            timed_out: count(&self.counters.timed_out),
            dead_lettered: count(&self.counters.dead_lettered),
            leases: state.ledger.lease_count() as u64,
            consumers: state
                .consumers
                .iter_counted()
                .map(|consumer| ConsumerStats {
                    label: consumer.options.label.clone(),
                    window: consumer.window,
                    in_flight: consumer.in_flight,
                    delivered: consumer.delivered,
                })
                .collect(),
        }
    }
}
