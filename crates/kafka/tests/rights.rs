//! A client whose principal has only some rights: the requests that it may send, and Kafka's errors
//! for the others.

use std::sync::Arc;

use cloverleaf_access::{Grants, Operation, Pattern, Principal, ResourceKinds, Rule, RuleEffect};
use cloverleaf_broker::Realm;
use cloverleaf_kafka::error_code::ErrorCode;
use kafka_protocol::messages::alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    AlterConfigsRequest, CreateTopicsRequest, DeleteGroupsRequest, DeleteTopicsRequest,
    DescribeGroupsRequest, InitProducerIdRequest, ListGroupsRequest, ListOffsetsRequest,
    MetadataRequest, ProduceRequest, TopicName,
};

use crate::common::fetch::{FetchCall, parts, publish};
use crate::common::{World, batch, text};
use crate::groups_common as groups;

const NONE: i16 = 0;
const TOPIC: i16 = ErrorCode::TopicAuthorizationFailed as i16;
const GROUP: i16 = ErrorCode::GroupAuthorizationFailed as i16;
const CLUSTER: i16 = ErrorCode::ClusterAuthorizationFailed as i16;

/// The principal has only these rights to topics and groups of these names.
fn world(rules: &[(Operation, &str)]) -> World {
    let mut world = World::new();
    for name in ["mine", "other"] {
        publish(&world.topic(name, 1), 0, &["a"]);
    }
    // A group of another principal, which has all rights.
    groups::join_alone(&mut world.connect(), 5, "other");
    world.settle();
    let rule = |&(operation, name): &(Operation, &str)| Rule {
        effect: RuleEffect::Allow,
        principals: Pattern::Is("me".to_owned()),
        operations: [operation].into_iter().collect(),
        namespaces: Pattern::All,
        kinds: ResourceKinds::ALL,
        topics: Pattern::All,
        names: vec![Pattern::Is(name.to_owned())],
    };
    let me = Principal {
        name: "me".to_owned(),
    };
    let grants: Grants = rules.iter().map(rule).collect();
    let mut realm = Realm::unrestricted(world.broker.clone());
    realm.set_user(me, grants);
    world.context = world.context.with_realm(realm);
    world
}

fn produced(world: &World, version: i16, name: &str) -> i16 {
    let data = PartitionProduceData::default().with_records(Some(batch(&["x"]).bytes().clone()));
    let topic = TopicProduceData::default().with_partition_data(vec![data]);
    let topic = if version >= 13 {
        topic.with_topic_id(world.broker.topic(name).unwrap().id())
    } else {
        topic.with_name(TopicName(text(name)))
    };
    let request = ProduceRequest::default()
        .with_acks(1)
        .with_topic_data(vec![topic]);
    let response = world.connect().call(version, &request);
    response.responses[0].partition_responses[0].error_code
}

fn fetched(world: &World, version: i16, name: &str) -> i16 {
    let topic = world.broker.topic(name).unwrap();
    let ask = FetchCall::new(version).of(&topic, &[(0, 0)]);
    parts(&ask.call(&mut world.connect()))[0].error_code
}

fn described(world: &World, name: Option<&str>) -> Vec<(String, i16)> {
    let topic = |name| MetadataRequestTopic::default().with_name(Some(TopicName(text(name))));
    let request = MetadataRequest::default()
        .with_topics(name.map(|name| vec![topic(name)]))
        .with_allow_auto_topic_creation(true);
    let response = world.connect().call(9, &request);
    let topics = response.topics.iter().map(|topic| {
        let name = topic.name.as_ref().map(|name| name.to_string());
        (name.unwrap_or_default(), topic.error_code)
    });
    topics.collect()
}

#[test]
fn producing_needs_the_right_to_publish() {
    let world = world(&[(Operation::Publish, "mine")]);
    for version in [9, 13] {
        assert_eq!(produced(&world, version, "mine"), NONE);
        assert_eq!(produced(&world, version, "other"), TOPIC);
        assert_eq!(fetched(&world, version, "mine"), TOPIC);
    }
    let of = |name: &str| world.broker.topic(name).unwrap().partition(0).unwrap();
    assert_eq!(
        (of("mine").next_offset(), of("other").next_offset()),
        (3, 1)
    );
}

#[test]
fn fetching_needs_the_right_to_consume() {
    let world = world(&[(Operation::Consume, "mine")]);
    for version in [11, 13] {
        assert_eq!(fetched(&world, version, "mine"), NONE);
        assert_eq!(fetched(&world, version, "other"), TOPIC);
    }
    assert_eq!(produced(&world, 9, "mine"), TOPIC);
}

#[test]
fn describing_creating_and_deleting_topics_need_their_rights() {
    let world = world(&[(Operation::Describe, "mine"), (Operation::Declare, "new")]);
    assert_eq!(described(&world, None), [("mine".to_owned(), NONE)]);
    for (name, error) in [
        ("mine", NONE),
        ("other", TOPIC),
        ("none", TOPIC),
        ("new", NONE),
    ] {
        assert_eq!(described(&world, Some(name)), [(name.to_owned(), error)]);
    }
    let topics = ["mine", "newer"].map(|name| {
        CreatableTopic::default()
            .with_name(TopicName(text(name)))
            .with_num_partitions(1)
            .with_replication_factor(1)
    });
    let request = CreateTopicsRequest::default().with_topics(topics.to_vec());
    let mut peer = world.connect();
    let id = peer.send(5, &request);
    world.settle();
    peer.pump();
    let response = peer.expect::<CreateTopicsRequest>(5, id);
    let errors: Vec<i16> = response.topics.iter().map(|it| it.error_code).collect();
    assert_eq!(errors, [TOPIC, TOPIC]);
    let topics = ["mine", "other", "new"].map(|name| {
        let name = TopicName(text(name));
        DeleteTopicState::default().with_name(Some(name))
    });
    let request = DeleteTopicsRequest::default().with_topics(topics.to_vec());
    let id = peer.send(6, &request);
    world.settle();
    peer.pump();
    let response = peer.expect::<DeleteTopicsRequest>(6, id);
    let errors: Vec<i16> = response.responses.iter().map(|it| it.error_code).collect();
    assert_eq!(errors, [TOPIC, TOPIC, NONE]);
    let latest = |name: &str| {
        let partition = ListOffsetsPartition::default().with_timestamp(-1);
        let topic = ListOffsetsTopic::default()
            .with_name(TopicName(text(name)))
            .with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default()
            .with_replica_id((-1).into())
            .with_topics(vec![topic]);
        world.connect().call(5, &request).topics[0].partitions[0].error_code
    };
    assert_eq!((latest("mine"), latest("other")), (NONE, TOPIC));
}

#[test]
fn joining_describing_and_deleting_groups_need_their_rights() {
    let world = world(&[(Operation::Consume, "mine")]);
    let mut peer = world.connect();
    let joined = groups::join_alone(&mut peer, 5, "mine");
    assert_eq!(joined.error_code, NONE);
    let request = groups::join(5, "other", "");
    assert_eq!(peer.call(5, &request).error_code, GROUP);
    let request = groups::sync_request(3, "other", &joined, &[]);
    assert_eq!(peer.call(3, &request).error_code, GROUP);
    assert_eq!(groups::heartbeat(&mut peer, "other", &joined), GROUP);
    let left = groups::leave(&mut peer, 1, "other", &joined.member_id);
    assert_eq!(left.error_code, GROUP);
    let request = groups::commit(7, "other", "mine", 1);
    assert_eq!(groups::committed(&mut peer, 7, &request), GROUP);
    let fetched = peer.call(1, &groups::fetch_request(1, "other", Some("mine")));
    assert_eq!(fetched.topics[0].partitions[0].error_code, GROUP);
    let fetched = peer.call(7, &groups::fetch_request(7, "other", Some("mine")));
    assert_eq!(fetched.error_code, GROUP);
    let fetched = peer.call(8, &groups::fetch_request(8, "other", None));
    assert_eq!(fetched.groups[0].error_code, GROUP);
    let names = ["mine", "other"].map(groups::group);
    let request = DescribeGroupsRequest::default().with_groups(names.to_vec());
    let described = peer.call(5, &request);
    let errors: Vec<i16> = described.groups.iter().map(|it| it.error_code).collect();
    assert_eq!(errors, [NONE, GROUP]);
    let listed = peer.call(4, &ListGroupsRequest::default());
    let listed: Vec<&str> = listed
        .groups
        .iter()
        .map(|it| it.group_id.as_str())
        .collect();
    assert_eq!(listed, ["mine"]);
    let request = DeleteGroupsRequest::default().with_groups_names(names.to_vec());
    let id = peer.send(2, &request);
    world.settle();
    peer.pump();
    let deleted = peer.expect::<DeleteGroupsRequest>(2, id);
    let errors: Vec<i16> = deleted.results.iter().map(|it| it.error_code).collect();
    assert_eq!(errors, [GROUP, GROUP], "who consumes does not delete");
}

#[test]
fn changing_broker_settings_needs_the_right_to_administrate() {
    const BROKER: i8 = 4;
    for (rules, error) in [
        (&[(Operation::Declare, "")], CLUSTER),
        (&[(Operation::Administrate, "")], NONE),
    ] {
        let world = world(rules);
        let resource = AlterConfigsResource::default()
            .with_resource_type(BROKER)
            .with_resource_name(text("1"));
        let request = AlterConfigsRequest::default().with_resources(vec![resource]);
        let mut peer = world.connect();
        let id = peer.send(1, &request);
        world.settle();
        peer.pump();
        let response = peer.expect::<AlterConfigsRequest>(1, id);
        assert_eq!(response.responses[0].error_code, error);
    }
}

#[test]
fn clients_with_other_rights_share_producer_ids_and_groups() {
    let mut world = world(&[(Operation::Publish, "mine")]);
    let restricted = world.context.clone();
    let whole = restricted.with_realm(Realm::unrestricted(world.broker.clone()));
    assert!(Arc::ptr_eq(&whole.groups, &restricted.groups));
    let request = InitProducerIdRequest::default().with_transactional_id(None);
    let ids = [restricted, whole].map(|context| {
        world.context = context;
        world.connect().call(4, &request).producer_id.0
    });
    assert_ne!(ids[0], ids[1]);
}
