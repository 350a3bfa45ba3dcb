//! A subscription's state of one consumer: its window and its messages in flight.

use std::sync::Arc;

use crate::consumer::InFlightCounts;
use crate::consumer::holds::HoldHistory;
use crate::consumer::outbox::Outbox;
use crate::consumer::overdue::Overdue;
use crate::consumer::ranking::RankPosition;
use crate::consumer::shared_window::SharedWindow;
use crate::options::ConsumerOptions;

/// A subscription's state of one consumer.
#[derive(Debug)]
pub(crate) struct ConsumerState {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) window: u32,
    pub(crate) in_flight: u32,
    pub(crate) stalled: bool,
    /// It counts as a consumer: it neither only pulls nor has retired. Read for each delivery.
    pub(super) is_counted: bool,
    /// It gets no more messages and only settles those in flight.
    pub(super) retired: bool,
    /// The window that it shares with other consumers.
    shared: Option<Arc<SharedWindow>>,
    pub(crate) options: ConsumerOptions,
    /// Its number in the order of arrival.
    arrival: u64,
    pub(crate) delivered: u64,
    /// Messages that it did not settle within its ack wait.
    timed_out: u64,
    /// A sample of these, while it may still acknowledge them late.
    pub(crate) overdue: Option<Box<Overdue>>,
    /// Its position in the ranking; `None` without a ranking or without free slots.
    pub(crate) position: Option<RankPosition>,
    /// Its recorded holds, for the timeline.
    pub(crate) holds: Option<Box<HoldHistory>>,
}

impl ConsumerState {
    pub(crate) fn new(options: ConsumerOptions, outbox: Arc<Outbox>, arrival: u64) -> Self {
        let window = options.shared_window.clone();
        let mut consumer = Self {
            outbox,
            window: 0,
            in_flight: 0,
            stalled: false,
            is_counted: !options.pull,
            retired: false,
            shared: None,
            options,
            arrival,
            delivered: 0,
            timed_out: 0,
            overdue: None,
            position: None,
            holds: None,
        };
        consumer.share(window);
        consumer
    }

    /// Its number in the order of arrival, unique in the subscription.
    pub(crate) fn arrival(&self) -> u64 {
        self.arrival
    }

    /// Whether it may pull messages.
    pub(crate) fn may_pull(&self) -> bool {
        !self.retired && self.options.pull
    }

    /// The window that it shares with others. While that is full, it gets nothing.
    pub(crate) fn shared_window(&self) -> Option<&Arc<SharedWindow>> {
        self.shared.as_ref()
    }

    /// The shared window against which its messages count; `None` for a consumer with `auto_ack`.
    pub(crate) fn charged_window(&self) -> Option<&Arc<SharedWindow>> {
        self.shared.as_ref().filter(|_| !self.options.auto_ack)
    }

    pub(crate) fn share(&mut self, window: Option<Arc<SharedWindow>>) {
        self.shared = window.filter(|_| !self.options.pull);
    }

    /// The number of messages that may be delivered to it now.
    #[inline]
    pub(crate) fn free_slots(&self) -> u64 {
        match &self.shared {
            // With `auto_ack` it takes no slot, so it does not compete with the waiters.
            Some(shared) if self.options.auto_ack && shared.free_slots() > 0 => {
                self.own_free_slots()
            }
            Some(shared) if self.options.auto_ack => 0,
            Some(shared) => self.own_free_slots().min(shared.reservable_slots()),
            None => self.own_free_slots(),
        }
    }

    /// As [`Self::free_slots`], without regard to the shared window.
    #[inline]
    pub(crate) fn own_free_slots(&self) -> u64 {
        #[cfg(test)]
        crate::consumer::slots::tests::COMPARISONS.with(|looks| looks.set(looks.get() + 1));
        if self.stalled || !self.is_counted {
            0
        } else {
            u64::from(self.window.saturating_sub(self.in_flight))
        }
    }

    /// How many messages it has in flight, and how many have timed out.
    pub(crate) fn holding(&self) -> InFlightCounts {
        InFlightCounts {
            in_flight: self.in_flight,
            timed_out: self.timed_out,
        }
    }

    /// Counts messages whose ack deadline has passed. Returns the shared window if that released
    /// slots.
    pub(crate) fn time_out(&mut self, count: u32) -> Option<Arc<SharedWindow>> {
        self.timed_out += u64::from(count);
        self.settle(count)
    }

    /// Removes messages from the count in flight. Returns the shared window if that released slots.
    pub(crate) fn settle(&mut self, count: u32) -> Option<Arc<SharedWindow>> {
        let count = count.min(self.in_flight);
        self.in_flight -= count;
        let shared = self.charged_window().filter(|_| count > 0)?;
        shared.release(u64::from(count));
        Some(shared.clone())
    }
}
