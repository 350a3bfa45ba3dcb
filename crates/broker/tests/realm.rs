//! Realms: the rights of their principal, and the names of their namespace.

use cloverleaf_access::{
    Grants, Operation, Operations, Pattern, Principal, ResourceKind, ResourceKinds, Rule,
    RuleEffect,
};
use cloverleaf_broker::{
    CatalogError, Committed, Namespace, Realm, SubscriptionOptions, TopicOptions, TopicUnavailable,
};

use crate::common::World;

fn principal() -> Principal {
    let name = "me".to_owned();
    Principal { name }
}

/// A rule that allows `operation` on topics, groups and channels of this name, in the default
/// namespace.
fn rule(operation: Operation, name: &str) -> Rule {
    Rule {
        effect: RuleEffect::Allow,
        principals: Pattern::Is("me".to_owned()),
        operations: [operation].into_iter().collect(),
        namespaces: Pattern::Is(String::new()),
        kinds: ResourceKinds::ALL,
        topics: Pattern::All,
        names: vec![Pattern::Is(name.to_owned())],
    }
}

fn entered(world: &World, rules: impl IntoIterator<Item = Rule>) -> Realm {
    let mut realm = Realm::unrestricted(world.broker.clone());
    realm.set_user(principal(), Grants::from_iter(rules));
    realm
}

fn denied(name: &str) -> CatalogError {
    let name = name.to_owned();
    CatalogError::Denied { name }
}

fn committed(world: &World, group: &str, offset: u64) -> Committed {
    Committed {
        group: group.to_owned(),
        topic: world.topic("a").id(),
        partition: 0,
        offset,
        leader_epoch: -1,
        metadata: String::new(),
        committed_ms: 1,
    }
}

#[test]
fn each_call_is_allowed_by_the_right_that_it_names_and_by_no_other() {
    let world = World::new();
    let (a, b) = (world.topic("a"), world.topic("b"));
    let realm = entered(&world, [rule(Operation::Publish, "a")]);
    // A principal with any right on a topic may see it.
    for operation in [Operation::Publish, Operation::Describe] {
        assert_eq!(realm.topic(operation, "a").unwrap().id(), a.id());
        assert_eq!(realm.topic_by_id(operation, a.id()).unwrap().id(), a.id());
        assert_eq!(
            realm.topic(operation, "b").unwrap_err(),
            TopicUnavailable::Denied
        );
        let by_id = realm.topic_by_id(operation, b.id());
        assert_eq!(by_id.unwrap_err(), TopicUnavailable::Denied);
    }
    for operation in [Operation::Consume, Operation::Declare] {
        assert_eq!(
            realm.topic(operation, "a").unwrap_err(),
            TopicUnavailable::Denied
        );
    }
    assert_eq!(realm.topics().len(), 1);
    assert_eq!(realm.all_topics().len(), 1);
    let made = realm.topic_or_create(Operation::Publish, "c", TopicOptions::default);
    assert_eq!(made.unwrap_err(), denied("c"));
    assert!(world.broker.topic("c").is_none());
    assert_eq!(realm.delete_topic("a").unwrap_err(), denied("a"));
    assert_eq!(realm.delete_topic_if(&a, || true).unwrap_err(), denied("a"));
    let channel = || {
        let options = SubscriptionOptions::default;
        realm.channel_or_create("a", "a", TopicOptions::default, options)
    };
    assert_eq!(channel().unwrap_err(), denied("a"));

    let realm = entered(&world, [rule(Operation::Declare, "a")]);
    assert!(realm.delete_topic("a").unwrap());
    assert_eq!(
        realm.topic(Operation::Declare, "a").unwrap_err(),
        TopicUnavailable::Unknown
    );
}

#[test]
fn groups_are_changed_and_seen_by_principals_with_the_right() {
    let world = World::new();
    let mut realm = entered(&world, [rule(Operation::Consume, "g")]);
    let both = vec![committed(&world, "g", 1), committed(&world, "h", 1)];
    assert_eq!(realm.commit_offsets(both).unwrap_err(), denied("h"));
    assert!(world.broker.groups_with_offsets().is_empty());
    realm
        .commit_offsets(vec![committed(&world, "g", 1)])
        .unwrap();
    world
        .broker
        .commit_offsets(vec![committed(&world, "h", 1)])
        .unwrap();
    assert_eq!(realm.groups_with_offsets(), ["g"]);
    assert_eq!(realm.committed_offsets("g").len(), 1);
    assert!(realm.committed_offsets("h").is_empty());
    let topic = world.topic("a").id();
    assert!(realm.committed_offset("h", topic, 0).is_none());
    assert_eq!(
        realm.delete_offsets("h", &[(topic, 0)]).unwrap_err(),
        denied("h")
    );
    assert_eq!(realm.delete_group("g").unwrap_err(), denied("g"));
    realm.set_user(
        principal(),
        Grants::from_iter([rule(Operation::Declare, "g")]),
    );
    assert!(realm.delete_group("g").unwrap());
}

#[test]
fn new_rights_change_the_generation() {
    let world = World::new();
    let mut realm = Realm::unrestricted(world.broker.clone());
    let before = realm.generation();
    world.topic("a");
    let made = realm.generation();
    assert!(made > before);
    realm.set_user(principal(), Grants::default());
    assert!(realm.generation() > made);
    assert!(!realm.may(Operation::Describe, ResourceKind::Topic, "", "a"));
}

#[test]
fn a_realm_knows_its_namespace_and_no_other() {
    let mut world = World::new();
    for _ in 0..2 {
        let here = Realm::unrestricted(world.broker.clone());
        let there = Realm::new(world.broker.clone(), Namespace::new("there"));
        let make = |realm: &Realm| {
            let made = realm.topic_or_create(Operation::Declare, "a", TopicOptions::default);
            made.unwrap()
        };
        let (a, b) = (make(&here), make(&there));
        assert_ne!(a.id(), b.id());
        for (realm, own, other, offset) in [(&here, &a, &b, 1), (&there, &b, &a, 2)] {
            let by_id = |id| realm.topic_by_id(Operation::Describe, id);
            assert_eq!(by_id(own.id()).unwrap().id(), own.id());
            assert_eq!(by_id(other.id()).unwrap_err(), TopicUnavailable::Unknown);
            assert_eq!(realm.topics().len(), 1);
            let mut offsets = vec![committed(&world, "g", offset)];
            offsets[0].topic = own.id();
            realm.commit_offsets(offsets).unwrap();
            assert_eq!(realm.groups_with_offsets(), ["g"]);
            assert_eq!(realm.committed_offsets("g").len(), 1);
            let found = realm.committed_offset("g", own.id(), 0).unwrap();
            assert_eq!(found.offset, offset);
            realm.put_value("k", Some(vec![1])).unwrap();
            assert_eq!(realm.kept_under("").len(), 1);
        }
        world.kill_and_restart();
    }
    let there = Realm::new(world.broker.clone(), Namespace::new("there"));
    assert!(there.delete_group("g").unwrap());
    assert!(there.delete_topic("a").unwrap());
    world.kill_and_restart();
    let here = Realm::unrestricted(world.broker.clone());
    assert_eq!(here.groups_with_offsets(), ["g"]);
    assert!(here.topic(Operation::Describe, "a").is_ok());
}

#[test]
fn rules_of_another_namespace_do_not_apply() {
    let world = World::new();
    world.topic("a");
    let mut rule = rule(Operation::Publish, "a");
    rule.operations = Operations::ALL;
    rule.namespaces = Pattern::Is("there".to_owned());
    let realm = entered(&world, [rule]);
    let topic = realm.topic(Operation::Describe, "a");
    assert_eq!(topic.unwrap_err(), TopicUnavailable::Denied);
}
