//! Idempotent producers that repeat batches that were not answered, and sometimes answered ones.

use std::collections::VecDeque;

use cloverleaf_broker::Published;
use cloverleaf_log::Durability;
use uuid::Uuid;

use super::ledger::{Content, MessageModel};
use super::machine::SimulatedMachine;

/// How many batches per producer a partition remembers.
const REMEMBERED: usize = 5;

/// A batch of a producer.
struct SentBatch {
    sequence: i32,
    contents: Vec<Content>,
    filling: usize,
    stamp_ms: u64,
    /// Its base offset, once it was answered.
    answered: Option<u64>,
    /// The base offsets at which it may be stored.
    bases: Vec<u64>,
    /// The pending answer; `None`: the batch must be repeated unless it was answered.
    published: Option<Published>,
    /// The newest change of the catalog when it was sent; `None` for a duplicate.
    mark: Option<usize>,
}

pub(super) struct Producer {
    id: i64,
    pub(super) class: Durability,
    pub(super) topic: Uuid,
    pub(super) partition: u32,
    sequence: i32,
    sent: VecDeque<SentBatch>,
}

impl Producer {
    pub(super) fn new(
        id: i64,
        class: Durability,
        (topic, partition): (Uuid, u32),
        sequence: i32,
    ) -> Self {
        Self {
            id,
            class,
            topic,
            partition,
            sequence,
            sent: VecDeque::new(),
        }
    }

    /// Whether the producer may send one more batch: all earlier ones were sent, and not too many
    /// are unanswered.
    pub(super) fn may_send(&self) -> bool {
        let is_full = self.sent.len() == REMEMBERED;
        let oldest = self.sent.front();
        let has_room = !is_full || oldest.is_some_and(|sent| sent.answered.is_some());
        let mut sent = self.sent.iter();
        has_room && sent.all(|it| it.answered.is_some() || it.published.is_some())
    }

    pub(super) fn send(
        &mut self,
        machine: &SimulatedMachine,
        ledger: &mut MessageModel,
        mark: usize,
        (contents, filling): (Vec<Content>, usize),
    ) {
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
        }
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(contents.len() as i32) & i32::MAX;
        self.sent.push_back(SentBatch {
            sequence,
            contents,
            filling,
            stamp_ms: machine.now_ms(),
            answered: None,
            bases: Vec::new(),
            published: None,
            mark: None,
        });
        self.try_send(machine, ledger, mark, self.sent.len() - 1);
    }

    /// Repeats batches from `from` on, or from the first batch without an answer if that comes
    /// first.
    pub(super) fn repeat(
        &mut self,
        machine: &SimulatedMachine,
        ledger: &mut MessageModel,
        mark: usize,
        from: usize,
    ) {
        let is_stuck = |it: &SentBatch| it.answered.is_none() && it.published.is_none();
        let stuck = self.sent.iter().position(is_stuck);
        let first = stuck.unwrap_or(from).min(from);
        for at in first..self.sent.len() {
            if !self.try_send(machine, ledger, mark, at) {
                break;
            }
        }
    }

    fn try_send(
        &mut self,
        machine: &SimulatedMachine,
        ledger: &mut MessageModel,
        mark: usize,
        at: usize,
    ) -> bool {
        let sent = &mut self.sent[at];
        let Some(topic) = machine.world.broker.topic_by_id(self.topic) else {
            return false;
        };
        let place = |base| (self.topic, self.partition, base);
        let producer = Some((self.id, sent.sequence));
        let batch = machine.batch(&sent.contents, sent.filling, producer);
        let bytes = batch.bytes().len() as u64;
        let next = topic.partition(self.partition).unwrap().next_offset();
        let was_alive = machine.is_alive();
        let published = topic.publish_to(self.partition, batch, self.class);
        let (base, is_duplicate) = match &published {
            Ok(published) => (published.first_offset(), published.is_duplicate()),
            Err(error) => {
                assert!(!machine.is_alive(), "{} is refused: {error}", sent.sequence);
                (next, false)
            }
        };
        if published.is_ok() {
            let known = sent
                .answered
                .filter(|known| !is_duplicate || *known != base);
            assert_eq!(known, None, "{:?} is at {base}, too", sent.contents);
            for before in sent.bases.drain(..).filter(|before| *before != base) {
                ledger.sent_again(place(before), &sent.contents);
            }
        }
        // If the machine had died before, nothing was written.
        if published.is_ok() || was_alive {
            ledger.sent(place(base), &sent.contents, sent.stamp_ms, bytes);
            sent.bases.push(base);
        }
        sent.mark = (!is_duplicate).then_some(mark);
        sent.published = published.ok();
        sent.published.is_some()
    }

    /// Collects answers. Returns the newest change of the catalog that was synced before one of
    /// them.
    pub(super) fn collect(
        &mut self,
        machine: &SimulatedMachine,
        ledger: &mut MessageModel,
    ) -> Option<usize> {
        let mut synced = None;
        for sent in &mut self.sent {
            if !sent.published.as_ref().is_some_and(Published::is_ready) {
                continue;
            }
            let published = sent.published.take().unwrap();
            let base = published.first_offset();
            match crate::common::poll(published).unwrap() {
                Ok(()) => {
                    let place = (self.topic, self.partition, base);
                    ledger.answered(place, &sent.contents, self.class);
                    sent.answered = Some(base);
                    if self.class == Durability::Disk {
                        synced = synced.max(sent.mark);
                    }
                }
                Err(error) => assert!(
                    !machine.is_alive() || machine.world.broker.topic_by_id(self.topic).is_none(),
                    "{error}"
                ),
            }
        }
        synced
    }

    /// The connection is closed: no answer arrives any more.
    pub(super) fn disconnect(&mut self) {
        self.sent.iter_mut().for_each(|sent| sent.published = None);
    }
}
