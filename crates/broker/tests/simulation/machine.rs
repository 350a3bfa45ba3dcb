//! A broker on a simulated disk with its clock, and helpers that read and write.

use std::sync::Arc;

use cloverleaf_broker::{
    BrokerOptions, Committed, Compaction, Partition, Retention, SubscriptionOptions, TopicOptions,
};
use cloverleaf_log::{Batch, BatchBuilder, Disk, LogClock, LogOptions, Offset, Read, Record};
use uuid::Uuid;

use super::catalog::{CatalogState, ModelTopic};
use super::ledger::{Content, FoundMessage, TopicKind};
use super::wreck::FileDamage;
use crate::common::{Random, World};

/// The names of topics that the program creates and deletes.
pub(super) const NAMES: [&str; 6] = ["queue-0", "queue-1", "keys-0", "keys-1", "bytes", "age"];
/// The dead-letter topic.
pub(super) const LETTERS: &str = "letters";
/// The header with a message's number.
const NUMBER: &[u8] = b"n";
/// Milliseconds between runs of retention and compaction.
const UPKEEP_MS: u64 = 200;
const BYTES_MAX: u64 = 9_000;
/// A segment's size, plus the batch that may exceed it.
const SEGMENT_BYTES_MAX: u64 = 5_000;
const AGE_MS: u64 = 900;
/// For "keys-0" and "keys-1": short enough that tombstones are removed, long enough that a removal
/// too early shows.
const TOMBSTONES_MS: [u64; 2] = [400, 4_000];

pub(super) struct SimulatedMachine {
    pub(super) world: World,
    mount: Arc<dyn Disk>,
    /// Each advance of the clock also steps the log, in place of its writer thread.
    pub(super) steps_always: bool,
}

pub(super) fn kind_of(name: &str) -> TopicKind {
    match name.split_once('-').map_or(name, |(kind, _)| kind) {
        "queue" => TopicKind::Queue,
        "keys" => TopicKind::Compacted {
            tombstone_ms: TOMBSTONES_MS[usize::from(name.ends_with('1'))],
        },
        "bytes" => TopicKind::Bytes {
            least: BYTES_MAX - SEGMENT_BYTES_MAX,
        },
        "age" => TopicKind::Age { ms: AGE_MS },
        _ => TopicKind::Letters,
    }
}

pub(super) fn topic_options(kind: TopicKind, segment_bytes: u64) -> TopicOptions {
    let retention = match kind {
        TopicKind::Queue | TopicKind::Letters => Retention {
            consumed: true,
            ..Retention::default()
        },
        TopicKind::Bytes { .. } => Retention {
            bytes: Some(BYTES_MAX),
            ..Retention::default()
        },
        TopicKind::Age { ms } => Retention {
            ms: Some(ms),
            ..Retention::default()
        },
        TopicKind::Compacted { .. } => Retention::default(),
    };
    let compaction = match kind {
        TopicKind::Compacted { tombstone_ms } => Some(Compaction {
            delete_retention_ms: tombstone_ms,
            dirty_ratio_permille: 1,
            ..Compaction::default()
        }),
        _ => None,
    };
    TopicOptions {
        retention,
        compaction,
        segment_bytes: Some(segment_bytes),
        ..TopicOptions::default()
    }
}

pub(super) fn segment_bytes(random: &mut Random) -> u64 {
    [400, 1_200, 3_000][random.below(3) as usize]
}

pub(super) fn subscription_options(random: &mut Random) -> SubscriptionOptions {
    SubscriptionOptions {
        attempts_max: [0, 3][random.below(2) as usize],
        dead_letter: Some(LETTERS.to_owned()),
        ..SubscriptionOptions::default()
    }
}

impl SimulatedMachine {
    pub(super) fn new(random: &mut Random) -> Self {
        let options = BrokerOptions {
            retention_interval_ms: UPKEEP_MS,
            compaction_interval_ms: UPKEEP_MS,
            ..BrokerOptions::default()
        };
        let inline_writes = !random.one_in(4);
        let log_options = LogOptions {
            tail_bytes_max: [0, 3_000, 1 << 20][random.below(3) as usize],
            journal_bytes: [8 << 10, 64 << 10][random.below(2) as usize],
            open_files_max: [1, 512][random.below(2) as usize],
            inline_writes,
            ..LogOptions::default()
        };
        let mut world = World::with_log(options, log_options);
        let clock = world.clock.clone();
        world.log_options.clock = LogClock::new(move || {
            i64::try_from(cloverleaf_broker::Clock::now_ms(&*clock)).unwrap()
        });
        world.restart();
        let mount = world.disk.mount();
        Self {
            world,
            mount,
            steps_always: !inline_writes,
        }
    }

    /// Whether the simulated machine is alive.
    pub(super) fn is_alive(&self) -> bool {
        self.mount.list("").is_ok()
    }

    pub(super) fn now_ms(&self) -> u64 {
        cloverleaf_broker::Clock::now_ms(&*self.world.clock)
    }

    /// Opens the broker on the disk as it is. `false`: the machine died meanwhile.
    pub(super) fn open(&mut self, wreck: Option<&FileDamage>) -> bool {
        self.mount = self.world.disk.mount();
        let mut opened = self.world.reopen();
        if let (Err(reason), Some(wreck), true) = (&opened, wreck, self.is_alive()) {
            wreck.check_refusal(reason);
            self.world.disk.kill();
            self.mount = self.world.disk.mount();
            self.world.options.repair = true;
            opened = self.world.reopen();
            self.world.options.repair = false;
        }
        let is_alive = self.is_alive();
        if let (Err(reason), true) = (&opened, is_alive) {
            panic!("it does not open: {reason}");
        }
        opened.is_ok() && is_alive
    }

    pub(super) fn batch(
        &self,
        contents: &[Content],
        filling: usize,
        producer: Option<(i64, i32)>,
    ) -> Batch {
        let now_ms = i64::try_from(self.now_ms()).unwrap();
        let mut builder = BatchBuilder::with_capacity(256, now_ms);
        let value = vec![b'x'; filling];
        for content in contents {
            let number = content.number.to_string();
            let headers = [(NUMBER, Some(number.as_bytes()))];
            let key = content.key.map(|key| [key]);
            let value = (!content.is_tombstone).then_some(&value[..]);
            builder.push(key.as_ref().map(|key| &key[..]), value, &headers);
        }
        if let Some((id, sequence)) = producer {
            builder = builder.with_producer(id, 0, sequence);
        }
        builder.finish()
    }

    /// The catalog's state as the broker reports it.
    pub(super) fn state(&self) -> CatalogState {
        let broker = &self.world.broker;
        let mut state = CatalogState::default();
        for topic in broker.topics() {
            let made = ModelTopic {
                id: topic.id(),
                partitions: topic.partition_count(),
                marker: marker(&topic.options()),
            };
            let names = topic.subscriptions();
            let names = names.iter().map(|it| (topic.id(), it.name().to_owned()));
            state.subscriptions.extend(names);
            state.topics.insert(topic.name().to_owned(), made);
        }
        for group in broker.groups_with_offsets() {
            for committed in broker.committed_offsets(&group) {
                let Committed {
                    topic, partition, ..
                } = committed;
                let place = (group.clone(), topic, partition);
                state.committed.insert(place, committed.offset);
            }
        }
        state.kept = broker.kept_under("k/").into_iter().collect();
        state
    }

    /// Every message of a partition, from its start to its end.
    pub(super) fn read(&self, id: Uuid, partition: u32) -> Vec<FoundMessage> {
        let topic = self.world.broker.topic_by_id(id).unwrap();
        let log = topic.partition(partition).unwrap();
        let mut found = Vec::new();
        for batch in batches(&log) {
            let batch = batch.inflate(1 << 20).unwrap();
            let mut records = batch.records();
            while let Some((offset, record)) = records.next_record().unwrap() {
                found.push(message_in(offset, &record));
            }
        }
        let segments = self
            .world
            .log
            .opened_partition(id, partition)
            .unwrap()
            .segments();
        let last = segments.into_iter().rfind(|it| it.end > it.base);
        let last = last.map_or(log.start_offset(), |segment| segment.end);
        assert_eq!(log.written_end(), last, "no reader reaches this end");
        found
    }
}

fn marker(options: &TopicOptions) -> String {
    let bytes = options.segment_bytes;
    format!("{bytes:?} {:?}", options.settings.get("marker"))
}

/// A topic with these options, as [`SimulatedMachine::state`] reports it.
pub(super) fn made(id: Uuid, options: &TopicOptions) -> ModelTopic {
    ModelTopic {
        id,
        partitions: options.partitions,
        marker: marker(options),
    }
}

fn batches(log: &Partition) -> Vec<Batch> {
    let mut at = log.start_offset();
    let mut all: Vec<Batch> = Vec::new();
    loop {
        let batches = match log.read(at, 4 << 10) {
            Read::Batches(batches) => batches,
            Read::End => return all,
            Read::Cold(read) => read.run().unwrap(),
        };
        match batches.last() {
            Some(batch) => at = batch.end_offset(),
            None => return all,
        }
        all.extend(batches);
    }
}

pub(super) fn message_in(offset: Offset, record: &Record<'_>) -> FoundMessage {
    let text = |name: &[u8]| {
        let value = record.headers.value_of(name)??;
        Some(String::from_utf8(value.to_vec()).unwrap())
    };
    let number = text(NUMBER).unwrap().parse().unwrap();
    let origin = text(cloverleaf_broker::headers::DEAD_ORIGIN);
    let subscription = text(cloverleaf_broker::headers::DEAD_SUBSCRIPTION);
    FoundMessage {
        offset,
        content: Content {
            number,
            key: record.key.map(|key| key[0]),
            is_tombstone: record.value.is_none(),
        },
        stamp_ms: u64::try_from(record.timestamp_ms).unwrap(),
        letter: origin
            .zip(subscription)
            .map(|(at, of)| format!("{of} {at}")),
    }
}

/// The number of a delivered message.
pub(super) fn number_of(headers: &[(String, String)]) -> u64 {
    let name = String::from_utf8_lossy(NUMBER);
    let header = headers.iter().find(|(known, _)| *known == name).unwrap();
    header.1.parse().unwrap()
}
