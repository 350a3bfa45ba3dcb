//! How exchanges, queues and bindings are persisted.
//!
//! ```text
//! a queue       in the settings of its topic:
//!               amqp.queue = "1 <flags> <arguments in hexadecimal digits>"
//!               flags: d durable, a auto-delete, o the topic is older than the queue, - none
//!               or "going": the queue is being deleted, the topic stays
//! an exchange   kept under amqp/exchange/<name>:
//!               u8 = 1 | u8 kind | u8 flags | 16 bytes identity | arguments, a field table
//!               kind: 0 direct, 1 fanout, 2 topic, 3 headers
//!               flags: 1 auto-delete, 2 internal, 4 delays
//! a binding     kept under amqp/binding/<length>:<source><q or e><length>:<destination>
//!               <length>:<key><arguments in hexadecimal digits>:
//!               u8 = 1 | 16 bytes identity of the source | 16 bytes identity of the destination
//! ```
//!
//! Only durable definitions are written. A queue's identity is its topic's id; predeclared
//! exchanges have the identity zero. These bytes are stored in users' folders: never change their
//! meaning.

use std::fmt::Write;

use uuid::Uuid;

use crate::routing::{Binding, Destination, ExchangeOptions, ExchangeType};
use crate::wire::Table;

/// The topic setting that makes a topic a queue.
pub(super) const QUEUE: &str = "amqp.queue";
/// Its value while a queue is being deleted and its topic stays.
pub(super) const DELETING: &str = "going";
/// Prefix of the keys of exchanges.
pub(super) const EXCHANGES: &str = "amqp/exchange/";
/// Prefix of the keys of bindings.
pub(super) const BINDINGS: &str = "amqp/binding/";

const VERSION: u8 = 1;

const AUTO_DELETE: u8 = 1;
const INTERNAL: u8 = 2;
const DELAYS: u8 = 4;

/// A queue, as stored in its topic's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredQueue {
    pub(super) durable: bool,
    pub(super) auto_delete: bool,
    pub(super) adopted: bool,
    /// An encoded field table.
    pub(super) arguments: Vec<u8>,
}

impl StoredQueue {
    pub(super) fn encode(&self) -> String {
        let mut text = format!("{VERSION} ");
        let flags = [
            (self.durable, 'd'),
            (self.auto_delete, 'a'),
            (self.adopted, 'o'),
        ];
        let before = text.len();
        text.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, c)| c));
        if text.len() == before {
            text.push('-');
        }
        text.push(' ');
        push_hex(&mut text, &self.arguments);
        text
    }

    /// `None`: another version, or malformed.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ' ');
        if words.next()?.parse() != Ok(VERSION) {
            return None;
        }
        let flags = words.next()?;
        let arguments = from_hex(words.next()?)?;
        Table::check(&arguments).ok()?;
        Some(Self {
            durable: flags.contains('d'),
            auto_delete: flags.contains('a'),
            adopted: flags.contains('o'),
            arguments,
        })
    }
}

/// The key under which an exchange is kept.
pub(super) fn exchange_key(name: &str) -> String {
    format!("{EXCHANGES}{name}")
}

/// Encodes an exchange's value.
pub(super) fn encode_exchange(options: &ExchangeOptions, id: Uuid) -> Vec<u8> {
    let kind = match options.kind {
        ExchangeType::Direct => 0,
        ExchangeType::Fanout => 1,
        ExchangeType::Topic => 2,
        ExchangeType::Headers => 3,
    };
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = flag(options.auto_delete, AUTO_DELETE)
        | flag(options.internal, INTERNAL)
        | flag(options.delays, DELAYS);
    let mut bytes = vec![VERSION, kind, flags];
    bytes.extend_from_slice(id.as_bytes());
    bytes.extend_from_slice(&options.arguments);
    bytes
}

/// Decodes an exchange's value; `None`: another version, or malformed.
pub(super) fn decode_exchange(bytes: &[u8]) -> Option<(ExchangeOptions, Uuid)> {
    let ([version, kind, flags], rest) = bytes.split_first_chunk::<3>()?;
    let (id, arguments) = rest.split_first_chunk::<16>()?;
    if *version != VERSION {
        return None;
    }
    let kind = match kind {
        0 => ExchangeType::Direct,
        1 => ExchangeType::Fanout,
        2 => ExchangeType::Topic,
        3 => ExchangeType::Headers,
        _ => return None,
    };
    let table = Table::check(arguments).ok()?;
    let options = ExchangeOptions {
        kind,
        delays: flags & DELAYS != 0,
        durable: true,
        auto_delete: flags & AUTO_DELETE != 0,
        internal: flags & INTERNAL != 0,
        alternate: super::exchanges::alternate(table),
        arguments: arguments.to_vec(),
    };
    Some((options, Uuid::from_bytes(*id)))
}

/// The key under which a binding is kept.
pub(super) fn binding_key(source: &str, binding: &Binding) -> String {
    let (kind, destination) = match &binding.destination {
        Destination::Queue(name) => ('q', name),
        Destination::Exchange(name) => ('e', name),
    };
    let mut key = format!(
        "{BINDINGS}{}:{source}{kind}{}:{destination}{}:{}",
        source.len(),
        destination.len(),
        binding.key.len(),
        binding.key
    );
    push_hex(&mut key, &binding.arguments);
    key
}

/// Decodes a binding's key without the prefix [`BINDINGS`]; `None`: malformed.
pub(super) fn decode_binding_key(key: &str) -> Option<(String, Binding)> {
    let (source, rest) = counted(key)?;
    let kind = rest.chars().next()?;
    let (destination, rest) = counted(&rest[kind.len_utf8()..])?;
    let destination = match kind {
        'q' => Destination::Queue(destination.into()),
        'e' => Destination::Exchange(destination.into()),
        _ => return None,
    };
    let (key, arguments) = counted(rest)?;
    let arguments = from_hex(arguments)?;
    Table::check(&arguments).ok()?;
    let binding = Binding {
        destination,
        key: key.into(),
        arguments: arguments.into(),
    };
    Some((source.to_owned(), binding))
}

/// Encodes a binding's value: the identities of its source and its destination.
pub(super) fn encode_ends(source: Uuid, destination: Uuid) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(source.as_bytes());
    bytes.extend_from_slice(destination.as_bytes());
    bytes
}

/// Decodes a binding's value: the identities of its source and its destination.
pub(super) fn decode_ends(bytes: &[u8]) -> Option<(Uuid, Uuid)> {
    let (version, rest) = bytes.split_first()?;
    let (source, rest) = rest.split_first_chunk::<16>()?;
    let destination: [u8; 16] = rest.try_into().ok()?;
    let ends = (Uuid::from_bytes(*source), Uuid::from_bytes(destination));
    (*version == VERSION).then_some(ends)
}

/// Bytes charged per priority above the lowest: each is a partition, of which there are 100,000 for
/// all protocols. With the default budget, priorities can take at most half of them.
const LEVEL_BYTES: usize = 16 << 10;

/// Bytes charged for a queue besides [`super::DEFINITION_BYTES`].
pub(super) fn queue_bytes(name: &str, raw: &[u8], levels: u32) -> usize {
    let levels = usize::try_from(levels).unwrap_or(usize::MAX);
    name.len() + raw.len() + levels.saturating_sub(1).saturating_mul(LEVEL_BYTES)
}

/// Bytes charged for an exchange besides [`super::DEFINITION_BYTES`].
pub(super) fn exchange_bytes(name: &str, options: &ExchangeOptions) -> usize {
    name.len() + options.arguments.len()
}

/// Bytes charged for a binding besides [`super::DEFINITION_BYTES`].
pub(super) fn binding_bytes(source: &str, binding: &Binding) -> usize {
    let destination = binding.destination.name();
    source.len() + destination.len() + binding.key.len() + binding.arguments.len()
}

/// Splits `<length>:<text>` off; returns the text and the rest.
fn counted(text: &str) -> Option<(&str, &str)> {
    let (length, rest) = text.split_once(':')?;
    let length: usize = length.parse().ok()?;
    rest.split_at_checked(length)
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    digits
        .chunks_exact(2)
        .map(|pair| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::wire::{Value, table_bytes};

    proptest! {
        #[test]
        fn encoded_definitions_are_decoded(
            names in prop::array::uniform3("\\PC{0,40}"),
            is_queue: bool,
            flags: [bool; 5],
            kind in 0usize..4,
            text in "[a-z]{0,9}",
            ids: (u128, u128),
        ) {
            let [source, destination, key] = names;
            let arguments = match text.is_empty() {
                true => Vec::new(),
                false => table_bytes(&[("x", Value::String(text.as_bytes()))]),
            };
            let destination = match is_queue {
                true => Destination::Queue(destination.into()),
                false => Destination::Exchange(destination.into()),
            };
            let binding = Binding {
                destination,
                key: key.into(),
                arguments: arguments.clone().into(),
            };
            let text = binding_key(&source, &binding);
            let read = decode_binding_key(text.strip_prefix(BINDINGS).unwrap());
            prop_assert_eq!(read, Some((source, binding)));

            let ids = (Uuid::from_u128(ids.0), Uuid::from_u128(ids.1));
            prop_assert_eq!(decode_ends(&encode_ends(ids.0, ids.1)), Some(ids));

            let [durable, auto_delete, adopted, internal, delays] = flags;
            let queue = StoredQueue { durable, auto_delete, adopted, arguments: arguments.clone() };
            prop_assert_eq!(StoredQueue::decode(&queue.encode()), Some(queue));

            let options = ExchangeOptions {
                kind: [
                    ExchangeType::Direct,
                    ExchangeType::Fanout,
                    ExchangeType::Topic,
                    ExchangeType::Headers,
                ][kind],
                delays,
                durable: true,
                auto_delete,
                internal,
                alternate: None,
                arguments,
            };
            let bytes = encode_exchange(&options, ids.0);
            prop_assert_eq!(decode_exchange(&bytes), Some((options, ids.0)));
        }

        #[test]
        fn any_bytes_are_answered(bytes: Vec<u8>, text in "\\PC{0,60}") {
            let _ = decode_exchange(&bytes);
            let _ = decode_ends(&bytes);
            let _ = decode_binding_key(&text);
            let _ = StoredQueue::decode(&text);
        }
    }

    #[test]
    fn malformed_definitions_are_not_decoded() {
        assert_eq!(StoredQueue::decode(DELETING), None);
        assert_eq!(StoredQueue::decode("2 d "), None);
        assert_eq!(StoredQueue::decode("1 d 0"), None);
        assert_eq!(decode_binding_key("99:aq1:b1:c"), None);
    }
}
