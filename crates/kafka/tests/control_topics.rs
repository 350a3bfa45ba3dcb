//! Topics through Kafka: Metadata, CreateTopics, DeleteTopics, CreatePartitions, in every version.

use cloverleaf_broker::BrokerOptions;
use cloverleaf_kafka::KafkaOptions;
use kafka_protocol::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use kafka_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeClusterRequest,
    MetadataRequest, MetadataResponse,
};
use uuid::Uuid;

use crate::control_world::{World, name, text, versions};

fn wanted(topic: &str) -> MetadataRequestTopic {
    MetadataRequestTopic::default().with_name(Some(name(topic)))
}

fn metadata(world: &World, version: i16, topics: &[&str]) -> MetadataResponse {
    let topics = topics.iter().map(|topic| wanted(topic)).collect();
    let request = MetadataRequest::default()
        .with_topics(Some(topics))
        .with_allow_auto_topic_creation(true);
    world.ask(version, &request)
}

fn topic_name(topic: &MetadataResponseTopic) -> String {
    topic.name.as_ref().unwrap().to_string()
}

fn creatable(topic: &str, partitions: i32, replicas: i16) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(partitions)
        .with_replication_factor(replicas)
}

fn config(key: &str, value: &str) -> CreatableTopicConfig {
    CreatableTopicConfig::default()
        .with_name(text(key))
        .with_value(Some(text(value)))
}

/// Creates one topic; returns error code and message.
fn create(world: &World, topic: CreatableTopic) -> (i16, String) {
    let request = CreateTopicsRequest::default().with_topics(vec![topic]);
    let response = world.ask(7, &request);
    let result = &response.topics[0];
    let message = result.error_message.as_ref().map(|text| text.to_string());
    (result.error_code, message.unwrap_or_default())
}

#[test]
fn metadata_describes_one_broker_and_its_partitions_in_every_version() {
    let world = World::new();
    assert_eq!(create(&world, creatable("orders", 3, 3)).0, 0);
    for version in versions::<MetadataRequest>() {
        let response = metadata(&world, version, &["orders"]);
        assert_eq!(response.brokers.len(), 1, "version {version}");
        let broker = &response.brokers[0];
        assert_eq!((broker.node_id.0, broker.port), (1, 9092));
        assert_eq!(
            broker.host.as_str(),
            "127.0.0.2",
            "where the client came to"
        );
        if version >= 1 {
            assert_eq!(response.controller_id.0, 1);
        }
        if version >= 2 {
            assert_eq!(response.cluster_id.as_ref().unwrap().len(), 22);
        }
        let topic = &response.topics[0];
        assert_eq!(
            (topic.error_code, topic_name(topic)),
            (0, "orders".to_owned())
        );
        if version >= 10 {
            assert_eq!(topic.topic_id, world.topic("orders").id());
        }
        assert_eq!(topic.partitions.len(), 3);
        for (index, partition) in (0..).zip(&topic.partitions) {
            assert_eq!(partition.partition_index, index);
            assert_eq!(partition.leader_id.0, 1);
            assert_eq!(partition.replica_nodes, [1]);
            assert_eq!(partition.isr_nodes, [1]);
            if version >= 7 {
                assert_eq!(partition.leader_epoch, 0);
            }
        }
    }
}

#[test]
fn all_topics_are_those_with_valid_names() {
    let world = World::new();
    for topic in ["b", "a", "nsq#ephemeral", "with space"] {
        world.foreign_topic(topic);
    }
    for version in versions::<MetadataRequest>() {
        let all = match version {
            0 => Some(Vec::new()),
            _ => None,
        };
        let response = world.ask(version, &MetadataRequest::default().with_topics(all));
        let names: Vec<String> = response.topics.iter().map(topic_name).collect();
        assert_eq!(names, ["a", "b"], "version {version}");
        if version > 0 {
            assert!(metadata(&world, version, &[]).topics.is_empty());
        }
    }
    let response = metadata(&world, 9, &["nsq#ephemeral"]);
    assert_eq!(response.topics[0].error_code, 17);
}

#[test]
fn topics_are_created_automatically_only_if_configured() {
    let world = World::with(KafkaOptions {
        partitions_default: 2,
        ..KafkaOptions::default()
    });
    for version in versions::<MetadataRequest>() {
        let topic = format!("made-{version}");
        let response = metadata(&world, version, &[&topic, &topic]);
        assert_eq!(response.topics.len(), 1, "once each");
        assert_eq!(response.topics[0].error_code, 0, "version {version}");
        assert_eq!(response.topics[0].partitions.len(), 2);
        if version >= 4 {
            let request = MetadataRequest::default()
                .with_topics(Some(vec![wanted("never")]))
                .with_allow_auto_topic_creation(false);
            let response = world.ask(version, &request);
            assert_eq!(response.topics[0].error_code, 3);
        }
    }
    let made = world.topic("made-0").options();
    assert!(!made.retention.consumed && made.retention.ms == Some(604_800_000));

    let world = World::with(KafkaOptions {
        auto_create_topics: false,
        ..KafkaOptions::default()
    });
    assert_eq!(metadata(&world, 13, &["never"]).topics[0].error_code, 3);
    assert_eq!(metadata(&world, 13, &["no name"]).topics[0].error_code, 17);
    assert!(world.broker.topics().is_empty());
}

#[test]
fn topics_are_found_by_id_since_version_12() {
    let world = World::new();
    let id = world.foreign_topic("orders").id();
    let by_id = |id| {
        let topic = MetadataRequestTopic::default()
            .with_topic_id(id)
            .with_name(None);
        MetadataRequest::default().with_topics(Some(vec![topic]))
    };
    for version in [12, 13] {
        let response = world.ask(version, &by_id(id));
        assert_eq!(topic_name(&response.topics[0]), "orders");
        let unknown = Uuid::from_u128(5);
        let response = world.ask(version, &by_id(unknown));
        let topic = &response.topics[0];
        assert_eq!((topic.error_code, topic.topic_id), (100, unknown));
        assert_eq!(topic.name, None);
    }
    let response = world.ask(10, &by_id(id));
    assert_eq!(response.topics[0].error_code, 42, "Kafka refuses it too");
}

#[test]
fn operations_are_those_of_a_broker_without_authorizer() {
    let world = World::new();
    world.foreign_topic("orders");
    for version in 8..=13 {
        let mut request = MetadataRequest::default()
            .with_topics(Some(vec![wanted("orders")]))
            .with_include_topic_authorized_operations(true);
        if version <= 10 {
            request = request.with_include_cluster_authorized_operations(true);
        }
        let response = world.ask(version, &request);
        assert_eq!(response.topics[0].topic_authorized_operations, 3576);
        if version <= 10 {
            assert_eq!(response.cluster_authorized_operations, 8096);
        }
        let response = metadata(&world, version, &["orders"]);
        assert_eq!(response.topics[0].topic_authorized_operations, i32::MIN);
    }
}

#[test]
fn the_configured_address_is_advertised() {
    let mut world = World::with(KafkaOptions {
        advertised: Some(("broker.example".to_owned(), 19092)),
        ..KafkaOptions::default()
    });
    for version in versions::<DescribeClusterRequest>() {
        let response = world.ask(version, &DescribeClusterRequest::default());
        assert_eq!(response.brokers[0].host.as_str(), "broker.example");
        assert_eq!(response.brokers[0].port, 19092);
        assert_eq!(response.controller_id.0, 1);
        assert_eq!(response.error_code, 0);
    }
    world.peer.tls = true;
    let local = "[::ffff:10.0.0.7]:9093".parse().unwrap();
    world.peer.local = local;
    let response = world.ask(1, &DescribeClusterRequest::default());
    assert_eq!(response.brokers[0].host.as_str(), "10.0.0.7");
    assert_eq!(response.brokers[0].port, 9093);
    let controllers = DescribeClusterRequest::default().with_endpoint_type(2);
    let response = world.ask(1, &controllers);
    assert_eq!((response.error_code, response.brokers.len()), (114, 0));
}

#[test]
fn the_cluster_id_survives_a_restart() {
    let mut world = World::new();
    let before = metadata(&world, 2, &[]).cluster_id;
    world.kill_and_restart();
    assert_eq!(metadata(&world, 2, &[]).cluster_id, before);
}

#[test]
fn topics_are_created_in_every_version() {
    let world = World::new();
    for version in versions::<CreateTopicsRequest>() {
        let topic = format!("t{version}");
        let request = CreateTopicsRequest::default()
            .with_topics(vec![creatable(&topic, 4, 3).with_configs(vec![
                config("retention.ms", "1000"),
                config("min.insync.replicas", "2"),
            ])])
            .with_timeout_ms(1000);
        let response = world.ask(version, &request.clone().with_validate_only(true));
        assert_eq!(response.topics[0].error_code, 0, "version {version}");
        assert!(world.broker.topic(&topic).is_none());

        let response = world.ask(version, &request);
        let result = &response.topics[0];
        assert_eq!(result.error_code, 0);
        let made = world.topic(&topic);
        assert_eq!(made.partition_count(), 4);
        assert_eq!(made.options().retention.ms, Some(1000));
        if version >= 5 {
            assert_eq!((result.num_partitions, result.replication_factor), (4, 1));
            let configs = result.configs.as_ref().unwrap();
            let shown = |key: &str| {
                let config = configs.iter().find(|config| config.name.as_str() == key);
                let config = config.unwrap();
                (
                    config.value.as_ref().unwrap().to_string(),
                    config.config_source,
                )
            };
            assert_eq!(shown("retention.ms"), ("1000".to_owned(), 1));
            assert_eq!(shown("min.insync.replicas"), ("2".to_owned(), 1));
        }
        if version >= 7 {
            assert_eq!(result.topic_id, made.id());
        }
        let again = world.ask(version, &request);
        assert_eq!(again.topics[0].error_code, 36);
    }
}

#[test]
fn topics_that_kafka_refuses_are_refused() {
    let world = World::new();
    let brokers = |ids: Vec<i32>| ids.into_iter().map(Into::into).collect();
    let assigned = |index, ids| {
        CreatableReplicaAssignment::default()
            .with_partition_index(index)
            .with_broker_ids(brokers(ids))
    };
    let manual = |assignments| creatable("t", -1, -1).with_assignments(assignments);
    for (topic, code) in [
        (creatable("no name", 1, 1), 17),
        (creatable("..", 1, 1), 17),
        (creatable(&"n".repeat(250), 1, 1), 17),
        (creatable("t", 0, 1), 37),
        (creatable("t", -2, 1), 37),
        (creatable("t", 1_000_000, 1), 37),
        (creatable("t", 1, 0), 38),
        (creatable("t", 1, -2), 38),
        (
            creatable("t", 1, 1).with_assignments(vec![assigned(0, vec![1])]),
            42,
        ),
        (manual(vec![assigned(1, vec![1])]), 39),
        (manual(vec![assigned(0, vec![])]), 39),
        (manual(vec![assigned(0, vec![1]), assigned(0, vec![1])]), 39),
        (
            creatable("t", 1, 1).with_configs(vec![config("no.such", "1")]),
            40,
        ),
        (
            creatable("t", 1, 1).with_configs(vec![config("retention.ms", "x")]),
            40,
        ),
        (
            creatable("t", 1, 1).with_configs(vec![config("remote.storage.enable", "true")]),
            40,
        ),
    ] {
        let (found, message) = create(&world, topic.clone());
        assert_eq!(found, code, "{topic:?}: {message}");
        assert!(!message.is_empty());
    }
    assert!(world.broker.topics().is_empty());

    let (code, message) = create(&world, manual(vec![assigned(0, vec![1, 2, 3])]));
    assert_eq!(
        (code, message.as_str()),
        (0, ""),
        "three brokers are taken as one"
    );
    assert_eq!(create(&world, creatable("default", -1, -1)).0, 0);
    assert_eq!(world.topic("default").partition_count(), 1);

    let twice = vec![creatable("twice", 1, 1), creatable("twice", 1, 1)];
    let response = world.ask(7, &CreateTopicsRequest::default().with_topics(twice));
    assert_eq!(response.topics.len(), 1);
    assert_eq!(response.topics[0].error_code, 42);
}

#[test]
fn topics_are_deleted_by_name_and_by_id() {
    let world = World::new();
    for version in versions::<DeleteTopicsRequest>() {
        world.foreign_topic("gone");
        world.foreign_topic("hidden name");
        let request = |names: &[&str]| match version {
            6.. => {
                let state = |topic: &&str| DeleteTopicState::default().with_name(Some(name(topic)));
                DeleteTopicsRequest::default().with_topics(names.iter().map(state).collect())
            }
            _ => DeleteTopicsRequest::default()
                .with_topic_names(names.iter().map(|topic| name(topic)).collect()),
        };
        let response = world.ask(version, &request(&["gone"]));
        assert_eq!(response.responses[0].error_code, 0, "version {version}");
        assert!(world.broker.topic("gone").is_none());
        let response = world.ask(version, &request(&["gone"]));
        assert_eq!(response.responses[0].error_code, 3);
        let response = world.ask(version, &request(&["hidden name"]));
        assert_eq!(response.responses[0].error_code, 17);
        world.topic("hidden name");
    }
    let id = world.foreign_topic("by-id").id();
    let state = |id, topic: Option<&str>| {
        let topic = topic.map(name);
        DeleteTopicState::default()
            .with_topic_id(id)
            .with_name(topic)
    };
    let delete = |state| {
        let request = DeleteTopicsRequest::default().with_topics(vec![state]);
        let response = world.ask(6, &request);
        response.responses[0].clone()
    };
    assert_eq!(delete(state(id, Some("by-id"))).error_code, 42);
    assert_eq!(delete(state(Uuid::nil(), None)).error_code, 42);
    assert_eq!(delete(state(Uuid::from_u128(9), None)).error_code, 100);
    let deleted = delete(state(id, None));
    assert_eq!((deleted.error_code, deleted.name), (0, Some(name("by-id"))));
    assert!(world.broker.topic("by-id").is_none());
}

#[test]
fn partitions_are_added_and_never_removed() {
    let world = World::new();
    let mut count = 1;
    world.foreign_topic("orders");
    for version in versions::<CreatePartitionsRequest>() {
        let wanted = |count: i32| {
            CreatePartitionsTopic::default()
                .with_name(name("orders"))
                .with_count(count)
                .with_assignments(None)
        };
        let ask = |topics: Vec<CreatePartitionsTopic>, validate_only| {
            let request = CreatePartitionsRequest::default()
                .with_topics(topics)
                .with_validate_only(validate_only);
            world.ask(version, &request).results[0].error_code
        };
        let brokers = |count| {
            let one = CreatePartitionsAssignment::default().with_broker_ids(vec![1.into()]);
            Some(vec![one; count])
        };
        count += 2;
        assert_eq!(ask(vec![wanted(count)], true), 0, "version {version}");
        assert_eq!(world.topic("orders").partition_count() as i32, count - 2);
        assert_eq!(
            ask(vec![wanted(count).with_assignments(brokers(1))], false),
            39
        );
        assert_eq!(ask(vec![wanted(count), wanted(count)], false), 42);
        assert_eq!(
            ask(vec![wanted(count).with_assignments(brokers(2))], false),
            0
        );
        assert_eq!(world.topic("orders").partition_count() as i32, count);
        assert_eq!(ask(vec![wanted(count)], false), 37);
        assert_eq!(ask(vec![wanted(-1)], false), 37);
        assert_eq!(ask(vec![wanted(1_000_000)], true), 37);
        assert_eq!(ask(vec![wanted(9).with_name(name("nowhere"))], false), 3);
    }
}

#[test]
fn more_partitions_than_the_broker_may_have_violate_its_policy() {
    let limits = BrokerOptions {
        partitions_max: 4,
        ..BrokerOptions::default()
    };
    let world = World::build(KafkaOptions::default(), limits);
    assert_eq!(create(&world, creatable("orders", 3, 1)).0, 0);
    let (code, message) = create(&world, creatable("more", 2, 1));
    assert_eq!(code, 44, "POLICY_VIOLATION");
    assert!(message.contains("may have 4"), "{message}");
    // With `validate_only` it is refused, too, and so are several topics that exceed the limit
    // together.
    let ask = |topics: Vec<CreatableTopic>| {
        let request = CreateTopicsRequest::default()
            .with_topics(topics)
            .with_validate_only(true);
        let response = world.ask(7, &request);
        let codes = response.topics.iter().map(|topic| topic.error_code);
        codes.collect::<Vec<i16>>()
    };
    assert_eq!(ask(vec![creatable("more", 2, 1)]), [44]);
    assert_eq!(
        ask(vec![creatable("x", 1, 1), creatable("y", 1, 1)]),
        [0, 44]
    );
    let grow = |count| {
        let topic = CreatePartitionsTopic::default()
            .with_name(name("orders"))
            .with_count(count)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![topic])
            .with_validate_only(true);
        world.ask(3, &request).results[0].error_code
    };
    assert_eq!((grow(4), grow(5)), (0, 44));
    let made = metadata(&world, 9, &["one", "two"]);
    let codes: Vec<i16> = made.topics.iter().map(|topic| topic.error_code).collect();
    assert!(codes.contains(&44), "{codes:?}");
}
