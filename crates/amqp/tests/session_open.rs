//! Handshake, channels, heartbeats, and the ends of a connection.

use crate::session_common::{Got, World, frame, method_frame, publish_frames};
use cloverleaf_access::{Argon2Cost, Argon2id, User, Users};
use cloverleaf_amqp::SessionOptions;
use cloverleaf_amqp::wire::{Method, PROTOCOL_HEADER, Properties, Value, method, table_bytes};
use cloverleaf_session::Session as _;

#[test]
fn the_server_announces_its_capabilities() {
    let world = World::default();
    let mut peer = world.connect_silent();
    peer.send(&PROTOCOL_HEADER[..3]);
    assert!(peer.receive().is_empty());
    peer.send(&PROTOCOL_HEADER[3..]);
    let got = peer.receive();
    let Method::ConnectionStart(start) = got[0].method() else {
        panic!("{:?}", got[0].method());
    };
    assert_eq!((start.version_major, start.version_minor), (0, 9));
    assert_eq!(start.mechanisms, b"PLAIN AMQPLAIN ANONYMOUS");
    let product = start.server_properties.get("product");
    assert_eq!(product, Some(Value::String(b"RabbitMQ")));
    for (name, expected) in [
        ("cloverleaf.durability", "protocol"),
        ("cloverleaf.durability.persistent", "disk"),
        ("cloverleaf.durability.transient", "kernel"),
    ] {
        let told = start.server_properties.get(name);
        assert_eq!(told, Some(Value::String(expected.as_bytes())), "{name}");
    }
    let Some(Value::Table(capabilities)) = start.server_properties.get("capabilities") else {
        panic!("no capabilities");
    };
    assert_eq!(capabilities.get("basic.nack"), Some(Value::Bool(true)));
}

#[test]
fn another_protocol_is_answered_with_the_supported_header() {
    let world = World::default();
    for header in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"AMQP\0\x01\0\0",
        b"AMQP\x03\x01\0\0",
        b"x",
    ] {
        let mut peer = world.connect_silent();
        peer.send(header);
        assert_eq!(peer.raw_output(), PROTOCOL_HEADER);
        assert!(peer.session.is_ended());
        assert!(peer.session.take_failure().is_some());
    }
}

#[test]
fn a_refused_login_is_closed_for_clients_that_understand_it() {
    let world = World::default();
    let mut peer = world.connect_silent();
    peer.handshake("PLAIN", b"\0guest\0wrong");
    let (code, text) = peer.closed();
    assert_eq!(code, 403);
    assert_eq!(
        text,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details \
         see the broker logfile."
    );
    assert!(peer.session.is_ended());
    let failure = peer.session.take_failure().unwrap();
    assert_eq!(
        failure,
        "PLAIN login refused: user 'guest' - invalid credentials"
    );
    let login = table_bytes(&[
        ("LOGIN", Value::String(b"guest")),
        ("PASSWORD", Value::String(b"guest")),
    ]);
    let mut peer = world.connect_silent();
    peer.handshake("AMQPLAIN", &login);
    let ids: Vec<_> = peer.receive().iter().map(Got::id).collect();
    let expected = [method::ConnectionStart::ID, method::ConnectionTune::ID];
    assert_eq!(ids, expected);
}

/// Whether a client with this response may log in; if not, the reason in the broker's log.
fn logs_in(mechanism: &str, response: &[u8]) -> Result<(), String> {
    let world = World::default();
    let mut peer = world.connect_silent();
    peer.handshake(mechanism, response);
    assert!(peer.session.take_verification().is_none());
    match peer.session.take_failure() {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

#[test]
fn responses_are_read_as_rabbitmq_reads_them() {
    let table = |name| {
        table_bytes(&[
            ("LOGIN", Value::String(b"guest")),
            (name, Value::String(b"guest")),
        ])
    };
    assert_eq!(logs_in("AMQPLAIN", &table("PASSWORD")), Ok(()));
    // The identity that a PLAIN login acts for is ignored.
    assert_eq!(logs_in("PLAIN", b"other\0guest\0guest"), Ok(()));
    for (mechanism, response, why) in [
        ("PLAIN", &b"guest"[..], "malformed response"),
        ("PLAIN", b"\0\xff\0guest", "malformed response"),
        ("AMQPLAIN", &table("PASSWORD")[1..], "malformed response"),
        ("AMQPLAIN", &table("PASS"), "malformed response"),
        ("PLAIN", b"\0bob\0guest", "user 'bob' - invalid credentials"),
        (
            "EXTERNAL",
            b"",
            "unknown authentication mechanism 'EXTERNAL'",
        ),
    ] {
        let failure = format!("{mechanism} login refused: {why}");
        assert_eq!(logs_in(mechanism, response), Err(failure));
    }
}

/// A broker with a user whose password takes long to verify.
fn slow_world() -> World {
    let cost = Argon2Cost {
        memory_kib: 8,
        passes: 1,
    };
    let ann = User::new("ann").with_argon2id(Argon2id::of(b"secret", cost).unwrap());
    World::with(SessionOptions {
        users: std::sync::Arc::new(Users::from_iter([ann])),
        ..SessionOptions::default()
    })
}

#[test]
fn a_login_waits_for_a_verdict_from_elsewhere() {
    let world = slow_world();
    let ids = |got: Vec<Got>| -> Vec<_> { got.iter().map(Got::id).collect() };
    let start = method::ConnectionStart::ID;
    let mut peer = world.connect_silent();
    peer.handshake("PLAIN", b"\0ann\0secret");
    assert_eq!(ids(peer.receive()), [start]);
    assert!(!peer.session.wants_input());
    let verification = peer.session.take_verification().unwrap();
    assert!(
        peer.session.take_verification().is_none(),
        "taken only once"
    );
    peer.turn();
    assert!(peer.receive().is_empty());
    peer.session.logged_in(verification.run());
    assert_eq!(ids(peer.receive()), [method::ConnectionTune::ID]);
    assert!(peer.session.wants_input());
    for (user, password) in [("ann", "wrong"), ("eve", "secret")] {
        let mut peer = world.connect_silent();
        peer.handshake("PLAIN", format!("\0{user}\0{password}").as_bytes());
        assert_eq!(ids(peer.receive()), [start]);
        let verification = peer.session.take_verification().unwrap();
        peer.session.logged_in(verification.run());
        assert!(peer.session.take_failed_login());
        assert_eq!(peer.closed().0, 403);
        let failure = format!("PLAIN login refused: user '{user}' - invalid credentials");
        assert_eq!(peer.session.take_failure(), Some(failure));
    }
}

#[test]
fn a_verdict_that_comes_too_late_changes_nothing() {
    for ends in [0, 1, 2] {
        let world = slow_world();
        let mut peer = world.connect_silent();
        peer.handshake("PLAIN", b"\0ann\0secret");
        peer.receive();
        let verification = peer.session.take_verification().unwrap();
        let now = world.now();
        match ends {
            0 => peer.session.drain(),
            1 => peer.session.end_of_input(b"", now),
            _ => world.advance(10_000),
        }
        peer.turn();
        assert!(peer.session.is_ended());
        peer.session.logged_in(verification.run());
        peer.turn();
        assert!(peer.receive().is_empty());
        assert!(peer.session.is_ended());
    }
}

#[test]
fn an_anonymous_login_is_guest() {
    let world = World::default();
    let mut peer = world.connect_silent();
    peer.handshake("ANONYMOUS", b"trace");
    let ids: Vec<_> = peer.receive().iter().map(Got::id).collect();
    let expected = [method::ConnectionStart::ID, method::ConnectionTune::ID];
    assert_eq!(ids, expected);
}

#[test]
fn an_oversized_frame_before_login_is_refused_by_its_header() {
    // The frame header alone, a method of channel 0, is enough for the refusal.
    for (payload, is_taken) in [(8192u32, true), (8193, false)] {
        let world = World::default();
        let mut peer = world.connect_silent();
        peer.send(PROTOCOL_HEADER);
        peer.receive();
        let mut start = vec![1, 0, 0];
        start.extend(payload.to_be_bytes());
        peer.send(&start);
        let got = peer.receive();
        if is_taken {
            assert!(got.is_empty())
        } else {
            assert_eq!(got[0].close().0, 501)
        }
        assert_eq!(peer.session.is_ended(), !is_taken);
    }
}

#[test]
fn channels_are_counted_and_may_have_any_number() {
    let world = World::default();
    let mut peer = world.connect_silent();
    peer.handshake("PLAIN", b"\0guest\0guest");
    let tune = method::ConnectionTuneOk {
        channel_max: 2,
        frame_max: 4096,
        heartbeat: 0,
    };
    peer.method(0, Method::ConnectionTuneOk(tune));
    let open = method::ConnectionOpen {
        virtual_host: "/",
        ..Default::default()
    };
    peer.method(0, Method::ConnectionOpen(open));
    peer.receive();
    peer.open_channel(u16::MAX);
    peer.open_channel(7);
    peer.method(1, Method::ChannelOpen(method::ChannelOpen::default()));
    let text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max \
                (2)";
    assert_eq!(peer.closed(), (530, text.to_owned()));
}

#[test]
fn limits_are_negotiated_and_virtual_hosts_must_exist() {
    let world = World::default();
    let tune = |channel_max, frame_max| method::ConnectionTuneOk {
        channel_max,
        frame_max,
        heartbeat: 0,
    };
    for (tune, text) in [
        (
            tune(100, 1000),
            "NOT_ALLOWED - negotiated frame_max = 1000 is lower than the minimum allowed value \
             (4096)",
        ),
        (
            tune(3000, 4096),
            "NOT_ALLOWED - negotiated channel_max = 3000 is higher than the maximum allowed value \
             (2047)",
        ),
    ] {
        let mut peer = world.connect_silent();
        peer.handshake("PLAIN", b"\0guest\0guest");
        peer.method(0, Method::ConnectionTuneOk(tune));
        assert_eq!(peer.closed(), (530, text.to_owned()));
    }
    let mut peer = world.connect_silent();
    peer.handshake("PLAIN", b"\0guest\0guest");
    peer.method(0, Method::ConnectionTuneOk(tune(1, 4096)));
    let open = method::ConnectionOpen {
        virtual_host: "other",
        ..Default::default()
    };
    peer.method(0, Method::ConnectionOpen(open));
    let text = "NOT_ALLOWED - vhost other not found";
    assert_eq!(peer.closed(), (530, text.to_owned()));
}

#[test]
fn frames_in_a_wrong_place_end_the_connection() {
    let world = World::default();
    let open = method_frame(1, &Method::ChannelOpen(method::ChannelOpen::default()));
    let publish = method::BasicPublish {
        routing_key: "q",
        ..Default::default()
    };
    let publish = method_frame(1, &Method::BasicPublish(publish));
    let whole = publish_frames(1, "", "q", &Properties::default(), b"body", false);
    let header = whole[publish.len()..whole.len() - 12].to_vec();
    let qos = method_frame(1, &Method::BasicQos(method::BasicQos::default()));
    let consume_ok = method::BasicConsumeOk { consumer_tag: "" };
    let cases: [(Vec<u8>, u16, &str); 11] = [
        (open.clone(), 504, "second 'channel.open' seen"),
        (
            method_frame(2, &Method::TxSelect(method::TxSelect {})),
            504,
            "expected 'channel.open'",
        ),
        (
            frame(3, 1, b"body"),
            505,
            "expected method frame, got non method frame instead",
        ),
        (
            [publish.clone(), frame(3, 1, b"body")].concat(),
            505,
            "expected content header for class 60, got non content header frame instead",
        ),
        (
            [publish.clone(), qos.clone()].concat(),
            505,
            "expected content header for class 60, got non content header frame instead",
        ),
        (
            [publish.clone(), header.clone(), qos].concat(),
            505,
            "expected content body, got non content body frame instead",
        ),
        (
            [publish.clone(), header, frame(3, 1, b"too long")].concat(),
            501,
            "content body frame exceeds remaining content size",
        ),
        (
            [
                publish,
                frame(2, 1, &[0, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            ]
            .concat(),
            505,
            "expected content header for class 60, got one for class 50 instead",
        ),
        (frame(1, 1, &[0, 60, 0, 99]), 503, "unknown method 60.99"),
        (
            frame(1, 1, &[0, 60, 0, 10]),
            501,
            "cannot decode [0, 60, 0, 10]",
        ),
        (
            method_frame(1, &Method::BasicConsumeOk(consume_ok)),
            503,
            "unimplemented method",
        ),
    ];
    for (bytes, code, text) in cases {
        let mut peer = world.channel();
        peer.send(&bytes);
        let (found, words) = peer.closed();
        assert_eq!(found, code, "{words}");
        assert!(words.ends_with(text), "{words}");
        // Frames that the client sends before it knows of the close are ignored.
        peer.send(&open);
        assert!(peer.receive().is_empty());
        peer.method(0, Method::ConnectionCloseOk(method::ConnectionCloseOk {}));
        assert!(peer.session.is_ended());
    }
    for bytes in [
        &[9u8, 0, 1, 0, 0, 0, 0, 206][..],
        &[1, 0, 1, 0x7f, 0xff, 0xff, 0xff],
        &[8, 0, 0, 0, 0, 0, 0, 7],
    ] {
        let mut peer = world.channel();
        peer.send(bytes);
        assert_eq!(peer.closed().0, 501);
        assert!(peer.session.is_ended(), "ends without waiting for close-ok");
    }
}

#[test]
fn a_channel_ends_alone_and_its_number_is_used_again() {
    let world = World::default();
    let mut peer = world.channel();
    peer.open_channel(2);
    peer.consume("nothing", "", false);
    let expected = "NOT_FOUND - no queue 'nothing' in vhost '/'";
    assert_eq!(peer.closed(), (404, expected.to_owned()));
    // Sent before the client knows of the close.
    peer.publish("", "x", "ignored");
    assert!(peer.receive().is_empty());
    peer.method(1, Method::ChannelCloseOk(method::ChannelCloseOk {}));
    peer.open_channel(1);
    let close = Method::ChannelClose(method::ChannelClose::default());
    peer.ask(2, close, method::ChannelCloseOk::ID);
    peer.open_channel(2);
}

#[test]
fn a_silent_client_gets_heartbeats_and_times_out() {
    let world = World::default();
    let mut peer = world.channel();
    assert!(!peer.session.is_ended());
    let due_us = peer.session.next_due_us();
    assert_eq!(due_us, world.now().us + 30_000_000, "half an interval");
    world.advance(30_000);
    peer.turn();
    assert_eq!(peer.raw_output(), [8, 0, 0, 0, 0, 0, 0, 206]);
    world.advance(60_000);
    peer.send(&[8, 0, 0, 0, 0, 0, 0, 206]);
    world.advance(60_000);
    peer.turn();
    assert!(!peer.session.is_ended());
    world.advance(60_000);
    peer.turn();
    assert!(peer.session.is_ended());
    let failure = peer.session.take_failure().unwrap();
    assert_eq!(failure, "missed heartbeats from client, timeout: 60s");
}

#[test]
fn a_connection_that_is_not_opened_times_out() {
    let world = World::default();
    let mut silent = world.connect_silent();
    let mut half = world.connect_silent();
    half.handshake("PLAIN", b"\0guest\0guest");
    assert_eq!(half.session.next_due_us(), world.now().us + 10_000_000);
    world.advance(10_000);
    for peer in [&mut silent, &mut half] {
        peer.turn();
        assert!(peer.session.is_ended());
        let failure = peer.session.take_failure().unwrap();
        assert_eq!(failure, "handshake_timeout");
    }
}

#[test]
fn a_shutdown_closes_connections_after_pending_confirms() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    peer.confirms();
    peer.publish("", "q", "m");
    peer.session.drain();
    assert!(peer.receive().is_empty(), "the confirm waits for the disk");
    world.settle();
    let got = peer.receive();
    assert_eq!(got[0].id(), method::BasicAck::ID);
    assert_eq!(got[1].close().0, 320);
    assert!(peer.session.take_failure().is_none());
    peer.method(0, Method::ConnectionCloseOk(method::ConnectionCloseOk {}));
    assert!(peer.session.is_ended());
}
