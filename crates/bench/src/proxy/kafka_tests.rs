//! Addresses in Kafka's responses are exchanged, and nothing else is.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn text(out: &mut Vec<u8>, text: &str, is_flexible: bool) {
    match is_flexible {
        true => out.push(text.len() as u8 + 1),
        false => out.extend((text.len() as i16).to_be_bytes()),
    }
    out.extend(text.as_bytes());
}

fn frame(body: &[u8]) -> Vec<u8> {
    [&(body.len() as i32).to_be_bytes()[..], body].concat()
}

fn request(key: i16, version: i16, correlation: i32, more: usize) -> Vec<u8> {
    let mut body = [&key.to_be_bytes()[..], &version.to_be_bytes()].concat();
    body.extend(correlation.to_be_bytes());
    body.resize(body.len() + more, 7);
    frame(&body)
}

/// A response with two brokers of these addresses, or with one if it is a coordinator's.
fn response(key: i16, version: i16, correlation: i32, nodes: [(&str, u16); 2]) -> Vec<u8> {
    let is_flexible = version >= if key == METADATA { 9 } else { 3 };
    let mut body = correlation.to_be_bytes().to_vec();
    let tags = |body: &mut Vec<u8>| {
        if is_flexible {
            // One of 2 bytes.
            body.extend([1, 9, 2, 0xaa, 0xbb]);
        }
    };
    tags(&mut body);
    let node = |body: &mut Vec<u8>, (host, port): (&str, u16)| {
        body.extend(5i32.to_be_bytes());
        text(body, host, is_flexible);
        body.extend(i32::from(port).to_be_bytes());
    };
    let count = |body: &mut Vec<u8>, count: u8| match is_flexible {
        true => body.push(count + 1),
        false => body.extend(i32::from(count).to_be_bytes()),
    };
    match key {
        METADATA => {
            if version >= 3 {
                body.extend([0; 4]);
            }
            count(&mut body, 2);
            for each in nodes {
                node(&mut body, each);
                if version >= 1 {
                    text(&mut body, "rack", is_flexible);
                }
                tags(&mut body);
            }
        }
        _ if version < 4 => {
            if version >= 1 {
                body.extend([0; 4]);
            }
            body.extend([0; 2]);
            if version >= 1 {
                text(&mut body, "none", is_flexible);
            }
            node(&mut body, nodes[0]);
        }
        _ => {
            body.extend([0; 4]);
            count(&mut body, 2);
            for each in nodes {
                text(&mut body, "group", true);
                node(&mut body, each);
                body.extend([0; 2]);
                // No message.
                body.push(0);
                tags(&mut body);
            }
        }
    }
    body.extend(b"whatever comes then");
    frame(&body)
}

/// The bytes that come out if they go in in pieces of this size.
fn through(exchange: &mut AddressRewriter, bytes: &[u8], piece: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        exchange.responses(piece, &mut out, &mut |host, port| {
            (host == "broker.example").then(|| ("127.0.0.1".to_owned(), port + 1))
        });
    }
    out
}

#[test]
fn addresses_are_exchanged_in_every_version() {
    let before = [("broker.example", 9092), ("other", 1)];
    let after = [("127.0.0.1", 9093), ("other", 1)];
    for (key, versions) in [(METADATA, 0..=13), (FIND_COORDINATOR, 0..=6)] {
        for version in versions {
            for piece in [1, 3, 1_000] {
                let mut exchange = AddressRewriter::default();
                exchange.requests(&request(key, version, 77, 30));
                let other = frame(b"\x00\x00\x00\x01some other response");
                let all = [&other[..], &response(key, version, 77, before), &other].concat();
                let expected = [&other[..], &response(key, version, 77, after), &other].concat();
                assert_eq!(
                    through(&mut exchange, &all, piece),
                    expected,
                    "{key} {version}"
                );
                assert!(exchange.waiting.is_empty());
            }
        }
    }
}

#[test]
fn requests_are_followed_in_any_pieces() {
    let mut all = request(0, 9, 1, 100_000);
    all.extend(request(METADATA, 9, 2, 0));
    all.extend(request(1, 9, 3, 5));
    all.extend(request(FIND_COORDINATOR, 2, 4, 9));
    for piece in [1, 5, 4_096, 1_000_000] {
        let mut exchange = AddressRewriter::default();
        all.chunks(piece).for_each(|piece| exchange.requests(piece));
        let expected = [(2, METADATA, 9), (4, FIND_COORDINATOR, 2)];
        assert_eq!(exchange.waiting, expected, "pieces of {piece}");
    }
}

#[test]
fn what_is_not_understood_passes_as_it_is() {
    let mut exchange = AddressRewriter::default();
    exchange.requests(&request(METADATA, 9, 77, 0));
    let mut cut = response(METADATA, 9, 77, [("broker.example", 9092), ("other", 1)]);
    cut.truncate(20);
    cut[..4].copy_from_slice(&16i32.to_be_bytes());
    assert_eq!(through(&mut exchange, &cut, 7), cut);
    // A length below that of the head: it is no Kafka.
    let strange = [0u8; 64];
    assert_eq!(through(&mut exchange, &strange, 9), strange);
    assert!(exchange.is_lost);
    let mut exchange = AddressRewriter::default();
    exchange.requests(b"GET / HTTP/1.1\r\n\r\n");
    exchange.requests(&[0; 40]);
    assert_eq!(through(&mut exchange, b"HTTP/1.1 400", 5), b"HTTP/1.1 400");
    // The beginning of one is kept until more comes, or the end.
    let mut exchange = AddressRewriter::default();
    assert!(through(&mut exchange, &[0, 0, 0, 9, 1], 1).is_empty());
    assert_eq!(exchange.rest(), [0, 0, 0, 9, 1]);
}

proptest! {
    #[test]
    fn no_bytes_break_it(
        requests: Vec<u8>, responses: Vec<u8>, piece in 1..40usize, key in prop::bool::ANY,
        version in 0..14i16,
    ) {
        let mut exchange = AddressRewriter::default();
        let key = if key { METADATA } else { FIND_COORDINATOR };
        exchange.requests(&request(key, version, 0x0101_0101, 3));
        exchange.requests(&requests);
        let mut framed = frame(&[&[1, 1, 1, 1], &responses[..]].concat());
        framed.extend(&responses);
        // Addresses are all that changes, and here none does.
        let mut out = Vec::new();
        for piece in framed.chunks(piece) {
            exchange.responses(piece, &mut out, &mut |_, _| None);
        }
        out.extend(exchange.rest());
        prop_assert_eq!(out, framed);
    }
}
