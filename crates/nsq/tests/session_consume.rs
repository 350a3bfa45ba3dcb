//! SUB and a consumer's life through a session: windows, timeouts, requeues, the end.

use crate::common::{Frame, World, response, sized};
use cloverleaf_nsq::SessionOptions;
use cloverleaf_session::Session as _;

fn fin(id: &str) -> Vec<u8> {
    format!("FIN {id}\n").into_bytes()
}

#[test]
fn ready_bounds_what_is_in_flight() {
    let world = World::new();
    world.publish("t", &["1", "2", "3", "4"]);
    let mut consumer = world.subscribe("t", "ch", 2);
    let messages = consumer.messages();
    assert_eq!(messages.len(), 2);
    consumer.send(&fin(&messages[0].id));
    assert_eq!(consumer.bodies(), ["3"]);
    consumer.send(b"RDY 0\n");
    consumer.send(&fin(&messages[1].id));
    assert_eq!(consumer.bodies(), [""; 0]);
    consumer.send(b"RDY\n");
    assert_eq!(
        consumer.bodies(),
        [""; 0],
        "RDY without a count is 1, and one is in flight"
    );
    consumer.send(&fin("0000000000000002"));
    assert_eq!(consumer.bodies(), ["4"]);
    let client = &world.clients.list()[0];
    assert_eq!(client.finish_count.get(), 3);
    assert_eq!(client.message_count.get(), 4);
    assert_eq!(client.in_flight_count.get(), 1);
    assert_eq!(client.ready_count.get(), 1);
}

#[test]
fn ready_counts_are_checked() {
    let options = SessionOptions {
        rdy_count_max: 50,
        ..SessionOptions::default()
    };
    let world = World::with(options);
    for (count, expect) in [
        ("51", "E_INVALID RDY count 51 out of range 0-50"),
        ("x1", "E_INVALID RDY could not parse count x1"),
        ("-1", "E_INVALID RDY could not parse count -1"),
        (
            "18446744073709551615",
            "E_INVALID RDY count -1 out of range 0-50",
        ),
    ] {
        let mut consumer = world.connect();
        consumer.subscribe("t", "ch");
        consumer.send(format!("RDY {count}\n").as_bytes());
        consumer.expect_fatal(expect);
    }
    let mut consumer = world.connect();
    consumer.subscribe("t", "ch");
    consumer.send(b"RDY 50\n");
    assert!(!consumer.session.is_ended());
}

#[test]
fn a_message_can_be_finished_once() {
    let world = World::new();
    world.publish("t", &["1"]);
    let mut consumer = world.subscribe("t", "ch", 1);
    let id = consumer.messages()[0].id.clone();
    let mut other = world.subscribe("t", "ch", 1);
    let gone = format!("E_FIN_FAILED FIN {id} failed ID not in flight");
    other.send(&fin(&id));
    other.expect_error(&gone);
    consumer.send(&fin(&id));
    consumer.expect(&[]);
    consumer.send(&fin(&id));
    consumer.expect_error(&gone);
    consumer.send(b"FIN short\n");
    consumer.expect_fatal("E_INVALID invalid message ID");
    other.send(b"FIN zzzzzzzzzzzzzzzz\n");
    other.expect_error("E_FIN_FAILED FIN zzzzzzzzzzzzzzzz failed ID not in flight");
}

#[test]
fn a_consumer_may_publish_to_its_own_topic_and_finish_what_it_does_not_have() {
    let world = World::new();
    let mut peer = world.subscribe("t", "ch", 1);
    let unknown = "0000000000000007";
    let publish = |body: &[u8]| sized("PUB t\n", body);
    // All in one read, while the consumer waits for messages: the error keeps its place among the
    // answers.
    peer.send(&[publish(b"1"), fin(unknown), publish(b"2")].concat());
    let ok = || Frame::Response("OK".into());
    let failed = format!("E_FIN_FAILED FIN {unknown} failed ID not in flight");
    let frames = peer.frames();
    assert_eq!(frames[..3], [ok(), Frame::Error(failed), ok()]);
    assert!(matches!(&frames[3..], [Frame::Message(message)] if message.body == "1"));
}

#[test]
fn a_message_that_is_not_finished_in_time_comes_again() {
    let world = World::new();
    world.publish("t", &["1"]);
    let mut consumer = world.connect();
    consumer.identify(r#"{"msg_timeout":1000}"#);
    consumer.subscribe("t", "ch");
    consumer.send(b"RDY 1\n");
    let first = consumer.messages();
    world.advance(900);
    consumer.pump();
    assert!(consumer.messages().is_empty());
    world.advance(200);
    consumer.pump();
    let again = consumer.messages();
    assert_eq!((&again[0].id, again[0].attempts), (&first[0].id, 2));
    assert_eq!(world.channel("t", "ch").timed_out, 1);
    // Telemetry counts the timeout; the late FIN below shows that the work was done nevertheless.
    let seen = || {
        let snapshot = world.registry.snapshot(world.now().us, |_| None);
        snapshot.connections[0].counters
    };
    assert_eq!((seen().timeouts, seen().acks_late), (1, 0));
    world.advance(300);
    consumer.send(&fin(&first[0].id));
    world.advance(500);
    consumer.send(&fin(&again[0].id));
    assert_eq!((seen().acks, seen().acks_late), (1, 1));
    // Two FINs for one message: so the first one answers the first delivery, 1.4 s after it. It
    // settled the lease of the second delivery, whose deadline had not passed.
    let snapshot = world.registry.snapshot(world.now().us, |_| None);
    let held = &snapshot.connections[0].histograms.overdue_ack_us;
    assert_eq!((held.count(), held.sum()), (1, 1_400_000));
}

#[test]
fn a_message_that_was_lost_and_is_finished_in_time_when_it_comes_again_is_not_late() {
    let world = World::new();
    world.publish("t", &["1"]);
    let mut consumer = world.connect();
    consumer.identify(r#"{"msg_timeout":1000}"#);
    consumer.subscribe("t", "ch");
    consumer.send(b"RDY 1\n");
    assert_eq!(consumer.messages().len(), 1);
    world.advance(1_100);
    consumer.pump();
    let again = consumer.messages();
    world.advance(300);
    consumer.send(&fin(&again[0].id));
    let snapshot = world.registry.snapshot(world.now().us, |_| None);
    let seen = &snapshot.connections[0];
    assert_eq!((seen.counters.acks, seen.counters.acks_late), (1, 0));
    assert!(seen.histograms.overdue_ack_us.is_empty());
}

#[test]
fn deliveries_are_coalesced_while_half_of_ready_is_in_flight() {
    let world = World::new();
    let mut consumer = world.subscribe("t", "ch", 40);
    world.publish("t", &["m"; 20]);
    consumer.pump();
    let first = consumer.messages();
    assert_eq!(first.len(), 20);
    world.publish("t", &["held"]);
    consumer.pump();
    assert_eq!(consumer.bodies(), [""; 0]);
    let due_us = consumer.session.next_due_us();
    assert!(due_us > world.now().us && due_us <= world.now().us + 1_000);
    world.advance(1);
    consumer.pump();
    assert_eq!(consumer.bodies(), ["held"]);
    // With less than half of RDY in flight, nothing is held back.
    for message in &first[..5] {
        consumer.send(&fin(&message.id));
    }
    world.publish("t", &["at once"]);
    consumer.pump();
    assert_eq!(consumer.bodies(), ["at once"]);
}

#[test]
fn closing_ends_the_wait_of_held_deliveries() {
    let world = World::new();
    let mut consumer = world.subscribe("t", "ch", 40);
    world.publish("t", &["m"; 30]);
    consumer.pump();
    assert_eq!(consumer.messages().len(), 30);
    world.publish("t", &["held"]);
    consumer.pump();
    consumer.send(b"CLS\n");
    consumer.expect(&[response("CLOSE_WAIT")]);
    assert!(consumer.session.next_due_us() > world.now().us + 1_000);
    let mut other = world.subscribe("t", "ch", 40);
    assert_eq!(other.bodies(), ["held"]);
}

#[test]
fn touch_gives_more_time_up_to_the_limit() {
    let options = SessionOptions {
        msg_timeout_ms_max: 2500,
        ..SessionOptions::default()
    };
    let world = World::with(options);
    world.publish("t", &["1"]);
    let mut consumer = world.connect();
    consumer.identify(r#"{"msg_timeout":1000}"#);
    consumer.subscribe("t", "ch");
    consumer.send(b"RDY 1\n");
    let id = consumer.messages()[0].id.clone();
    for _ in 0..3 {
        world.advance(800);
        consumer.send(format!("TOUCH {id}\n").as_bytes());
        consumer.expect(&[]);
    }
    world.advance(200);
    consumer.pump();
    assert_eq!(
        consumer.messages()[0].attempts,
        2,
        "the limit is 2.5 s after the delivery"
    );
    let lost = "00000000000000aa";
    consumer.send(format!("TOUCH {lost}\n").as_bytes());
    consumer.expect_error("E_TOUCH_FAILED TOUCH 00000000000000aa failed ID not in flight");
}

#[test]
fn a_requeued_message_comes_again_at_once_or_later() {
    let world = World::new();
    world.publish("t", &["1"]);
    let mut consumer = world.subscribe("t", "ch", 1);
    let id = consumer.messages()[0].id.clone();
    consumer.send(format!("REQ {id} 0\n").as_bytes());
    assert_eq!(consumer.messages()[0].attempts, 2);
    consumer.send(format!("REQ {id} 2000\n").as_bytes());
    assert!(consumer.messages().is_empty());
    assert_eq!(world.channel("t", "ch").delayed, 1);
    world.advance(2100);
    consumer.pump();
    assert_eq!(consumer.messages()[0].attempts, 3);
    consumer.send(&fin(&id));
    consumer.send(format!("REQ {id} 0\n").as_bytes());
    consumer.expect_error(&format!("E_REQ_FAILED REQ {id} failed ID not in flight"));
    assert_eq!(world.clients.list()[0].requeue_count.get(), 2);
}

#[test]
fn a_closing_consumer_gets_nothing_and_can_still_finish() {
    let world = World::new();
    world.publish("t", &["1", "2"]);
    let mut consumer = world.subscribe("t", "ch", 1);
    let id = consumer.messages()[0].id.clone();
    consumer.send(b"CLS\n");
    consumer.expect(&[response("CLOSE_WAIT")]);
    // After CLS the count of an RDY is not even parsed.
    consumer.send(b"RDY x\nRDY 10\n");
    consumer.send(&fin(&id));
    consumer.expect(&[]);
    assert_eq!(world.channel("t", "ch").depth, 1);
    consumer.send(b"CLS\n");
    consumer.expect_fatal("E_INVALID cannot CLS in current state");
}

#[test]
fn unsent_messages_of_a_closing_consumer_are_requeued() {
    let world = World::new();
    let mut consumer = world.subscribe("t", "ch", 100);
    consumer.expect(&[]);
    world.publish("t", &["1", "2", "3"]);
    consumer.feed(b"CLS\n");
    consumer.pump();
    consumer.expect(&[response("CLOSE_WAIT")]);
    let mut other = world.subscribe("t", "ch", 100);
    assert_eq!(other.bodies(), ["1", "2", "3"]);
}

#[test]
fn a_lost_consumers_messages_go_to_others() {
    let world = World::new();
    world.publish("t", &["1", "2"]);
    let mut consumer = world.subscribe("t", "ch", 10);
    assert_eq!(consumer.bodies().len(), 2);
    drop(consumer);
    let mut other = world.subscribe("t", "ch", 10);
    let messages = other.messages();
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0].attempts, 2);
}

#[test]
fn states_are_checked() {
    let world = World::new();
    for (input, expect) in [
        ("SUB t other\n", "E_INVALID cannot SUB in current state"),
        (
            "IDENTIFY\n\0\0\0\x02{}",
            "E_INVALID cannot IDENTIFY in current state",
        ),
        (
            "AUTH\n\0\0\0\x01x",
            "E_INVALID cannot AUTH in current state",
        ),
    ] {
        let mut consumer = world.connect();
        consumer.subscribe("t", "ch");
        consumer.send(input.as_bytes());
        consumer.expect_fatal(expect);
    }
    let mut consumer = world.connect();
    consumer.identify(r#"{"heartbeat_interval":-1}"#);
    consumer.send(b"SUB t ch\n");
    consumer.expect_fatal("E_INVALID cannot SUB with heartbeats disabled");
}

#[test]
fn a_channel_can_be_full_of_consumers() {
    let options = SessionOptions {
        channel_consumers_max: 1,
        ..SessionOptions::default()
    };
    let world = World::with(options);
    let first = world.subscribe("t", "ch", 1);
    let mut second = world.connect();
    second.send(b"SUB t ch\n");
    second.expect_fatal("E_SUB_FAILED SUB failed consumers for t:ch exceeds limit of 1");
    drop(first);
    world.subscribe("t", "ch", 1);
}

#[test]
fn consumers_of_a_deleted_channel_are_closed() {
    let world = World::new();
    let mut consumer = world.subscribe("t", "ch", 1);
    let topic = world.broker.topic("t").unwrap();
    topic.delete_subscription("ch").unwrap();
    consumer.pump();
    consumer.expect(&[]);
    assert!(consumer.session.is_ended());
}

#[test]
fn an_ephemeral_channel_ends_with_its_last_consumer() {
    let world = World::new();
    let consumer = world.subscribe("t", "ch#ephemeral", 1);
    let topic = world.broker.topic("t").unwrap();
    assert!(topic.subscription("ch#ephemeral").is_some());
    drop(consumer);
    world.settle();
    assert!(topic.subscription("ch#ephemeral").is_none());
}

#[test]
fn pausing_and_emptying_are_respected() {
    let world = World::new();
    let mut consumer = world.subscribe("t", "ch", 10);
    let channel = world.broker.topic("t").unwrap().subscription("ch").unwrap();
    channel.pause().unwrap();
    world.publish("t", &["1", "2"]);
    consumer.pump();
    assert_eq!(consumer.bodies(), [""; 0]);
    channel.discard_all();
    channel.unpause().unwrap();
    world.publish("t", &["3"]);
    consumer.pump();
    assert_eq!(consumer.bodies(), ["3"]);
}

#[test]
fn a_sample_is_delivered_and_the_rest_is_done_with() {
    let world = World::new();
    let bodies: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    let mut producer = world.connect();
    producer.send(&crate::common::publish_many("t", &bodies));
    producer.expect_ok();
    let mut consumer = world.connect();
    consumer.identify(r#"{"sample_rate":42}"#);
    consumer.subscribe("t", "ch");
    consumer.send(b"RDY 2500\n");
    let got = consumer.messages().len();
    assert!((350..500).contains(&got), "{got}");
    let stats = world.channel("t", "ch");
    assert_eq!((stats.depth, stats.in_flight), (0, got as u64));
}

#[test]
fn a_full_output_stops_only_its_own_consumer() {
    let world = World::new();
    let body = "x".repeat(1000);
    let bodies = vec![body.as_str(); 1000];
    let mut slow = world.subscribe("t", "slow", 2500);
    let mut producer = world.connect();
    producer.send(&crate::common::publish_many("t", &bodies));
    producer.expect_ok();
    world.settle();
    slow.poll();
    let first = slow.messages().len();
    assert!(first < 100, "{first} messages in one round");
    let mut quick = world.subscribe("t", "quick", 2500);
    producer.send(&crate::common::publish("t", "after"));
    quick.pump();
    assert_eq!(quick.bodies(), ["after"]);
    slow.pump();
    assert_eq!(slow.messages().len(), 1001 - first);
}

#[test]
fn telemetry_sees_what_happens() {
    let world = World::new();
    world.publish("t", &["1", "2"]);
    let mut consumer = world.connect();
    consumer.identify(r#"{"user_agent":"go-nsq/1.1.0 (linux)","client_id":"me"}"#);
    consumer.subscribe("t", "ch");
    consumer.send(b"RDY 5\n");
    let messages = consumer.messages();
    world.advance(3);
    consumer.send(&[fin(&messages[1].id), fin(&messages[0].id)].concat());
    let snapshot = consumer.session.probe().snapshot(|_| None);
    assert_eq!(snapshot.identity.library, "go-nsq");
    assert_eq!(snapshot.identity.version, "1.1.0");
    assert_eq!(snapshot.identity.client_id, "me");
    assert_eq!(snapshot.counters.deliveries, 2);
    assert_eq!(snapshot.counters.acks_in_order, 1);
    assert_eq!(snapshot.counters.acks_out_of_order, 1);
    assert_eq!(snapshot.gauges.credit_granted, 5);
    assert_eq!(snapshot.gauges.credit_used, 0);
    assert_eq!(snapshot.gauges.requests_in_flight, 0);
    assert_eq!(snapshot.histograms.ack_latency_us.count(), 2);
    assert!(snapshot.histograms.ack_latency_us.mean() >= 2900.0);
    assert_eq!(snapshot.counters.holding_us, 3_000);
    assert_eq!(snapshot.gauges.holding_since_us, 0);
}

#[test]
fn time_without_credit_is_counted_while_messages_wait() {
    let world = World::new();
    world.publish("t", &["1", "2"]);
    let mut consumer = world.subscribe("t", "ch", 1);
    let first = consumer.messages()[0].id.clone();
    world.advance(70);
    consumer.send(&fin(&first));
    let second = consumer.messages()[0].id.clone();
    world.advance(500);
    consumer.send(&fin(&second));
    let snapshot = consumer.session.probe().snapshot(|_| None);
    // The second message was the last one, so no message was ready while it was in flight.
    assert_eq!(snapshot.counters.no_credit_us, 70_000);
}

#[test]
fn a_step_of_the_wall_clock_makes_no_acknowledgement_late_or_early() {
    let world = World::new();
    world.publish("t", &["1", "2", "3"]);
    let mut consumer = world.subscribe("t", "ch", 1);
    for step_s in [0, 3_600, -7_200] {
        let id = consumer.messages()[0].id.clone();
        world.step_wall_clock(step_s);
        world.advance(30);
        consumer.send(&fin(&id));
    }
    let latency = consumer
        .session
        .probe()
        .snapshot(|_| None)
        .histograms
        .ack_latency_us;
    assert_eq!((latency.count(), latency.sum()), (3, 3 * 30_000));
    assert_eq!(latency.max(), 30_000);
}
