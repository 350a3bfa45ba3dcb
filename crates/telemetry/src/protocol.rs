//! The tag that says which protocol a connection speaks, and each protocol's characteristics.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which protocol a connection speaks. The one list of protocols outside their own front ends:
/// who wants to know what a protocol is like asks its [`Traits`].
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

/// The characteristics of a protocol, as far as a program that serves, measures or explains several
/// of them has to know.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traits {
    /// The name in labels and before `://`, lower case. Stable: dashboards depend on it.
    pub name: &'static str,
    /// The name as people write it.
    pub title: &'static str,
    /// The protocol in a few words.
    pub about: &'static str,
    /// The port that its clients connect to unless they are told another.
    pub port: u16,
    /// Whether a topic has partitions that clients number.
    pub has_partitions: bool,
    /// Whether messages have keys.
    pub has_keys: bool,
    /// Whether one request can publish several messages.
    pub has_batches: bool,
    /// Whether requests wait one by one: a publisher has many small ones on their way.
    pub has_many_requests: bool,
    /// Whether a connection has channels, and a name that its library may number.
    pub has_channels: bool,
    /// How clients make smaller what they send.
    pub compression: Compression,
    /// The batching of a client library: one request's messages when none needs to wait.
    pub gathers: Gathers,
    /// Round trips of its greeting that are no requests.
    pub greeting_round_trips: u8,
    /// Whether a connection's first bytes are a request, and it may stay open without another.
    pub begins_with_request: bool,
}

/// The batching of a client library: the messages that one request takes when it need not wait for
/// each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gathers {
    /// One message.
    Nothing,
    /// As many messages as there are.
    Anything,
    /// Messages of so many bytes together at most, if nobody sets it.
    UpTo {
        /// Those bytes.
        bytes: u32,
    },
}

/// How a protocol's clients make smaller what they send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// Each batch by itself.
    Batches,
    /// The whole connection, which knows what came before.
    Connection,
}

/// Of a protocol that has nothing of all that.
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
    gathers: Gathers::Nothing,
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
    gathers: Gathers::Anything,
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
    gathers: Gathers::UpTo { bytes: 16_384 },
    ..PLAIN
};

static AMQP: Traits = Traits {
    name: "amqp",
    title: "AMQP",
    about: "AMQP 0-9-1",
    port: 5672,
    has_many_requests: true,
    has_channels: true,
    // For the protocol header, start-ok, and open.
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
    gathers: Gathers::Anything,
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

    /// By its name in labels.
    fn from_str(name: &str) -> Result<Protocol, ()> {
        let found = Protocol::ALL.into_iter().find(|it| it.name() == name);
        found.ok_or(())
    }
}
