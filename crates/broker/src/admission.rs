//! What a topic asks of batches before it stores them.

use cloverleaf_log::Batch;

use crate::broker::Shared;
use crate::options::TopicOptions;
use crate::partitions::Shape;
use crate::publish::PublishError;

/// A record without a timestamp has this one (Kafka).
const NO_TIMESTAMP: i64 = -1;
/// So many records at fault are named: as many as librdkafka puts into a batch. A compressed batch
/// of a hostile client could have millions.
const NAMED_RECORDS_MAX: usize = 10_000;

/// Who made a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// One of our own builders: its records are well formed.
    Broker,
    /// A client: its records are bytes from a network.
    Client,
}

/// What a topic's timestamps may be.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    earliest_ms: i64,
    latest_ms: i64,
}

impl Bounds {
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

    fn hold(self, timestamp_ms: i64) -> bool {
        (self.earliest_ms..=self.latest_ms).contains(&timestamp_ms)
    }

    fn check(self, timestamp_ms: i64) -> Result<(), PublishError> {
        if self.hold(timestamp_ms) || timestamp_ms == NO_TIMESTAMP {
            return Ok(());
        }
        Err(PublishError::Timestamp {
            timestamp_ms,
            earliest_ms: self.earliest_ms,
            latest_ms: self.latest_ms,
        })
    }
}

impl Shape {
    /// Checks a batch against the topic's options, and stamps it where the topic keeps its own
    /// time.
    pub(crate) fn admit(
        &self,
        shared: &Shared,
        batch: Batch,
        maker: Maker,
    ) -> Result<Batch, PublishError> {
        let options = &self.options;
        let bytes = batch.bytes().len() as u64;
        if let Some(bytes_max) = options.batch_bytes_max
            && bytes > bytes_max
        {
            return Err(PublishError::TooLarge { bytes, bytes_max });
        }
        let now_ms = || i64::try_from(shared.clock.now_ms()).unwrap_or(i64::MAX);
        if batch.has_append_time() || batch.delete_horizon_ms().is_some() {
            // Only a broker may say so.
            return Err(PublishError::ForeignAppendTime);
        }
        let bounds = match options.append_time {
            true => None,
            false => Bounds::of(options, now_ms()),
        };
        if let Some(bounds) = bounds {
            bounds.check(batch.base_timestamp_ms())?;
            bounds.check(batch.max_timestamp_ms())?;
        }
        let needs_keys = options.compaction.is_some();
        match (needs_keys, batch.is_compressed()) {
            (true, true) => {
                let inflated = batch.inflate(shared.inflater.batch_bytes_max())?;
                check_records(&inflated, needs_keys, bounds)?;
            }
            // Who inflates it checks its records.
            (false, true) => {}
            (needs_keys, false) => {
                if needs_keys || bounds.is_some() || maker == Maker::Client {
                    check_records(&batch, needs_keys, bounds)?;
                }
            }
        }
        match options.append_time {
            true => Ok(batch.stamp_append_time(now_ms())),
            false => Ok(batch),
        }
    }
}

/// Checks the records of an uncompressed batch. Who is at fault is looked for only if somebody is.
fn check_records(
    batch: &Batch,
    needs_keys: bool,
    bounds: Option<Bounds>,
) -> Result<(), PublishError> {
    let summary = batch.validate_records()?;
    let in_time =
        |bounds: &Bounds| bounds.hold(summary.earliest_ms) && bounds.hold(summary.latest_ms);
    let bounds = bounds.filter(|bounds| !in_time(bounds));
    let needs_keys = needs_keys && summary.without_key > 0;
    if !needs_keys && bounds.is_none() {
        return Ok(());
    }
    let mut records = batch.records();
    let mut without_key = Vec::new();
    let mut place = 0;
    while let Some((_, record)) = records.next_record()? {
        if needs_keys && record.key.is_none() && without_key.len() < NAMED_RECORDS_MAX {
            without_key.push(place);
        }
        place += 1;
        if let Some(bounds) = bounds {
            bounds.check(record.timestamp_ms)?;
        }
    }
    match without_key.is_empty() {
        true => Ok(()),
        false => Err(PublishError::NoKey {
            records: without_key,
        }),
    }
}
