//! Deliveries: from a queue's consumers to the client, and back as acknowledgements.
//!
//! Each consumer of the connection has a slot, whatever its channel (`slots.rs`). A slot that has
//! something to deliver is woken (`wakeups.rs`), and then written (`writer.rs`). A channel keeps
//! what the client has not settled as runs of tags and offsets (`unacked.rs`).

mod consumers;
mod get;
mod settlement;
mod slots;
mod unacked;
mod wakeups;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Context;

use cloverleaf_broker::SharedWindow;

use self::get::PendingGet;
pub(super) use self::settlement::{Settle, Settled};
use self::slots::Consumers;
pub(super) use self::unacked::Run;
use self::unacked::Unacked;
use super::connection::Connection;
use crate::host::Routing;

/// The deliveries of a connection.
#[derive(Default)]
pub(super) struct Deliveries {
    consumers: Consumers,
    channels: BTreeMap<u16, ChannelDeliveries>,
    /// Slots of consumers that have something to deliver.
    ready_slots: Vec<u32>,
    /// Slots of consumers with acknowledgements of this read.
    slots_to_settle: Vec<u32>,
    pending_get: Option<PendingGet>,
    /// Messages that the client has given up, on the way to where they belong.
    routing: Vec<Routing>,
}

/// The deliveries of an open channel.
struct ChannelDeliveries {
    /// All its slots.
    slots: BTreeSet<u32>,
    /// Slots of its consumers by their tags.
    consumers: BTreeMap<String, u32>,
    /// Slots of what `basic.get` takes from, by queue.
    getters: BTreeMap<Arc<str>, u32>,
    unacked: Unacked,
    next_delivery_tag: u64,
    /// For consumers to come (`basic.qos`); 0: no limit.
    prefetch: u16,
    /// Of all its consumers together (`basic.qos` with `global`).
    window: Option<Arc<SharedWindow>>,
    /// The queue to which answers of direct reply-to go, once it has been consumed from.
    reply_queue: Option<Arc<str>>,
}

impl Deliveries {
    pub(super) fn open_channel(&mut self, number: u16) {
        self.channels.insert(number, ChannelDeliveries::new());
    }

    /// Ends a channel. Its unacknowledged messages go back.
    pub(super) fn close_channel(&mut self, connection: &mut Connection, number: u16) {
        self.release_consumers(connection, number);
        self.channels.remove(&number);
    }

    /// Nothing is under way any more, because the connection ends.
    pub(super) fn clear(&mut self) {
        self.channels.clear();
        self.pending_get = None;
        self.routing.clear();
    }

    /// Whether nothing is under way that comes before the client's next method.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.pending_get.is_none() && self.routing.is_empty()
    }

    /// Goes on with what the client's next method waits for.
    #[inline]
    pub(super) fn poll(&mut self, connection: &mut Connection, cx: &mut Context<'_>) {
        if !self.routing.is_empty() {
            self.routing.retain(|routing| routing.poll(cx).is_pending());
        }
        if self.pending_get.is_some() {
            self.poll_get(connection, cx);
        }
    }

    /// The queue to which answers of direct reply-to on a channel go.
    pub(super) fn reply_queue(&self, number: u16) -> Option<&Arc<str>> {
        self.channels.get(&number)?.reply_queue.as_ref()
    }
}

impl ChannelDeliveries {
    fn new() -> Self {
        Self {
            slots: BTreeSet::new(),
            consumers: BTreeMap::new(),
            getters: BTreeMap::new(),
            unacked: Unacked::default(),
            next_delivery_tag: 1,
            prefetch: 0,
            window: None,
            reply_queue: None,
        }
    }

    /// The next delivery tag of `count` in a row.
    fn take_tags(&mut self, count: u32) -> u64 {
        let first = self.next_delivery_tag;
        self.next_delivery_tag += u64::from(count);
        first
    }
}
