//! A run: consecutive messages at an offset that have the same verdict.

use cloverleaf_log::{Batch, Offset, Record, RecordCursor};

use crate::message::headers;
use crate::options::SubscriptionOptions;
use crate::subscription::filter::Filter;
use crate::subscription::ledger::leases::NEVER_MS;

/// Upper limit of the bytes of records in a run that is not delivered.
const RUN_BYTES_MAX: u32 = 256 << 10;

/// How dispatch treats a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Deliver,
    /// The subscription's filter does not match it.
    Unwanted,
    /// Its time to live has passed.
    Expired,
    /// Deliver not before this time, in milliseconds since the epoch.
    Later(u64),
}

/// Where a search in a batch starts and what limits it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunSearch {
    pub(crate) from: Offset,
    /// The search ends below this offset.
    pub(crate) end: Offset,
    /// Upper limit of messages to deliver.
    pub(crate) quota: u64,
    pub(crate) bytes_max: u32,
    pub(crate) now_ms: u64,
    /// Messages that were never scanned before.
    pub(crate) is_new: bool,
    /// A consumer was idle when these messages came: they are delivered even if they expire at
    /// once.
    pub(crate) is_direct: bool,
}

/// Consecutive records of one batch with the same verdict.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) verdict: Verdict,
    /// Byte positions of the first record and of the record after the last.
    pub(crate) position: u32,
    pub(crate) next_position: u32,
    pub(crate) first: Offset,
    pub(crate) count: u32,
    pub(crate) bytes: u32,
    /// Bytes of the bodies; 0 where no limit in bytes needs them.
    pub(crate) body_bytes: u32,
    /// When the first message expires, in milliseconds since the epoch; [`NEVER_MS`] if it does
    /// not.
    pub(crate) expires_ms: u64,
}

impl Run {
    /// The offset after the last message.
    pub(crate) fn end(&self) -> Offset {
        self.first + u64::from(self.count)
    }
}

/// The result of a search.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SearchResult {
    Run(Run),
    /// No message lies between the offset sought and this one.
    Gap(Offset),
}

/// The facts of one record that dispatch needs.
#[derive(Debug, Clone, Copy)]
struct RecordFacts {
    verdict: Verdict,
    body_bytes: u32,
    expires_ms: u64,
}

/// The facts of a record that needs no parsing.
const UNPARSED: RecordFacts = RecordFacts {
    verdict: Verdict::Deliver,
    body_bytes: 0,
    expires_ms: NEVER_MS,
};

/// Examines records by a subscription's options and filter.
pub(crate) struct RecordInspector<'a> {
    options: &'a SubscriptionOptions,
    filter: &'a Filter,
    /// Whether records must be parsed. If not, dispatch skips from record to record.
    parses_records: bool,
}

impl<'a> RecordInspector<'a> {
    pub(crate) fn new(options: &'a SubscriptionOptions, filter: &'a Filter) -> Self {
        let parses_records = options.expires
            || options.message_ttl_ms.is_some()
            || options.length_bytes_max.is_some()
            || options.scheduled
            || !filter.passes_all();
        Self {
            options,
            filter,
            parses_records,
        }
    }

    /// Finds the run that starts at `search.from`, reading `batch` from byte `position` on.
    pub(crate) fn find_run(&self, batch: &Batch, position: u32, search: RunSearch) -> SearchResult {
        let mut records = RecordCursor::at(batch, position);
        let mut run: Option<Run> = None;
        loop {
            let position = records.position();
            let found = match self.next_facts(&mut records, search) {
                Ok(found) => found,
                Err(error) => {
                    // The checksum is right, so the producer itself wrote the bad record.
                    tracing::error!(offset = search.from, %error,
                        "a batch holds a record that cannot be read; its rest is skipped");
                    None
                }
            };
            let Some((offset, facts)) = found else {
                return run.map_or(SearchResult::Gap(batch.end_offset()), SearchResult::Run);
            };
            if offset < search.from {
                continue;
            }
            let bytes = records.position() - position;
            let Some(run) = &mut run else {
                if offset != search.from || offset >= search.end {
                    return SearchResult::Gap(offset);
                }
                let next_position = records.position();
                let begun = Run {
                    verdict: facts.verdict,
                    position,
                    next_position,
                    first: offset,
                    count: 1,
                    bytes,
                    body_bytes: facts.body_bytes,
                    expires_ms: facts.expires_ms,
                };
                if begun.is_full(search) {
                    return SearchResult::Run(begun);
                }
                run = Some(begun);
                continue;
            };
            if offset != run.end() || offset >= search.end || facts.verdict != run.verdict {
                return SearchResult::Run(*run);
            }
            run.count += 1;
            run.bytes = run.bytes.saturating_add(bytes);
            run.body_bytes = run.body_bytes.saturating_add(facts.body_bytes);
            run.next_position = records.position();
            if run.is_full(search) {
                return SearchResult::Run(*run);
            }
        }
    }

    fn next_facts(
        &self,
        records: &mut RecordCursor<'_>,
        search: RunSearch,
    ) -> Result<Option<(Offset, RecordFacts)>, cloverleaf_log::BatchError> {
        if !self.parses_records {
            let skipped = records.skip_record()?;
            return Ok(skipped.map(|(offset, _)| (offset, UNPARSED)));
        }
        let next = records.next_record()?;
        Ok(next.map(|(offset, record)| (offset, self.inspect(&record, search))))
    }

    fn inspect(&self, record: &Record<'_>, search: RunSearch) -> RecordFacts {
        let expires_ms = self.expiry_ms(record);
        RecordFacts {
            verdict: self.verdict(record, expires_ms, search),
            body_bytes: body_bytes(record),
            expires_ms,
        }
    }

    fn verdict(&self, record: &Record<'_>, expires_ms: u64, search: RunSearch) -> Verdict {
        let header = |name: &[u8]| record.headers.value_of(name).flatten();
        let filter = self.filter;
        if !filter.passes_all() && !filter.matches(header(headers::NATS_SUBJECT)) {
            return Verdict::Unwanted;
        }
        if expires_ms <= search.now_ms && !search.is_direct {
            return Verdict::Expired;
        }
        match self
            .options
            .scheduled
            .then(|| time_header(header(headers::SCHEDULE_DUE)))
            .flatten()
        {
            // A message that is due already is delayed for a moment too, so that each is counted as
            // delayed.
            Some(due_ms) if search.is_new || due_ms > search.now_ms => Verdict::Later(due_ms),
            _ => Verdict::Deliver,
        }
    }

    /// When a message expires, in milliseconds since the epoch; [`NEVER_MS`] if it does not.
    fn expiry_ms(&self, record: &Record<'_>) -> u64 {
        let header = || time_header(record.headers.value_of(headers::EXPIRES).flatten());
        let from_header = self.options.expires.then(header).flatten();
        // A negative timestamp means that the record has none.
        let stored_ms = u64::try_from(record.timestamp_ms).ok();
        let ttl_ms = self.options.message_ttl_ms;
        let from_ttl = stored_ms
            .zip(ttl_ms)
            .map(|(at, ttl)| at.saturating_add(ttl));
        from_header
            .into_iter()
            .chain(from_ttl)
            .min()
            .unwrap_or(NEVER_MS)
    }
}

/// The bytes of a record that count against a limit in bytes: its body.
pub(crate) fn body_bytes(record: &Record<'_>) -> u32 {
    let bytes = record.value.map_or(0, <[u8]>::len);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl Run {
    /// Whether the run may grow no further.
    fn is_full(&self, search: RunSearch) -> bool {
        match self.verdict {
            Verdict::Deliver => {
                u64::from(self.count) >= search.quota || self.bytes >= search.bytes_max
            }
            Verdict::Later(_) => true,
            Verdict::Unwanted | Verdict::Expired => self.bytes >= RUN_BYTES_MAX,
        }
    }
}

fn time_header(header: Option<&[u8]>) -> Option<u64> {
    header
        .and_then(|value| value.try_into().ok())
        .map(u64::from_be_bytes)
}
