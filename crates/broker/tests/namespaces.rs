//! Namespaces separate the names of topics, groups, protocol values and dead-letter topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cloverleaf_broker::{Name, Namespace, SubscriptionOptions, Topic, TopicOptions};
use cloverleaf_log::Durability;

use crate::common::{World, bodies, consumer, receive};

fn name<'a>(namespace: &'a Namespace, text: &'a str) -> Name<'a> {
    Name { namespace, text }
}

fn make(world: &World, namespace: &Namespace, text: &str) -> Arc<Topic> {
    let topic = name(namespace, text);
    let made = world.broker.topic_or_create(topic, TopicOptions::default);
    made.unwrap()
}

fn publish(world: &World, topic: &Arc<Topic>, body: &str) {
    let published = topic.publish(world.batch(&[body]), Durability::Kernel);
    drop(published.unwrap());
    world.settle();
}

/// Consumes all messages and rejects each at once.
fn reject_all(topic: &Arc<Topic>) {
    let options = || SubscriptionOptions {
        dead_letter: Some("dead".to_owned()),
        ..SubscriptionOptions::default()
    };
    let subscription = topic.subscription_or_create("work", options).unwrap();
    let consumer = consumer(&subscription, 10);
    for got in receive(&consumer).unwrap() {
        consumer.reject(got.id).unwrap();
    }
}

#[test]
fn topics_with_one_name_in_two_namespaces_survive_kills_and_snapshots() {
    let mut world = World::new();
    let (here, there) = (Namespace::DEFAULT, Namespace::new("there"));
    for (namespace, body) in [(&here, "a"), (&there, "b")] {
        let topic = make(&world, namespace, "orders");
        topic
            .subscription_or_create("s", SubscriptionOptions::default)
            .unwrap();
        publish(&world, &topic, body);
        let kept = name(namespace, "key");
        world.broker.put_value(kept, Some(body.into())).unwrap();
    }
    for round in 0u8..3 {
        assert_eq!(world.broker.topics().len(), 2);
        assert_eq!(
            world.broker.topic("orders").unwrap().full_name(),
            "orders".into()
        );
        for (namespace, body) in [(&here, "a"), (&there, "b")] {
            let orders = name(namespace, "orders");
            let topic = world.broker.topic(orders).unwrap();
            assert_eq!(topic.full_name(), orders);
            let reader = consumer(&topic.subscription("s").unwrap(), 10);
            assert_eq!(bodies(&reader), [body]);
            let kept = vec![("key".to_owned(), body.into())];
            assert_eq!(world.broker.kept_under(name(namespace, "k")), kept);
        }
        // More than the journal holds, so that the next start reads a snapshot.
        for filler in 0u8..20 {
            let filler = vec![round ^ filler; 8 << 10];
            world.broker.put_value("filler", Some(filler)).unwrap();
            world.settle();
        }
        world.kill_and_restart();
    }
    assert!(world.broker.delete_topic("orders").unwrap());
    world.kill_and_restart();
    assert!(world.broker.topic("orders").is_none());
    assert!(world.broker.topic(name(&there, "orders")).is_some());
}

#[test]
fn dead_letters_stay_in_their_namespace() {
    let world = World::new();
    let (here, there) = (Namespace::DEFAULT, Namespace::new("there"));
    for (namespace, body) in [(&here, "a"), (&there, "b")] {
        let topic = make(&world, namespace, "orders");
        publish(&world, &topic, body);
        reject_all(&topic);
        world.settle();
        let dead = world.broker.topic(name(namespace, "dead")).unwrap();
        assert_eq!(dead.message_count(), 1);
    }
}

#[test]
fn dead_messages_go_to_the_router_of_their_namespace() {
    let world = World::new();
    let (here, there) = (Namespace::DEFAULT, Namespace::new("there"));
    let told = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    for (at, namespace) in [&here, &there].into_iter().enumerate() {
        let told = told.clone();
        world.broker.route_dead(name(namespace, "dead"), move |_| {
            told[at].fetch_add(1, Ordering::Relaxed);
        });
    }
    let topic = make(&world, &there, "orders");
    publish(&world, &topic, "b");
    reject_all(&topic);
    assert_eq!(told[0].load(Ordering::Relaxed), 0);
    assert!(told[1].load(Ordering::Relaxed) > 0);
    assert!(world.broker.topic(name(&there, "dead")).is_none());
}
