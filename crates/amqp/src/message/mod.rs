//! How a message of AMQP lies in a record of the log, and how a record of another protocol looks to
//! a consumer of AMQP.
//!
//! | record | AMQP |
//! |---|---|
//! | value | body |
//! | key | the user's header `kafka-key` |
//! | header `amqp-exchange` | the exchange to which it was published |
//! | header `amqp-routing-key` | the routing key |
//! | header `amqp-properties` | flags and properties as the publisher sent them, without `BCC` |
//! | header `amqp-bcc` | further routing keys that no consumer sees |
//! | other headers | the user's headers once more, as text, for readers of other protocols |
//!
//! So a round trip through AMQP is lossless, and Kafka and NATS see body, key and headers.

use std::fmt::Write as _;

use cloverleaf_broker::headers as reserved;
use cloverleaf_log::{BatchBuilder, Header, Record};

use crate::body::Body;
use crate::wire::{Array, Properties, Table, Value, Writer};

/// Record header: the exchange to which a message was published.
pub const EXCHANGE: &[u8] = b"amqp-exchange";
/// Record header: the routing key with which a message was published.
pub const ROUTING_KEY: &[u8] = b"amqp-routing-key";
/// Record header: the content header's flags and properties, as they were sent.
pub const PROPERTIES: &[u8] = b"amqp-properties";
/// Record header: the routing keys of the user's header `BCC`, an array's bytes.
const BCC: &[u8] = b"amqp-bcc";
/// The user's header that is the record's key.
const KEY: &str = "kafka-key";
/// Record headers that begin so are ours: no user's header becomes one of them.
const RESERVED: [&[u8]; 2] = [b"amqp-", b"cloverleaf-"];
/// A record of another protocol with longer text in a short string is shown with its beginning.
const SHORT_BYTES_MAX: usize = 255;

/// Headers of a record of another protocol are shown as long as they have no more bytes than this,
/// all together: a content header is one frame, and each client takes frames of 4096 bytes.
const FOREIGN_BYTES_MAX: usize = 4000;
/// The bytes of a table's field beside its name and its text.
const FIELD_OVERHEAD_BYTES: usize = 6;

/// A message as AMQP sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The exchange to which it was published; empty: the default one.
    pub exchange: &'a str,
    /// The routing key.
    pub routing_key: &'a str,
    /// Flags and properties as in a content header, well formed, without `BCC`.
    pub properties: &'a [u8],
    /// The routing keys of `BCC`, an array's bytes. Not read from a record: see [`bcc_of`].
    pub bcc: &'a [u8],
    /// The body.
    pub body: Body<'a>,
}

impl<'a> Message<'a> {
    /// Adds it to a batch. It expires at `expires_at_ms`, milliseconds since 1970.
    pub fn push(&self, builder: &mut BatchBuilder, expires_at_ms: Option<u64>) {
        self.push_with(builder, expires_at_ms, &[]);
    }

    /// Adds it to a batch with further headers, which are for ourselves.
    pub fn push_with(
        &self,
        builder: &mut BatchBuilder,
        expires_at_ms: Option<u64>,
        more: &[Header<'_>],
    ) {
        let expires = expires_at_ms.map(u64::to_be_bytes);
        let own: [Header<'_>; 3] = [
            (EXCHANGE, Some(self.exchange.as_bytes())),
            (ROUTING_KEY, Some(self.routing_key.as_bytes())),
            (PROPERTIES, Some(self.properties)),
        ];
        let table = user_headers(self.properties);
        if table.is_empty() && more.is_empty() && self.bcc.is_empty() {
            match &expires {
                None => self.push_record(builder, None, &own),
                Some(expires) => {
                    let [exchange, key, properties] = own;
                    let expires = (reserved::EXPIRES, Some(&expires[..]));
                    let all = [exchange, key, properties, expires];
                    self.push_record(builder, None, &all);
                }
            }
            return;
        }
        let mut text = String::new();
        let texts = texts_of(table, &mut text);
        let mut key = None;
        let mut all: Vec<Header<'_>> = own.to_vec();
        all.extend(expires.iter().map(|at| (reserved::EXPIRES, Some(&at[..]))));
        all.extend((!self.bcc.is_empty()).then_some((BCC, Some(self.bcc))));
        all.extend_from_slice(more);
        for (name, value) in texts {
            let value = value.bytes(&text);
            if name == KEY && key.is_none() {
                key = Some(value);
            } else if !is_reserved(name.as_bytes()) {
                all.push((name.as_bytes(), Some(value)));
            }
        }
        self.push_record(builder, key, &all);
    }

    fn push_record(&self, builder: &mut BatchBuilder, key: Option<&[u8]>, headers: &[Header<'_>]) {
        match self.body.one() {
            Some(body) => builder.push(key, Some(body), headers),
            None => builder.push_pieces(key, self.body.pieces(), headers),
        }
    }

    /// The message that a record of `queue` holds. `scratch` is for what a record of another
    /// protocol does not have.
    pub fn read(record: &Record<'a>, queue: &'a str, scratch: &'a mut Vec<u8>) -> Message<'a> {
        let (mut exchange, mut routing_key, mut properties) = (None, None, None);
        for (name, value) in record.headers.clone() {
            match name {
                EXCHANGE => exchange = short(value),
                ROUTING_KEY => routing_key = short(value),
                // Another protocol's client may have written it.
                PROPERTIES => properties = value.filter(|raw| Properties::read(raw).is_ok()),
                _ => continue,
            }
            if exchange.is_some() && routing_key.is_some() && properties.is_some() {
                break;
            }
        }
        Message {
            exchange: exchange.unwrap_or_default(),
            routing_key: routing_key.unwrap_or(queue),
            properties: match properties {
                Some(properties) => properties,
                None => {
                    foreign_properties(record, scratch);
                    scratch
                }
            },
            bcc: &[],
            body: record.value.unwrap_or_default().into(),
        }
    }
}

/// The routing keys of a record that no consumer sees, an array's bytes: where it goes by its own
/// keys once more, it goes by these too.
pub fn bcc_of<'a>(record: &Record<'a>) -> &'a [u8] {
    let bcc = record.headers.value_of(BCC).flatten();
    bcc.filter(|bytes| Array::check(bytes).is_ok())
        .unwrap_or_default()
}

fn short(value: Option<&[u8]>) -> Option<&str> {
    let text = std::str::from_utf8(value?).ok()?;
    (text.len() <= SHORT_BYTES_MAX).then_some(text)
}

fn is_reserved(name: &[u8]) -> bool {
    RESERVED.iter().any(|prefix| name.starts_with(prefix))
}

/// The user's headers among well-formed properties.
fn user_headers(raw: &[u8]) -> Table<'_> {
    // The flags tell whether it is worth to look: bit 13 of the first two bytes.
    match raw.first() {
        Some(flags) if flags & 0x20 != 0 => {
            let properties = Properties::read(raw).unwrap_or_default();
            properties.headers.unwrap_or_default()
        }
        _ => Table::default(),
    }
}

/// Text of a header: it was text, or was written to a common buffer.
enum Text<'a> {
    Own(&'a [u8]),
    Written(std::ops::Range<usize>),
}

impl<'a> Text<'a> {
    fn bytes<'t: 'a>(&self, text: &'t str) -> &'a [u8] {
        match self {
            Text::Own(bytes) => bytes,
            Text::Written(range) => text.as_bytes().get(range.clone()).unwrap_or_default(),
        }
    }
}

/// The headers that have a text: strings as they are, numbers in digits. Tables and arrays have
/// none.
fn texts_of<'a>(table: Table<'a>, text: &mut String) -> Vec<(&'a str, Text<'a>)> {
    let mut texts = Vec::new();
    for (name, value) in table.fields() {
        if let Value::String(bytes) | Value::Bytes(bytes) = value {
            texts.push((name, Text::Own(bytes)));
            continue;
        }
        let start = text.len();
        let written = match value {
            Value::Bool(value) => write!(text, "{value}"),
            Value::F32(value) => write!(text, "{value}"),
            Value::F64(value) => write!(text, "{value}"),
            Value::Timestamp(value) => write!(text, "{value}"),
            value => match value.as_integer() {
                Some(value) => write!(text, "{value}"),
                None => continue,
            },
        };
        if written.is_ok() {
            texts.push((name, Text::Written(start..text.len())));
        }
    }
    texts
}

/// Properties for a record that no client of AMQP published: its headers, its key, its time.
fn foreign_properties(record: &Record<'_>, out: &mut Vec<u8>) {
    let mut table = Vec::new();
    let mut left = FOREIGN_BYTES_MAX;
    let mut add = |name: &str, value: &[u8]| {
        let bytes = name.len() + value.len() + FIELD_OVERHEAD_BYTES;
        let Some(rest) = left.checked_sub(bytes) else {
            return;
        };
        left = rest;
        let mut writer = Writer::new(&mut table);
        writer.shortstr(name);
        Value::String(value).write(&mut writer);
    };
    if let Some(key) = record.key {
        add(KEY, key);
    }
    for (name, value) in record.headers.clone() {
        if let (Ok(text), false) = (std::str::from_utf8(name), is_reserved(name)) {
            add(text, value.unwrap_or_default());
        }
    }
    let seconds = record.timestamp_ms / 1000;
    let properties = Properties {
        // The table was written above, so it is well formed.
        headers: Table::check(&table).ok().filter(|table| !table.is_empty()),
        timestamp: u64::try_from(seconds).ok(),
        ..Properties::default()
    };
    out.clear();
    properties.write(&mut Writer::new(out));
}

#[cfg(test)]
mod tests;
