//! The tag that says which protocol a connection speaks.

use serde::{Deserialize, Serialize};

/// Which protocol a connection speaks. The only thing this crate knows about protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// NSQ's TCP protocol V2.
    Nsq,
    /// Apache Kafka's protocol.
    Kafka,
    /// AMQP 0-9-1.
    Amqp,
    /// NATS, with JetStream.
    Nats,
    /// Any HTTP interface that publishes or reads.
    Http,
}

impl Protocol {
    /// All protocols, in the order of their tags.
    pub const ALL: [Protocol; 5] = [
        Protocol::Nsq,
        Protocol::Kafka,
        Protocol::Amqp,
        Protocol::Nats,
        Protocol::Http,
    ];

    /// The name used in labels, lower case. Stable: dashboards depend on it.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Nsq => "nsq",
            Protocol::Kafka => "kafka",
            Protocol::Amqp => "amqp",
            Protocol::Nats => "nats",
            Protocol::Http => "http",
        }
    }

    /// Position in [`Protocol::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}
