//! Takes one message for a consumer that asks for one (AMQP's `basic.get`).

use std::task::{Context, Poll};

use crate::consumer::Consumer;
use crate::message::Delivery;
use crate::subscription::dispatch::{Blank, DispatchRound, Found};

impl Consumer {
    /// Takes exactly one message, for a consumer with [`crate::ConsumerOptions::pull`] (AMQP's
    /// `basic.get`). `None`: none is ready, or the subscription was deleted.
    ///
    /// Pending while the disk is asked. A caller that gives up asking loses nothing.
    pub fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        let mut state = self.subscription.state.lock();
        let pulls = state
            .consumers
            .get(self.slot)
            .is_some_and(|consumer| consumer.may_pull());
        if state.closed || state.paused || !pulls {
            return Poll::Ready(None);
        }
        let now_us = self.subscription.shared.clock.now_us();
        state.now_us = now_us;
        let mut answer = Poll::Ready(None);
        match DispatchRound::new(&self.subscription, &mut state, now_us).deliver_some(self.slot, 1)
        {
            Found::Delivered => {
                let mut taken = self.outbox.take_all();
                let consumer = state.consumers.get(self.slot);
                if consumer.is_some_and(|consumer| consumer.options.auto_ack) {
                    self.ack_deliveries(&mut state, &taken);
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
        self.subscription.dispatch(&mut state);
        if answer.is_pending() {
            self.outbox.set_waker(context.waker());
            waiting.insert(self.slot);
        }
        state.consumers.keep_pull_waits(waiting);
        self.subscription.finish(state);
        answer
    }
}
