//! Samples of how well produced data compresses: which requests are sampled, and how often.

use crate::common::{Peer, World, frame, text};
use bytes::{Bytes, BytesMut};
use cloverleaf_log::{BatchBuilder, Codec};
use cloverleaf_session::{Input, Session as _};
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};

const VERSION: i16 = 9;

/// A batch of `bytes` bytes of text, compressed with `codec`.
fn words(bytes: usize, codec: Codec) -> Bytes {
    let text = "the same words again and again, ".repeat(bytes / 32);
    let mut builder = BatchBuilder::with_capacity(bytes + 100, 0);
    builder.push_at(0, None, Some(text.as_bytes()), &[]);
    let batch = builder.finish().compress(codec).unwrap();
    batch.bytes().clone()
}

/// A Produce request with these records.
fn produce(records: Bytes) -> Vec<u8> {
    let data = PartitionProduceData::default().with_records(Some(records));
    let topic = TopicProduceData::default()
        .with_name(TopicName(text("t")))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(1)
        .with_topic_data(vec![topic]);
    frame(VERSION, &request, 7)
}

/// Sends a request in two parts.
fn send_in_parts(peer: &mut Peer<'_>, request: &[u8]) {
    let (first, rest) = request.split_at(request.len() / 2);
    peer.feed(first);
    peer.advance(20);
    peer.feed(rest);
    peer.pump();
    peer.expect::<ProduceRequest>(VERSION, 7);
}

/// Number of sampled bytes, and their size after compression.
fn sampled(world: &World) -> (u64, u64) {
    let seen = world.registry.snapshot(0, |_| None);
    let counters = &seen.connections[0].counters;
    (counters.sampled_bytes, counters.sampled_bytes_compressed)
}

#[test]
fn requests_that_arrive_in_parts_are_sampled_once_a_second() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    let request = produce(words(40_000, Codec::None));
    peer.feed(&request);
    peer.pump();
    peer.expect::<ProduceRequest>(VERSION, 7);
    assert_eq!(sampled(&world), (0, 0), "it came whole");
    send_in_parts(&mut peer, &request);
    let (bytes, compressed) = sampled(&world);
    assert_eq!(bytes, 8192);
    assert!((1..1000).contains(&compressed), "{compressed}");
    send_in_parts(&mut peer, &request);
    assert_eq!(sampled(&world), (bytes, compressed), "too soon");
    peer.advance(1000);
    send_in_parts(&mut peer, &request);
    assert_eq!(sampled(&world).0, 2 * 8192);
}

#[test]
fn a_compressed_batch_counts_with_its_own_size() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    // Much text, because it is small after compression.
    let records = words(4_000_000, Codec::Lz4);
    let expect = records.len().min(8192) as u64;
    assert!(expect > 4096, "{expect}");
    send_in_parts(&mut peer, &produce(records));
    let (bytes, compressed) = sampled(&world);
    assert_eq!(bytes, compressed);
    assert!(bytes > 4096, "{bytes}");
    // Too small for a sample.
    peer.advance(1000);
    send_in_parts(&mut peer, &produce(words(800, Codec::None)));
    assert_eq!(sampled(&world), (bytes, compressed));
}

#[test]
fn a_request_with_a_buffer_of_its_own_is_sampled_too() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    let request = produce(words(200_000, Codec::None));
    // The driver keeps the bytes that the session does not take.
    let received = peer
        .session
        .receive(Input::Lent(&request[..100]), world.now());
    assert_eq!(received.consumed_bytes, 0);
    peer.advance(20);
    let left = peer.feed_own(BytesMut::from(&request[..]));
    assert!(left.is_empty());
    peer.pump();
    peer.expect::<ProduceRequest>(VERSION, 7);
    let (bytes, compressed) = sampled(&world);
    assert_eq!(bytes, 8192);
    assert!(compressed < 1000, "{compressed}");
}
