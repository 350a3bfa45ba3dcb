//! The short form of a finding: what a stranger reads in one screen.

use crate::common::consumers::{Taker, Takers};
use crate::common::producers::Producer;
use crate::common::{MS, S, Who, World};
use cloverleaf_doctor::{Detail, Query, Report, findings_text};
use cloverleaf_telemetry::Protocol;

const SHORT: Detail = Detail::Short {
    more: "cloverleaf doctor --details",
};

fn short(report: &Report, width: usize) -> String {
    findings_text(report, width, false, SHORT)
}

fn report(world: &World) -> Report {
    world.doctor.report(&Query::default())
}

/// A producer that waits; with a hole before each request's end, or without.
fn producer(world: &mut World, who: &Who, hole_us: u64) {
    let probe = world.connect(who);
    let mut one = Producer::new(probe, world.now_us, who.rtt_us);
    one.hole_us = hole_us;
    one.bytes = 2219;
    world.add(one);
}

fn confluent(client_id: &'static str) -> Who {
    Who {
        client_id,
        ..Who::new(
            Protocol::Kafka,
            "confluent-kafka-python",
            "1.7.0-rdkafka-1.7.0",
        )
        .far(MS)
    }
}

/// Two connections of one pipeline whose messages, two at a time, go to the same worker.
fn pipeline() -> World {
    let mut world = World::new();
    let who = Who {
        platform: "Erlang/OTP 24.3",
        ..Who::new(Protocol::Amqp, "RabbitMQ", "3.10.8").far(300)
    };
    let mut taker = || Taker::new(world.connect(&who), who.rtt_us, 50, 0);
    let members = vec![taker(), taker()];
    let job_us = 22 * S;
    let times = (0..10).map(move |at| (S + at * (2 * job_us + S), 2));
    let takers = Takers::new(members, &[1], Box::new(move |_| job_us), world.now_us);
    world.add(takers.with_arrivals(times));
    world.run(160);
    world
}

#[test]
fn seed_001_reads_the_setting_and_the_gain() {
    let mut world = World::new();
    producer(&mut world, &confluent("billing"), 41 * MS);
    world.run(15);
    let expect = r#"NAGLE  at least 37 x, high severity
  confluent-kafka-python 1.7.0-rdkafka-1.7.0 "billing" at 10.0.0.1
  The client's kernel sends the rest of each request only after the broker's has
  acknowledged the beginning (Nagle's algorithm).
  change  socket.nagle.disable = true   (default in this version: false)
          Producer({'socket.nagle.disable': True, ...})
  gain    at least 870 messages/s instead of 24: now 1 request per 42 ms = 24
          messages/s; without 41 ms until its rest comes, 1 per 1.1 ms = 870/s.
  costs   More small packets; no more bytes of messages. Batches are made by
          linger.ms, not by Nagle.
  seen    41 ms from the first byte of a request to its last; a round trip takes
          1.0 ms; a delayed acknowledgement 40 ms more.

  1 finding; 1 connection, watched for 14.0 s.
  More: cloverleaf doctor --details; cloverleaf doctor explain nagle
"#;
    assert_eq!(short(&report(&world), 80), expect);
}

#[test]
fn seed_003_reads_the_setting_and_the_gain() {
    assert_eq!(report(&pipeline()).findings[0].connections, 2);
    let expect = r#"HOARDING  2.0 x, medium severity, likely
  RabbitMQ's Erlang client 3.10.8 (Broadway?) at 10.0.0.1, on q
  The client's consumers take messages from each other that then wait for one
  worker, while its other workers have nothing to do.
  change  producer: [concurrency: 1]
  with    processors: [default: [max_demand: 1]]; qos: [prefetch_count:
          processors × max_demand]
  gain    0.09 messages/s instead of 0.05: now 1 job of 22 s at a time = 0.05/s;
          all that it has at once, in 1 wave instead of 2 = 0.09/s.
  costs   None where fetching is not the bottleneck.
  seen    1 job at a time, though the client has up to 2 messages on 2
          consumers.

  1 finding; 2 connections, watched for 159 s.
  More: cloverleaf doctor --details; cloverleaf doctor explain hoarding
"#;
    assert_eq!(short(&report(&pipeline()), 80), expect);
}

/// The worst that real clients bring: long names, and changes that need others beside them.
fn many() -> Report {
    let mut world = World::new();
    producer(&mut world, &confluent("billing"), 41 * MS);
    let new = Who::new(
        Protocol::Kafka,
        "confluent-kafka-python",
        "2.16.1-rdkafka-2.16.1",
    );
    producer(&mut world, &new, 0);
    let pika = Who::new(Protocol::Amqp, "Pika Python Client Library", "1.3.2");
    producer(&mut world, &pika, 0);
    producer(&mut world, &Who::new(Protocol::Nsq, "go-nsq", "1.1.0"), 0);
    producer(&mut world, &Who::new(Protocol::Nsq, "", ""), 0);
    world.run(15);
    let mut many = report(&world);
    many.findings.extend(report(&pipeline()).findings);
    assert_eq!(many.findings.len(), 6);
    many
}

#[test]
fn any_two_findings_fit_a_terminal_of_24_lines() {
    let many = many();
    for one in &many.findings {
        for other in &many.findings {
            let findings = vec![one.clone(), other.clone()];
            let text = short(
                &Report {
                    findings,
                    ..many.clone()
                },
                80,
            );
            assert!(text.lines().count() <= 24, "{text}");
            for part in [
                "severity",
                "\n  change  ",
                "\n  gain    ",
                "\n  costs   ",
                "\n  seen    ",
            ] {
                assert_eq!(text.matches(part).count(), 2, "{part}\n{text}");
            }
        }
    }
}

#[test]
fn its_lines_are_as_long_as_the_terminal_is_wide() {
    let many = many();
    for width in [1, 40, 60, 80, 132] {
        for line in short(&many, width).lines() {
            assert!(line.chars().count() <= width.max(40), "{width}: {line}");
        }
    }
    let coloured = findings_text(&many, 80, true, SHORT);
    assert!(
        coloured.contains("\u{1b}[1;31mNAGLE\u{1b}[0m"),
        "{coloured}"
    );
    assert!(!short(&many, 80).contains('\u{1b}'));
}

#[test]
fn a_client_without_advice_has_the_numbers_all_the_same() {
    let mut report = many();
    report.findings.truncate(1);
    report.findings[0].changes.clear();
    let text = short(&report, 80);
    assert!(
        text.contains("\n  change  none is known for this client\n"),
        "{text}"
    );
    assert!(
        !text.contains("costs") && text.contains("\n  gain    "),
        "{text}"
    );
}
