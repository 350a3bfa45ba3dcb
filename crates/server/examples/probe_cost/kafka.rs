//! Kafka: Produce 7 with `acks=1`, Fetch 4.

use std::sync::Arc;

use cloverleaf_broker::{Realm, TopicOptions};
use cloverleaf_kafka::control::ConnectionPeer as KafkaPeer;
use cloverleaf_kafka::{KafkaContext, KafkaOptions, Session, SessionParts, Worker};
use cloverleaf_log::BatchBuilder;
use cloverleaf_telemetry::Protocol;

use crate::{BODY, CLIENT, Outcome, Peer, SimulatedBroker};

/// The position of the offset within the request of [`fetch`].
const FETCH_OFFSET_AT: usize = 50;

/// Runs blocking jobs at once, on the caller's thread. The measured rounds have no such jobs.
struct AtOnce;

impl Worker for AtOnce {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

pub(crate) fn play(simulated: &SimulatedBroker, rounds: u32, per_round: u32) -> Outcome<u64> {
    simulated
        .broker
        .topic_or_create("t", TopicOptions::default)?;
    let worker = || Arc::new(AtOnce);
    let (realm, options) = (
        Realm::unrestricted(simulated.broker.clone()),
        KafkaOptions::default(),
    );
    let context = KafkaContext::new(realm, options, worker(), worker());
    let connect = || {
        let parts = SessionParts {
            context: context.clone(),
            peer: KafkaPeer {
                remote: CLIENT,
                local: CLIENT,
                tls: false,
                software: None,
            },
            probe: simulated.probe(Protocol::Kafka),
        };
        Peer::new(simulated, Session::new(parts, simulated.now()))
    };
    let (mut producer, mut consumer) = (connect(), connect());
    let records = batch(per_round);
    let publish = produce(&records);
    let mut fetch = fetch();
    let mut consumed = 0_u64;
    for _ in 0..rounds {
        simulated.next_round(per_round);
        producer.say(&publish);
        fetch[FETCH_OFFSET_AT..FETCH_OFFSET_AT + 8].copy_from_slice(&consumed.to_be_bytes());
        // The batch comes back as it was sent, except for its offset.
        let has_come = consumer.say(&fetch).ends_with(&records[21..]);
        consumed += u64::from(has_come) * u64::from(per_round);
    }
    Ok(consumed)
}

fn batch(count: u32) -> Vec<u8> {
    let mut builder = BatchBuilder::with_capacity(64, 1_700_000_000_000);
    for _ in 0..count {
        builder.push(None, Some(&BODY), &[]);
    }
    builder.finish().bytes().to_vec()
}

fn produce(records: &[u8]) -> Vec<u8> {
    let mut body = (-1_i16).to_be_bytes().to_vec(); // no transaction
    body.extend(1_i16.to_be_bytes()); // acks
    body.extend(1_000_i32.to_be_bytes()); // time-out
    body.extend(one_topic());
    body.extend((records.len() as i32).to_be_bytes());
    body.extend(records);
    request(0, 7, &body)
}

fn fetch() -> Vec<u8> {
    let mut body = (-1_i32).to_be_bytes().to_vec(); // no replica
    body.extend(500_i32.to_be_bytes()); // wait at most
    body.extend(1_i32.to_be_bytes()); // bytes at least
    body.extend((50_i32 << 20).to_be_bytes()); // bytes at most
    body.push(0); // isolation
    body.extend(one_topic());
    body.extend(0_i64.to_be_bytes()); // offset
    body.extend((1_i32 << 20).to_be_bytes()); // bytes of the partition at most
    request(1, 4, &body)
}

/// The topic `t` with its partition 0.
fn one_topic() -> Vec<u8> {
    let mut bytes = 1_i32.to_be_bytes().to_vec();
    bytes.extend(b"\0\x01t");
    bytes.extend(1_i32.to_be_bytes());
    bytes.extend(0_i32.to_be_bytes());
    bytes
}

fn request(key: i16, version: i16, body: &[u8]) -> Vec<u8> {
    let mut head = key.to_be_bytes().to_vec();
    head.extend(version.to_be_bytes());
    head.extend(7_i32.to_be_bytes()); // correlation id
    head.extend(b"\0\x04cost");
    let size = (head.len() + body.len()) as i32;
    [&size.to_be_bytes()[..], &head, body].concat()
}
