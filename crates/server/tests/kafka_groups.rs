//! Consumer groups in a real broker: their timers, their lag in the admin interface, the shutdown.

use std::io::{Read, Write};
use std::time::Duration;

use crate::kafka_support::{
    Broker, Client, JOIN_GROUP, OFFSET_COMMIT, PRODUCE, eventually, produce_body, start,
    start_driven, string,
};
use crate::support::expect_shutdown;
use cloverleaf_server::admin_types::{GroupDetails, GroupSummary};

/// Commits an offset of partition 0, without being a member.
fn commit<S: Read + Write>(client: &mut Client<S>, group: &str, topic: &str, offset: i64) {
    let mut body = Vec::new();
    string(&mut body, group);
    body.extend_from_slice(&(-1i32).to_be_bytes());
    string(&mut body, "");
    body.extend_from_slice(&(-1i64).to_be_bytes());
    body.extend_from_slice(&1i32.to_be_bytes());
    string(&mut body, topic);
    body.extend_from_slice(&1i32.to_be_bytes());
    body.extend_from_slice(&0i32.to_be_bytes());
    body.extend_from_slice(&offset.to_be_bytes());
    body.extend_from_slice(&(-1i16).to_be_bytes());
    let answer = client.ask(OFFSET_COMMIT, 2, &body);
    assert_eq!(answer[answer.len() - 2..], [0, 0]);
}

/// Sends the JoinGroup request of a new member.
fn join<S: Read + Write>(client: &mut Client<S>, group: &str, timeout_ms: i32) {
    let mut body = Vec::new();
    string(&mut body, group);
    body.extend_from_slice(&timeout_ms.to_be_bytes());
    string(&mut body, "");
    string(&mut body, "consumer");
    body.extend_from_slice(&1i32.to_be_bytes());
    string(&mut body, "range");
    body.extend_from_slice(&0i32.to_be_bytes());
    let request = client.request(JOIN_GROUP, 0, &body);
    client.send(&request);
}

fn json(answer: &str) -> &str {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1
}

fn group(broker: &Broker, name: &str) -> GroupDetails {
    let answer = broker.admin(&format!("/api/groups/{name}"));
    serde_json::from_str(json(&answer)).unwrap()
}

#[test]
fn the_admin_interface_shows_groups_with_their_lag() {
    let broker = start(|_| {});
    let mut client = broker.client();
    client.make_topic("orders");
    client.produce("orders", 1, &[b"1", b"2", b"3", b"4", b"5"]);
    commit(&mut client, "billing", "orders", 2);
    let shown = group(&broker, "billing");
    assert_eq!((shown.summary.lag, shown.summary.members), (3, 0));
    let [partition] = &shown.partition_details[..] else {
        panic!("{shown:?}");
    };
    let numbers = (
        partition.committed_offset,
        partition.end_offset,
        partition.lag,
    );
    assert_eq!((&*partition.topic, numbers), ("orders", (2, 5, 3)));
    let answer = broker.admin("/api/groups");
    let all: Vec<GroupSummary> = serde_json::from_str(json(&answer)).unwrap();
    assert_eq!(all, [shown.summary]);
    let page = broker.admin("/metrics");
    let line = "cloverleaf_kafka_group_lag{group=\"billing\",topic=\"orders\",partition=\"0\"} 3";
    assert!(page.contains(line), "{page}");
    assert!(broker.admin("/api/groups/none").starts_with("HTTP/1.1 404"));
    assert_eq!(json(&broker.admin("/api/clients")), "[]");
}

#[test]
fn the_metrics_show_connections_with_their_software() {
    let broker = start(|_| {});
    let mut client = broker.client();
    // ApiVersions 3, with compact strings: name and version of the client's software.
    let mut body = vec![0];
    for text in ["testlib", "1.2.3"] {
        body.push(text.len() as u8 + 1);
        body.extend_from_slice(text.as_bytes());
    }
    body.push(0);
    client.ask(crate::kafka_support::API_VERSIONS, 3, &body);
    let page = broker.admin("/metrics");
    assert!(
        page.contains("protocol=\"kafka\",client=\"testlib/1.2.3\""),
        "{page}"
    );
    assert!(broker.admin("/debug/connections").contains("testlib"));
}

#[test]
fn a_silent_member_is_removed_after_its_session_timeout() {
    let (broker, mut time) = start_driven(|_| {});
    let mut client = broker.client();
    join(&mut client, "g", 30_000);
    client.answer();
    time.pass(Duration::from_millis(29_900));
    assert_eq!(group(&broker, "g").summary.members, 1);
    // No request reaches the group: its timer alone ends the session.
    time.pass(Duration::from_millis(101));
    assert_eq!(group(&broker, "g").summary.members, 0);
}

#[test]
fn a_waiting_join_does_not_delay_the_shutdown() {
    let (broker, _time) = start_driven(|config| {
        config.general.drain_timeout = Duration::from_secs(3600);
    });
    let mut first = broker.client();
    join(&mut first, "g", 30_000);
    first.answer();
    let mut second = broker.client();
    join(&mut second, "g", 30_000);
    eventually("both are in", || group(&broker, "g").summary.members == 2);
    // This request follows the join on the same connection: it is answered after the join, or not
    // at all.
    let request = second.request(PRODUCE, 3, &produce_body("t", 1, &[b"x"]));
    second.send(&request);
    expect_shutdown(broker);
}
