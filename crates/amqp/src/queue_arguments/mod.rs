//! A queue's arguments (`x-…`), parsed and checked once, when the queue is declared.
//!
//! Source: <https://www.rabbitmq.com/docs/queues#optional-arguments> and the pages it links to;
//! which arguments are refused, and with which text, follows RabbitMQ 4.

use std::sync::Arc;

use crate::exception::{Exception, Resource};
use crate::wire::{Table, Value};

/// Ten years: the longest TTL or expiry.
const TIME_MAX_MS: i64 = 315_360_000_000;
/// The highest priority that AMQP knows; each level costs a partition.
const PRIORITY_MAX: i64 = 255;
/// RabbitMQ's default `x-delivery-limit` of a quorum queue is 20: the first delivery and 20 more.
const QUORUM_ATTEMPTS_MAX: u16 = 21;

/// The declared queue type. Both types are stored in the same kind of log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueKind {
    /// `classic`
    #[default]
    Classic,
    /// `quorum`: the number of deliveries of a message is limited.
    Quorum,
}

/// What a full queue does (`x-overflow`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// `drop-head`: the oldest message is dropped or dead-lettered.
    #[default]
    DropHead,
    /// `reject-publish`: the publish is refused, with `basic.nack` if confirms are on.
    RejectPublish,
    /// `reject-publish-dlx`: like `reject-publish`, and the refused message is dead-lettered.
    RejectPublishDeadLetter,
}

/// The dead-letter exchange and routing key of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The exchange (`x-dead-letter-exchange`).
    pub exchange: Arc<str>,
    /// The routing key (`x-dead-letter-routing-key`); `None`: the message's own.
    pub key: Option<Arc<str>>,
}

/// The policy for choosing the consumer of the next message (`x-cloverleaf-dispatch`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DispatchArgument {
    /// `least-loaded`: the consumer with the fewest unacknowledged messages.
    #[default]
    LeastLoaded,
    /// `fill-first`: one consumer until its prefetch is used up, then the next.
    FillFirst,
}

/// The parsed arguments of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueArguments {
    /// `x-queue-type`
    pub kind: QueueKind,
    /// `x-message-ttl`
    pub message_ttl_ms: Option<u64>,
    /// `x-expires`: an unused queue is deleted after this time.
    pub expires_ms: Option<u64>,
    /// `x-max-length`
    pub length_max: Option<u64>,
    /// `x-max-length-bytes`: counts bodies only.
    pub length_bytes_max: Option<u64>,
    /// `x-overflow`
    pub overflow: Overflow,
    /// `x-dead-letter-exchange`
    pub dead_letter: Option<DeadLetter>,
    /// `x-max-priority`
    pub priority_max: Option<u8>,
    /// `x-single-active-consumer`
    pub single_active: bool,
    /// The maximum number of deliveries of a message, one more than `x-delivery-limit`; 0: no
    /// limit.
    pub attempts_max: u16,
    /// `x-cloverleaf-dispatch`
    pub dispatch: DispatchArgument,
}

/// Arguments that only quorum queues have.
const QUORUM_ONLY: &[&str] = &[
    "x-delivery-limit",
    "x-dead-letter-strategy",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-quorum-initial-group-size",
];
/// Arguments that only classic queues have.
const CLASSIC_ONLY: &[&str] = &["x-max-priority", "x-queue-mode", "x-queue-version"];
/// Arguments that only streams have, which this broker does not support.
const STREAM_ONLY: &[&str] = &[
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
];
/// Arguments of `basic.consume` that only streams have.
const STREAM_CONSUMERS_ONLY: &[&str] = &[
    "x-stream-filter",
    "x-stream-match-unfiltered",
    "x-stream-offset",
];
/// Arguments that must be equal when an existing queue is declared again.
const CHECKED_ON_REDECLARATION: &[&str] = &[
    "x-expires",
    "x-message-ttl",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-type",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-single-active-consumer",
    "x-delivery-limit",
];

/// One argument of a queue, with what its error texts need.
struct Argument<'a> {
    name: &'static str,
    queue: &'a str,
    value: Value<'a>,
}

impl Argument<'_> {
    fn refuse(&self, why: &str) -> Exception {
        let queue = Resource::queue(self.queue);
        Exception::precondition(format!("invalid arg '{}' for {queue}: {why}", self.name))
    }

    fn integer(&self) -> Result<i64, Exception> {
        let expected = || format!("\"expected integer, got {}\"", type_name(self.value));
        self.value
            .as_integer()
            .ok_or_else(|| self.refuse(&expected()))
    }

    fn not_negative(&self) -> Result<u64, Exception> {
        let value = self.integer()?;
        u64::try_from(value).map_err(|_| self.refuse(&format!("{{value_negative,{value}}}")))
    }

    fn time_ms(&self) -> Result<u64, Exception> {
        let value = self.not_negative()?;
        if value > TIME_MAX_MS.cast_unsigned() {
            return Err(self.refuse(&format!("{{value_too_large,{value}}}")));
        }
        Ok(value)
    }

    fn text(&self) -> Result<&str, Exception> {
        match self.value {
            Value::String(_) => self.value.as_text().ok_or_else(|| self.refuse("not UTF-8")),
            value => Err(self.refuse(&format!("{{unacceptable_type,{}}}", type_name(value)))),
        }
    }

    fn boolean(&self) -> Result<bool, Exception> {
        match self.value {
            Value::Bool(boolean) => Ok(boolean),
            value => Err(self.refuse(&format!("{{unacceptable_type,{}}}", type_name(value)))),
        }
    }
}

/// Parses the arguments of a `basic.consume` from `queue` and returns the consumer's priority.
/// Unknown arguments are ignored.
///
/// # Errors
/// PRECONDITION_FAILED with RabbitMQ's text: an argument of the wrong type, or one of a stream.
pub(crate) fn consumer_priority(
    queue: &str,
    kind: QueueKind,
    table: Table<'_>,
) -> Result<i32, Exception> {
    let name = "x-priority";
    let argument = table.get(name).map(|value| Argument { name, queue, value });
    let priority = argument.map(|it| it.integer()).transpose()?.unwrap_or(0);
    refuse_others(queue, kind, table, &[STREAM_CONSUMERS_ONLY])?;
    Ok(priority.clamp(i32::MIN.into(), i32::MAX.into()) as i32)
}

impl QueueArguments {
    /// Parses the arguments with which `queue` is declared. Unknown arguments are ignored.
    ///
    /// # Errors
    /// PRECONDITION_FAILED with RabbitMQ's text: an invalid value, an argument that this queue type
    /// does not have, or the queue type `stream`.
    pub fn read(queue: &str, table: Table<'_>) -> Result<Self, Exception> {
        let argument = |name: &'static str| {
            let value = table.get(name)?;
            Some(Argument { name, queue, value })
        };
        let kind = argument("x-queue-type").map(|kind| queue_kind(&kind));
        let kind = kind.transpose()?.unwrap_or_default();
        check_kind(queue, kind, table)?;
        let expires_ms = argument("x-expires").map(|expires| match expires.time_ms()? {
            0 => Err(expires.refuse("{value_zero,0}")),
            expires_ms => Ok(expires_ms),
        });
        let number = |name| {
            argument(name)
                .map(|number| number.not_negative())
                .transpose()
        };
        let priority_max = argument("x-max-priority").map(|levels| {
            let value = levels.not_negative()?;
            let too_many = || levels.refuse(&format!("{{max_value_exceeded,{value}}}"));
            if value > PRIORITY_MAX.cast_unsigned() {
                return Err(too_many());
            }
            u8::try_from(value).map_err(|_| too_many())
        });
        let attempts_max = match (kind, argument("x-delivery-limit")) {
            (QueueKind::Classic, _) => 0,
            (QueueKind::Quorum, None) => QUORUM_ATTEMPTS_MAX,
            // A negative limit means no limit.
            (QueueKind::Quorum, Some(limit)) => {
                u16::try_from(limit.integer()?.max(-1).saturating_add(1)).unwrap_or(u16::MAX)
            }
        };
        let single_active = argument("x-single-active-consumer").map(|active| active.boolean());
        let overflow = argument("x-overflow").map(|overflow| match overflow.text()? {
            "drop-head" => Ok(Overflow::DropHead),
            "reject-publish" => Ok(Overflow::RejectPublish),
            "reject-publish-dlx" => Ok(Overflow::RejectPublishDeadLetter),
            _ => Err(overflow.refuse("invalid_overflow")),
        });
        let dispatch = argument("x-cloverleaf-dispatch").map(|dispatch| match dispatch.text()? {
            "least-loaded" => Ok(DispatchArgument::LeastLoaded),
            "fill-first" => Ok(DispatchArgument::FillFirst),
            _ => Err(dispatch.refuse("expected least-loaded or fill-first")),
        });
        Ok(Self {
            kind,
            message_ttl_ms: argument("x-message-ttl")
                .map(|ttl| ttl.time_ms())
                .transpose()?,
            expires_ms: expires_ms.transpose()?,
            length_max: number("x-max-length")?,
            length_bytes_max: number("x-max-length-bytes")?,
            overflow: overflow.transpose()?.unwrap_or_default(),
            dead_letter: dead_letter(
                argument("x-dead-letter-exchange"),
                argument("x-dead-letter-routing-key"),
            )?,
            priority_max: priority_max.transpose()?,
            single_active: single_active.transpose()?.unwrap_or_default(),
            attempts_max,
            dispatch: dispatch.transpose()?.unwrap_or_default(),
        })
    }
}

fn queue_kind(argument: &Argument<'_>) -> Result<QueueKind, Exception> {
    match argument.text()? {
        "classic" => Ok(QueueKind::Classic),
        "quorum" => Ok(QueueKind::Quorum),
        "stream" => Err(argument.refuse(
            "\"streams are not supported here: read the topic by offset with a Kafka client\"",
        )),
        kind => Err(argument.refuse(&format!("\"unsupported queue type '{kind}'\""))),
    }
}

/// Refuses arguments that this queue type does not have.
fn check_kind(queue: &str, kind: QueueKind, table: Table<'_>) -> Result<(), Exception> {
    let others = match kind {
        QueueKind::Classic => QUORUM_ONLY,
        QueueKind::Quorum => CLASSIC_ONLY,
    };
    refuse_others(queue, kind, table, &[others, STREAM_ONLY])
}

/// Refuses the arguments in `others`, which belong to another queue type.
fn refuse_others(
    queue: &str,
    kind: QueueKind,
    table: Table<'_>,
    others: &[&[&str]],
) -> Result<(), Exception> {
    let name = match kind {
        QueueKind::Classic => "rabbit_classic_queue",
        QueueKind::Quorum => "rabbit_quorum_queue",
    };
    let is_wrong = |name: &&str| others.iter().any(|others| others.contains(name));
    match table.fields().map(|(name, _)| name).find(is_wrong) {
        None => Ok(()),
        Some(wrong) => Err(Exception::precondition(format!(
            "invalid arg '{wrong}' for {} of queue type {name}",
            Resource::queue(queue)
        ))),
    }
}

fn dead_letter(
    exchange: Option<Argument<'_>>,
    key: Option<Argument<'_>>,
) -> Result<Option<DeadLetter>, Exception> {
    match (exchange, key) {
        (None, None) => Ok(None),
        (None, Some(key)) => Err(key.refuse("routing_key_but_no_dlx_defined")),
        (Some(exchange), key) => Ok(Some(DeadLetter {
            exchange: exchange.text()?.into(),
            key: key.map(|key| key.text().map(Arc::from)).transpose()?,
        })),
    }
}

/// Checks that a queue declared with `current` may be declared again with `received`.
///
/// # Errors
/// PRECONDITION_FAILED: one of the [`CHECKED_ON_REDECLARATION`] arguments differs.
pub fn check_equivalence(
    resource: &Resource<'_>,
    received: Table<'_>,
    current: Table<'_>,
) -> Result<(), Exception> {
    for name in CHECKED_ON_REDECLARATION {
        check_same(name, resource, received.get(name), current.get(name))?;
    }
    Ok(())
}

/// Checks that one argument has the same value in two declarations.
///
/// # Errors
/// PRECONDITION_FAILED: the values differ.
pub fn check_same(
    name: &str,
    resource: &Resource<'_>,
    received: Option<Value<'_>>,
    current: Option<Value<'_>>,
) -> Result<(), Exception> {
    let is_same = match (
        without_default(name, received),
        without_default(name, current),
    ) {
        (Some(a), Some(b)) => match (a.as_integer(), b.as_integer()) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        },
        (a, b) => a.is_none() && b.is_none(),
    };
    if is_same {
        return Ok(());
    }
    let both = received.is_some() && current.is_some();
    let shown = |value: Option<Value<'_>>| match value {
        None => "none".to_owned(),
        Some(value) if both => format!("'{}'", shown(value)),
        Some(value) => format!(
            "the value '{}' of type '{}'",
            shown(value),
            type_name(value)
        ),
    };
    Err(Exception::inequivalent(
        name,
        resource,
        &shown(received),
        &shown(current),
    ))
}

/// Treats an explicit `x-queue-type: classic` like no type, because classic is the default.
fn without_default<'a>(name: &str, value: Option<Value<'a>>) -> Option<Value<'a>> {
    value.filter(|value| name != "x-queue-type" || *value != Value::String(b"classic"))
}

fn shown(value: Value<'_>) -> String {
    match value {
        Value::String(bytes) | Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Bool(value) => value.to_string(),
        Value::F32(value) => value.to_string(),
        Value::F64(value) => value.to_string(),
        Value::Timestamp(value) => value.to_string(),
        value => match value.as_integer() {
            Some(value) => value.to_string(),
            None => type_name(value).to_owned(),
        },
    }
}

/// RabbitMQ's name of a value's type.
pub(crate) fn type_name(value: Value<'_>) -> &'static str {
    match value {
        Value::Bool(_) => "bool",
        Value::I8(_) => "byte",
        Value::U8(_) => "unsignedbyte",
        Value::I16(_) => "short",
        Value::U16(_) => "unsignedshort",
        Value::I32(_) => "signedint",
        Value::U32(_) => "unsignedint",
        Value::I64(_) => "long",
        Value::F32(_) => "float",
        Value::F64(_) => "double",
        Value::Decimal(..) => "decimal",
        Value::String(_) => "longstr",
        Value::Bytes(_) => "binary",
        Value::Array(_) => "array",
        Value::Timestamp(_) => "timestamp",
        Value::Table(_) => "table",
        Value::Void => "void",
    }
}

#[cfg(test)]
mod tests;
