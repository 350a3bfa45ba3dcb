//! Messages that the broker moves to another topic: published there, and acknowledged in their own
//! topic once the copy is synced. A copy that is written but not synced survives a kill, but no
//! power loss.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::topic::published::{PublishError, Published};

/// Publishes under way, each with a value for the caller.
#[derive(Debug)]
pub(crate) struct Moving<T> {
    under_way: Vec<UnderWay<T>>,
}

#[derive(Debug)]
struct UnderWay<T> {
    published: Published,
    then: T,
    is_written: bool,
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
        self.under_way.push(UnderWay {
            published,
            then,
            is_written: false,
        });
    }

    /// Calls `written` once for each publish that is written but not synced yet, and `done` for
    /// each that has finished. Returns `true` if some are still under way.
    pub(crate) fn advance(
        &mut self,
        mut written: impl FnMut(&T),
        mut done: impl FnMut(T, Result<(), PublishError>),
    ) -> bool {
        // The caller polls by the clock, so no waker is needed.
        let mut context = Context::from_waker(Waker::noop());
        for mut one in std::mem::take(&mut self.under_way) {
            if let Poll::Ready(result) = Pin::new(&mut one.published).poll(&mut context) {
                done(one.then, result);
                continue;
            }
            if !one.is_written && one.published.is_written() {
                one.is_written = true;
                written(&one.then);
            }
            self.under_way.push(one);
        }
        !self.under_way.is_empty()
    }
}
