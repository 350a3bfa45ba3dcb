//! Kills and power losses of state that only the journal has: options, partitions, deleted records,
//! committed offsets, protocol values.
//!
//! A change is in the kernel when its call returns, so a kill loses none. A power loss may lose the
//! newest changes, but never one in the middle, and none that was synced. More seeds:
//! `CLOVERLEAF_SEEDS=100000 cargo test -p cloverleaf-broker --test crashes_of_state --release`.

use std::collections::BTreeMap;

use crate::common::{Random, World};
use cloverleaf_broker::{Committed, TopicOptions};
use cloverleaf_log::{Durability, Read};
use uuid::Uuid;

const GROUPS: [&str; 2] = ["g", "h"];
const KEYS: [&str; 3] = ["k/0", "k/1", "k/2"];

/// The state that is compared, as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct JournalState {
    retention_ms: Option<u64>,
    partitions: u32,
    /// Messages before this offset of partition 0 were deleted.
    deleted: u64,
    committed: BTreeMap<(String, u32), u64>,
    kept: BTreeMap<String, Vec<u8>>,
}

struct CrashRun {
    world: World,
    random: Random,
    topic: Uuid,
    /// The state after the last synced change, followed by the state after each later change.
    history: Vec<JournalState>,
    starts: u64,
}

impl CrashRun {
    fn new(seed: u64) -> Self {
        let world = World::new();
        let topic = world.topic("t");
        // Otherwise retention would remove messages that groups have committed.
        let change = |options: &mut TopicOptions| options.retention.consumed = false;
        topic.set_options(change).unwrap();
        let topic = topic.id();
        world.log.sync_all().unwrap();
        let first = JournalState {
            partitions: 1,
            ..JournalState::default()
        };
        Self {
            starts: world.broker.starts(),
            world,
            random: Random(seed),
            topic,
            history: vec![first],
        }
    }

    fn now(&self) -> JournalState {
        self.history.last().unwrap().clone()
    }

    fn seen(&self) -> JournalState {
        let topic = self.world.broker.topic_by_id(self.topic).unwrap();
        let groups = self.world.broker.groups_with_offsets();
        let offsets = groups
            .iter()
            .flat_map(|group| self.world.broker.committed_offsets(group));
        JournalState {
            retention_ms: topic.options().retention.ms,
            partitions: topic.partition_count(),
            // The deletion itself is not visible, only the missing messages are.
            deleted: self.history.last().unwrap().deleted,
            committed: offsets
                .map(|c| ((c.group, c.partition), c.offset))
                .collect(),
            kept: self.world.broker.kept_under("k/").into_iter().collect(),
        }
    }

    /// The first message at or above an offset.
    fn first_message(&self, from: u64) -> Option<u64> {
        let topic = self.world.broker.topic_by_id(self.topic).unwrap();
        match topic.partition(0).unwrap().read(from, 1) {
            Read::Batches(batches) => batches.first().map(|batch| batch.base_offset().max(from)),
            Read::End => None,
            Read::Cold(read) => {
                let batches = read.run().unwrap();
                batches.first().map(|batch| batch.base_offset().max(from))
            }
        }
    }

    fn change(&mut self) {
        let topic = self.world.topic("t");
        let mut state = self.now();
        let broker = &self.world.broker;
        let group = GROUPS[usize::try_from(self.random.below(2)).unwrap()];
        let partition = u32::try_from(self.random.below(3)).unwrap();
        match self.random.below(8) {
            0 => {
                // Long enough that retention removes nothing here.
                let ms = Some((1 << 40) + self.random.below(9));
                let change = |options: &mut TopicOptions| options.retention.ms = ms;
                topic.set_options(change).unwrap();
                state.retention_ms = ms;
            }
            1 if state.partitions < 9 => {
                state.partitions += 1;
                topic.add_partitions(state.partitions).unwrap();
            }
            2 => {
                let log = topic.partition(0).unwrap();
                let (start, end) = (log.start_offset(), log.written_end());
                let before = start + self.random.below(end - start + 1);
                let deletes = before > start;
                // The start may be higher, if there is a hole.
                let start = topic.delete_records(0, before).unwrap();
                assert!(start >= before && log.start_offset() == start);
                if deletes {
                    state.deleted = before;
                }
            }
            3 | 4 => {
                let committed = |partition: u32, offset: u64| Committed {
                    group: group.to_owned(),
                    topic: self.topic,
                    partition,
                    offset,
                    leader_epoch: 0,
                    metadata: "m".repeat(200),
                    committed_ms: 1,
                };
                let offset = self.random.below(100);
                let both = [partition, partition + 1];
                let offsets = both.map(|partition| committed(partition, offset));
                broker.commit_offsets(offsets.to_vec()).unwrap();
                let key = |partition| (group.to_owned(), partition);
                let offsets = both.map(|partition| (key(partition), offset));
                state.committed.extend(offsets);
            }
            5 => {
                let places = [(self.topic, partition)];
                broker.delete_offsets(group, &places).unwrap();
                state.committed.remove(&(group.to_owned(), partition));
            }
            6 if self.random.one_in(3) => {
                broker.delete_group(group).unwrap();
                state.committed.retain(|(of, _), _| of != group);
            }
            _ => {
                let key = KEYS[partition as usize];
                let value = (!self.random.one_in(3)).then(|| vec![self.random.next() as u8; 2]);
                broker.put_value(key, value.clone()).unwrap();
                match value {
                    Some(value) => drop(state.kept.insert(key.to_owned(), value)),
                    None => drop(state.kept.remove(key)),
                }
            }
        }
        self.history.push(state);
        assert_eq!(self.seen(), self.now());
    }

    fn publish(&mut self) {
        let topic = self.world.topic("t");
        let batch = self.world.batch(&["a", "b", "c"]);
        drop(topic.publish_to(0, batch, Durability::Kernel).unwrap());
        self.world.settle();
    }

    fn crash(&mut self) {
        let power = self.random.one_in(2);
        let first = self.first_message(self.now().deleted);
        if power {
            let seed = self.random.next();
            self.world.lose_power_and_restart(seed);
        } else {
            self.world.kill_and_restart();
        }
        let starts = self.world.broker.starts();
        assert!(starts > self.starts, "start {starts} came twice");
        self.starts = starts;
        let mut seen = self.seen();
        let topic = self.world.broker.topic_by_id(self.topic).unwrap();
        let start = topic.partition(0).unwrap().start_offset();
        if !power {
            assert_eq!(seen, self.now(), "a kill took something back");
            assert_eq!(self.first_message(self.now().deleted), first);
        }
        let was = |then: &&JournalState| {
            let deleted = then.deleted;
            JournalState {
                deleted,
                ..seen.clone()
            } == **then
        };
        let deleted = self.history.iter().filter(was).map(|then| then.deleted);
        let Some(deleted) = deleted.min() else {
            panic!("{seen:?} never was true in {:#?}", self.history);
        };
        assert!(
            start >= deleted,
            "what was deleted before {deleted} came back"
        );
        seen.deleted = if power { deleted } else { seen.deleted };
        self.history = vec![seen];
        self.world.log.sync_all().unwrap();
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..7 => self.change(),
            7..9 => self.publish(),
            9 => self.world.advance(1_500),
            10 => {
                self.world.log.sync_all().unwrap();
                self.history = vec![self.now()];
            }
            _ => self.crash(),
        }
    }
}

#[test]
fn no_synced_change_is_lost() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse().ok());
    let seeds: u64 = number("CLOVERLEAF_SEEDS").unwrap_or(300);
    let first: u64 = number("CLOVERLEAF_SEED").unwrap_or(0);
    for seed in first..first + seeds {
        let outcome = std::panic::catch_unwind(|| {
            let mut run = CrashRun::new(seed);
            for _ in 0..80 {
                run.step();
            }
            run.crash();
        });
        if let Err(panic) = outcome {
            eprintln!("to see it again: CLOVERLEAF_SEED={seed} CLOVERLEAF_SEEDS=1");
            std::panic::resume_unwind(panic);
        }
    }
}

/// A group commits the offsets of 10,000 partitions again and again, besides nine other groups.
#[test]
fn many_committed_offsets_stay_small_in_the_journal() {
    let mut world = World::new();
    let options = || TopicOptions {
        partitions: 1_000,
        ..TopicOptions::default()
    };
    let topics: Vec<Uuid> = (0..10)
        .map(|n| world.broker.topic_or_create(&format!("t{n}"), options))
        .map(|topic| topic.unwrap().id())
        .collect();
    let commit = |world: &World, group: &str, offset: u64| {
        let all = topics.iter().flat_map(|topic| {
            (0..1_000).map(|partition| Committed {
                group: group.to_owned(),
                topic: *topic,
                partition,
                offset,
                leader_epoch: -1,
                metadata: String::new(),
                committed_ms: 1,
            })
        });
        world.broker.commit_offsets(all.collect()).unwrap();
    };
    for group in 0..10 {
        commit(&world, &format!("g{group}"), 5);
    }
    for second in 0..20 {
        commit(&world, "g0", 100 + second);
        world.advance(1_000);
    }
    world.kill_and_restart();
    for group in 0..10 {
        let offset = if group == 0 { 119 } else { 5 };
        let all = world.broker.committed_offsets(&format!("g{group}"));
        assert_eq!(all.len(), 10_000);
        assert!(all.iter().all(|committed| committed.offset == offset));
    }
}
