//! The answer of `GET /api/timeline`, as JSON. The command line draws it.
//!
//! All times are microseconds since the Unix epoch.

pub use cloverleaf_telemetry::{ExchangeKind, Protocol};
use serde::{Deserialize, Serialize};

/// The messages in flight by consumer, and the publishes by producer, in a span of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Where it begins.
    pub from_us: u64,
    /// Where it ends: when it was asked for.
    pub until_us: u64,
    /// The topics, as they were asked for.
    pub topics: Vec<TopicTimeline>,
    /// Pieces of a lane recorded per second, at most; those above are only counted.
    pub pieces_per_second_max: f64,
    /// Notes on the events that the picture does not show.
    pub notes: Vec<String>,
}

/// One topic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopicTimeline {
    /// Its name.
    pub topic: String,
    /// Connections that published to it.
    pub producers: Vec<ExchangeLane>,
    /// Its subscriptions.
    pub subscriptions: Vec<SubscriptionTimeline>,
    /// Connections that read it by offset, or committed offsets.
    pub readers: Vec<ExchangeLane>,
}

/// One subscription.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubscriptionTimeline {
    /// Its name.
    pub name: String,
    /// Messages that wait now.
    pub depth: u64,
    /// Its consumers, in the order in which they connected.
    pub consumers: Vec<HoldLane>,
}

/// The client that a lane belongs to, and how much is missing from its record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneOwner {
    /// Number of the connection.
    pub connection: u64,
    /// The protocol that it speaks; `None`: it is closed and no longer known.
    pub protocol: Option<Protocol>,
    /// The client's library and version, as it says itself.
    pub library: String,
    /// The client's name for itself.
    pub client_id: String,
    /// The address of the other end.
    pub peer: String,
    /// Whether it is still there.
    pub is_open: bool,
    /// Messages of the shown time that no piece tells of, because there were too many.
    pub left_out: u64,
    /// Before this, pieces were forgotten for newer ones.
    pub complete_since_us: Option<u64>,
}

/// The record of a consumer: its deliveries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HoldLane {
    /// The client that it belongs to.
    #[serde(flatten)]
    pub owner: LaneOwner,
    /// Its label in the subscription's statistics: the consumer tag of AMQP.
    pub label: String,
    /// Whether it asks for each message (`basic.get`), instead of being given them.
    pub pulls: bool,
    /// Messages that may be in flight to it: its credit.
    pub window: u32,
    /// Its deliveries, ended and in flight.
    pub holds: Vec<HoldPiece>,
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldOutcome {
    /// It has not: the messages are in flight.
    Held,
    /// Acknowledged, or wanted without acknowledgement.
    Acked,
    /// Given back by the consumer.
    Nacked,
    /// Given up by the consumer.
    Rejected,
    /// The consumer did not answer in time.
    TimedOut,
    /// The consumer left.
    Left,
}

/// Consecutive messages that one consumer held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldPiece {
    /// Their partition.
    pub partition: u32,
    /// The offset of the first one.
    pub first: u64,
    /// How many.
    pub count: u32,
    /// Since when the first one waited: since its publish, or since an earlier delivery ended;
    /// `None`: since a delivery that is not known any more.
    pub waiting_since_us: Option<u64>,
    /// When they were delivered.
    pub delivered_us: u64,
    /// When that ended; for those in flight: [`Timeline::until_us`].
    pub ended_us: u64,
    /// How often they had been delivered, this time included.
    pub attempts: u16,
    /// How it ended.
    pub outcome: HoldOutcome,
}

/// The record of a connection that publishes or reads by offset: its requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExchangeLane {
    /// The client that it belongs to.
    #[serde(flatten)]
    pub owner: LaneOwner,
    /// The consumer group for which it committed last.
    pub group: Option<String>,
    /// Its requests, oldest first.
    pub exchanges: Vec<ExchangePiece>,
}

/// One or more requests that came together, and their answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangePiece {
    /// The kind of request.
    pub kind: ExchangeKind,
    /// How many requests.
    pub requests: u32,
    /// Messages published or read; of all topics, if there are several.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Topics that the messages went to.
    pub topics: u32,
    /// The partition that was read, or committed.
    pub partition: u32,
    /// The first offset that was read; the one that was committed.
    pub offset: u64,
    /// When the first byte of the first request came; for messages that were read, since when the
    /// client has asked for some.
    pub requested_us: u64,
    /// When the last byte had come.
    pub received_us: u64,
    /// When the answer was sent; `None`: it is owed, or none is wanted.
    pub answered_us: Option<u64>,
    /// Whether the client wants an answer.
    pub wants_answer: bool,
}
