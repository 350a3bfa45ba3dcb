//! The tag that says which protocol a connection speaks, and each protocol's characteristics.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which protocol a connection speaks. The only list of protocols outside their own front ends:
/// code that depends on a protocol's characteristics asks its [`Traits`] instead of comparing tags.
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

/// The characteristics of a protocol that matter to code for several protocols: server, doctor and
/// bench.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traits {
    /// The name in labels and before `://`, lower case. Stable: dashboards depend on it.
    pub name: &'static str,
    /// The name as people write it.
    pub title: &'static str,
    /// The protocol in a few words.
    pub about: &'static str,
    /// The default port of its clients.
    pub port: u16,
    /// Whether a topic has partitions that clients number.
    pub has_partitions: bool,
    /// Whether messages have keys.
    pub has_keys: bool,
    /// Whether one request can publish several messages.
    pub has_batches: bool,
    /// Whether a publisher sends many small requests without waiting for their answers, so that
    /// single requests queue on its link. A Kafka client sends few, with many messages each.
    pub has_many_requests: bool,
    /// Whether a connection has channels. Its client id is then a connection name, to which some
    /// libraries add a number.
    pub has_channels: bool,
    /// How clients compress their messages.
    pub compression: Compression,
    /// How many messages a client library puts into one request.
    pub batching: Batching,
    /// Round trips of the connection's handshake that do not count as requests.
    pub greeting_round_trips: u8,
    /// Whether a connection's first bytes are a request, and it may stay open without another.
    pub begins_with_request: bool,
}

/// How many messages a client library puts into one request, if its caller does not wait for each
/// message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// One message.
    Nothing,
    /// As many messages as there are.
    Anything,
    /// By default, as many messages as fit a number of bytes.
    UpTo {
        /// Maximum bytes of the messages of one request.
        bytes: u32,
    },
}

/// How a protocol's clients compress their messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// Each batch separately.
    Batches,
    /// The whole connection, as one compressed stream.
    Connection,
}

/// A protocol without any of these features.
const PLAIN: Traits = Traits {
    name: "",
    title: "",
    about: "",
    port: 0,
    has_partitions: false,
    has_keys: false,
    has_batches: false,
    has_many_requests: false,
    has_channels: false,
    compression: Compression::None,
    batching: Batching::Nothing,
    greeting_round_trips: 0,
    begins_with_request: false,
};

static NSQ: Traits = Traits {
    name: "nsq",
    title: "NSQ",
    about: "NSQ's TCP protocol",
    port: 4150,
    has_batches: true,
    has_many_requests: true,
    compression: Compression::Connection,
    batching: Batching::Anything,
    ..PLAIN
};

static KAFKA: Traits = Traits {
    name: "kafka",
    title: "Kafka",
    about: "Kafka's protocol",
    port: 9092,
    has_partitions: true,
    has_keys: true,
    has_batches: true,
    compression: Compression::Batches,
    batching: Batching::UpTo { bytes: 16_384 },
    ..PLAIN
};

static AMQP: Traits = Traits {
    name: "amqp",
    title: "AMQP",
    about: "AMQP 0-9-1",
    port: 5672,
    has_many_requests: true,
    has_channels: true,
    // For the protocol header, `start-ok` and `open`.
    greeting_round_trips: 3,
    ..PLAIN
};

static NATS: Traits = Traits {
    name: "nats",
    title: "NATS",
    about: "NATS",
    port: 4222,
    ..PLAIN
};

static HTTP: Traits = Traits {
    name: "http",
    title: "HTTP",
    about: "HTTP",
    port: 80,
    batching: Batching::Anything,
    begins_with_request: true,
    ..PLAIN
};

impl Protocol {
    /// All protocols, in the order of their tags.
    pub const ALL: [Protocol; 5] = [
        Protocol::Nsq,
        Protocol::Kafka,
        Protocol::Amqp,
        Protocol::Nats,
        Protocol::Http,
    ];

    /// Its characteristics.
    pub fn traits(self) -> &'static Traits {
        match self {
            Protocol::Nsq => &NSQ,
            Protocol::Kafka => &KAFKA,
            Protocol::Amqp => &AMQP,
            Protocol::Nats => &NATS,
            Protocol::Http => &HTTP,
        }
    }

    /// The name used in labels, lower case. Stable: dashboards depend on it.
    pub fn name(self) -> &'static str {
        self.traits().name
    }

    /// Position in [`Protocol::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

impl FromStr for Protocol {
    type Err = ();

    /// Parses the name used in labels.
    fn from_str(name: &str) -> Result<Protocol, ()> {
        let found = Protocol::ALL.into_iter().find(|it| it.name() == name);
        found.ok_or(())
    }
}
