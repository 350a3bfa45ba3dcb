//! Requests and their answers over time: what the timeline shows of a producer, and of a reader by
//! offset.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::lane::{Lane, LaneMemory, Pace};

/// Most topics of one read that are told apart.
const TOPICS_MAX: usize = 3;

/// The topics that the publishes of one socket read went to, by the numbers that the broker gave
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Topics {
    numbers: [u32; TOPICS_MAX],
    count: u8,
    has_more: bool,
}

impl Topics {
    /// Messages went to this topic.
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

    /// Those that are told apart.
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
    /// To have an offset remembered, up to which it is done.
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
    /// Topics that the messages went to, together.
    pub topics: u32,
    /// The first partition that was read, or committed.
    pub partition: u32,
    /// How many requests.
    pub requests: u32,
    /// Messages published or read, of all topics.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The first offset that was read; the one that was committed.
    pub offset: u64,
    /// When the first byte came.
    pub requested_us: u64,
    /// When the last byte had come.
    pub received_us: u64,
    /// When the answer was sent; 0: it is still owed, or none is wanted.
    pub answered_us: u64,
    /// Messages before this that no exchange tells of.
    pub left_out: u64,
    /// Which of the connection's answers is its last.
    pub(crate) answer: u64,
}

/// The exchanges of one connection. Its own thread adds to them, any thread reads them.
#[derive(Debug)]
pub(crate) struct Exchanges {
    pub(crate) pace: Pace,
    state: Mutex<State>,
    memory: Arc<LaneMemory>,
}

#[derive(Debug, Default)]
struct State {
    // Most connections have nothing to show, and a place for it costs them memory.
    lane: Option<Box<Lane<Exchange>>>,
    group: Option<Box<str>>,
}

/// A copy of the exchanges of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExchangesSnapshot {
    /// Those that end at the asked time or later, oldest first.
    pub exchanges: Vec<Exchange>,
    /// The end of the latest exchange that was forgotten for newer ones is not after the beginning
    /// of the oldest one that is known; whether any were forgotten.
    pub has_forgotten: bool,
    /// Messages since the last exchange that no exchange tells of.
    pub left_out: u64,
    /// The consumer group for which the connection committed last.
    pub group: Option<String>,
}

impl Exchanges {
    pub(crate) fn new(memory: Arc<LaneMemory>) -> Self {
        Self {
            pace: Pace::default(),
            state: Mutex::default(),
            memory,
        }
    }

    fn push(&self, state: &mut State, exchange: Exchange) {
        let lane = state
            .lane
            .get_or_insert_with(|| Box::new(Lane::new(self.memory.clone())));
        lane.push(exchange);
    }

    /// Publishing requests came; `answer` is the number of the answer to the last of them. Returns
    /// whether an answer is waited for.
    #[inline(never)]
    pub(crate) fn published(&self, topics: &Topics, mut exchange: Exchange, answer: u64) -> bool {
        exchange.left_out = self.pace.pass(exchange.received_us);
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

    /// So many answers have been sent. Returns the number of the answer that is waited for next;
    /// 0: none is.
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
        exchange.left_out = self.pace.pass(exchange.answered_us);
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

    /// Forgets everything, if nothing has happened since.
    pub(crate) fn forget_older(&self, before_us: u64) {
        if let Some(lane) = &mut self.state.lock().lane {
            lane.forget_unless(|newest| newest.received_us >= before_us);
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
    /// Publishing requests that came together.
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

    /// An offset up to which a client is done with a partition.
    pub fn commit(topic: u32, partition: u32, offset: u64) -> Self {
        Self {
            kind: ExchangeKind::Commit,
            ..Self::fetch(topic, partition, offset, 0, 0)
        }
    }
}
