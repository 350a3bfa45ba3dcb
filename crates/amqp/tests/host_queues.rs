//! Queues: declared, used, deleted; with RabbitMQ's error texts.

use std::sync::Arc;

use crate::host_common::{World, receive, text};
use cloverleaf_amqp::exception::ReplyCode;
use cloverleaf_amqp::host::{DIRECT_REPLY_TO, HostOptions, SUBSCRIPTION};
use cloverleaf_amqp::wire::{Properties, Table, Value, method};
use cloverleaf_broker::{ConsumerOptions, SubscriptionOptions, TopicOptions};

#[test]
fn a_queue_is_a_topic_with_one_subscription() {
    let mut world = World::new();
    let queue = world.queue("jobs");
    assert!(Arc::ptr_eq(&world.queue("jobs"), &queue));
    assert_eq!(world.routed("", "jobs"), ["jobs"]);
    world.publish("", "jobs", "1");
    world.publish("", "jobs", "2");
    assert_eq!(queue.counts(), (2, 0));
    let topic = world.broker.topic("jobs").unwrap();
    assert!(topic.options().retention.consumed && !topic.is_ephemeral());
    assert_eq!(topic.subscriptions().len(), 1);
    world.kill_and_restart();
    let queue = world.host.queue(world.owner, "jobs").unwrap();
    assert_eq!(world.bodies(&queue), ["1", "2"]);
    assert_eq!(
        world.host.delete_queue(world.owner, "jobs", false, false),
        Ok(0)
    );
    assert!(queue.is_deleted() && world.broker.topic("jobs").is_none());
    assert_eq!(
        world.host.delete_queue(world.owner, "jobs", true, true),
        Ok(0)
    );
    assert!(world.routed("", "jobs").is_empty());
}

#[test]
fn a_second_declaration_says_the_same() {
    let world = World::new();
    let ttl = [("x-message-ttl", Value::I32(1_000))];
    world.queue_with("q", &ttl);
    let q = "PRECONDITION_FAILED - inequivalent arg";
    assert_eq!(
        text(world.declare("q", &ttl, |declare| declare.durable = false)),
        format!("{q} 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'")
    );
    assert_eq!(
        text(world.declare("q", &ttl, |declare| declare.auto_delete = true)),
        format!(
            "{q} 'auto_delete' for queue 'q' in vhost '/': received 'true' but current is 'false'"
        )
    );
    assert_eq!(
        text(world.declare("q", &[("x-message-ttl", Value::I64(5))], |_| {})),
        format!(
            "{q} 'x-message-ttl' for queue 'q' in vhost '/': received '5' but current is '1000'"
        )
    );
    assert_eq!(
        text(world.declare("q", &[], |_| {})),
        format!(
            "{q} 'x-message-ttl' for queue 'q' in vhost '/': received none but current is the \
             value '1000' of type 'signedint'"
        )
    );
    let quorum = [("x-queue-type", Value::String(b"quorum")), ttl[0]];
    assert_eq!(
        text(world.declare("q", &quorum, |_| {})),
        format!(
            "{q} 'x-queue-type' for queue 'q' in vhost '/': received 'quorum' but current is \
             'classic'"
        )
    );
    // Another integer type is the same value, and a default may be given explicitly.
    let same = [
        ("x-queue-type", Value::String(b"classic")),
        ("x-message-ttl", Value::I64(1_000)),
    ];
    world.queue_with("q", &same);
    // A passive declaration only checks that the queue exists.
    world
        .declare("q", &[], |declare| declare.passive = true)
        .unwrap();
    assert_eq!(
        text(world.declare("none", &[], |declare| declare.passive = true)),
        "NOT_FOUND - no queue 'none' in vhost '/'"
    );
}

#[test]
fn exclusive_queues_belong_to_their_connection_and_end_with_it() {
    let world = World::new();
    let (mine, other) = (world.host.owner(), world.host.owner());
    let exclusive =
        |owner, name: &str| world.declare_as(owner, name, &[], |declare| declare.exclusive = true);
    let queue = exclusive(mine, "q").unwrap();
    exclusive(mine, "q").unwrap();
    assert!(!queue.durable);
    let locked = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost \
                  '/'. It could be originally declared on another connection or the exclusive \
                  property value does not match that of the original declaration.";
    let host = &world.host;
    let none = Table::default();
    assert_eq!(text(exclusive(other, "q")), locked);
    assert_eq!(text(world.declare_as(mine, "q", &[], |_| {})), locked);
    assert_eq!(text(host.queue(other, "q")), locked);
    assert_eq!(text(host.purge_queue(other, "q")), locked);
    assert_eq!(text(host.delete_queue(other, "q", false, false)), locked);
    assert_eq!(
        text(host.bind_queue(other, "q", "amq.fanout", "", none)),
        locked
    );
    let consume = |owner| host.consume(owner, &queue, ConsumerOptions::default());
    assert_eq!(text(consume(other)), locked);
    let passive = world.declare_as(other, "q", &[], |declare| declare.passive = true);
    assert_eq!(text(passive), locked);
    // Every connection may publish to it.
    world.publish("", "q", "1");
    let consumer = consume(mine).unwrap();
    consumer.set_window(9);
    assert_eq!(receive(&consumer, "q").len(), 1);
    host.bind_queue(mine, "q", "amq.fanout", "", none).unwrap();
    let generation = host.generation();
    host.connection_closed(other);
    assert!(!queue.is_deleted());
    host.connection_closed(mine);
    assert!(queue.is_deleted() && host.generation() > generation);
    assert!(host.bindings().is_empty());
    assert!(world.broker.topics().is_empty());
    // Declared without `exclusive` it is an ordinary queue.
    world.declare_as(other, "q", &[], |_| {}).unwrap();
}

#[test]
fn names_are_generated_and_reserved() {
    let world = World::new();
    let first = world
        .declare("", &[], |declare| declare.durable = false)
        .unwrap();
    let second = world
        .declare("", &[], |declare| declare.exclusive = true)
        .unwrap();
    assert!(first.name.starts_with("amq.gen-") && first.name != second.name);
    assert!(world.broker.topics().is_empty(), "hidden");
    assert_eq!(world.routed("", &first.name), [first.name.to_string()]);
    assert_eq!(
        text(world.declare("amq.mine", &[], |_| {})),
        "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"
    );
    for private in ["$amqp/dead", "$schedule"] {
        assert_eq!(
            world.declare(private, &[], |_| {}).unwrap_err().code,
            ReplyCode::AccessRefused
        );
    }
    let bad = world.declare("a\tb", &[], |_| {}).unwrap_err();
    assert_eq!(bad.code, ReplyCode::PreconditionFailed);
    assert_eq!(&*world.queue("a\r\nb").name, "ab");
    assert_eq!(
        text(world.declare(DIRECT_REPLY_TO, &[], |_| {})),
        "NOT_FOUND - no queue 'amq.rabbitmq.reply-to' in vhost '/'"
    );
    let reply = world.host.reply_queue(world.owner).unwrap();
    let other = world.host.owner();
    let found = world.declare_as(other, &reply.name, &[], |_| {}).unwrap();
    assert!(Arc::ptr_eq(&found, &reply));
    assert_eq!(world.routed("", &reply.name).len(), 1);
    let refused = world
        .host
        .bind_queue(other, &reply.name, "amq.topic", "", Table::default());
    assert_eq!(refused.unwrap_err().code, ReplyCode::AccessRefused);
    world.host.connection_closed(world.owner);
    assert!(world.routed("", &reply.name).is_empty());
}

#[test]
fn a_server_named_queue_can_be_durable() {
    let mut world = World::new();
    let name = world.declare("", &[], |_| {}).unwrap().name.clone();
    world.bind(&name, "amq.direct", "k");
    world.publish("amq.direct", "k", "1");
    assert!(world.broker.topics().is_empty());
    world.kill_and_restart();
    let queue = world.host.queue(world.owner, &name).unwrap();
    assert_eq!(world.routed("amq.direct", "k"), [name.to_string()]);
    assert_eq!(world.bodies(&queue), ["1"]);
}

#[test]
fn deletion_asks_whether_a_queue_is_used_or_has_messages() {
    let world = World::new();
    let queue = world.queue("q");
    world.publish("", "q", "1");
    let delete = |unused, empty| world.host.delete_queue(world.owner, "q", unused, empty);
    assert_eq!(
        text(delete(false, true)),
        "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"
    );
    let consumer = world.consumer(&queue, 0);
    assert_eq!(
        text(delete(true, false)),
        "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"
    );
    drop(consumer);
    assert_eq!(delete(true, false), Ok(1));
    let refused = world
        .host
        .consume(world.owner, &queue, ConsumerOptions::default());
    assert_eq!(text(refused), "NOT_FOUND - no queue 'q' in vhost '/'");
}

#[test]
fn a_purge_keeps_unacknowledged_messages() {
    let world = World::new();
    let queue = world.queue("q");
    for body in ["1", "2", "3", "4"] {
        world.publish("", "q", body);
    }
    let consumer = world.consumer(&queue, 2);
    let held = receive(&consumer, "q");
    assert_eq!(held.len(), 2);
    consumer.set_window(0);
    assert!(consumer.nack(held[1].id, 0).is_ok());
    // One requeued message, and two that were never delivered.
    assert_eq!(world.host.purge_queue(world.owner, "q"), Ok(3));
    assert_eq!(queue.counts().0, 0);
    world.publish("", "q", "5");
    drop(consumer);
    assert_eq!(world.bodies(&queue), ["1", "5"]);
}

#[test]
fn auto_delete_queues_are_deleted_with_their_last_consumer() {
    let world = World::new();
    let auto = |name: &str| {
        let change = |declare: &mut cloverleaf_amqp::wire::method::QueueDeclare<'_>| {
            declare.auto_delete = true;
        };
        world.declare(name, &[], change).unwrap()
    };
    let queue = auto("q");
    world.bind("q", "amq.topic", "#");
    // A queue that never had a consumer stays.
    world.host.consumer_left(&queue);
    let (first, second) = (world.consumer(&queue, 1), world.consumer(&queue, 1));
    drop(first);
    world.host.consumer_left(&queue);
    assert!(!queue.is_deleted());
    drop(second);
    world.host.consumer_left(&queue);
    assert!(queue.is_deleted());
    assert!(world.routed("amq.topic", "x").is_empty());
    // A pull consumer of `basic.get` does not count as a consumer.
    let queue = auto("r");
    let pull = ConsumerOptions {
        pull: true,
        ..ConsumerOptions::default()
    };
    drop(world.host.consume(world.owner, &queue, pull).unwrap());
    world.host.consumer_left(&queue);
    assert!(!queue.is_deleted());
}

/// Makes each write to the journal fail until its next snapshot.
fn break_the_journal(world: &World) {
    world.faults.set(|faults| faults.write_after = Some(0));
}

#[test]
fn a_queue_that_cannot_be_deleted_is_deleted_later() {
    let world = World::new();
    let exclusive = |declare: &mut method::QueueDeclare<'_>| declare.exclusive = true;
    let auto_delete = |declare: &mut method::QueueDeclare<'_>| declare.auto_delete = true;
    let owner = world.host.owner();
    let owned = world.declare_as(owner, "owned", &[], exclusive).unwrap();
    let unused = world.declare("unused", &[], auto_delete).unwrap();
    let wanted = world.declare("wanted", &[], auto_delete).unwrap();
    let leave = |queue| {
        drop(world.consumer(queue, 1));
        world.host.consumer_left(queue);
    };
    break_the_journal(&world);
    world.host.connection_closed(owner);
    for _ in 0..3 {
        leave(&unused);
        leave(&wanted);
    }
    // Neither deleted, nor usable by another connection meanwhile.
    assert!(!owned.is_deleted() && !unused.is_deleted() && !wanted.is_deleted());
    let again = world.declare("owned", &[], |_| {});
    assert_eq!(again.unwrap_err().code, ReplyCode::ResourceLocked);
    // This queue has a consumer again before the deletion is retried.
    let consumer = world.consumer(&wanted, 1);
    world.broker.tick();
    assert!(!owned.is_deleted(), "deleted without the router");
    world.advance(1_000);
    assert!(owned.is_deleted() && unused.is_deleted() && !wanted.is_deleted());
    world.declare("owned", &[], |_| {}).unwrap();
    // A second postponed deletion works like the first.
    break_the_journal(&world);
    drop(consumer);
    world.host.consumer_left(&wanted);
    assert!(!wanted.is_deleted());
    world.settle();
    world.advance(1_000);
    assert!(wanted.is_deleted());
    world.advance(1_000);
    let looks_again_ms = world.host.router_tick().unwrap();
    let in_ms = looks_again_ms - world.broker.now_ms();
    assert!(in_ms > 60_000, "a retry is still scheduled: {in_ms} ms");
}

#[test]
fn unused_queues_expire() {
    let world = World::new();
    let expires = [("x-expires", Value::I32(1_000))];
    let queue = world.queue_with("q", &expires);
    world.advance(900);
    world.host.touch(&queue);
    world.advance(900);
    assert!(!queue.is_deleted(), "it was touched");
    let consumer = world.consumer(&queue, 1);
    world.advance(5_000);
    assert!(!queue.is_deleted(), "it has a consumer");
    drop(consumer);
    world.host.consumer_left(&queue);
    world.advance(999);
    assert!(!queue.is_deleted(), "its expiry was restarted");
    world.queue_with("q", &expires);
    world.advance(999);
    assert!(!queue.is_deleted(), "it was declared again");
    world.advance(1);
    assert!(queue.is_deleted());
    assert!(world.broker.topic("q").is_none());
}

#[test]
fn exclusive_consumers() {
    let world = World::new();
    let queue = world.queue("q");
    let exclusive = || ConsumerOptions {
        exclusive: true,
        ..ConsumerOptions::default()
    };
    let first = world
        .host
        .consume(world.owner, &queue, exclusive())
        .unwrap();
    let in_use = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use";
    let consume = |options| world.host.consume(world.owner, &queue, options);
    assert_eq!(text(consume(ConsumerOptions::default())), in_use);
    drop(first);
    let first = consume(ConsumerOptions::default()).unwrap();
    assert_eq!(text(consume(exclusive())), in_use);
    drop(first);
    let single = world.queue_with("s", &[("x-single-active-consumer", Value::Bool(true))]);
    let refused = world.host.consume(world.owner, &single, exclusive());
    assert_eq!(text(refused), in_use.replace("'q'", "'s'"));
}

#[test]
fn arguments_reach_the_engine() {
    let world = World::new();
    let queue = world.queue_with(
        "q",
        &[
            ("x-max-priority", Value::U8(3)),
            ("x-dead-letter-exchange", Value::String(b"dlx")),
            ("x-max-length", Value::I32(7)),
        ],
    );
    assert_eq!(queue.topic.partition_count(), 4);
    assert_eq!(queue.partition(None), 0);
    assert_eq!(queue.partition(Some(200)), 3);
    for (priority, body) in [(0, "low"), (3, "high"), (1, "middle")] {
        let properties = Properties {
            priority: Some(priority),
            ..Properties::default()
        };
        world.publish_with("", "q", body, &properties, &[]);
    }
    assert_eq!(world.bodies(&queue), ["high", "middle", "low"]);
    let quorum = ("x-queue-type", Value::String(b"quorum"));
    let queue = world.queue_with("quorum", &[quorum, ("x-delivery-limit", Value::I32(2))]);
    assert!(queue.counts_deliveries);
    assert_eq!(queue.subscription.options().attempts_max, 3);
    for (property, change) in [
        ("auto-delete", (true, false, true)),
        ("non-durable", (false, false, false)),
        ("exclusive-owner", (false, true, true)),
    ] {
        let refused = world.declare("other", &[quorum], |declare| {
            (declare.auto_delete, declare.exclusive, declare.durable) = change;
        });
        assert_eq!(
            text(refused),
            format!(
                "PRECONDITION_FAILED - invalid property '{property}' for queue 'other' in vhost '/'"
            )
        );
    }
    assert_eq!(
        text(world.declare(
            "other",
            &[("x-dead-letter-exchange", Value::Bool(true))],
            |_| {}
        )),
        "PRECONDITION_FAILED - invalid type 'bool' for arg 'x-dead-letter-exchange' in queue \
         'other' in vhost '/'"
    );
}

#[test]
fn a_topic_of_another_protocol_becomes_a_queue_and_outlives_it() {
    let mut world = World::new();
    let topic = world
        .broker
        .topic_or_create("orders", TopicOptions::default)
        .unwrap();
    let archive = || SubscriptionOptions::default();
    topic.subscription_or_create("archive", archive).unwrap();
    let mut builder = cloverleaf_log::BatchBuilder::with_capacity(64, 1);
    builder.push(None, Some(b"before"), &[]);
    topic
        .publish(builder.finish(), cloverleaf_log::Durability::Disk)
        .unwrap();
    world.log.step();
    assert_eq!(
        text(world.declare("orders", &[], |declare| declare.passive = true)),
        "NOT_FOUND - no queue 'orders' in vhost '/'"
    );
    assert!(world.routed("", "orders").is_empty());
    let queue = world.queue_with("orders", &[("x-max-priority", Value::U8(1))]);
    assert_eq!(topic.partition_count(), 2);
    world.publish("", "orders", "after");
    world.kill_and_restart();
    drop(queue);
    let queue = world.host.queue(world.owner, "orders").unwrap();
    assert_eq!(queue.arguments.priority_max, Some(1));
    assert_eq!(world.bodies(&queue), ["before", "after"]);
    world
        .host
        .delete_queue(world.owner, "orders", false, false)
        .unwrap();
    let topic = world.broker.topic("orders").unwrap();
    assert!(topic.subscription(SUBSCRIPTION).is_none() && topic.subscription("archive").is_some());
    world.kill_and_restart();
    assert!(world.host.queues().is_empty());
}

#[test]
fn a_topic_that_others_use_outlives_its_queue() {
    let world = World::new();
    let queue = world.queue("q");
    queue
        .topic
        .subscription_or_create("nsq", SubscriptionOptions::default)
        .unwrap();
    world
        .host
        .delete_queue(world.owner, "q", false, false)
        .unwrap();
    assert!(world.broker.topic("q").is_some());
    assert!(world.host.queues().is_empty());
    // Declared again, the queue uses the old topic.
    assert!(Arc::ptr_eq(&world.queue("q").topic, &queue.topic));
}

#[test]
fn a_topic_deleted_by_another_protocol_ends_its_queue() {
    let world = World::new();
    for name in ["by topic", "by subscription"] {
        world.queue(name);
        world.bind(name, "amq.fanout", "");
    }
    world.settle();
    let generation = world.host.generation();
    world.broker.delete_topic("by topic").unwrap();
    assert!(world.routed("", "by topic").is_empty(), "at once");
    let topic = world.broker.topic("by subscription").unwrap();
    topic.delete_subscription(SUBSCRIPTION).unwrap();
    world.advance(1_000);
    assert!(world.host.generation() > generation);
    assert!(world.host.queues().is_empty() && world.host.bindings().is_empty());
    assert!(topic.options().settings.is_empty());
    // A new queue with this name has none of the old bindings.
    world.queue("by topic");
    assert!(world.routed("amq.fanout", "").is_empty());
}

#[test]
fn a_topic_recreated_by_another_protocol_stays() {
    let world = World::new();
    let made_anew = |name: &str| {
        world.queue(name);
        world.settle();
        let topic = world.broker.topic(name).unwrap();
        topic.delete_subscription(SUBSCRIPTION).unwrap();
        let options = SubscriptionOptions::default;
        topic.subscription_or_create(SUBSCRIPTION, options).unwrap();
        topic
    };
    // Another protocol creates a new subscription of the queue's name, before the queue is deleted
    // in one case, and before the router's scan in the other.
    let topics = ["deleted", "found out"].map(made_anew);
    let deleted = world
        .host
        .delete_queue(world.owner, "deleted", false, false);
    assert_eq!(deleted, Ok(0));
    world.advance(1_000);
    assert!(world.host.queues().is_empty());
    for topic in topics {
        assert!(!topic.is_deleted() && topic.subscription(SUBSCRIPTION).is_some());
        assert!(topic.options().settings.is_empty());
    }
    // Another protocol creates a topic of the deleted one's name.
    let queue = world.queue("q");
    world.broker.delete_topic("q").unwrap();
    let made = world.broker.topic_or_create("q", TopicOptions::default);
    assert_eq!(
        world.broker.delete_topic_if(&queue.topic, || true),
        Ok(false)
    );
    world.advance(1_000);
    assert!(world.host.queues().is_empty() && !made.unwrap().is_deleted());
}

#[test]
fn the_end_of_the_broker_deletes_nothing() {
    let mut world = World::new();
    world.queue("q");
    world.bind("q", "amq.fanout", "");
    world.broker.close();
    world.clock.advance(10_000);
    world.host.router_tick();
    world.host.close();
    assert_eq!(world.host.router_tick(), None);
    world.kill_and_restart();
    assert_eq!(world.routed("amq.fanout", ""), ["q"]);
}

#[test]
fn definitions_are_bounded() {
    let world = World::with(HostOptions {
        definition_bytes_max: 5_000,
    });
    for round in 0..3 {
        let mut declared = 0;
        while world.declare(&format!("q{declared}"), &[], |_| {}).is_ok() {
            declared += 1;
        }
        assert_eq!(
            declared, 9,
            "round {round}: deleted definitions do not count"
        );
        let refused = world
            .host
            .bind_queue(world.owner, "q0", "amq.topic", "#", Table::default());
        assert_eq!(refused.unwrap_err().code, ReplyCode::PreconditionFailed);
        for number in 0..declared {
            let name = format!("q{number}");
            world
                .host
                .delete_queue(world.owner, &name, false, false)
                .unwrap();
        }
        world.queue("a");
        world.bind("a", "amq.topic", "#");
        world.exchange("x", "fanout");
        world.host.delete_exchange("x", false).unwrap();
        world
            .host
            .delete_queue(world.owner, "a", false, false)
            .unwrap();
    }
}

#[test]
fn levels_of_priority_are_bounded_for_all_queues_together() {
    let world = World::with(HostOptions {
        definition_bytes_max: 16 << 20,
    });
    let levels = [("x-max-priority", Value::I32(255))];
    let declare = |number: u32| world.declare(&format!("p{number}"), &levels, |_| {});
    for _ in 0..2 {
        let declared = (0..).take_while(|number| declare(*number).is_ok()).count();
        assert_eq!(declared, 4, "1,024 levels are 16 MiB");
        // Queues without priorities are still accepted.
        world.queue("plain");
        for number in 0..4 {
            let name = format!("p{number}");
            let deleted = world.host.delete_queue(world.owner, &name, false, false);
            deleted.unwrap();
        }
    }
}
