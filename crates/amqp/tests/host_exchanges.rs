//! Exchanges and bindings: declared, routed through, deleted; with RabbitMQ's error texts.

use crate::host_common::{World, text};
use cloverleaf_amqp::exception::ReplyCode;
use cloverleaf_amqp::routing::RoutedMessage;
use cloverleaf_amqp::wire::{Array, Table, Value, array_bytes, table_bytes};

#[test]
fn the_predeclared_exchanges_exist() {
    let world = World::new();
    let exchanges = world.host.exchanges();
    let facts: Vec<(&str, &str)> = exchanges.iter().map(|x| (&*x.name, x.kind)).collect();
    assert_eq!(
        facts,
        [
            ("", "direct"),
            ("amq.direct", "direct"),
            ("amq.fanout", "fanout"),
            ("amq.headers", "headers"),
            ("amq.match", "headers"),
            ("amq.topic", "topic"),
        ]
    );
    // A predeclared exchange may be declared with its own type.
    world
        .declare_exchange("amq.topic", "topic", |_| {})
        .unwrap();
    assert_eq!(
        text(world.declare_exchange("amq.mine", "topic", |_| {})),
        "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"
    );
    assert_eq!(
        text(world.host.delete_exchange("amq.topic", false)),
        "ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed"
    );
    let default = "ACCESS_REFUSED - operation not permitted on the default exchange";
    let none = Table::default();
    world.queue("q");
    let host = &world.host;
    assert_eq!(text(world.declare_exchange("", "direct", |_| {})), default);
    assert_eq!(text(host.delete_exchange("", false)), default);
    assert_eq!(
        text(host.bind_queue(world.owner, "q", "", "q", none)),
        default
    );
    assert_eq!(
        text(host.unbind_queue(world.owner, "q", "", "q", none)),
        default
    );
    assert_eq!(text(host.bind_exchange("", "amq.topic", "", none)), default);
    assert_eq!(text(host.bind_exchange("amq.topic", "", "", none)), default);
}

#[test]
fn a_second_declaration_says_the_same() {
    let world = World::new();
    world.exchange_with(
        "x",
        "direct",
        &[("alternate-exchange", Value::String(b"ae"))],
    );
    let x = "PRECONDITION_FAILED - inequivalent arg";
    assert_eq!(
        text(world.declare_exchange("x", "fanout", |_| {})),
        format!(
            "{x} 'type' for exchange 'x' in vhost '/': received 'fanout' but current is 'direct'"
        )
    );
    assert_eq!(
        text(world.declare_exchange("x", "direct", |declare| declare.internal = true)),
        format!(
            "{x} 'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'"
        )
    );
    assert_eq!(
        text(world.declare_exchange("x", "direct", |_| {})),
        format!(
            "{x} 'alternate-exchange' for exchange 'x' in vhost '/': received none but current is \
             the value 'ae' of type 'longstr'"
        )
    );
    assert_eq!(
        text(world.declare_exchange("y", "unheard-of", |_| {})),
        "PRECONDITION_FAILED - unknown exchange type 'unheard-of'"
    );
    assert_eq!(
        text(world.declare_exchange("none", "", |declare| declare.passive = true)),
        "NOT_FOUND - no exchange 'none' in vhost '/'"
    );
    world
        .declare_exchange("x", "", |declare| declare.passive = true)
        .unwrap();
    let bytes = table_bytes(&[("alternate-exchange", Value::I32(1))]);
    let refused = world.declare_exchange("z", "direct", |declare| {
        declare.arguments = Table::check(Box::leak(bytes.into_boxed_slice())).unwrap();
    });
    assert_eq!(
        text(refused),
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange \
         'z' in vhost '/'"
    );
    let refused = world.declare_exchange("d", "x-delayed-message", |_| {});
    assert_eq!(refused.unwrap_err().code, ReplyCode::PreconditionFailed);
}

#[test]
fn bindings_lead_from_exchanges_to_queues_and_exchanges() {
    let world = World::new();
    for (name, kind) in [("in", "topic"), ("out", "fanout")] {
        world.exchange(name, kind);
    }
    world.queue("a");
    world.queue("b");
    world.bind("a", "in", "x.*");
    world.bind("a", "in", "#.y");
    world.bind("b", "out", "");
    let none = Table::default();
    let generation = world.host.generation();
    world.host.bind_exchange("out", "in", "x.#", none).unwrap();
    assert!(world.host.generation() > generation);
    assert_eq!(world.routed("in", "x.y"), ["a", "b"]);
    assert_eq!(world.routed("in", "x.y.z"), ["b"]);
    // A second identical binding changes nothing.
    let generation = world.host.generation();
    world.bind("a", "in", "x.*");
    assert_eq!(world.host.generation(), generation);
    world.unbind("a", "in", "x.*");
    world.unbind("a", "in", "never");
    assert_eq!(world.routed("in", "x.q"), ["b"]);
    world
        .host
        .unbind_exchange("out", "in", "x.#", none)
        .unwrap();
    assert_eq!(world.routed("in", "x.y"), ["a"]);
    let bind = |queue, exchange| {
        world
            .host
            .bind_queue(world.owner, queue, exchange, "", none)
    };
    assert_eq!(
        text(bind("none", "in")),
        "NOT_FOUND - no queue 'none' in vhost '/'"
    );
    assert_eq!(
        text(bind("a", "none")),
        "NOT_FOUND - no exchange 'none' in vhost '/'"
    );
    // As in RabbitMQ, unbinding what does not exist succeeds.
    world
        .host
        .unbind_queue(world.owner, "none", "none", "", none)
        .unwrap();
    let routed = world.host.route("none", &RoutedMessage::default());
    assert_eq!(text(routed), "NOT_FOUND - no exchange 'none' in vhost '/'");
}

#[test]
fn the_order_of_arguments_makes_no_other_binding() {
    let world = World::new();
    world.queue("q");
    let fields = [("b", Value::I32(2)), ("a", Value::I32(1))];
    let mut bytes: Vec<Vec<u8>> = Vec::new();
    for order in [[0, 1], [1, 0]] {
        bytes.push(table_bytes(&order.map(|at: usize| fields[at])));
    }
    let bind = |at: usize| {
        let table = Table::check(&bytes[at]).unwrap();
        world
            .host
            .bind_queue(world.owner, "q", "amq.headers", "", table)
    };
    bind(0).unwrap();
    bind(1).unwrap();
    assert_eq!(world.host.bindings().len(), 1);
    let table = Table::check(&bytes[0]).unwrap();
    let route = world
        .host
        .route(
            "amq.headers",
            &RoutedMessage {
                key: "",
                headers: table,
            },
        )
        .unwrap();
    assert!(route.queues.len() == 1 && !route.is_cacheable);
    let wrong = table_bytes(&[("x-match", Value::String(b"some"))]);
    let wrong = Table::check(&wrong).unwrap();
    let refused = world
        .host
        .bind_queue(world.owner, "q", "amq.headers", "", wrong);
    assert_eq!(
        text(refused),
        "PRECONDITION_FAILED - Invalid x-match field value some; expected all, any, all-with-x, or \
         any-with-x"
    );
}

#[test]
fn internal_and_alternate_exchanges() {
    let world = World::new();
    world
        .declare_exchange("inside", "fanout", |declare| declare.internal = true)
        .unwrap();
    let routed = world.host.route("inside", &RoutedMessage::default());
    assert_eq!(
        text(routed),
        "ACCESS_REFUSED - cannot publish to internal exchange 'inside' in vhost '/'"
    );
    world.exchange_with(
        "x",
        "direct",
        &[("alternate-exchange", Value::String(b"inside"))],
    );
    world.queue("rest");
    world.queue("known");
    world.bind("rest", "inside", "");
    world.bind("known", "x", "k");
    assert_eq!(world.routed("x", "k"), ["known"]);
    assert_eq!(world.routed("x", "else"), ["rest"]);
}

#[test]
fn exchanges_are_deleted_with_their_last_binding_or_on_demand() {
    let world = World::new();
    let auto = |name| {
        world
            .declare_exchange(name, "fanout", |declare| declare.auto_delete = true)
            .unwrap();
    };
    auto("outer");
    auto("inner");
    world.queue("q");
    world
        .host
        .bind_exchange("inner", "outer", "", Table::default())
        .unwrap();
    world.bind("q", "inner", "");
    assert_eq!(
        text(world.host.delete_exchange("outer", true)),
        "PRECONDITION_FAILED - exchange 'outer' in vhost '/' in use"
    );
    // Deleting the queue also deletes the auto-delete exchanges that led only to it.
    world
        .host
        .delete_queue(world.owner, "q", false, false)
        .unwrap();
    assert_eq!(world.host.exchanges().len(), 6);
    assert!(world.host.bindings().is_empty());
    assert!(world.broker.kept_under("amqp/").is_empty());
    auto("outer");
    world.queue("q");
    world.bind("q", "outer", "");
    world.host.delete_exchange("outer", false).unwrap();
    world.host.delete_exchange("outer", true).unwrap();
    assert!(world.host.bindings().is_empty());
    assert!(world.broker.kept_under("amqp/").is_empty());
}

#[test]
fn cc_and_bcc_are_followed_and_never_cached() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.queue(name);
    }
    let array = |keys: &[&str]| {
        let keys: Vec<Value<'_>> = keys.iter().map(|k| Value::String(k.as_bytes())).collect();
        array_bytes(&keys)
    };
    let (cc, bcc) = (array(&["b", "a", "none"]), array(&["c", "b"]));
    let headers = table_bytes(&[
        ("CC", Value::Array(Array::check(&cc).unwrap())),
        ("BCC", Value::Array(Array::check(&bcc).unwrap())),
    ]);
    let headers = Table::check(&headers).unwrap();
    let route = world
        .host
        .route("", &RoutedMessage { key: "a", headers })
        .unwrap();
    let mut names: Vec<&str> = route.queues.iter().map(|queue| &*queue.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(!route.is_cacheable);
    world.bind("c", "amq.direct", "b");
    let route = world
        .host
        .route("amq.direct", &RoutedMessage { key: "x", headers })
        .unwrap();
    assert!(route.queues.len() == 1 && !route.is_cacheable);
    let route = world.host.route(
        "amq.direct",
        &RoutedMessage {
            key: "b",
            ..RoutedMessage::default()
        },
    );
    assert!(route.unwrap().is_cacheable);
}

#[test]
fn bindings_with_two_durable_ends_are_restored() {
    let mut world = World::new();
    world.exchange_with(
        "x",
        "topic",
        &[("alternate-exchange", Value::String(b"amq.fanout"))],
    );
    world
        .declare_exchange("passing", "fanout", |declare| declare.durable = false)
        .unwrap();
    world.queue("q");
    world
        .declare("transient", &[], |declare| declare.durable = false)
        .unwrap();
    for exchange in ["x", "passing"] {
        world.bind("q", exchange, "#");
        world.bind("transient", exchange, "#");
    }
    world.bind("q", "amq.topic", "a.*");
    world
        .host
        .bind_exchange("amq.fanout", "x", "f", Table::default())
        .unwrap();
    let before = world.host.bindings();
    assert_eq!(before.len(), 6);
    world.kill_and_restart();
    let after = world.host.bindings();
    assert!(after.iter().all(|binding| before.contains(binding)));
    assert_eq!(after.len(), 3);
    assert_eq!(world.routed("x", "any"), ["q"]);
    assert_eq!(world.host.exchanges().len(), 7);
    let names: Vec<String> = world
        .host
        .queues()
        .iter()
        .map(|q| q.name.to_string())
        .collect();
    assert_eq!(names, ["q"]);
    world.exchange_with(
        "x",
        "topic",
        &[("alternate-exchange", Value::String(b"amq.fanout"))],
    );
}
