//! Retention: deletes segments by age, by size, or because all subscriptions and committed groups
//! have passed them.

use std::cell::LazyCell;
use std::ops::Range;
use std::sync::Arc;

use cloverleaf_log::Offset;

use crate::broker::Shared;
use crate::topic::Topic;
use crate::topic::partition::Partition;

/// Applies retention to all topics once.
pub(crate) fn run(shared: &Arc<Shared>, now_ms: u64) {
    for topic in shared.all_topics() {
        for (partition, log) in (0u32..).zip(topic.partitions().iter()) {
            let unix_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
            log.age(unix_ms);
            let dropped = drop_expired(&topic, log, now_ms)
                | drop_consumed(shared, &topic, partition, log, now_ms);
            if dropped && !topic.is_ephemeral() {
                remember_next(shared, &topic);
            }
        }
    }
}

/// When its last segment is deleted, a log forgets its end, so the journal records it.
fn remember_next(shared: &Arc<Shared>, topic: &Arc<Topic>) {
    let _definitions = shared.definitions.lock();
    if topic.is_deleted() {
        return;
    }
    if let Err(error) = shared.write_entries(&topic.next_offsets()) {
        tracing::warn!(topic = topic.name(), %error, "cannot write down where the topic ends");
    }
}

fn drop_expired(topic: &Topic, log: &Partition, now_ms: u64) -> bool {
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

/// Deletes every sealed segment that all subscriptions and committed groups have passed.
fn drop_consumed(
    shared: &Arc<Shared>,
    topic: &Arc<Topic>,
    partition: u32,
    log: &Partition,
    now_ms: u64,
) -> bool {
    let options = topic.options();
    let retention = &options.retention;
    if !retention.consumed {
        return false;
    }
    let kept_since_ms = retention
        .min_ms
        .map(|ms| i64::try_from(now_ms.saturating_sub(ms)).unwrap_or(i64::MAX));
    // Evaluated lazily: usually no segment has to be checked.
    let readers = LazyCell::new(|| {
        let committed = shared.committed.of_partition(topic.id(), partition);
        (topic.subscriptions(), committed)
    });
    let covers = |range: Range<Offset>| {
        let (subscriptions, committed) = &*readers;
        let has_readers = !subscriptions.is_empty() || !committed.is_empty();
        has_readers
            && committed.iter().all(|offset| *offset >= range.end)
            && subscriptions
                .iter()
                .all(|s| s.covers(partition, range.start, range.end))
    };
    match log.drop_covered(kept_since_ms, covers) {
        Ok(freed) => freed > 0,
        Err(error) => {
            tracing::warn!(topic = topic.name(), %error, "cannot drop consumed segments");
            false
        }
    }
}
