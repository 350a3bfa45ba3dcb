//! Kafka clients of two namespaces of one broker: each namespace has its own topics and groups.

use cloverleaf_broker::{Namespace, Realm};
use cloverleaf_kafka::KafkaContext;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{ListGroupsRequest, MetadataRequest, TopicName};

use crate::common::{World, text};
use crate::groups_common as groups;

fn listed(world: &World) -> Vec<String> {
    let response = world
        .connect()
        .call(9, &MetadataRequest::default().with_topics(None));
    let topics = response.topics.iter();
    topics
        .map(|it| it.name.as_ref().unwrap().to_string())
        .collect()
}

#[test]
fn the_same_names_in_two_namespaces_are_two_things() {
    let mut world = World::new();
    world.topic("t", 1);
    world.topic("only-here", 1);
    let request = groups::commit(7, "g", "t", 5);
    assert_eq!(groups::committed(&mut world.connect(), 7, &request), 0);
    assert_eq!(groups::offset(&mut world.connect(), "g", "t"), 5);

    let first = world.context.clone();
    let realm = Realm::new(world.broker.clone(), Namespace::new("second"));
    let (options, worker) = ((*first.options).clone(), first.worker.clone());
    let second = KafkaContext::new(realm, options, worker, first.lookups.clone());
    world.context = second;
    assert!(listed(&world).is_empty());
    let wanted = MetadataRequestTopic::default().with_name(Some(TopicName(text("t"))));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![wanted]))
        .with_allow_auto_topic_creation(true);
    let mut peer = world.connect();
    let id = peer.send(9, &request);
    world.settle();
    peer.pump();
    assert_eq!(
        peer.expect::<MetadataRequest>(9, id).topics[0].error_code,
        0
    );
    assert_eq!(listed(&world), ["t"]);
    assert_eq!(groups::offset(&mut world.connect(), "g", "t"), -1);
    let request = groups::commit(7, "g", "t", 7);
    assert_eq!(groups::committed(&mut world.connect(), 7, &request), 0);
    let request = groups::commit(7, "h", "t", 1);
    assert_eq!(groups::committed(&mut world.connect(), 7, &request), 0);
    assert_eq!(groups::offset(&mut world.connect(), "g", "t"), 7);

    world.context = first;
    assert_eq!(groups::offset(&mut world.connect(), "g", "t"), 5);
    assert_eq!(listed(&world), ["only-here", "t"]);
    let groups = world
        .connect()
        .call(4, &ListGroupsRequest::default())
        .groups;
    let groups: Vec<&str> = groups.iter().map(|it| it.group_id.as_str()).collect();
    assert_eq!(groups, ["g"]);
}
