//! Counters with one definition each: cell, plain value, metric name and help text.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// A number with one writer: adding is a relaxed load and a store, not a locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Cell(AtomicU64);

impl Cell {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0
            .store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $help:literal])+ $name:ident,)+) => {
        /// The live values of [`Counters`], written by one thread.
        #[derive(Debug, Default)]
        pub(crate) struct CounterCells { $(pub(crate) $name: Cell,)+ }

        impl CounterCells {
            pub(crate) fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.get(),)+ }
            }
        }

        /// Counts of one connection, or of all connections of a protocol together. Every field only
        /// ever grows.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counters { $($(#[doc = $help])+ pub $name: u64,)+ }

        impl Counters {
            /// Adds every field of `other`.
            pub fn merge(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }

            /// How many counters there are.
            pub const COUNT: usize = [$(stringify!($name)),+].len();

            /// The values in the order of definition.
            pub fn to_array(&self) -> [u64; Self::COUNT] {
                [$(self.$name,)+]
            }

            /// From values in the order of definition.
            pub fn from_array([$($name,)+]: [u64; Self::COUNT]) -> Self {
                Self { $($name,)+ }
            }

            /// Name, help text and value of each counter, in the order of definition.
            pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($help),+).trim(), self.$name),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Bytes read from clients.
    bytes_in,
    /// Bytes written to clients.
    bytes_out,
    /// Socket reads that returned bytes.
    reads,
    /// Socket reads that ended inside a frame.
    partial_reads,
    /// Messages published by clients.
    messages_in,
    /// Bytes of the requests that published.
    published_bytes,
    /// Messages sent to clients, delivered or read by offset.
    messages_out,
    /// Requests that want an answer.
    requests,
    /// Answers sent.
    responses,
    /// Requests that published messages.
    publishes,
    /// Messages delivered through a subscription.
    deliveries,
    /// Deliveries of a message that had been delivered before.
    redeliveries,
    /// Messages acknowledged.
    acks,
    /// Messages acknowledged in the order of delivery.
    acks_in_order,
    /// Messages acknowledged right after a newer one of the same consumer.
    acks_out_of_order,
    /// Acknowledgements of messages that were no longer in flight.
    acks_late,
    /// Messages given back by the client.
    nacks,
    /// Deliveries whose deadline passed without acknowledgement.
    timeouts,
    /// Errors answered to clients.
    errors,
    /// Microseconds during which messages waited and the client had given no credit.
    no_credit_us,
    /// Microseconds during which the client had messages in flight.
    holding_us,
    /// Channels opened within connections.
    channels_opened,
    /// Requests that want no answer.
    requests_silent,
    /// Publishing requests whose first record bears a time later than the broker's.
    records_ahead,
    /// Record batches published.
    batches_in,
    /// Microseconds from the time that the first record of each batch bears to that of its last.
    batch_spans_us,
    /// Requests that came behind an answer and after another such request.
    rounds,
    /// Microseconds from each of these requests to the next.
    rounds_us,
    /// Microseconds by which each of these times differed from the one before it.
    round_changes_us,
    /// Squares of these differences, where two rounds of one request each differed by at most 8 ms.
    round_changes_sq,
    /// Squares of what the times from these requests to their answers differed from those before.
    served_changes_sq,
    /// Squares of what the gaps behind these answers differed from those before.
    gap_changes_sq,
    /// Bytes of published messages that were looked at for how well they compress.
    sampled_bytes,
    /// What these take compressed with lz4.
    sampled_bytes_compressed,
}
