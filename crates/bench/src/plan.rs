//! The plan of a measurement: how many messages of what kind, by whom, and how fast.

use serde::{Deserialize, Serialize};

use crate::payload::PayloadKind;
use crate::schedule::Arrivals;

/// When a measurement is over.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Amount {
    /// After so many messages of all producers together, those of the warm-up apart.
    Messages(u64),
    /// After so many seconds, the warm-up apart.
    Seconds(f64),
}

/// The acknowledgement that a producer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Acks {
    /// For nothing: Kafka's `acks=0`, AMQP without confirms.
    None,
    /// For the broker: Kafka's `acks=1`, AMQP's confirm of a transient message, NSQ's OK.
    One,
    /// For the safest that the protocol has: Kafka's `acks=all`, AMQP's confirm of a persistent
    /// message in a durable queue; of NSQ it is the same as [`Acks::One`].
    All,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Tells its messages from those of others.
    pub run: u32,
    /// The topic, or the queue.
    pub topic: String,
    /// Connections that publish.
    pub producers: u32,
    /// Connections that consume.
    pub consumers: u32,
    /// Bytes of each message.
    pub size_bytes: usize,
    /// Their content.
    pub payload: PayloadKind,
    /// How many messages.
    pub amount: Amount,
    /// Seconds before the measurement in which messages are sent and not counted.
    pub warm_up_s: f64,
    /// When they are sent.
    pub arrivals: Arrivals,
    /// Most messages of one request.
    pub batch_messages: u32,
    /// Most messages of a connection that are not acknowledged; for a consumer, that it holds. 0:
    /// no limit.
    pub in_flight: u32,
    /// The acknowledgement that a producer waits for.
    pub acks: Acks,
    /// Partitions of the topic, where there are some.
    pub partitions: u32,
    /// Different keys; 0: messages have none.
    pub keys: u64,
    /// Seed of everything that is random.
    pub seed: u64,
}

impl Plan {
    /// Most messages in flight of one connection; `unbounded` where the plan has no bound.
    pub(crate) fn window(&self, unbounded: u32) -> u32 {
        match self.in_flight {
            0 => unbounded,
            window => window,
        }
    }

    /// Messages that this producer has to send if messages are counted: shared out evenly.
    pub fn share(&self, producer: u32) -> Option<u64> {
        let Amount::Messages(messages) = self.amount else {
            return None;
        };
        let producers = u64::from(self.producers.max(1));
        let more = u64::from(u64::from(producer) < messages % producers);
        Some(messages / producers + more)
    }

    /// Seconds that producers send at least, the warm-up apart: those that were asked for, or those
    /// in which so many messages are due. `None`: as fast as it goes, or at random times.
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

    /// Seconds after which producers end, warm-up included, if time is counted.
    pub fn end_s(&self) -> Option<f64> {
        match self.amount {
            Amount::Messages(_) => None,
            Amount::Seconds(seconds) => Some(self.warm_up_s + seconds),
        }
    }
}
