//! The answer to a Fetch. Its batches are shared with the log, not copied.
//!
//! ```text
//! throttle time i32, [7+: error i16, session id i32],
//! array of { name | 13+: id, array of { partition i32, error i16, high watermark i64,
//!   last stable offset i64, [5+: log start i64], aborted transactions (null),
//!   [11+: preferred replica i32], records (bytes), [12+: tags] }, [12+: tags] }, [12+: tags]
//! ```

use cloverleaf_session::Output;
use cloverleaf_telemetry::Exchange;

use super::cold::ColdReads;
use super::partition::{FetchPartition, PartitionOffsets, PartitionResult};
use super::records::FetchedRecords;
use super::{AnswerCounts, FetchEnv, FetchStage, FetchState, SessionMode};
use crate::error_code::ErrorCode;
use crate::topic_ref::IDS_FROM;
use crate::wire_out::Writer;

/// A list of batches with more capacity than this is freed; a smaller one keeps its allocation.
const KEPT_MAX: usize = 4096;

impl FetchState {
    /// Appends the body of the answer, and ends the request.
    #[inline(never)]
    pub(crate) fn answer(&mut self, env: &FetchEnv<'_>, out: &mut Output) -> AnswerCounts {
        self.stage = FetchStage::Idle;
        let mut mode = std::mem::take(&mut self.mode);
        let (error, session) = match &mut mode {
            SessionMode::Refused(error) => (*error, None),
            SessionMode::Incremental(lease) => (ErrorCode::None, lease.session_mut()),
            SessionMode::Sessionless | SessionMode::NewSession => (ErrorCode::None, None),
        };
        let session = session.filter(|session| !session.partitions.is_empty());
        let version = self.request.version;
        let mut body = BodyWriter {
            version,
            out,
            records: &self.records,
            counts: AnswerCounts::default(),
        };
        let mut id_at = body.begin(error, session.as_ref().map_or(0, |session| session.id));
        self.included.clear();
        match (session, error) {
            (Some(session), _) => {
                let count = session.partitions.len() as u32;
                let next = session.next as u32;
                let order = (next..count).chain(0..next.min(count));
                let partitions = &mut session.partitions;
                self.included
                    .extend(order.filter(|place| partitions[*place as usize].has_changes()));
                body.partitions(partitions, &self.included);
                let with_data = |place: &&u32| partitions[**place as usize].result.count > 0;
                if let Some(last) = self.included.iter().rev().find(with_data) {
                    session.next = (*last as usize + 1) % partitions.len();
                }
                read_ahead(
                    &mut self.cold,
                    partitions,
                    &self.included,
                    &self.records,
                    env,
                );
                report(
                    partitions,
                    &self.included,
                    &self.records,
                    body.counts.messages,
                    env,
                );
            }
            (None, ErrorCode::None) => {
                let partitions = &mut self.request.partitions;
                self.included.extend(0..partitions.len() as u32);
                body.partitions(partitions, &self.included);
                read_ahead(
                    &mut self.cold,
                    partitions,
                    &self.included,
                    &self.records,
                    env,
                );
                report(
                    partitions,
                    &self.included,
                    &self.records,
                    body.counts.messages,
                    env,
                );
            }
            (None, _) => body.partitions(&mut [], &[]),
        }
        let mut counts = body.counts;
        if matches!(mode, SessionMode::NewSession) {
            let realm = &env.context.realm;
            let by_id = version >= IDS_FROM;
            let sessions = &env.context.fetch_sessions;
            let partitions = &mut self.request.partitions;
            let id = sessions.create(partitions, by_id, self.generation, env.now.us);
            debug_assert!(realm.generation() >= self.generation);
            if let Some(at) = id_at.take() {
                out.bytes[at..at + 4].copy_from_slice(&id.to_be_bytes());
            }
        }
        if let SessionMode::Incremental(lease) = mode {
            lease.release();
        }
        counts.errors += u64::from(error != ErrorCode::None);
        self.records.clear();
        if self.records.capacity() > KEPT_MAX || self.included.capacity() > KEPT_MAX {
            (self.records, self.included) = (Vec::new(), Vec::new());
        }
        counts
    }
}

/// Starts a read-ahead for each partition whose data was read from the disk.
fn read_ahead(
    cold: &mut ColdReads,
    partitions: &[FetchPartition],
    included: &[u32],
    records: &[FetchedRecords],
    env: &FetchEnv<'_>,
) {
    let options = &env.context.options;
    for partition in included
        .iter()
        .filter_map(|place| partitions.get(*place as usize))
    {
        let last = partition.result.range().end.checked_sub(1);
        if partition.result.is_cold
            && let (Some(log), Some(last)) =
                (&partition.log, last.and_then(|last| records.get(last)))
        {
            let bytes_max = partition
                .requested
                .bytes_max
                .min(options.fetch_cold_bytes_max);
            cold.read_ahead(log, last.end_offset(), bytes_max);
        }
    }
}

/// Reports the answer to the telemetry: one exchange for consecutive partitions of one topic.
fn report(
    partitions: &[FetchPartition],
    included: &[u32],
    records: &[FetchedRecords],
    messages: u64,
    env: &FetchEnv<'_>,
) {
    if !env.probe.may_record_fetch(messages, env.now.us) {
        return;
    }
    let mut exchanges: Vec<Exchange> = Vec::new();
    for partition in included
        .iter()
        .filter_map(|place| partitions.get(*place as usize))
    {
        let given = records.get(partition.result.range()).unwrap_or_default();
        let Some(topic) = partition.topic.topic().filter(|_| !given.is_empty()) else {
            continue;
        };
        let messages = given.iter().map(FetchedRecords::count).sum();
        let bytes = partition.result.bytes as u64;
        let before = exchanges.last_mut();
        if let Some(before) = before.filter(|it| it.topic == topic.number()) {
            before.messages += messages;
            before.bytes += bytes;
            continue;
        }
        let (partition, offset) = (partition.index as u32, partition.requested.offset as u64);
        let number = topic.number();
        exchanges.push(Exchange::fetch(number, partition, offset, messages, bytes));
    }
    env.probe.fetch_answered(exchanges.into_iter(), env.now.us);
}

/// The body of an answer while it is written.
struct BodyWriter<'a> {
    version: i16,
    out: &'a mut Output,
    records: &'a [FetchedRecords],
    counts: AnswerCounts,
}

impl BodyWriter<'_> {
    fn writer(&mut self) -> Writer<'_> {
        Writer::new(&mut self.out.bytes, self.version >= 12)
    }

    /// Writes the fields before the partitions. Returns the position of the session id in the
    /// output, which may be changed later.
    fn begin(&mut self, error: ErrorCode, session_id: i32) -> Option<usize> {
        let version = self.version;
        let mut writer = self.writer();
        writer.i32(0);
        if version < 7 {
            return None;
        }
        writer.i16(error.code());
        let at = writer.out.len();
        writer.i32(session_id);
        Some(at)
    }

    /// Writes the partitions with these indexes. Consecutive ones of one topic share its entry.
    fn partitions(&mut self, partitions: &mut [FetchPartition], included: &[u32]) {
        let version = self.version;
        let by_id = version >= IDS_FROM;
        let same = |a: &u32, b: &u32| {
            partitions[*a as usize].topic.key(by_id) == partitions[*b as usize].topic.key(by_id)
        };
        let topics = included.chunk_by(same).count();
        self.writer().len(topics);
        let mut left = included;
        while let [first, ..] = left {
            let key = partitions[*first as usize].topic.key(by_id);
            let is_same = |place: &&u32| partitions[**place as usize].topic.key(by_id) == key;
            let count = left.iter().take_while(is_same).count();
            let (of_topic, rest) = left.split_at(count);
            let mut writer = self.writer();
            partitions[*first as usize]
                .topic
                .write(&mut writer, version);
            writer.len(of_topic.len());
            for place in of_topic {
                self.partition(&mut partitions[*place as usize]);
            }
            self.writer().no_tags();
            left = rest;
        }
        self.writer().no_tags();
    }

    fn partition(&mut self, partition: &mut FetchPartition) {
        let (version, result) = (self.version, partition.result);
        let offsets = partition.offsets();
        partition.remember_sent(offsets);
        let PartitionOffsets {
            high_watermark,
            log_start,
        } = offsets;
        let mut writer = self.writer();
        writer.i32(partition.index);
        writer.i16(result.error.unwrap_or(ErrorCode::None).code());
        writer.i64(high_watermark);
        writer.i64(high_watermark);
        if version >= 5 {
            writer.i64(log_start);
        }
        writer.null_array();
        if version >= 11 {
            writer.i32(-1);
        }
        writer.len(result.bytes);
        self.records(result);
        self.writer().no_tags();
        self.counts.errors += u64::from(result.error.is_some());
    }

    fn records(&mut self, result: PartitionResult) {
        for records in &self.records[result.range()] {
            records.write(self.out);
            self.counts.messages += records.count();
        }
    }
}
