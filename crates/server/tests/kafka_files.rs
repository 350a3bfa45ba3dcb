//! Fetches that are answered from files: over plain connections and TLS, to fast and slow readers.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::certificates::{Authority, save};
use crate::kafka_support::{Broker, Client, FETCH, Fields, connect, eventually, string};
use crate::support::start_all_cached;
use bytes::Bytes;
use cloverleaf_log::Batch;
use rustls::StreamOwned;

/// All batches together have several times the size of the sockets' buffers.
const BATCHES: u32 = 500;
const BODY_BYTES: usize = 50_000;
/// The first version whose answers may come from files.
const VERSION: i16 = 10;

fn body(number: u32) -> Vec<u8> {
    (0..BODY_BYTES as u32)
        .map(|at| (at * 7 + number) as u8)
        .collect()
}

/// A broker that keeps nearly nothing in memory, and a topic "t" of one message per batch.
fn start_with_messages(change: impl FnOnce(&mut cloverleaf_server::Config)) -> Broker {
    let broker = start_all_cached(|config| {
        config.general.tail_bytes_max.0 = 100_000;
        config.general.segment_bytes.0 = 2_000_000;
        change(config);
    });
    let mut client = broker.client();
    client.make_topic("t");
    for number in 0..BATCHES {
        assert_eq!(client.produce("t", 1, &[&body(number)]).0, 0);
    }
    broker
}

fn fetch_request<S: Read + Write>(client: &mut Client<S>, offset: i64, bytes_max: i32) -> Vec<u8> {
    let mut request = Vec::new();
    // Replica, maximum wait, minimum bytes, maximum bytes.
    for field in [-1, 500, 1, bytes_max] {
        request.extend_from_slice(&i32::to_be_bytes(field));
    }
    request.push(0);
    // No session, one topic.
    for field in [0, -1, 1] {
        request.extend_from_slice(&i32::to_be_bytes(field));
    }
    string(&mut request, "t");
    // One partition, number 0, any epoch.
    for field in [1, 0, -1] {
        request.extend_from_slice(&i32::to_be_bytes(field));
    }
    request.extend_from_slice(&offset.to_be_bytes());
    request.extend_from_slice(&(-1_i64).to_be_bytes());
    request.extend_from_slice(&bytes_max.to_be_bytes());
    // No forgotten topics.
    request.extend_from_slice(&0_i32.to_be_bytes());
    client.request(FETCH, VERSION, &request)
}

/// The batches in an answer.
fn batches(answer: &[u8]) -> Vec<Batch> {
    let mut fields = Fields(answer);
    fields.take(4);
    assert_eq!(fields.i16(), 0);
    // Session; one topic, one partition with its number and error.
    assert_eq!((fields.i32(), fields.i32()), (0, 1));
    assert_eq!(fields.string(), "t");
    assert_eq!((fields.i32(), fields.i32(), fields.i16()), (1, 0, 0));
    fields.take(24);
    fields.i32();
    let length = fields.i32() as usize;
    let mut rest = Bytes::copy_from_slice(fields.take(length));
    let mut batches = Vec::new();
    while !rest.is_empty() {
        let length = Batch::peek_len(&rest).unwrap();
        batches.push(Batch::parse_stored(rest.split_to(length)).unwrap());
    }
    batches
}

/// Reads all batches and checks them.
fn read_all<S: Read + Write>(client: &mut Client<S>, bytes_max: i32) {
    let mut next = 0;
    while next < u64::from(BATCHES) {
        let request = fetch_request(client, next as i64, bytes_max);
        client.send(&request);
        let batches = batches(&client.answer());
        assert!(!batches.is_empty());
        for batch in batches {
            assert_eq!(batch.base_offset(), next);
            let (_, record) = batch.records().next_record().unwrap().unwrap();
            assert!(record.value == Some(&body(next as u32)[..]), "{next}");
            next = batch.end_offset();
        }
    }
}

fn stored_reads(broker: &Broker) -> u64 {
    let metrics = broker.admin("/metrics");
    let line = metrics
        .lines()
        .find(|line| line.starts_with("cloverleaf_log_stored_reads_total"));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn everything_comes_from_files_in_order() {
    let broker = start_with_messages(|_| {});
    for bytes_max in [1_000, 120_000, 1_000_000, 50_000_000] {
        let before = stored_reads(&broker);
        read_all(&mut broker.client(), bytes_max);
        let uses_files = bytes_max > 100_000;
        assert_eq!(stored_reads(&broker) > before, uses_files, "{bytes_max}");
    }
}

#[test]
fn clients_over_tls_get_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let own = authority.certify();
    let file = |name: &str, text: &str| save(&folder, name, text);
    let broker = start_with_messages(|config| {
        config.kafka.tls_address.0 = "127.0.0.1:0".to_owned();
        config.kafka.tls_cert = file("cert.pem", &own.certificate);
        config.kafka.tls_key = file("key.pem", &own.key);
    });
    let connection = authority.client(None, rustls::ALL_VERSIONS);
    let socket = connect(broker.server.addresses().of("kafka.tls_address").unwrap());
    let mut client = Client::new(StreamOwned::new(connection, socket));
    let before = stored_reads(&broker);
    read_all(&mut client, 1_000_000);
    assert!(stored_reads(&broker) > before);
}

#[test]
fn a_reader_that_waits_gets_its_answers_though_the_topic_is_deleted() {
    let broker = start_with_messages(|_| {});
    let mut slow: Client<TcpStream> = broker.client();
    let request = fetch_request(&mut slow, 0, 50_000_000);
    slow.send(&request);
    // The answer is complete once its first byte has come.
    let mut one = [0];
    eventually("an answer", || slow.stream.peek(&mut one).is_ok());
    let mut other = broker.client();
    let mut delete = Vec::from(1_i32.to_be_bytes());
    string(&mut delete, "t");
    delete.extend_from_slice(&5_000_i32.to_be_bytes());
    // A DeleteTopics request.
    other.ask(20, 1, &delete);
    let batches = batches(&slow.answer());
    let total: usize = batches.iter().map(|batch| batch.bytes().len()).sum();
    assert!(total > 20_000_000, "{total}");
    let (_, late) = batches[400].records().next_record().unwrap().unwrap();
    assert!(late.value == Some(&body(400)[..]));
}

#[test]
fn a_reader_that_disconnects_midway_affects_no_other() {
    let broker = start_with_messages(|_| {});
    for _ in 0..20 {
        let mut leaver = broker.client();
        let request = fetch_request(&mut leaver, 0, 50_000_000);
        leaver.send(&request);
        leaver.stream.read_exact(&mut [0; 1000]).unwrap();
    }
    read_all(&mut broker.client(), 1_000_000);
}
