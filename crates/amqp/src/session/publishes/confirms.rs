//! Publishes whose outcome is not known yet, and their confirms, which go out in the order of the
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
pub(in crate::session) struct ConfirmGroup {
    pub(in crate::session) channel: u16,
    pub(in crate::session) incarnation: u64,
    pub(super) first: u64,
    pub(super) last: u64,
}

impl ConfirmGroup {
    /// The number of publishes.
    pub(in crate::session) fn len(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Appends `basic.ack` if the publishes are stored, or else `basic.nack`.
    pub(in crate::session) fn push_confirm(&self, out: &mut Vec<u8>, is_stored: bool) {
        let (delivery_tag, multiple) = (self.last, self.last > self.first);
        let confirm = if is_stored {
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
pub(in crate::session) struct PendingCommit {
    pub(in crate::session) channel: u16,
    pub(in crate::session) incarnation: u64,
}

/// The answer that a flush owes the client.
#[derive(Debug)]
pub(super) enum OwedAnswer {
    Confirms(Vec<ConfirmGroup>),
    Commit(PendingCommit),
}

/// Batches that were published together, and the answer that waits for them.
#[derive(Debug)]
pub(super) struct Flush {
    pub(super) published: Vec<Published>,
    /// One of the batches was not stored.
    pub(super) has_failed: bool,
    pub(super) bytes: usize,
    pub(super) owed: OwedAnswer,
}

/// An answer that can be sent now.
#[derive(Debug)]
pub(in crate::session) enum ReadyAnswer {
    /// `true`: `basic.ack` for these publishes; `false`: `basic.nack`.
    Confirm(ConfirmGroup, bool),
    /// `true`: `tx.commit-ok`; `false`: the commit failed, and the channel is closed.
    Commit(PendingCommit, bool),
}

/// The pending flushes, oldest first.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    flushes: VecDeque<Flush>,
    bytes: usize,
    /// Empty between two polls; kept for its allocation.
    answers: Vec<ReadyAnswer>,
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

    /// Collects the answers that can be sent now, in order. Calls `report` for each error of the
    /// log.
    #[inline]
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        report: impl FnMut(&PublishError),
    ) -> Vec<ReadyAnswer> {
        let mut answers = std::mem::take(&mut self.answers);
        self.collect(cx, &mut answers, report);
        answers
    }

    /// Takes back the vector that [`Self::poll`] has returned, to reuse its allocation.
    #[inline]
    pub(super) fn reuse(&mut self, mut answers: Vec<ReadyAnswer>) {
        answers.clear();
        self.answers = answers;
    }

    fn collect(
        &mut self,
        cx: &mut Context<'_>,
        answers: &mut Vec<ReadyAnswer>,
        mut report: impl FnMut(&PublishError),
    ) {
        while let Some(flush) = self.flushes.front_mut() {
            while let Some(published) = flush.published.last_mut() {
                match Pin::new(published).poll(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(())) => {}
                    // The topic was deleted, and the message with it: it counts as stored.
                    Poll::Ready(Err(PublishError::TopicDeleted { .. })) => {}
                    Poll::Ready(Err(error)) => {
                        report(&error);
                        flush.has_failed = true;
                    }
                }
                flush.published.pop();
            }
            let Some(flush) = self.flushes.pop_front() else {
                return;
            };
            self.bytes -= flush.bytes;
            let is_stored = !flush.has_failed;
            match flush.owed {
                OwedAnswer::Commit(commit) => answers.push(ReadyAnswer::Commit(commit, is_stored)),
                OwedAnswer::Confirms(groups) => {
                    for group in groups {
                        add(answers, group, is_stored);
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
fn add(answers: &mut Vec<ReadyAnswer>, group: ConfirmGroup, is_stored: bool) {
    let mut before = answers.iter_mut().rev();
    let last = before.find_map(|entry| match entry {
        ReadyAnswer::Confirm(last, was_stored) if last.channel == group.channel => {
            Some((last, *was_stored))
        }
        _ => None,
    });
    match last {
        Some((last, was_stored))
            if was_stored == is_stored && last.incarnation == group.incarnation =>
        {
            last.last = group.last;
        }
        _ => answers.push(ReadyAnswer::Confirm(group, is_stored)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use std::task::Waker;

    use super::*;

    fn flush(channel: u16, first: u64, last: u64, has_failed: bool) -> Flush {
        Flush {
            published: Vec::new(),
            has_failed,
            bytes: 10,
            owed: OwedAnswer::Confirms(vec![ConfirmGroup {
                channel,
                incarnation: 1,
                first,
                last,
            }]),
        }
    }

    #[test]
    fn consecutive_flushes_are_confirmed_together() {
        let mut confirms = Confirms::default();
        for (channel, first, last, has_failed) in [
            (1, 1, 3, false),
            (2, 1, 1, false),
            (1, 4, 4, false),
            (1, 5, 6, true),
            (1, 7, 7, false),
        ] {
            confirms.push(flush(channel, first, last, has_failed));
        }
        let mut cx = Context::from_waker(Waker::noop());
        let answers = confirms.poll(&mut cx, |error| panic!("{error}"));
        let found: Vec<_> = answers
            .iter()
            .map(|answers| match answers {
                ReadyAnswer::Confirm(group, is_stored) => {
                    (group.channel, group.first, group.last, *is_stored)
                }
                ReadyAnswer::Commit(commit, _) => panic!("{commit:?}"),
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
