//! Regression tests: each shows a bug that was found once.

use std::sync::Arc;

use crate::common::{World, bodies, consumer, consumer_with, poll, receive};
use cloverleaf_broker::{
    Broker, BrokerOptions, CatalogError, ConsumerOptions, ManualClock, StartAt,
    SubscriptionOptions, TopicOptions,
};
use cloverleaf_log::{BatchBuilder, Durability, Log, LogOptions, SimDisk};

#[test]
fn a_second_requeue_inside_a_run_comes_back() {
    let world = World::new();
    let sub = world.subscription("t", "ch");
    let c = consumer(&sub, 4);
    world.publish("t", &["1", "2", "3", "4"]);
    let got = receive(&c).unwrap();
    c.set_window(0);
    for g in &got {
        c.nack(g.id, 0).unwrap();
    }
    c.set_window(4);
    let got = receive(&c).unwrap();
    assert_eq!(got.len(), 4);
    c.nack(got[2].id, 0).unwrap();
    assert_eq!(bodies(&c), ["3"], "stats {:?}", sub.stats());
}

#[test]
fn a_requeue_after_a_timeout_comes_back() {
    let world = World::new();
    let sub = world.subscription("t", "ch");
    let c = consumer_with(
        &sub,
        10,
        ConsumerOptions {
            ack_wait_ms: Some(1000),
            ..Default::default()
        },
    );
    world.publish("t", &["1", "2", "3", "4"]);
    assert_eq!(bodies(&c).len(), 4);
    world.advance(1500);
    let got = receive(&c).unwrap();
    assert_eq!(got.len(), 4);
    c.nack(got[1].id, 0).unwrap();
    assert_eq!(bodies(&c), ["2"], "stats {:?}", sub.stats());
}

#[test]
fn a_delayed_publish_survives_a_clock_that_was_set_back() {
    let mut world = World::new();
    let topic = world.topic("t");
    let sub = world.subscription("t", "ch");
    drop(sub);
    let p = topic
        .publish_delayed(&world.batch(&["late"]), 5_000, Durability::Kernel)
        .unwrap();
    drop(p);
    drop(topic);
    world.settle();
    // The message is due: its lease becomes ready, and it is in flight or ready when the process
    // dies.
    world.clock.advance(6_000);
    world.broker.tick();
    world.broker.tick();
    world.clock = Arc::new(ManualClock::new(1_700_000_000_000 + 1_000));
    world.kill_and_restart();
    world.settle();
    for _ in 0..20 {
        world.advance(1_000);
    }
    let sub = world.subscription("t", "ch");
    let c = consumer(&sub, 10);
    let b = bodies(&c);
    assert!(b.iter().any(|b| b == "late"), "{b:?}");
}

#[test]
fn the_first_subscription_gets_what_is_being_written() {
    let disk = SimDisk::new();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let o = LogOptions {
        manual: true,
        disk_free_bytes_min: 0,
        journal_bytes: 64 << 10,
        inline_writes: false,
        ..Default::default()
    };
    let (log, rec) = Log::open(disk.mount(), o).unwrap();
    let broker = Broker::open(log.clone(), rec, BrokerOptions::default(), clock.clone()).unwrap();
    let topic = broker.topic_or_create("t", TopicOptions::default).unwrap();
    let mut b = BatchBuilder::with_capacity(100, 0);
    b.push(None, Some(b"a"), &[]);
    let p = topic.publish(b.finish(), Durability::Kernel).unwrap();
    let sub = topic
        .subscription_or_create("ch", SubscriptionOptions::default)
        .unwrap();
    log.step();
    assert!(matches!(poll(p), Some(Ok(()))));
    let c = consumer(&sub, 10);
    assert_eq!(bodies(&c), ["a"], "floor {:?}", sub.floor(0));
}

#[test]
fn the_gap_after_a_power_loss_counts_as_no_messages() {
    let mut world = World::new();
    world.publish("t", &["m"; 10]);
    world.log.step();
    world.settle();
    world.lose_power_and_restart(7);
    world.publish("t", &["n"; 5]);
    let kept = world.topic("t").depth();
    let sub = world.subscription_with(
        "t",
        "q",
        SubscriptionOptions {
            start: StartAt::Earliest,
            length_max: Some(100),
            ..Default::default()
        },
    );
    assert_eq!(sub.stats().depth, kept);
    let c = consumer(&sub, 100);
    assert_eq!(bodies(&c).len() as u64, kept);
}

#[test]
fn emptying_a_subscription_keeps_what_its_paused_topic_holds_back() {
    let world = World::new();
    let sub = world.subscription("t", "ch");
    world.publish("t", &["1"]);
    world.topic("t").pause().unwrap();
    world.publish("t", &["held"]);
    sub.discard_all();
    world.topic("t").unpause().unwrap();
    let c = consumer(&sub, 100);
    assert_eq!(bodies(&c), ["held"]);
}

#[test]
fn a_stale_handle_cannot_bring_a_topic_back() {
    let mut world = World::new();
    let sub = world.subscription("t", "ch");
    let topic = world.topic("t");
    topic.delete_subscription("ch").unwrap();
    let refused = sub.pause();
    assert!(matches!(
        refused,
        Err(CatalogError::SubscriptionDeleted { .. })
    ));
    world.broker.delete_topic("t").unwrap();
    assert!(matches!(
        topic.pause(),
        Err(CatalogError::TopicDeleted { .. })
    ));
    drop((sub, topic));
    world.settle();
    world.kill_and_restart();
    assert!(world.broker.topic("t").is_none(), "topic came back");
}

#[test]
fn a_stale_handle_cannot_bring_a_subscription_back() {
    let mut world = World::new();
    let sub = world.subscription("t", "ch");
    let topic = world.topic("t");
    topic.delete_subscription("ch").unwrap();
    let refused = sub.pause();
    assert!(matches!(
        refused,
        Err(CatalogError::SubscriptionDeleted { .. })
    ));
    drop((sub, topic));
    world.settle();
    world.kill_and_restart();
    assert!(
        world.topic("t").subscription("ch").is_none(),
        "subscription came back"
    );
}

#[test]
fn an_expired_backlog_costs_no_memory() {
    let world = World::new();
    let sub = world.subscription_with(
        "t",
        "ch",
        SubscriptionOptions {
            expires: true,
            ..Default::default()
        },
    );
    for _ in 0..2000 {
        world.publish_with_header("t", "x", b"cloverleaf-expires", &1u64.to_be_bytes());
    }
    let _c = consumer(&sub, 10);
    let stats = sub.stats();
    assert_eq!((stats.leases, stats.depth), (0, 0));
}

#[test]
fn a_dead_letter_that_cannot_be_written_blocks_no_other() {
    // The original is as large as allowed, so its dead letter is larger than a batch may be.
    let disk = SimDisk::new();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let o = LogOptions {
        manual: true,
        disk_free_bytes_min: 0,
        journal_bytes: 64 << 10,
        batch_bytes_max: 1000,
        ..Default::default()
    };
    let (log, rec) = Log::open(disk.mount(), o).unwrap();
    let broker = Broker::open(log.clone(), rec, BrokerOptions::default(), clock.clone()).unwrap();
    let topic = broker.topic_or_create("t", TopicOptions::default).unwrap();
    let so = || SubscriptionOptions {
        dead_letter: Some("dead".into()),
        ..Default::default()
    };
    let sub = topic.subscription_or_create("ch", so).unwrap();
    let c = consumer(&sub, 10);
    for body in [vec![b'x'; 900], b"small".to_vec()] {
        let mut b = BatchBuilder::with_capacity(100, 0);
        b.push(None, Some(&body), &[]);
        drop(topic.publish(b.finish(), Durability::Kernel).unwrap());
    }
    log.step();
    for g in receive(&c).unwrap() {
        c.reject(g.id).unwrap();
    }
    for _ in 0..50 {
        clock.advance(1000);
        log.step();
        let next = broker.tick();
        log.step();
        assert!(next > 0);
    }
    let n = broker.topic("dead").map_or(0, |t| t.message_count());
    assert_eq!(n, 1, "the small one should have its letter");
}

#[test]
fn a_long_backlog_that_no_filter_wants_is_stepped_over_in_pieces() {
    let world = World::new();
    let sub = world.subscription_with(
        "t",
        "ch",
        SubscriptionOptions {
            subjects: vec!["a.b".to_owned()],
            ..SubscriptionOptions::default()
        },
    );
    let body = "x".repeat(1_000);
    for _ in 0..40 {
        world.publish("t", &vec![body.as_str(); 100]);
    }
    let _consumer = consumer(&sub, 10);
    // 4 MB: more than one dispatch may step over.
    assert!(sub.floor(0).unwrap() < 4_000);
    for _ in 0..5 {
        world.settle();
    }
    assert_eq!(sub.floor(0), Some(4_000));
}

#[test]
fn the_journal_is_replaced_without_consumers() {
    let world = World::new();
    for round in 0..400 {
        world.topic(&format!("t{}", round % 7));
        world
            .broker
            .delete_topic(&format!("t{}", round % 7))
            .unwrap();
        world.advance(100);
    }
    world.advance(2_000);
    assert!(!world.log.journal().should_snapshot());
}

/// Requeued messages whose file was cut in the meantime do not block others.
#[test]
fn requeued_messages_that_were_cut_off_block_no_others() {
    for whole in 0..3 {
        let mut world = World::new();
        let topic = world.topic("t");
        let subscription = world.subscription("t", "s");
        for body in ["a", "b", "c"] {
            world.publish("t", &[body]);
        }
        let len = world.batch(&["a"]).bytes().len() as u64;
        world
            .log
            .opened_partition(topic.id(), 0)
            .unwrap()
            .seal_active();
        world.publish("t", &["d"]);
        world.settle();
        let reader = consumer(&subscription, 10);
        for got in receive(&reader).unwrap() {
            reader.nack(got.id, 100).unwrap();
        }
        world.advance(20);
        drop((reader, subscription, topic));
        let id = world.topic("t").id();
        world.disk.kill();
        let path = format!("topics/{id}/0/{:020}.log", 0);
        let mount = world.disk.mount();
        let file = mount.open(&path, cloverleaf_log::OpenMode::Existing);
        file.unwrap().set_len(whole * len + 10).unwrap();
        world.kill_and_restart();
        let reader = consumer(&world.subscription("t", "s"), 10);
        let mut came = Vec::new();
        for _ in 0..20 {
            world.advance(1_000);
            came.extend(bodies(&reader));
        }
        let expected = ["a", "b", "c"].into_iter().take(whole as usize);
        let expected: Vec<&str> = expected.chain(["d"]).collect();
        assert_eq!(came, expected, "{whole}");
    }
}
