//! Model of the messages over all lives: which messages are owed, and to which subscription.

use std::collections::{BTreeMap, BTreeSet};

use cloverleaf_log::Durability;
use uuid::Uuid;

/// Topic, partition, offset.
pub(super) type Position = (Uuid, u32, u64);
/// Topic and name of a subscription.
pub(super) type SubscriptionKey = (Uuid, &'static str);

/// Progress reaches the kernel within this many milliseconds.
const PROGRESS_MS: u64 = 10;
/// The tick that records a dead letter as moved comes after the tick that writes it.
const LETTER_MS: u64 = PROGRESS_MS + 2;

/// The worst kind of crash that a message or an acknowledgement survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Survives {
    #[default]
    Nothing,
    Kill,
    PowerLoss,
}

impl Survives {
    pub(super) fn of(class: Durability) -> Self {
        match class {
            Durability::None => Self::Nothing,
            Durability::Kernel => Self::Kill,
            Durability::Disk => Self::PowerLoss,
        }
    }
}

/// How a topic keeps its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopicKind {
    /// Messages are deleted once all subscriptions have consumed them.
    Queue,
    /// A queue for dead letters.
    Letters,
    /// Only the newest message of each key is kept; tombstones are kept for this many milliseconds.
    Compacted { tombstone_ms: u64 },
    /// At least the newest `least` bytes are kept; older segments are deleted.
    Bytes { least: u64 },
    /// Messages older than this are deleted.
    Age { ms: u64 },
}

/// The content of a message.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) number: u64,
    pub(super) key: Option<u8>,
    pub(super) is_tombstone: bool,
}

/// A message that is, or may be, stored at an offset.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) content: Content,
    pub(super) stamp_ms: u64,
    /// Bytes of its batch, for the first message of the batch; 0 for the others.
    pub(super) bytes: u64,
    pub(super) survives: Survives,
    /// Retention may have removed it.
    may_go: bool,
}

/// A message that was read after a start.
#[derive(Debug)]
pub(super) struct FoundMessage {
    pub(super) offset: u64,
    pub(super) content: Content,
    pub(super) stamp_ms: u64,
    /// If it is a dead letter: the subscription and the original's partition and offset.
    pub(super) letter: Option<String>,
}

/// The messages that one subscription must deliver.
#[derive(Default)]
pub(super) struct OwedMessages {
    pub(super) numbers: BTreeSet<u64>,
    /// Acknowledged messages that must not be delivered again: when, and what crash that survives.
    acked: BTreeMap<Position, (u64, Survives)>,
    done: BTreeSet<u64>,
    /// Numbers of rejected messages.
    may_die: BTreeSet<u64>,
    /// Messages die after a limit of deliveries, which timeouts may reach.
    pub(super) has_limit: bool,
    /// Messages that were delivered to some consumer.
    handed: BTreeSet<Position>,
}

/// A delayed message, before and after it has moved.
struct DelayedMessage {
    topic: Uuid,
    survives: Survives,
    has_arrived: bool,
}

/// A kill or a power loss.
struct Crash {
    at_ms: u64,
    /// Moves up to this time are in the journal.
    noted_ms: u64,
}

#[derive(Default)]
pub(super) struct MessageModel {
    pub(super) kinds: BTreeMap<Uuid, TopicKind>,
    pub(super) messages: BTreeMap<Position, Message>,
    pub(super) owed: BTreeMap<SubscriptionKey, OwedMessages>,
    /// The message number that a reader has seen at each offset.
    seen: BTreeMap<Position, u64>,
    delayed: BTreeMap<u64, DelayedMessage>,
    crashes: Vec<Crash>,
    /// Messages that damage has hit, and that may be missing.
    pub(super) hit: BTreeSet<Position>,
    /// Numbers of dead letters that damage has hit at any time.
    hit_letters: BTreeSet<u64>,
    /// How many required messages are missing.
    pub(super) lost: u64,
    next_number: u64,
}

impl MessageModel {
    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// A batch was passed to the broker, which has not answered yet.
    pub(super) fn sent(&mut self, base: Position, contents: &[Content], stamp_ms: u64, bytes: u64) {
        let (topic, partition, first) = base;
        for (content, offset) in contents.iter().zip(first..) {
            let message = Message {
                content: content.clone(),
                stamp_ms,
                bytes: if offset == first { bytes } else { 0 },
                survives: Survives::Nothing,
                may_go: false,
            };
            let place = (topic, partition, offset);
            // A producer repeats a batch that is or was stored already.
            if self.seen.get(&place) != Some(&content.number) {
                self.messages.entry(place).or_insert(message);
            }
        }
    }

    /// A batch is sent for the first time: the topic's subscriptions must deliver it.
    pub(super) fn owes(&mut self, topic: Uuid, contents: &[Content]) {
        let owed = self.owed.iter_mut();
        for (_, owed) in owed.filter(|((of, _), _)| *of == topic) {
            owed.numbers.extend(contents.iter().map(|it| it.number));
        }
    }

    /// A batch was sent again: its earlier attempt at `base` was not stored.
    pub(super) fn sent_again(&mut self, base: Position, contents: &[Content]) {
        for (content, offset) in contents.iter().zip(base.2..) {
            let place = (base.0, base.1, offset);
            let message = self.messages.get(&place);
            if message.is_some_and(|it| {
                it.content.number == content.number && it.survives == Survives::Nothing
            }) {
                self.messages.remove(&place);
            }
        }
    }

    pub(super) fn answered(&mut self, base: Position, contents: &[Content], class: Durability) {
        for (content, offset) in contents.iter().zip(base.2..) {
            let place = (base.0, base.1, offset);
            self.see(place, content.number);
            // Retention may have removed the original of a repeated batch.
            if let Some(message) = self.messages.get_mut(&place) {
                assert_eq!(message.content.number, content.number, "{place:?}");
                message.survives = message.survives.max(Survives::of(class));
            }
        }
    }

    pub(super) fn delays(&mut self, topic: Uuid, number: u64) {
        let delayed = DelayedMessage {
            topic,
            survives: Survives::Nothing,
            has_arrived: false,
        };
        self.delayed.insert(number, delayed);
        let owed = self.owed.iter_mut();
        for (_, owed) in owed.filter(|((of, _), _)| *of == topic) {
            owed.numbers.insert(number);
        }
    }

    pub(super) fn delay_answered(&mut self, number: u64, class: Durability) {
        if let Some(delayed) = self.delayed.get_mut(&number) {
            delayed.survives = Survives::of(class);
        }
    }

    fn see(&mut self, place: Position, number: u64) {
        let known = *self.seen.entry(place).or_insert(number);
        assert_eq!(known, number, "{place:?} was used twice");
    }

    /// Whether a message may be at this offset although its publish was not answered.
    fn explains(&self, place: Position, number: u64) -> bool {
        let is_sent = self.messages.get(&place);
        let delayed = self.delayed.get(&number);
        is_sent.is_some_and(|it| it.content.number == number)
            || self.seen.get(&place) == Some(&number)
            || delayed.is_some_and(|it| it.topic == place.0)
            || self.kinds[&place.0] == TopicKind::Letters
    }

    /// A message was read, so it is written.
    fn read(&mut self, place: Position, content: &Content, stamp_ms: u64, survives: Survives) {
        let number = content.number;
        assert!(
            self.explains(place, number),
            "{number} at {place:?} was invented: {:?}",
            self.messages.get(&place)
        );
        self.see(place, number);
        if let Some(delayed) = self.delayed.get_mut(&number) {
            delayed.has_arrived |= delayed.topic == place.0;
        }
        let message = self.messages.entry(place).or_insert_with(|| Message {
            content: content.clone(),
            stamp_ms,
            bytes: 0,
            survives,
            may_go: false,
        });
        assert_eq!(message.content.number, number, "{place:?} has another one");
        message.survives = message.survives.max(survives);
        if self.kinds[&place.0] == TopicKind::Letters {
            let owed = self.owed.iter_mut();
            for (_, owed) in owed.filter(|((of, _), _)| *of == place.0) {
                owed.numbers.insert(number);
            }
        }
    }

    /// A message was delivered to a consumer.
    pub(super) fn delivered(
        &mut self,
        name: SubscriptionKey,
        place: Position,
        content: &Content,
        redelivered: bool,
    ) {
        self.read(place, content, 0, Survives::Kill);
        let owed = self.owed.get_mut(&name).unwrap();
        let number = content.number;
        assert!(
            !owed.acked.contains_key(&place),
            "{number} at {place:?} comes again, acknowledged {:?}",
            owed.acked[&place]
        );
        let is_first = owed.handed.insert(place);
        assert!(
            is_first || redelivered,
            "{number} at {place:?} comes again, and does not say so"
        );
    }

    pub(super) fn acked(
        &mut self,
        name: SubscriptionKey,
        place: Position,
        number: u64,
        now_ms: u64,
    ) {
        let owed = self.owed.get_mut(&name).unwrap();
        owed.acked.insert(place, (now_ms, Survives::Nothing));
        owed.done.insert(number);
    }

    pub(super) fn gave_up(&mut self, name: SubscriptionKey, number: u64) {
        self.owed.get_mut(&name).unwrap().may_die.insert(number);
    }

    fn raise_acks(&mut self, from: Survives, to: Survives, until_ms: u64) {
        for (at_ms, survives) in self.owed.values_mut().flat_map(|it| it.acked.values_mut()) {
            if *survives == from && *at_ms <= until_ms {
                *survives = to;
            }
        }
    }

    /// The housekeeping has done everything that is due at this time.
    pub(super) fn ticked(&mut self, now_ms: u64) {
        let until_ms = now_ms.saturating_sub(PROGRESS_MS);
        self.raise_acks(Survives::Nothing, Survives::Kill, until_ms);
    }

    /// The journal was synced.
    pub(super) fn synced(&mut self) {
        self.raise_acks(Survives::Kill, Survives::PowerLoss, u64::MAX);
    }

    /// The broker was shut down in order.
    pub(super) fn closed(&mut self) {
        self.raise_acks(Survives::Nothing, Survives::Kill, u64::MAX);
        self.synced();
        let (messages, delayed) = (self.messages.values_mut(), self.delayed.values_mut());
        let written = messages.map(|it| &mut it.survives);
        for survives in written.chain(delayed.map(|it| &mut it.survives)) {
            if *survives == Survives::Kill {
                *survives = Survives::PowerLoss;
            }
        }
    }

    pub(super) fn crashed(&mut self, power: bool, now_ms: u64) {
        self.mark_old(now_ms);
        self.crashes.push(Crash {
            at_ms: now_ms,
            // After a power loss, moves count only if the originals are acknowledged.
            noted_ms: if power { 0 } else { now_ms },
        });
        let least = if power {
            Survives::PowerLoss
        } else {
            Survives::Kill
        };
        for owed in self.owed.values_mut() {
            owed.acked.retain(|_, (_, survives)| *survives >= least);
        }
        if power {
            let (messages, delayed) = (self.messages.values_mut(), self.delayed.values_mut());
            let written = messages.map(|it| &mut it.survives);
            for survives in written.chain(delayed.map(|it| &mut it.survives)) {
                if *survives < least {
                    *survives = Survives::Nothing;
                }
            }
        }
    }

    /// The end of a log is in doubt: the next start does not count moves.
    pub(super) fn doubt_moves(&mut self) {
        if let Some(crash) = self.crashes.last_mut() {
            crash.noted_ms = 0;
        }
    }

    /// Damage has destroyed acknowledgements; it is unknown which.
    pub(super) fn forget_acks(&mut self) {
        self.owed.values_mut().for_each(|owed| owed.acked.clear());
    }

    /// Marks the messages that retention may have removed by now.
    fn mark_old(&mut self, now_ms: u64) {
        let mut behind = 0;
        let mut before = None;
        for ((topic, partition, _), message) in self.messages.iter_mut().rev() {
            if before.replace((topic, partition)) != Some((topic, partition)) {
                behind = 0;
            }
            behind += message.bytes;
            message.may_go |= match self.kinds[topic] {
                TopicKind::Bytes { least } => behind > least,
                TopicKind::Age { ms } => message.stamp_ms + ms < now_ms,
                _ => false,
            };
        }
    }

    /// Damage has hit a message, also as a delayed one or as a dead letter.
    pub(super) fn hits(&mut self, place: Position, number: u64) {
        self.hit.insert(place);
        if self.kinds[&place.0] == TopicKind::Letters {
            self.hit_letters.insert(number);
        }
        if let Some(delayed) = self.delayed.get_mut(&number) {
            delayed.survives = Survives::Nothing;
        }
    }

    /// Damage has destroyed the subscription that moves delayed messages: they may be lost.
    pub(super) fn forget_delayed(&mut self) {
        let delayed = self.delayed.values_mut();
        delayed.for_each(|it| it.survives = Survives::Nothing);
    }

    /// Forgets everything about topics that do not exist any more.
    pub(super) fn keep_topics(&mut self, is_there: impl Fn(&Uuid) -> bool) {
        self.messages.retain(|place, _| is_there(&place.0));
        self.owed.retain(|name, _| is_there(&name.0));
        self.delayed.retain(|_, it| is_there(&it.topic));
    }

    /// A subscription was created that starts at the earliest message, or at the end.
    pub(super) fn subscribed(&mut self, name: SubscriptionKey, from_start: bool) {
        let mut owed = OwedMessages::default();
        if from_start {
            let of_topic = self
                .messages
                .range((name.0, 0, 0)..=(name.0, u32::MAX, u64::MAX));
            owed.numbers = of_topic.map(|(_, it)| it.content.number).collect();
            let waits = |it: &DelayedMessage| it.topic == name.0 && !it.has_arrived;
            let delayed = self.delayed.iter().filter(|(_, it)| waits(it));
            owed.numbers.extend(delayed.map(|(number, _)| number));
        }
        self.owed.insert(name, owed);
    }

    /// Compares a partition with what a start has found in it. Found messages survive a crash of
    /// the kind `survives` from now on. `next`: the next offset of the partition.
    pub(super) fn check(
        &mut self,
        (topic, partition): (Uuid, u32),
        found: &[FoundMessage],
        survives: Survives,
        (now_ms, next): (u64, u64),
    ) {
        self.mark_old(now_ms);
        let mut numbers = BTreeSet::new();
        for it in found {
            let place = (topic, partition, it.offset);
            self.read(place, &it.content, it.stamp_ms, survives);
            let number = it.content.number;
            let may_repeat =
                self.kinds[&topic] == TopicKind::Letters || self.delayed.contains_key(&number);
            let is_first = numbers.insert(number);
            assert!(
                is_first || may_repeat,
                "{number} is twice in {topic}/{partition}"
            );
        }
        assert!(found.windows(2).all(|pair| pair[0].offset < pair[1].offset));
        let places = (topic, partition, 0)..=(topic, partition, u64::MAX);
        if let Some((last, _)) = self.seen.range(places.clone()).next_back() {
            assert!(next > last.2, "{next} would be used again after {last:?}");
        }
        let there: BTreeSet<u64> = found.iter().map(|it| it.offset).collect();
        let missing = self.messages.range(places);
        let missing: Vec<Position> = missing
            .map(|(place, _)| *place)
            .filter(|place| !there.contains(&place.2))
            .collect();
        for place in missing {
            let is_required = self.is_required(place, found, now_ms);
            let is_hit = self.hit.contains(&place);
            if !is_hit {
                self.check_tombstone(place, found);
            }
            let message = self.messages.remove(&place).unwrap();
            assert!(!is_required || is_hit, "{place:?} is lost: {message:?}");
            self.lost += u64::from(is_required);
        }
    }

    /// Whether a missing message is a loss.
    fn is_required(&self, place: Position, found: &[FoundMessage], now_ms: u64) -> bool {
        let message = &self.messages[&place];
        if message.survives == Survives::Nothing || message.may_go {
            return false;
        }
        let number = message.content.number;
        match self.kinds[&place.0] {
            TopicKind::Queue | TopicKind::Letters => {
                let mut of_topic = self.owed.iter().filter(|(name, _)| name.0 == place.0);
                let mut wants = of_topic.clone().map(|(_, owed)| owed);
                of_topic.next().is_none()
                    || wants.any(|owed| owed.numbers.contains(&number) && !owed.is_settled(number))
            }
            TopicKind::Compacted { .. } => {
                let key = message.content.key;
                let is_newer = |it: &FoundMessage| it.offset > place.2 && it.content.key == key;
                // A newer message may have been compacted against before damage hit it.
                let was_newer = |hit: &Position| {
                    *hit > place
                        && self
                            .messages
                            .get(hit)
                            .is_some_and(|it| it.content.key == key)
                };
                let newer = found.iter().any(is_newer) || self.hit.iter().any(was_newer);
                !newer && !self.may_have_died(place, now_ms)
            }
            TopicKind::Bytes { .. } | TopicKind::Age { .. } => true,
        }
    }

    /// Whether compaction may have removed this message: it is a tombstone, or one follows it.
    fn may_have_died(&self, place: Position, now_ms: u64) -> bool {
        let TopicKind::Compacted { tombstone_ms } = self.kinds[&place.0] else {
            return false;
        };
        let key = self.messages[&place].content.key;
        let mut behind = self.messages.range(place..=(place.0, place.1, u64::MAX));
        behind.any(|(_, it)| {
            let is_due = it.stamp_ms + tombstone_ms <= now_ms;
            it.content.key == key && it.content.is_tombstone && is_due
        })
    }

    /// Checks that a tombstone was not removed before all older messages of its key.
    fn check_tombstone(&self, place: Position, found: &[FoundMessage]) {
        let message = &self.messages[&place];
        if message.content.is_tombstone && message.survives > Survives::Nothing {
            let mut older = found
                .iter()
                .filter(|it| it.content.key == message.content.key);
            let has_newer = older.clone().any(|it| it.offset > place.2);
            let older = older.find(|it| it.offset < place.2 && !it.content.is_tombstone);
            assert!(
                has_newer || older.is_none(),
                "{older:?} is back, its tombstone is gone"
            );
        }
    }

    /// Checks that each duplicate of a dead letter is explained by a crash.
    pub(super) fn check_letters(&self, found: &[FoundMessage]) {
        let mut before: BTreeMap<(u64, &str), u64> = BTreeMap::new();
        for it in found {
            let Some(letter) = &it.letter else { continue };
            let key = (it.content.number, letter.as_str());
            let Some(earlier_ms) = before.insert(key, it.stamp_ms) else {
                continue;
            };
            let was_taken_back = |crash: &Crash| {
                crash.at_ms >= earlier_ms
                    && crash.at_ms <= it.stamp_ms
                    && earlier_ms + LETTER_MS >= crash.noted_ms
            };
            assert!(
                self.crashes.iter().any(was_taken_back),
                "{key:?} came twice, at {earlier_ms} and {}",
                it.stamp_ms
            );
        }
    }

    /// Checks that every owed message was acknowledged, delivered at last, or dead-lettered.
    pub(super) fn finish(
        &self,
        came: &BTreeMap<SubscriptionKey, BTreeSet<u64>>,
        letters: Option<SubscriptionKey>,
    ) {
        let mut kept: BTreeSet<(Uuid, u64)> = BTreeSet::new();
        for (place, message) in &self.messages {
            if message.survives > Survives::Nothing {
                kept.insert((place.0, message.content.number));
            }
        }
        for (number, delayed) in &self.delayed {
            if delayed.survives > Survives::Nothing {
                kept.insert((delayed.topic, *number));
            }
        }
        let has = |name: &SubscriptionKey, number: &u64| {
            came.get(name).is_some_and(|came| came.contains(number))
                || self
                    .owed
                    .get(name)
                    .is_some_and(|it| it.done.contains(number))
        };
        for (name, owed) in &self.owed {
            for number in &owed.numbers {
                let may_die = owed.may_die(*number);
                let is_kept = kept.contains(&(name.0, *number));
                let has_letter = || {
                    let has = letters.is_some_and(|it| has(&it, number));
                    may_die && (has || self.hit_letters.contains(number))
                };
                assert!(
                    !is_kept || has(name, number) || has_letter(),
                    "{number} of {name:?} is skipped, may die: {}",
                    may_die
                );
            }
        }
    }

    /// A start has synced the journal: everything that it has read survives from now on.
    pub(super) fn opened(&mut self) {
        self.synced();
        self.hit.clear();
    }
}

impl OwedMessages {
    fn is_settled(&self, number: u64) -> bool {
        self.done.contains(&number) || self.may_die(number)
    }

    fn may_die(&self, number: u64) -> bool {
        self.has_limit || self.may_die.contains(&number)
    }
}
