//! Requests and answers of the admin interface, as JSON. The command line uses the same types.

use std::collections::BTreeMap;

use cloverleaf_broker::Retention;
use serde::{Deserialize, Serialize};

/// A topic in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicSummary {
    /// Its name.
    pub name: String,
    /// Number of partitions.
    pub partitions: u32,
    /// Whether it disappears at a restart.
    pub ephemeral: bool,
    /// Whether delivery is stopped.
    pub paused: bool,
    /// Messages published since the broker started.
    pub messages: u64,
    /// Bytes stored.
    pub stored_bytes: u64,
    /// Names of its subscriptions.
    pub subscriptions: Vec<String>,
}

/// One partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionDetails {
    /// Its number.
    pub partition: u32,
    /// The offset of the oldest message, or one below it.
    pub start_offset: u64,
    /// Offset that the next message will get.
    pub end_offset: u64,
    /// Messages below this offset are known to be on the disk.
    pub synced_offset: u64,
    /// Bytes stored.
    pub stored_bytes: u64,
    /// Number of its files.
    pub segments: usize,
}

/// The description of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicDetails {
    /// The fields that the list of topics shows too.
    #[serde(flatten)]
    pub summary: TopicSummary,
    /// Its identity, which is never used again; it names the topic's folder.
    pub uuid: String,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When stored messages are deleted.
    pub retention: Retention,
    /// Kafka's topic settings that were set.
    pub config: BTreeMap<String, String>,
    /// Its partitions.
    pub partition_details: Vec<PartitionDetails>,
    /// Its subscriptions.
    pub subscription_details: Vec<SubscriptionDetails>,
}

/// The description of a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionDetails {
    /// Its name.
    pub name: String,
    /// Its topic.
    pub topic: String,
    /// Whether it is deleted with its last consumer.
    pub ephemeral: bool,
    /// Whether delivery is stopped.
    pub paused: bool,
    /// Messages that wait for a consumer.
    pub depth: u64,
    /// Messages that are leased to consumers.
    pub in_flight: u64,
    /// Messages that wait for a delay to pass.
    pub delayed: u64,
    /// Deliveries since the broker started, including redeliveries.
    pub delivered: u64,
    /// Messages acknowledged since the broker started.
    pub acknowledged: u64,
    /// Messages that consumers have requeued since the broker started.
    pub requeued: u64,
    /// Messages whose lease has expired since the broker started.
    pub timed_out: u64,
    /// Messages dead-lettered since the broker started.
    pub dead_lettered: u64,
    /// Deliveries after which a message is dead-lettered; 0: never.
    pub attempts_max: u32,
    /// The topic for dead-lettered messages.
    pub dead_letter_topic: Option<String>,
    /// Its consumers.
    pub consumers: Vec<ConsumerDetails>,
}

/// One consumer of a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerDetails {
    /// The name that its session gave it.
    pub label: String,
    /// Maximum messages that it wants in flight at once.
    pub credit: u32,
    /// Messages in flight to it.
    pub in_flight: u32,
    /// Messages delivered to it so far.
    pub delivered: u64,
}

/// A consumer group of Kafka in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSummary {
    /// Its name.
    pub name: String,
    /// Kafka's name of the state: `Stable`, `Empty`, `PreparingRebalance`, `CompletingRebalance`,
    /// `Dead`.
    pub state: String,
    /// How many members it has.
    pub members: usize,
    /// Messages after its committed offsets, in all partitions that it has committed.
    pub lag: u64,
    /// Names of the topics of which it has committed offsets.
    pub topics: Vec<String>,
}

/// The description of a consumer group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDetails {
    /// The fields that the list of groups shows too.
    #[serde(flatten)]
    pub summary: GroupSummary,
    /// Its members.
    pub member_details: Vec<GroupMember>,
    /// Its committed offsets, by partition.
    pub partition_details: Vec<GroupPartition>,
}

/// A member of a consumer group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMember {
    /// The member id that the broker assigned.
    pub id: String,
    /// The instance id of a static member (`group.instance.id`).
    pub instance: Option<String>,
    /// The client ID.
    pub client_id: String,
    /// The address from which it has joined.
    pub host: String,
}

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPartition {
    /// Name of the topic.
    pub topic: String,
    /// Number of the partition.
    pub partition: u32,
    /// The next offset that the group will consume.
    pub committed_offset: u64,
    /// Offset that the next message will get.
    pub end_offset: u64,
    /// Messages between the two offsets.
    pub lag: u64,
}

/// The metrics that a Kafka client has pushed (KIP-714).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientDetails {
    /// The client instance id, the same on all of its connections.
    pub instance: String,
    /// The client ID.
    pub client_id: Option<String>,
    /// Name of its library.
    pub library: Option<String>,
    /// Version of its library.
    pub version: Option<String>,
    /// The address from which the metrics came.
    pub remote: String,
    /// How long ago the metrics came, in milliseconds.
    pub age_ms: u64,
    /// Its newest metrics.
    pub figures: Vec<ClientFigure>,
}

/// A metric that a client has pushed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientFigure {
    /// Its name in KIP-714 without `org.apache.kafka.`; times are in milliseconds.
    pub name: String,
    /// The broker that it is about, if the client has one value for each broker.
    pub node: Option<String>,
    /// The value.
    pub value: f64,
}

/// A queue of AMQP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AmqpQueue {
    /// Its name.
    pub name: String,
    /// The type with which the queue was declared: `classic` or `quorum`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it exists after a restart.
    pub durable: bool,
    /// Whether it is deleted with its last consumer.
    pub auto_delete: bool,
    /// Whether it is deleted with the connection that has declared it.
    pub exclusive: bool,
    /// Its arguments.
    pub arguments: serde_json::Value,
    /// Name of the topic that stores its messages.
    pub topic: String,
    /// How the consumer of each message is chosen: `least-loaded` or `fill-first`.
    pub dispatch: String,
    /// Messages that wait for a consumer.
    pub ready: u64,
    /// Messages that are leased to consumers.
    pub unacknowledged: u64,
    /// How many consumers it has.
    pub consumers: u32,
}

/// An exchange of AMQP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AmqpExchange {
    /// Its name; empty for the default exchange.
    pub name: String,
    /// How it chooses queues: `direct`, `fanout`, `topic`, `headers`, `x-delayed-message`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it exists after a restart.
    pub durable: bool,
    /// Whether it is deleted with its last binding.
    pub auto_delete: bool,
    /// Whether clients cannot publish to it.
    pub internal: bool,
    /// Its arguments.
    pub arguments: serde_json::Value,
}

/// A binding of AMQP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AmqpBinding {
    /// Name of its source, an exchange.
    pub source: String,
    /// Name of its destination, a queue or exchange.
    pub destination: String,
    /// The destination's type: `queue` or `exchange`.
    pub destination_type: String,
    /// The routing key, or the pattern.
    pub routing_key: String,
    /// Its arguments.
    pub arguments: serde_json::Value,
}

/// The body that creates a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateTopic {
    /// Its name.
    pub name: String,
    /// Number of partitions; one when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u32>,
    /// How long messages are kept, as in [`AlterTopic`]; left out: the default of Kafka's new
    /// topics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
    /// Settings by Kafka's names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
}

/// The body that changes a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlterTopic {
    /// How long messages are kept: a duration (`7d`, `12h`), `forever`, or `consumed`, which is
    /// until all subscriptions and groups have consumed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
    /// Settings by Kafka's names; null: back to the default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, Option<String>>,
}

/// The body that creates a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSubscription {
    /// Its name.
    pub name: String,
    /// `earliest`, `latest`, or left out: the topic's first subscription gets the whole backlog, a
    /// later one starts at the current point of delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Deliveries after which a message is dead-lettered; left out: the value of NSQ's
    /// configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u16>,
    /// The topic for dead-lettered messages; left out: the value of NSQ's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_topic: Option<String>,
}

/// One message, read without consuming it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageView {
    /// Its offset.
    pub offset: u64,
    /// When it was published, in milliseconds since the Unix epoch.
    pub timestamp_ms: i64,
    /// Its key, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Bytes>,
    /// Its body.
    pub value: Option<Bytes>,
    /// Its headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// Messages in order, and the offset at which to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessagePage {
    /// The messages; empty if none came in time.
    pub messages: Vec<MessageView>,
    /// The offset to ask for next.
    pub next_offset: u64,
}

/// Bytes in JSON: as text if they are UTF-8, otherwise in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bytes {
    /// Bytes that are valid UTF-8.
    Text(String),
    /// Other bytes, with two digits each.
    Hex(String),
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

impl Bytes {
    /// Wraps bytes.
    pub fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Bytes::Text(text.to_owned()),
            Err(_) => {
                let mut digits = String::with_capacity(bytes.len() * 2);
                for byte in bytes {
                    digits.push(char::from(DIGITS[usize::from(byte >> 4)]));
                    digits.push(char::from(DIGITS[usize::from(byte & 15)]));
                }
                Bytes::Hex(digits)
            }
        }
    }

    /// The maximum length of the bytes as JSON, without the JSON around them. It is only an upper
    /// bound because the bytes would have to be read to find whether they are text.
    pub(crate) fn json_bytes(bytes: &[u8]) -> usize {
        let text_bytes = |byte: &u8| match byte {
            // A control character may take six characters.
            0..0x20 => 6,
            _ => 2,
        };
        bytes.iter().map(text_bytes).sum()
    }

    /// The bytes again; `None` if the value was not made by [`Bytes::new`].
    pub fn to_vec(&self) -> Option<Vec<u8>> {
        match self {
            Bytes::Text(text) => Some(text.clone().into_bytes()),
            Bytes::Hex(digits) => digits
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
                .collect(),
        }
    }
}

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The reason of the refusal, in a sentence.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        for bytes in [&b""[..], b"text", "höö".as_bytes(), &[0xff, 0, 7]] {
            assert_eq!(Bytes::new(bytes).to_vec().as_deref(), Some(bytes));
        }
        assert_eq!(Bytes::new(&[0xff, 0]), Bytes::Hex("ff00".into()));
        assert_eq!(Bytes::Hex("zz".into()).to_vec(), None);
    }
}
