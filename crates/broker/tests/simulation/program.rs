//! The random program of one life of the broker.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use cloverleaf_broker::{Committed, ConsumerOptions, MessageRange, Topic, TopicOptions};
use cloverleaf_log::Durability;
use std::sync::Arc;

use super::catalog::ModelTopic;
use super::ledger::{Content, SubscriptionKey, TopicKind};
use super::machine::{
    LETTERS, NAMES, kind_of, made, number_of, segment_bytes, subscription_options, topic_options,
};
use super::producers::Producer;
use super::{PendingPublish, PublishedContent, SimulationRun};
use crate::common::{consumer_with, receive};

const PARTITIONS_MAX: u32 = 3;
const GROUPS: [&str; 2] = ["g", "h"];
const KEYS: u64 = 5;

impl SimulationRun {
    pub(super) fn step(&mut self) {
        match self.random.below(40) {
            0 => self.make(),
            1 => self.alter(),
            2 if self.random.one_in(4) => self.delete(),
            3..9 => self.publish(),
            9..14 => self.produce(),
            14 => self.repeat(),
            15..17 => self.delay(),
            17..21 => self.receive(),
            21..25 => self.settle_some(),
            25 => self.replace_consumer(),
            26 => self.commit(),
            27 => self.keep(),
            28 => self.seal(),
            29..32 => self.machine.world.log.step(),
            32 => self.machine.world.log.step_commit(),
            33 if self.random.one_in(2) => self.sync_definitions(),
            34 if self.random.one_in(3) => self.subscribe_late(),
            35 => {
                let ms = self.random.below(900);
                self.advance(ms);
            }
            _ => {
                let ms = self.random.below(15);
                self.advance(ms);
            }
        }
        self.collect_answers();
    }

    /// Advances the time, and runs the housekeeping when it is due.
    pub(super) fn advance(&mut self, ms: u64) {
        let target_ms = self.machine.now_ms() + ms;
        loop {
            if self.machine.steps_always {
                self.machine.world.log.step();
            }
            let due_ms = self.machine.world.broker.tick();
            let now_ms = self.machine.now_ms();
            if self.machine.is_alive() {
                self.ledger.ticked(now_ms);
            }
            if now_ms >= target_ms {
                break;
            }
            let next_ms = due_ms.clamp(now_ms + 1, target_ms);
            self.machine.world.clock.advance(next_ms - now_ms);
        }
    }

    /// A random existing topic of a wanted kind.
    fn some_topic(&mut self, wants: impl Fn(TopicKind) -> bool) -> Option<Arc<Topic>> {
        let names = self.catalog.now().topics.keys();
        let names: Vec<&String> = names.filter(|name| wants(kind_of(name))).collect();
        let count = names.len() as u64;
        let name = names.get(self.random.below(count.max(1)) as usize)?;
        self.machine.world.broker.topic(name)
    }

    pub(super) fn make(&mut self) {
        let name = NAMES[self.random.below(NAMES.len() as u64) as usize];
        if self.catalog.now().topics.contains_key(name) {
            return;
        }
        let options = TopicOptions {
            partitions: 1 + self.random.below(2) as u32,
            ..topic_options(kind_of(name), segment_bytes(&mut self.random))
        };
        self.make_topic(name, options);
        if kind_of(name) == TopicKind::Queue {
            self.subscribe(name, "s", true);
        }
    }

    pub(super) fn make_topic(&mut self, name: &str, options: TopicOptions) {
        let was_alive = self.machine.is_alive();
        // No two topics are created at the same time: after damage their order would be unknown.
        self.machine.world.clock.advance(1);
        let broker = &self.machine.world.broker;
        let topic = broker.topic_or_create(name, || options.clone());
        let id = topic.as_ref().map(|topic| topic.id()).unwrap_or_default();
        let mut state = self.catalog.now().clone();
        state.topics.insert(name.to_owned(), made(id, &options));
        if topic.is_ok() {
            self.ledger.kinds.insert(id, kind_of(name));
        }
        self.changed(was_alive, topic.is_ok(), state);
    }

    /// A change of the catalog was answered, or has failed.
    fn changed(&mut self, was_alive: bool, is_ok: bool, state: super::catalog::CatalogState) {
        match (is_ok, was_alive) {
            (true, _) => self.catalog.changed(state),
            (false, true) => {
                assert!(!self.machine.is_alive(), "refused: {state:?}");
                self.catalog.may_have_changed(state);
            }
            (false, false) => {}
        }
    }

    pub(super) fn subscribe(&mut self, topic: &str, name: &'static str, from_start: bool) {
        let Some(topic) = self.machine.world.broker.topic(topic) else {
            return;
        };
        let was_alive = self.machine.is_alive();
        let mut options = match name {
            "letters" => cloverleaf_broker::SubscriptionOptions::default(),
            _ => subscription_options(&mut self.random),
        };
        options.start = if from_start {
            cloverleaf_broker::StartAt::Earliest
        } else {
            cloverleaf_broker::StartAt::Latest
        };
        let made = topic.subscription_or_create(name, || options);
        let mut state = self.catalog.now().clone();
        state.subscriptions.insert((topic.id(), name.to_owned()));
        self.changed(was_alive, made.is_ok(), state);
        if made.is_ok() {
            self.ledger.subscribed((topic.id(), name), from_start);
            self.consume((topic.id(), name));
        }
    }

    pub(super) fn consume(&mut self, name: SubscriptionKey) {
        let topic = self.machine.world.broker.topic_by_id(name.0).unwrap();
        let subscription = topic.subscription(name.1).unwrap();
        let owed = self.ledger.owed.get_mut(&name).unwrap();
        owed.has_limit = subscription.options().attempts_max > 0;
        let options = ConsumerOptions {
            ack_wait_ms: self.random.one_in(2).then_some(300),
            ..ConsumerOptions::default()
        };
        let window = 1 + self.random.below(30) as u32;
        let consumer = consumer_with(&subscription, window, options);
        self.consumers.insert(name, consumer);
    }

    fn subscribe_late(&mut self) {
        let Some(topic) = self.some_topic(|kind| kind == TopicKind::Queue) else {
            return;
        };
        if topic.subscription("late").is_none() {
            // Everything published so far is written first.
            self.machine.world.log.step();
            self.subscribe(topic.name(), "late", false);
        }
    }

    fn alter(&mut self) {
        let Some(topic) = self.some_topic(|_| true) else {
            return;
        };
        let was_alive = self.machine.is_alive();
        let mut state = self.catalog.now().clone();
        let known = state.topics.get_mut(topic.name()).unwrap();
        let partitions = known.partitions + 1;
        let is_ok = if self.random.one_in(4) && partitions <= PARTITIONS_MAX {
            known.partitions = partitions;
            topic.add_partitions(partitions).is_ok()
        } else {
            let mut options = (*topic.options()).clone();
            options.segment_bytes = Some(segment_bytes(&mut self.random));
            let marker = self.random.below(100).to_string();
            options.settings.insert("marker".to_owned(), marker);
            *known = ModelTopic {
                partitions: known.partitions,
                ..made(known.id, &options)
            };
            topic.set_options(|changed| *changed = options).is_ok()
        };
        self.changed(was_alive, is_ok, state);
    }

    fn delete(&mut self) {
        let Some(topic) = self.some_topic(|kind| kind != TopicKind::Letters) else {
            return;
        };
        let was_alive = self.machine.is_alive();
        let state = self.catalog.now().without_topic(topic.name());
        let deleted = self.machine.world.broker.delete_topic(topic.name());
        self.changed(was_alive, deleted.is_ok(), state);
        if deleted.is_ok() {
            self.consumers.retain(|name, _| name.0 != topic.id());
            self.held.retain(|name, _| name.0 != topic.id());
            self.producers.retain(|it| it.topic != topic.id());
            self.waiting.retain(|it| it.topic.id() != topic.id());
        }
    }

    fn contents(&mut self, kind: TopicKind, count: u64) -> Vec<Content> {
        let is_keyed = matches!(kind, TopicKind::Compacted { .. });
        let content = |_| Content {
            number: self.ledger.number(),
            key: is_keyed.then(|| self.random.below(KEYS) as u8),
            is_tombstone: is_keyed && self.random.one_in(5),
        };
        (0..count).map(content).collect()
    }

    fn class(&mut self) -> Durability {
        [Durability::Disk, Durability::Disk, Durability::Kernel][self.random.below(3) as usize]
    }

    fn publish(&mut self) {
        let Some(topic) = self.some_topic(|kind| kind != TopicKind::Letters) else {
            return;
        };
        let count = 1 + self.random.below(4);
        let contents = self.contents(kind_of(topic.name()), count);
        let filling = self.random.below(300) as usize;
        let partition = self.random.below(u64::from(topic.partition_count())) as u32;
        let class = self.class();
        let batch = self.machine.batch(&contents, filling, None);
        let bytes = batch.bytes().len() as u64;
        let next = topic.partition(partition).unwrap().next_offset();
        let published = topic.publish_to(partition, batch, class);
        let place = (topic.id(), partition, next);
        let now_ms = self.machine.now_ms();
        self.ledger.owes(topic.id(), &contents);
        self.ledger.sent(place, &contents, now_ms, bytes);
        match published {
            Ok(published) => {
                assert_eq!(published.first_offset(), next);
                let mark = self.catalog.mark();
                self.waiting.push(PendingPublish {
                    topic,
                    class,
                    published,
                    mark,
                    what: PublishedContent::Batch(place, contents),
                });
            }
            Err(error) => assert!(!self.machine.is_alive(), "{error}"),
        }
    }

    fn delay(&mut self) {
        let Some(topic) = self.some_topic(|kind| kind == TopicKind::Queue) else {
            return;
        };
        let contents = self.contents(TopicKind::Queue, 1);
        let number = contents[0].number;
        let batch = self.machine.batch(&contents, 40, None);
        let (class, delay_ms) = (self.class(), 1 + self.random.below(400));
        self.ledger.delays(topic.id(), number);
        match topic.publish_delayed(&batch, delay_ms, class) {
            Ok(published) => {
                let mark = self.catalog.mark();
                self.waiting.push(PendingPublish {
                    topic,
                    class,
                    published,
                    mark,
                    what: PublishedContent::DelayedMessage(number),
                });
            }
            Err(error) => assert!(!self.machine.is_alive(), "{error}"),
        }
    }

    pub(super) fn collect_answers(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let mut synced = None;
        for mut waiting in std::mem::take(&mut self.waiting) {
            let PendingPublish { class, mark, .. } = waiting;
            match Pin::new(&mut waiting.published).poll(&mut context) {
                Poll::Pending => self.waiting.push(waiting),
                Poll::Ready(Ok(())) => {
                    match &waiting.what {
                        PublishedContent::Batch(place, contents) => {
                            self.ledger.answered(*place, contents, class);
                        }
                        PublishedContent::DelayedMessage(number) => {
                            self.ledger.delay_answered(*number, class)
                        }
                    }
                    if class == Durability::Disk {
                        synced = synced.max(Some(mark));
                    }
                }
                Poll::Ready(Err(error)) => assert!(!self.machine.is_alive(), "{error}"),
            }
        }
        for producer in &mut self.producers {
            synced = synced.max(producer.collect(&self.machine, &mut self.ledger));
        }
        if let Some(mark) = synced {
            self.catalog.synced(mark);
        }
    }

    fn produce(&mut self) {
        if self.producers.len() < 4 || self.random.one_in(20) {
            let Some(topic) = self.some_topic(|kind| kind != TopicKind::Letters) else {
                return;
            };
            let partition = self.random.below(u64::from(topic.partition_count())) as u32;
            let sequence = [0, 0, i32::MAX - 5][self.random.below(3) as usize];
            self.ids += 1;
            let place = (topic.id(), partition);
            let producer = Producer::new(self.ids, self.class(), place, sequence);
            self.producers.push(producer);
        }
        let count = self.producers.len() as u64;
        let number = self.random.below(count) as usize;
        if !self.producers[number].may_send() {
            return;
        }
        let kind = self.ledger.kinds[&self.producers[number].topic];
        let count = 1 + self.random.below(3);
        let content = (self.contents(kind, count), self.random.below(300) as usize);
        let topic = self.producers[number].topic;
        self.ledger.owes(topic, &content.0);
        let mark = self.catalog.mark();
        self.producers[number].send(&self.machine, &mut self.ledger, mark, content);
    }

    pub(super) fn repeat(&mut self) {
        let mark = self.catalog.mark();
        for producer in &mut self.producers {
            let from = self.random.below(7) as usize;
            producer.repeat(&self.machine, &mut self.ledger, mark, from);
        }
    }

    pub(super) fn receive(&mut self) {
        // Consumers of a dead machine get nothing.
        if !self.machine.is_alive() {
            return;
        }
        for (name, consumer) in &self.consumers {
            for got in receive(consumer).unwrap() {
                let place = (name.0, got.id.partition, got.id.offset);
                let content = Content {
                    number: number_of(&got.headers),
                    key: None,
                    is_tombstone: false,
                };
                self.ledger
                    .delivered(*name, place, &content, got.redelivered);
                let held = self.held.entry(*name).or_default();
                held.retain(|before| before.id != got.id);
                held.push(got);
            }
        }
    }

    fn settle_some(&mut self) {
        // Takes all deliveries first; otherwise a redelivery could be in the outbox.
        self.receive();
        let now_ms = self.machine.now_ms();
        for (name, held) in &mut self.held {
            let consumer = &self.consumers[name];
            let mut kept = Vec::new();
            for got in held.drain(..) {
                let range = MessageRange {
                    partition: got.id.partition,
                    first: got.id.offset,
                    count: 1,
                };
                let (place, number) = (
                    (name.0, range.partition, range.first),
                    number_of(&got.headers),
                );
                match self.random.below(13) {
                    choice @ 0..7 => {
                        let mut is_acked = false;
                        if choice < 3 {
                            is_acked = consumer.ack(got.id).is_ok()
                        } else {
                            consumer.ack_ranges(&[range], |_, settled| {
                                is_acked = settled.is_some();
                            })
                        }
                        // Otherwise its ack wait was over.
                        if is_acked {
                            self.ledger.acked(*name, place, number, now_ms);
                        }
                    }
                    7 => drop(consumer.nack(got.id, 0)),
                    8 => drop(consumer.nack(got.id, 1 + self.random.below(500))),
                    9 => consumer.nack_ranges(&[range]),
                    10 if name.1 != LETTERS => {
                        if consumer.reject(got.id).is_ok() {
                            self.ledger.gave_up(*name, number);
                        }
                    }
                    _ => kept.push(got),
                }
            }
            *held = kept;
        }
    }

    /// Retires a consumer and drops it some time later.
    fn replace_consumer(&mut self) {
        let names: Vec<SubscriptionKey> = self.consumers.keys().copied().collect();
        let Some(name) = names.get(self.random.below(names.len().max(1) as u64) as usize) else {
            return;
        };
        let before = self.consumers.remove(name).unwrap();
        before.retire();
        self.consume(*name);
        if self.random.one_in(2) {
            self.receive();
        }
        self.held.remove(name);
    }

    fn commit(&mut self) {
        let wants = |kind| !matches!(kind, TopicKind::Queue | TopicKind::Letters);
        let Some(topic) = self.some_topic(wants) else {
            return;
        };
        let was_alive = self.machine.is_alive();
        let partition = self.random.below(u64::from(topic.partition_count())) as u32;
        let group = GROUPS[self.random.below(2) as usize];
        let end = topic.partition(partition).unwrap().written_end();
        let offset = self.random.below(end + 1);
        let mut state = self.catalog.now().clone();
        let place = (group.to_owned(), topic.id(), partition);
        let broker = &self.machine.world.broker;
        let done = match self.random.below(8) {
            0 => {
                state.committed.retain(|(of, ..), _| of != group);
                broker.delete_group(group).map(drop)
            }
            1 => {
                state.committed.remove(&place);
                broker.delete_offsets(group, &[(topic.id(), partition)])
            }
            _ => {
                state.committed.insert(place, offset);
                broker.commit_offsets(vec![Committed {
                    group: group.to_owned(),
                    topic: topic.id(),
                    partition,
                    offset,
                    leader_epoch: 0,
                    metadata: "m".repeat(50),
                    committed_ms: 1,
                }])
            }
        };
        self.changed(was_alive, done.is_ok(), state);
    }

    fn keep(&mut self) {
        let was_alive = self.machine.is_alive();
        let key = format!("k/{}", self.random.below(3));
        let value = (!self.random.one_in(4)).then(|| vec![self.random.next() as u8; 200]);
        let mut state = self.catalog.now().clone();
        match &value {
            Some(value) => drop(state.kept.insert(key.clone(), value.clone())),
            None => drop(state.kept.remove(&key)),
        }
        let kept = self.machine.world.broker.put_value(&key, value);
        self.changed(was_alive, kept.is_ok(), state);
    }

    fn seal(&mut self) {
        if let Some(topic) = self.some_topic(|_| true) {
            let partition = self.random.below(u64::from(topic.partition_count())) as u32;
            let log = self
                .machine
                .world
                .log
                .opened_partition(topic.id(), partition);
            log.unwrap().seal_active();
        }
    }

    pub(super) fn sync_definitions(&mut self) {
        let mark = self.catalog.mark();
        match self.machine.world.broker.sync_definitions() {
            Ok(()) => {
                self.catalog.synced(mark);
                self.ledger.synced();
            }
            Err(error) => assert!(!self.machine.is_alive(), "{error}"),
        }
    }
}
