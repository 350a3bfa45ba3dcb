//! The routing of dead-lettered messages: which queues get a copy, and that none gets two.

use crate::host_common::{World, receive};
use cloverleaf_amqp::wire::{Array, Properties, Value, array_bytes};

fn persistent() -> Properties<'static> {
    Properties {
        delivery_mode: Some(2),
        ..Properties::default()
    }
}

fn text(text: &str) -> Value<'_> {
    Value::String(text.as_bytes())
}

#[test]
fn a_failed_copy_gives_the_other_queues_no_second_one() {
    let world = World::new();
    world.exchange("dlx", "fanout");
    let work = world.queue_with("work", &[("x-dead-letter-exchange", text("dlx"))]);
    let (well, broken) = (world.queue("well"), world.queue("broken"));
    world.bind("well", "dlx", "");
    world.bind("broken", "dlx", "");
    world.publish_with("", "work", "m", &persistent(), &[]);
    world.faults.set(|faults| {
        faults.only = format!("{}/0/", broken.topic.id());
        faults.write_after = Some(0);
    });
    let consumer = world.consumer(&work, 1);
    let got = receive(&consumer, "work");
    consumer.reject(got[0].id).unwrap();
    for _ in 0..5 {
        world.settle();
        world.faults.set(|faults| faults.write_after = Some(0));
        world.advance(1_001);
    }
    assert_eq!(world.bodies(&well), ["m"]);
    assert!(world.bodies(&broken).is_empty());
}

#[test]
fn bcc_is_followed_until_a_queue_replaces_the_routing_key() {
    let world = World::new();
    world.exchange("dlx", "direct");
    let work = world.queue_with("work", &[("x-dead-letter-exchange", text("dlx"))]);
    let other_key = [
        ("x-dead-letter-exchange", text("dlx")),
        ("x-dead-letter-routing-key", text("seen")),
    ];
    let renamed = world.queue_with("renamed", &other_key);
    let (seen, blind) = (world.queue("by-cc"), world.queue("by-bcc"));
    world.bind("by-cc", "dlx", "seen");
    world.bind("by-bcc", "dlx", "blind");
    let (cc, bcc) = (array_bytes(&[text("seen")]), array_bytes(&[text("blind")]));
    let headers = [
        ("CC", Value::Array(Array::check(&cc).unwrap())),
        ("BCC", Value::Array(Array::check(&bcc).unwrap())),
    ];
    for (from, blind_copies) in [(&work, 1), (&renamed, 0)] {
        world.publish_with("", &from.name, "m", &persistent(), &headers);
        let consumer = world.consumer(from, 1);
        let got = receive(&consumer, &from.name);
        assert!(got[0].header("BCC").is_none());
        consumer.reject(got[0].id).unwrap();
        world.settle();
        assert_eq!(world.drain(&seen).len(), 1);
        let got = world.drain(&blind);
        assert_eq!(got.len(), blind_copies);
        for got in got {
            assert!(got.header("CC").is_some() && got.header("BCC").is_none());
            let Some(Value::Array(deaths)) = got.header("x-death") else {
                panic!("no array");
            };
            let Some(Value::Table(entry)) = deaths.values().next() else {
                panic!("no table");
            };
            let Some(Value::Array(keys)) = entry.get("routing-keys") else {
                panic!("no keys");
            };
            assert_eq!(
                keys.values().collect::<Vec<_>>(),
                [text("work"), text("seen")]
            );
        }
    }
}
