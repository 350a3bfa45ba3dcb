//! Any declaration of a client gets an answer, and accepted ones are restored after a restart.

use crate::host_common::World;
use cloverleaf_amqp::wire::{Table, Value, method, table_bytes};
use proptest::collection::vec;
use proptest::prelude::*;

const ARGUMENTS: [&str; 18] = [
    "x-queue-type",
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-priority",
    "x-single-active-consumer",
    "x-delivery-limit",
    "x-cloverleaf-dispatch",
    "x-queue-mode",
    "x-name-prefix",
    "alternate-exchange",
    "x-delayed-type",
    "x-match",
    "CC",
];
const WORDS: [&str; 9] = [
    "classic",
    "quorum",
    "stream",
    "drop-head",
    "reject-publish",
    "direct",
    "any",
    "fill-first",
    "",
];

fn value() -> impl Strategy<Value = Value<'static>> {
    prop_oneof![
        4 => (0..WORDS.len()).prop_map(|at| Value::String(WORDS[at].as_bytes())),
        3 => (-2i32..9).prop_map(Value::I32),
        1 => any::<i64>().prop_map(Value::I64),
        1 => any::<bool>().prop_map(Value::Bool),
        1 => Just(Value::String(b"\xff\xfe")),
        1 => Just(Value::Void),
        1 => Just(Value::Table(Table::default())),
        1 => any::<f64>().prop_map(Value::F64),
    ]
}

fn table() -> impl Strategy<Value = Vec<u8>> {
    let field = (0..ARGUMENTS.len(), value());
    vec(field, 0..4).prop_map(|fields| {
        let fields = fields.into_iter().map(|(at, value)| (ARGUMENTS[at], value));
        table_bytes(&fields.collect::<Vec<_>>())
    })
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ab]",
        1 => "\\PC{0,20}",
        1 => any::<String>().prop_map(|mut name| {
            name.truncate(name.floor_char_boundary(255));
            name
        }),
        1 => Just("x".repeat(255)),
        1 => Just("amq.topic".to_owned()),
        1 => Just("$amqp/delayed".to_owned()),
    ]
}

#[derive(Debug, Clone)]
struct Call {
    what: u8,
    names: [String; 3],
    table: Vec<u8>,
    flags: [bool; 4],
    kind: usize,
}

fn call() -> impl Strategy<Value = Call> {
    let names = [name(), name(), name()];
    let flags = prop::array::uniform4(any::<bool>());
    (0u8..9, names, table(), flags, 0..6usize).prop_map(|(what, names, table, flags, kind)| Call {
        what,
        names,
        table,
        flags,
        kind,
    })
}

fn carry_out(world: &World, call: &Call) {
    let (host, owner) = (&world.host, world.owner);
    let [a, b, key] = &call.names;
    let arguments = Table::check(&call.table).unwrap();
    let [one, two, three, four] = call.flags;
    let kinds = [
        "direct",
        "fanout",
        "topic",
        "headers",
        "x-delayed-message",
        "",
    ];
    // Errors are answers, too.
    match call.what {
        0..=2 => drop(host.declare_queue(
            owner,
            &method::QueueDeclare {
                queue: a,
                durable: one,
                exclusive: two && four,
                auto_delete: three && two,
                passive: four && three,
                arguments,
                ..method::QueueDeclare::default()
            },
        )),
        3 => drop(host.declare_exchange(&method::ExchangeDeclare {
            exchange: a,
            kind: kinds[call.kind],
            durable: one,
            auto_delete: two,
            internal: three,
            passive: four && three,
            arguments,
            ..method::ExchangeDeclare::default()
        })),
        4 => drop(host.bind_queue(owner, a, b, key, arguments)),
        5 => drop(host.bind_exchange(a, b, key, arguments)),
        6 => {
            drop(host.unbind_queue(owner, a, b, key, arguments));
            drop(host.unbind_exchange(a, b, key, arguments));
        }
        7 => drop(host.delete_exchange(a, one)),
        _ => drop(host.delete_queue(owner, a, one, two)),
    }
    let routed = cloverleaf_amqp::routing::RoutedMessage {
        key,
        headers: arguments,
    };
    drop(host.route(b, &routed));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn anything_is_answered_and_what_is_durable_comes_back(calls in vec(call(), 1..40)) {
        let mut world = World::new();
        for call in &calls {
            carry_out(&world, call);
        }
        let queues = |world: &World| -> Vec<(String, Vec<u8>)> {
            let queues = world.host.queues().into_iter().filter(|queue| queue.durable);
            queues.map(|q| (q.name.to_string(), q.table().bytes().to_vec())).collect()
        };
        let exchanges = |world: &World| {
            let mut exchanges = world.host.exchanges();
            exchanges.retain(|exchange| exchange.durable);
            exchanges
        };
        let before = (queues(&world), exchanges(&world));
        let bindings = world.host.bindings();
        world.kill_and_restart();
        prop_assert_eq!(&(queues(&world), exchanges(&world)), &before);
        for binding in world.host.bindings() {
            prop_assert!(bindings.contains(&binding));
        }
        // A second start restores the same as the first.
        let after = world.host.bindings();
        world.kill_and_restart();
        prop_assert_eq!(world.host.bindings(), after);
        prop_assert_eq!((queues(&world), exchanges(&world)), before);
    }
}
