//! A user with RabbitMQ's permissions `configure`, `write` and `read`: what it may do, and the
//! error texts for everything else.

use std::sync::Arc;

use cloverleaf_access::{Grants, Rule};
use cloverleaf_amqp::SessionOptions;
use cloverleaf_amqp::wire::{Method, Table, Value, method, table_bytes};

use crate::session_common::World;

fn world(permissions: [&str; 3]) -> World {
    let rules = Rule::permissions("guest", "", permissions).unwrap();
    World::with(SessionOptions {
        grants: Some(Arc::new(Grants::from_iter(rules))),
        ..SessionOptions::default()
    })
}

/// The text with which the channel is closed; `None`: it stays open.
fn refusal(world: &World, method: Method<'_>) -> Option<String> {
    let mut peer = world.channel();
    peer.method(1, method);
    let got = peer.receive();
    got.iter().find_map(|got| match got.method() {
        Method::ChannelClose(close) => Some(close.reply_text.to_owned()),
        _ => None,
    })
}

fn denied(kind: &str, name: &str) -> Option<String> {
    Some(format!(
        "ACCESS_REFUSED - access to {kind} '{name}' in vhost '/' refused for user 'guest'"
    ))
}

fn declare(queue: &str) -> Method<'_> {
    let declare = method::QueueDeclare {
        queue,
        durable: true,
        ..Default::default()
    };
    Method::QueueDeclare(declare)
}

/// A broker with the queue `q` and the exchange `x`.
fn prepared(permissions: [&str; 3]) -> World {
    let world = world(permissions);
    let Method::QueueDeclare(queue) = declare("q") else {
        panic!("it declares");
    };
    let owner = world.host.owner();
    world.host.declare_queue(owner, &queue).unwrap();
    let exchange = method::ExchangeDeclare {
        exchange: "x",
        kind: "fanout",
        ..Default::default()
    };
    world.host.declare_exchange(&exchange).unwrap();
    world
}

#[test]
fn each_method_asks_for_the_permissions_that_rabbitmq_asks_for() {
    let bind = Method::QueueBind(method::QueueBind {
        queue: "q",
        exchange: "x",
        ..Default::default()
    });
    let unbind = Method::QueueUnbind(method::QueueUnbind {
        queue: "q",
        exchange: "x",
        ..Default::default()
    });
    let purge = Method::QueuePurge(method::QueuePurge {
        queue: "q",
        ..Default::default()
    });
    let delete = Method::QueueDelete(method::QueueDelete {
        queue: "q",
        ..Default::default()
    });
    let get = Method::BasicGet(method::BasicGet {
        queue: "q",
        ..Default::default()
    });
    let consume = Method::BasicConsume(method::BasicConsume {
        queue: "q",
        ..Default::default()
    });
    let make = Method::ExchangeDeclare(method::ExchangeDeclare {
        exchange: "x",
        kind: "fanout",
        ..Default::default()
    });
    let remove = Method::ExchangeDelete(method::ExchangeDelete {
        exchange: "x",
        ..Default::default()
    });
    let tie = Method::ExchangeBind(method::ExchangeBind {
        destination: "x",
        source: "amq.topic",
        ..Default::default()
    });
    let untie = Method::ExchangeUnbind(method::ExchangeUnbind {
        destination: "x",
        source: "amq.topic",
        ..Default::default()
    });
    // The permissions (configure, write, read) that each method needs, and the error text if one of
    // them is missing.
    let (queue, exchange) = (denied("queue", "q"), denied("exchange", "x"));
    let cases = [
        (declare("q"), ["q", "", ""], &queue),
        (delete, ["q", "", ""], &queue),
        (purge, ["", "", "q"], &queue),
        (get, ["", "", "q"], &queue),
        (consume, ["", "", "q"], &queue),
        (bind, ["", "q", "x"], &queue),
        (unbind, ["", "q", "x"], &queue),
        (make, ["x", "", ""], &exchange),
        (remove, ["x", "", ""], &exchange),
        (tie, ["", "x", "amq.topic"], &exchange),
        (untie, ["", "x", "amq.topic"], &exchange),
    ];
    for (method, needed, text) in cases {
        let allowed = refusal(&prepared(needed), method);
        assert_eq!(allowed, None, "{method:?}");
        for missing in 0..3 {
            let mut given = ["q|x|amq.topic"; 3];
            given[missing] = "";
            let said = refusal(&prepared(given), method);
            match needed[missing] {
                "" => assert_eq!(said, None, "{method:?}"),
                name if text == &denied("queue", name) || text == &denied("exchange", name) => {
                    assert_eq!(&said, text, "{method:?}");
                }
                name => assert_eq!(said, denied("exchange", name), "{method:?}"),
            }
        }
    }
}

#[test]
fn a_passive_declaration_needs_no_permission() {
    let world = prepared(["", "", ""]);
    let passive = Method::QueueDeclare(method::QueueDeclare {
        queue: "q",
        passive: true,
        ..Default::default()
    });
    assert_eq!(refusal(&world, passive), None);
}

#[test]
fn rights_are_checked_for_the_name_that_the_server_uses() {
    let world = prepared(["^(amq\\.gen-.{22}|mine)$", "", ""]);
    assert_eq!(refusal(&world, declare("")), None);
    assert_eq!(refusal(&world, declare("m\nine")), None);
    assert_eq!(refusal(&world, declare("q\r")), denied("queue", "q"));
    let arguments = table_bytes(&[("x-name-prefix", Value::String(b"q"))]);
    let prefixed = Method::QueueDeclare(method::QueueDeclare {
        arguments: Table::check(&arguments).unwrap(),
        ..Default::default()
    });
    assert_eq!(
        refusal(&world, prefixed),
        denied("queue", "q-AAAAAAAAAAAAAAAAAAAAAA")
    );
}

#[test]
fn dead_letter_and_alternate_exchanges_need_the_write_permission() {
    let dead = table_bytes(&[("x-dead-letter-exchange", Value::String(b"x"))]);
    let declare = Method::QueueDeclare(method::QueueDeclare {
        queue: "new",
        durable: true,
        arguments: Table::check(&dead).unwrap(),
        ..Default::default()
    });
    for (permissions, expected) in [
        (["new", "x", "new"], None),
        (["new", "", "new"], denied("exchange", "x")),
        (["new", "x", ""], denied("queue", "new")),
    ] {
        assert_eq!(refusal(&prepared(permissions), declare), expected);
    }
    let alternate = table_bytes(&[("alternate-exchange", Value::String(b"x"))]);
    let declare = Method::ExchangeDeclare(method::ExchangeDeclare {
        exchange: "new",
        kind: "fanout",
        arguments: Table::check(&alternate).unwrap(),
        ..Default::default()
    });
    for (permissions, expected) in [
        (["new", "x", "new"], None),
        (["new", "", "new"], denied("exchange", "x")),
        (["new", "x", ""], denied("exchange", "new")),
    ] {
        assert_eq!(refusal(&prepared(permissions), declare), expected);
    }
}

#[test]
fn messages_go_to_exchanges_that_the_user_may_write_to() {
    let world = prepared(["", "^x$", ""]);
    let mut peer = world.channel();
    for _ in 0..2 {
        peer.publish("x", "", "a");
    }
    assert!(peer.receive().is_empty());
    peer.publish("", "q", "b");
    let text = "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user \
                'guest'";
    assert_eq!(peer.closed(), (403, text.to_owned()));
    let world = prepared(["", "^amq\\.(default|headers)$", ""]);
    let mut peer = world.channel();
    peer.publish("", "q", "c");
    // The route of a message with headers is not cached.
    peer.publish("amq.headers", "", "d");
    peer.publish("amq.headers", "", "e");
    assert!(peer.receive().is_empty());
    peer.publish("x", "", "f");
    assert_eq!(peer.closed().0, 403);
    let queue = world.host.queue(world.host.owner(), "q").unwrap();
    assert_eq!(queue.counts().0, 1);
}
