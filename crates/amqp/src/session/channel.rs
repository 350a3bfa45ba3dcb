//! A connection's state of one of its channels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cloverleaf_broker::SharedWindow;

use super::deliveries::settlement::{Settle, Unacked};
use super::publishes::transaction::Transaction;
use crate::body::Collected;
use crate::content_memory::Held;

/// A channel.
pub(super) struct Channel {
    /// Tells it from earlier channels of the same number.
    pub(super) incarnation: u64,
    pub(super) state: State,
    pub(super) mode: Mode,
    /// A content of which not all frames have come, where they are mixed with others.
    pub(super) content: Option<Content>,
    /// All its slots.
    pub(super) slots: BTreeSet<u32>,
    /// Slots of its consumers by their tags.
    pub(super) consumers: BTreeMap<String, u32>,
    /// Slots of what `basic.get` takes from, by queue.
    pub(super) getters: BTreeMap<Arc<str>, u32>,
    pub(super) unacked: Unacked,
    pub(super) next_delivery_tag: u64,
    /// For consumers to come (`basic.qos`); 0: no limit.
    pub(super) prefetch: u16,
    /// Of all its consumers together (`basic.qos` with `global`).
    pub(super) window: Option<Arc<SharedWindow>>,
    /// The queue that an empty name means.
    pub(super) last_queue: Arc<str>,
    /// The queue to which answers of direct reply-to go, once it has been consumed from.
    pub(super) reply_queue: Option<Arc<str>>,
}

/// Where a channel is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// We have closed it, and ignore everything until the client has heard of it.
    Closing,
}

/// The mode of a channel: how its publishes are answered.
pub(super) enum Mode {
    Plain,
    /// The number of the next publish.
    Confirm(u64),
    Transaction(Box<Transaction>),
}

/// A content on its way.
pub(super) struct Content {
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) mandatory: bool,
    /// Its header's payload, once it has come.
    pub(super) header: Option<Vec<u8>>,
    pub(super) body: Collected,
    /// Bytes of the body that have not come.
    pub(super) left: u64,
    pub(super) held: Held,
}

impl Channel {
    pub(super) fn new(incarnation: u64) -> Self {
        Self {
            incarnation,
            state: State::Open,
            mode: Mode::Plain,
            content: None,
            slots: BTreeSet::new(),
            consumers: BTreeMap::new(),
            getters: BTreeMap::new(),
            unacked: Unacked::default(),
            next_delivery_tag: 1,
            prefetch: 0,
            window: None,
            last_queue: Arc::from(""),
            reply_queue: None,
        }
    }

    /// The next delivery tag of `count` in a row.
    pub(super) fn take_tags(&mut self, count: u32) -> u64 {
        let first = self.next_delivery_tag;
        self.next_delivery_tag += u64::from(count);
        first
    }

    /// Whether it holds an unfinished content or transaction for longer than may be.
    pub(super) fn holds_too_long(&self, now_us: u64) -> bool {
        let of_content = self.content.as_ref().map(|content| &content.held);
        let of_transaction = match &self.mode {
            Mode::Transaction(transaction) => Some(&transaction.held),
            Mode::Plain | Mode::Confirm(_) => None,
        };
        let mut held = of_content.into_iter().chain(of_transaction);
        held.any(|held| held.is_overdue(now_us))
    }

    /// Whether a commit is under way, during which nothing may come.
    pub(super) fn is_committing(&self) -> bool {
        matches!(&self.mode, Mode::Transaction(transaction) if transaction.is_committing)
    }
}

/// The client's decision on deliveries: ack, nack or reject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    pub(super) tag: u64,
    pub(super) multiple: bool,
    pub(super) settle: Settle,
}
