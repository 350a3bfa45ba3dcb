//! nsqd's HTTP interface over a real broker: the requests of nsqd's own `http_test.go`, and every
//! error.

use std::sync::atomic::Ordering;

use crate::http_support::{error, ok, start};
use cloverleaf_nsq::http::Content;
use cloverleaf_nsq::http::nsqd::BodyError;
use proptest::prelude::*;

fn binary(messages: &[&[u8]]) -> Vec<u8> {
    let mut body = (messages.len() as u32).to_be_bytes().to_vec();
    for message in messages {
        body.extend((message.len() as u32).to_be_bytes());
        body.extend(*message);
    }
    body
}

#[test]
fn pub_stores_one_message() {
    let nsqd = start();
    assert_eq!(nsqd.post("/pub?topic=t", b"test message"), ok("OK"));
    let topic = &nsqd.stats("")["topics"][0];
    assert_eq!(topic["topic_name"], "t");
    assert_eq!(topic["depth"], 1);
    assert_eq!(topic["message_count"], 1);
    assert_eq!(topic["channels"], serde_json::json!([]));
}

#[test]
fn pub_says_what_is_wrong() {
    let nsqd = start();
    let long = [b'x'; 101];
    assert_eq!(nsqd.post("/pub?topic=t", b""), error(400, "MSG_EMPTY"));
    assert_eq!(nsqd.post("/pub?topic=t", &long), error(413, "MSG_TOO_BIG"));
    assert_eq!(nsqd.post("/pub", b"x"), error(400, "MISSING_ARG_TOPIC"));
    assert_eq!(
        nsqd.post("/pub?topic=a%20b", b"x"),
        error(400, "INVALID_TOPIC")
    );
    assert_eq!(nsqd.post("/pub?topic=", b"x"), error(400, "INVALID_TOPIC"));
    assert_eq!(
        nsqd.post("/pub?topic=%z", b"x"),
        error(400, "INVALID_REQUEST")
    );
    for defer in ["x", "-1", "3600001", "", "1.5"] {
        let result = nsqd.post(&format!("/pub?topic=t&defer={defer}"), b"x");
        assert_eq!(result, error(400, "INVALID_DEFER"), "{defer}");
    }
    // Of several faults, the one of the body is reported, as in nsqd.
    assert_eq!(nsqd.post("/pub", b""), error(400, "MSG_EMPTY"));
    let too_long = nsqd.call_with_bad_body("POST", "/pub?topic=t", BodyError::TooLong);
    assert_eq!(too_long.status, 413);
    assert_eq!(too_long.body, r#"{"message":"MSG_TOO_BIG"}"#);
    let broken = nsqd.call_with_bad_body("POST", "/pub?topic=t", BodyError::Broken);
    assert_eq!(broken.body, r#"{"message":"INTERNAL_ERROR"}"#);
}

#[test]
fn a_deferred_pub_is_not_ready_yet() {
    let nsqd = start();
    assert_eq!(nsqd.post("/pub?topic=t&defer=3600000", b"x"), ok("OK"));
    assert_eq!(nsqd.post("/pub?topic=t&defer=0", b"x"), ok("OK"));
    assert_eq!(nsqd.stats("")["topics"][0]["message_count"], 2);
    assert_eq!(nsqd.stats("")["topics"][0]["depth"], 1);
    // As in nsqd, a deferred message counts for the topic while there is no channel.
    nsqd.broker.tick();
    assert_eq!(nsqd.stats("")["topics"][0]["depth"], 2);
}

#[test]
fn a_deferred_pub_waits_in_each_channel() {
    let nsqd = start();
    assert_eq!(nsqd.post("/topic/create?topic=t", b"").0, 200);
    for channel in ["one", "two"] {
        let target = format!("/channel/create?topic=t&channel={channel}");
        assert_eq!(nsqd.post(&target, b"").0, 200);
    }
    assert_eq!(nsqd.post("/pub?topic=t&defer=3600000", b"later"), ok("OK"));
    assert_eq!(nsqd.post("/pub?topic=t", b"now"), ok("OK"));
    let of = |topic: &serde_json::Value, channel: usize, count: &str| {
        topic["channels"][channel][count].as_u64().unwrap()
    };
    nsqd.broker.tick();
    let topic = &nsqd.stats("")["topics"][0];
    for channel in 0..2 {
        assert_eq!(of(topic, channel, "deferred_count"), 1);
        assert_eq!(of(topic, channel, "depth"), 1);
        assert_eq!(of(topic, channel, "message_count"), 2);
    }
    assert_eq!(topic["depth"], 0);
    assert_eq!(topic["message_count"], 2);
    assert_eq!(topic["message_bytes"], "later".len() + "now".len());
    let (_, text) = nsqd.get("/stats");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("def: ")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines.iter().all(|line| line.contains("def: 1 ")), "{text}");
}

#[test]
fn mpub_takes_lines() {
    let nsqd = start();
    assert_eq!(nsqd.post("/mpub?topic=t", b"a\nb\n\n\nc\nd"), ok("OK"));
    assert_eq!(nsqd.post("/mpub?topic=t&binary=false", b"\n\n"), ok("OK"));
    assert_eq!(nsqd.stats("")["topics"][0]["depth"], 4);
}

#[test]
fn mpub_takes_the_binary_form() {
    let nsqd = start();
    let body = binary(&[b"a", b"b\n", b"c"]);
    assert_eq!(nsqd.post("/mpub?topic=t&binary=true", &body), ok("OK"));
    // nsqd treats unknown words as true.
    assert_eq!(nsqd.post("/mpub?topic=t&binary=some", &body), ok("OK"));
    assert_eq!(nsqd.stats("")["topics"][0]["depth"], 6);
}

#[test]
fn mpub_says_what_is_wrong() {
    let nsqd = start();
    let long_line = [b'x'; 101];
    assert_eq!(
        nsqd.post("/mpub?topic=t", &long_line),
        error(413, "MSG_TOO_BIG")
    );
    assert_eq!(
        nsqd.post("/mpub?topic=t", &[b'\n'; 1_001]),
        error(413, "BODY_TOO_BIG")
    );
    assert_eq!(nsqd.post("/mpub", b"a"), error(400, "MISSING_ARG_TOPIC"));
    assert_eq!(
        nsqd.post("/mpub?topic=$", b"a"),
        error(400, "INVALID_TOPIC")
    );
    assert_eq!(
        nsqd.post("/mpub?topic=t&binary=1", b"a"),
        error(413, "BAD_BODY")
    );
    assert_eq!(
        nsqd.post("/mpub?topic=t&binary=1", &[0; 8]),
        error(413, "BAD_BODY")
    );
    let body = binary(&[b""]);
    assert_eq!(
        nsqd.post("/mpub?topic=t&binary=1", &body),
        error(413, "BAD_MESSAGE")
    );
    let body = binary(&[&long_line]);
    assert_eq!(
        nsqd.post("/mpub?topic=t&binary=1", &body),
        error(413, "BAD_MESSAGE")
    );
    let too_long = nsqd.call_with_bad_body("POST", "/mpub?topic=t", BodyError::TooLong);
    assert_eq!(too_long.body, r#"{"message":"BODY_TOO_BIG"}"#);
}

#[test]
fn nothing_is_published_while_exiting() {
    let nsqd = start();
    nsqd.world.is_exiting.store(true, Ordering::Relaxed);
    assert_eq!(nsqd.post("/pub?topic=t", b"x"), error(503, "EXITING"));
    assert_eq!(nsqd.post("/mpub?topic=t", b"x"), error(503, "EXITING"));
}

#[test]
fn topics_and_channels_are_managed() {
    let nsqd = start();
    assert_eq!(nsqd.post("/topic/create?topic=t", b""), ok(""));
    assert_eq!(nsqd.post("/channel/create?topic=t&channel=c", b""), ok(""));
    for what in ["/topic/pause?topic=t", "/channel/pause?topic=t&channel=c"] {
        assert_eq!(nsqd.post(what, b""), ok(""));
    }
    let topic = &nsqd.stats("")["topics"][0];
    assert_eq!(
        (&topic["paused"], &topic["channels"][0]["paused"]),
        (&true.into(), &true.into())
    );
    for what in [
        "/topic/unpause?topic=t",
        "/channel/unpause?topic=t&channel=c",
    ] {
        assert_eq!(nsqd.post(what, b""), ok(""));
    }
    assert_eq!(nsqd.post("/mpub?topic=t", b"a\nb"), ok("OK"));
    let topic = &nsqd.stats("")["topics"][0];
    assert_eq!(
        (&topic["paused"], &topic["depth"]),
        (&false.into(), &0.into())
    );
    let channel = &topic["channels"][0];
    assert_eq!(
        (&channel["paused"], &channel["depth"]),
        (&false.into(), &2.into())
    );
    assert_eq!(
        (&channel["message_count"], &channel["backend_depth"]),
        (&2.into(), &2.into())
    );
    assert_eq!(nsqd.post("/channel/empty?topic=t&channel=c", b""), ok(""));
    assert_eq!(nsqd.stats("")["topics"][0]["channels"][0]["depth"], 0);
    assert_eq!(nsqd.post("/channel/delete?topic=t&channel=c", b""), ok(""));
    assert_eq!(
        nsqd.stats("")["topics"][0]["channels"],
        serde_json::json!([])
    );
    assert_eq!(nsqd.post("/pub?topic=t", b"x"), ok("OK"));
    assert_eq!(nsqd.post("/topic/empty?topic=t", b""), ok(""));
    assert_eq!(nsqd.stats("")["topics"][0]["depth"], 0);
    assert_eq!(nsqd.post("/topic/delete?topic=t", b""), ok(""));
    assert_eq!(nsqd.stats("")["topics"], serde_json::json!([]));
}

#[test]
fn topic_commands_say_what_is_wrong() {
    let nsqd = start();
    for command in ["create", "delete", "empty", "pause", "unpause"] {
        let missing = nsqd.post(&format!("/topic/{command}"), b"");
        assert_eq!(missing, error(400, "MISSING_ARG_TOPIC"), "{command}");
        let malformed = nsqd.post(&format!("/topic/{command}?topic=%"), b"");
        assert_eq!(malformed, error(400, "INVALID_REQUEST"), "{command}");
        let invalid = nsqd.post(&format!("/topic/{command}?topic=$"), b"");
        let expected = match command {
            "create" | "empty" => error(400, "INVALID_TOPIC"),
            // nsqd does not validate the name here: it just finds no such topic.
            _ => error(404, "TOPIC_NOT_FOUND"),
        };
        assert_eq!(invalid, expected, "{command}");
        if command != "create" {
            let unknown = nsqd.post(&format!("/topic/{command}?topic=t"), b"");
            assert_eq!(unknown, error(404, "TOPIC_NOT_FOUND"), "{command}");
        }
    }
}

#[test]
fn channel_commands_say_what_is_wrong() {
    let nsqd = start();
    nsqd.post("/topic/create?topic=t", b"");
    for command in ["create", "delete", "empty", "pause", "unpause"] {
        let post = |query: &str| nsqd.post(&format!("/channel/{command}?{query}"), b"");
        assert_eq!(post(""), error(400, "MISSING_ARG_TOPIC"), "{command}");
        assert_eq!(
            post("topic=$&channel=c"),
            error(400, "INVALID_ARG_TOPIC"),
            "{command}"
        );
        assert_eq!(
            post("topic=t"),
            error(400, "MISSING_ARG_CHANNEL"),
            "{command}"
        );
        assert_eq!(
            post("topic=t&channel=$"),
            error(400, "INVALID_ARG_CHANNEL"),
            "{command}"
        );
        assert_eq!(
            post("topic=u&channel=c"),
            error(404, "TOPIC_NOT_FOUND"),
            "{command}"
        );
        assert_eq!(post("topic=;"), error(400, "INVALID_REQUEST"), "{command}");
        if command != "create" {
            assert_eq!(
                post("topic=t&channel=c"),
                error(404, "CHANNEL_NOT_FOUND"),
                "{command}"
            );
        }
    }
}

#[test]
fn ping_is_plain_text_and_tells_of_trouble() {
    let nsqd = start();
    let response = nsqd.call("GET", "/ping", b"");
    assert_eq!((response.status, response.content), (200, Content::Plain));
    assert_eq!(response.body, "OK");
    *nsqd.world.trouble.lock().unwrap() = Some("never gonna happen".into());
    assert_eq!(nsqd.get("/ping"), (500, "NOK - never gonna happen".into()));
    assert_eq!(nsqd.stats("")["health"], "NOK - never gonna happen");
}

#[test]
fn info_has_nsqds_fields_in_nsqds_order() {
    let nsqd = start();
    let expected = concat!(
        r#"{"version":"1.3.0","broadcast_address":"broker.test","hostname":"box","#,
        r#""http_port":4151,"tcp_port":4150,"start_time":1700000000,"#,
        r#""max_heartbeat_interval":60000000000,"max_output_buffer_size":65536,"#,
        r#""max_output_buffer_timeout":30000000000,"max_deflate_level":6,"#,
        r#""topology_zone":"z","topology_region":"r"}"#,
    );
    assert_eq!(nsqd.get("/info"), ok(expected));
}

#[test]
fn stats_can_be_filtered() {
    let nsqd = start();
    for target in [
        "/topic/create?topic=b",
        "/topic/create?topic=a",
        "/channel/create?topic=a&channel=y",
        "/channel/create?topic=a&channel=x",
        "/channel/create?topic=b&channel=x",
    ] {
        assert_eq!(nsqd.post(target, b""), ok(""));
    }
    let names = |stats: &serde_json::Value| -> Vec<String> {
        let topics = stats["topics"].as_array().unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let of = |topic: &serde_json::Value| {
            let channels = topic["channels"].as_array().unwrap();
            let names: Vec<_> = channels.iter().map(|c| text(&c["channel_name"])).collect();
            format!("{}:{}", text(&topic["topic_name"]), names.join(","))
        };
        topics.iter().map(of).collect()
    };
    assert_eq!(names(&nsqd.stats("")), ["a:x,y", "b:x"]);
    assert_eq!(names(&nsqd.stats("&topic=a")), ["a:x,y"]);
    assert_eq!(names(&nsqd.stats("&channel=y")), ["a:y"]);
    assert_eq!(names(&nsqd.stats("&topic=b&channel=x")), ["b:x"]);
    assert!(nsqd.stats("&topic=none")["topics"].is_null());
    assert_eq!(nsqd.get("/stats?topic=%"), error(400, "INVALID_REQUEST"));
}

#[test]
fn stats_leave_out_what_is_not_wanted() {
    let nsqd = start();
    nsqd.post("/topic/create?topic=t", b"");
    nsqd.post("/channel/create?topic=t&channel=c", b"");
    let consumer = nsqd.clients.connect("127.0.0.1:1000".into(), 0);
    consumer.subscribe("t", "c");
    let producer = nsqd.clients.connect("127.0.0.1:1001".into(), 0);
    producer.publish_counter("t").add(3);
    let stats = nsqd.stats("");
    let clients = &stats["topics"][0]["channels"][0]["clients"];
    assert_eq!(clients.as_array().unwrap().len(), 1);
    assert_eq!(clients[0]["remote_address"], "127.0.0.1:1000");
    assert_eq!(stats["producers"].as_array().unwrap().len(), 1);
    assert_eq!(stats["producers"][0]["pub_counts"][0]["count"], 3);
    assert_eq!(stats["memory"]["heap_in_use_bytes"], 42);
    let stats = nsqd.stats("&include_clients=false&include_mem=false");
    assert!(stats["topics"][0]["channels"][0]["clients"].is_null());
    assert!(stats["producers"].is_null());
    assert!(stats.get("memory").is_none());
    let stats = nsqd.stats("&include_clients=what&include_mem=1");
    assert!(!stats["producers"].is_null() && stats.get("memory").is_some());
}

#[test]
fn stats_are_text_unless_json_is_asked_for() {
    let nsqd = start();
    nsqd.post("/pub?topic=orders", b"x");
    let (status, text) = nsqd.get("/stats");
    assert_eq!(status, 200);
    assert!(text.starts_with("nsqd v1.3.0 "), "{text}");
    assert!(text.contains("uptime 1s\n"), "{text}");
    assert!(text.contains("   [orders         ] depth: 1 "), "{text}");
}

#[test]
fn options_are_shown_and_changed() {
    let nsqd = start();
    let put = |name: &str, body: &[u8]| {
        crate::http_support::seen(nsqd.call("PUT", &format!("/config/{name}"), body))
    };
    assert_eq!(nsqd.get("/config/nsqlookupd_tcp_addresses"), ok("[]"));
    let addresses = r#"["127.0.0.1:4160"]"#;
    assert_eq!(
        put("nsqlookupd_tcp_addresses", addresses.as_bytes()),
        ok(addresses)
    );
    assert_eq!(
        nsqd.runtime.values().lookupd_tcp_addresses,
        ["127.0.0.1:4160"]
    );
    assert_eq!(
        put("nsqlookupd_tcp_addresses", b"x"),
        error(400, "INVALID_VALUE")
    );
    assert_eq!(put("log_level", b"fatal"), ok("5"));
    assert_eq!(put("log_level", b"bad"), error(400, "INVALID_VALUE"));
    assert_eq!(put("log_level", b""), error(413, "INVALID_VALUE"));
    assert_eq!(put("log_level", &[b'x'; 101]), error(413, "INVALID_VALUE"));
    assert_eq!(put("max_msg_size", b"1"), error(400, "INVALID_OPTION"));
    assert_eq!(nsqd.get("/config/max_msg_size"), ok("100"));
    assert_eq!(nsqd.get("/config/nothing"), error(400, "INVALID_OPTION"));
}

#[test]
fn unknown_paths_and_methods_are_refused() {
    let nsqd = start();
    assert_eq!(nsqd.get("/not_found"), error(404, "NOT_FOUND"));
    assert_eq!(nsqd.get("/debug/pprof/"), error(404, "NOT_FOUND"));
    assert_eq!(nsqd.post("/stats", b""), error(405, "METHOD_NOT_ALLOWED"));
    assert_eq!(nsqd.call("POST", "/stats", b"").allow, "GET");
}

#[test]
fn topics_that_nsq_cannot_spell_are_invisible() {
    let nsqd = start();
    nsqd.broker
        .topic_or_create("not nsq's", Default::default)
        .unwrap();
    assert_eq!(nsqd.stats("")["topics"], serde_json::json!([]));
    assert_eq!(
        nsqd.post("/topic/delete?topic=not+nsq's", b""),
        error(404, "TOPIC_NOT_FOUND")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_mpub_is_answered(
        bodies in proptest::collection::vec(
            (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..200)), 1..8),
    ) {
        let nsqd = start();
        for (binary, body) in bodies {
            let (status, _) = nsqd.post(&format!("/mpub?topic=t&binary={binary}"), &body);
            prop_assert!(status == 200 || status == 413);
        }
    }
}
