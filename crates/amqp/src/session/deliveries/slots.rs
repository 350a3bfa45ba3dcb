//! The slots of a connection's consumers.

use std::sync::Arc;
use std::task::Context;

use cloverleaf_broker::{Consumer, Delivery, MessageRange};
use cloverleaf_log::Offset;

use super::unacked::UnackedRun;
use super::wakeups::{ReadySlots, SlotSignal};
use crate::host::Queue;

/// How long the telemetry reuses what is known of a queue's backlog: asking takes the queue's lock.
const BACKLOG_CHECK_INTERVAL_US: u64 = 10_000;

/// A consumer of a channel, or the pull consumer of its `basic.get`.
pub(super) struct ConsumerSlot {
    /// Distinguishes this consumer from earlier ones in the same slot, of which deliveries may
    /// still be unacknowledged.
    pub(super) incarnation: u64,
    pub(super) channel: u16,
    /// The consumer tag; empty for `basic.get`.
    pub(super) tag: String,
    pub(super) queue: Arc<Queue>,
    pub(super) consumer: Consumer,
    pub(super) signal: SlotSignal,
    pub(super) no_ack: bool,
    /// Cancelled: the slot is freed with the last unacknowledged delivery.
    pub(super) is_retired: bool,
    /// Deliveries from the broker that are not written yet; the first may be partly written.
    pub(super) deliveries: Vec<Delivery>,
    /// How many of `deliveries` are completely written.
    pub(super) deliveries_written: usize,
    /// Number of messages that the client has not settled.
    pub(super) unacked: u64,
    /// Acknowledgements collected in this read.
    pub(super) acks: Vec<MessageRange>,
    /// Partition and offset of the last acknowledged message, for telling acknowledgements in order
    /// from others.
    pub(super) last_ack: Option<(u32, Offset)>,
    /// The prefetch with which it was started; 0: no limit.
    pub(super) prefetch: u16,
}

/// The limits of a consumer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConsumerLimits {
    /// Its deliveries need no acknowledgement, so their number is unlimited.
    pub(super) no_ack: bool,
    /// Maximum number of unacknowledged deliveries; 0: no limit.
    pub(super) prefetch: u16,
}

/// The slots. A freed slot is used again.
#[derive(Default)]
pub(super) struct Consumers {
    slots: Vec<Option<ConsumerSlot>>,
    free: Vec<u32>,
    incarnations: u64,
    credit: u64,
    /// Number of unacknowledged deliveries of all consumers.
    unacked: u64,
    /// Whether ready messages were waiting at the last check.
    has_backlog: bool,
    /// Time of the next check.
    backlog_check_us: u64,
    ready: Arc<ReadySlots>,
}

impl Consumers {
    /// Puts a consumer into a slot. The tag is empty for a pull consumer of `basic.get`.
    pub(super) fn insert(
        &mut self,
        channel: u16,
        tag: String,
        queue: Arc<Queue>,
        consumer: Consumer,
        limits: ConsumerLimits,
    ) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                // Fits: a connection has at most `CONSUMERS_MAX` consumers, and a few pull
                // consumers.
                (self.slots.len() - 1) as u32
            }
        };
        self.incarnations += 1;
        let entry = ConsumerSlot {
            incarnation: self.incarnations,
            channel,
            tag,
            queue,
            consumer,
            signal: self.ready.signal(slot),
            no_ack: limits.no_ack,
            is_retired: false,
            deliveries: Vec::new(),
            deliveries_written: 0,
            unacked: 0,
            acks: Vec::new(),
            last_ack: None,
            prefetch: limits.prefetch,
        };
        self.credit += entry.credit();
        self.slots[slot as usize] = Some(entry);
        slot
    }

    /// Appends the woken slots to `into`. The context is woken when a further slot is.
    pub(super) fn take_ready(&self, cx: &Context<'_>, into: &mut Vec<u32>) {
        self.ready.take(cx, into);
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut ConsumerSlot> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The consumer to which a run was delivered, if it still exists.
    pub(super) fn of_run(&mut self, run: &UnackedRun) -> Option<&mut ConsumerSlot> {
        let entry = self.get_mut(run.slot)?;
        (entry.incarnation == run.incarnation).then_some(entry)
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<ConsumerSlot> {
        let entry = self.slots.get_mut(slot as usize)?.take()?;
        self.credit -= entry.credit();
        self.unacked = self.unacked.saturating_sub(entry.unacked);
        self.free.push(slot);
        Some(entry)
    }

    /// Marks the consumer of a slot as cancelled, so that it gets no further deliveries.
    pub(super) fn retire(&mut self, slot: u32) -> Option<&mut ConsumerSlot> {
        let entry = self.slots.get_mut(slot as usize)?.as_mut()?;
        self.credit -= entry.credit();
        entry.is_retired = true;
        Some(entry)
    }

    /// The number of slots in use.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The prefetch of all consumers together: how many messages may be in flight to the client.
    pub(super) fn credit(&self) -> u64 {
        self.credit
    }

    /// Counts written deliveries that need an acknowledgement.
    pub(super) fn delivered(&mut self, count: u64) {
        self.unacked += count;
    }

    /// Counts settled deliveries.
    pub(super) fn settled(&mut self, count: u64) {
        self.unacked = self.unacked.saturating_sub(count);
    }

    /// The number of unacknowledged deliveries.
    pub(super) fn unacked(&self) -> u64 {
        self.unacked
    }

    /// Whether the client has used up its credit while ready messages wait in the queue of this
    /// slot.
    pub(super) fn is_out_of_credit(&mut self, slot: u32, now_us: u64) -> bool {
        if self.credit == 0 || self.unacked < self.credit {
            return false;
        }
        if now_us >= self.backlog_check_us {
            let entry = self.get_mut(slot);
            let waits = entry.is_some_and(|entry| entry.queue.counts().0 > 0);
            self.has_backlog = waits;
            self.backlog_check_us = now_us + BACKLOG_CHECK_INTERVAL_US;
        }
        self.has_backlog
    }
}

impl ConsumerSlot {
    fn credit(&self) -> u64 {
        match self.prefetch {
            _ if self.is_retired || self.tag.is_empty() => 0,
            0 => u32::MAX.into(),
            prefetch => prefetch.into(),
        }
    }
}
