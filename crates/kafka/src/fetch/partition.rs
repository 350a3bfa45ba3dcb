//! One partition of a Fetch: the position that the client asks for, the data that was found, and
//! the offsets that were last sent to the client.

use std::sync::Arc;

use cloverleaf_access::{Operation, ResourceKind};
use cloverleaf_broker::{Partition, Realm, Watch, Watcher};

use super::ZSTD_FROM;
use super::request::RequestedRead;
use crate::control::settings;
use crate::error_code::ErrorCode;
use crate::topic_ref::{TopicKey, TopicRef};

/// Stands for an offset that was never sent to the session's client.
const NEVER_SENT: i64 = -1;

/// A partition of a request, or of a fetch session.
pub(crate) struct FetchPartition {
    pub(crate) topic: TopicRef,
    pub(crate) index: i32,
    pub(crate) log: Option<Partition>,
    pub(crate) requested: RequestedRead,
    pub(crate) result: PartitionResult,
    /// The offset up to which data was counted toward `min_bytes`.
    pub(crate) counted: u64,
    watch: Option<Watch>,
    /// The offsets that were last sent to the session's client.
    last_sent: PartitionOffsets,
}

/// The partition's result in the current answer. Its records are in the answer's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionResult {
    pub(crate) error: Option<ErrorCode>,
    /// Index of its first element in the answer's list of records, of which it has `count`.
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) bytes: usize,
    /// The reader thread has read it from the disk.
    pub(crate) is_cold: bool,
}

impl PartitionResult {
    pub(crate) fn failed(error: ErrorCode) -> PartitionResult {
        PartitionResult {
            error: Some(error),
            ..PartitionResult::default()
        }
    }

    /// The range of its elements in the answer's list of records.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        let first = self.first as usize;
        first..first + self.count as usize
    }
}

/// High watermark and log start offset, as an answer has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartitionOffsets {
    pub(crate) high_watermark: i64,
    pub(crate) log_start: i64,
}

impl FetchPartition {
    pub(crate) fn new(topic: TopicRef, index: i32, requested: RequestedRead) -> FetchPartition {
        let mut partition = FetchPartition {
            topic,
            index,
            log: None,
            requested,
            result: PartitionResult::default(),
            counted: 0,
            watch: None,
            last_sent: PartitionOffsets {
                high_watermark: NEVER_SENT,
                log_start: NEVER_SENT,
            },
        };
        partition.find_log();
        partition
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

    /// To be called after definitions or rights have changed. Looks the topic up again if it was
    /// missing, was deleted or is no longer permitted.
    pub(crate) fn refresh(&mut self, realm: &Realm, by_id: bool) {
        let is_current = self.topic.topic().is_some_and(|topic| {
            !topic.is_deleted()
                && realm.may(Operation::Consume, ResourceKind::Topic, "", topic.name())
        });
        if !is_current {
            let found = self.topic.key(by_id).find(Operation::Consume, realm);
            self.topic = found;
        }
        if !is_current || self.log.is_none() {
            self.find_log();
        }
    }

    /// Whether this is the partition `index` of the topic with this key.
    pub(crate) fn is(&self, key: TopicKey<'_>, index: i32) -> bool {
        self.index == index && self.topic.key(matches!(key, TopicKey::Id(_))) == key
    }

    /// The error code if nothing can be read at the requested offset.
    pub(crate) fn refusal(&self, version: i16) -> Option<ErrorCode> {
        let topic = self.topic.topic().filter(|topic| !topic.is_deleted());
        let (Some(topic), Some(log)) = (topic, &self.log) else {
            return Some(match topic {
                None => self.topic.error(version),
                Some(_) => ErrorCode::UnknownTopicOrPartition,
            });
        };
        if version < ZSTD_FROM && settings::requires_zstd(&topic.options()) {
            return Some(ErrorCode::UnsupportedCompressionType);
        }
        // The leader epoch is always 0.
        match self.requested.leader_epoch {
            -1 | 0 => {}
            1.. => return Some(ErrorCode::UnknownLeaderEpoch),
            _ => return Some(ErrorCode::FencedLeaderEpoch),
        }
        let Ok(offset) = u64::try_from(self.requested.offset) else {
            return Some(ErrorCode::OffsetOutOfRange);
        };
        let end = log.written_end();
        let is_outside = match offset.cmp(&end) {
            std::cmp::Ordering::Equal => false,
            std::cmp::Ordering::Less => {
                let start = log.start_offset();
                offset < start && log.skip_hole(offset) < start
            }
            std::cmp::Ordering::Greater => offset > log.next_offset(),
        };
        is_outside.then_some(ErrorCode::OffsetOutOfRange)
    }

    /// Whether the topic was found and has been deleted since.
    pub(crate) fn is_deleted(&self) -> bool {
        self.topic.topic().is_some_and(|topic| topic.is_deleted())
    }

    /// Whether the log goes beyond the offset `from`.
    pub(crate) fn has_data_from(&self, from: u64) -> bool {
        self.log
            .as_ref()
            .is_some_and(|log| log.written_end() > from)
    }

    /// Registers the watcher, so that it fires on the next write.
    pub(crate) fn watch(&mut self, watcher: &Arc<Watcher>) {
        if self.watch.as_ref().is_some_and(Watch::is_registered) {
            return;
        }
        if let (Some(topic), Ok(index)) = (self.topic.topic(), u32::try_from(self.index)) {
            self.watch = topic.watch(index, watcher);
        }
    }

    /// Drops the registration: another watcher will be used.
    pub(crate) fn forget_watch(&mut self) {
        self.watch = None;
    }

    /// The high watermark for this client. After a power loss, the client's offset may be above the
    /// written end. No message will ever be stored between the two, so the client's offset is
    /// reported as the high watermark: the client has no lag.
    fn high_watermark(&self, log: &Partition) -> i64 {
        (log.written_end() as i64).max(self.requested.offset)
    }

    /// High watermark and log start offset for the answer; -1 if the partition has an error.
    pub(crate) fn offsets(&self) -> PartitionOffsets {
        match (&self.log, self.result.error) {
            (Some(log), None) => PartitionOffsets {
                high_watermark: self.high_watermark(log),
                log_start: log.start_offset() as i64,
            },
            _ => PartitionOffsets {
                high_watermark: -1,
                log_start: -1,
            },
        }
    }

    /// Whether an incremental answer has to include the partition (KIP-227). A change of the log
    /// start offset alone does not count, because reading it takes the partition's lock; it is sent
    /// with the next data.
    pub(crate) fn has_changes(&self) -> bool {
        self.result.error.is_some()
            || self.result.count > 0
            || self.last_sent.high_watermark == NEVER_SENT
            || self
                .log
                .as_ref()
                .is_some_and(|log| self.high_watermark(log) != self.last_sent.high_watermark)
    }

    /// Remembers the offsets that are sent to the session's client. Errors are not remembered, so
    /// each answer repeats them.
    pub(crate) fn remember_sent(&mut self, offsets: PartitionOffsets) {
        self.last_sent = offsets;
    }

    /// Approximate memory of the partition in a session, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let name = match &self.topic {
            TopicRef::Name(name, _) => name.len(),
            TopicRef::Known(_) | TopicRef::Id(..) => 0,
        };
        size_of::<FetchPartition>() + name + 32
    }
}
