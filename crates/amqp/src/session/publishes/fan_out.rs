//! Messages that go to many queues: their copies are made in several turns, so that the other
//! connections of the core get theirs.
//!
//! The next polls make the remaining copies. Until then nothing further is read, and no confirm
//! goes out.

use std::collections::VecDeque;

use super::Publisher;
use super::confirms::{Commit, Waiting};
use super::properties::StorageProperties;
use super::transaction::Publish;
use crate::content_memory::Held;
use crate::host::Route;
use crate::message::Message;
use crate::session::connection::Connection;
use crate::session::deliveries::Settled;

/// Maximum number of copies in one turn: about a millisecond of work.
const COPIES_MAX: usize = 128;

/// Messages with copies yet to be made.
#[derive(Default)]
pub(super) struct FanOut {
    messages: VecDeque<Unmade>,
    /// The `tx.commit` that follows these messages, and the deliveries settled in its transaction.
    commit: Option<(Commit, Settled)>,
}

/// A message, and the index of its next copy.
struct Unmade {
    channel: u16,
    publish: Publish,
    storage: StorageProperties,
    next: usize,
    /// The memory that the message takes out of the connection's share.
    _held: Option<Held>,
}

impl FanOut {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.commit.is_none()
    }
}

impl Publisher {
    /// Makes the first copies of a message, and queues the rest for later turns.
    #[inline]
    pub(super) fn begin_copies(
        &mut self,
        connection: &mut Connection,
        channel: u16,
        route: &Route,
        message: &Message<'_>,
        storage: &StorageProperties,
    ) {
        let count = route.queues.len();
        if count <= COPIES_MAX {
            return self.copy(connection, route, message, storage, 0..count);
        }
        let publish = Publish::of(route, message, false);
        let mut held = self.hold();
        if !held.grow(publish.bytes(), connection.now.us) {
            // Over the memory budget, the message cannot be kept for another turn: makes all copies
            // now.
            return self.copy(connection, route, message, storage, 0..count);
        }
        self.copy(connection, route, message, storage, 0..COPIES_MAX);
        self.fan_out.messages.push_back(Unmade {
            channel,
            publish,
            storage: *storage,
            next: COPIES_MAX,
            _held: Some(held),
        });
    }

    /// Publishes the messages of a transaction. Its settlements are returned once all copies are
    /// made; see [`Publisher::make_copies`].
    pub(in crate::session) fn commit(
        &mut self,
        connection: &mut Connection,
        publishes: Vec<Publish>,
        commit: Commit,
        settled: Settled,
    ) -> Option<Settled> {
        let messages = publishes.into_iter().map(|publish| Unmade {
            channel: commit.channel,
            storage: StorageProperties::of_stored(&publish.message(), connection.broker_ms, true),
            publish,
            next: 0,
            _held: None,
        });
        self.fan_out.messages = messages.collect();
        self.fan_out.commit = Some((commit, settled));
        self.make_copies(connection)
    }

    /// Makes as many copies as one turn allows. `Some`: the copies of a transaction are complete,
    /// and the caller has to carry out these settlements.
    pub(in crate::session) fn make_copies(
        &mut self,
        connection: &mut Connection,
    ) -> Option<Settled> {
        let mut left = COPIES_MAX;
        while left > 0 {
            if self.must_wait(connection) {
                return None;
            }
            let Some(unmade) = self.fan_out.messages.pop_front() else {
                break;
            };
            left = self.make_some(connection, unmade, left);
        }
        if self.fan_out.messages.is_empty() {
            self.copies_made(connection)
        } else {
            None
        }
    }

    /// Makes up to `left` copies of a message. Returns how many more this turn allows.
    fn make_some(&mut self, connection: &mut Connection, mut unmade: Unmade, left: usize) -> usize {
        let Unmade {
            channel,
            publish,
            storage,
            next,
            ..
        } = &mut unmade;
        let message = publish.message();
        if self.is_stored_elsewhere(
            connection,
            *channel,
            &publish.route,
            &message,
            publish.mandatory,
            storage,
        ) {
            return left - 1;
        }
        let count = publish.route.queues.len();
        let end = count.min(next.saturating_add(left));
        let made = end - *next;
        self.copy(connection, &publish.route, &message, storage, *next..end);
        if end < count {
            *next = end;
            self.fan_out.messages.push_front(unmade);
        }
        left - made
    }

    /// Makes all remaining copies, because the connection ends; see [`Publisher::make_copies`].
    pub(in crate::session) fn make_all_copies(
        &mut self,
        connection: &mut Connection,
    ) -> Option<Settled> {
        while let Some(unmade) = self.fan_out.messages.pop_front() {
            self.make_some(connection, unmade, usize::MAX);
        }
        self.copies_made(connection)
    }

    fn copies_made(&mut self, connection: &mut Connection) -> Option<Settled> {
        let Some((commit, settled)) = self.fan_out.commit.take() else {
            self.flush(connection);
            return None;
        };
        self.flush_for(connection, Some(Waiting::Commit(commit)));
        Some(settled)
    }
}
