//! Delivers one message to a consumer that pulls (AMQP's `basic.get`).

use std::task::{Context, Poll};

use crate::consumer::Consumer;
use crate::message::Delivery;
use crate::subscription::dispatch::{DispatchRound, DispatchStep, Unavailable};

impl Consumer {
    /// Takes exactly one message, for a consumer with [`crate::ConsumerOptions::pull`] (AMQP's
    /// `basic.get`). `None`: no message is ready, or the subscription was deleted.
    ///
    /// Pending while a read from the disk is under way. A caller that stops polling loses nothing.
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
        match DispatchRound::new(&self.subscription, &mut state, now_us).deliver_run(self.slot, 1) {
            DispatchStep::Delivered => {
                let mut taken = self.outbox.take_all();
                let consumer = state.consumers.get(self.slot);
                if consumer.is_some_and(|consumer| consumer.options.auto_ack) {
                    self.ack_deliveries(&mut state, &taken);
                }
                answer = Poll::Ready(taken.pop());
            }
            DispatchStep::SteppedOver(_) => {
                // The step limit is reached: let other tasks use the thread and the lock.
                context.waker().wake_by_ref();
                answer = Poll::Pending;
            }
            DispatchStep::Unavailable(Unavailable::Empty) => {}
            DispatchStep::Unavailable(Unavailable::Pending) => answer = Poll::Pending,
        }
        // This dispatch sets the timers of the messages that are left, and drops excess ones. It
        // must not wake consumers that wait for a read, because it brings them nothing: they would
        // poll again and wake each other.
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
