//! NSQ's HTTP interfaces over sockets: cases that the NSQ crate's own tests cannot cover.

use crate::nsq_support::{exchange, request, start};
use cloverleaf_server::config_value::ByteSize;

#[test]
fn messages_are_published_and_counted() {
    let broker = start(|_| {});
    let answer = broker.post("/pub?topic=t", b"x");
    assert_eq!((answer.status, answer.body.as_str()), (200, "OK"));
    assert!(
        answer.head.contains("x-nsq-content-type: nsq; version=1.0"),
        "{}",
        answer.head
    );
    assert!(
        answer
            .head
            .contains("content-type: text/plain; charset=utf-8")
    );
    assert_eq!(broker.post("/mpub?topic=t", b"a\nb\n").body, "OK");
    let stats = broker.get("/stats?format=json&topic=t");
    assert!(stats.body.contains(r#""topic_name":"t""#), "{}", stats.body);
    assert!(
        stats.body.contains(r#""message_count":3"#),
        "{}",
        stats.body
    );
    assert!(
        stats
            .head
            .contains("content-type: application/json; charset=utf-8")
    );
    assert!(
        !stats.body.contains(r#""heap_in_use_bytes":0"#),
        "{}",
        stats.body
    );
    assert!(
        broker
            .get("/stats")
            .body
            .contains("[t              ] depth: 3 ")
    );
}

#[test]
fn ping_carries_no_nsq_header() {
    let broker = start(|_| {});
    let answer = broker.get("/ping");
    assert_eq!((answer.status, answer.body.as_str()), (200, "OK"));
    assert!(!answer.head.contains("x-nsq-content-type"));
}

#[test]
fn bodies_are_bounded_before_they_are_read() {
    let broker = start(|config| {
        config.nsq.max_msg_size = ByteSize(1_000);
        config.nsq.max_body_size = ByteSize(2_000);
    });
    let gigabyte = |path: &str| {
        let head = format!(
            "POST {path}?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
        );
        exchange(broker.http(), &[head.as_bytes(), &[b'x'; 10_000]])
    };
    let answer = gigabyte("/pub");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (413, r#"{"message":"MSG_TOO_BIG"}"#)
    );
    let answer = gigabyte("/mpub");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (413, r#"{"message":"BODY_TOO_BIG"}"#)
    );
    assert_eq!(gigabyte("/topic/create").status, 413);
    assert_eq!(broker.post("/pub?topic=t", &[b'x'; 1_000]).status, 200);
}

#[test]
fn chunked_bodies_are_bounded_too() {
    let broker = start(|config| config.nsq.max_msg_size = ByteSize(1_000));
    let send = |chunks: usize| {
        let head =
            b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunk = [b"64\r\n".as_slice(), &[b'x'; 100], b"\r\n"].concat();
        exchange(
            broker.http(),
            &[head.as_slice(), &chunk.repeat(chunks), b"0\r\n\r\n"],
        )
    };
    assert_eq!(send(10).body, "OK");
    let answer = send(11);
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (413, r#"{"message":"MSG_TOO_BIG"}"#)
    );
    assert_eq!(send(10_000).status, 413);
}

#[test]
fn unknown_paths_and_methods_are_errors() {
    let broker = start(|_| {});
    let answer = broker.post("/stats", b"");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (405, r#"{"message":"METHOD_NOT_ALLOWED"}"#)
    );
    assert!(answer.head.contains("allow: get"), "{}", answer.head);
    let answer = broker.get("/debug/pprof/");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (404, r#"{"message":"NOT_FOUND"}"#)
    );
}

#[test]
fn the_lookup_interface_names_this_broker() {
    let broker = start(|_| {});
    broker.post("/channel/create?topic=t&channel=c", b"");
    broker.post("/topic/create?topic=t", b"");
    let tcp = broker
        .server
        .addresses()
        .of("nsq.tcp_address")
        .unwrap()
        .port();
    let answer = request(broker.lookup(), "GET", "/lookup?topic=t", b"");
    assert_eq!(answer.status, 200);
    assert!(
        answer.body.contains(r#""broadcast_address":"127.0.0.1""#),
        "{}",
        answer.body
    );
    assert!(
        answer.body.contains(&format!(r#""tcp_port":{tcp}"#)),
        "{}",
        answer.body
    );
    assert!(answer.head.contains("x-nsq-content-type: nsq; version=1.0"));
    let answer = request(broker.lookup(), "GET", "/lookup?topic=none", b"");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (404, r#"{"message":"TOPIC_NOT_FOUND"}"#)
    );
}

#[test]
fn options_are_those_of_the_configuration() {
    let broker = start(|config| config.nsq.max_rdy_count = 17);
    assert_eq!(broker.get("/config/max_rdy_count").body, "17");
    assert_eq!(broker.get("/config/msg_timeout").body, "60000000000");
    assert_eq!(broker.get("/config/broadcast_address").body, "127.0.0.1");
    assert_eq!(broker.get("/config/tls_min_version").body, "771");
    assert_eq!(broker.put("/config/log_level", b"warn").body, "3");
    assert_eq!(broker.get("/config/log_level").body, "3");
    assert_eq!(broker.put("/config/log_level", b"").status, 413);
}

#[test]
fn changes_by_web_pages_are_refused() {
    let broker = start(|_| {});
    let from = |address, method: &str, path: &str, host: &str, more: &str| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\
             Content-Length: 0\r\n\r\n"
        );
        exchange(address, &[head.as_bytes()])
    };
    let from_page = |address, method: &str, path: &str| {
        let origin = "Origin: https://example.com\r\n";
        from(address, method, path, "localhost", origin)
    };
    let answer = from_page(broker.http(), "POST", "/topic/create?topic=t");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (403, r#"{"message":"FORBIDDEN_ORIGIN"}"#)
    );
    assert_eq!(
        from_page(broker.lookup(), "POST", "/topic/create?topic=t").status,
        403
    );
    assert_eq!(from_page(broker.http(), "GET", "/ping").status, 200);
    // A page whose site name was resolved to the broker's address.
    for (address, path) in [(broker.http(), "/stats"), (broker.lookup(), "/topics")] {
        let answer = from(address, "GET", path, "evil.example:4151", "");
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (403, r#"{"message":"FORBIDDEN_ORIGIN"}"#)
        );
        let answer = from(address, "GET", path, "127.0.0.1:4151", "");
        assert_eq!(answer.status, 200);
        assert_eq!(
            from(address, "GET", "/ping", "evil.example", "").status,
            200
        );
    }
}

#[test]
fn a_remotely_reachable_interface_accepts_any_host() {
    let broker = start(|config| {
        config.nsq.http_address.0 = "0.0.0.0:0".to_owned();
        config.general.allow_anonymous_remote = true;
    });
    let port = broker.http().port();
    let head = "GET /stats HTTP/1.1\r\nHost: nsqd\r\nConnection: close\r\n\r\n";
    let answer = exchange(([127, 0, 0, 1], port).into(), &[head.as_bytes()]);
    assert_eq!(answer.status, 200);
}
