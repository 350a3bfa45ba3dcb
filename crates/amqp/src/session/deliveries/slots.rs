//! A connection's consumers, each in a slot.

use std::sync::Arc;
use std::task::Context;

use cloverleaf_broker::{Consumer, Delivery, MessageRange};
use cloverleaf_log::Offset;

use super::unacked::Run;
use super::wakeups::{Ready, Signal};
use crate::host::Queue;

/// How long what is known of a backlog is good enough for the telemetry: asking takes the queue's
/// lock.
const BACKLOG_KNOWN_US: u64 = 10_000;

/// A consumer of a channel, or what its `basic.get` takes from.
pub(super) struct Consuming {
    /// Tells it from others that had its slot before, of which deliveries may still be known.
    pub(super) incarnation: u64,
    pub(super) channel: u16,
    /// Empty for `basic.get`.
    pub(super) tag: String,
    pub(super) queue: Arc<Queue>,
    pub(super) consumer: Consumer,
    pub(super) signal: Signal,
    pub(super) no_ack: bool,
    /// Cancelled: it goes with its last unacknowledged delivery.
    pub(super) is_retired: bool,
    /// Delivered by the broker, not yet written; the first may be partly written.
    pub(super) runs: Vec<Delivery>,
    /// How many of `runs` are done with.
    pub(super) runs_done: usize,
    /// Deliveries that the client has not settled.
    pub(super) unacked: u64,
    /// Acknowledgements of this read.
    pub(super) acks: Vec<MessageRange>,
    /// The message that was acknowledged last, to tell acknowledgements in order from others.
    pub(super) last_ack: Option<(u32, Offset)>,
    /// The window that it was given.
    pub(super) prefetch: u16,
}

/// How many messages may be with a consumer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Any number: none of them is acknowledged.
    pub(super) no_ack: bool,
    /// So many; 0: no limit.
    pub(super) prefetch: u16,
}

/// The slots. One is used again when its consumer is gone.
#[derive(Default)]
pub(super) struct Consumers {
    slots: Vec<Option<Consuming>>,
    free: Vec<u32>,
    incarnations: u64,
    credit: u64,
    /// Deliveries that are not settled, of all consumers.
    unacked: u64,
    /// Whether messages waited for a consumer when that was looked at last.
    backlog: bool,
    /// When to look again.
    backlog_check_us: u64,
    ready: Arc<Ready>,
}

impl Consumers {
    /// Puts a consumer into a slot. Its tag is empty if it is one of `basic.get`.
    pub(super) fn insert(
        &mut self,
        channel: u16,
        tag: String,
        queue: Arc<Queue>,
        consumer: Consumer,
        limits: Limits,
    ) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                // No connection has so many.
                (self.slots.len() - 1) as u32
            }
        };
        self.incarnations += 1;
        let consuming = Consuming {
            incarnation: self.incarnations,
            channel,
            tag,
            queue,
            consumer,
            signal: self.ready.signal(slot),
            no_ack: limits.no_ack,
            is_retired: false,
            runs: Vec::new(),
            runs_done: 0,
            unacked: 0,
            acks: Vec::new(),
            last_ack: None,
            prefetch: limits.prefetch,
        };
        self.credit += consuming.credit();
        self.slots[slot as usize] = Some(consuming);
        slot
    }

    /// Moves the slots that were woken behind those in `into`; the context is woken when there are
    /// more.
    pub(super) fn take_ready(&self, cx: &Context<'_>, into: &mut Vec<u32>) {
        self.ready.take(cx, into);
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Consuming> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The consumer to which a run was delivered, if it is still there.
    pub(super) fn of_run(&mut self, run: &Run) -> Option<&mut Consuming> {
        let consuming = self.get_mut(run.slot)?;
        (consuming.incarnation == run.incarnation).then_some(consuming)
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Consuming> {
        let consuming = self.slots.get_mut(slot as usize)?.take()?;
        self.credit -= consuming.credit();
        self.unacked = self.unacked.saturating_sub(consuming.unacked);
        self.free.push(slot);
        Some(consuming)
    }

    /// The consumer of a slot gets nothing more.
    pub(super) fn retire(&mut self, slot: u32) -> Option<&mut Consuming> {
        let consuming = self.slots.get_mut(slot as usize)?.as_mut()?;
        self.credit -= consuming.credit();
        consuming.is_retired = true;
        Some(consuming)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many messages may be on their way to the client, all together.
    pub(super) fn credit(&self) -> u64 {
        self.credit
    }

    /// Deliveries were written that have to be settled.
    pub(super) fn delivered(&mut self, count: u64) {
        self.unacked += count;
    }

    /// Deliveries were settled.
    pub(super) fn settled(&mut self, count: u64) {
        self.unacked = self.unacked.saturating_sub(count);
    }

    /// How many deliveries are not settled.
    pub(super) fn unacked(&self) -> u64 {
        self.unacked
    }

    /// Whether the client has used up all its credit while messages wait in the queue of this slot.
    pub(super) fn is_short(&mut self, slot: u32, now_us: u64) -> bool {
        if self.credit == 0 || self.unacked < self.credit {
            return false;
        }
        if now_us >= self.backlog_check_us {
            let consuming = self.get_mut(slot);
            let waits = consuming.is_some_and(|consuming| consuming.queue.counts().0 > 0);
            self.backlog = waits;
            self.backlog_check_us = now_us + BACKLOG_KNOWN_US;
        }
        self.backlog
    }
}

impl Consuming {
    fn credit(&self) -> u64 {
        match self.prefetch {
            _ if self.is_retired || self.tag.is_empty() => 0,
            0 => u32::MAX.into(),
            prefetch => prefetch.into(),
        }
    }
}
