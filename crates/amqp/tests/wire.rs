//! The decoders answer any bytes with a value or an error, and decode what was encoded.

use cloverleaf_amqp::wire::{
    ContentHeader, DEPTH_MAX, FrameError, FrameType, Method, MethodId, Properties, Reader, Table,
    Value, Writer, method, peek_frame,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// A value that owns its parts.
#[derive(Clone, Debug)]
enum Owned {
    Bool(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    F64(f64),
    Decimal(u8, u32),
    String(Vec<u8>),
    Bytes(Vec<u8>),
    Timestamp(u64),
    Table(Vec<(String, Owned)>),
    Array(Vec<Owned>),
    Void,
}

fn name() -> impl Strategy<Value = String> {
    "[a-z-]{0,12}"
}

fn value() -> impl Strategy<Value = Owned> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Owned::Bool),
        any::<i8>().prop_map(Owned::I8),
        any::<u8>().prop_map(Owned::U8),
        any::<i16>().prop_map(Owned::I16),
        any::<u16>().prop_map(Owned::U16),
        any::<i32>().prop_map(Owned::I32),
        any::<u32>().prop_map(Owned::U32),
        any::<i64>().prop_map(Owned::I64),
        (-1e9..1e9f64).prop_map(Owned::F64),
        any::<(u8, u32)>().prop_map(|(scale, digits)| Owned::Decimal(scale, digits)),
        vec(any::<u8>(), 0..20).prop_map(Owned::String),
        vec(any::<u8>(), 0..20).prop_map(Owned::Bytes),
        any::<u64>().prop_map(Owned::Timestamp),
        Just(Owned::Void),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec((name(), inner.clone()), 0..4).prop_map(Owned::Table),
            vec(inner, 0..4).prop_map(Owned::Array),
        ]
    })
}

/// Encodes a table independently of the code under test.
fn table_bytes(fields: &[(String, Owned)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(name.len() as u8);
        out.extend_from_slice(name.as_bytes());
        put(value, &mut out);
    }
    out
}

fn put(value: &Owned, out: &mut Vec<u8>) {
    let mut typed = |tag: u8, bytes: &[u8]| {
        out.push(tag);
        out.extend_from_slice(bytes);
    };
    let long = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat();
    match value {
        Owned::Bool(value) => typed(b't', &[u8::from(*value)]),
        Owned::I8(value) => typed(b'b', &value.to_be_bytes()),
        Owned::U8(value) => typed(b'B', &value.to_be_bytes()),
        Owned::I16(value) => typed(b's', &value.to_be_bytes()),
        Owned::U16(value) => typed(b'u', &value.to_be_bytes()),
        Owned::I32(value) => typed(b'I', &value.to_be_bytes()),
        Owned::U32(value) => typed(b'i', &value.to_be_bytes()),
        Owned::I64(value) => typed(b'l', &value.to_be_bytes()),
        Owned::F64(value) => typed(b'd', &value.to_be_bytes()),
        Owned::Decimal(scale, digits) => {
            typed(b'D', &[&[*scale][..], &digits.to_be_bytes()].concat());
        }
        Owned::String(bytes) => typed(b'S', &long(bytes)),
        Owned::Bytes(bytes) => typed(b'x', &long(bytes)),
        Owned::Timestamp(value) => typed(b'T', &value.to_be_bytes()),
        Owned::Table(fields) => typed(b'F', &long(&table_bytes(fields))),
        Owned::Array(values) => {
            let mut bytes = Vec::new();
            values.iter().for_each(|value| put(value, &mut bytes));
            typed(b'A', &long(&bytes));
        }
        Owned::Void => typed(b'V', &[]),
    }
}

fn assert_same(found: Value<'_>, expected: &Owned) {
    match (found, expected) {
        (Value::Bool(a), Owned::Bool(b)) => assert_eq!(a, *b),
        (Value::I8(a), Owned::I8(b)) => assert_eq!(a, *b),
        (Value::U8(a), Owned::U8(b)) => assert_eq!(a, *b),
        (Value::I16(a), Owned::I16(b)) => assert_eq!(a, *b),
        (Value::U16(a), Owned::U16(b)) => assert_eq!(a, *b),
        (Value::I32(a), Owned::I32(b)) => assert_eq!(a, *b),
        (Value::U32(a), Owned::U32(b)) => assert_eq!(a, *b),
        (Value::I64(a), Owned::I64(b)) => assert_eq!(a, *b),
        (Value::F64(a), Owned::F64(b)) => assert_eq!(a.to_bits(), b.to_bits()),
        (Value::Decimal(a, b), Owned::Decimal(c, d)) => assert_eq!((a, b), (*c, *d)),
        (Value::String(a), Owned::String(b)) | (Value::Bytes(a), Owned::Bytes(b)) => {
            assert_eq!(a, &b[..]);
        }
        (Value::Timestamp(a), Owned::Timestamp(b)) => assert_eq!(a, *b),
        (Value::Void, Owned::Void) => {}
        (Value::Table(table), Owned::Table(fields)) => assert_same_table(table, fields),
        (Value::Array(array), Owned::Array(values)) => {
            let found: Vec<Value<'_>> = array.values().collect();
            assert_eq!(found.len(), values.len());
            for (found, expected) in found.into_iter().zip(values) {
                assert_same(found, expected);
            }
        }
        (found, expected) => panic!("{found:?} for {expected:?}"),
    }
}

fn assert_same_table(table: Table<'_>, fields: &[(String, Owned)]) {
    let found: Vec<_> = table.fields().collect();
    assert_eq!(found.len(), fields.len());
    for ((name, value), (expected_name, expected)) in found.into_iter().zip(fields) {
        assert_eq!(name, expected_name);
        assert_same(value, expected);
        let mut again = Vec::new();
        value.write(&mut Writer::new(&mut again));
        let mut bytes = Vec::new();
        put(expected, &mut bytes);
        assert_eq!(again, bytes);
    }
}

fn payload(method: Method<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    method.write(&mut Writer::new(&mut out));
    out
}

/// Bytes that are often small, as lengths are.
fn likely() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![4 => 0u8..4, 1 => any::<u8>()], 0..80)
}

proptest! {
    #[test]
    fn tables_survive_the_round_trip(fields in vec((name(), value()), 0..6)) {
        let bytes = table_bytes(&fields);
        let table = Table::check(&bytes).unwrap();
        assert_same_table(table, &fields);
    }

    #[test]
    fn a_table_that_is_cut_off_is_refused(fields in vec((name(), value()), 1..4)) {
        let bytes = table_bytes(&fields);
        let first = table_bytes(&fields[..1]).len();
        for cut in 1..first {
            prop_assert!(Table::check(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn any_bytes_are_a_table_or_an_error(bytes in likely()) {
        if let Ok(table) = Table::check(&bytes) {
            let mut again = Vec::new();
            let mut out = Writer::new(&mut again);
            for (name, value) in table.fields() {
                out.shortstr(name);
                value.write(&mut out);
            }
            // `L` is encoded as `l`, and a true boolean as 1.
            prop_assert_eq!(again.len(), bytes.len());
            prop_assert!(Table::check(&again).is_ok());
        }
    }

    #[test]
    fn any_bytes_are_a_method_or_an_error(
        class in prop_oneof![Just(10u16), Just(20), Just(30), Just(40), Just(50), Just(60),
            Just(85), Just(90), any::<u16>()],
        number in prop_oneof![(0u16..13).prop_map(|n| n * 10), 0u16..130, any::<u16>()],
        arguments in likely(),
    ) {
        let mut bytes = [class.to_be_bytes(), number.to_be_bytes()].concat();
        bytes.extend_from_slice(&arguments);
        let id = MethodId::peek(&bytes);
        prop_assert_eq!(id, MethodId { class, method: number });
        match Method::read(&bytes) {
            Ok(Some(method)) => {
                prop_assert_eq!(method.id(), id);
                prop_assert!(id.name().is_some());
                let again = payload(method);
                prop_assert_eq!(Method::read(&again), Ok(Some(method)));
            }
            Ok(None) => prop_assert!(id.name().is_none()),
            Err(_) => {}
        }
    }

    #[test]
    fn any_bytes_are_a_content_header_or_an_error(bytes in likely(), flags in any::<u16>()) {
        let mut header = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        header.extend_from_slice(&flags.to_be_bytes());
        header.extend_from_slice(&bytes);
        if let Ok((content, properties)) = ContentHeader::read(&header) {
            prop_assert_eq!(content.body_bytes, 9);
            let mut raw = Vec::new();
            properties.write(&mut Writer::new(&mut raw));
            prop_assert_eq!(&raw[..], content.raw);
            let mut again = Vec::new();
            content.write(&mut Writer::new(&mut again));
            prop_assert_eq!(again, header);
        }
    }

    #[test]
    fn frames_are_found_where_they_end(
        payload in vec(any::<u8>(), 0..50),
        channel in any::<u16>(),
        more in vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = vec![3];
        bytes.extend_from_slice(&channel.to_be_bytes());
        bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&payload);
        bytes.push(206);
        let whole = bytes.len();
        for cut in 0..whole {
            let wants = peek_frame(&bytes[..cut], 4096).unwrap().unwrap_err();
            prop_assert!(wants > cut && wants <= whole);
        }
        bytes.extend_from_slice(&more);
        let frame = peek_frame(&bytes, 4096).unwrap().unwrap();
        prop_assert_eq!((frame.kind, frame.channel), (FrameType::Body, channel));
        prop_assert_eq!(frame.payload, &payload[..]);
        prop_assert_eq!(frame.len_bytes(), whole);
    }
}

#[test]
fn bits_share_an_octet_lowest_first() {
    let declare = method::QueueDeclare {
        queue: "q",
        durable: true,
        auto_delete: true,
        ..Default::default()
    };
    let bytes = payload(Method::QueueDeclare(declare));
    assert_eq!(bytes, b"\0\x32\0\x0a\0\0\x01q\x0a\0\0\0\0");
    assert_eq!(
        Method::read(&bytes),
        Ok(Some(Method::QueueDeclare(declare)))
    );
}

#[test]
fn a_method_longer_than_its_arguments_is_refused() {
    let mut bytes = payload(Method::TxSelect(method::TxSelect {}));
    assert!(Method::read(&bytes).unwrap().is_some());
    bytes.push(0);
    assert!(Method::read(&bytes).is_err());
    assert!(Method::read(&bytes[..3]).is_err());
    assert_eq!(Method::read(b"\0\x3c\xff\xff").unwrap(), None);
}

#[test]
fn nesting_has_an_end() {
    let nested = |depth: u32| {
        let mut bytes = Vec::new();
        for _ in 0..depth {
            let mut outer = vec![1, b'n', b'F'];
            outer.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
            outer.extend_from_slice(&bytes);
            bytes = outer;
        }
        bytes
    };
    assert!(Table::check(&nested(DEPTH_MAX)).is_ok());
    assert!(Table::check(&nested(DEPTH_MAX + 1)).is_err());
    assert!(Table::check(&nested(20_000)).is_err());
}

#[test]
fn wrong_frames_are_named() {
    assert_eq!(
        peek_frame(b"\x04\0\0\0\0\0\0\xce", 4096),
        Err(FrameError::Type { kind: 4 })
    );
    assert_eq!(
        peek_frame(b"\x01\0\0\0\0\0\0\xcd", 4096),
        Err(FrameError::End { found: 0xcd })
    );
    let too_large = FrameError::TooLarge {
        bytes: u64::from(u32::MAX) + 8,
        bytes_max: 4096,
    };
    assert_eq!(
        peek_frame(b"\x01\0\0\xff\xff\xff\xff", 4096),
        Err(too_large)
    );
}

#[test]
fn properties_of_a_real_client_are_read() {
    // Sent by pika: persistent, with a header and a content type.
    let raw = b"\xb0\x00\x0atext/plain\0\0\0\x08\x01hS\0\0\0\x01v\x02";
    let properties = Properties::read(raw).unwrap();
    assert_eq!(properties.content_type, Some("text/plain"));
    assert_eq!(properties.delivery_mode, Some(2));
    let headers = properties.headers.unwrap();
    assert_eq!(
        headers.get("h").and_then(|value| value.as_text()),
        Some("v")
    );
    assert_eq!(headers.get("g"), None);
    assert!(Properties::read(b"\x00\x01").is_err());
    assert!(Properties::read(b"\x00\x00\x00").is_err());
}

#[test]
fn long_short_strings_are_cut_between_characters() {
    let text = "é".repeat(200);
    let mut out = Vec::new();
    Writer::new(&mut out).shortstr(&text);
    assert_eq!(out[0], 254);
    assert_eq!(Reader::new(&out).shortstr(), Ok(&text[..254]));
}
