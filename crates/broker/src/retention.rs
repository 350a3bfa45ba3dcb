//! Which segments may go: by age, by size, and because everybody has passed them.

use std::sync::Arc;

use cloverleaf_log::{Offset, PartitionLog, SegmentInfo};

use crate::broker::Shared;
use crate::topic::Topic;

/// A fully consumed active segment smaller than this is not worth a new file.
const SEAL_BYTES_MIN: u64 = 1 << 20;

/// Looks after all topics once.
pub(crate) fn run(shared: &Arc<Shared>, now_ms: u64) {
    for topic in shared.all_topics() {
        for (partition, log) in (0u32..).zip(topic.logs().iter()) {
            let unix_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
            log.roll_aged(unix_ms);
            log.forget_silent_producers(unix_ms);
            let dropped = drop_expired(&topic, log, now_ms)
                | drop_consumed(shared, &topic, partition, log, now_ms);
            if dropped && !topic.is_ephemeral() {
                remember_next(shared, &topic);
            }
        }
    }
}

/// With its last segment gone, a log forgets where it ended; the journal must not.
fn remember_next(shared: &Arc<Shared>, topic: &Arc<Topic>) {
    let _definitions = shared.definitions.lock();
    if topic.is_deleted() {
        return;
    }
    if let Err(error) = shared.write(&topic.next_offsets()) {
        tracing::warn!(topic = topic.name(), %error, "cannot write down where the topic ends");
    }
}

fn drop_expired(topic: &Topic, log: &Arc<PartitionLog>, now_ms: u64) -> bool {
    let options = topic.options();
    let retention = &options.retention;
    if retention.ms.is_none() && retention.bytes.is_none() {
        return false;
    }
    let older_than_ms = retention
        .ms
        .map(|ms| i64::try_from(now_ms.saturating_sub(ms)).unwrap_or(i64::MAX));
    match log.retain(older_than_ms, retention.bytes) {
        Ok(freed) => freed > 0,
        Err(error) => {
            tracing::warn!(topic = topic.name(), %error, "retention failed");
            false
        }
    }
}

/// Drops every sealed segment that all subscriptions and committed groups have passed.
fn drop_consumed(
    shared: &Arc<Shared>,
    topic: &Arc<Topic>,
    partition: u32,
    log: &Arc<PartitionLog>,
    now_ms: u64,
) -> bool {
    let options = topic.options();
    let retention = &options.retention;
    let mut segments = log.segments();
    let kept_since_ms = retention
        .min_ms
        .map(|ms| i64::try_from(now_ms.saturating_sub(ms)).unwrap_or(i64::MAX));
    let stays = |segment: &SegmentInfo| {
        kept_since_ms.is_some_and(|since_ms| segment.max_timestamp_ms >= since_ms)
    };
    let may_go = |segment: &SegmentInfo| {
        segment.sealed || (segment.active && segment.bytes >= SEAL_BYTES_MIN)
    };
    segments.retain(|segment| may_go(segment) && !stays(segment));
    // Mostly there is nothing to ask for.
    if !retention.consumed || segments.is_empty() {
        return false;
    }
    let subscriptions = topic.subscriptions();
    let committed = shared.committed.of_partition(topic.id(), partition);
    if subscriptions.is_empty() && committed.is_empty() {
        return false;
    }
    let passed = |start: Offset, end: Offset| {
        committed.iter().all(|offset| *offset >= end)
            && subscriptions
                .iter()
                .all(|s| s.covers(partition, start, end))
    };
    let mut bases = Vec::new();
    for segment in segments {
        if !passed(segment.base, segment.end) {
            continue;
        }
        match segment.sealed {
            true => bases.push(segment.base),
            false => log.seal_active(),
        }
    }
    if bases.is_empty() {
        return false;
    }
    match log.drop_segments(&bases) {
        Ok(freed) => freed > 0,
        Err(error) => {
            tracing::warn!(topic = topic.name(), %error, "cannot drop consumed segments");
            false
        }
    }
}
