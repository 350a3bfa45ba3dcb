//! How long the doctor takes with ten thousand busy connections: a look, a step, an answer.
//!
//! ```text
//! cargo run --release -p cloverleaf-doctor --example ten_thousand
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::time::Instant;

use cloverleaf_doctor::{
    Advice, Consumer, Detail, Doctor, Observation, Query, Queue, findings_text,
};
use cloverleaf_telemetry::{Probe, Protocol, Registry, TcpInfo};

const CONNECTIONS: u32 = 10_000;
const SECONDS: u64 = 30;

fn main() -> Result<(), Box<dyn Error>> {
    let registry = Registry::new();
    let mut doctor = Doctor::new(Advice::embedded());
    let probes: Vec<Probe> = (0..CONNECTIONS)
        .map(|number| {
            let [_, b, c, d] = number.to_be_bytes();
            let peer = SocketAddr::from(([10, b, c, d], 1));
            let probe = registry.open(Protocol::Nsq, peer, 1);
            probe.attach_socket(1);
            probe
        })
        .collect();
    for second in 1..=SECONDS {
        let now_us = second * 1_000_000;
        for (number, probe) in probes.iter().enumerate() {
            work(probe, now_us - 1_000_000, number as u64);
        }
        let tcp = TcpInfo {
            rtt_us: 10_000,
            min_rtt_us: 10_000,
            ..TcpInfo::default()
        };
        let start = Instant::now();
        let observation = Observation {
            taken_us: now_us,
            unix_us: now_us,
            snapshot: registry.snapshot(now_us, |_| Some(tcp)),
            queues: vec![queue(&probes)],
        };
        let shown = start.elapsed();
        let start = Instant::now();
        let new = doctor.observe(&observation).len();
        println!(
            "{second:3} s: snapshot {shown:?}, observe {:?}, {new} new, histories {} KB",
            start.elapsed(),
            doctor.history_bytes() / 1000
        );
    }
    let start = Instant::now();
    let report = doctor.report(&Query::default());
    let text = findings_text(&report, 100, false, Detail::Full);
    let (answered, bytes) = (start.elapsed(), text.len());
    println!(
        "answer: {answered:?}, {} findings and {} more, {bytes} bytes of text",
        report.findings.len(),
        report.more
    );
    Ok(())
}

/// A second of a client that publishes and waits, and consumes a little.
fn work(probe: &Probe, from_us: u64, seed: u64) {
    let mut at_us = from_us;
    for number in 0..90 {
        at_us += 10_000 + (seed * 31 + number * 17) % 700;
        probe.read(200, at_us);
        probe.request(1, 150 + number, at_us, at_us);
        probe.answered(1, at_us + 40 + number % 60);
        if number % 3 == 0 {
            probe.delivered(1, 0);
            probe.credit_used(1, at_us);
            probe.acked_many(1, 9_000 + number * 211);
            probe.acks(1, 0, at_us + 50);
            probe.credit_used(0, at_us + 50);
        }
    }
}

fn queue(probes: &[Probe]) -> Queue {
    let consumer = |probe: &Probe| Consumer {
        connection: probe.id(),
        credit: 10,
        in_flight: 1,
        deadline_us: Some(60_000_000),
    };
    Queue {
        topic: "t".to_owned(),
        name: "c".to_owned(),
        protocol: Protocol::Nsq,
        backlog: 1,
        deadline_us_max: Some(900_000_000),
        consumers: probes.iter().map(consumer).collect(),
        partitions: Vec::new(),
    }
}
