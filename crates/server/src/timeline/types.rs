//! The answer of `GET /api/timeline`, as JSON. The command line draws it.
//!
//! All times are microseconds since the Unix epoch.

pub use cloverleaf_telemetry::{ExchangeKind, Protocol};
use serde::{Deserialize, Serialize};

/// The messages in flight by consumer, and the publishes by producer, in a time span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// The start of the span.
    pub from_us: u64,
    /// The end of the span: the time of the request.
    pub until_us: u64,
    /// The topics, in the order of the request.
    pub topics: Vec<TopicTimeline>,
    /// Maximum pieces of a lane recorded per second; further ones are only counted.
    pub pieces_per_second_max: f64,
    /// Notes about events that are not shown.
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
    /// Connections that read the topic by offset, or committed offsets.
    pub readers: Vec<ExchangeLane>,
}

/// One subscription.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubscriptionTimeline {
    /// Its name.
    pub name: String,
    /// Messages that wait for a consumer now.
    pub depth: u64,
    /// Its consumers, in the order in which they connected.
    pub consumers: Vec<HoldLane>,
}

/// The client that a lane belongs to, and how much is missing from its record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneOwner {
    /// Number of the connection.
    pub connection: u64,
    /// The protocol of the connection; `None`: it was closed long ago.
    pub protocol: Option<Protocol>,
    /// The client's library and version, as the client reports them.
    pub library: String,
    /// The client ID.
    pub client_id: String,
    /// The address of the other end.
    pub peer: String,
    /// Whether the connection is open.
    pub is_open: bool,
    /// Messages of the shown span that are in no piece, because there were too many.
    pub left_out: u64,
    /// Pieces before this time were dropped to make space for newer ones; `None`: none were.
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
    /// Whether it asks for each message (`basic.get`) instead of subscribing.
    pub pulls: bool,
    /// Maximum messages that may be in flight to it.
    pub window: u32,
    /// Its deliveries, ended and in flight.
    pub holds: Vec<HoldPiece>,
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldOutcome {
    /// It has not ended: the messages are in flight.
    Held,
    /// Acknowledged, or delivered in a mode without acknowledgements.
    Acked,
    /// Requeued by the consumer.
    Nacked,
    /// Rejected by the consumer without a requeue.
    Rejected,
    /// The lease expired.
    TimedOut,
    /// The consumer disconnected.
    Left,
}

/// Consecutive messages that were delivered to one consumer together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldPiece {
    /// Their partition.
    pub partition: u32,
    /// The offset of the first one.
    pub first: u64,
    /// Number of messages.
    pub count: u32,
    /// Since when the first one waited: since its publish, or since the end of its last delivery;
    /// `None`: that delivery is no longer known.
    pub waiting_since_us: Option<u64>,
    /// When they were delivered.
    pub delivered_us: u64,
    /// When the delivery ended; if it has not: [`Timeline::until_us`].
    pub ended_us: u64,
    /// Number of deliveries so far, this one included.
    pub attempts: u16,
    /// How the delivery ended.
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
    /// Number of requests.
    pub requests: u32,
    /// Messages published or read, in all of the request's topics.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Number of topics of the request.
    pub topics: u32,
    /// The partition that was read or committed.
    pub partition: u32,
    /// The first offset that was read, or the offset that was committed.
    pub offset: u64,
    /// When the first byte of the first request came; for reads, when the client began to ask for
    /// these messages.
    pub requested_us: u64,
    /// When the last byte came.
    pub received_us: u64,
    /// When the answer was sent; `None`: it is not sent yet, or none is expected.
    pub answered_us: Option<u64>,
    /// Whether the client expects an answer.
    pub wants_answer: bool,
}
