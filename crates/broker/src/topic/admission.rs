//! A topic's conditions for batches, checked before a batch is stored.

use cloverleaf_log::{BATCH_HEADER_BYTES, Batch};

use crate::broker::Shared;
use crate::housekeeping::inflater::QUICK_BYTES_MAX;
use crate::options::TopicOptions;
use crate::topic::layout::TopicLayout;
use crate::topic::published::PublishError;

/// The timestamp of a record that has none (Kafka).
const NO_TIMESTAMP: i64 = -1;
/// At most this many bad records are listed in an error: as many as librdkafka puts into a batch. A
/// compressed batch of a hostile client could have millions.
const NAMED_RECORDS_MAX: usize = 10_000;

/// Where a batch comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchSource {
    /// The broker's own builder: its records are well formed.
    Broker,
    /// A client: its records are untrusted bytes.
    Client,
}

/// The range of timestamps that a topic accepts.
#[derive(Debug, Clone, Copy)]
struct TimestampBounds {
    earliest_ms: i64,
    latest_ms: i64,
}

impl TimestampBounds {
    fn of(options: &TopicOptions, now_ms: i64) -> Option<Self> {
        let (before, after) = (
            options.timestamp_before_max_ms,
            options.timestamp_after_max_ms,
        );
        if before.is_none() && after.is_none() {
            return None;
        }
        let span = |max_ms: Option<u64>| i64::try_from(max_ms.unwrap_or(u64::MAX)).ok();
        Some(Self {
            earliest_ms: span(before).map_or(i64::MIN, |span| now_ms.saturating_sub(span)),
            latest_ms: span(after).map_or(i64::MAX, |span| now_ms.saturating_add(span)),
        })
    }

    fn contains(self, timestamp_ms: i64) -> bool {
        (self.earliest_ms..=self.latest_ms).contains(&timestamp_ms)
    }

    fn accepts(self, timestamp_ms: i64) -> bool {
        self.contains(timestamp_ms) || timestamp_ms == NO_TIMESTAMP
    }

    /// The error for a batch whose first bad timestamp this is.
    fn refusal(self, timestamp_ms: i64, records: Vec<u32>) -> PublishError {
        PublishError::Timestamp {
            timestamp_ms,
            earliest_ms: self.earliest_ms,
            latest_ms: self.latest_ms,
            records,
        }
    }

    /// Checks the timestamps in the batch's header.
    fn check_header(self, batch: &Batch) -> Result<(), PublishError> {
        let stated = [batch.base_timestamp_ms(), batch.max_timestamp_ms()];
        match stated
            .into_iter()
            .find(|stated_ms| !self.accepts(*stated_ms))
        {
            None => Ok(()),
            Some(stated_ms) => Err(self.refusal(stated_ms, Vec::new())),
        }
    }
}

impl TopicLayout {
    /// Checks a batch against the topic's options, and stamps it if the topic uses append time.
    /// Also returns the total bytes of the bodies; for a client's compressed batch that is not
    /// inflated, the bytes of its payload.
    pub(crate) fn admit(
        &self,
        shared: &Shared,
        batch: Batch,
        source: BatchSource,
    ) -> Result<(Batch, u64), PublishError> {
        let options = &self.options;
        let bytes = batch.bytes().len() as u64;
        if let Some(bytes_max) = options.batch_bytes_max
            && bytes > bytes_max
        {
            return Err(PublishError::TooLarge { bytes, bytes_max });
        }
        let now_ms = || i64::try_from(shared.clock.now_ms()).unwrap_or(i64::MAX);
        if batch.has_append_time() || batch.delete_horizon_ms().is_some() {
            // Only a broker may set these flags.
            return Err(PublishError::ForeignAppendTime);
        }
        let bounds = if options.append_time {
            None
        } else {
            TimestampBounds::of(options, now_ms())
        };
        let needs_keys = options.compaction.is_some();
        let mut body_bytes = match source {
            BatchSource::Broker => u64::from(batch.body_bytes()),
            BatchSource::Client => bytes - BATCH_HEADER_BYTES as u64,
        };
        match (needs_keys, batch.is_compressed()) {
            (true, true) => {
                let inflated = batch.inflate(shared.inflater.batch_bytes_max())?;
                body_bytes = check_records(&inflated, needs_keys, bounds)?;
            }
            // Its records are checked by the reader that inflates it.
            (false, true) => {
                if let Some(bounds) = bounds
                    && let Err(refusal) = bounds.check_header(&batch)
                {
                    // The records are inflated only to list the bad ones, so a batch that takes
                    // long is refused without the list.
                    let inflated = batch
                        .inflate(QUICK_BYTES_MAX)
                        .map_err(|_| refusal.clone())?;
                    check_records(&inflated, needs_keys, Some(bounds))?;
                    return Err(refusal);
                }
            }
            (needs_keys, false) => {
                if needs_keys || bounds.is_some() || source == BatchSource::Client {
                    body_bytes = check_records(&batch, needs_keys, bounds)?;
                }
            }
        }
        let batch = if options.append_time {
            batch.stamp_append_time(now_ms())
        } else {
            batch
        };
        Ok((batch, body_bytes))
    }
}

/// Checks the records of an uncompressed batch and returns the total bytes of their bodies.
/// Searches for the bad records only if the summary shows that there are some.
fn check_records(
    batch: &Batch,
    needs_keys: bool,
    bounds: Option<TimestampBounds>,
) -> Result<u64, PublishError> {
    let summary = batch.validate_records()?;
    let in_time = |bounds: &TimestampBounds| {
        bounds.contains(summary.earliest_ms) && bounds.contains(summary.latest_ms)
    };
    let violated = bounds.filter(|bounds| !in_time(bounds));
    let needs_keys = needs_keys && summary.without_key > 0;
    if needs_keys || violated.is_some() {
        find_at_fault(batch, needs_keys, violated)?;
    }
    // Readers see the timestamps in the batch's header, so these must fit too.
    bounds.map_or(Ok(()), |bounds| bounds.check_header(batch))?;
    Ok(summary.body_bytes)
}

/// Lists the bad records, if there are any.
fn find_at_fault(
    batch: &Batch,
    needs_keys: bool,
    bounds: Option<TimestampBounds>,
) -> Result<(), PublishError> {
    let mut records = batch.records();
    let mut at_fault = Vec::new();
    let mut refused = None;
    let mut place = 0;
    while let Some((_, record)) = records.next_record()? {
        let has_no_key = needs_keys && record.key.is_none();
        // As in Kafka, a record without a key is not checked further.
        let refuses =
            |bounds: &TimestampBounds| !has_no_key && !bounds.accepts(record.timestamp_ms);
        let refusing = bounds.filter(refuses);
        if has_no_key || refusing.is_some() {
            if at_fault.len() < NAMED_RECORDS_MAX {
                at_fault.push(place);
            }
            refused = refused.or(refusing.map(|bounds| (bounds, record.timestamp_ms)));
        }
        place += 1;
    }
    match (refused, at_fault.is_empty()) {
        (Some((bounds, timestamp_ms)), _) => Err(bounds.refusal(timestamp_ms, at_fault)),
        (None, false) => Err(PublishError::NoKey { records: at_fault }),
        (None, true) => Ok(()),
    }
}
