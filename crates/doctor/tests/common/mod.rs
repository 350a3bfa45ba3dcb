//! A made-up world: clients that publish and consume in virtual time, and a doctor that looks once
//! a second. Real probes are told what the clients do, as the broker's sessions would tell them.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

pub mod consumers;
pub mod producers;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use cloverleaf_doctor::{Advice, Doctor, Finding, Observation, Query, Queue, Rule};
use cloverleaf_telemetry::{Identity, Probe, Protocol, Registry, TcpInfo};

/// A second.
pub const S: u64 = 1_000_000;
/// A millisecond.
pub const MS: u64 = 1_000;
/// When the world begins, by the calendar.
pub const UNIX_US: u64 = 1_760_000_000 * S;

/// A client that does something.
pub trait Model {
    /// Does it up to that time.
    fn run(&mut self, to_us: u64);

    /// The queues that it consumes from.
    fn queues(&self) -> Vec<Queue> {
        Vec::new()
    }
}

/// The client that a connection belongs to.
#[derive(Clone)]
pub struct Who {
    pub protocol: Protocol,
    pub library: &'static str,
    pub version: &'static str,
    pub client_id: &'static str,
    pub platform: &'static str,
    pub address: [u8; 4],
    pub rtt_us: u64,
}

impl Who {
    pub fn new(protocol: Protocol, library: &'static str, version: &'static str) -> Who {
        Who {
            protocol,
            library,
            version,
            client_id: "",
            platform: "",
            address: [10, 0, 0, 1],
            rtt_us: 10 * MS,
        }
    }

    pub fn at(self, address: [u8; 4]) -> Who {
        Who { address, ..self }
    }

    pub fn far(self, rtt_us: u64) -> Who {
        Who { rtt_us, ..self }
    }
}

pub struct World {
    pub registry: Registry,
    pub doctor: Doctor,
    pub now_us: u64,
    models: Vec<Box<dyn Model>>,
    rtts: Rc<RefCell<HashMap<i32, u64>>>,
    /// How much longer than the least one the round trips are by now, as far as the kernel's mean
    /// shows it.
    pub queue_us: u64,
    ports: u16,
    /// Findings that appeared, with the second in which they did.
    pub appeared: Vec<(u64, Finding)>,
}

impl World {
    pub fn new() -> World {
        World {
            registry: Registry::new(),
            doctor: Doctor::new(Advice::embedded()),
            now_us: 100 * S,
            models: Vec::new(),
            rtts: Rc::default(),
            queue_us: 0,
            ports: 10_000,
            appeared: Vec::new(),
        }
    }

    /// A connection that has just been made.
    pub fn connect(&mut self, who: &Who) -> Probe {
        self.ports += 1;
        let peer = SocketAddr::from((who.address, self.ports));
        let probe = self.registry.open(who.protocol, peer, self.now_us);
        probe.identify(Identity {
            library: who.library.to_owned(),
            version: who.version.to_owned(),
            client_id: who.client_id.to_owned(),
            platform: who.platform.to_owned(),
        });
        let descriptor = i32::from(self.ports);
        probe.attach_socket(descriptor);
        self.rtts.borrow_mut().insert(descriptor, who.rtt_us);
        probe
    }

    pub fn add(&mut self, model: impl Model + 'static) {
        self.models.push(Box::new(model));
    }

    /// Stops all clients: no model does anything any more.
    pub fn stop(&mut self) {
        self.models.clear();
    }

    pub fn observation(&self) -> Observation {
        let rtts = self.rtts.borrow();
        let tcp = |descriptor: i32| {
            let rtt_us = *rtts.get(&descriptor)? as u32;
            Some(TcpInfo {
                // A client that answers late makes it look longer.
                rtt_us: rtt_us + rtt_us / 10 + self.queue_us as u32,
                min_rtt_us: rtt_us,
                ..TcpInfo::default()
            })
        };
        Observation {
            taken_us: self.now_us,
            unix_us: UNIX_US + self.now_us,
            snapshot: self.registry.snapshot(self.now_us, tcp),
            queues: self
                .models
                .iter()
                .flat_map(|model| model.queues())
                .collect(),
        }
    }

    pub fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now_us += S;
            for model in &mut self.models {
                model.run(self.now_us);
            }
            let observation = self.observation();
            let new = self.doctor.observe(&observation);
            let second = self.now_us / S - 100;
            self.appeared.extend(new.into_iter().map(|it| (second, it)));
        }
    }

    pub fn findings(&self) -> Vec<Finding> {
        self.doctor.report(&Query::default()).findings
    }

    pub fn rules(&self) -> Vec<Rule> {
        self.findings().iter().map(|it| it.rule).collect()
    }

    /// The one finding that there is.
    #[track_caller]
    pub fn only(&self, rule: Rule) -> Finding {
        let findings = self.findings();
        match &findings[..] {
            [finding] if finding.rule == rule => {
                reads_well(finding);
                finding.clone()
            }
            _ => panic!("{rule} expected, not {findings:#?}"),
        }
    }

    /// Nothing was ever found.
    #[track_caller]
    pub fn silent(&self) {
        if let Some((second, finding)) = self.appeared.first() {
            let seen: Vec<&str> = finding.evidence.iter().map(|it| it.text.as_str()).collect();
            let rule = finding.rule;
            let sum = &finding.prediction.arithmetic;
            panic!(
                "{rule} after {second} s: {seen:#?}, {sum}, {} us",
                finding.window_us
            );
        }
        assert!(self.findings().is_empty());
    }
}

/// A number that stays within a factor of another one.
#[track_caller]
pub fn about(value: f64, expect: f64, factor: f64) {
    let is_near = value <= expect * factor && value >= expect / factor;
    assert!(
        is_near,
        "{value}, expected {expect} within a factor of {factor}"
    );
}

/// One of something is not called many.
#[track_caller]
fn reads_well(finding: &Finding) {
    let facts = finding.evidence.iter().map(|it| &it.text);
    let texts = facts.chain([&finding.cause, &finding.prediction.arithmetic]);
    for text in texts {
        let words: Vec<&str> = text
            .split(' ')
            .map(|it| it.trim_end_matches([',', ';', ':']))
            .collect();
        for pair in words.windows(2) {
            let is_many = pair[1].ends_with('s') && pair[1].len() > 3;
            assert!(pair[0] != "1" || !is_many, "{text}");
        }
    }
}

/// The value of a finding's fact.
#[track_caller]
pub fn fact(finding: &Finding, name: &str) -> f64 {
    let found = finding.evidence.iter().find(|fact| fact.name == name);
    found
        .unwrap_or_else(|| panic!("no {name} in {:#?}", finding.evidence))
        .value
}

/// Numbers that look random and are the same in each run.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to below `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low).max(1)
    }
}
