//! Messages on their way from one topic to another: published there, acknowledged here once that is
//! safe.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::publish::{PublishError, Published};

/// Publishes under way, each with what has to be done afterwards.
#[derive(Debug)]
pub(crate) struct Moving<T> {
    under_way: Vec<(Published, T)>,
}

impl<T> Default for Moving<T> {
    fn default() -> Self {
        Self {
            under_way: Vec::new(),
        }
    }
}

impl<T> Moving<T> {
    pub(crate) fn push(&mut self, published: Published, then: T) {
        self.under_way.push((published, then));
    }

    /// Calls `done` for each publish that is decided. `true` if some are still under way.
    pub(crate) fn advance(&mut self, mut done: impl FnMut(T, Result<(), PublishError>)) -> bool {
        // The caller comes again by the clock, so nobody has to be woken.
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = Vec::new();
        for (mut published, then) in std::mem::take(&mut self.under_way) {
            match Pin::new(&mut published).poll(&mut context) {
                Poll::Ready(result) => done(then, result),
                Poll::Pending => waiting.push((published, then)),
            }
        }
        self.under_way = waiting;
        !self.under_way.is_empty()
    }
}
