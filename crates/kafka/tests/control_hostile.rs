//! Malformed requests: the connection is closed or an answer comes, nothing panics, and a short
//! request causes no huge answer.

use cloverleaf_kafka::apis::{self, Api};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    CreateTopicsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest,
    ListOffsetsRequest, MetadataRequest,
};
use kafka_protocol::protocol::Request;
use proptest::prelude::*;

use crate::control_world::{World, frame, frame_of, name, text, versions};

/// The requests of the control plane.
const CONTROL: &[Api] = &[
    Api::ListOffsets,
    Api::Metadata,
    Api::CreateTopics,
    Api::DeleteTopics,
    Api::DeleteRecords,
    Api::InitProducerId,
    Api::OffsetForLeaderEpoch,
    Api::DescribeConfigs,
    Api::AlterConfigs,
    Api::DescribeLogDirs,
    Api::CreatePartitions,
    Api::IncrementalAlterConfigs,
    Api::DescribeCluster,
    Api::DescribeProducers,
    Api::GetTelemetrySubscriptions,
    Api::PushTelemetry,
    Api::DescribeTopicPartitions,
    Api::ListConfigResources,
    Api::ListPartitionReassignments,
    Api::DescribeAcls,
    Api::DescribeClientQuotas,
    Api::ElectLeaders,
    Api::AlterPartitionReassignments,
    Api::AlterReplicaLogDirs,
    Api::DescribeQuorum,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_bodies_never_panic(body in prop::collection::vec(any::<u8>(), 0..120)) {
        let world = World::new();
        world.foreign_topic("t");
        for api in CONTROL {
            let known = apis::find(*api as i16).unwrap();
            for version in known.min..=known.max {
                let flexible = known.is_flexible(version);
                world.send(&frame_of(*api as i16, version, flexible, &body));
            }
        }
    }
}

/// Cuts a request off at each of its bytes: each of these requests closes the connection.
fn cut<R: Request>(world: &World, request: &R) {
    for version in versions::<R>() {
        let whole = frame(version, request);
        assert!(world.send(&whole).is_some());
        // Size, key, version, correlation id, client id, tagged fields.
        let head = 18 + usize::from(R::header_version(version) > 1);
        for end in head..whole.len() {
            let mut part = whole[..end].to_vec();
            let size = u32::try_from(end - 4).unwrap();
            part[..4].copy_from_slice(&size.to_be_bytes());
            assert!(
                world.send(&part).is_none(),
                "version {version}, {end} bytes"
            );
        }
    }
}

#[test]
fn a_request_that_is_cut_off_closes_the_connection() {
    use kafka_protocol::messages::{
        create_topics_request as create, describe_configs_request as describe,
        incremental_alter_configs_request as alter, list_offsets_request as list,
    };
    let world = World::new();
    world.foreign_topic("t");
    let topic = MetadataRequestTopic::default().with_name(Some(name("t")));
    cut(
        &world,
        &MetadataRequest::default().with_topics(Some(vec![topic])),
    );
    let config = create::CreatableTopicConfig::default()
        .with_name(text("segment.ms"))
        .with_value(Some(text("5")));
    let topic = create::CreatableTopic::default()
        .with_name(name("t"))
        .with_configs(vec![config]);
    cut(
        &world,
        &CreateTopicsRequest::default().with_topics(vec![topic]),
    );
    let resource = describe::DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("t"));
    cut(
        &world,
        &DescribeConfigsRequest::default().with_resources(vec![resource]),
    );
    let config = alter::AlterableConfig::default()
        .with_name(text("segment.ms"))
        .with_value(Some(text("5")));
    let resource = alter::AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("t"))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    cut(&world, &request);
    let topic = list::ListOffsetsTopic::default()
        .with_name(name("t"))
        .with_partitions(vec![list::ListOffsetsPartition::default()]);
    cut(
        &world,
        &ListOffsetsRequest::default().with_topics(vec![topic]),
    );
}

#[test]
fn a_count_of_two_thousand_million_is_refused() {
    let world = World::new();
    let count = i32::MAX.to_be_bytes();
    assert!(
        world
            .send(&frame_of(Api::Metadata as i16, 1, false, &count))
            .is_none()
    );
    let count = [0xff, 0xff, 0xff, 0xff, 0x0f];
    assert!(
        world
            .send(&frame_of(Api::Metadata as i16, 12, true, &count))
            .is_none()
    );
}

#[test]
fn a_short_request_causes_no_huge_answer() {
    let world = World::new();
    let options = cloverleaf_broker::TopicOptions {
        partitions: 1_000,
        ..Default::default()
    };
    world.broker.topic_or_create("t", || options).unwrap();
    let topic = MetadataRequestTopic::default().with_name(Some(name("t")));
    let request = MetadataRequest::default().with_topics(Some(vec![topic; 10_000]));
    let answer = world.send(&frame(8, &request)).unwrap();
    assert!(answer.len() < 100_000, "{} bytes", answer.len());

    let resource =
        kafka_protocol::messages::describe_configs_request::DescribeConfigsResource::default()
            .with_resource_type(4)
            .with_resource_name(text("1"));
    let request = DescribeConfigsRequest::default().with_resources(vec![resource; 10_000]);
    let answer = world.send(&frame(1, &request)).unwrap();
    assert!(answer.len() < 100_000, "{} bytes", answer.len());
}

/// An error message that quotes such a name must still fit a string before flexible versions.
#[test]
fn names_of_maximum_length_are_answered_in_every_version() {
    use kafka_protocol::messages::{
        CreatePartitionsRequest, DeleteTopicsRequest, alter_configs_request as replace,
        create_partitions_request as partitions, create_topics_request as create,
        describe_configs_request as describe, incremental_alter_configs_request as alter,
    };
    let world = World::new();
    world.foreign_topic("t");
    let long = "\u{7}".repeat(i16::MAX as usize);
    for version in versions::<MetadataRequest>() {
        let topic = MetadataRequestTopic::default().with_name(Some(name(&long)));
        let request = MetadataRequest::default().with_topics(Some(vec![topic]));
        assert_eq!(world.ask(version, &request).topics[0].error_code, 17);
    }
    for version in versions::<CreateTopicsRequest>() {
        let config = create::CreatableTopicConfig::default()
            .with_name(text(&long))
            .with_value(None);
        let topic = create::CreatableTopic::default()
            .with_num_partitions(1)
            .with_replication_factor(1);
        let topics = vec![
            topic.clone().with_name(name(&long)),
            topic.with_name(name("new")).with_configs(vec![config]),
        ];
        let response = world.ask(version, &CreateTopicsRequest::default().with_topics(topics));
        let codes: Vec<i16> = response
            .topics
            .iter()
            .map(|topic| topic.error_code)
            .collect();
        assert_eq!(codes, [17, 40], "version {version}");
    }
    for version in versions::<CreatePartitionsRequest>() {
        let topic = partitions::CreatePartitionsTopic::default().with_name(name(&long));
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]);
        assert_eq!(world.ask(version, &request).results[0].error_code, 17);
    }
    for version in 1..=5 {
        let request = DeleteTopicsRequest::default().with_topic_names(vec![name(&long)]);
        assert_eq!(world.ask(version, &request).responses[0].error_code, 17);
    }
    for version in versions::<DescribeConfigsRequest>() {
        for (kind, code) in [(2, 17), (4, 42), (5, 42)] {
            let resource = describe::DescribeConfigsResource::default()
                .with_resource_type(kind)
                .with_resource_name(text(&long));
            let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
            assert_eq!(world.ask(version, &request).results[0].error_code, code);
        }
    }
    let (names, values) = (
        ["segment.ms", long.as_str()],
        [Some("x"), Some(long.as_str()), None],
    );
    for (setting, value) in names
        .iter()
        .flat_map(|name| values.map(|value| (*name, value)))
    {
        for version in versions::<IncrementalAlterConfigsRequest>() {
            let config = alter::AlterableConfig::default()
                .with_name(text(setting))
                .with_value(value.map(text));
            let resource = alter::AlterConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(text("t"))
                .with_configs(vec![config]);
            let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
            assert_eq!(world.ask(version, &request).responses[0].error_code, 40);
        }
        for version in 0..=2 {
            let config = replace::AlterableConfig::default()
                .with_name(text(setting))
                .with_value(value.map(text));
            let resource = replace::AlterConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(text("t"))
                .with_configs(vec![config]);
            let request = kafka_protocol::messages::AlterConfigsRequest::default()
                .with_resources(vec![resource]);
            assert_eq!(world.ask(version, &request).responses[0].error_code, 40);
        }
    }
}
