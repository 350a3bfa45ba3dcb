//! nsqlookupd's HTTP interface for this one broker.

use std::sync::atomic::Ordering;

use crate::http_support::{Nsqd, error, ok, seen, start};
use cloverleaf_nsq::http::Content;
use serde_json::{Value, json};

const US: &str = concat!(
    r#"{"remote_address":"127.0.0.1:4150","hostname":"box","broadcast_address":"broker.test","#,
    r#""tcp_port":4150,"http_port":4151,"version":"1.3.0","topology_zone":"z","#,
    r#""topology_region":"r"}"#,
);

fn get(nsqd: &Nsqd, target: &str) -> Value {
    let (status, body) = seen(nsqd.lookup("GET", target));
    assert_eq!(status, 200, "{target}: {body}");
    serde_json::from_str(&body).unwrap()
}

fn post(nsqd: &Nsqd, target: &str) -> (u16, String) {
    seen(nsqd.lookup("POST", target))
}

fn us() -> Value {
    serde_json::from_str(US).unwrap()
}

#[test]
fn an_empty_broker_is_one_node_without_topics() {
    let nsqd = start();
    let ping = nsqd.lookup("GET", "/ping");
    assert_eq!(
        (ping.content, ping.body.as_ref()),
        (Content::Plain, &b"OK"[..])
    );
    assert_eq!(
        seen(nsqd.lookup("GET", "/info")),
        ok(r#"{"version":"1.3.0"}"#)
    );
    assert_eq!(seen(nsqd.lookup("GET", "/topics")), ok(r#"{"topics":[]}"#));
    assert_eq!(
        seen(nsqd.lookup("GET", "/channels?topic=t")),
        ok(r#"{"channels":[]}"#)
    );
    let node = &get(&nsqd, "/nodes")["producers"][0];
    assert_eq!(
        (&node["topics"], &node["tombstones"]),
        (&json!([]), &json!([]))
    );
    assert_eq!(node["broadcast_address"], "broker.test");
    assert_eq!(get(&nsqd, "/debug")["client::"][0]["id"], "127.0.0.1:4150");
}

#[test]
fn what_the_broker_has_is_registered() {
    let nsqd = start();
    nsqd.post("/topic/create?topic=t", b"");
    nsqd.post("/channel/create?topic=t&channel=c%23ephemeral", b"");
    nsqd.broker
        .topic_or_create("not nsq's", Default::default)
        .unwrap();
    assert_eq!(get(&nsqd, "/topics"), json!({ "topics": ["t"] }));
    assert_eq!(
        get(&nsqd, "/channels?topic=t"),
        json!({ "channels": ["c#ephemeral"] })
    );
    let lookup = json!({ "channels": ["c#ephemeral"], "producers": [us()] });
    assert_eq!(get(&nsqd, "/lookup?topic=t"), lookup);
    let node = &get(&nsqd, "/nodes")["producers"][0];
    assert_eq!(
        (&node["topics"], &node["tombstones"]),
        (&json!(["t"]), &json!([false]))
    );
    let debug = get(&nsqd, "/debug");
    let keys: Vec<&String> = debug.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["channel:t:c#ephemeral", "client::", "topic:t:"]);
    assert_eq!(
        debug["topic:t:"][0]["tombstoned_at"],
        -6_795_364_578_871_345_152_i64
    );
}

#[test]
fn creating_here_creates_in_the_broker() {
    let nsqd = start();
    assert_eq!(post(&nsqd, "/topic/create?topic=a"), ok(""));
    assert_eq!(post(&nsqd, "/channel/create?topic=b&channel=c"), ok(""));
    assert!(nsqd.broker.topic("a").is_some());
    assert!(nsqd.broker.topic("b").unwrap().subscription("c").is_some());
    assert_eq!(get(&nsqd, "/topics"), json!({ "topics": ["a", "b"] }));
}

#[test]
fn deleting_here_withdraws_and_keeps() {
    let nsqd = start();
    post(&nsqd, "/channel/create?topic=t&channel=c");
    post(&nsqd, "/channel/create?topic=t&channel=d");
    assert_eq!(post(&nsqd, "/channel/delete?topic=t&channel=c"), ok(""));
    assert_eq!(
        get(&nsqd, "/channels?topic=t"),
        json!({ "channels": ["d"] })
    );
    let again = post(&nsqd, "/channel/delete?topic=t&channel=c");
    assert_eq!(again, error(404, "CHANNEL_NOT_FOUND"));
    assert_eq!(post(&nsqd, "/topic/delete?topic=t"), ok(""));
    assert_eq!(get(&nsqd, "/topics"), json!({ "topics": [] }));
    assert_eq!(
        seen(nsqd.lookup("GET", "/lookup?topic=t")),
        error(404, "TOPIC_NOT_FOUND")
    );
    assert!(nsqd.broker.topic("t").unwrap().subscription("c").is_some());
    // So nsqadmin's second request, to nsqd, still finds the topic.
    assert_eq!(nsqd.post("/topic/delete?topic=t", b""), ok(""));
    // A new topic of the same name is registered.
    nsqd.post("/topic/create?topic=t", b"");
    assert_eq!(get(&nsqd, "/topics"), json!({ "topics": ["t"] }));
}

#[test]
fn a_new_channel_registers_its_topic_again() {
    let nsqd = start();
    post(&nsqd, "/channel/create?topic=t&channel=c");
    post(&nsqd, "/topic/delete?topic=t");
    nsqd.post("/channel/create?topic=t&channel=d", b"");
    let lookup = json!({ "channels": ["d"], "producers": [us()] });
    assert_eq!(get(&nsqd, "/lookup?topic=t"), lookup);
    post(&nsqd, "/channel/create?topic=t&channel=c");
    assert_eq!(
        get(&nsqd, "/channels?topic=t"),
        json!({ "channels": ["c", "d"] })
    );
}

#[test]
fn a_tombstone_hides_us_for_45_seconds() {
    let nsqd = start();
    post(&nsqd, "/channel/create?topic=t&channel=c");
    assert_eq!(
        post(&nsqd, "/topic/tombstone?topic=t&node=other:4151"),
        ok("")
    );
    assert_eq!(get(&nsqd, "/lookup?topic=t")["producers"], json!([us()]));
    assert_eq!(
        post(&nsqd, "/topic/tombstone?topic=t&node=broker.test:4151"),
        ok("")
    );
    let hidden = json!({ "channels": ["c"], "producers": [] });
    assert_eq!(get(&nsqd, "/lookup?topic=t"), hidden);
    assert_eq!(
        get(&nsqd, "/nodes")["producers"][0]["tombstones"],
        json!([true])
    );
    assert_eq!(get(&nsqd, "/debug")["topic:t:"][0]["tombstoned"], true);
    nsqd.world
        .now_ns
        .fetch_add(45_000_000_000, Ordering::Relaxed);
    assert_eq!(get(&nsqd, "/lookup?topic=t")["producers"], json!([us()]));
    assert_eq!(
        get(&nsqd, "/nodes")["producers"][0]["tombstones"],
        json!([false])
    );
    assert_eq!(
        post(&nsqd, "/topic/tombstone?topic=none&node=broker.test:4151"),
        ok("")
    );
}

#[test]
fn it_says_what_is_wrong() {
    let nsqd = start();
    let lookup = |target: &str| seen(nsqd.lookup("GET", target));
    for target in ["/lookup", "/channels"] {
        assert_eq!(lookup(target), error(400, "MISSING_ARG_TOPIC"), "{target}");
        assert_eq!(
            lookup(&format!("{target}?topic=%")),
            error(400, "INVALID_REQUEST")
        );
    }
    assert_eq!(lookup("/lookup?topic=none"), error(404, "TOPIC_NOT_FOUND"));
    assert_eq!(lookup("/nothing"), error(404, "NOT_FOUND"));
    assert_eq!(
        lookup("/topic/create?topic=t"),
        error(405, "METHOD_NOT_ALLOWED")
    );
    assert_eq!(post(&nsqd, "/topics"), error(405, "METHOD_NOT_ALLOWED"));
    for target in [
        "/topic/create",
        "/topic/delete",
        "/topic/tombstone",
        "/channel/create",
    ] {
        assert_eq!(
            post(&nsqd, target),
            error(400, "MISSING_ARG_TOPIC"),
            "{target}"
        );
    }
    assert_eq!(
        post(&nsqd, "/topic/create?topic=$"),
        error(400, "INVALID_ARG_TOPIC")
    );
    assert_eq!(
        post(&nsqd, "/topic/tombstone?topic=t"),
        error(400, "MISSING_ARG_NODE")
    );
    for command in ["create", "delete"] {
        let post = |query: &str| post(&nsqd, &format!("/channel/{command}?{query}"));
        assert_eq!(post("topic=$"), error(400, "INVALID_ARG_TOPIC"));
        assert_eq!(post("topic=t"), error(400, "MISSING_ARG_CHANNEL"));
        assert_eq!(post("topic=t&channel=$"), error(400, "INVALID_ARG_CHANNEL"));
    }
    let unknown = post(&nsqd, "/channel/delete?topic=t&channel=c");
    assert_eq!(unknown, error(404, "CHANNEL_NOT_FOUND"));
    assert_eq!(post(&nsqd, "/topic/delete?topic=none"), ok(""));
}
