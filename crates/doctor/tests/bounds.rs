//! Any input to the doctor: no panic, bounded memory, bounded output, and the same again.

use std::net::SocketAddr;

use crate::common::producers::Producer;
use crate::common::{Dice, MS, Model, S, Who, World};
use cloverleaf_doctor::{
    Advice, Consumer, Detail, Doctor, Observation, Partition, Query, Queue, findings_text, one_line,
};
use cloverleaf_telemetry::{
    ClosedConnection, ConnectionSnapshot, Counters, Gauges, HistogramSnapshot, Histograms,
    Identity, Protocol, Snapshot, TcpInfo,
};
use proptest::prelude::*;

/// Characters that must not reach a terminal; in a line not even the first.
const FORBIDDEN: &[char] = &['\n', '\u{1b}', '\0'];

fn doctor() -> Doctor {
    Doctor::new(Advice::embedded())
}

/// A number of any size; small ones are as likely as large ones.
fn number(dice: &mut Dice) -> u64 {
    let bits = dice.roll() % 65;
    match bits {
        0 => 0,
        bits => dice.roll() >> (64 - bits),
    }
}

fn histogram(dice: &mut Dice) -> HistogramSnapshot {
    let mut buckets: Vec<(u16, u64)> = (0..dice.roll() % 12)
        .map(|_| ((dice.roll() % 496) as u16, number(dice) % (1 << 50)))
        .collect();
    buckets.sort_unstable();
    buckets.dedup_by_key(|it| it.0);
    let sum = number(dice);
    HistogramSnapshot::from_buckets(buckets, sum, number(dice)).unwrap()
}

fn identity(dice: &mut Dice) -> Identity {
    let names = ["", "go-nsq", "librdkafka", "RabbitMQ", "\u{1b}[2J", "ä\n\0"];
    let mut name = || names[(dice.roll() % names.len() as u64) as usize].to_owned();
    Identity {
        library: name(),
        version: name(),
        client_id: name(),
        platform: name(),
    }
}

fn counters(dice: &mut Dice) -> Counters {
    Counters::from_array(std::array::from_fn(|_| number(dice)))
}

fn peer(dice: &mut Dice) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, (dice.roll() % 4) as u8], dice.roll() as u16))
}

fn protocol(dice: &mut Dice) -> Protocol {
    Protocol::ALL[(dice.roll() % 5) as usize]
}

fn connection(dice: &mut Dice, id: u64) -> ConnectionSnapshot {
    let mut gauge = || number(dice);
    let gauges = Gauges {
        requests_in_flight: gauge(),
        requests_in_flight_max: gauge(),
        credit_granted: gauge(),
        credit_used: gauge(),
        no_credit_since_us: gauge(),
        holding_since_us: gauge(),
        first_ack_us: gauge(),
    };
    ConnectionSnapshot {
        id,
        protocol: protocol(dice),
        peer: peer(dice),
        identity: identity(dice),
        opened_us: number(dice),
        last_active_us: number(dice),
        counters: counters(dice),
        gauges,
        histograms: Histograms::from_array(std::array::from_fn(|_| histogram(dice))),
        tcp: (!dice.roll().is_multiple_of(3)).then(|| TcpInfo {
            rtt_us: number(dice) as u32,
            min_rtt_us: number(dice) as u32,
            ..TcpInfo::default()
        }),
    }
}

fn closed(dice: &mut Dice) -> ClosedConnection {
    ClosedConnection {
        id: dice.roll() % 50,
        protocol: protocol(dice),
        peer: peer(dice),
        identity: identity(dice),
        opened_us: number(dice),
        last_active_us: number(dice),
        counters: counters(dice),
        is_inside_request: dice.roll().is_multiple_of(2),
        young_rtt_us: number(dice) as u32,
        request_gap_us: histogram(dice),
        receiving_us: number(dice),
        record_ages: number(dice),
        record_ages_us: number(dice),
    }
}

fn queue(dice: &mut Dice) -> Queue {
    let consumer = |dice: &mut Dice| Consumer {
        connection: dice.roll() % 10,
        credit: number(dice),
        in_flight: number(dice),
        deadline_us: Some(number(dice)),
    };
    let partition = |dice: &mut Dice| Partition {
        partition: (dice.roll() % 5) as u32,
        published: number(dice),
        lag: number(dice),
        connection: Some(dice.roll() % 10),
    };
    Queue {
        topic: ["a", "b"][(dice.roll() % 2) as usize].to_owned(),
        name: ["c", "d"][(dice.roll() % 2) as usize].to_owned(),
        protocol: protocol(dice),
        backlog: number(dice),
        deadline_us_max: Some(number(dice)),
        consumers: (0..dice.roll() % 5).map(|_| consumer(dice)).collect(),
        partitions: (0..dice.roll() % 5).map(|_| partition(dice)).collect(),
    }
}

/// Adds a second's traffic to a connection, if it is a sane one.
fn grow(dice: &mut Dice, connection: &mut ConnectionSnapshot) {
    let values = connection.counters.to_array();
    let values = values.map(|value| value.saturating_add(number(dice) % (1 << 30)));
    connection.counters = Counters::from_array(values);
    let mut more = connection.histograms.clone();
    more = Histograms::from_array(more.to_array().map(|known| {
        let mut known = known.clone();
        let bucket = (dice.roll() % 200) as u16;
        let count = number(dice) % (1 << 20);
        let value = count << (bucket / 8).saturating_sub(1);
        known.merge(&HistogramSnapshot::from_buckets(vec![(bucket, count)], value, value).unwrap());
        known
    }));
    connection.histograms = more;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn anything_is_survived_and_answered_the_same(seed in any::<u64>(), is_wild in any::<bool>()) {
        let mut dice = Dice(seed);
        let (mut one, mut other) = (doctor(), doctor());
        let mut connections: Vec<_> = (0..6).map(|id| connection(&mut dice, id)).collect();
        let mut taken_us = number(&mut dice) % (1 << 40);
        for _ in 0..30 {
            for connection in &mut connections {
                grow(&mut dice, connection);
            }
            if is_wild {
                let at = (dice.roll() % 6) as usize;
                connections[at] = connection(&mut dice, at as u64);
            }
            taken_us = match dice.roll() % 20 {
                0 => number(&mut dice),
                1 => taken_us.saturating_sub(5 * S),
                _ => taken_us.saturating_add(dice.between(S / 2, 3 * S)),
            };
            let observation = Observation {
                taken_us,
                unix_us: number(&mut dice),
                snapshot: Snapshot {
                    taken_us,
                    totals: Vec::new(),
                    connections: connections.clone(),
                    closed: (0..dice.roll() % 40).map(|_| closed(&mut dice)).collect(),
                },
                queues: (0..dice.roll() % 4).map(|_| queue(&mut dice)).collect(),
            };
            let new = one.observe(&observation);
            for finding in &new {
                let line = one_line(finding);
                prop_assert!(!line.contains(FORBIDDEN), "{line:?}");
            }
            prop_assert_eq!(new.len(), other.observe(&observation).len());
        }
        let query = Query { since_us: Some(u64::MAX), client: None };
        let report = one.report(&query);
        prop_assert_eq!(&report, &other.report(&query));
        prop_assert_eq!(&report, &one.snapshot().report(&query));
        for finding in &report.findings {
            prop_assert!(finding.prediction.gain >= 1.3, "{finding:#?}");
            prop_assert!(finding.prediction.gain.is_finite());
        }
        prop_assert!(one.history_bytes() < 1 << 20);
        for detail in [Detail::Short { more: "more" }, Detail::Full] {
            for width in [1, 80] {
                let text = findings_text(&report, width, false, detail);
                prop_assert!(!text.contains(&FORBIDDEN[1..]));
            }
        }
        prop_assert!(serde_json::to_string(&report).is_ok());
    }
}

#[test]
fn ten_thousand_busy_connections_have_bounded_memory_and_output() {
    let mut world = World::new();
    for number in 0..10_000u32 {
        // Each a client of its own, and each of them waits for every answer.
        let [_, b, c, d] = number.to_be_bytes();
        let who = Who::new(Protocol::Nsq, "go-nsq", "1.1.0")
            .at([10, b, c, d])
            .far(100 * MS);
        let probe = world.connect(&who);
        world.add(Producer::new(probe, world.now_us, who.rtt_us));
    }
    world.run(13);
    let bytes = world.doctor.history_bytes();
    assert!(bytes < 64 << 20, "{bytes}");
    let report = world.doctor.report(&Query::default());
    assert_eq!(report.connections, 10_000);
    assert_eq!(report.findings.len(), 200);
    assert!(
        report.more > 500 && report.more <= 1024 - 200,
        "{}",
        report.more
    );
    assert!(world.appeared.len() <= 1024, "{}", world.appeared.len());
    let text = findings_text(&report, 100, true, Detail::Full);
    assert!(text.len() < 1 << 20, "{}", text.len());
    let active: u64 = world.doctor.counts().iter().map(|it| it.active).sum();
    assert_eq!(active, 1024);
}

#[test]
fn histories_share_one_memory() {
    let mut dice = Dice(9);
    let bytes_max = 3 << 20;
    let mut doctor = doctor().with_history_bytes_max(bytes_max);
    let mut unbounded = Doctor::new(Advice::default());
    // Connections whose numbers are spread as widely as they can be.
    let mut connections: Vec<_> = (0..500).map(|id| connection(&mut dice, id)).collect();
    for second in 1..=80 {
        for connection in &mut connections {
            connection.opened_us = 1;
            grow(&mut dice, connection);
        }
        let observation = Observation {
            taken_us: second * 2 * S,
            snapshot: Snapshot {
                connections: connections.clone(),
                ..Snapshot::default()
            },
            ..Observation::default()
        };
        doctor.observe(&observation);
        unbounded.observe(&observation);
        let bytes = doctor.history_bytes();
        assert!(bytes <= bytes_max, "{bytes}");
    }
    assert!(unbounded.history_bytes() > bytes_max);
}

#[test]
fn a_clock_that_jumps_harms_nobody() {
    let mut world = World::new();
    let who = Who::new(Protocol::Nsq, "go-nsq", "1.1.0");
    let probe = world.connect(&who);
    let mut one = Producer::new(probe, world.now_us, who.rtt_us);
    for second in 0..60u64 {
        world.now_us += S;
        one.run(world.now_us);
        let mut observation = world.observation();
        // The calendar goes back an hour, and forth a year; a look comes late, and once before.
        observation.unix_us = [5, 1 << 60, observation.unix_us][(second % 3) as usize];
        if second % 7 == 0 {
            let late = Observation {
                taken_us: observation.taken_us - 3 * S,
                ..observation.clone()
            };
            assert!(world.doctor.observe(&late).is_empty() || second == 0);
        }
        world.doctor.observe(&observation);
    }
    assert_eq!(world.rules(), [cloverleaf_doctor::Rule::SyncProduce]);
}

#[test]
fn findings_are_asked_for_by_client_and_time() {
    let mut world = World::new();
    let clients = [
        Who::new(Protocol::Nsq, "go-nsq", "1.1.0"),
        Who::new(Protocol::Kafka, "librdkafka", "2.3.0").at([10, 0, 0, 2]),
    ];
    for who in &clients {
        let probe = world.connect(who);
        world.add(Producer::new(probe, world.now_us, who.rtt_us));
    }
    world.run(15);
    let asked = |world: &World, client: Option<&str>, since_us| {
        let query = Query {
            since_us,
            client: client.map(str::to_owned),
        };
        world.doctor.report(&query).findings.len()
    };
    assert_eq!(asked(&world, None, None), 2);
    assert_eq!(asked(&world, Some("10.0.0.2"), None), 1);
    assert_eq!(asked(&world, Some("GO-NSQ"), None), 1);
    assert_eq!(asked(&world, Some("pika"), None), 0);
    world.stop();
    world.run(60);
    assert_eq!(asked(&world, None, None), 0);
    assert_eq!(asked(&world, None, Some(300 * S)), 2);
    assert_eq!(asked(&world, None, Some(10 * S)), 0);
    let report = world.doctor.report(&Query {
        since_us: Some(300 * S),
        client: None,
    });
    assert!(report.findings.iter().all(|it| !it.is_active));
    let counts = world.doctor.counts();
    let sync = counts
        .iter()
        .find(|it| it.rule == cloverleaf_doctor::Rule::SyncProduce)
        .unwrap();
    assert_eq!((sync.active, sync.appeared), (0, 2));
}
