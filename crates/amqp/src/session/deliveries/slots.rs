//! A connection's consumers, each in a slot.

use std::sync::Arc;

use cloverleaf_broker::{Consumer, Delivery, MessageRange};
use cloverleaf_log::Offset;

use super::settlement::Run;
use super::wakeups::{Ready, Signal};
use crate::host::Queue;

/// How long what is known of a backlog is good enough for the telemetry: asking takes the queue's
/// lock.
const BACKLOG_KNOWN_US: u64 = 10_000;

/// A consumer of a channel, or what its `basic.get` takes from.
pub(in crate::session) struct Consuming {
    /// Tells it from others that had its slot before, of which deliveries may still be known.
    pub(in crate::session) incarnation: u64,
    pub(in crate::session) channel: u16,
    /// Empty for `basic.get`.
    pub(in crate::session) tag: String,
    pub(in crate::session) queue: Arc<Queue>,
    pub(in crate::session) consumer: Consumer,
    pub(in crate::session) signal: Signal,
    pub(in crate::session) no_ack: bool,
    /// Cancelled: it goes with its last unacknowledged delivery.
    pub(in crate::session) is_retired: bool,
    /// Delivered by the broker, not yet written; the first may be partly written.
    pub(in crate::session) runs: Vec<Delivery>,
    /// How many of `runs` are done with.
    pub(in crate::session) runs_done: usize,
    /// Deliveries that the client has not settled.
    pub(in crate::session) unacked: u64,
    /// Acknowledgements of this read.
    pub(in crate::session) acks: Vec<MessageRange>,
    /// The message that was acknowledged last, to tell acknowledgements in order from others.
    pub(in crate::session) last_ack: Option<(u32, Offset)>,
    /// The window that it was given.
    pub(in crate::session) prefetch: u16,
}

/// The slots. One is used again when its consumer is gone.
#[derive(Default)]
pub(in crate::session) struct Consumers {
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
    pub(in crate::session) ready: Arc<Ready>,
}

impl Consumers {
    /// Puts a consumer into a slot.
    pub(in crate::session) fn insert(
        &mut self,
        make: impl FnOnce(Signal, u64) -> Consuming,
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
        let consuming = make(self.ready.signal(slot), self.incarnations);
        self.credit += consuming.credit();
        self.slots[slot as usize] = Some(consuming);
        slot
    }

    pub(in crate::session) fn get_mut(&mut self, slot: u32) -> Option<&mut Consuming> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The consumer to which a run was delivered, if it is still there.
    pub(in crate::session) fn of_run(&mut self, run: &Run) -> Option<&mut Consuming> {
        let consuming = self.get_mut(run.slot)?;
        (consuming.incarnation == run.incarnation).then_some(consuming)
    }

    pub(in crate::session) fn remove(&mut self, slot: u32) -> Option<Consuming> {
        let consuming = self.slots.get_mut(slot as usize)?.take()?;
        self.credit -= consuming.credit();
        self.unacked = self.unacked.saturating_sub(consuming.unacked);
        self.free.push(slot);
        Some(consuming)
    }

    /// The consumer of a slot gets nothing more.
    pub(in crate::session) fn retire(&mut self, slot: u32) -> Option<&mut Consuming> {
        let consuming = self.slots.get_mut(slot as usize)?.as_mut()?;
        self.credit -= consuming.credit();
        consuming.is_retired = true;
        Some(consuming)
    }

    /// How many there are.
    pub(in crate::session) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many messages may be on their way to the client, all together.
    pub(in crate::session) fn credit(&self) -> u64 {
        self.credit
    }

    /// Deliveries were written that have to be settled.
    pub(in crate::session) fn delivered(&mut self, count: u64) {
        self.unacked += count;
    }

    /// Deliveries were settled.
    pub(in crate::session) fn settled(&mut self, count: u64) {
        self.unacked = self.unacked.saturating_sub(count);
    }

    /// How many deliveries are not settled.
    pub(in crate::session) fn unacked(&self) -> u64 {
        self.unacked
    }

    /// Whether the client has used up all its credit while messages wait in the queue of this slot.
    pub(in crate::session) fn is_short(&mut self, slot: u32, now_us: u64) -> bool {
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
