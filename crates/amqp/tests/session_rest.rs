//! Leftovers at the end of a channel, a queue or a message.

use std::sync::Arc;

use crate::session_common::{Got, Peer, World, method_frame, publish_frames};
use bytes::Bytes;
use cloverleaf_amqp::SessionOptions;
use cloverleaf_amqp::wire::{Method, Properties, method};
use cloverleaf_log::{Batch, BatchBuilder, Durability};

/// A `no-ack` consumer that was given more messages than one round of output takes.
fn with_pending_deliveries(world: &World) -> Peer<'_> {
    let mut peer = world.channel();
    peer.declare("q", &[]);
    let message = "x".repeat(1000);
    (0..500).for_each(|_| peer.publish("", "q", &message));
    peer.receive();
    let consume = method::BasicConsume {
        queue: "q",
        consumer_tag: "c",
        no_ack: true,
        no_wait: true,
        ..Default::default()
    };
    peer.show(&method_frame(1, &Method::BasicConsume(consume)));
    assert!(peer.poll_once());
    peer
}

fn deliveries(got: &[Got]) -> u32 {
    let is_delivery = |got: &&Got| got.id() == method::BasicDeliver::ID;
    got.iter().filter(is_delivery).count() as u32
}

#[test]
fn no_ack_deliveries_are_written_before_their_channel_closes() {
    let close = Method::ChannelClose(method::ChannelClose::default());
    let refused = Method::QueueDelete(method::QueueDelete {
        queue: "q",
        if_empty: true,
        ..Default::default()
    });
    let end = Method::ConnectionClose(method::ConnectionClose::default());
    for (channel, how) in [(1, close), (1, refused), (0, end)] {
        let world = World::default();
        let mut peer = with_pending_deliveries(&world);
        peer.show(&method_frame(channel, &how));
        let got = peer.receive();
        let mut other = world.channel();
        let (left, _) = other.counts("q");
        let delivered = deliveries(&got);
        assert!(delivered > 0 && delivered < 500);
        assert_eq!(delivered + left, 500, "{how:?}");
        // No delivery comes after the answer.
        assert_eq!(deliveries(&got[got.len() - 1..]), 0);
    }
}

#[test]
fn a_new_channel_limit_counts_deliveries_of_cancelled_consumers() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    (0..4).for_each(|n| peer.publish("", "q", &n.to_string()));
    peer.prefetch(2, false);
    peer.consume("q", "first", false);
    assert_eq!(peer.bodies(), ["0", "1"]);
    let cancel = method::BasicCancel {
        consumer_tag: "first",
        no_wait: true,
    };
    peer.method(1, Method::BasicCancel(cancel));
    peer.prefetch(2, true);
    peer.consume("q", "second", false);
    assert!(peer.bodies().is_empty(), "two are unacknowledged");
    peer.ack(1, false);
    assert_eq!(peer.bodies(), ["2"]);
}

#[test]
fn a_failed_publish_causes_no_nack_of_others() {
    let world = World::with(SessionOptions {
        message_bytes_max: 256 << 20,
        ..SessionOptions::default()
    });
    let mut peer = world.channel();
    peer.declare("large", &[]);
    peer.declare("small", &[]);
    peer.open_channel(2);
    let select = Method::ConfirmSelect(method::ConfirmSelect::default());
    peer.ask(2, select, method::ConfirmSelectOk::ID);
    // The log accepts no batch of this size.
    let body = vec![0; 129 << 20];
    let mut frames = publish_frames(1, "", "large", &Properties::default(), &body, false);
    drop(body);
    frames.extend(publish_frames(
        2,
        "",
        "small",
        &Properties::default(),
        b"x",
        false,
    ));
    peer.send(&frames);
    let got = peer.receive();
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].id(), method::BasicAck::ID);
    assert_eq!((peer.counts("large").0, peer.counts("small").0), (0, 1));
}

#[test]
fn an_idle_publisher_keeps_no_deleted_queue_in_memory() {
    let world = World::default();
    let mut publisher = world.channel();
    publisher.declare("q", &[]);
    publisher.publish("", "q", "x");
    let queue = world.host.queue(world.host.owner(), "q").unwrap();
    let queue = Arc::downgrade(&queue);
    let mut other = world.channel();
    let delete = method::QueueDelete {
        queue: "q",
        ..Default::default()
    };
    other.ask(1, Method::QueueDelete(delete), method::QueueDeleteOk::ID);
    world.settle();
    let held = queue.strong_count();
    publisher.turn();
    assert!(queue.strong_count() < held, "its route is no longer cached");
}

/// A batch with a malformed record and a valid checksum.
fn unreadable() -> Batch {
    let mut builder = BatchBuilder::with_capacity(100, 0);
    builder.push(None, Some(b"x"), &[]);
    let mut bytes = builder.finish().bytes().to_vec();
    // The length of the key is larger than the record.
    bytes[65] = 0x7e;
    let crc = bytes[21..].iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    });
    bytes[17..21].copy_from_slice(&(!crc).to_be_bytes());
    Batch::parse(Bytes::from(bytes)).unwrap()
}

#[test]
fn a_get_skips_unreadable_messages() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    let queue = world.host.queue(world.host.owner(), "q").unwrap();
    for _ in 0..2 {
        let published = queue.topic.publish(unreadable(), Durability::Kernel);
        drop(published.unwrap());
    }
    peer.publish("", "q", "readable");
    for expected in [method::BasicGetOk::ID, method::BasicGetEmpty::ID] {
        let get = method::BasicGet {
            queue: "q",
            ..Default::default()
        };
        peer.method(1, Method::BasicGet(get));
        let got = peer.receive();
        assert_eq!((got.len(), got[0].id()), (1, expected));
    }
}
