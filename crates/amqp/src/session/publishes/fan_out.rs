//! The copies of a message that goes to many queues: no more than some in one turn, so that other
//! connections of the core have theirs.
//!
//! The copies that are left are made by the next polls. Until then nothing further is read, and no
//! confirm goes out.

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

/// Most copies of one turn: about a millisecond.
const COPIES_MAX: usize = 128;

/// Messages whose copies are not all made.
#[derive(Default)]
pub(super) struct FanOut {
    messages: VecDeque<Unmade>,
    /// The end of a transaction that comes behind them, and what it has settled.
    commit: Option<(Commit, Settled)>,
}

/// A message, and which copy is next.
struct Unmade {
    channel: u16,
    publish: Publish,
    storage: StorageProperties,
    next: usize,
    /// Pays for the message.
    _held: Option<Held>,
}

impl FanOut {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.commit.is_none()
    }
}

impl Publisher {
    /// Makes the first copies of a message, and sees to the others.
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
            // Without memory for it there is no other turn: all copies are made now.
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

    /// Stores the messages of a transaction, and what it has settled behind them; see
    /// [`Publisher::make_copies`].
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

    /// Makes as many copies as one turn may. `Some`: a commit came to its end, and so these
    /// acknowledgements hold.
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

    /// Makes up to `left` copies of a message. Returns how many may still be made.
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

    /// Makes all that are left, because the connection ends; see [`Publisher::make_copies`].
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
