//! One partition of a Fetch: what is wanted of it, what was found, what its session was told.

use std::sync::Arc;

use cloverleaf_access::{Kind, Operation};
use cloverleaf_broker::{Partition, Realm, Watch, Watcher};

use super::ZSTD_FROM;
use super::request::Wanted;
use crate::control::settings;
use crate::error_code::ErrorCode;
use crate::topic_ref::{TopicKey, TopicRef};

/// The value of an offset that the session's client was never told.
const UNTOLD: i64 = -1;

/// A partition of a request, or of a fetch session.
pub(crate) struct Part {
    pub(crate) topic: TopicRef,
    pub(crate) index: i32,
    pub(crate) log: Option<Partition>,
    pub(crate) wanted: Wanted,
    pub(crate) found: Found,
    /// End of the data that was already counted toward `min_bytes`.
    pub(crate) counted: u64,
    watch: Option<Watch>,
    told: Told,
}

/// The current answer's data about the partition. Its records lie in the answer's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) error: Option<ErrorCode>,
    /// The place of the first of its parts in the answer's list of records, and how many.
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) bytes: usize,
    /// It came from the disk.
    pub(crate) is_cold: bool,
}

impl Found {
    pub(crate) fn refused(error: ErrorCode) -> Found {
        Found {
            error: Some(error),
            ..Found::default()
        }
    }

    /// Its records in the answer's list.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        let first = self.first as usize;
        first..first + self.count as usize
    }
}

/// The values that the session's client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    high_watermark: i64,
    log_start: i64,
}

/// High watermark and log start offset, as an answer has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) high_watermark: i64,
    pub(crate) log_start: i64,
}

impl Part {
    pub(crate) fn new(topic: TopicRef, index: i32, wanted: Wanted) -> Part {
        let mut part = Part {
            topic,
            index,
            log: None,
            wanted,
            found: Found::default(),
            counted: 0,
            watch: None,
            told: Told {
                high_watermark: UNTOLD,
                log_start: UNTOLD,
            },
        };
        part.find_log();
        part
    }

    fn find_log(&mut self) {
        let index = u32::try_from(self.index).ok();
        let topic = self.topic.topic().filter(|topic| !topic.is_deleted());
        if let Some(topic) = topic {
            topic.note_reader();
        }
        self.log = topic.and_then(|topic| topic.partition(index?));
        self.watch = None;
    }

    /// After definitions or rights have changed: looks the topic up again if it was missing, was
    /// deleted or is no longer permitted.
    pub(crate) fn find_again(&mut self, realm: &Realm, by_id: bool) {
        let stands = self.topic.topic().is_some_and(|topic| {
            !topic.is_deleted() && realm.may(Operation::Consume, Kind::Topic, "", topic.name())
        });
        if !stands {
            let found = self.topic.key(by_id).find(Operation::Consume, realm);
            self.topic = found;
        }
        if !stands || self.log.is_none() {
            self.find_log();
        }
    }

    /// Whether it is this partition.
    pub(crate) fn is(&self, key: TopicKey<'_>, index: i32) -> bool {
        self.index == index && self.topic.key(matches!(key, TopicKey::Id(_))) == key
    }

    /// Why nothing can be read at the wanted offset, if so.
    pub(crate) fn refusal(&self, version: i16) -> Option<ErrorCode> {
        let topic = self.topic.topic().filter(|topic| !topic.is_deleted());
        let (Some(topic), Some(log)) = (topic, &self.log) else {
            return Some(match topic {
                None => self.topic.error(version),
                Some(_) => ErrorCode::UnknownTopicOrPartition,
            });
        };
        if version < ZSTD_FROM && settings::says_zstd(&topic.options()) {
            return Some(ErrorCode::UnsupportedCompressionType);
        }
        // There is one leader, and its epoch is 0 for ever.
        match self.wanted.leader_epoch {
            -1 | 0 => {}
            1.. => return Some(ErrorCode::UnknownLeaderEpoch),
            _ => return Some(ErrorCode::FencedLeaderEpoch),
        }
        let Ok(offset) = u64::try_from(self.wanted.offset) else {
            return Some(ErrorCode::OffsetOutOfRange);
        };
        let end = log.written_end();
        let is_outside = match offset.cmp(&end) {
            std::cmp::Ordering::Equal => false,
            std::cmp::Ordering::Less => {
                let start = log.start_offset();
                offset < start && log.same_place(offset) < start
            }
            std::cmp::Ordering::Greater => offset > log.next_offset(),
        };
        is_outside.then_some(ErrorCode::OffsetOutOfRange)
    }

    /// Whether its topic was there and is no more.
    pub(crate) fn is_deleted(&self) -> bool {
        self.topic.topic().is_some_and(|topic| topic.is_deleted())
    }

    /// Whether there may be data at or behind `from` that nobody has counted.
    pub(crate) fn has_data_from(&self, from: u64) -> bool {
        self.log
            .as_ref()
            .is_some_and(|log| log.written_end() > from)
    }

    /// Lets the watcher fire with the next write.
    pub(crate) fn watch(&mut self, watcher: &Arc<Watcher>) {
        if self.watch.as_ref().is_some_and(Watch::is_registered) {
            return;
        }
        if let (Some(topic), Ok(index)) = (self.topic.topic(), u32::try_from(self.index)) {
            self.watch = topic.watch(index, watcher);
        }
    }

    /// Another watcher will be told.
    pub(crate) fn forget_watch(&mut self) {
        self.watch = None;
    }

    /// The high watermark that this reader is told. After a power loss its offset may lie above the
    /// last message; no message will be stored below that, so the reader counts as at the end.
    fn high_watermark(&self, log: &Partition) -> i64 {
        (log.written_end() as i64).max(self.wanted.offset)
    }

    /// The offsets that are told of the partition beside its data.
    pub(crate) fn ends(&self) -> Ends {
        match (&self.log, self.found.error) {
            (Some(log), None) => Ends {
                high_watermark: self.high_watermark(log),
                log_start: log.start_offset() as i64,
            },
            _ => Ends {
                high_watermark: -1,
                log_start: -1,
            },
        }
    }

    /// Whether an incremental answer has to name the partition (KIP-227). A log start offset that
    /// has moved is told with the next data only, because reading it takes the partition's lock.
    pub(crate) fn is_news(&self) -> bool {
        self.found.error.is_some()
            || self.found.count > 0
            || self.told.high_watermark == UNTOLD
            || self
                .log
                .as_ref()
                .is_some_and(|log| self.high_watermark(log) != self.told.high_watermark)
    }

    /// Remembers what the session's client is told. Errors are not remembered, so that each answer
    /// repeats them.
    pub(crate) fn tell(&mut self, ends: Ends) {
        self.told = Told {
            high_watermark: ends.high_watermark,
            log_start: ends.log_start,
        };
    }

    /// The memory that remembering it costs, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let name = match &self.topic {
            TopicRef::Name(name, _) => name.len(),
            TopicRef::Known(_) | TopicRef::Id(..) => 0,
        };
        size_of::<Part>() + name + 32
    }
}
