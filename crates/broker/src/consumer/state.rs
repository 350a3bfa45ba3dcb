//! The subscription's state of one consumer: its window, and what it holds.

use std::sync::Arc;

use crate::consumer::Holding;
use crate::consumer::holds::HoldHistory;
use crate::consumer::outbox::Outbox;
use crate::consumer::overdue::Overdue;
use crate::consumer::ranking::Place;
use crate::consumer::shared_window::SharedWindow;
use crate::options::ConsumerOptions;

/// The subscription's state of one consumer.
#[derive(Debug)]
pub(crate) struct ConsumerState {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) window: u32,
    pub(crate) in_flight: u32,
    pub(crate) stalled: bool,
    /// Is a consumer to others: it neither only pulls nor has it retired. Asked for each delivery.
    pub(super) counts: bool,
    /// Gets nothing more, and settles what it has.
    pub(super) retired: bool,
    /// The window that it shares with others.
    shared: Option<Arc<SharedWindow>>,
    pub(crate) options: ConsumerOptions,
    /// The place in the order of arrival.
    arrival: u64,
    pub(crate) delivered: u64,
    /// Messages that were taken from it because it held them for too long.
    timed_out: u64,
    /// A sample of these, while it may still answer them.
    pub(crate) overdue: Option<Box<Overdue>>,
    /// Where it stands in the ranking, if it does.
    pub(crate) place: Option<Place>,
    /// The holds that the timeline shows of it.
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
            counts: !options.pull,
            retired: false,
            shared: None,
            options,
            arrival,
            delivered: 0,
            timed_out: 0,
            overdue: None,
            place: None,
            holds: None,
        };
        consumer.share(window);
        consumer
    }

    /// Its place in the order of arrival, which no other one of the subscription ever has.
    pub(crate) fn arrival(&self) -> u64 {
        self.arrival
    }

    /// Whether it may ask for messages.
    pub(crate) fn may_pull(&self) -> bool {
        !self.retired && self.options.pull
    }

    /// The window that it shares with others: while it is full, nothing is delivered.
    pub(crate) fn shared_window(&self) -> Option<&Arc<SharedWindow>> {
        self.shared.as_ref()
    }

    /// The window in which its messages take places: those that need no acknowledgement take none.
    pub(crate) fn places(&self) -> Option<&Arc<SharedWindow>> {
        self.shared.as_ref().filter(|_| !self.options.auto_ack)
    }

    pub(crate) fn share(&mut self, window: Option<Arc<SharedWindow>>) {
        self.shared = window.filter(|_| !self.options.pull);
    }

    /// Messages that may be delivered to it now.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        match &self.shared {
            // A consumer that takes no place in the window takes none from those who wait.
            Some(shared) if self.options.auto_ack && shared.free() > 0 => self.own_room(),
            Some(shared) if self.options.auto_ack => 0,
            Some(shared) => self.own_room().min(shared.room()),
            None => self.own_room(),
        }
    }

    /// As [`Self::room`], whatever the window says that it shares.
    #[inline]
    pub(crate) fn own_room(&self) -> u64 {
        #[cfg(test)]
        crate::consumer::slots::tests::LOOKS.with(|looks| looks.set(looks.get() + 1));
        if self.stalled || !self.counts {
            0
        } else {
            u64::from(self.window.saturating_sub(self.in_flight))
        }
    }

    /// The messages that it holds, and those that were taken from it.
    pub(crate) fn holding(&self) -> Holding {
        Holding {
            in_flight: self.in_flight,
            timed_out: self.timed_out,
        }
    }

    /// Deadlines of messages have passed. Returns the shared window that has new room.
    pub(crate) fn time_out(&mut self, count: u32) -> Option<Arc<SharedWindow>> {
        self.timed_out += u64::from(count);
        self.settle(count)
    }

    /// Messages are no longer in flight. Returns the shared window that has new room.
    pub(crate) fn settle(&mut self, count: u32) -> Option<Arc<SharedWindow>> {
        let count = count.min(self.in_flight);
        self.in_flight -= count;
        let shared = self.places().filter(|_| count > 0)?;
        shared.release(u64::from(count));
        Some(shared.clone())
    }
}
