//! Messages that the broker moves to another topic: published there, and acknowledged in their own
//! topic once the copy is synced. A copy that is written but not synced survives a kill, but no
//! power loss.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::topic::published::{PublishError, Published};

/// Publishes under way, each with a value for the caller.
#[derive(Debug)]
pub(crate) struct MovingPublishes<T> {
    under_way: Vec<MovingPublish<T>>,
}

#[derive(Debug)]
struct MovingPublish<T> {
    published: Published,
    then: T,
    is_written: bool,
}

impl<T> Default for MovingPublishes<T> {
    fn default() -> Self {
        Self {
            under_way: Vec::new(),
        }
    }
}

impl<T> MovingPublishes<T> {
    pub(crate) fn push(&mut self, published: Published, then: T) {
        self.under_way.push(MovingPublish {
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
        for mut publish in std::mem::take(&mut self.under_way) {
            if let Poll::Ready(result) = Pin::new(&mut publish.published).poll(&mut context) {
                done(publish.then, result);
                continue;
            }
            if !publish.is_written && publish.published.is_written() {
                publish.is_written = true;
                written(&publish.then);
            }
            self.under_way.push(publish);
        }
        !self.under_way.is_empty()
    }
}
