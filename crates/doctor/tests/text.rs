//! The texts that people and programs read.

use crate::common::producers::Producer;
use crate::common::{MS, Who, World};
use cloverleaf_doctor::{Detail, Doctor, Query, Rule, findings_text, one_line};
use cloverleaf_telemetry::Protocol;

fn world() -> World {
    let mut world = World::new();
    let who = Who {
        client_id: "billing",
        ..Who::new(
            Protocol::Kafka,
            "confluent-kafka-python",
            "1.7.0-rdkafka-1.7.0",
        )
        .far(MS)
    };
    let probe = world.connect(&who);
    let mut one = Producer::new(probe, world.now_us, who.rtt_us);
    one.hole_us = 41 * MS;
    one.bytes = 2219;
    world.add(one);
    world.run(15);
    world
}

#[test]
fn all_of_a_finding_fits_a_screen_and_names_the_setting() {
    let report = world().doctor.report(&Query::default());
    let text = findings_text(&report, 80, false, Detail::Full);
    let expect = r#"NAGLE  at least 37 x, high severity
  confluent-kafka-python 1.7.0-rdkafka-1.7.0 "billing" at 10.0.0.1
  The client's kernel sends the rest of each request only after the broker's has
  acknowledged the beginning (Nagle's algorithm).

  seen    41 ms from the first byte of a request to its last,
          a round trip takes 1.0 ms; a delayed acknowledgement 40 ms more,
          100 % of 142 requests come so, though they have 2.2 KB,
          within 6.0 s.
  gain    at least 37 x: 870 messages/s instead of 24 on this connection.
          Now 1 request per 42 ms = 24 messages/s; without 41 ms until its rest
          comes, 1 per 1.1 ms = 870/s.
  change  socket.nagle.disable = true   (default in this version: false)
"#;
    assert!(text.starts_with(expect), "{text}");
    assert!(text.contains("\n              Producer({'socket.nagle.disable': True, ...})\n"));
    let end = "\n  more    cloverleaf doctor explain nagle   (nagle-190ceaaa)\n\n  1 finding; \
               1 connection, watched for 14.0 s.\n";
    assert!(text.ends_with(end), "{text}");
    assert!(text.lines().count() <= 24, "{text}");
}

#[test]
fn lines_are_as_long_as_the_terminal_is_wide() {
    let report = world().doctor.report(&Query::default());
    for width in [1, 40, 60, 80, 132] {
        for line in findings_text(&report, width, false, Detail::Full).lines() {
            let is_code = line.contains("Producer(");
            let fits = line.chars().count() <= width.max(40);
            assert!(is_code || fits, "{width}: {line}");
        }
    }
    let plain = findings_text(&report, 80, false, Detail::Full);
    let coloured = findings_text(&report, 80, true, Detail::Full);
    assert!(!plain.contains('\u{1b}') && coloured.contains("\u{1b}[1;31mNAGLE\u{1b}[0m"));
}

#[test]
fn the_log_gets_one_line() {
    let world = world();
    let (_, finding) = &world.appeared[0];
    assert_eq!(
        one_line(finding),
        "nagle: confluent-kafka-python 1.7.0-rdkafka-1.7.0 \"billing\" at 10.0.0.1: The client's \
         kernel sends the rest of each request only after the broker's has acknowledged the \
         beginning (Nagle's algorithm). Change socket.nagle.disable = true: at least 869 \
         messages/s instead of 24 to expect."
    );
}

#[test]
fn json_has_everything_and_can_be_read_back() {
    let report = world().doctor.report(&Query::default());
    let json = serde_json::to_value(&report).unwrap();
    let finding = &json["findings"][0];
    assert_eq!(finding["rule"], "nagle");
    assert_eq!(finding["severity"], "high");
    assert_eq!(finding["changes"][0]["setting"], "socket.nagle.disable");
    assert_eq!(
        finding["prediction"]["measure"],
        "connection_messages_per_second"
    );
    let back: cloverleaf_doctor::Report = serde_json::from_value(json).unwrap();
    assert_eq!(back.findings[0].id, report.findings[0].id);
}

#[test]
fn without_findings_it_says_so() {
    let text = findings_text(
        &World::new().doctor.report(&Query::default()),
        80,
        true,
        Detail::Full,
    );
    assert_eq!(text, "  No findings: 0 connections, watched for 0 µs.\n");
    let doctor = Doctor::new(cloverleaf_doctor::Advice::default());
    assert!(
        doctor
            .counts()
            .iter()
            .all(|it| (it.active, it.appeared) == (0, 0))
    );
    assert_eq!(doctor.counts().len(), 13);
}

#[test]
fn no_name_that_a_stranger_has_chosen_moves_the_cursor() {
    let mut report = world().doctor.report(&Query::default());
    let hostile = "a\u{1b}[2J\u{9b}31m\r\n\u{7}\u{202e}\u{2066}\u{7f}b c";
    let finding = &mut report.findings[0];
    for text in [
        &mut finding.client.library,
        &mut finding.client.version,
        &mut finding.client.client_id,
        &mut finding.client.platform,
        &mut finding.cause,
        &mut finding.id,
    ] {
        *text = hostile.to_owned();
    }
    finding.topic = Some(hostile.to_owned());
    finding.subscription = Some(format!("{hostile} {hostile}"));
    finding.unseen.push(hostile.to_owned());
    finding.evidence[0].text = hostile.to_owned();
    let change = &mut finding.changes[0];
    for text in [&mut change.setting, &mut change.say, &mut change.cost] {
        *text = hostile.to_owned();
    }
    (change.value, change.default) = (Some(hostile.to_owned()), Some(hostile.to_owned()));
    change.code.push(hostile.to_owned());
    let is_bad = |it: char| {
        (it.is_control() && it != '\n') || ['\u{202e}', '\u{2066}', '\u{200f}'].contains(&it)
    };
    report.findings[0].library_shown = Some(hostile.to_owned());
    for detail in [Detail::Short { more: "more" }, Detail::Full] {
        let text = findings_text(&report, 80, false, detail);
        assert!(!text.contains(is_bad), "{text:?}");
    }
    let line = one_line(&report.findings[0]);
    assert!(!line.contains(is_bad) && !line.contains('\n'), "{line:?}");
}

#[test]
fn a_gain_that_is_a_bound_is_told_as_one() {
    let found = |protocol: Protocol| {
        let mut world = World::new();
        let who = Who::new(protocol, "somebody", "1.0");
        let probe = world.connect(&who);
        let one = Producer::new(probe, world.now_us, who.rtt_us);
        world.add(one);
        world.run(15);
        let finding = world.only(Rule::SyncProduce);
        let text = findings_text(
            &world.doctor.report(&Query::default()),
            80,
            false,
            Detail::Full,
        );
        let bound = serde_json::to_value(&finding).unwrap()["prediction"]["bound"].clone();
        (bound, text, one_line(&finding))
    };
    // A client that need not wait sends batches, where there are any.
    let (bound, text, line) = found(Protocol::Nsq);
    assert_eq!(bound, "at_least");
    assert!(
        text.starts_with("SYNC-PRODUCE  at least 10 x, high severity  "),
        "{text}"
    );
    assert!(
        text.contains("\n  gain    at least 10 x: 985 messages/s"),
        "{text}"
    );
    assert!(
        line.contains(": at least 985 messages/s instead of 99 to expect."),
        "{line}"
    );
    let (bound, text, line) = found(Protocol::Amqp);
    assert_eq!(bound, "exact");
    assert!(
        text.starts_with("SYNC-PRODUCE  10 x, high severity  "),
        "{text}"
    );
    assert!(
        line.contains(": 985 messages/s instead of 99 to expect."),
        "{line}"
    );
}

#[test]
fn connections_that_are_closed_have_been_seen() {
    let mut world = World::new();
    let who = Who::new(Protocol::Kafka, "x", "1").far(MS);
    let probes = [world.connect(&who), world.connect(&who)];
    world.run(2);
    drop(probes);
    world.run(1);
    let report = world.doctor.report(&Query::default());
    let text = findings_text(&report, 80, false, Detail::Full);
    let expect = "  No findings: 0 connections now, 2 since the start; watched for 2.0 s.\n";
    assert_eq!(text, expect);
}
