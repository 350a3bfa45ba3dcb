//! Dead-lettered messages: their queues and their headers.

use crate::host_common::{World, persistent, receive, to_queue};
use cloverleaf_amqp::message::Message;
use cloverleaf_amqp::wire::{Array, Properties, Value, array_bytes};
use cloverleaf_log::Durability;

fn text(text: &str) -> Value<'_> {
    Value::String(text.as_bytes())
}

fn death(queue: &str, reason: &str, count: i64) -> (String, String, i64) {
    (queue.to_owned(), reason.to_owned(), count)
}

#[test]
fn a_rejected_message_goes_through_the_exchange_with_its_history() {
    let world = World::new();
    world.exchange("dlx", "topic");
    let work = world.queue_with("work", &[("x-dead-letter-exchange", text("dlx"))]);
    let dead = world.queue("dead");
    world.bind("dead", "dlx", "orders.*");
    let headers = [("mine", Value::I32(7)), ("x-death", text("forged"))];
    let properties = Properties {
        message_id: Some("m"),
        expiration: Some("60000"),
        ..persistent()
    };
    world.queue("other");
    world.exchange("in", "direct");
    world.bind("work", "in", "orders.new");
    world.publish_with("in", "orders.new", "body", &properties, &headers);
    let consumer = world.consumer(&work, 1);
    let got = receive(&consumer, "work");
    consumer.reject(got[0].id).unwrap();
    world.settle();
    let got = world.drain(&dead);
    assert_eq!(got.len(), 1);
    let got = &got[0];
    assert_eq!(
        (got.exchange.as_str(), got.key.as_str()),
        ("dlx", "orders.new")
    );
    assert_eq!(got.body, "body");
    assert_eq!(got.deaths(), [death("work", "rejected", 1)]);
    assert_eq!(got.text("x-first-death-queue"), Some("work"));
    assert_eq!(got.text("x-first-death-reason"), Some("rejected"));
    assert_eq!(got.text("x-first-death-exchange"), Some("in"));
    assert_eq!(got.text("x-last-death-queue"), Some("work"));
    assert_eq!(got.header("mine"), Some(Value::I32(7)));
    let properties = got.properties();
    assert_eq!(properties.expiration, None);
    assert_eq!(
        (properties.message_id, properties.delivery_mode),
        (Some("m"), Some(2))
    );
    let Some(Value::Array(deaths)) = got.header("x-death") else {
        panic!("no array");
    };
    let Some(Value::Table(entry)) = deaths.values().next() else {
        panic!("no table");
    };
    assert_eq!(entry.get("exchange"), Some(text("in")));
    assert_eq!(entry.get("original-expiration"), Some(text("60000")));
    assert_eq!(entry.get("time"), Some(Value::Timestamp(1_700_000_000)));
    let Some(Value::Array(keys)) = entry.get("routing-keys") else {
        panic!("no keys");
    };
    assert_eq!(keys.values().collect::<Vec<_>>(), [text("orders.new")]);
    assert_eq!(work.counts(), (0, 1));
}

#[test]
fn a_retry_through_a_queue_with_a_time_to_live_counts_each_round() {
    let world = World::new();
    let work = world.queue_with("work", &to_queue("wait", &[]));
    world.queue_with(
        "wait",
        &to_queue("work", &[("x-message-ttl", Value::I32(1_000))]),
    );
    world.publish_with("", "work", "job", &persistent(), &[]);
    let consumer = world.consumer(&work, 1);
    for round in 1..=3 {
        let got = receive(&consumer, "work");
        assert_eq!(got.len(), 1, "round {round}");
        consumer.reject(got[0].id).unwrap();
        world.settle();
        world.advance(1_001);
    }
    let got = receive(&consumer, "work");
    // With a rejection the cycle is allowed: the message goes round as often as it is rejected.
    let expected = [death("wait", "expired", 3), death("work", "rejected", 3)];
    assert_eq!(got[0].deaths(), expected);
    assert_eq!(got[0].text("x-first-death-queue"), Some("work"));
    assert_eq!(got[0].text("x-last-death-queue"), Some("wait"));
}

#[test]
fn a_cycle_without_a_rejection_ends() {
    let world = World::new();
    let ttl = ("x-message-ttl", Value::I32(100));
    let to = |key| to_queue(key, &[ttl]);
    let a = world.queue_with("a", &to("b"));
    let b = world.queue_with("b", &to("a"));
    world.publish("", "a", "round");
    world.advance(101);
    assert_eq!((a.counts().0, b.counts().0), (0, 1));
    world.advance(101);
    assert_eq!(
        (a.counts().0, b.counts().0),
        (0, 0),
        "dropped: it has been in `a` before"
    );
    // A queue that dead-letters into itself is a cycle, too.
    let own = world.queue_with("own", &to("own"));
    world.publish("", "own", "round");
    world.advance(101);
    assert_eq!(own.counts().0, 0);
}

#[test]
fn reasons_have_rabbitmqs_names() {
    let world = World::new();
    let dead = world.queue("dead");
    let fields = |more| to_queue("dead", &[more]);
    world.queue_with("short", &fields(("x-max-length", Value::I32(1))));
    world.publish("", "short", "first");
    world.publish("", "short", "second");
    world.settle();
    let got = world.drain(&dead);
    assert_eq!(got[0].body, "first");
    assert_eq!(got[0].deaths(), [death("short", "maxlen", 1)]);

    world.queue("timed");
    let timed = world.queue_with("fleeting", &fields(("x-max-length", Value::I32(9))));
    let properties = Properties {
        expiration: Some("50"),
        ..Properties::default()
    };
    world.publish_with("", "fleeting", "late", &properties, &[]);
    world.advance(51);
    world.drain(&timed);
    world.settle();
    assert_eq!(
        world.drain(&dead)[0].deaths(),
        [death("fleeting", "expired", 1)]
    );

    let quorum = [
        ("x-queue-type", text("quorum")),
        ("x-delivery-limit", Value::I32(1)),
    ];
    let limited = world.queue_with("limited", &to_queue("dead", &quorum));
    world.publish_with("", "limited", "poison", &persistent(), &[]);
    let consumer = world.consumer(&limited, 1);
    for attempt in 1..=2 {
        let got = receive(&consumer, "limited");
        assert_eq!(got[0].attempts, attempt);
        consumer.nack(got[0].id, 0).unwrap();
        world.settle();
    }
    assert!(receive(&consumer, "limited").is_empty());
    assert_eq!(
        world.drain(&dead)[0].deaths(),
        [death("limited", "delivery_limit", 1)]
    );

    let full = [
        ("x-max-length", Value::I32(0)),
        ("x-overflow", text("reject-publish-dlx")),
    ];
    let full = world.queue_with("full", &to_queue("dead", &full));
    let message = Message {
        exchange: "",
        routing_key: "full",
        properties: &[0, 0],
        bcc: &[],
        body: b"refused"[..].into(),
    };
    let published = world
        .host
        .dead_letter(
            &full,
            "maxlen",
            &message,
            1_700_000_000_000,
            Durability::Kernel,
        )
        .unwrap();
    assert!(published.is_some());
    world.settle();
    let got = world.drain(&dead);
    assert_eq!(
        (got[0].body.as_str(), got[0].deaths()),
        ("refused", vec![death("full", "maxlen", 1)])
    );
    let plain = world.queue("plain");
    let nowhere = world
        .host
        .dead_letter(&plain, "maxlen", &message, 0, Durability::Kernel);
    assert!(matches!(nowhere, Ok(None)));
}

#[test]
fn cc_is_followed_unless_the_queue_sets_a_routing_key() {
    let world = World::new();
    let keys = array_bytes(&[text("copy")]);
    let cc = [("CC", Value::Array(Array::check(&keys).unwrap()))];
    let (dead, copy) = (world.queue("dead"), world.queue("copy"));
    world.exchange("dlx", "direct");
    world.bind("dead", "dlx", "key");
    world.bind("copy", "dlx", "copy");
    let work = world.queue_with("work", &[("x-dead-letter-exchange", text("dlx"))]);
    let own = world.queue_with(
        "own",
        &[
            ("x-dead-letter-exchange", text("dlx")),
            ("x-dead-letter-routing-key", text("key")),
        ],
    );
    world.exchange("in", "fanout");
    world.bind("work", "in", "");
    world.bind("own", "in", "");
    for (queue, expected) in [(&work, 1), (&own, 0)] {
        world.publish_with("in", "key", "body", &Properties::default(), &cc);
        let consumer = world.consumer(queue, 1);
        let got = receive(&consumer, &queue.name);
        consumer.reject(got[0].id).unwrap();
        world.settle();
        let got = world.drain(&dead);
        assert_eq!(got.len(), 1);
        assert!(
            got[0].header("CC").is_some(),
            "kept, even if no queue matches"
        );
        assert_eq!(world.drain(&copy).len(), expected);
        drop(consumer);
        world.drain(&work);
        world.drain(&own);
    }
}

#[test]
fn cc_that_a_queue_has_replaced_is_not_followed_later() {
    let world = World::new();
    let more = array_bytes(&[text("copy")]);
    let cc = [("CC", Value::Array(Array::check(&more).unwrap()))];
    let copy = world.queue("copy");
    let end = world.queue("end");
    world.exchange("dlx", "direct");
    world.bind("copy", "dlx", "copy");
    world.bind("end", "dlx", "middle");
    let dlx = ("x-dead-letter-exchange", text("dlx"));
    let first = world.queue_with("first", &to_queue("middle", &[]));
    let middle = world.queue_with("middle", &[dlx]);
    world.publish_with("", "first", "body", &Properties::default(), &cc);
    world.drain(&copy);
    for queue in [&first, &middle] {
        let consumer = world.consumer(queue, 1);
        for got in receive(&consumer, &queue.name) {
            consumer.reject(got.id).unwrap();
        }
        world.settle();
    }
    let got = world.drain(&end);
    assert_eq!(got[0].key, "middle");
    let Some(Value::Array(entries)) = got[0].header("x-death") else {
        panic!("no array");
    };
    let keys = entries.values().map(|entry| match entry {
        Value::Table(entry) => match entry.get("routing-keys") {
            Some(Value::Array(keys)) => keys.values().count(),
            _ => 0,
        },
        _ => 0,
    });
    assert_eq!(keys.collect::<Vec<_>>(), [1, 2], "latest first");
    assert!(world.drain(&copy).is_empty());
}

#[test]
fn dead_messages_of_a_just_deleted_queue_still_arrive() {
    let world = World::new();
    let dead = world.queue("dead");
    let fields = to_queue("dead", &[]);
    let passing = world
        .declare("", &fields, |declare| declare.exclusive = true)
        .unwrap();
    world.publish("", &passing.name, "body");
    let consumer = world.consumer(&passing, 1);
    let got = receive(&consumer, &passing.name);
    consumer.reject(got[0].id).unwrap();
    world.broker.tick();
    world.log.step();
    drop(consumer);
    world.host.connection_closed(world.owner);
    world.settle();
    let got = world.drain(&dead);
    assert_eq!(got[0].deaths(), [death(&passing.name, "rejected", 1)]);
}

#[test]
fn without_an_exchange_or_a_queue_dead_messages_are_dropped() {
    let world = World::new();
    let work = world.queue_with("work", &[("x-dead-letter-exchange", text("none"))]);
    world.publish("", "work", "1");
    let consumer = world.consumer(&work, 1);
    let got = receive(&consumer, "work");
    consumer.reject(got[0].id).unwrap();
    world.settle();
    let stats = work.subscription.stats();
    assert_eq!((stats.depth, stats.in_flight), (0, 0));
    // The queue no longer keeps the message.
    assert_eq!(work.subscription.floor(0), Some(1));
}

#[test]
fn a_message_that_dies_before_a_crash_is_in_its_queue_or_where_it_was_routed() {
    let mut world = World::new();
    world.queue("dead");
    let fields = to_queue("dead", &[]);
    let work = world.queue_with("work", &fields);
    world.publish_with("", "work", "body", &persistent(), &[]);
    let consumer = world.consumer(&work, 1);
    let got = receive(&consumer, "work");
    consumer.reject(got[0].id).unwrap();
    for _ in 0..4 {
        // Acknowledgements are written to the journal every few milliseconds.
        world.clock.advance(20);
        world.broker.tick();
        world.log.step();
    }
    drop(consumer);
    // Killed before the router has seen the message.
    world.kill_and_restart();
    world.settle();
    let find = |world: &World, name: &str| world.host.queue(world.owner, name).unwrap();
    assert!(world.drain(&find(&world, "dead")).is_empty());
    let consumer = world.consumer(&find(&world, "work"), 1);
    let got = receive(&consumer, "work");
    consumer.reject(got[0].id).unwrap();
    world.settle();
    world.advance(20);
    drop(consumer);
    world.kill_and_restart();
    world.settle();
    let got = world.drain(&find(&world, "dead"));
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].deaths(), [death("work", "rejected", 1)]);
    assert_eq!(find(&world, "work").counts().0, 0);
}

#[test]
fn a_full_queue_that_refuses_takes_what_fits() {
    let world = World::new();
    let small = world.queue_with(
        "small",
        &[
            ("x-max-length", Value::I32(2)),
            ("x-overflow", text("reject-publish")),
        ],
    );
    let work = world.queue_with("work", &to_queue("small", &[]));
    for body in ["1", "2", "3"] {
        world.publish("", "work", body);
    }
    let consumer = world.consumer(&work, 10);
    for got in receive(&consumer, "work") {
        consumer.reject(got.id).unwrap();
    }
    world.settle();
    assert_eq!(world.bodies(&small), ["1", "2"]);
}

#[test]
fn many_dead_letters_arrive_in_order_and_once() {
    let world = World::new();
    let dead = world.queue("dead");
    let work = world.queue_with("work", &to_queue("dead", &[]));
    let bodies: Vec<String> = (0..500).map(|number| number.to_string()).collect();
    for body in &bodies {
        world.publish_with("", "work", body, &persistent(), &[]);
    }
    let consumer = world.consumer(&work, u32::MAX);
    let got = receive(&consumer, "work");
    assert_eq!(got.len(), 500);
    for got in got {
        consumer.reject(got.id).unwrap();
    }
    world.settle();
    world.advance(10);
    world.advance(10);
    assert_eq!(world.bodies(&dead), bodies);
}

#[test]
fn a_full_reject_publish_dlx_queue_dead_letters_what_it_refuses() {
    let world = World::new();
    let rest = world.queue("rest");
    let small = [
        ("x-max-length", Value::I32(1)),
        ("x-overflow", text("reject-publish-dlx")),
    ];
    let small = world.queue_with("small", &to_queue("rest", &small));
    let work = world.queue_with("work", &to_queue("small", &[]));
    for body in ["1", "2"] {
        world.publish_with("", "work", body, &persistent(), &[]);
    }
    let consumer = world.consumer(&work, 10);
    for got in receive(&consumer, "work") {
        consumer.reject(got.id).unwrap();
    }
    world.settle();
    assert_eq!(world.bodies(&small), ["1"]);
    let got = world.drain(&rest);
    let expected = [death("small", "maxlen", 1), death("work", "rejected", 1)];
    assert_eq!(
        (got[0].body.as_str(), got[0].deaths()),
        ("2", expected.to_vec())
    );
}

#[test]
fn a_time_to_live_of_zero_reaches_a_waiting_consumer() {
    let world = World::new();
    let queue = world.queue_with("q", &[("x-message-ttl", Value::I32(0))]);
    let consumer = world.consumer(&queue, 1);
    world.publish("", "q", "now");
    world.publish("", "q", "too late");
    assert_eq!(receive(&consumer, "q").len(), 1);
    world.advance(1);
    assert_eq!(queue.counts().0, 0);
}

#[test]
fn large_dead_letters_to_many_queues_are_stored_in_pieces() {
    let world = World::new();
    world.exchange("dlx", "fanout");
    let copies: Vec<_> = (0..40)
        .map(|number| {
            let name = format!("copy-{number}");
            let queue = world.queue(&name);
            world.bind(&name, "dlx", "");
            queue
        })
        .collect();
    let work = world.queue_with("work", &[("x-dead-letter-exchange", text("dlx"))]);
    let body = "x".repeat(60 << 10);
    for number in 0..5 {
        world.publish("", "work", &format!("{number}{body}"));
    }
    let consumer = world.consumer(&work, 10);
    let mut rejected = 0;
    for _ in 0..10 {
        for got in receive(&consumer, "work") {
            consumer.reject(got.id).unwrap();
            rejected += 1;
        }
        world.settle();
    }
    assert_eq!(rejected, 5);
    for copy in &copies {
        let consumer = world.consumer(copy, 10);
        let mut numbers = String::new();
        for _ in 0..10 {
            for got in receive(&consumer, &copy.name) {
                numbers.push_str(&got.body[..1]);
                consumer.ack(got.id).unwrap();
            }
            world.settle();
        }
        assert_eq!(numbers, "01234");
    }
}
