//! Messages that go to many queues: their copies are made in several turns, so that one message
//! does not hold up the other connections of its core.
//!
//! The next polls make the remaining copies. Until then nothing further is read, and no confirm
//! goes out.

use std::collections::VecDeque;

use super::Publisher;
use super::confirms::{OwedAnswer, PendingCommit};
use super::properties::StorageProperties;
use super::transaction::RoutedPublish;
use crate::content_memory::ContentReservation;
use crate::host::Route;
use crate::message::Message;
use crate::session::connection::Connection;
use crate::session::deliveries::TransactionSettlements;

/// Maximum number of copies in one turn: about a millisecond of work.
const COPIES_MAX: usize = 128;

/// Messages with copies yet to be made.
#[derive(Default)]
pub(super) struct FanOut {
    messages: VecDeque<PendingCopies>,
    /// The `tx.commit` that follows these messages, and the deliveries settled in its transaction.
    commit: Option<(PendingCommit, TransactionSettlements)>,
}

/// A message, and the index of its next copy.
struct PendingCopies {
    channel: u16,
    publish: RoutedPublish,
    storage: StorageProperties,
    next: usize,
    /// The memory that the message takes out of the connection's share.
    _reservation: Option<ContentReservation>,
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
            return self.copy_to_queues(connection, route, message, storage, 0..count);
        }
        let publish = RoutedPublish::of(route, message, false);
        let mut reservation = self.new_reservation();
        if !reservation.try_grow(publish.bytes(), connection.now.us) {
            // Over the memory budget, the message cannot be kept for another turn: makes all copies
            // now.
            return self.copy_to_queues(connection, route, message, storage, 0..count);
        }
        self.copy_to_queues(connection, route, message, storage, 0..COPIES_MAX);
        self.fan_out.messages.push_back(PendingCopies {
            channel,
            publish,
            storage: *storage,
            next: COPIES_MAX,
            _reservation: Some(reservation),
        });
    }

    /// Publishes the messages of a transaction. Its settlements are returned once all copies are
    /// made; see [`Publisher::make_copies`].
    pub(in crate::session) fn commit(
        &mut self,
        connection: &mut Connection,
        publishes: Vec<RoutedPublish>,
        commit: PendingCommit,
        settled: TransactionSettlements,
    ) -> Option<TransactionSettlements> {
        let messages = publishes.into_iter().map(|publish| PendingCopies {
            channel: commit.channel,
            storage: StorageProperties::of_checked(&publish.message(), connection.broker_ms, true),
            publish,
            next: 0,
            _reservation: None,
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
    ) -> Option<TransactionSettlements> {
        let mut left = COPIES_MAX;
        while left > 0 {
            if self.must_wait(connection) {
                return None;
            }
            let Some(pending) = self.fan_out.messages.pop_front() else {
                break;
            };
            left = self.make_up_to(connection, pending, left);
        }
        if self.fan_out.messages.is_empty() {
            self.end_copies(connection)
        } else {
            None
        }
    }

    /// Makes up to `left` copies of a message. Returns how many more this turn allows.
    fn make_up_to(
        &mut self,
        connection: &mut Connection,
        mut pending: PendingCopies,
        left: usize,
    ) -> usize {
        let PendingCopies {
            channel,
            publish,
            storage,
            next,
            ..
        } = &mut pending;
        let message = publish.message();
        if self.delay_or_return(
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
        self.copy_to_queues(connection, &publish.route, &message, storage, *next..end);
        if end < count {
            *next = end;
            self.fan_out.messages.push_front(pending);
        }
        left - made
    }

    /// Makes all remaining copies, because the connection ends; see [`Publisher::make_copies`].
    pub(in crate::session) fn make_all_copies(
        &mut self,
        connection: &mut Connection,
    ) -> Option<TransactionSettlements> {
        while let Some(pending) = self.fan_out.messages.pop_front() {
            self.make_up_to(connection, pending, usize::MAX);
        }
        self.end_copies(connection)
    }

    fn end_copies(&mut self, connection: &mut Connection) -> Option<TransactionSettlements> {
        let Some((commit, settled)) = self.fan_out.commit.take() else {
            self.flush(connection);
            return None;
        };
        self.flush_for(connection, Some(OwedAnswer::Commit(commit)));
        Some(settled)
    }
}
