//! Messages that go through the router: those that died, and those that wait for a delay.

use cloverleaf_broker::{PublishError, Published, headers};
use cloverleaf_log::{BatchBuilder, Durability, Header, Record};

use super::VirtualHost;
use super::queue::Queue;
use crate::message::Message;
use crate::wire::{Table, Value};

/// The header that says for how many milliseconds a message is held back.
pub(super) const DELAY: &str = "x-delay";
/// Longer delays are none, as with RabbitMQ's plugin: what its timers can count.
const DELAY_MAX_MS: u64 = u32::MAX as u64;
/// In a record: what `x-death` says of the message was written here, and by no client. Its value
/// says whether the message still goes by its own routing keys.
const DEATHS: &[u8] = b"amqp-deaths";
const OTHER_KEY: &[u8] = b"other-key";
/// The bytes of a record beside its body and properties, about.
const RECORD_BYTES: usize = 256;

/// For how many milliseconds a message with these headers is to be held back by an exchange that
/// does so; `None`: not at all.
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

/// The past of a message: whether it has died before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Past {
    /// It comes from a client.
    Published,
    /// It has died: its `x-death` was written here.
    Died,
    /// And a queue has given it a key in place of its own: its `CC` leads nowhere any more.
    DiedWithOtherKey,
}

impl Past {
    /// Reads it from a record.
    pub(super) fn read(record: &Record<'_>) -> Self {
        match record.headers.value_of(DEATHS) {
            None => Self::Published,
            Some(Some(OTHER_KEY)) => Self::DiedWithOtherKey,
            Some(_) => Self::Died,
        }
    }

    /// The headers that say it.
    pub(super) fn marks(self) -> &'static [Header<'static>] {
        match self {
            Self::Published => &[],
            Self::Died => &[(DEATHS, Some(b""))],
            Self::DiedWithOtherKey => &[(DEATHS, Some(OTHER_KEY))],
        }
    }

    /// Whether further routing keys among the headers count.
    pub(super) fn follows_headers(self) -> bool {
        self != Self::DiedWithOtherKey
    }
}

impl VirtualHost {
    /// Stores a message that an exchange holds back ([`delay_ms`]); the router routes it from there
    /// when its time has come.
    ///
    /// # Errors
    /// The log does not take it, or too many messages wait.
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
            Past::Published,
        )
    }

    pub(super) fn delay_marked(
        &self,
        message: &Message<'_>,
        delay_ms: u64,
        timestamp_ms: i64,
        durability: Durability,
        past: Past,
    ) -> Result<Published, PublishError> {
        let mut builder = builder(message, timestamp_ms);
        // Its time to live begins when it comes into a queue.
        message.push_with(&mut builder, None, past.marks());
        self.delayed
            .publish_delayed(&builder.finish(), delay_ms, durability)
    }

    /// Dead-letters a message that `queue` has refused (`maxlen`), so that it is nowhere stored
    /// yet. `None`: its dead go nowhere.
    ///
    /// # Errors
    /// The log does not take it.
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
            Past::Published,
        )
    }

    pub(super) fn dead_letter_marked(
        &self,
        queue: &Queue,
        reason: &str,
        message: &Message<'_>,
        timestamp_ms: i64,
        durability: Durability,
        past: Past,
    ) -> Result<Option<Published>, PublishError> {
        if queue.arguments.dead_letter.is_none() {
            return Ok(None);
        }
        let mut builder = builder(message, timestamp_ms);
        let mut more: Vec<Header<'_>> = past.marks().to_vec();
        more.extend([
            (headers::DEAD_TOPIC, Some(queue.topic.name().as_bytes())),
            (headers::DEAD_REASON, Some(reason.as_bytes())),
        ]);
        message.push_with(&mut builder, None, &more);
        self.dead.publish(builder.finish(), durability).map(Some)
    }
}

/// A batch with room for a message.
pub(super) fn builder(message: &Message<'_>, timestamp_ms: i64) -> BatchBuilder {
    BatchBuilder::with_capacity(message_bytes(message), timestamp_ms)
}

/// The bytes that a message takes in a batch, about.
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
