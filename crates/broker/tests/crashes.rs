//! Kills and power losses over many seeds, for log, cursors and catalog together.
//!
//! Messages that were answered in the class disk survive any power loss, those that were answered
//! in the class kernel survive any kill; no message appears from nowhere, no offset is used twice,
//! order is kept, and a message that a consumer has seen is always flagged as redelivered
//! afterwards. More seeds: `CLOVERLEAF_SEEDS=100000 cargo test -p cloverleaf-broker --test crashes
//! --release`.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::common::{Random, ReceivedMessage, World, consumer, reached, receive};
use cloverleaf_broker::{Consumer, MessageRange, Published, SubscriptionOptions};
use cloverleaf_log::Durability;
use uuid::Uuid;

/// A publish whose answer is pending.
struct PendingPublish {
    topic: usize,
    numbers: Vec<u64>,
    class: Durability,
    published: Published,
}

/// The messages that one subscription must deliver.
#[derive(Default)]
struct OwedMessages {
    /// Message number and the class in which it was answered.
    answered: BTreeMap<u64, Durability>,
    /// Numbers that a consumer has acknowledged.
    acked: BTreeSet<u64>,
}

struct CrashRun {
    world: World,
    random: Random,
    topics: Vec<String>,
    /// By topic and subscription name.
    owed: BTreeMap<(usize, &'static str), OwedMessages>,
    consumers: BTreeMap<(usize, &'static str), Consumer>,
    held: BTreeMap<(usize, &'static str), Vec<ReceivedMessage>>,
    waiting: Vec<PendingPublish>,
    next_number: u64,
    /// Which topic a number was published to: checks that no message appears from nowhere.
    published: BTreeMap<u64, usize>,
    /// Which number was seen at an offset: checks that no offset is used twice.
    seen: BTreeMap<(Uuid, u32, u64), u64>,
    /// The messages that were delivered to a consumer of a subscription.
    handed: BTreeSet<(usize, &'static str, u64)>,
}

impl CrashRun {
    fn new(seed: u64) -> Self {
        Self {
            world: World::new(),
            random: Random(seed),
            topics: vec!["a".to_owned(), "b".to_owned()],
            owed: BTreeMap::new(),
            consumers: BTreeMap::new(),
            held: BTreeMap::new(),
            waiting: Vec::new(),
            next_number: 0,
            published: BTreeMap::new(),
            seen: BTreeMap::new(),
            handed: BTreeSet::new(),
        }
    }

    fn subscribe(&mut self, topic: usize, name: &'static str) {
        let options = SubscriptionOptions {
            attempts_max: 0,
            ..SubscriptionOptions::default()
        };
        let subscription = self
            .world
            .subscription_with(&self.topics[topic], name, options);
        self.owed.entry((topic, name)).or_default();
        let window = u32::try_from(1 + self.random.below(40)).unwrap();
        self.consumers
            .entry((topic, name))
            .or_insert_with(|| consumer(&subscription, window));
    }

    fn publish(&mut self) {
        let topic = usize::try_from(self.random.below(2)).unwrap();
        if !self.owed.contains_key(&(topic, "s")) {
            self.subscribe(topic, "s");
        }
        let count = 1 + self.random.below(6);
        let numbers: Vec<u64> = (self.next_number..self.next_number + count).collect();
        self.next_number += count;
        let padding = "x".repeat(usize::try_from(self.random.below(700)).unwrap());
        let bodies: Vec<String> = numbers.iter().map(|n| format!("{n} {padding}")).collect();
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        let class = if self.random.one_in(2) {
            Durability::Disk
        } else {
            Durability::Kernel
        };
        let batch = self.world.batch(&bodies);
        let published = self
            .world
            .topic(&self.topics[topic])
            .publish(batch, class)
            .unwrap();
        for number in &numbers {
            self.published.insert(*number, topic);
        }
        self.waiting.push(PendingPublish {
            topic,
            numbers,
            class,
            published,
        });
    }

    fn collect_answers(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for mut waiting in std::mem::take(&mut self.waiting) {
            match Pin::new(&mut waiting.published).poll(&mut context) {
                Poll::Pending => self.waiting.push(waiting),
                Poll::Ready(result) => {
                    result.unwrap();
                    for ((topic, _), owed) in &mut self.owed {
                        if *topic == waiting.topic {
                            let numbers = waiting.numbers.iter();
                            owed.answered
                                .extend(numbers.map(|number| (*number, waiting.class)));
                        }
                    }
                }
            }
        }
    }

    fn receive(&mut self) {
        for ((topic, name), consumer) in &self.consumers {
            let id = self.world.topic(&self.topics[*topic]).id();
            for got in receive(consumer).unwrap() {
                let number = number_of(&got);
                assert_eq!(
                    self.published.get(&number),
                    Some(topic),
                    "{number} was invented"
                );
                let known = *self
                    .seen
                    .entry((id, got.id.partition, got.id.offset))
                    .or_insert(number);
                assert_eq!(known, number, "offset {} was used twice", got.id.offset);
                let is_first = self.handed.insert((*topic, *name, number));
                let said = got.redelivered;
                assert!(is_first || said, "{number} came again, and does not say so");
                assert!(said || got.attempts == 1, "{number} was delivered often");
                self.held.entry((*topic, *name)).or_default().push(got);
            }
        }
    }

    fn settle_some(&mut self) {
        for (key, held) in &mut self.held {
            let Some(consumer) = self.consumers.get(key) else {
                continue;
            };
            let mut kept = Vec::new();
            for got in held.drain(..) {
                let range = MessageRange {
                    partition: got.id.partition,
                    first: got.id.offset,
                    count: 1,
                };
                match self.random.below(11) {
                    choice @ 0..6 => {
                        if choice < 3 {
                            consumer.ack(got.id).unwrap();
                        } else {
                            consumer.ack_ranges(&[range], |_, settled| assert!(settled.is_some()));
                        }
                        self.owed
                            .get_mut(key)
                            .unwrap()
                            .acked
                            .insert(number_of(&got));
                    }
                    6 => drop(consumer.nack(got.id, 0).unwrap()),
                    7 => drop(consumer.nack(got.id, 1 + self.random.below(500)).unwrap()),
                    8 => consumer.nack_ranges(&[range]),
                    _ => kept.push(got),
                }
            }
            *held = kept;
        }
    }

    /// Retires a consumer and drops it some time later.
    fn replace_consumer(&mut self) {
        let Some(key) = self.consumers.keys().next_back().copied() else {
            return;
        };
        if let Some(consumer) = self.consumers.remove(&key) {
            consumer.retire();
            self.subscribe(key.0, key.1);
            if self.random.one_in(2) {
                self.receive();
            }
            self.held.remove(&key);
        }
    }

    fn crash(&mut self) {
        let power = self.random.one_in(2);
        self.consumers.clear();
        self.held.clear();
        self.waiting.clear();
        if power {
            let seed = self.random.next();
            self.world.lose_power_and_restart(seed);
        } else {
            self.world.kill_and_restart();
        }
        let survives = if power {
            Durability::Disk
        } else {
            Durability::Kernel
        };
        let mut gone = Vec::new();
        for ((topic, name), owed) in &mut self.owed {
            owed.answered.retain(|_, class| *class >= survives);
            let found = self.world.broker.topic(&self.topics[*topic]);
            let found = found.and_then(|topic| topic.subscription(name));
            if found.is_none() {
                // Only a definition that no durable answer followed may be lost.
                assert!(power, "a kill took {name} of topic {topic}");
                assert!(
                    owed.answered.is_empty(),
                    "power took {name} of topic {topic}"
                );
                gone.push((*topic, *name));
            }
        }
        for key in gone {
            self.owed.remove(&key);
            // A later subscription with that name starts without deliveries.
            self.handed
                .retain(|(topic, name, _)| (*topic, *name) != key);
        }
        for topic in self.world.broker.topics() {
            for log in topic.partitions().iter() {
                assert_eq!(
                    log.written_end(),
                    reached(log),
                    "no reader reaches this end"
                );
            }
        }
        for key in self.owed.keys().copied().collect::<Vec<_>>() {
            self.subscribe(key.0, key.1);
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..7 => self.publish(),
            7..10 => self.receive(),
            10..13 => self.settle_some(),
            13..15 => self.world.log.step(),
            15..17 => {
                let ms = self.random.below(15);
                self.world.advance(ms);
            }
            17 if self.random.one_in(3) => {
                let topic = usize::try_from(self.random.below(2)).unwrap();
                if self.owed.contains_key(&(topic, "s"))
                    && !self.owed.contains_key(&(topic, "late"))
                {
                    self.collect_answers();
                    self.waiting.retain(|waiting| waiting.topic != topic);
                    self.subscribe(topic, "late");
                }
            }
            18 if self.random.one_in(2) => self.crash(),
            19 => self.replace_consumer(),
            _ => {}
        }
        self.collect_answers();
    }

    /// Every message that is owed arrives.
    fn finish(&mut self) {
        self.crash();
        self.world.advance(1_000);
        for consumer in self.consumers.values() {
            consumer.set_window(u32::MAX);
        }
        for _ in 0..3 {
            self.world.advance(600);
            self.receive();
        }
        for (key, owed) in &self.owed {
            let held = self.held.get(key).map(Vec::as_slice).unwrap_or_default();
            let came: BTreeSet<u64> = held.iter().map(number_of).collect();
            for number in owed.answered.keys() {
                let settled = owed.acked.contains(number);
                assert!(
                    settled || came.contains(number),
                    "{number} of {key:?} is lost"
                );
            }
        }
        let mut last: BTreeMap<(Uuid, u32), u64> = BTreeMap::new();
        for ((topic, partition, offset), number) in &self.seen {
            let before = last.insert((*topic, *partition), *number);
            assert!(
                before.is_none_or(|before| before < *number),
                "order broken at {offset}"
            );
        }
    }
}

fn number_of(got: &ReceivedMessage) -> u64 {
    got.body.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn nothing_answered_is_lost() {
    let seeds: u64 = std::env::var("CLOVERLEAF_SEEDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1_000);
    let first: u64 = std::env::var("CLOVERLEAF_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    for seed in first..first + seeds {
        let outcome = std::panic::catch_unwind(|| {
            let mut run = CrashRun::new(seed);
            for _ in 0..80 {
                run.step();
            }
            run.finish();
        });
        if let Err(panic) = outcome {
            eprintln!("to see it again: CLOVERLEAF_SEED={seed} CLOVERLEAF_SEEDS=1");
            std::panic::resume_unwind(panic);
        }
    }
}
