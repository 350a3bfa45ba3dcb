//! Samples of how well published messages would compress: which commands are sampled, and how
//! often.

use crate::common::{Peer, World, publish, publish_many, response};
use cloverleaf_nsq::identify::Compression;
use cloverleaf_nsq::options::SessionOptions;

/// A message of this many bytes of text.
fn words(bytes: usize) -> String {
    "the same words again and again, ".repeat(bytes / 32)
}

/// Sends commands in two parts; the first part ends within a command.
fn send_in_parts(peer: &mut Peer<'_>, commands: &[u8]) {
    let (first, rest) = commands.split_at(commands.len() / 3);
    peer.feed(first);
    peer.world.advance(20);
    peer.send(rest);
    let frames = peer.frames();
    assert!(frames.iter().all(|it| *it == response("OK")), "{frames:?}");
}

/// Bytes that were sampled, and their compressed size.
fn sampled(peer: &Peer<'_>) -> (u64, u64) {
    let counters = peer.session.probe().snapshot(|_| None).counters;
    (counters.sampled_bytes, counters.sampled_bytes_compressed)
}

#[test]
fn commands_in_parts_are_sampled_once_a_second() {
    let world = World::new();
    let mut peer = world.connect();
    let large = publish("t", &words(20_000));
    peer.send(&large);
    peer.expect_ok();
    assert_eq!(sampled(&peer), (0, 0), "it came whole");
    send_in_parts(&mut peer, &large);
    let (bytes, compressed) = sampled(&peer);
    assert_eq!(bytes, 8 << 10);
    assert!(compressed < bytes / 10, "{compressed}");
    send_in_parts(&mut peer, &large);
    assert_eq!(sampled(&peer), (bytes, compressed), "too soon");
    world.advance(1_000);
    send_in_parts(
        &mut peer,
        &publish_many("t", &[&words(5_000), &words(5_000)]),
    );
    assert_eq!(sampled(&peer).0, 2 * 8_192);
}

#[test]
fn small_commands_are_sampled_together() {
    let world = World::new();
    let mut peer = world.connect();
    for _ in 0..20 {
        let some: Vec<u8> = (0..5).flat_map(|_| publish("t", &words(200))).collect();
        send_in_parts(&mut peer, &some);
    }
    let (bytes, compressed) = sampled(&peer);
    assert_eq!(bytes, 8 << 10);
    assert!(compressed < bytes / 10, "{compressed}");
}

#[test]
fn compressed_connections_are_not_sampled() {
    let world = World::new();
    let mut peer = world.connect();
    peer.identify(r#"{"feature_negotiation":true,"deflate":true}"#);
    assert!(peer.request().is_some());
    peer.session.upgraded_to(Compression::Deflate(6));
    peer.pump();
    peer.expect_ok();
    send_in_parts(&mut peer, &publish("t", &words(20_000)));
    assert_eq!(sampled(&peer), (0, 0));
}

#[test]
fn nothing_is_sampled_if_compression_is_disabled() {
    let world = World::with(SessionOptions {
        deflate: false,
        snappy: false,
        ..SessionOptions::default()
    });
    let mut peer = world.connect();
    send_in_parts(&mut peer, &publish("t", &words(20_000)));
    assert_eq!(sampled(&peer), (0, 0));
}

#[test]
fn commands_that_do_not_publish_are_not_sampled() {
    let world = World::new();
    let mut peer = world.connect();
    let mut commands = b"NOP\n".repeat(4_000);
    commands.extend_from_slice(b"NO");
    peer.feed(&commands);
    world.advance(20);
    peer.send(&[b"P\n".to_vec(), b"NOP\n".repeat(4_000)].concat());
    assert_eq!(sampled(&peer), (0, 0));
}
