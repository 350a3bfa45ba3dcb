//! The statistics of a subscription.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::subscription::Subscription;

/// Counters since the process started.
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
    /// The label that the session gave it.
    pub label: String,
    /// How many messages it wants in flight at most.
    pub window: u32,
    /// Messages in flight to it.
    pub in_flight: u32,
    /// Messages delivered to it so far.
    pub delivered: u64,
}

/// The statistics of a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscriptionStats {
    /// Messages that wait for a consumer, including requeued ones, without those in flight or
    /// delayed.
    pub depth: u64,
    /// Messages in flight.
    pub in_flight: u64,
    /// Messages whose delay has not passed.
    pub delayed: u64,
    /// Deliveries in this process; redeliveries count again.
    pub delivered: u64,
    /// Messages acknowledged in this process.
    pub acknowledged: u64,
    /// Messages that consumers requeued in this process.
    pub requeued: u64,
    /// Messages whose ack wait ended without an answer, in this process.
    pub timed_out: u64,
    /// Messages that were dead-lettered, or dropped because there is no dead-letter topic, in this
    /// process.
    pub dead_lettered: u64,
    /// Entries of the in-flight table; its memory is proportional to them.
    pub leases: u64,
    /// The consumers, without those that only pull or have retired.
    pub consumers: Vec<ConsumerStats>,
}

/// The few statistics that protocols ask for often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubscriptionCounts {
    /// Messages that wait for a consumer, including requeued ones, without those in flight or
    /// delayed.
    pub depth: u64,
    /// Messages in flight.
    pub in_flight: u64,
    /// The consumers, without those that only pull or have retired.
    pub consumers: u32,
}

/// One consumer as the doctor sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerLoad {
    /// The number of its connection in telemetry; 0 without a connection.
    pub connection: u64,
    /// How many messages it may have in flight now; `u32::MAX` without a limit. Equals `in_flight`
    /// while it waits for its turn after a single active consumer or one of a higher priority.
    pub credit: u32,
    /// Messages in flight to it.
    pub in_flight: u32,
    /// Its ack wait in milliseconds; `None` without a limit.
    pub ack_wait_ms: Option<u64>,
    /// The longest ack wait that it could ask for, in milliseconds; `None` without a limit.
    pub ack_wait_max_ms: Option<u64>,
}

/// A subscription as the doctor sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscriptionLoad {
    /// Messages that wait for a consumer, including requeued ones, without those in flight or
    /// delayed.
    pub depth: u64,
    /// The consumers, without those that only pull or have retired.
    pub consumers: Vec<ConsumerLoad>,
}

impl Subscription {
    /// The consumers and the number of waiting messages. The doctor asks all subscriptions once a
    /// second, so this makes one list under the lock and does nothing else.
    pub fn load(&self) -> SubscriptionLoad {
        let state = self.state.lock();
        let mut consumers = Vec::with_capacity(state.consumers.counted());
        for (consumer, is_served) in state.consumers.iter_served() {
            let free_slots = if is_served {
                u32::try_from(consumer.free_slots()).unwrap_or(u32::MAX)
            } else {
                0
            };
            consumers.push(ConsumerLoad {
                connection: consumer.options.connection,
                credit: consumer.in_flight.saturating_add(free_slots),
                in_flight: consumer.in_flight,
                ack_wait_ms: consumer.options.ack_wait_ms,
                ack_wait_max_ms: consumer.options.ack_wait_max_ms,
            });
        }
        SubscriptionLoad {
            depth: state.log.depth(&state.ledger),
            consumers,
        }
    }

    /// The statistics that cost no allocation.
    pub fn counts(&self) -> SubscriptionCounts {
        let state = self.state.lock();
        SubscriptionCounts {
            depth: state.log.depth(&state.ledger),
            in_flight: state.ledger.in_flight(),
            consumers: u32::try_from(state.consumers.counted()).unwrap_or(u32::MAX),
        }
    }

    /// All statistics.
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
