#![allow(clippy::unwrap_used)]

use cloverleaf_log::{Batch, BatchBuilder};

use super::*;
use crate::wire::table_bytes;

fn raw(properties: &Properties<'_>) -> Vec<u8> {
    let mut raw = Vec::new();
    properties.write(&mut Writer::new(&mut raw));
    raw
}

fn stored(message: &Message<'_>, expires_at_ms: Option<u64>) -> Batch {
    let mut builder = BatchBuilder::with_capacity(100, 1_000);
    message.push(&mut builder, expires_at_ms);
    builder.finish()
}

#[test]
fn a_message_comes_back_as_it_was_published() {
    let table = table_bytes(&[
        ("kafka-key", Value::String(b"k")),
        ("retries", Value::I32(-3)),
        ("ok", Value::Bool(true)),
        ("cloverleaf-expires", Value::String(b"forged")),
        ("nested", Value::Table(Table::default())),
    ]);
    let properties = raw(&Properties {
        headers: Some(Table::check(&table).unwrap()),
        delivery_mode: Some(2),
        ..Properties::default()
    });
    let message = Message {
        exchange: "events",
        routing_key: "a.b",
        properties: &properties,
        bcc: &[],
        body: b"body"[..].into(),
    };
    let batch = stored(&message, Some(77));
    let (_, record) = batch.records().next_record().unwrap().unwrap();
    let mut scratch = Vec::new();
    assert_eq!(Message::read(&record, "q", &mut scratch), message);
    assert_eq!(record.key, Some(&b"k"[..]));
    let header = |name: &str| record.headers.value_of(name.as_bytes()).flatten();
    assert_eq!(header("retries"), Some(&b"-3"[..]));
    assert_eq!(header("ok"), Some(&b"true"[..]));
    assert_eq!(header("nested"), None);
    assert_eq!(header("cloverleaf-expires"), Some(&77u64.to_be_bytes()[..]));
}

#[test]
fn headers_of_another_protocol_fit_into_the_smallest_frame() {
    let mut builder = BatchBuilder::with_capacity(100, 5_000);
    let large = [7; 3000];
    let headers: [Header<'_>; 3] = [
        (b"large", Some(&large)),
        (b"too-much", Some(&large)),
        (b"small", Some(b"1")),
    ];
    builder.push(None, Some(b"value"), &headers);
    let batch = builder.finish();
    let (_, record) = batch.records().next_record().unwrap().unwrap();
    let mut scratch = Vec::new();
    let message = Message::read(&record, "orders", &mut scratch);
    assert!(message.properties.len() < 4096 - 8 - 12);
    let properties = Properties::read(message.properties).unwrap();
    let fields = properties.headers.unwrap();
    let names: Vec<_> = fields.fields().map(|(name, _)| name).collect();
    assert_eq!(names, ["large", "small"]);
}

#[test]
fn a_record_of_another_protocol_has_its_headers_its_key_and_its_time() {
    let mut builder = BatchBuilder::with_capacity(100, 5_000);
    let headers: [Header<'_>; 3] = [
        (b"trace", Some(b"1")),
        (b"none", None),
        // Malformed properties.
        (PROPERTIES, Some(b"\xff\xff\xff")),
    ];
    builder.push(Some(b"key"), Some(b"value"), &headers);
    let batch = builder.finish();
    let (_, record) = batch.records().next_record().unwrap().unwrap();
    let mut scratch = Vec::new();
    let message = Message::read(&record, "orders", &mut scratch);
    assert_eq!((message.exchange, message.routing_key), ("", "orders"));
    assert_eq!(message.body, b"value"[..].into());
    let properties = Properties::read(message.properties).unwrap();
    assert_eq!(properties.timestamp, Some(5));
    let table = properties.headers.unwrap();
    let fields: Vec<_> = table.fields().collect();
    let text = |text: &'static [u8]| Value::String(text);
    let expected = [("kafka-key", text(b"key")), ("trace", text(b"1"))];
    assert_eq!(fields[..2], expected);
    assert_eq!(fields[2..], [("none", text(b""))]);
}
