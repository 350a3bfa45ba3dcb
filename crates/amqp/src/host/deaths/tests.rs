#![allow(clippy::unwrap_used, clippy::expect_used)]

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn death<'a>(queue: &'a str, reason: &'a str, time_s: u64) -> Death<'a> {
    Death {
        queue,
        reason,
        count: 1,
        time_s,
        exchange: "x",
        keys: vec!["k"],
        expiration: None,
    }
}

/// Encodes a history into properties, and passes the decoded properties to `check`.
fn write_and_read(deaths: &Deaths<'_>, headers: &[u8], check: impl FnOnce(Properties<'_>)) {
    let properties = Properties {
        headers: Some(Table::check(headers).unwrap()),
        expiration: Some("5000"),
        message_id: Some("id"),
        ..Properties::default()
    };
    let bytes = deaths.write(&properties);
    check(Properties::read(&bytes).unwrap());
}

#[test]
fn headers_are_those_that_programs_look_at() {
    let mut deaths = Deaths::default();
    let mut first = death("q", "expired", 1_700);
    (first.exchange, first.expiration) = ("", Some("5000"));
    deaths.add(first);
    deaths.add(death("dlq", "rejected", 1_800));
    let own = table_bytes(&[
        ("x-death", Value::Bool(true)),
        ("x-first-death-queue", Value::String(b"forged")),
        ("mine", Value::I32(1)),
    ]);
    write_and_read(&deaths, &own, |properties| {
        assert_eq!(properties.expiration, None);
        assert_eq!(properties.message_id, Some("id"));
        let headers = properties.headers.unwrap();
        let text = |name: &str| headers.get(name).and_then(|value| value.as_text());
        assert_eq!(text("x-first-death-reason"), Some("expired"));
        assert_eq!(text("x-first-death-queue"), Some("q"));
        assert_eq!(text("x-first-death-exchange"), Some(""));
        assert_eq!(text("x-last-death-reason"), Some("rejected"));
        assert_eq!(text("x-last-death-queue"), Some("dlq"));
        assert_eq!(headers.get("mine"), Some(Value::I32(1)));
        let names: Vec<&str> = headers.fields().map(|(name, _)| name).collect();
        assert!(names.is_sorted(), "{names:?}");
        let Some(Value::Array(entries)) = headers.get("x-death") else {
            panic!("no x-death");
        };
        let entries: Vec<Value<'_>> = entries.values().collect();
        let Value::Table(oldest) = entries[1] else {
            panic!("no table");
        };
        let fields: Vec<(&str, Value<'_>)> = oldest.fields().collect();
        assert_eq!(fields[0], ("original-expiration", Value::String(b"5000")));
        assert_eq!(fields[1], ("count", Value::I64(1)));
        assert_eq!(fields[2], ("reason", Value::String(b"expired")));
        assert_eq!(fields[3], ("queue", Value::String(b"q")));
        assert_eq!(fields[4], ("time", Value::Timestamp(1_700)));
        assert_eq!(fields[5], ("exchange", Value::String(b"")));
        assert_eq!(fields[6].0, "routing-keys");
    });
}

#[test]
fn the_keys_of_a_death_are_those_that_a_consumer_may_see() {
    let more = array_bytes(&[Value::String(b"other")]);
    let own = table_bytes(&[("CC", array(&more)), ("BCC", array(&more))]);
    assert_eq!(
        death_keys("first", Table::check(&own).unwrap()),
        ["first", "other"]
    );
    assert_eq!(death_keys("first", Table::default()), ["first"]);
}

#[test]
fn the_history_is_bounded() {
    let names: Vec<String> = (0..300).map(|number| format!("q{number}")).collect();
    let mut deaths = Deaths::default();
    for name in &names {
        deaths.add(death(name, "rejected", 1));
    }
    assert_eq!(deaths.all.len(), DEATHS_MAX);
    assert_eq!(deaths.all[0].queue, "q299");
    assert_eq!(deaths.first.unwrap()[1], "q0");
}

#[test]
fn the_history_fits_into_a_frame_beside_what_the_message_has() {
    let names: Vec<String> = (0..100).map(|number| format!("{number:0>255}")).collect();
    let mut deaths = Deaths::default();
    for name in &names {
        let mut death = death(name, "rejected", 1);
        death.keys = vec![name; KEYS_MAX];
        deaths.add(death);
    }
    let count_beside = |own: usize| {
        let own = "x".repeat(own);
        let headers = table_bytes(&[("own", Value::String(own.as_bytes()))]);
        let properties = Properties {
            headers: Table::check(&headers).ok(),
            ..Properties::default()
        };
        let bytes = deaths.write(&properties);
        assert!(bytes.len() < 128 << 10, "{} bytes", bytes.len());
        let written = Properties::read(&bytes).unwrap();
        let read = Deaths::read(written.headers.unwrap());
        for (read, death) in read.all.iter().zip(&deaths.all) {
            assert_eq!(read.queue, death.queue, "the latest entries are kept");
        }
        assert_eq!(read.first, deaths.first);
        let whole = read.all.iter().filter(|death| !death.keys.is_empty());
        (read.all.len(), whole.count())
    };
    assert_eq!(count_beside(0), (10, 7));
    assert_eq!(count_beside(110 << 10), (5, 2));
    assert_eq!(count_beside(118 << 10), (5, 0));
}

#[test]
fn a_cycle_is_detected_although_its_deaths_do_not_fit() {
    let large = "x".repeat(119 << 10);
    let own = table_bytes(&[("own", Value::String(large.as_bytes()))]);
    let names: Vec<String> = (0..8).map(|number| format!("{number:0>255}")).collect();
    for (reason, is_cycle) in [("expired", true), ("rejected", false)] {
        let mut bytes = Vec::new();
        let properties = Properties {
            headers: Some(Table::check(&own).unwrap()),
            ..Properties::default()
        };
        properties.write(&mut Writer::new(&mut bytes));
        for name in &names {
            let properties = Properties::read(&bytes).unwrap();
            let mut deaths = Deaths::read(properties.headers.unwrap());
            deaths.add(death(name, reason, 1));
            bytes = deaths.write(&properties);
        }
        let written = Properties::read(&bytes).unwrap();
        let read = Deaths::read(written.headers.unwrap());
        assert!(read.all.len() < names.len(), "not all fit");
        assert_eq!(read.is_cycle(&names[0]), is_cycle, "{reason}");
    }
}

const QUEUES: [&str; 3] = ["a", "b", "c"];
const REASONS: [&str; 4] = ["expired", "maxlen", "delivery_limit", "rejected"];

proptest! {
    /// Compared with the plain list of all deaths.
    #[test]
    fn counts_order_and_cycles_follow_from_what_happened(
        events in vec((0usize..3, 0usize..4), 1..30),
    ) {
        let mut deaths = Deaths::default();
        for (at, (queue, reason)) in events.iter().enumerate() {
            deaths.add(death(QUEUES[*queue], REASONS[*reason], at as u64));
        }
        // Each pair of queue and reason, with the time of its last death and its count.
        let mut expected: Vec<(usize, usize, (usize, usize))> = Vec::new();
        for (at, pair) in events.iter().enumerate() {
            match expected.iter_mut().find(|(_, _, known)| known == pair) {
                Some(known) => (known.0, known.1) = (at, known.1 + 1),
                None => expected.push((at, 1, *pair)),
            }
        }
        expected.sort_by_key(|(last, _, _)| std::cmp::Reverse(*last));
        for ((_, count, (queue, reason)), death) in expected.iter().zip(&deaths.all) {
            prop_assert_eq!(death.queue, QUEUES[*queue]);
            prop_assert_eq!(death.reason, REASONS[*reason]);
            prop_assert_eq!(death.count, *count as i64);
            let first = events.iter().position(|pair| pair == &(*queue, *reason)).unwrap();
            prop_assert_eq!(death.time_s, first as u64);
        }
        prop_assert_eq!(expected.len(), deaths.all.len());
        for (queue, name) in QUEUES.iter().enumerate() {
            let latest = expected.iter().position(|(_, _, (q, _))| *q == queue);
            let is_cycle = latest.is_some_and(|at| {
                expected[..=at].iter().all(|(_, _, (_, reason))| *reason != 3)
            });
            prop_assert_eq!(deaths.is_cycle(name), is_cycle);
        }
        write_and_read(&deaths, &[], |properties| {
            assert_eq!(Deaths::read(properties.headers.unwrap()), deaths);
        });
    }
}
