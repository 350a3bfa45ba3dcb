//! Messages on their way to the router: delayed ones, and those that a full queue dead-letters.

use cloverleaf_broker::{PublishError, Published, headers};
use cloverleaf_log::{BatchBuilder, Durability, Header, Record};

use super::VirtualHost;
use super::queue::Queue;
use crate::message::Message;
use crate::wire::{Table, Value};

/// The header with a message's delay in milliseconds.
pub(super) const DELAY: &str = "x-delay";
/// A longer delay counts as none, as in RabbitMQ's plugin, whose timers have this limit.
const DELAY_MAX_MS: u64 = u32::MAX as u64;
/// Record header: the message was dead-lettered, so its `x-death` was written by this broker and
/// not by a client. The value tells whether the message is still routed by its own routing keys.
const DEATH_MARK: &[u8] = b"amqp-deaths";
const OTHER_KEY: &[u8] = b"other-key";
/// Approximate size of a record besides its body and properties, in bytes.
const RECORD_BYTES: usize = 256;

/// The delay in a message's headers, in milliseconds, if an `x-delayed-message` exchange has to
/// delay it.
pub fn delay_ms(headers: Table<'_>) -> Option<u64> {
    let delay = headers.get(DELAY)?;
    let delay_ms = match delay {
        Value::String(digits) => std::str::from_utf8(digits).ok()?.parse().ok()?,
        Value::F32(value) => i64::from(value as i32),
        Value::F64(value) => value as i64,
        value => value.as_integer()?,
    };
    let delay_ms = u64::try_from(delay_ms).ok()?;
    (1..=DELAY_MAX_MS).contains(&delay_ms).then_some(delay_ms)
}

/// Whether a message was dead-lettered before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeathMark {
    /// Never: it comes from a client.
    Published,
    /// It was dead-lettered: its `x-death` was written by this broker.
    Died,
    /// As `Died`, and a queue has replaced its routing key, so that its `CC` and `BCC` are not
    /// followed anymore.
    DiedWithOtherKey,
}

impl DeathMark {
    /// Reads the mark of a record.
    pub(super) fn read(record: &Record<'_>) -> Self {
        match record.headers.value_of(DEATH_MARK) {
            None => Self::Published,
            Some(Some(OTHER_KEY)) => Self::DiedWithOtherKey,
            Some(_) => Self::Died,
        }
    }

    /// The record headers of the mark.
    pub(super) fn mark_headers(self) -> &'static [Header<'static>] {
        match self {
            Self::Published => &[],
            Self::Died => &[(DEATH_MARK, Some(b""))],
            Self::DiedWithOtherKey => &[(DEATH_MARK, Some(OTHER_KEY))],
        }
    }

    /// Whether the routing keys in `CC` and `BCC` are followed.
    pub(super) fn follows_headers(self) -> bool {
        self != Self::DiedWithOtherKey
    }
}

impl VirtualHost {
    /// Stores a delayed message ([`delay_ms`]). The router routes it once its delay is over.
    ///
    /// # Errors
    /// The log does not accept it, or too many messages are delayed already.
    pub fn delay(
        &self,
        exchange: &str,
        message: &Message<'_>,
        delay_ms: u64,
        timestamp_ms: i64,
        durability: Durability,
    ) -> Result<Published, PublishError> {
        let message = Message {
            exchange,
            ..*message
        };
        self.delay_marked(
            &message,
            delay_ms,
            timestamp_ms,
            durability,
            DeathMark::Published,
        )
    }

    pub(super) fn delay_marked(
        &self,
        message: &Message<'_>,
        delay_ms: u64,
        timestamp_ms: i64,
        durability: Durability,
        mark: DeathMark,
    ) -> Result<Published, PublishError> {
        let mut builder = builder_for(message, timestamp_ms);
        // Without an expiry: its TTL begins when it reaches a queue.
        message.push_with_headers(&mut builder, None, mark.mark_headers());
        self.delayed
            .publish_delayed(&builder.finish(), delay_ms, durability)
    }

    /// Dead-letters a message that `queue` has refused (`maxlen`), and that is therefore not stored
    /// anywhere. `None`: the queue has no dead-letter exchange.
    ///
    /// # Errors
    /// The log does not accept it.
    pub fn dead_letter(
        &self,
        queue: &Queue,
        reason: &str,
        message: &Message<'_>,
        timestamp_ms: i64,
        durability: Durability,
    ) -> Result<Option<Published>, PublishError> {
        self.dead_letter_marked(
            queue,
            reason,
            message,
            timestamp_ms,
            durability,
            DeathMark::Published,
        )
    }

    pub(super) fn dead_letter_marked(
        &self,
        queue: &Queue,
        reason: &str,
        message: &Message<'_>,
        timestamp_ms: i64,
        durability: Durability,
        mark: DeathMark,
    ) -> Result<Option<Published>, PublishError> {
        if queue.arguments.dead_letter.is_none() {
            return Ok(None);
        }
        let mut builder = builder_for(message, timestamp_ms);
        let mut more: Vec<Header<'_>> = mark.mark_headers().to_vec();
        more.extend([
            (headers::DEAD_TOPIC, Some(queue.topic.name().as_bytes())),
            (headers::DEAD_REASON, Some(reason.as_bytes())),
        ]);
        message.push_with_headers(&mut builder, None, &more);
        self.dead.publish(builder.finish(), durability).map(Some)
    }
}

/// A batch builder with capacity for the message.
pub(super) fn builder_for(message: &Message<'_>, timestamp_ms: i64) -> BatchBuilder {
    BatchBuilder::with_capacity(message_bytes(message), timestamp_ms)
}

/// Approximate size of the message in a batch, in bytes.
pub(super) fn message_bytes(message: &Message<'_>) -> usize {
    message.body.len() + message.properties.len() + RECORD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::table_bytes;

    fn delay(value: Value<'_>) -> Option<u64> {
        let bytes = table_bytes(&[(DELAY, value)]);
        delay_ms(Table::check(&bytes).unwrap_or_default())
    }

    #[test]
    fn delays_are_numbers_of_any_kind() {
        assert_eq!(delay(Value::I32(5_000)), Some(5_000));
        assert_eq!(delay(Value::U16(7)), Some(7));
        assert_eq!(delay(Value::String(b"250")), Some(250));
        assert_eq!(delay(Value::F64(12.9)), Some(12));
        assert_eq!(delay(Value::I64(4_294_967_295)), Some(4_294_967_295));
        for none in [
            Value::I32(0),
            Value::I32(-1),
            Value::I64(4_294_967_296),
            Value::String(b"soon"),
            Value::F64(f64::NAN),
            Value::Bool(true),
        ] {
            assert_eq!(delay(none), None);
        }
        assert_eq!(delay_ms(Table::default()), None);
    }
}
