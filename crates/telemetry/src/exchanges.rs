//! Requests with their answers: the timeline's data of producers and of readers by offset.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::lane::{Lane, LaneMemory, RateLimit};

/// Maximum topics of one socket read that are recorded separately.
const TOPICS_MAX: usize = 3;

/// The topics to which the requests of one socket read publish, by their numbers in the broker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Topics {
    numbers: [u32; TOPICS_MAX],
    count: u8,
    has_more: bool,
}

impl Topics {
    /// Adds a topic.
    #[inline]
    pub fn add(&mut self, number: u32) {
        if self.count == 0 {
            self.numbers[0] = number;
            self.count = 1;
        } else if self.numbers[0] != number {
            self.add_other(number);
        }
    }

    #[inline(never)]
    fn add_other(&mut self, number: u32) {
        let known = usize::from(self.count).min(TOPICS_MAX);
        if self.numbers[..known].contains(&number) {
            return;
        }
        match self.numbers.get_mut(known) {
            Some(place) => {
                *place = number;
                self.count += 1;
            }
            None => self.has_more = true,
        }
    }

    /// The topics that are recorded separately.
    fn numbers(&self) -> &[u32] {
        &self.numbers[..usize::from(self.count).min(TOPICS_MAX)]
    }
}

/// The purpose of a client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeKind {
    /// To publish.
    Publish,
    /// To read by offset.
    Fetch,
    /// To commit an offset.
    Commit,
}

/// One or more requests that came together, and their answer. Times are those of the probe's
/// clock, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The purpose of the requests.
    pub kind: ExchangeKind,
    /// Whether the client wants an answer.
    pub wants_answer: bool,
    /// The topic's number.
    pub topic: u32,
    /// How many topics the requests publish to.
    pub topics: u32,
    /// The first partition that was read, or the one whose offset was committed.
    pub partition: u32,
    /// How many requests.
    pub requests: u32,
    /// Messages published or read, of all topics.
    pub messages: u64,
    /// Bytes published or read, of all topics.
    pub bytes: u64,
    /// The first offset that was read, or the committed offset.
    pub offset: u64,
    /// When the first byte came.
    pub requested_us: u64,
    /// When the last byte had come.
    pub received_us: u64,
    /// When the answer was sent; 0: not yet, or no answer is wanted.
    pub answered_us: u64,
    /// Messages since the exchange before this one that were not recorded, because of the rate
    /// limit.
    pub left_out: u64,
    /// Number of the answer to its last request, among all answers of the connection.
    pub(crate) answer: u64,
}

/// The exchanges of one connection. Its own thread adds to them, any thread reads them.
#[derive(Debug)]
pub(crate) struct Exchanges {
    pub(crate) pace: RateLimit,
    state: Mutex<ExchangesState>,
    memory: Arc<LaneMemory>,
}

#[derive(Debug, Default)]
struct ExchangesState {
    // Boxed, because most connections have no exchanges.
    lane: Option<Box<Lane<Exchange>>>,
    group: Option<Box<str>>,
}

/// A copy of the exchanges of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExchangesSnapshot {
    /// Exchanges that end at the requested time or later, or are unanswered; oldest first.
    pub exchanges: Vec<Exchange>,
    /// Whether exchanges were dropped to make space for newer ones: before the oldest exchange
    /// here, the record is incomplete.
    pub has_forgotten: bool,
    /// Messages since the last exchange that were not recorded, because of the rate limit.
    pub left_out: u64,
    /// The consumer group for which the connection committed last.
    pub group: Option<String>,
}

impl Exchanges {
    pub(crate) fn new(memory: Arc<LaneMemory>) -> Self {
        Self {
            pace: RateLimit::default(),
            state: Mutex::default(),
            memory,
        }
    }

    fn push(&self, state: &mut ExchangesState, exchange: Exchange) {
        let lane = state
            .lane
            .get_or_insert_with(|| Box::new(Lane::new(self.memory.clone())));
        lane.push(exchange);
    }

    /// Records publishing requests; `answer` is the number of the answer to the last of them.
    /// Returns whether an answer is expected.
    #[inline(never)]
    pub(crate) fn published(&self, topics: &Topics, mut exchange: Exchange, answer: u64) -> bool {
        exchange.left_out = self.pace.recorded(exchange.received_us);
        exchange.answer = answer;
        exchange.topics = u32::from(topics.count) + u32::from(topics.has_more);
        let mut state = self.state.lock();
        for number in topics.numbers() {
            exchange.topic = *number;
            self.push(&mut state, exchange);
            exchange.left_out = 0;
        }
        exchange.wants_answer && topics.count > 0
    }

    /// The connection has sent `answers` answers so far: completes the exchanges that they answer.
    /// Returns the number of the answer that completes the next one; 0: none is unanswered.
    #[inline(never)]
    pub(crate) fn answered(&self, answers: u64, now_us: u64) -> u64 {
        let mut state = self.state.lock();
        let mut next = 0;
        let lane = state.lane.iter_mut();
        for exchange in lane.flat_map(|lane| lane.iter_mut().rev()) {
            if exchange.kind != ExchangeKind::Publish || !exchange.wants_answer {
                continue;
            }
            if exchange.answered_us > 0 {
                break;
            }
            if exchange.answer <= answers {
                exchange.answered_us = now_us
            } else {
                next = exchange.answer
            }
        }
        next
    }

    /// Messages were read by offset, or an offset was committed.
    #[inline(never)]
    pub(crate) fn read(&self, mut exchange: Exchange, group: Option<&str>) {
        exchange.left_out = self.pace.recorded(exchange.answered_us);
        let mut state = self.state.lock();
        if let Some(group) = group
            && state.group.as_deref() != Some(group)
        {
            state.group = Some(group.into());
        }
        self.push(&mut state, exchange);
    }

    pub(crate) fn snapshot(&self, since_us: u64) -> ExchangesSnapshot {
        let state = self.state.lock();
        let is_wanted = |it: &&Exchange| it.answered_us == 0 || it.answered_us >= since_us;
        let lane = state.lane.as_ref();
        ExchangesSnapshot {
            exchanges: lane
                .into_iter()
                .flat_map(|lane| lane.iter().filter(is_wanted).copied())
                .collect(),
            has_forgotten: lane.is_some_and(|lane| lane.forgotten() > 0),
            left_out: self.pace.left_out(),
            group: state.group.as_deref().map(str::to_owned),
        }
    }

    /// Drops all exchanges, if the newest came before `before_us`.
    pub(crate) fn forget_older(&self, before_us: u64) {
        if let Some(lane) = &mut self.state.lock().lane {
            lane.clear_unless(|newest| newest.received_us >= before_us);
        }
    }

    pub(crate) fn has_any(&self) -> bool {
        self.state
            .lock()
            .lane
            .as_ref()
            .is_some_and(|lane| !lane.is_empty())
    }
}

impl Exchange {
    /// Publishing requests of one socket read.
    pub(crate) fn publish(requests: u64, messages: u64, bytes: u64) -> Self {
        Self {
            kind: ExchangeKind::Publish,
            wants_answer: true,
            topic: 0,
            topics: 1,
            partition: 0,
            requests: u32::try_from(requests).unwrap_or(u32::MAX),
            messages,
            bytes,
            offset: 0,
            requested_us: 0,
            received_us: 0,
            answered_us: 0,
            left_out: 0,
            answer: 0,
        }
    }

    /// Messages of a topic that were read by offset.
    pub fn fetch(topic: u32, partition: u32, offset: u64, messages: u64, bytes: u64) -> Self {
        Self {
            kind: ExchangeKind::Fetch,
            topic,
            partition,
            offset,
            ..Self::publish(1, messages, bytes)
        }
    }

    /// An offset that was committed for a partition.
    pub fn commit(topic: u32, partition: u32, offset: u64) -> Self {
        Self {
            kind: ExchangeKind::Commit,
            ..Self::fetch(topic, partition, offset, 0, 0)
        }
    }
}
