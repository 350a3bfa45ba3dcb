//! The plan of a measurement: how many messages of what kind, by whom, and how fast.

use serde::{Deserialize, Serialize};

use crate::payload::PayloadKind;
use crate::schedule::Arrivals;

/// When a measurement is over.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Amount {
    /// After this many messages of all producers together, the warm-up not included.
    Messages(u64),
    /// After this many seconds, the warm-up not included.
    Seconds(f64),
}

/// The acknowledgement that a producer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Acks {
    /// No acknowledgement: Kafka's `acks=0`, AMQP without confirms.
    None,
    /// That of one broker: Kafka's `acks=1`, AMQP's confirm of a transient message, NSQ's OK.
    One,
    /// The safest of the protocol: Kafka's `acks=all`, AMQP's confirm of a persistent message in a
    /// durable queue. With NSQ the same as [`Acks::One`].
    All,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Number of the measurement, which its messages carry.
    pub run: u32,
    /// The topic, or the queue.
    pub topic: String,
    /// Connections that publish.
    pub producers: u32,
    /// Connections that consume.
    pub consumers: u32,
    /// Bytes of each message.
    pub size_bytes: usize,
    /// The content of messages.
    pub payload: PayloadKind,
    /// When the measurement is over.
    pub amount: Amount,
    /// Seconds before the measurement, in which messages are sent and not counted.
    pub warm_up_s: f64,
    /// When messages are sent.
    pub arrivals: Arrivals,
    /// Maximum of messages in one request.
    pub batch_messages: u32,
    /// Maximum of messages of one connection that are not acknowledged, by the broker or by the
    /// consumer. 0: no limit.
    pub in_flight: u32,
    /// The acknowledgement that a producer waits for.
    pub acks: Acks,
    /// Number of partitions of the topic, if the protocol has partitions.
    pub partitions: u32,
    /// Number of different keys; 0: messages have no keys.
    pub keys: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Plan {
    /// Maximum of messages in flight on one connection; `unbounded` if the plan has no limit.
    pub(crate) fn window(&self, unbounded: u32) -> u32 {
        match self.in_flight {
            0 => unbounded,
            window => window,
        }
    }

    /// The number of messages of this producer, an even share; `None`: the end is a time.
    pub fn share(&self, producer: u32) -> Option<u64> {
        let Amount::Messages(messages) = self.amount else {
            return None;
        };
        let producers = u64::from(self.producers.max(1));
        let more = u64::from(u64::from(producer) < messages % producers);
        Some(messages / producers + more)
    }

    /// Minimum of seconds in which producers send, the warm-up not included: the duration of the
    /// plan, or the time in which its messages are due. `None` for a number of messages in a closed
    /// loop or at random times.
    pub fn least_s(&self) -> Option<f64> {
        match (self.amount, self.arrivals) {
            (Amount::Seconds(seconds), _) => Some(seconds),
            (
                Amount::Messages(messages),
                Arrivals::Constant { rate } | Arrivals::Bursts { rate, .. },
            ) => Some(messages as f64 / rate),
            (Amount::Messages(_), _) => None,
        }
    }

    /// Seconds after which producers end, the warm-up included; `None`: they end after a number of
    /// messages.
    pub fn end_s(&self) -> Option<f64> {
        match self.amount {
            Amount::Messages(_) => None,
            Amount::Seconds(seconds) => Some(self.warm_up_s + seconds),
        }
    }
}
