//! Declares 10,000 durable queues, each with one binding, and restarts: measures time and memory.
//!
//! `cargo run --release -p cloverleaf-amqp --example many_queues -- FOLDER`
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use cloverleaf_amqp::host::VirtualHost;
use cloverleaf_amqp::wire::{Table, method};
use cloverleaf_broker::{Broker, BrokerOptions, Realm, SystemClock};
use cloverleaf_log::{Log, LogOptions, RealDisk};

const QUEUES: u32 = 10_000;

fn rss() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    line.unwrap_or_default().to_owned()
}

fn main() {
    let Some(folder) = std::env::args().nth(1) else {
        return println!("a folder is wanted");
    };
    for round in 0..2 {
        let disk = RealDisk::open(&folder).unwrap();
        let start = Instant::now();
        let (log, recovery) = Log::open(disk, LogOptions::default()).unwrap();
        let clock = Arc::new(SystemClock::default());
        let broker = Broker::open(log.clone(), recovery, BrokerOptions::default(), clock).unwrap();
        let host = VirtualHost::open(Realm::unrestricted(broker.clone())).unwrap();
        println!("round {round}: opened in {:?}, {}", start.elapsed(), rss());
        let (b, h) = (broker.clone(), host.clone());
        let house = std::thread::spawn(move || b.run_housekeeping());
        let router = std::thread::spawn(move || h.run_router());
        let owner = host.owner();
        let start = Instant::now();
        for number in 0..QUEUES {
            let name = format!("queue-{number}");
            let declare = method::QueueDeclare {
                queue: &name,
                durable: true,
                ..method::QueueDeclare::default()
            };
            host.declare_queue(owner, &declare).unwrap();
        }
        println!("declared in {:?}, {}", start.elapsed(), rss());
        let start = Instant::now();
        for number in 0..QUEUES {
            let name = format!("queue-{number}");
            host.bind_queue(owner, &name, "amq.topic", &name, Table::default())
                .unwrap();
        }
        println!("bound in {:?}, {}", start.elapsed(), rss());
        if round == 1 {
            let start = Instant::now();
            for number in 0..QUEUES {
                host.delete_queue(owner, &format!("queue-{number}"), false, false)
                    .unwrap();
            }
            println!("deleted in {:?}, {}", start.elapsed(), rss());
        }
        host.close();
        broker.close();
        log.close();
        router.join().unwrap();
        house.join().unwrap();
    }
}
