//! Produce requests in a buffer of their own, because they are large.

use crate::common::{Peer, World, batch, frame, text};
use bytes::{Bytes, BytesMut};
use cloverleaf_kafka::error_code::ErrorCode;
use cloverleaf_log::Read;
use cloverleaf_session::Session as _;
use kafka_protocol::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use kafka_protocol::messages::{MetadataRequest, TopicName};

const VERSIONS: std::ops::RangeInclusive<i16> = 3..=13;

fn large() -> Bytes {
    batch(&["x".repeat(70_000).as_str(), "y"]).bytes().clone()
}

fn request(world: &World, version: i16, acks: i16, parts: &[(i32, Bytes)]) -> ProduceRequest {
    let data = parts.iter().map(|(index, records)| {
        PartitionProduceData::default()
            .with_index(*index)
            .with_records(Some(records.clone()))
    });
    let topic = TopicProduceData::default().with_partition_data(data.collect());
    let topic = if version >= 13 {
        topic.with_topic_id(world.broker.topic("t").unwrap().id())
    } else {
        topic.with_name(TopicName(text("t")))
    };
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(1000)
        .with_topic_data(vec![topic])
}

fn offsets(peer: &mut Peer<'_>, version: i16, id: i32) -> Vec<(i32, i16, i64)> {
    let response = peer.expect::<ProduceRequest>(version, id);
    let partitions = response.responses.iter();
    let partitions = partitions.flat_map(|topic| &topic.partition_responses);
    partitions
        .map(|it| (it.index, it.error_code, it.base_offset))
        .collect()
}

#[test]
fn a_large_batch_stays_in_its_buffer() {
    for version in VERSIONS {
        for acks in [0, 1, -1] {
            let world = World::new();
            let topic = world.topic("t", 2);
            let mut peer = world.connect();
            for round in 0..2 {
                let request = request(&world, version, acks, &[(1, large())]);
                let bytes = BytesMut::from(&frame(version, &request, 7)[..]);
                let lies = bytes.as_ptr_range();
                assert!(peer.feed_own(bytes).is_empty());
                peer.pump();
                if acks != 0 {
                    assert_eq!(offsets(&mut peer, version, 7), [(1, 0, 2 * round)]);
                }
                peer.expect_nothing();
                let log = topic.partition(1).unwrap();
                let Read::Batches(stored) = log.read(2 * round as u64, 1 << 20) else {
                    panic!("it is stored");
                };
                assert_eq!(stored[0].base_offset(), 2 * round as u64);
                assert_eq!(stored[0].bytes()[61..], large()[61..]);
                assert!(lies.contains(&stored[0].bytes().as_ptr()), "it was copied");
            }
        }
    }
}

#[test]
fn a_buffer_with_more_than_the_batch_is_not_kept_with_it() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let whole = frame(9, &request(&world, 9, 1, &[(0, large())]), 7);
    let mut with_junk = BytesMut::from(&whole[..]);
    with_junk.extend_from_slice(&[0; 5000]);
    let size = (with_junk.len() - 4) as i32;
    with_junk[..4].copy_from_slice(&size.to_be_bytes());
    let mut with_room = BytesMut::with_capacity(2 * whole.len());
    with_room.extend_from_slice(&whole);
    for (round, bytes) in [with_junk, with_room].into_iter().enumerate() {
        let lies = bytes.as_ptr_range();
        peer.feed_own(bytes);
        peer.pump();
        let base = 2 * round as u64;
        assert_eq!(offsets(&mut peer, 9, 7), [(0, 0, base as i64)]);
        let Read::Batches(stored) = topic.partition(0).unwrap().read(base, 1 << 20) else {
            panic!("it is stored");
        };
        assert!(
            !lies.contains(&stored[0].bytes().as_ptr()),
            "it pins the rest"
        );
    }
}

#[test]
fn other_requests_in_their_own_buffer_are_answered_as_in_a_shared_one() {
    for version in VERSIONS {
        let mut broken = large().to_vec();
        broken[100] ^= 1;
        let contents = [
            vec![(0, large()), (1, large())],
            vec![(0, batch(&["small"]).bytes().clone())],
            vec![(0, Bytes::from(broken))],
            vec![(0, [large(), large()].concat().into())],
            vec![(9, large())],
            vec![],
        ];
        for parts in contents {
            let (lent, own) = (World::new(), World::new());
            let answered = [&lent, &own].map(|world| {
                let topic = world.topic("t", 2);
                let mut peer = world.connect();
                let request = request(world, version, 1, &parts);
                let bytes = frame(version, &request, 7);
                if std::ptr::eq(world, &raw const own) {
                    assert!(peer.feed_own(BytesMut::from(&bytes[..])).is_empty())
                } else {
                    peer.feed(&bytes)
                }
                peer.pump();
                let ends = [0, 1].map(|it| topic.partition(it).unwrap().next_offset());
                (offsets(&mut peer, version, 7), ends)
            });
            assert_eq!(answered[0], answered[1]);
        }
    }
}

#[test]
fn a_malformed_request_in_its_own_buffer_closes_the_connection() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let whole = frame(9, &request(&world, 9, 1, &[(0, large())]), 7);
    let mut longer = whole.clone();
    longer.extend_from_slice(&[0; 3]);
    let size = (longer.len() - 4) as i32;
    longer[..4].copy_from_slice(&size.to_be_bytes());
    let mut peer = world.connect();
    peer.feed_own(BytesMut::from(&longer[..]));
    // Bytes after the last field are ignored, as in Kafka: the batch is stored.
    peer.pump();
    assert_eq!(offsets(&mut peer, 9, 7), [(0, ErrorCode::None.code(), 0)]);
    let mut cut = whole.clone();
    cut.truncate(70_000);
    let size = (cut.len() - 4) as i32;
    cut[..4].copy_from_slice(&size.to_be_bytes());
    peer.feed_own(BytesMut::from(&cut[..]));
    peer.pump();
    peer.expect_closed("malformed");
    assert_eq!(topic.partition(0).unwrap().next_offset(), 2);
}

#[test]
fn a_second_request_in_the_same_buffer_is_answered_too() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    let mut bytes = BytesMut::from(&frame(9, &request(&world, 9, 1, &[(0, large())]), 7)[..]);
    bytes.extend_from_slice(&frame(1, &MetadataRequest::default().with_topics(None), 8));
    assert!(peer.feed_own(bytes).is_empty());
    peer.pump();
    assert_eq!(offsets(&mut peer, 9, 7), [(0, 0, 0)]);
    assert_eq!(peer.expect::<MetadataRequest>(1, 8).topics.len(), 1);
}

#[test]
fn without_write_budget_the_buffer_is_left_unchanged() {
    let world = World::with_small_write_budget();
    world.topic("t", 1);
    let mut peer = world.connect();
    let bytes = |id| {
        let request = request(&world, 9, 1, &[(0, large())]);
        BytesMut::from(&frame(9, &request, id)[..])
    };
    assert!(peer.feed_own(bytes(1)).is_empty());
    let left = peer.feed_own(bytes(2));
    assert_eq!(left, bytes(2));
    assert!(!peer.session.wants_input());
    peer.pump();
    assert_eq!(offsets(&mut peer, 9, 1), [(0, 0, 0)]);
    assert!(peer.session.wants_input());
    assert!(peer.feed_own(left).is_empty());
    peer.pump();
    assert_eq!(offsets(&mut peer, 9, 2), [(0, 0, 2)]);
}
