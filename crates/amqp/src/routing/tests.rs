#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;

fn options(kind: ExchangeType) -> ExchangeOptions {
    ExchangeOptions {
        kind,
        delays: false,
        durable: true,
        auto_delete: false,
        internal: false,
        alternate: None,
        arguments: Vec::new(),
    }
}

fn queue(name: &str, key: &str) -> Binding {
    Binding {
        destination: Destination::Queue(name.into()),
        key: key.into(),
        arguments: Arc::new([]),
    }
}

fn exchange(name: &str, key: &str) -> Binding {
    Binding {
        destination: Destination::Exchange(name.into()),
        ..queue("", key)
    }
}

fn routed(topology: &Topology, name: &str, key: &str) -> Vec<String> {
    let message = RoutedMessage {
        key,
        ..RoutedMessage::default()
    };
    let queues = topology.route(name, &message).unwrap().queues;
    let mut names: Vec<String> = queues.iter().map(|name| name.to_string()).collect();
    names.sort();
    names
}

#[test]
fn each_kind_chooses_in_its_way() {
    let mut topology = Topology::default();
    for kind in [
        ExchangeType::Direct,
        ExchangeType::Fanout,
        ExchangeType::Topic,
    ] {
        topology.declare(kind.name(), options(kind));
        for (name, key) in [("one", "a.b"), ("two", "a.*"), ("two", "#"), ("three", "")] {
            assert_eq!(topology.bind(kind.name(), queue(name, key)), Ok(true));
            assert_eq!(topology.bind(kind.name(), queue(name, key)), Ok(false));
        }
    }
    assert_eq!(routed(&topology, "direct", "a.b"), ["one"]);
    assert_eq!(routed(&topology, "direct", ""), ["three"]);
    assert_eq!(routed(&topology, "fanout", "x"), ["one", "three", "two"]);
    assert_eq!(routed(&topology, "topic", "a.b"), ["one", "two"]);
    assert_eq!(routed(&topology, "topic", ""), ["three", "two"]);
    assert!(topology.route("none", &RoutedMessage::default()).is_none());
}

#[test]
fn exchanges_bound_to_each_other_may_form_a_cycle() {
    let mut topology = Topology::default();
    for name in ["first", "second", "third"] {
        topology.declare(name, options(ExchangeType::Fanout));
        topology.bind(name, queue(name, "")).unwrap();
        topology.bind(name, queue("all", "")).unwrap();
    }
    topology.bind("first", exchange("second", "")).unwrap();
    topology.bind("second", exchange("third", "")).unwrap();
    topology.bind("third", exchange("first", "")).unwrap();
    assert_eq!(
        routed(&topology, "second", "x"),
        ["all", "first", "second", "third"]
    );
}

#[test]
fn messages_without_a_binding_go_to_the_alternate_exchange() {
    let mut topology = Topology::default();
    let with_alternate = |alternate: &str| ExchangeOptions {
        alternate: Some(alternate.into()),
        ..options(ExchangeType::Direct)
    };
    topology.declare("first", with_alternate("second"));
    topology.declare("second", with_alternate("third"));
    topology.declare("third", with_alternate("first"));
    topology.bind("first", queue("known", "known")).unwrap();
    topology.bind("third", queue("rest", "other")).unwrap();
    assert_eq!(routed(&topology, "first", "known"), ["known"]);
    assert_eq!(routed(&topology, "first", "other"), ["rest"]);
    assert!(routed(&topology, "first", "nobody's").is_empty());
}

#[test]
fn copies_go_to_further_keys() {
    let mut headers = Vec::new();
    {
        let mut out = crate::wire::Writer::new(&mut headers);
        let mut keys = Vec::new();
        for key in ["a", "b", "a"] {
            Value::String(key.as_bytes()).write(&mut crate::wire::Writer::new(&mut keys));
        }
        out.shortstr("CC");
        out.octet(b'A');
        out.longstr(&keys);
        out.shortstr("BCC");
        out.octet(b'A');
        out.longstr(b"S\0\0\0\x01c");
    }
    let mut topology = Topology::default();
    topology.declare("direct", options(ExchangeType::Direct));
    for name in ["a", "b", "c", "d"] {
        topology.bind("direct", queue(name, name)).unwrap();
    }
    let message = RoutedMessage {
        key: "d",
        headers: Table::check(&headers).unwrap(),
    };
    let mut found = topology.route("direct", &message).unwrap().queues;
    found.sort();
    let found: Vec<&str> = found.iter().map(|name| &**name).collect();
    assert_eq!(found, ["a", "b", "c", "d"]);
}

#[test]
fn removed_definitions_take_their_bindings_along() {
    let mut topology = Topology::default();
    let auto_delete = ExchangeOptions {
        auto_delete: true,
        ..options(ExchangeType::Topic)
    };
    topology.declare("keeps", options(ExchangeType::Direct));
    topology.declare("goes", auto_delete.clone());
    topology.declare("goes-too", auto_delete);
    topology.bind("keeps", exchange("goes", "k")).unwrap();
    topology.bind("goes-too", exchange("goes", "k")).unwrap();
    topology.bind("goes", queue("q", "#")).unwrap();
    topology.bind("goes", queue("q", "a")).unwrap();
    topology.bind("keeps", queue("q", "k")).unwrap();

    let one = topology.unbind("goes", &queue("q", "a")).unwrap();
    assert_eq!(one.bindings, [("goes".into(), queue("q", "a"))]);
    assert!(one.exchanges.is_empty());
    assert_eq!(
        topology.unbind("goes", &queue("q", "a")),
        Ok(Removed::default())
    );
    assert_eq!(topology.delete("goes", true), Err(TopologyError::InUse));

    let all = topology.forget_queue("q");
    let names: Vec<&str> = all.exchanges.iter().map(|name| &**name).collect();
    // "goes" is deleted with its last binding, and so "goes-too" loses its last one.
    assert_eq!(names, ["goes", "goes-too"]);
    assert_eq!(all.bindings.len(), 4);
    assert!(topology.exchange("goes").is_none());
    assert_eq!(topology.exchange("keeps").unwrap().bindings().count(), 0);
    assert!(topology.sources.is_empty());
    assert!(topology.delete("keeps", true).is_ok());
    assert_eq!(
        topology.delete("keeps", true),
        Err(TopologyError::NoExchange)
    );
}

#[test]
fn a_key_bound_twice_with_other_arguments_is_one_route_and_two_bindings() {
    let mut topology = Topology::default();
    for kind in [ExchangeType::Direct, ExchangeType::Topic] {
        topology.declare(kind.name(), options(kind));
        let other = Binding {
            arguments: b"\x01aV"[..].into(),
            ..queue("q", "k")
        };
        assert_eq!(topology.bind(kind.name(), queue("q", "k")), Ok(true));
        assert_eq!(topology.bind(kind.name(), other.clone()), Ok(true));
        assert_eq!(routed(&topology, kind.name(), "k"), ["q"]);
        topology.unbind(kind.name(), &other).unwrap();
        assert_eq!(routed(&topology, kind.name(), "k"), ["q"]);
        topology.unbind(kind.name(), &queue("q", "k")).unwrap();
        assert!(routed(&topology, kind.name(), "k").is_empty());
    }
}
