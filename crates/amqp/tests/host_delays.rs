//! Messages delayed by an exchange.

use crate::host_common::World;
use cloverleaf_amqp::wire::{Array, Properties, Value, array_bytes};

fn persistent(expiration: Option<&str>) -> Properties<'_> {
    Properties {
        delivery_mode: Some(2),
        expiration,
        ..Properties::default()
    }
}

fn text(text: &str) -> Value<'_> {
    Value::String(text.as_bytes())
}

#[test]
fn delayed_messages_wait_and_are_routed_by_what_is_bound_then() {
    let mut world = World::new();
    world.exchange_with(
        "later",
        "x-delayed-message",
        &[("x-delayed-type", text("topic"))],
    );
    world.queue("q");
    world.bind("q", "later", "a.*");
    let delay = |ms| [("x-delay", Value::I32(ms)), ("mine", Value::Void)];
    world.publish_with("later", "a.b", "slow", &persistent(None), &delay(5_000));
    world.publish_with("later", "a.b", "quick", &persistent(None), &delay(1_000));
    world.publish_with(
        "later",
        "c.d",
        "elsewhere",
        &persistent(None),
        &delay(1_000),
    );
    world.publish_with("later", "a.b", "at once", &persistent(None), &delay(-1));
    let queue = world.host.queue(world.owner, "q").unwrap();
    world.settle();
    assert_eq!(world.bodies(&queue), ["at once"]);
    world.queue("late");
    world.bind("late", "later", "c.*");
    world.advance(1_001);
    let got = world.drain(&queue);
    assert_eq!(got[0].body, "quick");
    assert_eq!(got[0].header("x-delay"), Some(Value::I32(-1_000)));
    assert_eq!(got[0].header("mine"), Some(Value::Void));
    assert_eq!(
        (got[0].exchange.as_str(), got[0].key.as_str()),
        ("later", "a.b")
    );
    let late = world.host.queue(world.owner, "late").unwrap();
    assert_eq!(world.bodies(&late), ["elsewhere"]);
    assert!(world.bodies(&queue).is_empty());
    world.advance(20);
    world.kill_and_restart();
    world.advance(4_000);
    let queue = world.host.queue(world.owner, "q").unwrap();
    assert_eq!(world.bodies(&queue), ["slow"]);
    // A second declaration must have the same type.
    assert!(world.declare_exchange("later", "topic", |_| {}).is_err());
    let kinds: Vec<&str> = world.host.exchanges().iter().map(|x| x.kind).collect();
    assert!(kinds.contains(&"x-delayed-message"));
}

#[test]
fn a_time_to_live_begins_when_the_delay_is_over() {
    let world = World::new();
    world.exchange_with(
        "later",
        "x-delayed-message",
        &[("x-delayed-type", text("fanout"))],
    );
    let queue = world.queue("q");
    world.bind("q", "later", "");
    let properties = persistent(Some("1000"));
    let delay = [("x-delay", Value::I32(3_000))];
    world.publish_with("later", "", "body", &properties, &delay);
    world.advance(3_001);
    assert_eq!(queue.counts().0, 1);
    world.advance(999);
    assert_eq!(queue.counts().0, 1);
    world.advance(2);
    assert!(world.bodies(&queue).is_empty());
}

#[test]
fn cc_and_bcc_are_followed_after_the_delay_and_bcc_is_not_shown() {
    let world = World::new();
    world.exchange_with(
        "later",
        "x-delayed-message",
        &[("x-delayed-type", text("direct"))],
    );
    let keys = |key: &str| array_bytes(&[text(key)]);
    let (seen, hidden) = (keys("seen"), keys("hidden"));
    let array = |bytes| Value::Array(Array::check(bytes).unwrap());
    for name in ["own", "seen", "hidden"] {
        world.queue(name);
        world.bind(name, "later", name);
    }
    let headers = [
        ("CC", array(&seen)),
        ("BCC", array(&hidden)),
        ("x-delay", Value::I32(100)),
    ];
    world.publish_with("later", "own", "body", &persistent(None), &headers);
    world.advance(101);
    for name in ["own", "seen", "hidden"] {
        let queue = world.host.queue(world.owner, name).unwrap();
        let got = world.drain(&queue);
        assert_eq!(got.len(), 1, "{name}");
        assert!(got[0].header("CC").is_some() && got[0].header("BCC").is_none());
        assert_eq!(got[0].header("x-delay"), Some(Value::I32(-100)));
    }
}
