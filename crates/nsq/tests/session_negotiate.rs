//! IDENTIFY, heartbeats, upgrades, AUTH, back-pressure and shutdown through a session.

use crate::common::{Frame, World, publish, response, sized};
use cloverleaf_nsq::authorization::Authorizations;
use cloverleaf_nsq::identify::Compression;
use cloverleaf_nsq::stats::clients::ClientTls;
use cloverleaf_nsq::{DriverTask, SessionOptions};
use cloverleaf_session::Session as _;

#[test]
fn identify_is_answered_with_ok_or_with_json() {
    let world = World::new();
    let mut peer = world.connect();
    assert_eq!(peer.identify(r#"{"client_id":"a","hostname":"b"}"#), "OK");
    let answer = peer.identify(r#"{"feature_negotiation":true,"client_id":"c"}"#);
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["max_rdy_count"], 2500);
    assert_eq!(answer["version"], "1.3.0");
    assert_eq!(answer["auth_required"], false);
    assert_eq!(world.clients.list()[0].identity().client_id, "c");
    let mut peer = world.connect();
    peer.send(&sized("IDENTIFY\n", br#"{"heartbeat_interval":300001}"#));
    peer.expect_fatal("E_BAD_BODY IDENTIFY heartbeat interval (300001) is invalid");
}

#[test]
fn heartbeats_come_and_silence_ends_the_connection() {
    let world = World::new();
    let mut peer = world.connect();
    peer.identify(r#"{"heartbeat_interval":1000}"#);
    let beat = || response("_heartbeat_");
    world.advance(900);
    peer.pump();
    peer.expect(&[]);
    world.advance(100);
    peer.pump();
    peer.expect(&[beat()]);
    peer.send(b"NOP\n");
    world.advance(1000);
    peer.pump();
    peer.expect(&[beat()]);
    assert!(!peer.session.is_ended());
    // Two intervals after the NOP.
    world.advance(1000);
    peer.pump();
    peer.expect(&[beat()]);
    assert!(peer.session.is_ended());
}

#[test]
fn a_client_that_sends_no_magic_is_closed() {
    let world = World::new();
    let mut peer = world.connect_silent();
    peer.send(b"  V");
    world.advance(59_900);
    peer.pump();
    assert!(!peer.session.is_ended());
    assert_ne!(peer.session.next_due_us(), u64::MAX);
    world.advance(100);
    peer.pump();
    peer.expect(&[]);
    assert!(peer.session.is_ended());
    assert_eq!(peer.session.next_due_us(), u64::MAX);
}

#[test]
fn a_client_that_is_not_read_is_not_silent() {
    let world = World::with_little_room();
    let mut other = world.connect();
    let mut peer = world.connect();
    other.feed(&publish("t", "takes the room"));
    peer.feed(&publish("t", "waits"));
    for _ in 0..10 {
        world.clock.advance(30_000);
        peer.poll();
        assert!(!peer.session.wants_input());
    }
    peer.expect(&vec![response("_heartbeat_"); 10]);
    world.clock.advance(29_000);
    world.settle();
    assert!(!peer.poll());
    assert!(peer.session.wants_input());
    assert!(!peer.session.is_ended());
    peer.pump();
    peer.expect_ok();
}

#[test]
fn without_heartbeats_no_client_is_closed() {
    let world = World::new();
    let mut peer = world.connect();
    peer.identify(r#"{"heartbeat_interval":-1}"#);
    assert_eq!(peer.session.next_due_us(), u64::MAX);
    world.advance(10_000_000);
    peer.pump();
    peer.expect(&[]);
    assert!(!peer.session.is_ended());
}

#[test]
fn upgrades_come_one_after_the_other_each_with_its_ok() {
    let options = SessionOptions {
        tls: true,
        ..SessionOptions::default()
    };
    let world = World::with(options);
    let mut peer = world.connect();
    let answer = peer
        .identify(r#"{"feature_negotiation":true,"tls_v1":true,"deflate":true,"deflate_level":3}"#);
    assert!(
        answer.contains(r#""tls_v1":true,"deflate":true,"deflate_level":3"#),
        "{answer}"
    );
    assert!(!peer.session.wants_input());
    assert_eq!(peer.request(), Some(DriverTask::Tls));
    peer.session.upgraded_to_tls(ClientTls::default());
    assert_eq!(peer.request(), None, "the OK comes first");
    peer.pump();
    peer.expect_ok();
    let deflate = Compression::Deflate(3);
    assert_eq!(peer.request(), Some(DriverTask::Compress(deflate)));
    peer.session.upgraded_to(deflate);
    peer.pump();
    peer.expect_ok();
    assert_eq!(peer.request(), None);
    assert!(peer.session.wants_input());
    assert!(world.clients.list()[0].identity().deflate);
    peer.send(&sized("IDENTIFY\n", b"{}"));
    peer.expect_fatal("E_INVALID cannot IDENTIFY in current state");
}

#[test]
fn tls_can_be_required() {
    let options = SessionOptions {
        tls: true,
        tls_required: true,
        ..SessionOptions::default()
    };
    let world = World::with(options);
    let mut peer = world.connect();
    peer.send(b"SUB t ch\n");
    peer.expect_fatal("E_INVALID cannot SUB in current state (TLS required)");
    let mut peer = world.connect();
    peer.identify(r#"{"feature_negotiation":true,"tls_v1":true}"#);
    peer.session.upgraded_to_tls(ClientTls::default());
    peer.pump();
    peer.expect_ok();
    peer.subscribe("t", "ch");
}

fn auth_world() -> World {
    World::with(SessionOptions {
        auth_required: true,
        ..SessionOptions::default()
    })
}

fn authorizations(ttl_s: u32, topic: &str) -> Option<Authorizations> {
    let answer = format!(
        r#"{{"ttl":{ttl_s},"identity":"me","identity_url":"http://me","authorizations":[
            {{"topic":"{topic}","channels":[".*"],"permissions":["subscribe","publish"]}}]}}"#
    );
    Some(Authorizations::parse(answer.as_bytes()).unwrap())
}

#[test]
fn auth_comes_first() {
    let world = auth_world();
    for (input, name) in [(b"SUB t ch\n".to_vec(), "SUB"), (publish("t", "x"), "PUB")] {
        let mut peer = world.connect();
        peer.send(&input);
        peer.expect_fatal(&format!("E_AUTH_FIRST AUTH required before {name}"));
    }
    let mut peer = world.connect();
    peer.send(b"AUTH x\n");
    peer.expect_fatal("E_INVALID AUTH invalid number of parameters");
    let plain = World::new();
    let mut peer = plain.connect();
    peer.send(&sized("AUTH\n", b"secret"));
    peer.expect_fatal("E_AUTH_DISABLED AUTH disabled");
}

#[test]
fn secrets_are_bounded() {
    let world = auth_world();
    let mut peer = world.connect();
    peer.send(&sized("AUTH\n", &[b'x'; 65_537]));
    peer.expect_fatal("E_BAD_BODY AUTH body too big 65537 > 65536");
}

#[test]
fn auth_decides_what_is_allowed() {
    let world = auth_world();
    let mut peer = world.connect();
    peer.send(&[&sized("AUTH\n", b"secret")[..], b"SUB t ch\n"].concat());
    assert_eq!(peer.request(), Some(DriverTask::Authorize("secret".into())));
    assert_eq!(peer.request(), None, "asked once");
    peer.session
        .authorized(authorizations(10, "^t$"), world.now());
    peer.pump();
    let answer = r#"{"identity":"me","identity_url":"http://me","permission_count":1}"#;
    peer.expect(&[response(answer), response("OK")]);
    peer.send(&publish("t", "x"));
    peer.expect_ok();
    peer.send(&publish("other", "x"));
    peer.expect_fatal("E_UNAUTHORIZED AUTH failed for PUB on \"other\" \"\"");
    let mut peer = world.connect();
    peer.send(&sized("AUTH\n", b"secret"));
    peer.session
        .authorized(authorizations(10, "^t$"), world.now());
    peer.pump();
    peer.frames();
    peer.send(b"SUB u ch\n");
    peer.expect_fatal("E_UNAUTHORIZED AUTH failed for SUB on \"u\" \"ch\"");
}

#[test]
fn auth_can_fail() {
    let world = auth_world();
    let none = Authorizations::parse(br#"{"ttl":1,"authorizations":[]}"#).unwrap();
    for (authorizations, expect) in [
        (None, "E_AUTH_FAILED AUTH failed"),
        (Some(none), "E_UNAUTHORIZED AUTH no authorizations found"),
    ] {
        let mut peer = world.connect();
        peer.send(&sized("AUTH\n", b"secret"));
        peer.session.authorized(authorizations, world.now());
        peer.pump();
        peer.expect_fatal(expect);
    }
}

#[test]
fn authorizations_expire_and_are_renewed() {
    let world = auth_world();
    let mut peer = world.connect();
    peer.send(&sized("AUTH\n", b"secret"));
    assert!(peer.request().is_some());
    peer.session.authorized(authorizations(5, "t"), world.now());
    peer.pump();
    peer.frames();
    world.advance(4000);
    peer.send(&publish("t", "1"));
    peer.expect_ok();
    world.advance(2000);
    peer.send(&[publish("t", "2"), publish("t", "3")].concat());
    peer.expect(&[]);
    assert_eq!(peer.request(), Some(DriverTask::Authorize("secret".into())));
    peer.session.authorized(authorizations(5, "t"), world.now());
    peer.pump();
    peer.expect(&[response("OK"), response("OK")]);
    world.advance(6000);
    peer.send(&publish("t", "4"));
    peer.session.authorized(authorizations(5, "u"), world.now());
    peer.pump();
    peer.expect_fatal("E_UNAUTHORIZED AUTH failed for PUB on \"t\" \"\"");
    assert_eq!(world.broker.topic("t").unwrap().message_count(), 3);
}

#[test]
fn draining_sends_pending_answers() {
    let world = World::new();
    let mut peer = world.connect();
    peer.feed(&publish("t", "1"));
    peer.session.drain();
    assert!(!peer.session.wants_input());
    peer.pump();
    peer.expect_ok();
    assert!(peer.session.is_ended());
}

#[test]
fn a_client_that_reads_nothing_is_not_read_for_ever() {
    let world = World::new();
    let mut peer = world.connect();
    peer.subscribe("t", "ch");
    let unknown = b"FIN 00000000000000ff\n".repeat(100);
    let mut sent = 0;
    while peer.session.wants_input() {
        peer.feed(&unknown);
        sent += 100;
        assert!(sent < 10_000, "errors pile up");
    }
    peer.pump();
    let errors = peer.frames();
    assert!(errors.iter().all(|frame| matches!(frame, Frame::Error(_))));
    assert_eq!(errors.len(), sent);
    assert!(peer.session.wants_input());
}
