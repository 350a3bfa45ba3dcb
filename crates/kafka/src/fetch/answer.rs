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

use super::cold::Cold;
use super::part::{Ends, Found, Part};
use super::records::Records;
use super::{FetchEnv, FetchState, Kind, Stage, Told};
use crate::error_code::ErrorCode;
use crate::topic_ref::IDS_FROM;
use crate::wire_out::Writer;

/// A list of batches with more capacity than this is freed; a smaller one keeps its allocation.
const KEPT_MAX: usize = 4096;

impl FetchState {
    /// Appends the body of the answer, and ends the request.
    #[inline(never)]
    pub(crate) fn answer(&mut self, env: &FetchEnv<'_>, out: &mut Output) -> Told {
        self.stage = Stage::Idle;
        let mut kind = std::mem::take(&mut self.kind);
        let (error, session) = match &mut kind {
            Kind::Refused(error) => (*error, None),
            Kind::Incremental(lease) => (ErrorCode::None, lease.session_mut()),
            Kind::Sessionless | Kind::NewSession => (ErrorCode::None, None),
        };
        let session = session.filter(|session| !session.parts.is_empty());
        let version = self.request.version;
        let mut body = Body {
            version,
            out,
            records: &self.records,
            told: Told::default(),
        };
        let mut id_at = body.begin(error, session.as_ref().map_or(0, |session| session.id));
        self.named.clear();
        match (session, error) {
            (Some(session), _) => {
                let count = session.parts.len() as u32;
                let next = session.next as u32;
                let order = (next..count).chain(0..next.min(count));
                let parts = &mut session.parts;
                self.named
                    .extend(order.filter(|place| parts[*place as usize].is_news()));
                body.parts(parts, &self.named);
                let with_data = |place: &&u32| parts[**place as usize].found.count > 0;
                if let Some(last) = self.named.iter().rev().find(with_data) {
                    session.next = (*last as usize + 1) % parts.len();
                }
                ahead(&mut self.cold, parts, &self.named, &self.records, env);
                tell(parts, &self.named, &self.records, body.told.messages, env);
            }
            (None, ErrorCode::None) => {
                let parts = &mut self.request.parts;
                self.named.extend(0..parts.len() as u32);
                body.parts(parts, &self.named);
                ahead(&mut self.cold, parts, &self.named, &self.records, env);
                tell(parts, &self.named, &self.records, body.told.messages, env);
            }
            (None, _) => body.parts(&mut [], &[]),
        }
        let mut told = body.told;
        if matches!(kind, Kind::NewSession) {
            let realm = &env.context.realm;
            let by_id = version >= IDS_FROM;
            let sessions = &env.context.fetch_sessions;
            let parts = &mut self.request.parts;
            let id = sessions.create(parts, by_id, self.generation, env.now.us);
            debug_assert!(realm.generation() >= self.generation);
            if let Some(at) = id_at.take() {
                out.bytes[at..at + 4].copy_from_slice(&id.to_be_bytes());
            }
        }
        if let Kind::Incremental(lease) = kind {
            lease.give_back();
        }
        told.errors += u64::from(error != ErrorCode::None);
        self.records.clear();
        if self.records.capacity() > KEPT_MAX || self.named.capacity() > KEPT_MAX {
            (self.records, self.named) = (Vec::new(), Vec::new());
        }
        told
    }
}

/// Starts a read-ahead for each partition whose data was read from the disk.
fn ahead(cold: &mut Cold, parts: &[Part], named: &[u32], records: &[Records], env: &FetchEnv<'_>) {
    let options = &env.context.options;
    for part in named.iter().filter_map(|place| parts.get(*place as usize)) {
        let last = part.found.range().end.checked_sub(1);
        if part.found.is_cold
            && let (Some(log), Some(last)) = (&part.log, last.and_then(|last| records.get(last)))
        {
            let bytes_max = part.wanted.bytes_max.min(options.fetch_cold_bytes_max);
            cold.read_ahead(log, last.end_offset(), bytes_max);
        }
    }
}

/// Reports the answer to the telemetry: one exchange for consecutive partitions of one topic.
fn tell(parts: &[Part], named: &[u32], records: &[Records], messages: u64, env: &FetchEnv<'_>) {
    if !env.probe.may_tell_fetch(messages, env.now.us) {
        return;
    }
    let mut exchanges: Vec<Exchange> = Vec::new();
    for part in named.iter().filter_map(|place| parts.get(*place as usize)) {
        let given = records.get(part.found.range()).unwrap_or_default();
        let Some(topic) = part.topic.topic().filter(|_| !given.is_empty()) else {
            continue;
        };
        let messages = given.iter().map(Records::count).sum();
        let bytes = part.found.bytes as u64;
        let before = exchanges.last_mut();
        if let Some(before) = before.filter(|it| it.topic == topic.number()) {
            before.messages += messages;
            before.bytes += bytes;
            continue;
        }
        let (partition, offset) = (part.index as u32, part.wanted.offset as u64);
        let number = topic.number();
        exchanges.push(Exchange::fetch(number, partition, offset, messages, bytes));
    }
    env.probe.fetch_answered(exchanges.into_iter(), env.now.us);
}

/// The body of an answer while it is written.
struct Body<'a> {
    version: i16,
    out: &'a mut Output,
    records: &'a [Records],
    told: Told,
}

impl Body<'_> {
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
    fn parts(&mut self, parts: &mut [Part], named: &[u32]) {
        let version = self.version;
        let by_id = version >= IDS_FROM;
        let same = |a: &u32, b: &u32| {
            parts[*a as usize].topic.key(by_id) == parts[*b as usize].topic.key(by_id)
        };
        let topics = named.chunk_by(same).count();
        self.writer().len(topics);
        let mut left = named;
        while let [first, ..] = left {
            let key = parts[*first as usize].topic.key(by_id);
            let is_same = |place: &&u32| parts[**place as usize].topic.key(by_id) == key;
            let count = left.iter().take_while(is_same).count();
            let (of_topic, rest) = left.split_at(count);
            let mut writer = self.writer();
            parts[*first as usize].topic.write(&mut writer, version);
            writer.len(of_topic.len());
            for place in of_topic {
                self.part(&mut parts[*place as usize]);
            }
            self.writer().no_tags();
            left = rest;
        }
        self.writer().no_tags();
    }

    fn part(&mut self, part: &mut Part) {
        let (version, found) = (self.version, part.found);
        let ends = part.ends();
        part.tell(ends);
        let Ends {
            high_watermark,
            log_start,
        } = ends;
        let mut writer = self.writer();
        writer.i32(part.index);
        writer.i16(found.error.unwrap_or(ErrorCode::None).code());
        writer.i64(high_watermark);
        writer.i64(high_watermark);
        if version >= 5 {
            writer.i64(log_start);
        }
        writer.null_array();
        if version >= 11 {
            writer.i32(-1);
        }
        writer.len(found.bytes);
        self.records(found);
        self.writer().no_tags();
        self.told.errors += u64::from(found.error.is_some());
    }

    fn records(&mut self, found: Found) {
        for records in &self.records[found.range()] {
            records.write(self.out);
            self.told.messages += records.count();
        }
    }
}
