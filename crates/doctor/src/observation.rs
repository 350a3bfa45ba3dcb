//! The doctor's input: telemetry of all connections, and the messages that wait in the queues.

use cloverleaf_telemetry::{Protocol, Snapshot};
use serde::{Deserialize, Serialize};

/// The broker at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// When the observation was made, on the broker's monotonic clock, in microseconds.
    pub taken_us: u64,
    /// The same time on the wall clock, in microseconds since 1970. It may jump.
    pub unix_us: u64,
    /// All connections.
    pub snapshot: Snapshot,
    /// The queues that have consumers.
    pub queues: Vec<Queue>,
}

/// A subscription (NSQ channel, AMQP queue) or a Kafka consumer group's view of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The topic.
    pub topic: String,
    /// The subscription's or group's name.
    pub name: String,
    /// Its consumers' protocol.
    pub protocol: Protocol,
    /// Messages that wait and are not in flight; for a group its lag.
    pub backlog: u64,
    /// The longest acknowledgement deadline that a consumer can ask for, in microseconds; `None` if
    /// there is no limit.
    #[serde(default)]
    pub deadline_us_max: Option<u64>,
    /// The consumers that take messages from it.
    pub consumers: Vec<Consumer>,
    /// Its partitions, where consumers have some each (Kafka groups); else empty.
    pub partitions: Vec<Partition>,
}

/// A consumer of a queue, or a member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumer {
    /// Its connection's number. Several consumers of a connection have one entry each.
    pub connection: u64,
    /// Messages that it may have in flight (RDY, prefetch); `u64::MAX` without a limit.
    pub credit: u64,
    /// Messages that it has in flight.
    pub in_flight: u64,
    /// Its acknowledgement deadline, after which a message is delivered again, in microseconds;
    /// `None` if there is none.
    #[serde(default)]
    pub deadline_us: Option<u64>,
}

/// A partition of a topic, as a group sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Its number.
    pub partition: u32,
    /// Messages that were ever published to it.
    pub published: u64,
    /// Messages that the group has not committed.
    pub lag: u64,
    /// The connection of the member to which the partition is assigned.
    pub connection: Option<u64>,
}
