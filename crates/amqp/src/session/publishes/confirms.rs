//! Publishes that the log has not decided yet, and their confirms, which go out in the order of the
//! publishes.
//!
//! All publishes of one read are one [`Flush`]. Its confirms go out when all its batches are as
//! durable as their class demands: one `basic.ack` with `multiple` per channel, not one per
//! message.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use cloverleaf_broker::{PublishError, Published};

use crate::session::frames::push_method;
use crate::wire::{Method, method};

/// With this many pending flushes nothing further is read.
const FLUSHES_MAX: usize = 1024;
/// With this many bytes in pending flushes nothing further is read.
const BYTES_MAX: usize = 8 << 20;

/// Publishes of one channel with consecutive delivery tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) struct Group {
    pub(in crate::session) channel: u16,
    pub(in crate::session) incarnation: u64,
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Group {
    /// The number of publishes.
    pub(in crate::session) fn len(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Appends `basic.ack` if the publishes are stored, or else `basic.nack`.
    pub(in crate::session) fn push_confirm(&self, out: &mut Vec<u8>, holds: bool) {
        let (delivery_tag, multiple) = (self.last, self.last > self.first);
        let confirm = if holds {
            Method::BasicAck(method::BasicAck {
                delivery_tag,
                multiple,
            })
        } else {
            Method::BasicNack(method::BasicNack {
                delivery_tag,
                multiple,
                requeue: false,
            })
        };
        push_method(out, self.channel, &confirm);
    }
}

/// A `tx.commit` that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(in crate::session) struct Commit {
    pub(in crate::session) channel: u16,
    pub(in crate::session) incarnation: u64,
}

/// The answer that a flush owes the client.
#[derive(Debug)]
pub(super) enum Waiting {
    Confirms(Vec<Group>),
    Commit(Commit),
}

/// Batches that were published together, and the answer that waits for them.
#[derive(Debug)]
pub(super) struct Flush {
    pub(super) published: Vec<Published>,
    /// One of the batches was not stored.
    pub(super) failed: bool,
    pub(super) bytes: usize,
    pub(super) waiting: Waiting,
}

/// An answer that can be sent now.
#[derive(Debug)]
pub(in crate::session) enum Decision {
    /// `true`: `basic.ack` for these publishes; `false`: `basic.nack`.
    Group(Group, bool),
    /// `true`: `tx.commit-ok`; `false`: the commit failed, and the channel is closed.
    Commit(Commit, bool),
}

/// The pending flushes, oldest first.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    flushes: VecDeque<Flush>,
    bytes: usize,
    /// Empty between two polls; kept for its allocation.
    decisions: Vec<Decision>,
}

impl Confirms {
    pub(super) fn push(&mut self, flush: Flush) {
        self.bytes += flush.bytes;
        self.flushes.push_back(flush);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flushes.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.flushes.len() >= FLUSHES_MAX || self.bytes >= BYTES_MAX
    }

    /// Collects the answers that can be sent now, in order. Calls `failed` for each error of the
    /// log.
    #[inline]
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        failed: impl FnMut(&PublishError),
    ) -> Vec<Decision> {
        let mut decisions = std::mem::take(&mut self.decisions);
        self.collect(cx, &mut decisions, failed);
        decisions
    }

    /// Takes back the vector that [`Self::poll`] has returned, to reuse its allocation.
    #[inline]
    pub(super) fn reuse(&mut self, mut decisions: Vec<Decision>) {
        decisions.clear();
        self.decisions = decisions;
    }

    fn collect(
        &mut self,
        cx: &mut Context<'_>,
        done: &mut Vec<Decision>,
        mut failed: impl FnMut(&PublishError),
    ) {
        while let Some(flush) = self.flushes.front_mut() {
            while let Some(published) = flush.published.last_mut() {
                match Pin::new(published).poll(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(())) => {}
                    // The topic was deleted, and the message with it: it counts as stored.
                    Poll::Ready(Err(PublishError::TopicDeleted { .. })) => {}
                    Poll::Ready(Err(error)) => {
                        failed(&error);
                        flush.failed = true;
                    }
                }
                flush.published.pop();
            }
            let Some(flush) = self.flushes.pop_front() else {
                return;
            };
            self.bytes -= flush.bytes;
            let holds = !flush.failed;
            match flush.waiting {
                Waiting::Commit(commit) => done.push(Decision::Commit(commit, holds)),
                Waiting::Confirms(groups) => {
                    for group in groups {
                        add(done, group, holds);
                    }
                }
            }
        }
        if self.flushes.capacity() > 64 {
            // Frees what a burst of publishes has allocated.
            self.flushes = VecDeque::new();
        }
    }
}

/// Adds a group: merged into the channel's last one, if both are confirmed in the same way.
fn add(done: &mut Vec<Decision>, group: Group, holds: bool) {
    let mut before = done.iter_mut().rev();
    let last = before.find_map(|entry| match entry {
        Decision::Group(last, held) if last.channel == group.channel => Some((last, *held)),
        _ => None,
    });
    match last {
        Some((last, held)) if held == holds && last.incarnation == group.incarnation => {
            last.last = group.last;
        }
        _ => done.push(Decision::Group(group, holds)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use std::task::Waker;

    use super::*;

    fn flush(channel: u16, first: u64, last: u64, failed: bool) -> Flush {
        Flush {
            published: Vec::new(),
            failed,
            bytes: 10,
            waiting: Waiting::Confirms(vec![Group {
                channel,
                incarnation: 1,
                first,
                last,
            }]),
        }
    }

    #[test]
    fn what_comes_together_is_confirmed_together() {
        let mut confirms = Confirms::default();
        for (channel, first, last, failed) in [
            (1, 1, 3, false),
            (2, 1, 1, false),
            (1, 4, 4, false),
            (1, 5, 6, true),
            (1, 7, 7, false),
        ] {
            confirms.push(flush(channel, first, last, failed));
        }
        let mut cx = Context::from_waker(Waker::noop());
        let done = confirms.poll(&mut cx, |error| panic!("{error}"));
        let found: Vec<_> = done
            .iter()
            .map(|done| match done {
                Decision::Group(group, holds) => (group.channel, group.first, group.last, *holds),
                Decision::Commit(commit, _) => panic!("{commit:?}"),
            })
            .collect();
        let expected = [
            (1, 1, 4, true),
            (2, 1, 1, true),
            (1, 5, 6, false),
            (1, 7, 7, true),
        ];
        assert_eq!(found, expected);
        assert!(confirms.is_empty() && confirms.bytes == 0);
    }
}
