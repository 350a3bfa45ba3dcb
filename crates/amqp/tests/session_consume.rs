//! Consuming: prefetch, acknowledgements, requeueing, cancelling, `basic.get`.

use crate::session_common::{Peer, World, method_frame};
use cloverleaf_amqp::wire::{
    Array, Method, Properties, Table, Value, array_bytes, method, table_bytes,
};

fn publish_all(peer: &mut Peer<'_>, bodies: &[&str]) {
    for body in bodies {
        peer.publish("", "q", body);
    }
}

fn get(peer: &mut Peer<'_>, no_ack: bool) -> Option<(u64, bool, u32, String)> {
    let get = method::BasicGet {
        queue: "q",
        no_ack,
        ..Default::default()
    };
    peer.method(1, Method::BasicGet(get));
    peer.world.settle();
    let got = peer.receive();
    match got[0].method() {
        Method::BasicGetOk(ok) => {
            let body = String::from_utf8(got[0].body.clone()).unwrap();
            Some((ok.delivery_tag, ok.redelivered, ok.message_count, body))
        }
        Method::BasicGetEmpty(_) => None,
        method => panic!("{method:?}"),
    }
}

#[test]
fn prefetch_limits_unacknowledged_deliveries() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    publish_all(&mut peer, &["1", "2", "3", "4", "5"]);
    peer.prefetch(2, false);
    peer.consume("q", "c", false);
    let first = peer.deliveries();
    let expected = [(1, false, "1".to_owned()), (2, false, "2".to_owned())];
    assert_eq!(first, expected);
    peer.ack(1, false);
    assert_eq!(peer.deliveries(), [(3, false, "3".to_owned())]);
    peer.ack(3, true);
    assert_eq!(peer.bodies(), ["4", "5"]);
    peer.ack(0, true);
    assert!(peer.receive().is_empty());
    peer.ack(5, false);
    let text = "PRECONDITION_FAILED - unknown delivery tag 5";
    assert_eq!(peer.closed(), (406, text.to_owned()));
}

#[test]
fn arguments_of_another_type_are_refused() {
    let text = Value::String(b"high");
    for (name, value, why) in [
        ("x-priority", text, ": \"expected integer, got longstr\""),
        (
            "x-stream-offset",
            Value::I32(0),
            " of queue type rabbit_classic_queue",
        ),
    ] {
        let world = World::default();
        let mut peer = world.channel();
        peer.declare("q", &[]);
        consume_with(&mut peer, (name, value));
        let text =
            format!("PRECONDITION_FAILED - invalid arg '{name}' for queue 'q' in vhost '/'{why}");
        assert_eq!(peer.closed(), (406, text));
    }
    // RabbitMQ 4 ignores this argument, too.
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    consume_with(&mut peer, ("x-cancel-on-ha-failover", text));
    assert_eq!(peer.receive()[0].id(), method::BasicConsumeOk::ID);
}

fn consume_with(peer: &mut Peer<'_>, argument: (&str, Value<'_>)) {
    let arguments = table_bytes(&[argument]);
    let consume = method::BasicConsume {
        queue: "q",
        arguments: Table::check(&arguments).unwrap(),
        ..Default::default()
    };
    peer.method(1, Method::BasicConsume(consume));
}

#[test]
fn telemetry_sees_what_a_consumer_holds() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    publish_all(&mut peer, &["1", "2", "3"]);
    peer.prefetch(2, false);
    peer.consume("q", "c", false);
    assert_eq!(peer.deliveries().len(), 2);
    let seen = |peer: &Peer<'_>| peer.session.probe().snapshot(|_| None);
    let gauges = seen(&peer).gauges;
    assert_eq!((gauges.credit_granted, gauges.credit_used), (2, 2));
    assert!(gauges.holding_since_us > 0 && gauges.no_credit_since_us > 0);
    world.advance(40);
    peer.ack(1, false);
    assert_eq!(peer.deliveries().len(), 1);
    // No message waits after the third.
    let now = seen(&peer);
    assert_eq!(
        (now.gauges.credit_used, now.gauges.no_credit_since_us),
        (2, 0)
    );
    assert!(
        (40_000..45_000).contains(&now.counters.no_credit_us),
        "{now:?}"
    );
    world.advance(20);
    peer.ack(3, true);
    let end = seen(&peer);
    assert_eq!(
        (end.gauges.credit_used, end.gauges.holding_since_us),
        (0, 0)
    );
    assert!(
        (60_000..65_000).contains(&end.counters.holding_us),
        "{end:?}"
    );
    assert_eq!(end.counters.channels_opened, 1);
}

#[test]
fn a_step_of_the_wall_clock_makes_no_acknowledgement_late_or_early() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    publish_all(&mut peer, &["1", "2", "3"]);
    peer.prefetch(1, false);
    peer.consume("q", "c", false);
    for (tag, step_s) in [(1, 0), (2, 3_600), (3, -7_200)] {
        assert_eq!(peer.deliveries().len(), 1);
        world.step_wall_clock(step_s);
        world.advance(30);
        peer.ack(tag, false);
    }
    let histograms = peer.session.probe().snapshot(|_| None).histograms;
    let latency = histograms.ack_latency_us;
    assert_eq!((latency.count(), latency.sum()), (3, 3 * 30_000));
    assert_eq!(latency.max(), 30_000);
}

#[test]
fn deliveries_requeued_with_their_channel_use_no_credit() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    publish_all(&mut peer, &["1", "2", "3"]);
    peer.consume("q", "c", false);
    assert_eq!(peer.deliveries().len(), 3);
    peer.nack(1, false, false);
    assert_eq!(
        peer.session.probe().snapshot(|_| None).gauges.credit_used,
        2
    );
    let close = method::ChannelClose {
        reply_code: 200,
        reply_text: "",
        class_id: 0,
        method_id: 0,
    };
    peer.method(1, Method::ChannelClose(close));
    let gauges = peer.session.probe().snapshot(|_| None).gauges;
    assert_eq!((gauges.credit_used, gauges.holding_since_us), (0, 0));
}

#[test]
fn a_limit_of_the_channel_is_shared_by_its_consumers() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    peer.declare("r", &[]);
    peer.prefetch(3, true);
    peer.consume("q", "one", false);
    peer.consume("r", "two", false);
    for n in 0..4 {
        peer.publish("", "q", &format!("q{n}"));
        peer.publish("", "r", &format!("r{n}"));
    }
    assert_eq!(peer.bodies().len(), 3);
    peer.ack(2, true);
    assert_eq!(peer.bodies().len(), 2);
    // The shared limit also applies to existing consumers.
    let mut peer = world.channel();
    peer.declare("s", &[]);
    peer.consume("s", "c", false);
    peer.prefetch(1, true);
    peer.publish("", "s", "1");
    peer.publish("", "s", "2");
    assert_eq!(peer.bodies(), ["1"]);
}

/// As in RabbitMQ's limiter, although deliveries of a `no-ack` consumer do not count.
#[test]
fn a_no_ack_consumer_is_blocked_while_the_channels_limit_is_reached() {
    // With many consumers the engine ranks them, and no longer scans all.
    for others in [0, 20] {
        let world = World::default();
        let mut peer = world.channel();
        peer.declare("held", &[]);
        peer.declare("free", &[]);
        for body in ["1", "2", "3"] {
            peer.publish("", "free", body);
            peer.publish("", "held", body);
        }
        peer.prefetch(1, true);
        peer.consume("held", "acks", false);
        assert_eq!(peer.bodies(), ["1"]);
        for number in 0..=others {
            peer.consume("free", &format!("none-{number}"), true);
        }
        assert!(peer.bodies().is_empty(), "{others} others");
        // Queues blocked by the limit take turns, the one that has waited longest first.
        peer.ack(0, true);
        assert_eq!(peer.bodies(), ["2"]);
        peer.ack(0, true);
        let mut bodies = peer.bodies();
        bodies.sort();
        assert_eq!(bodies, ["1", "2", "3", "3"]);
        // The limit is reached again.
        peer.publish("", "free", "4");
        assert!(peer.bodies().is_empty());
        peer.ack(0, true);
        assert_eq!(peer.bodies(), ["4"]);
        peer.publish("", "held", "4");
        assert_eq!(peer.bodies(), ["4"]);
        // The limit applies to consumers that are older than it, and ends with it.
        peer.publish("", "free", "5");
        assert!(peer.bodies().is_empty());
        let qos = method::BasicQos::default();
        peer.method(1, Method::BasicQos(qos));
        let got = peer.receive();
        assert_eq!(got[0].id(), method::BasicQosOk::ID);
        assert_eq!(got[1].delivery().2, "5");
    }
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("held", &[]);
    peer.declare("free", &[]);
    peer.consume("free", "none", true);
    peer.prefetch(1, true);
    peer.consume("held", "acks", false);
    peer.publish("", "free", "1");
    peer.publish("", "held", "2");
    assert_eq!(peer.bodies(), ["1", "2"]);
    peer.publish("", "free", "3");
    assert!(peer.bodies().is_empty());
}

#[test]
fn requeued_messages_keep_their_order() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    publish_all(&mut peer, &["1", "2", "3", "4"]);
    peer.prefetch(3, false);
    peer.consume("q", "c", false);
    assert_eq!(peer.bodies(), ["1", "2", "3"]);
    peer.nack(2, false, true);
    assert_eq!(peer.deliveries(), [(4, true, "2".to_owned())]);
    let recover = method::BasicRecover { requeue: true };
    peer.method(1, Method::BasicRecover(recover));
    let all = peer.receive();
    assert_eq!(all[0].id(), method::BasicRecoverOk::ID);
    let again: Vec<_> = all[1..].iter().map(|got| got.delivery()).collect();
    assert_eq!(again, [(5, true, "1"), (6, true, "2"), (7, true, "3")]);
    let reject = method::BasicReject {
        delivery_tag: 5,
        requeue: false,
    };
    peer.method(1, Method::BasicReject(reject));
    assert_eq!(peer.deliveries(), [(8, false, "4".to_owned())]);
    // Messages in flight on a lost connection are redelivered in their old order.
    drop(peer);
    let mut peer = world.channel();
    peer.consume("q", "c", false);
    let again = peer.deliveries();
    let bodies: Vec<_> = again
        .iter()
        .map(|(_, again, body)| (*again, &**body))
        .collect();
    assert_eq!(bodies, [(true, "2"), (true, "3"), (true, "4")]);
}

#[test]
fn a_no_ack_message_is_gone_once_it_is_sent() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    publish_all(&mut peer, &["1", "2"]);
    peer.prefetch(1, false);
    peer.consume("q", "c", true);
    assert_eq!(peer.bodies(), ["1", "2"], "no prefetch limit");
    drop(peer);
    let mut peer = world.channel();
    assert_eq!(peer.counts("q"), (0, 0));
}

#[test]
fn a_cancelled_consumer_can_still_acknowledge() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    publish_all(&mut peer, &["1", "2", "3"]);
    peer.prefetch(2, false);
    peer.consume("q", "c", false);
    assert_eq!(peer.bodies(), ["1", "2"]);
    let cancel = method::BasicCancel {
        consumer_tag: "c",
        no_wait: false,
    };
    let ok = Method::BasicCancel(cancel);
    peer.ask(1, ok, method::BasicCancelOk::ID);
    assert_eq!(peer.counts("q"), (1, 0));
    peer.ack(1, false);
    assert!(peer.receive().is_empty(), "cancelled");
    // The tag may be used again; unacknowledged deliveries belong to the channel.
    peer.consume("q", "c", false);
    assert_eq!(peer.bodies(), ["3"]);
    peer.nack(2, false, true);
    assert_eq!(peer.deliveries(), [(4, true, "2".to_owned())]);
}

#[test]
fn get_takes_one_message_at_a_time() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    assert_eq!(get(&mut peer, false), None);
    publish_all(&mut peer, &["1", "2", "3"]);
    assert_eq!(get(&mut peer, false), Some((1, false, 2, "1".to_owned())));
    assert_eq!(get(&mut peer, true), Some((2, false, 1, "2".to_owned())));
    peer.nack(1, false, true);
    assert_eq!(get(&mut peer, false), Some((3, true, 1, "1".to_owned())));
    peer.ack(3, false);
    assert_eq!(get(&mut peer, false), Some((4, false, 0, "3".to_owned())));
    assert_eq!(get(&mut peer, false), None);
    assert_eq!(peer.counts("q"), (0, 0), "`get` adds no consumer");
}

fn consume_frame(queue: &str, no_ack: bool) -> Vec<u8> {
    let consume = method::BasicConsume {
        queue,
        consumer_tag: queue,
        no_ack,
        no_wait: true,
        ..Default::default()
    };
    method_frame(1, &Method::BasicConsume(consume))
}

#[test]
fn a_consumer_with_a_backlog_lets_the_others_have_a_turn() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    peer.declare("other", &[]);
    let body = "x".repeat(3000);
    for _ in 0..200 {
        peer.publish("", "q", &body);
    }
    peer.publish("", "other", "small");
    peer.show(&[consume_frame("q", true), consume_frame("other", true)].concat());
    for _ in 0..2 {
        assert!(peer.poll_once());
    }
    let bodies: Vec<_> = peer.written().into_iter().map(|got| got.body).collect();
    assert!(
        bodies.len() < 150,
        "the backlog does not fit into two rounds"
    );
    assert!(bodies.contains(&b"small".to_vec()));
}

#[test]
fn pending_deliveries_of_a_no_ack_consumer_are_sent_before_it_ends() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    let body = "x".repeat(3000);
    for _ in 0..100 {
        peer.publish("", "q", &body);
    }
    peer.show(&consume_frame("q", true));
    assert!(peer.poll_once());
    let cancel = method::BasicCancel {
        consumer_tag: "q",
        no_wait: false,
    };
    peer.method(1, Method::BasicCancel(cancel));
    let got = peer.receive();
    let (last, deliveries) = got.split_last().unwrap();
    assert_eq!(last.id(), method::BasicCancelOk::ID);
    // Each message was delivered, or is still in the queue.
    let (ready, _) = peer.counts("q");
    assert_eq!(deliveries.len() + ready as usize, 100);
}

#[test]
fn unsent_deliveries_of_a_cancelled_consumer_are_not_redelivered() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    let body = |number: usize| format!("{number:0>3000}");
    for number in 0..100 {
        peer.publish("", "q", &body(number));
    }
    peer.show(&consume_frame("q", false));
    assert!(peer.poll_once());
    let cancel = method::BasicCancel {
        consumer_tag: "q",
        no_wait: false,
    };
    peer.method(1, Method::BasicCancel(cancel));
    let sent = peer.receive().len() - 1;
    assert!(0 < sent && sent < 100, "{sent} fit into a round of output");
    let mut other = world.channel();
    other.consume("q", "c", false);
    let got = other.deliveries();
    let numbers = (1..).zip(sent..100);
    let expected: Vec<_> = numbers
        .map(|(tag, number)| (tag, false, body(number)))
        .collect();
    assert!(got == expected, "in order, and not redelivered");
}

#[test]
fn a_queue_that_is_deleted_cancels_its_consumers() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    peer.consume("q", "c", false);
    publish_all(&mut peer, &["1"]);
    assert_eq!(peer.bodies(), ["1"]);
    let mut other = world.channel();
    let delete = method::QueueDelete {
        queue: "q",
        ..Default::default()
    };
    other.ask(1, Method::QueueDelete(delete), method::QueueDeleteOk::ID);
    let got = peer.receive();
    let Method::BasicCancel(cancel) = got[0].method() else {
        panic!("{:?}", got[0].method());
    };
    assert_eq!(cancel.consumer_tag, "c");
    // The acknowledgement has no effect, but is no error.
    peer.ack(1, false);
    assert!(peer.receive().is_empty());
}

#[test]
fn an_acknowledgement_for_a_deleted_queue_does_not_reach_its_successor() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    peer.consume("q", "old", false);
    publish_all(&mut peer, &["1"]);
    assert_eq!(peer.bodies(), ["1"]);
    let mut other = world.channel();
    let delete = method::QueueDelete {
        queue: "q",
        ..Default::default()
    };
    other.ask(1, Method::QueueDelete(delete), method::QueueDeleteOk::ID);
    assert_eq!(peer.receive()[0].id(), method::BasicCancel::ID);
    peer.declare("q", &[]);
    peer.consume("q", "new", false);
    publish_all(&mut peer, &["2"]);
    assert_eq!(peer.deliveries(), [(2, false, "2".to_owned())]);
    // Acknowledges the message of the old queue, which had the same offset.
    peer.ack(1, false);
    drop(peer);
    let mut peer = world.channel();
    peer.consume("q", "c", false);
    assert_eq!(peer.deliveries(), [(1, true, "2".to_owned())]);
}

#[test]
fn direct_reply_to_reaches_the_requester() {
    let world = World::default();
    let mut client = world.channel();
    let mut server = world.channel();
    server.declare("rpc", &[]);
    server.consume("rpc", "s", true);
    client.consume("amq.rabbitmq.reply-to", "r", true);
    let question = Properties {
        reply_to: Some("amq.rabbitmq.reply-to"),
        correlation_id: Some("1"),
        ..Default::default()
    };
    client.publish_with("", "rpc", &question, "2+2", false);
    let asked = server.receive();
    let reply_to = asked[0].properties().reply_to.unwrap().to_owned();
    assert!(reply_to.starts_with("amq.rabbitmq.reply-to."));
    let answer = Properties {
        correlation_id: Some("1"),
        ..Default::default()
    };
    server.publish_with("", &reply_to, &answer, "4", true);
    assert!(server.receive().is_empty(), "not returned as unroutable");
    let got = client.receive();
    assert_eq!(got[0].delivery().2, "4");
    assert_eq!(got[0].properties().correlation_id, Some("1"));
    // The queue's counts are always the same, whatever it has.
    let long = "x".repeat(100_000);
    for _ in 0..20 {
        server.publish_with("", &reply_to, &answer, &long, true);
    }
    assert_eq!(server.counts(&reply_to), (0, 1));
    assert_eq!(client.receive().len(), 20);
    // The queue is deleted with its consumer, however that ends.
    let cancel = method::BasicCancel {
        consumer_tag: "r",
        no_wait: true,
    };
    client.method(1, Method::BasicCancel(cancel));
    server.publish_with("", &reply_to, &answer, "late", true);
    assert_eq!(server.receive()[0].id(), method::BasicReturn::ID);
    client.consume("amq.rabbitmq.reply-to", "r", true);
    client.publish_with("", "rpc", &question, "3+3", false);
    let asked = server.receive();
    let reply_to = asked[0].properties().reply_to.unwrap().to_owned();
    drop(client);
    server.publish_with("", &reply_to, &answer, "late", true);
    assert_eq!(server.receive()[0].id(), method::BasicReturn::ID);
}

#[test]
fn the_single_active_consumer_of_a_quorum_queue_makes_way_for_a_higher_priority() {
    for (kind, stays) in [(&b"classic"[..], true), (&b"quorum"[..], false)] {
        let world = World::default();
        let (mut low, mut high) = (world.channel(), world.channel());
        let arguments = [
            ("x-single-active-consumer", Value::Bool(true)),
            ("x-queue-type", Value::String(kind)),
        ];
        low.declare("q", &arguments);
        low.consume("q", "low", false);
        publish_all(&mut low, &["1", "2"]);
        assert_eq!(low.bodies(), ["1", "2"]);
        high.consume_ranked("q", "high", 5);
        publish_all(&mut low, &["3"]);
        let while_it_holds: &[&str] = if stays { &["3"] } else { &[] };
        assert_eq!(low.bodies(), while_it_holds);
        assert_eq!(high.bodies(), [""; 0]);
        low.ack(0, true);
        publish_all(&mut low, &["4"]);
        let (lows, highs): (&[&str], &[&str]) = if stays {
            (&["4"], &[])
        } else {
            (&[], &["3", "4"])
        };
        assert_eq!(low.bodies(), lows);
        assert_eq!(high.bodies(), highs);
    }
}

#[test]
fn a_dead_letter_is_routed_by_bcc_too() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[("x-dead-letter-exchange", Value::String(b""))]);
    peer.declare("blind", &[]);
    let keys = array_bytes(&[Value::String(b"blind")]);
    let headers = table_bytes(&[("BCC", Value::Array(Array::check(&keys).unwrap()))]);
    let properties = Properties {
        headers: Some(Table::check(&headers).unwrap()),
        ..Default::default()
    };
    peer.publish_with("", "q", &properties, "m", false);
    assert_eq!(peer.counts("blind"), (1, 0));
    peer.prefetch(1, false);
    peer.consume("q", "c", false);
    let got = peer.receive();
    assert!(got[0].properties().headers.unwrap_or_default().is_empty());
    peer.nack(1, false, false);
    world.settle();
    assert_eq!(peer.bodies(), ["m"], "by its own key");
    assert_eq!(peer.counts("blind"), (2, 0));
}

#[test]
fn consumer_tags_are_unique_in_their_channel() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    peer.consume("q", "c", false);
    peer.consume("q", "c", false);
    let text = "NOT_ALLOWED - attempt to reuse consumer tag 'c'";
    assert_eq!(peer.closed(), (530, text.to_owned()));
}
