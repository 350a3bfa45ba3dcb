//! Deliveries: from a queue to the client, and their acknowledgements.
//!
//! Each consumer of the connection has a slot, whatever its channel (`slots.rs`). A slot with
//! something to deliver is woken (`wakeups.rs`), and then its deliveries are written (`writer.rs`).
//! A channel keeps its unacknowledged deliveries as runs of tags and offsets (`unacked.rs`).

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
pub(super) use self::settlement::{SettleAction, TransactionSettlements};
use self::slots::Consumers;
use self::unacked::UnackedDeliveries;
pub(super) use self::unacked::UnackedRun;
use super::connection::Connection;
use crate::host::DeadLetterWait;

/// The deliveries of a connection.
#[derive(Default)]
pub(super) struct Deliveries {
    consumers: Consumers,
    channels: BTreeMap<u16, ChannelDeliveries>,
    /// Slots of consumers with deliveries to write.
    ready_slots: Vec<u32>,
    /// Slots of consumers with collected acknowledgements.
    slots_to_settle: Vec<u32>,
    pending_get: Option<PendingGet>,
    /// Dead-lettering of messages that the client has rejected; its next method waits for it.
    dead_letter_waits: Vec<DeadLetterWait>,
}

/// The deliveries of an open channel.
struct ChannelDeliveries {
    /// All slots of the channel: consumers, cancelled ones included, and pull consumers.
    slots: BTreeSet<u32>,
    /// Slots of the active consumers, by consumer tag.
    consumers: BTreeMap<String, u32>,
    /// Slots of the pull consumers of `basic.get`, by queue.
    pull_slots: BTreeMap<Arc<str>, u32>,
    unacked: UnackedDeliveries,
    next_delivery_tag: u64,
    /// The prefetch of consumers started from now on (`basic.qos`); 0: no limit.
    prefetch: u16,
    /// The prefetch shared by all consumers of the channel (`basic.qos` with `global`).
    window: Option<Arc<SharedWindow>>,
    /// The queue for the replies of direct reply-to, while it has a consumer.
    reply_queue: Option<Arc<str>>,
}

impl Deliveries {
    pub(super) fn open_channel(&mut self, number: u16) {
        self.channels.insert(number, ChannelDeliveries::new());
    }

    /// Closes a channel. Its unacknowledged messages are requeued.
    pub(super) fn close_channel(&mut self, connection: &mut Connection, number: u16) {
        self.release_consumers(connection, number);
        self.channels.remove(&number);
    }

    /// Drops everything in progress, because the connection ends.
    pub(super) fn clear(&mut self) {
        self.channels.clear();
        self.pending_get = None;
        self.dead_letter_waits.clear();
    }

    /// Whether nothing is in progress that the client's next method has to wait for.
    #[inline]
    pub(super) fn may_read_on(&self) -> bool {
        self.pending_get.is_none() && self.dead_letter_waits.is_empty()
    }

    /// Continues the work that the client's next method waits for.
    #[inline]
    pub(super) fn poll(&mut self, connection: &mut Connection, cx: &mut Context<'_>) {
        if !self.dead_letter_waits.is_empty() {
            self.dead_letter_waits
                .retain(|wait| wait.poll(cx).is_pending());
        }
        if self.pending_get.is_some() {
            self.poll_get(connection, cx);
        }
    }

    /// The queue for the replies of direct reply-to on a channel.
    pub(super) fn reply_queue(&self, number: u16) -> Option<&Arc<str>> {
        self.channels.get(&number)?.reply_queue.as_ref()
    }
}

impl ChannelDeliveries {
    fn new() -> Self {
        Self {
            slots: BTreeSet::new(),
            consumers: BTreeMap::new(),
            pull_slots: BTreeMap::new(),
            unacked: UnackedDeliveries::default(),
            next_delivery_tag: 1,
            prefetch: 0,
            window: None,
            reply_queue: None,
        }
    }

    /// Allocates `count` consecutive delivery tags and returns the first.
    fn take_tags(&mut self, count: u32) -> u64 {
        let first = self.next_delivery_tag;
        self.next_delivery_tag += u64::from(count);
        first
    }
}
