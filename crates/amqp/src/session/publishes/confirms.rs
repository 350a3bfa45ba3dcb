//! Publishes on their way into the log, and the confirms that the client is owed for them, in the
//! order of the publishes.
//!
//! All publishes of one read are one [`Flush`]. Its confirms go out when all its batches are as
//! durable as they should be: one `basic.ack` with `multiple` per channel, not one per message.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use cloverleaf_broker::{PublishError, Published};

use crate::session::frames::push_method;
use crate::wire::{Method, method};

/// Most flushes that may be pending before nothing further is read.
const FLUSHES_MAX: usize = 1024;
/// Most bytes of messages that may be pending before nothing further is read.
const BYTES_MAX: usize = 8 << 20;

/// Publishes of one channel with consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) struct Group {
    pub(in crate::session) channel: u16,
    pub(in crate::session) incarnation: u64,
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Group {
    /// How many publishes there are.
    pub(in crate::session) fn len(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Appends their confirm.
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

/// A `tx.commit` that is owed its answer.
#[derive(Clone, Copy, Debug)]
pub(in crate::session) struct Commit {
    pub(in crate::session) channel: u16,
    pub(in crate::session) incarnation: u64,
}

/// The confirms or the commit that wait for a flush.
#[derive(Debug)]
pub(super) enum Waiting {
    Confirms(Vec<Group>),
    Commit(Commit),
}

/// Batches that were published together.
#[derive(Debug)]
pub(super) struct Flush {
    pub(super) published: Vec<Published>,
    /// One of its batches was not stored.
    pub(super) failed: bool,
    pub(super) bytes: usize,
    pub(super) waiting: Waiting,
}

/// A decision about publishes that a client waits for.
#[derive(Debug)]
pub(in crate::session) enum Decision {
    /// `true`: `basic.ack` for these publishes; `false`: `basic.nack`.
    Group(Group, bool),
    /// `true`: `tx.commit-ok`; `false`: the commit failed, and the channel is closed.
    Commit(Commit, bool),
}

/// The queue of flushes.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    flushes: VecDeque<Flush>,
    bytes: usize,
    /// Empty between two polls: its memory is used again.
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

    /// Collects what is decided, in order. Tells of each failure of the log.
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

    /// Takes the memory of decisions back.
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
                    // The topic is gone, so no consumer can want the message any more.
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
            // A burst must not stay with an idle connection.
            self.flushes = VecDeque::new();
        }
    }
}

/// Adds a group: to the channel's last one, if it has the same fate.
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
