//! Requests that tools send as a part of other operations: DescribeTopicPartitions,
//! ListConfigResources, ListPartitionReassignments, DescribeAcls, DescribeClientQuotas, in every
//! version.

use cloverleaf_broker::TopicOptions;
use kafka_protocol::messages::describe_client_quotas_request::ComponentData;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use kafka_protocol::messages::list_partition_reassignments_request as reassignments;
use kafka_protocol::messages::{
    DescribeAclsRequest, DescribeClientQuotasRequest, DescribeConfigsRequest,
    DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
};
use kafka_protocol::protocol::StrBytes;

use crate::control_world::{World, name, text, versions};

fn topic(world: &World, name: &str, partitions: u32) {
    let options = || TopicOptions {
        partitions,
        ..TopicOptions::default()
    };
    world.broker.topic_or_create(name, options).unwrap();
}

fn ask(names: &[&str], limit: i32, cursor: Option<(&str, i32)>) -> DescribeTopicPartitionsRequest {
    let wanted = |topic: &&str| TopicRequest::default().with_name(name(topic));
    DescribeTopicPartitionsRequest::default()
        .with_topics(names.iter().map(wanted).collect())
        .with_response_partition_limit(limit)
        .with_cursor(cursor.map(|(topic, partition)| {
            Cursor::default()
                .with_topic_name(name(topic))
                .with_partition_index(partition)
        }))
}

/// Name, error code and partitions of each topic, and the cursor of the next page.
type Page = (Vec<(String, i16, Vec<i32>)>, Option<(String, i32)>);

fn page(response: &DescribeTopicPartitionsResponse) -> Page {
    let topics = response.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter();
        let name = topic.name.as_ref().unwrap().to_string();
        let partitions = partitions.map(|partition| partition.partition_index);
        (name, topic.error_code, partitions.collect())
    });
    let cursor = response.next_cursor.as_ref();
    let cursor = cursor.map(|cursor| (cursor.topic_name.to_string(), cursor.partition_index));
    (topics.collect(), cursor)
}

fn one(topic: &str, partitions: std::ops::Range<i32>) -> (String, i16, Vec<i32>) {
    (topic.to_owned(), 0, partitions.collect())
}

fn at(topic: &str, partition: i32) -> Option<(String, i32)> {
    Some((topic.to_owned(), partition))
}

#[test]
fn topics_are_described_with_their_partitions() {
    let world = World::new();
    topic(&world, "orders", 2);
    for version in versions::<DescribeTopicPartitionsRequest>() {
        let response = world.ask(version, &ask(&["orders"], 2000, None));
        let found = &response.topics[0];
        assert_eq!(found.topic_id, world.topic("orders").id());
        assert_eq!(found.topic_authorized_operations, 0b1101_1111_1000);
        assert!(!found.is_internal);
        let second = &found.partitions[1];
        assert_eq!((second.partition_index, second.error_code), (1, 0));
        assert_eq!((second.leader_id.0, second.leader_epoch), (1, 0));
        assert_eq!(second.replica_nodes, [1]);
        assert_eq!(second.isr_nodes, [1]);
        assert_eq!(second.eligible_leader_replicas, Some(Vec::new()));
        assert_eq!(second.last_known_elr, Some(Vec::new()));
        assert!(second.offline_replicas.is_empty());
    }
}

#[test]
fn pages_of_partitions_follow_each_other() {
    let world = World::new();
    for (name, partitions) in [("c", 2), ("a", 3), ("b", 1)] {
        topic(&world, name, partitions);
    }
    world.foreign_topic("with space");
    let ask = |names: &[&str], limit, cursor| page(&world.ask(0, &ask(names, limit, cursor)));
    let all = vec![one("a", 0..3), one("b", 0..1), one("c", 0..2)];
    assert_eq!(ask(&[], 2000, None), (all.clone(), None));
    assert_eq!(ask(&[], 6, None), (all, None));
    assert_eq!(ask(&[], 2, None), (vec![one("a", 0..2)], at("a", 2)));
    let second = vec![one("a", 2..3), one("b", 0..1)];
    assert_eq!(ask(&[], 2, Some(("a", 2))), (second, at("c", 0)));
    let third = vec![one("c", 0..2)];
    assert_eq!(ask(&[], 2, Some(("c", 0))), (third.clone(), None));
    // The cursor is in a topic that does not exist any more.
    assert_eq!(ask(&[], 9, Some(("bb", 1))), (third, None));
    // A page has at least one partition; otherwise the client would never get further.
    for limit in [0, -1, 1] {
        assert_eq!(ask(&[], limit, None), (vec![one("a", 0..1)], at("a", 1)));
    }
    // Each topic once, sorted. A missing topic has an error, and does not count toward the limit.
    let missing = |topic: &str, code| (topic.to_owned(), code, Vec::new());
    let some = vec![missing("a b", 17), missing("aa", 3), one("c", 0..1)];
    assert_eq!(ask(&["c", "aa", "c", "a b"], 1, None), (some, at("c", 1)));
    assert_eq!(
        ask(&["c", "aa"], 9, Some(("b", 0))),
        (vec![one("c", 0..2)], None)
    );
}

#[test]
fn a_page_has_a_limit_of_its_own_and_a_cursor_a_valid_partition() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        topic(&world, name, 900);
    }
    let (topics, cursor) = page(&world.ask(0, &ask(&[], i32::MAX, None)));
    assert_eq!(topics.last().unwrap().2.len(), 200);
    assert_eq!(cursor, at("c", 200));
    assert!(world.try_ask(0, &ask(&[], 9, Some(("a", -1)))).is_none());
    let behind = page(&world.ask(0, &ask(&["a"], 9, Some(("a", 5_000)))));
    assert_eq!(behind, (vec![one("a", 0..0)], None));
}

#[test]
fn resources_with_settings_are_listed() {
    let world = World::new();
    topic(&world, "orders", 1);
    let list = |version, kinds: &[i8]| {
        let request = ListConfigResourcesRequest::default().with_resource_types(kinds.to_vec());
        let response = world.ask(version, &request);
        let resources = response.config_resources.iter();
        let resources =
            resources.map(|found| (found.resource_type, found.resource_name.to_string()));
        (response.error_code, resources.collect::<Vec<_>>())
    };
    let topics = (2, "orders".to_owned());
    let (broker, logger) = ((4, "1".to_owned()), (8, "1".to_owned()));
    // Version 0 lists only the subscriptions to client metrics.
    assert_eq!(list(0, &[]), (0, Vec::new()));
    assert_eq!(list(1, &[]), (0, vec![topics.clone(), broker, logger]));
    assert_eq!(list(1, &[2, 2]), (0, vec![topics]));
    assert_eq!(list(1, &[16, 32]), (0, Vec::new()));
    assert_eq!(list(1, &[2, 3]), (35, Vec::new()), "UNSUPPORTED_VERSION");
}

#[test]
fn a_group_without_a_name_has_no_settings() {
    let world = World::new();
    let resource = DescribeConfigsResource::default()
        .with_resource_type(32)
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    assert_eq!(world.ask(4, &request).results[0].error_code, 42);
}

#[test]
fn nothing_is_reassigned() {
    let world = World::new();
    let topics = vec![
        reassignments::ListPartitionReassignmentsTopics::default()
            .with_name(name("t"))
            .with_partition_indexes(vec![0, 1]),
    ];
    for version in versions::<ListPartitionReassignmentsRequest>() {
        for topics in [None, Some(topics.clone())] {
            let request = ListPartitionReassignmentsRequest::default().with_topics(topics);
            let response = world.ask(version, &request);
            assert_eq!((response.error_code, response.error_message), (0, None));
            assert!(response.topics.is_empty());
        }
    }
}

#[test]
fn there_are_no_access_control_lists() {
    let world = World::new();
    for version in versions::<DescribeAclsRequest>() {
        let request = DescribeAclsRequest::default()
            .with_resource_type_filter(1)
            .with_resource_name_filter(None)
            .with_pattern_type_filter(1)
            .with_principal_filter(None)
            .with_host_filter(Some(text("*")))
            .with_operation(1)
            .with_permission_type(1);
        let response = world.ask(version, &request);
        assert_eq!(response.error_code, 54, "SECURITY_DISABLED");
        let reason = response.error_message.unwrap();
        assert_eq!(reason.as_str(), "No Authorizer is configured on the broker");
        assert!(response.resources.is_empty());
    }
}

#[test]
fn there_are_no_quotas() {
    let world = World::new();
    for version in versions::<DescribeClientQuotasRequest>() {
        let ask = |kinds: &[&str]| {
            let component = |kind: &&str| {
                ComponentData::default()
                    .with_entity_type(text(kind))
                    .with_match_type(2)
                    .with_match(None::<StrBytes>)
            };
            let components = kinds.iter().map(component).collect();
            let request = DescribeClientQuotasRequest::default().with_components(components);
            let response = world.ask(version, &request);
            (
                response.error_code,
                response.entries.map(|entries| entries.len()),
            )
        };
        assert_eq!(ask(&[]), (0, Some(0)));
        assert_eq!(ask(&["user", "client-id"]), (0, Some(0)));
        assert_eq!(ask(&["user", "user"]), (42, None));
        assert_eq!(ask(&["user", "ip"]), (42, None));
        assert_eq!(ask(&[""]), (42, None));
        assert_eq!(ask(&["team"]), (35, None));
    }
}
