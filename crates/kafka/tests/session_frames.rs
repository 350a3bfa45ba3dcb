//! Rules for all requests: frames, headers, versions, order, limits, and hostile bytes.

use cloverleaf_kafka::KafkaOptions;
use std::sync::atomic::Ordering;

use crate::common::{Peer, World, batch, frame, text};
use cloverleaf_kafka::apis::APIS;
use cloverleaf_kafka::error_code::ErrorCode;
use cloverleaf_session::{Input, Session as _};
use kafka_protocol::messages::api_versions_response::ApiVersionsResponse;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use kafka_protocol::messages::{
    ApiVersionsRequest, CreateTopicsRequest, ListOffsetsRequest, MetadataRequest, TopicName,
};
use proptest::prelude::*;

fn hello(name: &str, version: &str) -> ApiVersionsRequest {
    ApiVersionsRequest::default()
        .with_client_software_name(text(name))
        .with_client_software_version(text(version))
}

fn raw(key: i16, version: i16, body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as i32 + 10).to_be_bytes().to_vec();
    bytes.extend_from_slice(&key.to_be_bytes());
    bytes.extend_from_slice(&version.to_be_bytes());
    bytes.extend_from_slice(&7i32.to_be_bytes());
    bytes.extend_from_slice(&(-1i16).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn lists_everything(response: &ApiVersionsResponse) {
    let answered: Vec<_> = response
        .api_keys
        .iter()
        .map(|it| (it.api_key, it.min_version, it.max_version))
        .collect();
    let known: Vec<_> = APIS
        .iter()
        .map(|it| (it.api as i16, it.advertised_min(), it.max))
        .collect();
    assert_eq!(answered, known);
    assert_eq!(
        answered[0],
        (0, 0, 13),
        "Produce is advertised from version 0"
    );
}

#[test]
fn large_requests_that_wait_for_the_worker_are_bounded() {
    let world = World::new();
    let mut peer = world.connect();
    let topics = (0..20_000).map(|at| {
        let name = TopicName(text(&format!("{at:0>45} cannot be")));
        MetadataRequestTopic::default().with_name(Some(name))
    });
    let large = MetadataRequest::default().with_topics(Some(topics.collect()));
    let mut count = 0;
    while peer.session.wants_input() {
        peer.send(9, &large);
        count += 1;
        assert!(count < 20, "each has more than a megabyte");
    }
    world.work();
    peer.poll();
    assert!(peer.session.wants_input());
}

#[test]
fn topics_are_not_made_on_the_thread_that_serves_connections() {
    let world = World::new();
    world.topic("known", 1);
    let mut peer = world.connect();
    let ask = |name: &str| {
        let topic = MetadataRequestTopic::default().with_name(Some(TopicName(text(name))));
        MetadataRequest::default().with_topics(Some(vec![topic]))
    };
    let id = peer.send(9, &ask("known"));
    peer.poll();
    assert_eq!(
        peer.expect::<MetadataRequest>(9, id).topics[0].error_code,
        0
    );
    let id = peer.send(9, &ask("new"));
    peer.poll();
    peer.expect_nothing();
    assert!(world.broker.topic("new").is_none());
    world.work();
    peer.poll();
    let made = peer.expect::<MetadataRequest>(9, id);
    assert_eq!(
        made.topics[0].partitions.len() as u32,
        world.broker.topic("new").unwrap().partition_count()
    );
}

#[test]
fn every_version_of_api_versions_is_answered() {
    let world = World::new();
    for version in 0..=4 {
        let mut peer = world.connect();
        let request = match version >= 3 {
            true => hello("apache-kafka-java", "4.0.0"),
            false => ApiVersionsRequest::default(),
        };
        let response = peer.call(version, &request);
        assert_eq!(response.error_code, 0);
        lists_everything(&response);
    }
}

#[test]
fn a_newer_client_learns_our_versions() {
    let world = World::new();
    for version in [5, 99, -1] {
        let mut peer = world.connect();
        peer.feed(&raw(18, version, b"from the future"));
        peer.pump();
        let response = peer.expect::<ApiVersionsRequest>(0, 7);
        assert_eq!(response.error_code, ErrorCode::UnsupportedVersion.code());
        lists_everything(&response);
        peer.call(4, &hello("librdkafka", "2.8.0"));
    }
}

#[test]
fn the_client_is_identified_by_its_software_and_client_id() {
    let world = World::new();
    let mut peer = world.connect();
    peer.call(0, &ApiVersionsRequest::default());
    let identity = |world: &World| {
        world.registry.snapshot(0, |_| None).connections[0]
            .identity
            .clone()
    };
    assert_eq!(identity(&world).client_id, "a-test");
    peer.call(3, &hello("librdkafka", "2.8.0"));
    let seen = identity(&world);
    assert_eq!(
        (seen.library.as_str(), seen.version.as_str()),
        ("librdkafka", "2.8.0")
    );
    assert_eq!(seen.client_id, "a-test");
    for (name, version) in [
        ("", "1"),
        ("a b", "1"),
        ("-a", "1"),
        ("a", "1."),
        ("é", "1"),
    ] {
        let response = peer.call(3, &hello(name, version));
        assert_eq!(
            response.error_code,
            ErrorCode::InvalidRequest.code(),
            "{name}"
        );
    }
    assert_eq!(identity(&world).library, "librdkafka");
}

#[test]
fn an_unsupported_request_closes_the_connection_after_the_owed_answers() {
    let world = World::new();
    for (key, version, why) in [
        (4, 0, "unknown key 4"),
        (-1, 0, "unknown key -1"),
        (0, 2, "Produce in version 2"),
        (0, 14, "Produce in version 14"),
        (1, 3, "Fetch in version 3"),
        (3, -1, "Metadata in version -1"),
    ] {
        let mut peer = world.connect();
        let first = peer.send(0, &ApiVersionsRequest::default());
        peer.feed(&raw(key, version, &[0; 40]));
        peer.feed(&raw(18, 0, &[]));
        peer.pump();
        peer.expect::<ApiVersionsRequest>(0, first);
        peer.expect_closed(why);
    }
}

#[test]
fn sizes_are_checked_before_anything_is_kept() {
    let world = World::with(KafkaOptions {
        request_bytes_max: 1000,
        control_request_bytes_max: 100,
        ..KafkaOptions::default()
    });
    let closed = |bytes: &[u8], why: &str| {
        let mut peer = world.connect();
        peer.feed(bytes);
        peer.pump();
        peer.expect_closed(why);
    };
    closed(&1001i32.to_be_bytes(), "1001 bytes, at most 1000");
    closed(&[0x16, 3, 1, 2, 0, 1], "looks like a TLS handshake");
    closed(b"GET / HTTP/1.1\r\n", "looks like an HTTP request");
    closed(b"POST / HTTP/1.1\r\n", "looks like an HTTP request");
    closed(b"HEAD / HTTP/1.1\r\n", "looks like an HTTP request");
    closed(b"  V2", "looks like an NSQ client");
    closed(&i32::MAX.to_be_bytes(), "at most 1000");
    closed(&(-1i32).to_be_bytes(), "-1 bytes has no room");
    closed(&i32::MIN.to_be_bytes(), "has no room");
    closed(&7i32.to_be_bytes(), "7 bytes has no room");
    closed(
        &[&101i32.to_be_bytes()[..], &3i16.to_be_bytes()].concat(),
        "101 bytes, at most 100",
    );
    closed(
        &[&101i32.to_be_bytes()[..], &1i16.to_be_bytes()].concat(),
        "101 bytes, at most 100",
    );
    let mut peer = world.connect();
    peer.feed(&[&1000i32.to_be_bytes()[..], &0i16.to_be_bytes()].concat());
    peer.pump();
    peer.expect_nothing();
    let received = peer
        .session
        .receive(Input::Lent(&[0, 0, 3, 232, 0, 0]), world.now());
    assert_eq!((received.consumed_bytes, received.needed_bytes), (0, 1004));
}

#[test]
fn requests_may_come_byte_by_byte_or_many_at_once() {
    let world = World::new();
    let requests: Vec<u8> = (0..20)
        .flat_map(|id| frame(3, &hello("a", "1"), id))
        .collect();
    let (mut slow, mut fast) = (world.connect(), world.connect());
    requests.iter().for_each(|byte| slow.feed(&[*byte]));
    fast.feed(&requests);
    for peer in [&mut slow, &mut fast] {
        peer.pump();
        for id in 0..20 {
            peer.expect::<ApiVersionsRequest>(3, id);
        }
        peer.expect_nothing();
    }
}

#[test]
fn no_requests_are_read_from_a_client_that_takes_no_answers() {
    let world = World::with(KafkaOptions {
        answers_max: 3,
        ..KafkaOptions::default()
    });
    let mut peer = world.connect();
    for _ in 0..5 {
        peer.send(0, &ApiVersionsRequest::default());
    }
    assert!(!peer.session.wants_input());
    peer.pump();
    for id in 1..=5 {
        peer.expect::<ApiVersionsRequest>(0, id);
    }
    assert!(peer.session.wants_input());
}

#[test]
fn a_client_that_disconnects_is_not_waited_for() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let partition = FetchPartition::default().with_partition_max_bytes(100);
    let named = FetchTopic::default()
        .with_topic_id(topic.id())
        .with_partitions(vec![partition]);
    let request = FetchRequest::default()
        .with_max_wait_ms(500)
        .with_min_bytes(1)
        .with_session_epoch(-1)
        .with_topics(vec![named]);
    peer.send(13, &request);
    peer.pump();
    peer.session.end_of_input(&[], world.now());
    peer.feed(&[]);
    peer.pump();
    assert!(peer.session.is_ended());
    assert_eq!(peer.session.take_failure(), None);
}

#[test]
fn telemetry_counts_requests_messages_and_answers() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    for acks in [1, 0, -1] {
        let data =
            PartitionProduceData::default().with_records(Some(batch(&["a", "b"]).bytes().clone()));
        let named = TopicProduceData::default()
            .with_name(TopicName(text("t")))
            .with_partition_data(vec![data]);
        let request = ProduceRequest::default()
            .with_acks(acks)
            .with_topic_data(vec![named]);
        peer.send(9, &request);
        peer.pump();
    }
    let partition = FetchPartition::default().with_partition_max_bytes(1000);
    let named = FetchTopic::default()
        .with_topic(TopicName(text("t")))
        .with_partitions(vec![partition]);
    let request = FetchRequest::default()
        .with_max_bytes(1000)
        .with_topics(vec![named]);
    peer.send(4, &request);
    peer.pump();
    let seen = world.registry.snapshot(0, |_| None).connections[0].clone();
    let counters = &seen.counters;
    assert_eq!(
        (counters.requests, counters.publishes, counters.responses),
        (4, 3, 3)
    );
    assert_eq!((counters.messages_in, counters.messages_out), (6, 6));
    assert_eq!(counters.requests_silent, 1);
    // The records have the world's time as timestamp.
    let ages = &seen.histograms.record_age_us;
    assert_eq!((ages.count(), counters.records_ahead), (3, 0));
    assert!(ages.max() < 1_000_000, "{}", ages.max());
    assert_eq!((counters.batches_in, counters.batch_spans_us), (3, 0));
    // Service times of the requests with an answer, except the one that arrived while another was
    // served.
    assert_eq!(seen.histograms.service_us.count(), 3);
    assert_eq!(seen.gauges.requests_in_flight, 0);
}

/// Passes these bytes to a session in pieces, and checks its invariants.
fn survive(world: &World, bytes: &[u8], piece: usize) -> Result<(), TestCaseError> {
    let mut peer: Peer<'_> = world.connect();
    for piece in bytes.chunks(piece.max(1)) {
        peer.feed(piece);
        peer.pump();
    }
    while peer.next_frame().is_some() {}
    prop_assert!(peer.session.next_due_us() > world.now().us);
    Ok(())
}

fn produce_and_fetch(version: i16, topic: &cloverleaf_broker::Topic) -> Vec<u8> {
    let data =
        PartitionProduceData::default().with_records(Some(batch(&["a", "b"]).bytes().clone()));
    let named = TopicProduceData::default().with_partition_data(vec![data]);
    let named = match version >= 13 {
        true => named.with_topic_id(topic.id()),
        false => named.with_name(TopicName(text("t"))),
    };
    let produce = ProduceRequest::default()
        .with_acks(1)
        .with_topic_data(vec![named]);
    let mut bytes = frame(version.min(13), &produce, 1);
    let partition = FetchPartition::default().with_partition_max_bytes(1000);
    let named = FetchTopic::default().with_partitions(vec![partition; 2]);
    let named = match version >= 13 {
        true => named.with_topic_id(topic.id()),
        false => named.with_topic(TopicName(text("t"))),
    };
    let fetch = FetchRequest::default()
        .with_max_bytes(1000)
        .with_topics(vec![named]);
    bytes.extend_from_slice(&frame(version.max(4), &fetch, 2));
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200),
                                  piece in 1usize..64) {
        survive(&World::new(), &bytes, piece)?;
    }

    #[test]
    fn arbitrary_bodies_do_no_harm(api in prop::sample::select(APIS),
                                   version in 0i16..20,
                                   body in prop::collection::vec(any::<u8>(), 0..200)) {
        let version = api.min + version % (api.max - api.min + 1);
        survive(&World::new(), &raw(api.api as i16, version, &body), usize::MAX)?;
    }

    #[test]
    fn mutated_requests_do_no_harm(version in 3i16..=18,
                                   changes in prop::collection::vec((any::<prop::sample::Index>(),
                                                                     any::<u8>()), 1..6),
                                   piece in 1usize..400) {
        let world = World::new();
        let topic = world.topic("t", 2);
        let mut bytes = produce_and_fetch(version, &topic);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        survive(&world, &bytes, piece)?;
    }
}

#[test]
fn a_slow_lookup_delays_no_change() {
    let world = World::new();
    world.topic("t", 1);
    world.lookups_hang.store(true, Ordering::SeqCst);
    let since = ListOffsetsPartition::default().with_timestamp(5);
    let wanted = ListOffsetsTopic::default()
        .with_name(TopicName(text("t")))
        .with_partitions(vec![since]);
    let request = ListOffsetsRequest::default().with_topics(vec![wanted]);
    let mut slow = world.connect();
    let id = slow.send(7, &request);
    slow.pump();
    slow.expect_nothing();
    let made = CreatableTopic::default()
        .with_name(TopicName(text("made")))
        .with_num_partitions(1)
        .with_replication_factor(1);
    let request = CreateTopicsRequest::default().with_topics(vec![made]);
    assert_eq!(world.connect().call(7, &request).topics[0].error_code, 0);
    world.lookups_hang.store(false, Ordering::SeqCst);
    slow.pump();
    let found = slow.expect::<ListOffsetsRequest>(7, id);
    assert_eq!(found.topics[0].partitions[0].offset, -1);
}

/// The session sees a TLS record when it is complete. Its first bytes may have arrived long before.
#[test]
fn a_request_begins_with_bytes_that_only_the_driver_has_seen() {
    let world = World::new();
    let mut peer = world.connect();
    peer.session.read_ended_inside_frame(world.now());
    peer.advance(40);
    peer.call(0, &ApiVersionsRequest::default());
    let seen = world.registry.snapshot(0, |_| None).connections.remove(0);
    assert_eq!(seen.histograms.request_receive_us.max(), 40_000);
}
