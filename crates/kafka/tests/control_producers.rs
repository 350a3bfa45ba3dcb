//! Producer ids and client metrics: InitProducerId, DescribeProducers, GetTelemetrySubscriptions,
//! PushTelemetry.

use std::collections::HashSet;
use std::io::Write;

use bytes::Bytes;
use cloverleaf_kafka::KafkaOptions;
use cloverleaf_log::{BatchBuilder, Durability};
use flate2::Compression;
use flate2::write::GzEncoder;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::{
    DescribeProducersRequest, GetTelemetrySubscriptionsRequest, InitProducerIdRequest,
    PushTelemetryRequest, TransactionalId,
};
use uuid::Uuid;

use crate::control_world::{World, name, text, versions};

#[test]
fn every_producer_gets_an_id_of_its_own() {
    let mut world = World::new();
    let mut given = HashSet::new();
    for _ in 0..2 {
        for version in versions::<InitProducerIdRequest>() {
            let request = InitProducerIdRequest::default().with_transactional_id(None);
            let response = world.ask(version, &request);
            assert_eq!((response.error_code, response.producer_epoch), (0, 0));
            assert!(response.producer_id.0 >= 0);
            assert!(given.insert(response.producer_id.0), "version {version}");
        }
        world.kill_and_restart();
    }
}

#[test]
fn transactions_and_an_id_without_an_epoch_are_refused() {
    let world = World::new();
    for version in versions::<InitProducerIdRequest>() {
        let id = Some(TransactionalId(text("tx")));
        let request = InitProducerIdRequest::default().with_transactional_id(id);
        let response = world.ask(version, &request);
        assert_eq!((response.error_code, response.producer_id.0), (53, -1));
        if version >= 3 {
            let request = InitProducerIdRequest::default()
                .with_transactional_id(None)
                .with_producer_id(5.into());
            assert_eq!(world.ask(version, &request).error_code, 42);
            // The request asks for a new epoch; the answer has a new id with epoch 0.
            let response = world.ask(version, &request.with_producer_epoch(3));
            assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        }
    }
}

#[test]
fn producers_of_a_partition_are_described() {
    let world = World::new();
    let topic = world.foreign_topic("t");
    let mut builder = BatchBuilder::with_capacity(64, 1_234);
    builder.push(None, Some(b"a"), &[]);
    builder.push(None, Some(b"b"), &[]);
    let batch = builder.with_producer(9, 1, 0).finish();
    drop(topic.publish_to(0, batch, Durability::Kernel).unwrap());
    world.log.step();
    let wanted = |topic: &str, partitions| {
        TopicRequest::default()
            .with_name(name(topic))
            .with_partition_indexes(partitions)
    };
    let request = DescribeProducersRequest::default()
        .with_topics(vec![wanted("t", vec![0, 0, 1]), wanted("nowhere", vec![0])]);
    let response = world.ask(0, &request);
    let of = |topic: &str| {
        let found = response
            .topics
            .iter()
            .find(|found| found.name == name(topic));
        found.unwrap().partitions.clone()
    };
    assert_eq!(of("nowhere")[0].error_code, 3);
    let partitions = of("t");
    assert_eq!(partitions.len(), 2);
    assert_eq!((partitions[0].error_code, partitions[1].error_code), (0, 3));
    let [producer] = &partitions[0].active_producers[..] else {
        panic!("one producer");
    };
    assert_eq!((producer.producer_id.0, producer.producer_epoch), (9, 1));
    assert_eq!(
        (producer.last_sequence, producer.last_timestamp),
        (1, 1_234)
    );
    assert_eq!(
        (
            producer.coordinator_epoch,
            producer.current_txn_start_offset
        ),
        (-1, -1)
    );
}

/// A push of one gauge, as librdkafka encodes it.
fn metrics(metric: &str, value: f64) -> Vec<u8> {
    let field = |number: u8, content: &[u8]| {
        let mut out = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        out.extend_from_slice(content);
        out
    };
    let point = [&[4 << 3 | 1][..], &value.to_bits().to_le_bytes()].concat();
    let metric = [field(1, metric.as_bytes()), field(5, &field(1, &point))].concat();
    field(1, &field(2, &field(2, &metric)))
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn push(instance: Uuid, codec: i8, metrics: Vec<u8>) -> PushTelemetryRequest {
    PushTelemetryRequest::default()
        .with_client_instance_id(instance)
        .with_subscription_id(1)
        .with_compression_type(codec)
        .with_metrics(Bytes::from(metrics))
}

const LATENCY: &str = "org.apache.kafka.producer.request.latency.avg";

#[test]
fn clients_are_asked_for_metrics_and_push_them() {
    let mut world = World::new();
    world.peer.software = Some(("apache-kafka-java".to_owned(), "4.1.0".to_owned()));
    let request = GetTelemetrySubscriptionsRequest::default();
    let response = world.ask(0, &request);
    assert_eq!(
        (response.error_code, response.push_interval_ms),
        (0, 30_000)
    );
    let instance = response.client_instance_id;
    assert!(!instance.is_nil());
    let wants = |metric: &str| {
        let mut wanted = response.requested_metrics.iter();
        wanted.any(|wanted| metric.starts_with(wanted.as_str()))
    };
    assert!(wants(LATENCY) && !wants("org.apache.kafka.producer.nothing"));
    let known = world.ask(0, &request.with_client_instance_id(instance));
    assert_eq!(known.client_instance_id, instance);

    let plain = [
        metrics(LATENCY, 2.5),
        metrics("org.apache.kafka.other", 1.0),
    ]
    .concat();
    assert_eq!(
        world.ask(0, &push(instance, 0, plain.clone())).error_code,
        0
    );
    let early = world.ask(0, &push(instance, 0, plain.clone()));
    assert_eq!(early.error_code, 89, "not more often than asked");
    world.clock.advance(30_000);
    assert_eq!(world.ask(0, &push(instance, 1, gzip(&plain))).error_code, 0);

    let list = world.context.client_metrics.list();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].client_id.as_deref(), Some("test"));
    assert_eq!(list[0].software.as_ref().unwrap().0, "apache-kafka-java");
    assert_eq!(list[0].figures.len(), 1);
    assert_eq!(list[0].figures[0].name, "producer.request.latency.avg");
    assert!((list[0].figures[0].value - 2.5).abs() < f64::EPSILON);

    let last = push(instance, 0, Vec::new()).with_terminating(true);
    assert_eq!(world.ask(0, &last).error_code, 0);
    assert_eq!(world.ask(0, &last).error_code, 42, "that was the last one");
    assert_eq!(world.context.client_metrics.list()[0].figures.len(), 1);
}

#[test]
fn librdkafka_gets_no_client_instance_id() {
    for (name, version) in [
        ("librdkafka", "2.5.0"),
        ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0"),
        ("confluent-kafka-go", "2.5.0"),
        ("node", "3.0.0-librdkafka-2.3.0"),
    ] {
        let mut world = World::new();
        world.peer.software = Some((name.to_owned(), version.to_owned()));
        let response = world.ask(0, &GetTelemetrySubscriptionsRequest::default());
        assert!(response.client_instance_id.is_nil());
        assert!(!response.requested_metrics.is_empty());
        // Each push is on a connection of its own, like those of two clients.
        for _ in 0..2 {
            let request = push(Uuid::nil(), 0, metrics(LATENCY, 2.5));
            assert_eq!(world.ask(0, &request).error_code, 0);
        }
        let list = world.context.client_metrics.list();
        assert_eq!(list.len(), 2);
        assert!(list.iter().all(|client| client.figures.len() == 1));
    }
}

#[test]
fn invalid_pushes_are_refused() {
    let world = World::with(KafkaOptions {
        client_metrics_bytes_max: 4_000,
        ..KafkaOptions::default()
    });
    let instance = Uuid::from_u128(1);
    let code = |request: PushTelemetryRequest| world.ask(0, &request).error_code;
    assert_eq!(code(push(Uuid::nil(), 0, Vec::new())), 42);
    assert_eq!(
        code(push(instance, 0, Vec::new()).with_subscription_id(2)),
        117
    );
    assert_eq!(
        code(push(instance, 4, vec![1, 2, 3])),
        76,
        "zstd was not offered"
    );
    assert_eq!(code(push(instance, 0, vec![0; 4_001])), 118);
    assert_eq!(code(push(instance, 0, vec![0xff; 30])), 87);
    assert_eq!(code(push(instance, 1, vec![0xff; 30])), 87);
    let bomb = gzip(&vec![0; 3 << 20]);
    assert!(bomb.len() < 4_000);
    assert_eq!(
        code(push(instance, 1, bomb)),
        118,
        "it inflates to more than is read"
    );
    assert!(world.context.client_metrics.list().is_empty());
}

#[test]
fn no_metrics_are_requested_if_that_is_disabled() {
    let world = World::with(KafkaOptions {
        client_metrics_interval_ms: 0,
        ..KafkaOptions::default()
    });
    let response = world.ask(0, &GetTelemetrySubscriptionsRequest::default());
    assert!(response.requested_metrics.is_empty());
    assert_eq!(response.push_interval_ms, 300_000);
}
