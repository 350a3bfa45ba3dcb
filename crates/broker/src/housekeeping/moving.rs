//! Messages on their way from one topic to another: published there, acknowledged here once that is
//! safe. Between, while the disk is waited for, they have moved as far as a kill goes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::topic::published::{PublishError, Published};

/// Publishes under way, each with what has to be done afterwards.
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

    /// Calls `written` for each publish that has been written, and is not decided yet, and `done`
    /// for each that is. `true` if some are still under way.
    pub(crate) fn advance(
        &mut self,
        mut written: impl FnMut(&T),
        mut done: impl FnMut(T, Result<(), PublishError>),
    ) -> bool {
        // The caller comes again by the clock, so nobody has to be woken.
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
