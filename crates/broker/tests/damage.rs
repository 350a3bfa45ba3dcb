//! Damage of the state journal: entries that were not hit survive, no message is skipped, no
//! deleted topic returns, and every damage is reported.
//!
//! More seeds: `CLOVERLEAF_SEEDS=5000 cargo test -p cloverleaf-broker --test all damage --release`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::common::{Random, World, ack_all, consumer, receive, try_open};
use cloverleaf_broker::{Committed, TopicOptions};
use cloverleaf_log::{OpenMode, SimDisk};
use uuid::Uuid;

const PATHS: [&str; 2] = ["state.0", "state.1"];

pub(crate) fn read_file(disk: &SimDisk, path: &str) -> Vec<u8> {
    let Ok(file) = disk.mount().open(path, OpenMode::Existing) else {
        return Vec::new();
    };
    let mut bytes = vec![0; file.len().unwrap() as usize];
    let count = file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(count, bytes.len());
    bytes
}

pub(crate) fn write_file(disk: &SimDisk, path: &str, bytes: &[u8]) {
    let mount = disk.mount();
    let file = mount.open(path, OpenMode::OpenOrCreate).unwrap();
    file.set_len(0).unwrap();
    let bytes = std::io::IoSlice::new(bytes);
    file.write_all_at(&[bytes], 0).unwrap();
    file.sync_data().unwrap();
    mount.sync_dir("").unwrap();
}

/// The entries of an undamaged file and their positions. (The layout is drawn in
/// `log/src/journal/format.rs`.)
fn entries(file: &[u8]) -> Vec<(Range<usize>, &[u8])> {
    let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let mut entries = Vec::new();
    let mut at = 1024;
    while at + 24 <= file.len() && number(at) == number(12) {
        let size = (number(at + 4) & !(1 << 31)) as usize;
        entries.push((at..at + 24 + size, &file[at + 24..at + 24 + size]));
        at += 24 + size;
    }
    entries
}

fn generation(file: &[u8]) -> u32 {
    let bytes = file.get(8..12).unwrap_or(&[0; 4]);
    u32::from_le_bytes(bytes.try_into().unwrap())
}

/// The path of the current file.
fn current(disk: &SimDisk) -> &'static str {
    let newest = PATHS.into_iter();
    let newest = newest.max_by_key(|path| generation(&read_file(disk, path)));
    newest.unwrap()
}

/// The positions of the entries in the current file that contain `what`.
pub(crate) fn entries_with(file: &[u8], what: &[u8]) -> Vec<Range<usize>> {
    let has = |payload: &[u8]| payload.windows(what.len()).any(|part| part == what);
    let all = entries(file).into_iter();
    all.filter(|(_, payload)| has(payload))
        .map(|(range, _)| range)
        .collect()
}

fn names(world: &World) -> Vec<String> {
    let topics = world.broker.topics();
    topics.iter().map(|topic| topic.name().to_owned()).collect()
}

fn asides(disk: &SimDisk) -> Vec<String> {
    let names = disk.mount().list("").unwrap().into_iter();
    let names = names.map(|entry| entry.name);
    names.filter(|name| name.contains(".damaged-")).collect()
}

#[test]
fn a_flipped_bit_costs_one_entry() {
    for hit in 0..11 {
        let mut world = World::new();
        for number in 0..11 {
            world.topic(&format!("t{number:02}"));
        }
        world.settle();
        let name = format!("t{hit:02}");
        let before = read_file(&world.disk, "state.0");
        let at = before.windows(3).position(|part| part == name.as_bytes());
        world.disk.corrupt("state.0", at.unwrap() as u64, b"#");
        let damaged = read_file(&world.disk, "state.0");
        world.kill_and_restart();
        let expected: Vec<String> = (0..11).map(|number| format!("t{number:02}")).collect();
        let mut expected = expected;
        expected.remove(hit);
        assert_eq!(names(&world), expected);
        assert_eq!(asides(&world.disk), ["state.0.damaged-1"]);
        assert_eq!(read_file(&world.disk, "state.0.damaged-1"), damaged);
        // The damage is reported until a new snapshot is written; only then it is forgotten.
        world.settle();
        world.kill_and_restart();
        assert_eq!(names(&world), expected);
        assert_eq!(asides(&world.disk).len(), 1);
    }
}

#[test]
fn a_topic_with_messages_is_named_by_its_folder() {
    let mut world = World::new();
    let topic = world.topic("orders");
    world.publish("orders", &["a", "b"]);
    topic
        .set_options(|options| options.retention.ms = Some(1 << 40))
        .unwrap();
    world.settle();
    let id = topic.id();
    let file = read_file(&world.disk, "state.0");
    for range in entries_with(&file, id.to_string().as_bytes()) {
        world
            .disk
            .corrupt("state.0", range.start as u64 + 30, b"###");
    }
    world.kill_and_restart();
    let topic = world.broker.topic("orders").unwrap();
    assert_eq!(topic.id(), id);
    assert_eq!(topic.options().retention.ms, Some(1 << 40));
    // The lost entries may have named offsets above its messages.
    assert!(topic.partition(0).unwrap().next_offset() > 1 << 20);
}

#[test]
fn a_lost_change_of_settings_is_restored_from_the_folder() {
    let mut world = World::new();
    let topic = world.topic("orders");
    world.publish("orders", &["a"]);
    topic
        .set_options(|options| options.retention.ms = Some(77 << 30))
        .unwrap();
    world.settle();
    let file = read_file(&world.disk, "state.0");
    let hit = entries_with(&file, (77u64 << 30).to_string().as_bytes());
    assert_eq!(hit.len(), 1);
    world
        .disk
        .corrupt("state.0", hit[0].start as u64 + 40, b"#");
    world.kill_and_restart();
    let options = world.broker.topic("orders").unwrap().options();
    assert_eq!(options.retention.ms, Some(77 << 30));
}

#[test]
fn a_lost_deletion_brings_no_topic_back_where_a_later_one_has_its_name() {
    let mut world = World::new();
    let old = world.topic("t").id();
    world.publish("t", &["old"]);
    world.broker.delete_topic("t").unwrap();
    world.settle();
    let new = world.topic("t").id();
    world.settle();
    let file = read_file(&world.disk, "state.0");
    let hit = entries_with(&file, old.as_bytes());
    assert_eq!(hit.len(), 1, "its deletion");
    world
        .disk
        .corrupt("state.0", hit[0].start as u64 + 26, b"#");
    world.kill_and_restart();
    assert_eq!(world.broker.topic("t").unwrap().id(), new);
    assert!(world.broker.topic_by_id(old).is_none());
    // It does not return later either, when no topic has its name.
    world.broker.delete_topic("t").unwrap();
    world.settle();
    world.kill_and_restart();
    assert!(world.broker.all_topics().is_empty());
}

#[test]
fn a_topic_that_never_had_a_message_is_not_taken_for_a_deleted_one() {
    let mut world = World::new();
    for name in ["committed", "empty"] {
        world.subscription(name, "s");
    }
    world.topic("hit");
    // A client may commit any offset, even in an empty topic.
    let committed = Committed {
        group: "g".to_owned(),
        topic: world.topic("committed").id(),
        partition: 0,
        offset: 5,
        leader_epoch: -1,
        metadata: String::new(),
        committed_ms: 0,
    };
    world.broker.commit_offsets(vec![committed]).unwrap();
    world.settle();
    // The power loss raises their next offsets, and they have no folders.
    world.lose_power_and_restart(1);
    world.settle();
    let file = read_file(&world.disk, "state.0");
    let hit = entries_with(&file, b"hit");
    world
        .disk
        .corrupt("state.0", hit[0].start as u64 + 30, b"#");
    world.kill_and_restart();
    assert_eq!(names(&world), ["committed", "empty"]);
    for topic in world.broker.topics() {
        assert_eq!(topic.subscriptions().len(), 1);
    }
    assert_eq!(world.broker.committed_offsets("g").len(), 1);
}

#[test]
fn a_journal_that_is_gone_is_not_taken_for_a_new_one() {
    type Wreck = fn(&SimDisk);
    let remove: Wreck = |disk| {
        for path in PATHS {
            disk.mount().remove_file(path).unwrap();
        }
    };
    let empty: Wreck = |disk| PATHS.iter().for_each(|path| write_file(disk, path, &[]));
    let zeros: Wreck = |disk| {
        PATHS
            .iter()
            .for_each(|path| write_file(disk, path, &[0; 70_000]))
    };
    let junk: Wreck = |disk| {
        PATHS
            .iter()
            .for_each(|path| write_file(disk, path, &[7; 70_000]))
    };
    // The cut is within the header, before its second copy.
    let cut: Wreck = |disk| {
        for path in PATHS {
            let mut bytes = read_file(disk, path);
            bytes.truncate(1_003);
            write_file(disk, path, &bytes);
        }
    };
    for wreck in [remove, empty, zeros, junk, cut] {
        for has_messages in [true, false] {
            let mut world = World::new();
            let options = || TopicOptions {
                partitions: 2,
                ..TopicOptions::default()
            };
            let id = world.broker.topic_or_create("t", options).unwrap().id();
            if has_messages {
                world.publish("t", &["a"]);
                world.publish("t", &["b"]);
            }
            world.settle();
            world.disk.kill();
            wreck(&world.disk);
            let before = PATHS.map(|path| read_file(&world.disk, path));
            let refused = try_open(&world.disk, &world.clock, &world.options);
            let text = refused.err().unwrap();
            assert!(text.contains("--repair"), "{text}");
            assert_eq!(PATHS.map(|path| read_file(&world.disk, path)), before);
            world.disk.kill();
            world.options.repair = true;
            (world.log, world.broker) =
                try_open(&world.disk, &world.clock, &world.options).unwrap();
            assert_eq!(names(&world).len(), usize::from(has_messages));
            assert_eq!(world.broker.topic_by_id(id).is_some(), has_messages);
            assert!(world.broker.starts() > 1_000, "no number is used twice");
            world.options.repair = false;
            world.settle();
            world.kill_and_restart();
            assert_eq!(world.broker.topic("t").is_some(), has_messages);
        }
    }
}

#[test]
fn folders_that_cannot_name_themselves_are_a_reason_to_refuse() {
    let mut world = World::new();
    let id = world.topic("t").id();
    world.topic("other");
    world.publish("t", &["a", "b", "c"]);
    world.settle();
    let path = format!("topics/{id}/topic");
    world.disk.corrupt(&path, 20, b"#");
    let file = read_file(&world.disk, "state.0");
    for range in entries_with(&file, id.to_string().as_bytes()) {
        world.disk.corrupt("state.0", range.start as u64 + 30, b"#");
    }
    // Twice: the first start must not destroy the evidence.
    for _ in 0..2 {
        world.disk.kill();
        let refused = try_open(&world.disk, &world.clock, &world.options);
        let text = refused.err().unwrap();
        assert!(
            text.contains("--repair") && text.contains(&id.to_string()),
            "{text}"
        );
    }
    world.disk.kill();
    world.options.repair = true;
    (world.log, world.broker) = try_open(&world.disk, &world.clock, &world.options).unwrap();
    let name = format!("recovered-{id}");
    assert_eq!(names(&world), ["other".to_owned(), name.clone()]);
    let reader = consumer(&world.subscription(&name, "s"), 10);
    world.settle();
    assert_eq!(receive(&reader).unwrap().len(), 3);
    drop(reader);
    world.options.repair = false;
    world.settle();
    world.kill_and_restart();
    assert_eq!(names(&world), ["other".to_owned(), name]);
}

/// Damages a file whose first `used` bytes are in use. Returns the range of bytes that may differ
/// now.
pub(crate) fn damage(disk: &SimDisk, random: &mut Random, path: &str, used: usize) -> Range<usize> {
    let mut bytes = read_file(disk, path);
    let from = random.below(used as u64 + 1) as usize;
    let len = [1, 40, 512, 4_096][random.below(4) as usize];
    let range = from..(from + len).min(bytes.len());
    match random.below(6) {
        0 => bytes[range.clone()].fill(0),
        1 => bytes[range.clone()].fill(0xff),
        2 => {
            bytes.truncate(from);
            write_file(disk, path, &bytes);
            return from..usize::MAX;
        }
        3 => {
            disk.mount().remove_file(path).unwrap();
            return 0..usize::MAX;
        }
        4 => {
            // A sector that was written to the wrong place.
            let from = from / 512 * 512;
            let other = random.below(used as u64 / 512 + 1) as usize * 512;
            if other + 512 <= bytes.len() && from + 512 <= bytes.len() {
                bytes.copy_within(other..other + 512, from);
            }
            write_file(disk, path, &bytes);
            return from..from + 512;
        }
        _ => {
            let at = range.start.min(used.saturating_sub(1));
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
            write_file(disk, path, &bytes);
            return at..at + 1;
        }
    }
    write_file(disk, path, &bytes);
    range
}

/// The expected state of one topic.
#[derive(Debug, Clone, Default)]
struct KnownTopic {
    name: String,
    retention_ms: Option<u64>,
    published: BTreeSet<u64>,
    acked: BTreeSet<u64>,
    subscribed: bool,
}

struct DamageRun {
    world: World,
    random: Random,
    topics: BTreeMap<Uuid, KnownTopic>,
    deleted: BTreeSet<Uuid>,
    kept: BTreeMap<String, Vec<u8>>,
    /// The end of the used offsets of each topic.
    ends: BTreeMap<Uuid, u64>,
}

impl DamageRun {
    fn new(seed: u64) -> Self {
        Self {
            world: World::new(),
            random: Random(seed),
            topics: BTreeMap::new(),
            deleted: BTreeSet::new(),
            kept: BTreeMap::new(),
            ends: BTreeMap::new(),
        }
    }

    fn step(&mut self) {
        let name = format!("topic-{}", self.random.below(7));
        let known = self.world.broker.topic(&name);
        // A clock that always advances would hide faults of a clock that stands still.
        self.world.clock.advance(self.random.below(2));
        match (self.random.below(12), known) {
            (0..3, None) => {
                let id = self.world.topic(&name).id();
                let known = KnownTopic {
                    name,
                    ..KnownTopic::default()
                };
                self.topics.insert(id, known);
            }
            (0, Some(topic)) => {
                self.world.broker.delete_topic(&name).unwrap();
                self.topics.remove(&topic.id());
                self.deleted.insert(topic.id());
            }
            (1, Some(topic)) => {
                let ms = Some((1 << 40) + self.random.below(1 << 20));
                let change = |options: &mut TopicOptions| options.retention.ms = ms;
                topic.set_options(change).unwrap();
                self.topics.get_mut(&topic.id()).unwrap().retention_ms = ms;
            }
            (2..6, Some(topic)) => {
                let log = topic.partition(0).unwrap();
                let before = log.next_offset();
                self.world.publish(&name, &["a", "b", "c"]);
                let known = self.topics.get_mut(&topic.id()).unwrap();
                known.published.extend(before..before + 3);
                self.ends.insert(topic.id(), log.next_offset());
            }
            (6..9, Some(topic)) => {
                let subscription = self.world.subscription(&name, "s");
                let reader = consumer(&subscription, 8);
                self.world.settle();
                let mut got = receive(&reader).unwrap();
                got.retain(|_| !self.random.one_in(4));
                ack_all(&reader, &got);
                let known = self.topics.get_mut(&topic.id()).unwrap();
                known.subscribed = true;
                known.acked.extend(got.iter().map(|got| got.id.offset));
            }
            (9, _) => {
                let key = format!("key-{}", self.random.below(5));
                let value = vec![self.random.next() as u8; 40];
                self.world
                    .broker
                    .put_value(&key, Some(value.clone()))
                    .unwrap();
                self.kept.insert(key, value);
            }
            (10, _) if self.random.one_in(6) => {
                // Fills the journal, so that it is replaced by a snapshot.
                for round in 0..12u8 {
                    let filler = Some(vec![round; 4 << 10]);
                    self.world.broker.put_value("filler", filler).unwrap();
                }
                self.world.advance(2_000);
            }
            _ => self.world.settle(),
        }
    }

    fn finish(mut self) {
        self.world.settle();
        let clean = self.random.one_in(3);
        if clean {
            self.world.broker.close();
            self.world.log.close();
        }
        self.world.disk.kill();
        let newest = current(&self.world.disk);
        let whole = read_file(&self.world.disk, newest);
        let is_newest = !self.random.one_in(4);
        let path = match (is_newest, newest) {
            (true, path) => path,
            (false, "state.0") => "state.1",
            (false, _) => "state.0",
        };
        let file = read_file(&self.world.disk, path);
        let used = entries(&file).last().map_or(1024, |(range, _)| range.end);
        let mut hit = damage(&self.world.disk, &mut self.random, path, used);
        if !is_newest {
            hit = 0..0;
        }
        let damaged = read_file(&self.world.disk, newest);
        let is_hit = |what: &[u8]| {
            let ranges = entries_with(&whole, what);
            ranges
                .iter()
                .any(|range| range.start < hit.end && hit.start < range.end)
        };
        let opened = try_open(&self.world.disk, &self.world.clock, &self.world.options);
        let opened = opened.or_else(|text| {
            assert!(text.contains("--repair"), "{text}");
            assert!(hit.start <= 1100, "{hit:?}: {text}");
            self.world.disk.kill();
            self.world.options.repair = true;
            try_open(&self.world.disk, &self.world.clock, &self.world.options)
        });
        (self.world.log, self.world.broker) = opened.unwrap();
        self.world.options.repair = false;
        let changed = entries(&whole).into_iter().filter(|(range, payload)| {
            let after = damaged.get(range.end - payload.len()..range.end);
            after != Some(*payload)
        });
        let first = changed.map(|(range, _)| range.end).min();
        let is_followed = |end: usize| {
            let mut all = entries(&whole).into_iter();
            all.any(|(range, _)| range.start >= end.max(hit.end))
        };
        // At the end of a file that was not closed, zeros look like the end of the entries.
        let is_left = damaged.iter().any(|byte| *byte != 0);
        if is_left && first.is_some_and(|end| clean || is_followed(end)) {
            assert!(
                !asides(&self.world.disk).is_empty(),
                "nothing was set aside"
            );
        }
        let stamps: Vec<_> = (0..3)
            .map(|_| {
                self.check(&is_hit);
                self.world.settle();
                let names = names(&self.world);
                self.world.kill_and_restart();
                names
            })
            .collect();
        assert!(stamps.windows(2).all(|pair| pair[0] == pair[1]));
    }

    fn check(&self, is_hit: &impl Fn(&[u8]) -> bool) {
        let broker = &self.world.broker;
        for (id, known) in &self.topics {
            let hit = is_hit(id.to_string().as_bytes());
            let topic = broker.topic_by_id(*id);
            assert!(
                topic.is_some() || (hit && known.published.is_empty()),
                "{known:?}"
            );
            let Some(topic) = topic else { continue };
            let is_named = topic.name() == known.name;
            assert!(is_named || (hit && topic.name().starts_with("recovered-")));
            assert_eq!(broker.topic(topic.name()).unwrap().id(), *id);
            if !hit || !known.published.is_empty() {
                assert_eq!(
                    topic.options().retention.ms,
                    known.retention_ms,
                    "{known:?}"
                );
            }
            let end = self.ends.get(id).copied().unwrap_or(0);
            assert!(topic.partition(0).unwrap().next_offset() >= end);
            let Some(subscription) = topic.subscription("s") else {
                assert!(!known.subscribed || hit, "{known:?}");
                continue;
            };
            let reader = consumer(&subscription, 10_000);
            self.world.settle();
            let got = receive(&reader).unwrap();
            let got: BTreeSet<u64> = got.iter().map(|got| got.id.offset).collect();
            let left = known.published.difference(&known.acked);
            let skipped: Vec<_> = left.filter(|offset| !got.contains(offset)).collect();
            assert!(skipped.is_empty(), "{skipped:?} of {known:?} are skipped");
        }
        for id in &self.deleted {
            let back = broker.topic_by_id(*id);
            assert!(
                back.is_none() || is_hit(id.as_bytes()),
                "a deleted topic is back"
            );
        }
        for (key, value) in &self.kept {
            assert!(broker.value(key).as_ref() == Some(value) || is_hit(key.as_bytes()));
        }
    }
}

#[test]
fn damage_costs_only_what_it_hit() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse().ok());
    let seeds: u64 = number("CLOVERLEAF_SEEDS").unwrap_or(200);
    let first: u64 = number("CLOVERLEAF_SEED").unwrap_or(0);
    for seed in first..first + seeds {
        let outcome = std::panic::catch_unwind(|| {
            let mut run = DamageRun::new(seed);
            let steps = 10 + run.random.below(120);
            (0..steps).for_each(|_| run.step());
            run.finish();
        });
        if let Err(panic) = outcome {
            eprintln!("to see it again: CLOVERLEAF_SEED={seed} CLOVERLEAF_SEEDS=1");
            std::panic::resume_unwind(panic);
        }
    }
}
