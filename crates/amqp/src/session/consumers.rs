//! A connection's consumers, each in a slot.

use std::sync::Arc;

use cloverleaf_broker::{Consumer, Delivery, MessageRange};
use cloverleaf_log::Offset;

use super::ready::{Ready, Signal};
use super::settling::Run;
use crate::host::Queue;

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

/// The slots. One is used again when its consumer is gone.
#[derive(Default)]
pub(super) struct Consumers {
    slots: Vec<Option<Consuming>>,
    free: Vec<u32>,
    incarnations: u64,
    pub(super) ready: Arc<Ready>,
}

impl Consumers {
    /// Puts a consumer into a slot.
    pub(super) fn insert(&mut self, make: impl FnOnce(Signal, u64) -> Consuming) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                // No connection has so many.
                (self.slots.len() - 1) as u32
            }
        };
        self.incarnations += 1;
        self.slots[slot as usize] = Some(make(self.ready.signal(slot), self.incarnations));
        slot
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
        self.free.push(slot);
        Some(consuming)
    }

    /// All that belong to a channel.
    pub(super) fn of_channel(&self, channel: u16) -> Vec<u32> {
        let slots = (0u32..).zip(&self.slots);
        let of_channel = slots.filter(|(_, slot)| {
            slot.as_ref()
                .is_some_and(|consuming| consuming.channel == channel)
        });
        of_channel.map(|(slot, _)| slot).collect()
    }
}

impl Consumers {
    /// How many messages may be on their way to the client, all its consumers together.
    pub(super) fn windows(&self) -> u64 {
        let live = self.slots.iter().flatten().filter(|it| !it.is_retired);
        let window = |it: &Consuming| match it.prefetch {
            0 => u64::from(u32::MAX),
            prefetch => prefetch.into(),
        };
        live.filter(|it| !it.tag.is_empty()).map(window).sum()
    }
}
