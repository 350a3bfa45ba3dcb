//! Takes one message for a consumer that asks for one (AMQP's `basic.get`).

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::consumer::outbox::Outbox;
use crate::message::Delivery;
use crate::subscription::Subscription;
use crate::subscription::dispatch::{Blank, DispatchRound, Found};

impl Subscription {
    /// As [`crate::Consumer::poll_take`].
    pub(crate) fn poll_take(
        self: &Arc<Self>,
        slot: u32,
        outbox: &Outbox,
        context: &mut Context<'_>,
    ) -> Poll<Option<Delivery>> {
        let mut state = self.state.lock();
        let pulls = state
            .consumers
            .get(slot)
            .is_some_and(|consumer| consumer.may_pull());
        if state.closed || state.paused || !pulls {
            return Poll::Ready(None);
        }
        let now_us = self.shared.clock.now_us();
        state.now_us = now_us;
        let mut answer = Poll::Ready(None);
        match DispatchRound::new(self, &mut state, now_us).deliver_some(slot, 1) {
            Found::Delivered => {
                let mut taken = outbox.take_all();
                let consumer = state.consumers.get(slot);
                if consumer.is_some_and(|consumer| consumer.options.auto_ack) {
                    self.ack_deliveries(&mut state, slot, &taken);
                }
                answer = Poll::Ready(taken.pop());
            }
            Found::SteppedOver(_) => {
                // Enough for one go: others want the thread and the lock too.
                context.waker().wake_by_ref();
                answer = Poll::Pending;
            }
            Found::Blank(Blank::Nothing) => {}
            Found::Blank(Blank::Waiting) => answer = Poll::Pending,
        }
        // The rest may be looked after by a timer, or may have become too little to be. To those
        // who wait, this one too, it is no news: they would ask again, and wake each other.
        let mut waiting = state.consumers.take_pull_waits();
        self.dispatch(&mut state);
        if answer.is_pending() {
            outbox.set_waker(context.waker());
            waiting.insert(slot);
        }
        state.consumers.keep_pull_waits(waiting);
        self.finish(state);
        answer
    }
}
