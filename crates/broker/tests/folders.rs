//! Data folders of each format version: they open, and everything in them is there.
//!
//! A folder is written once, by `write_folder`, and stays under `tests/folders` permanently. To
//! write the folder of a new format, run this test with
//! `CLOVERLEAF_WRITE_FOLDER=tests/folders/format-N`.
//!
//! A *busy* folder was written by a broker of that format under load from clients of all three
//! protocols, and killed during the load (`pack.rs`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cloverleaf_broker::{
    Broker, BrokerOptions, Committed, ConsumerOptions, ManualClock, PartitionOrder,
    SubscriptionOptions, TopicOptions,
};
use cloverleaf_log::{BatchBuilder, Durability, Log, LogOptions, Read, RealDisk};

use crate::common::{ack_all, consumer, receive};
use crate::pack::unpack;

fn open(folder: &Path) -> (Log, Broker, Vec<String>) {
    let options = LogOptions {
        manual: true,
        disk_free_bytes_min: 0,
        journal_bytes: 16 << 10,
        prepare_segments: false,
        ..LogOptions::default()
    };
    let (log, recovery) = Log::open(RealDisk::open(folder).unwrap(), options).unwrap();
    let report = recovery.report.clone();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let broker = Broker::open(log.clone(), recovery, BrokerOptions::default(), clock).unwrap();
    (log, broker, report)
}

fn close(log: &Log, broker: &Broker) {
    broker.close();
    log.close();
}

fn publish(log: &Log, broker: &Broker, topic: &str, partition: u32, bodies: &[&str]) {
    let mut builder = BatchBuilder::with_capacity(256, 1_700_000_000_000);
    for body in bodies {
        builder.push(None, Some(body.as_bytes()), &[]);
    }
    let topic = broker.topic(topic).unwrap();
    drop(topic.publish_to(partition, builder.finish(), Durability::Disk));
    log.step();
}

fn write_folder(folder: &Path) {
    let (log, broker, _) = open(folder);
    let make = |name: &str, options: TopicOptions| broker.topic_or_create(name, || options);
    let mut orders = TopicOptions {
        partitions: 3,
        ..TopicOptions::default()
    };
    orders.retention.consumed = false;
    orders.retention.ms = Some(1 << 40);
    let setting = ("a.protocol".to_owned(), "its own setting".to_owned());
    orders.settings.extend([setting]);
    let orders = make("orders", orders).unwrap();
    for partition in 0..3 {
        publish(&log, &broker, "orders", partition, &["a", "b", "c", "d"]);
    }
    let dead = Some("dead".to_owned());
    let options = || SubscriptionOptions {
        attempts_max: 7,
        dead_letter: dead,
        ..SubscriptionOptions::default()
    };
    let billing = orders.subscription_or_create("billing", options).unwrap();
    let reader = consumer(&billing, 100);
    let mut got = receive(&reader).unwrap();
    // All messages of partition 0, and some of partition 1.
    got.retain(|got| got.id.partition == 0 || (got.id.partition == 1 && got.id.offset != 1));
    ack_all(&reader, &got);
    let committed = Committed {
        group: "readers".to_owned(),
        topic: orders.id(),
        partition: 2,
        offset: 3,
        leader_epoch: 0,
        metadata: "note".to_owned(),
        committed_ms: 5,
    };
    broker.commit_offsets(vec![committed]).unwrap();
    let hidden = TopicOptions {
        hidden: true,
        ..TopicOptions::default()
    };
    make("hidden", hidden).unwrap();
    publish(&log, &broker, "hidden", 0, &["secret"]);
    make("empty", TopicOptions::default())
        .unwrap()
        .pause()
        .unwrap();
    make("gone", TopicOptions::default()).unwrap();
    publish(&log, &broker, "gone", 0, &["x"]);
    broker.delete_topic("gone").unwrap();
    broker
        .put_value("exchange/x", Some(b"fanout".to_vec()))
        .unwrap();
    log.step();
    broker.tick();
    close(&log, &broker);
}

fn messages(broker: &Broker, topic: &str, partition: u32) -> Vec<String> {
    let log = broker.topic(topic).unwrap().partition(partition).unwrap();
    let (mut bodies, mut next) = (Vec::new(), 0);
    loop {
        let batches = match log.read(next, 1 << 20) {
            Read::Batches(batches) => batches,
            Read::Cold(cold) => cold.run().unwrap(),
            Read::End => break,
        };
        for batch in batches {
            let mut records = batch.records();
            while let Some((offset, record)) = records.next_record().unwrap() {
                bodies.push(String::from_utf8_lossy(record.value.unwrap()).into_owned());
                next = offset + 1;
            }
        }
    }
    bodies
}

pub(crate) fn check_folder(broker: &Broker) {
    let names: Vec<String> = broker
        .topics()
        .iter()
        .map(|t| t.name().to_owned())
        .collect();
    assert_eq!(names, ["empty", "orders"]);
    assert!(broker.topic("empty").unwrap().is_paused());
    assert!(broker.topic("hidden").unwrap().options().hidden);
    assert_eq!(messages(broker, "hidden", 0), ["secret"]);
    let orders = broker.topic("orders").unwrap();
    assert_eq!(orders.options().settings["a.protocol"], "its own setting");
    assert_eq!(orders.options().retention.ms, Some(1 << 40));
    for partition in 0..3 {
        assert_eq!(messages(broker, "orders", partition), ["a", "b", "c", "d"]);
    }
    let committed = broker.committed_offset("readers", orders.id(), 2).unwrap();
    assert_eq!((committed.offset, committed.metadata.as_str()), (3, "note"));
    assert_eq!(broker.value("exchange/x").unwrap(), b"fanout");
    let billing = orders.subscription("billing").unwrap();
    assert_eq!(billing.options().attempts_max, 7);
    assert_eq!(billing.options().dead_letter.as_deref(), Some("dead"));
    let reader = billing.attach(ConsumerOptions::default()).unwrap();
    reader.set_window(100);
    let got = receive(&reader).unwrap();
    let mut left: Vec<_> = got
        .iter()
        .map(|got| (got.id.partition, got.id.offset))
        .collect();
    left.sort_unstable();
    assert_eq!(left, [(1, 1), (2, 0), (2, 1), (2, 2), (2, 3)]);
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Opens a copy of the folder, twice.
fn check_kept(format: &str) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/folders")
        .join(format);
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&kept, folder.path());
    for start in 0..2 {
        let (log, broker, report) = open(folder.path());
        check_folder(&broker);
        assert!(broker.starts() >= 2 + start, "{report:?}");
        close(&log, &broker);
        // An outdated state file beside the current one would be used if the current one were lost.
        for path in ["state.0", "state.1"] {
            let bytes = fs::read(folder.path().join(path)).unwrap();
            assert_ne!(&bytes[..8], b"CLOVERJ1", "{path}");
        }
    }
}

/// The number of a subscription's waiting messages, and of its delayed ones.
fn waiting(broker: &Broker, topic: &str, subscription: &str) -> (u64, u64) {
    let topic = broker.topic(topic).unwrap();
    let stats = topic.subscription(subscription).unwrap().stats();
    assert_eq!(stats.in_flight, 0);
    (stats.depth, stats.delayed)
}

/// The descriptions in the topics' folders, by path.
fn descriptions(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let folders = fs::read_dir(folder.join("topics")).unwrap();
    let files = folders.map(|entry| entry.unwrap().path().join("topic"));
    let mut all: Vec<_> = files
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    all.sort();
    all
}

#[test]
fn the_folder_of_a_busy_broker_of_format_2_opens_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    unpack("tests/folders/busy-2.pack", folder.path());
    let before = descriptions(folder.path());
    for _ in 0..2 {
        let (log, broker, report) = open(folder.path());
        // The schedule topic counts its delayed messages.
        broker.tick();
        let names: Vec<String> = broker
            .topics()
            .iter()
            .map(|topic| topic.name().to_owned())
            .collect();
        let expected = [
            "busy.amqp",
            "busy.kafka",
            "busy.nsq",
            "dead",
            "events",
            "held",
            "orders",
            "state",
            "urgent",
            "work",
        ];
        assert_eq!(names, expected, "{report:?}");
        let all = broker.all_topics();
        assert!(all.iter().all(|it| it.full_name().namespace.is_default()));
        // Of 20 messages 7 were acknowledged, 12 were in flight, and one was requeued with a delay
        // of an hour.
        assert_eq!(waiting(&broker, "orders", "billing"), (12, 1));
        assert_eq!(waiting(&broker, "orders", "mail"), (20, 0));
        let orders = broker.topic("orders").unwrap();
        assert_eq!(orders.scheduled(), 1);
        assert!(broker.topic("held").unwrap().is_paused());
        // Of 6 messages one was acknowledged and two were dead-lettered.
        assert_eq!(waiting(&broker, "work", "queue"), (3, 0));
        assert_eq!(waiting(&broker, "dead", "queue"), (2, 0));
        let urgent = broker.topic("urgent").unwrap();
        let queue = urgent.subscription("queue").unwrap();
        assert_eq!(queue.options().order, PartitionOrder::HighestFirst);
        assert_eq!(urgent.partition_count(), 4);
        assert_eq!(messages(&broker, "urgent", 3), ["price-3", "price-7"]);
        assert_eq!(broker.kept_under("amqp/exchange/").len(), 2);
        assert_eq!(broker.kept_under("amqp/binding/").len(), 3);
        // At least the messages that clients had confirmed when the broker was killed.
        assert!(messages(&broker, "busy.nsq", 0).len() >= 1051);
        assert!(messages(&broker, "busy.kafka", 0).len() >= 438);
        assert!(messages(&broker, "busy.amqp", 0).len() >= 895);
        let events = broker.topic("events").unwrap();
        let committed = broker.committed_offsets("readers");
        // The client's length of the metadata included its terminating zero.
        let offsets: Vec<(u32, u64, &str)> = committed
            .iter()
            .map(|it| (it.partition, it.offset, it.metadata.as_str()))
            .collect();
        assert_eq!(offsets, [(0, 4, ""), (1, 10, "note\0")]);
        assert!(committed.iter().all(|it| it.topic == events.id()));
        assert_eq!(broker.kept_under("kafka-group/").len(), 1);
        let state = broker.topic("state").unwrap();
        assert!(state.options().compaction.is_some());
        // Compacted at least once: 40 rounds wrote 5 messages each.
        let left = messages(&broker, "state", 0);
        assert!((5..200).contains(&left.len()), "{}", left.len());
        close(&log, &broker);
        assert_eq!(descriptions(folder.path()), before);
    }
}

#[test]
fn the_folder_of_format_1_opens() {
    check_kept("format-1");
}

#[test]
fn the_folder_of_format_2_opens() {
    check_kept("format-2");
}

#[test]
fn the_folder_of_this_format_opens() {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path());
    let (log, broker, _) = open(folder.path());
    check_folder(&broker);
    close(&log, &broker);
    if let Some(path) = std::env::var_os("CLOVERLEAF_WRITE_FOLDER") {
        write_folder(Path::new(&path));
    }
}
