//! How an AMQP message is stored in a record of the log, and how a record of another protocol looks
//! to an AMQP consumer.
//!
//! | record | AMQP |
//! |---|---|
//! | value | body |
//! | key | the user's header `kafka-key` |
//! | header `amqp-exchange` | the exchange to which it was published |
//! | header `amqp-routing-key` | the routing key |
//! | header `amqp-properties` | flags and properties as the publisher sent them, without `BCC` |
//! | header `amqp-bcc` | the routing keys of `BCC`, which consumers do not see |
//! | other headers | a copy of the user's headers as text, for consumers of other protocols |
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
/// Record header: the routing keys of the user's header `BCC`, as an encoded field array.
const BCC: &[u8] = b"amqp-bcc";
/// The user's header that becomes the record's key.
const KEY_HEADER: &str = "kafka-key";
/// Prefixes of the broker's own record headers: a user's header with such a name is not stored as a
/// record header.
const RESERVED_PREFIXES: [&[u8]; 2] = [b"amqp-", b"cloverleaf-"];
/// The longest text of a short string. A record whose `amqp-` headers are longer was not written by
/// AMQP; they are ignored.
const SHORT_BYTES_MAX: usize = 255;

/// Maximum total size of the headers shown for a record of another protocol; further ones are left
/// out. A content header is one frame, and every client accepts frames of 4096 bytes.
const FOREIGN_HEADERS_BYTES_MAX: usize = 4000;
/// Bytes of a table field besides its name and its text.
const FIELD_OVERHEAD_BYTES: usize = 6;

/// A message as AMQP sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The exchange to which the message was published; empty: the default exchange.
    pub exchange: &'a str,
    /// The routing key.
    pub routing_key: &'a str,
    /// Flags and properties as in a content header, well formed, without `BCC`.
    pub properties: &'a [u8],
    /// The routing keys of `BCC`, as an encoded field array. [`Message::read`] leaves it empty: see
    /// [`bcc_of`].
    pub bcc: &'a [u8],
    /// The body.
    pub body: Body<'a>,
}

impl<'a> Message<'a> {
    /// Appends the message to a batch. It expires at `expires_at_ms`, in milliseconds since 1970.
    pub fn push(&self, builder: &mut BatchBuilder, expires_at_ms: Option<u64>) {
        self.push_with_headers(builder, expires_at_ms, &[]);
    }

    /// Like [`Message::push`], with further record headers for the broker's own use.
    pub fn push_with_headers(
        &self,
        builder: &mut BatchBuilder,
        expires_at_ms: Option<u64>,
        extra: &[Header<'_>],
    ) {
        let expires = expires_at_ms.map(u64::to_be_bytes);
        let own: [Header<'_>; 3] = [
            (EXCHANGE, Some(self.exchange.as_bytes())),
            (ROUTING_KEY, Some(self.routing_key.as_bytes())),
            (PROPERTIES, Some(self.properties)),
        ];
        let table = user_headers(self.properties);
        if table.is_empty() && extra.is_empty() && self.bcc.is_empty() {
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
        all.extend_from_slice(extra);
        for (name, value) in texts {
            let value = value.bytes(&text);
            if name == KEY_HEADER && key.is_none() {
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

    /// The AMQP message in a record of `queue`. `scratch` receives the properties made for a record
    /// of another protocol.
    pub fn read(record: &Record<'a>, queue: &'a str, scratch: &'a mut Vec<u8>) -> Message<'a> {
        let (mut exchange, mut routing_key, mut properties) = (None, None, None);
        for (name, value) in record.headers.clone() {
            match name {
                EXCHANGE => exchange = short_string(value),
                ROUTING_KEY => routing_key = short_string(value),
                // A client of another protocol may have written this header.
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

/// The `BCC` routing keys of a stored message, as an encoded field array: they are needed when the
/// message is routed again by its own keys.
pub fn bcc_of<'a>(record: &Record<'a>) -> &'a [u8] {
    let bcc = record.headers.value_of(BCC).flatten();
    bcc.filter(|bytes| Array::check(bytes).is_ok())
        .unwrap_or_default()
}

fn short_string(value: Option<&[u8]>) -> Option<&str> {
    let text = std::str::from_utf8(value?).ok()?;
    (text.len() <= SHORT_BYTES_MAX).then_some(text)
}

fn is_reserved(name: &[u8]) -> bool {
    RESERVED_PREFIXES
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// The user's headers in well-formed properties.
fn user_headers(raw: &[u8]) -> Table<'_> {
    // Avoids parsing: the flag of `headers` is bit 13 of the first two bytes.
    match raw.first() {
        Some(flags) if flags & 0x20 != 0 => {
            let properties = Properties::read(raw).unwrap_or_default();
            properties.headers.unwrap_or_default()
        }
        _ => Table::default(),
    }
}

/// A header's text: borrowed from the table, or formatted into a shared buffer.
enum HeaderText<'a> {
    Own(&'a [u8]),
    Written(std::ops::Range<usize>),
}

impl<'a> HeaderText<'a> {
    fn bytes<'t: 'a>(&self, text: &'t str) -> &'a [u8] {
        match self {
            HeaderText::Own(bytes) => bytes,
            HeaderText::Written(range) => text.as_bytes().get(range.clone()).unwrap_or_default(),
        }
    }
}

/// The headers that can be shown as text: strings as they are, numbers in digits. Tables and arrays
/// are left out.
fn texts_of<'a>(table: Table<'a>, text: &mut String) -> Vec<(&'a str, HeaderText<'a>)> {
    let mut texts = Vec::new();
    for (name, value) in table.fields() {
        if let Value::String(bytes) | Value::Bytes(bytes) = value {
            texts.push((name, HeaderText::Own(bytes)));
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
            texts.push((name, HeaderText::Written(start..text.len())));
        }
    }
    texts
}

/// Properties for a record that no AMQP client published, made of its headers, key and time.
fn foreign_properties(record: &Record<'_>, out: &mut Vec<u8>) {
    let mut table = Vec::new();
    let mut left = FOREIGN_HEADERS_BYTES_MAX;
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
        add(KEY_HEADER, key);
    }
    for (name, value) in record.headers.clone() {
        if let (Ok(text), false) = (std::str::from_utf8(name), is_reserved(name)) {
            add(text, value.unwrap_or_default());
        }
    }
    let seconds = record.timestamp_ms / 1000;
    let properties = Properties {
        // Cannot fail: the table was encoded above.
        headers: Table::check(&table).ok().filter(|table| !table.is_empty()),
        timestamp: u64::try_from(seconds).ok(),
        ..Properties::default()
    };
    out.clear();
    properties.write(&mut Writer::new(out));
}

#[cfg(test)]
mod tests;
