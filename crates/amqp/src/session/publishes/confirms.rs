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

use crate::exception::Exception;
use crate::session::Session;
use crate::session::channel::{Mode, State};
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
    pub(in crate::session) first: u64,
    pub(in crate::session) last: u64,
}

/// A `tx.commit` that is owed its answer.
#[derive(Clone, Copy, Debug)]
pub(in crate::session) struct Commit {
    pub(in crate::session) channel: u16,
    pub(in crate::session) incarnation: u64,
}

/// The confirms or the commit that wait for a flush.
#[derive(Debug)]
pub(in crate::session) enum Waiting {
    Confirms(Vec<Group>),
    Commit(Commit),
}

/// Batches that were published together.
#[derive(Debug)]
pub(in crate::session) struct Flush {
    pub(in crate::session) published: Vec<Published>,
    /// One of its batches was not stored.
    pub(in crate::session) failed: bool,
    pub(in crate::session) bytes: usize,
    pub(in crate::session) waiting: Waiting,
}

/// The result of a poll.
#[derive(Debug)]
pub(in crate::session) enum Done {
    /// These publishes are confirmed, or will never be.
    Group(Group, bool),
    /// The transaction is committed, or could not be.
    Commit(Commit, bool),
}

/// The queue of flushes.
#[derive(Debug, Default)]
pub(in crate::session) struct Confirms {
    flushes: VecDeque<Flush>,
    bytes: usize,
}

impl Confirms {
    pub(in crate::session) fn push(&mut self, flush: Flush) {
        self.bytes += flush.bytes;
        self.flushes.push_back(flush);
    }

    pub(in crate::session) fn is_empty(&self) -> bool {
        self.flushes.is_empty()
    }

    pub(in crate::session) fn is_full(&self) -> bool {
        self.flushes.len() >= FLUSHES_MAX || self.bytes >= BYTES_MAX
    }

    /// Collects what is decided, in order. Tells of each failure of the log.
    pub(in crate::session) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        done: &mut Vec<Done>,
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
                Waiting::Commit(commit) => done.push(Done::Commit(commit, holds)),
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

impl Session {
    /// Confirms publishes, or says that a transaction is committed.
    pub(in crate::session) fn answer(&mut self, done: &Done, out: &mut Vec<u8>) {
        let is_there = |number: u16, incarnation: u64| {
            self.channels.get(&number).is_some_and(|channel| {
                channel.incarnation == incarnation && channel.state == State::Open
            })
        };
        match done {
            Done::Group(group, holds) => {
                self.meter.answered(group.last - group.first + 1);
                if is_there(group.channel, group.incarnation) {
                    push_confirm(out, group, *holds);
                }
            }
            Done::Commit(commit, holds) => {
                if is_there(commit.channel, commit.incarnation) {
                    self.committed(*commit, *holds);
                }
            }
        }
    }

    fn committed(&mut self, commit: Commit, holds: bool) {
        if let Some(channel) = self.channels.get_mut(&commit.channel)
            && let Mode::Transaction(transaction) = &mut channel.mode
        {
            transaction.is_committing = false;
        }
        self.meter.answered(1);
        if holds {
            let ok = Method::TxCommitOk(method::TxCommitOk {});
            return self.reply(commit.channel, &ok);
        }
        let error = Exception::precondition("partial tx completion");
        self.fail(commit.channel, &error, method::TxCommit::ID);
    }
}

/// Adds a group: to the channel's last one, if it has the same fate.
fn add(done: &mut Vec<Done>, group: Group, holds: bool) {
    let mut before = done.iter_mut().rev();
    let last = before.find_map(|entry| match entry {
        Done::Group(last, held) if last.channel == group.channel => Some((last, *held)),
        _ => None,
    });
    match last {
        Some((last, held)) if held == holds && last.incarnation == group.incarnation => {
            last.last = group.last;
        }
        _ => done.push(Done::Group(group, holds)),
    }
}

/// Appends the confirm of a group.
fn push_confirm(out: &mut Vec<u8>, group: &Group, holds: bool) {
    let (delivery_tag, multiple) = (group.last, group.last > group.first);
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
    push_method(out, group.channel, &confirm);
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
        let mut done = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        confirms.poll(&mut cx, &mut done, |error| panic!("{error}"));
        let found: Vec<_> = done
            .iter()
            .map(|done| match done {
                Done::Group(group, holds) => (group.channel, group.first, group.last, *holds),
                Done::Commit(commit, _) => panic!("{commit:?}"),
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
