//! Decides when each partition is compacted. The log does the compaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cloverleaf_log::{CompactionOptions, CompactionStatus, LogError};

use crate::broker::Shared;
use crate::committed::TopicPartition;
use crate::options::Compaction;
use crate::topic::Topic;
use crate::topic::partition::{Partition, WeakPartition};

/// Goes through all partitions in rounds. At most one pass is unfinished at a time, because it
/// keeps an index of its keys in memory.
#[derive(Debug)]
pub(crate) struct Compactor {
    /// The partition whose pass is unfinished: it continues first.
    unfinished: Option<WeakPartition>,
    /// The last partition that this round has checked, in order of topic id and partition number.
    after: Option<TopicPartition>,
    /// A pass of this round stopped before its partition was clean.
    is_unfinished: bool,
    /// See [`CompactionOptions::work_bytes_max`].
    work_bytes_max: u64,
}

impl Default for Compactor {
    fn default() -> Self {
        Self {
            unfinished: None,
            after: None,
            is_unfinished: false,
            work_bytes_max: CompactionOptions::default().work_bytes_max,
        }
    }
}

impl Compactor {
    /// Compacts until the round is complete, a pass is left unfinished, or `until_ms` is reached
    /// after some work. Returns `true` to be called again at once.
    pub(crate) fn run(
        &mut self,
        shared: &Arc<Shared>,
        until_ms: u64,
        stop: &Arc<AtomicBool>,
    ) -> bool {
        let mut has_worked = false;
        if let Some(log) = self.unfinished.take().and_then(|log| log.upgrade()) {
            has_worked = true;
            let topic = shared.topic_by_id(log.topic());
            match topic.filter(|topic| topic.options().compaction.is_some()) {
                Some(topic) => self.compact(shared, &topic, &log, stop),
                None => log.abandon_compaction(),
            }
        }
        let mut topics = shared.all_topics();
        topics.sort_by_key(|topic| topic.id());
        for topic in topics {
            let options = topic.options();
            let Some(compaction) = &options.compaction else {
                continue;
            };
            for log in topic.partitions().iter() {
                if stop.load(Ordering::Acquire) {
                    return false;
                }
                let is_late = || has_worked && shared.clock.now_ms() >= until_ms;
                if self.unfinished.is_some() || is_late() {
                    return true;
                }
                let place = (log.topic(), log.number());
                if self.after.is_some_and(|after| place <= after) {
                    continue;
                }
                self.after = Some(place);
                if is_due(log, compaction, now_ms(shared)) {
                    has_worked = true;
                    self.compact(shared, &topic, log, stop);
                }
            }
        }
        if self.unfinished.is_some() {
            return true;
        }
        self.after = None;
        std::mem::take(&mut self.is_unfinished)
    }

    fn compact(
        &mut self,
        shared: &Arc<Shared>,
        topic: &Topic,
        log: &Partition,
        stop: &Arc<AtomicBool>,
    ) {
        let options = topic.options();
        let Some(compaction) = &options.compaction else {
            return;
        };
        let work = CompactionOptions {
            now_ms: now_ms(shared),
            delete_retention_ms: compaction.delete_retention_ms,
            min_lag_ms: compaction.min_lag_ms,
            inflated_bytes_max: shared.inflater.batch_bytes_max(),
            codec: compaction.compression.map(Into::into),
            work_bytes_max: self.work_bytes_max,
            stop: stop.clone(),
            ..CompactionOptions::default()
        };
        match log.compact(&work) {
            Ok(done) if done.is_done => {
                tracing::debug!(topic = topic.name(), ?done, "compacted");
            }
            Ok(done) if done.has_unfinished_pass => self.unfinished = Some(log.downgrade()),
            Ok(_) => self.is_unfinished = true,
            // The topic was deleted, or the broker is shutting down.
            Err(LogError::Closed) => {}
            Err(error) => {
                tracing::warn!(topic = topic.name(), partition = log.number(), %error,
                    "compaction failed and is tried again");
            }
        }
    }
}

fn now_ms(shared: &Shared) -> i64 {
    i64::try_from(shared.clock.now_ms()).unwrap_or(i64::MAX)
}

fn is_due(log: &Partition, compaction: &Compaction, now_ms: i64) -> bool {
    let status = log.compaction_status();
    if is_worth_it(&status, compaction, now_ms) {
        return true;
    }
    let (Some(from_ms), Some(max_lag_ms)) = (status.dirty_from_ms, compaction.max_lag_ms) else {
        return false;
    };
    from_ms <= now_ms.saturating_sub(i64::try_from(max_lag_ms).unwrap_or(i64::MAX))
}

/// Whether enough of the partition is new, or tombstones may be removed.
fn is_worth_it(status: &CompactionStatus, compaction: &Compaction, now_ms: i64) -> bool {
    if status
        .horizon_ms
        .is_some_and(|horizon_ms| horizon_ms <= now_ms)
    {
        return true;
    }
    let all = u128::from(status.clean_bytes) + u128::from(status.dirty_bytes);
    let dirty_permille = u128::from(status.dirty_bytes) * 1_000;
    status.dirty_bytes > 0 && dirty_permille >= u128::from(compaction.dirty_ratio_permille) * all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use cloverleaf_log::{BatchBuilder, Durability, Log, LogOptions, SimDisk};

    use super::*;
    use crate::{Broker, BrokerOptions, ManualClock, TopicOptions};

    /// Two topics, each with one key whose records are in segments of their own.
    fn broker() -> (Log, Broker) {
        let options = LogOptions {
            manual: true,
            ..LogOptions::default()
        };
        let (log, recovery) = Log::open(SimDisk::new().mount(), options).unwrap();
        let clock = Arc::new(ManualClock::new(1_000));
        let broker = Broker::open(log.clone(), recovery, BrokerOptions::default(), clock).unwrap();
        for name in ["a", "b"] {
            let options = || TopicOptions {
                compaction: Some(Compaction::default()),
                segment_bytes: Some(1),
                ..TopicOptions::default()
            };
            let topic = broker.topic_or_create(name, options).unwrap();
            for _ in 0..9 {
                let mut batch = BatchBuilder::with_capacity(64, 1_000);
                batch.push(Some(b"k"), Some(b"v"), &[]);
                let published = topic.publish_to(0, batch.finish(), Durability::Kernel);
                drop(published.unwrap());
                log.step();
            }
        }
        (log, broker)
    }

    fn segments(broker: &Broker, name: &str) -> usize {
        broker.topic(name).unwrap().partitions()[0]
            .status()
            .segments
    }

    #[test]
    fn one_pass_at_a_time_is_under_way_until_all_are_done() {
        let (_log, broker) = broker();
        let mut compactor = Compactor {
            work_bytes_max: 1,
            ..Compactor::default()
        };
        let mut run = || {
            let goes_on = compactor.run(&broker.shared, 0, &Arc::default());
            (goes_on, compactor.unfinished.is_some())
        };
        let before = segments(&broker, "a");
        assert_eq!(run(), (true, true));
        let untouched = ["a", "b"].map(|name| segments(&broker, name) == before);
        assert!(untouched.contains(&true), "{untouched:?}");
        let mut rounds = 0;
        while run().0 {
            rounds += 1;
            assert!(rounds < 100);
        }
        // Left are the newest sealed segment and the active one.
        assert!(["a", "b"].iter().all(|name| segments(&broker, name) <= 3));
        broker.close();
    }

    #[test]
    fn a_pass_is_abandoned_when_its_topic_is_no_longer_compacted() {
        let (_log, broker) = broker();
        let mut compactor = Compactor {
            work_bytes_max: 1,
            ..Compactor::default()
        };
        let stop = Arc::default();
        assert!(compactor.run(&broker.shared, 0, &stop));
        for name in ["a", "b"] {
            let topic = broker.topic(name).unwrap();
            topic
                .set_options(|options| options.compaction = None)
                .unwrap();
        }
        assert!(!compactor.run(&broker.shared, 0, &stop));
        assert!(compactor.unfinished.is_none());
        broker.close();
    }

    #[test]
    fn new_records_are_due_at_the_latest_after_the_maximum_lag() {
        let (_log, broker) = broker();
        let is_due_at = |now_ms, max_lag_ms| {
            let compaction = Compaction {
                // The ratio alone never makes compaction due.
                dirty_ratio_permille: 1_001,
                max_lag_ms,
                ..Compaction::default()
            };
            is_due(
                &broker.topic("a").unwrap().partitions()[0],
                &compaction,
                now_ms,
            )
        };
        // All records have the timestamp 1,000 ms.
        assert!(!is_due_at(1_499, Some(500)) && is_due_at(1_500, Some(500)));
        assert!(!is_due_at(i64::MAX, None));
        broker.close();
    }

    fn check(clean_bytes: u64, dirty_bytes: u64, horizon_ms: Option<i64>, expect: bool) {
        let status = CompactionStatus {
            clean_bytes,
            dirty_bytes,
            horizon_ms,
            ..CompactionStatus::default()
        };
        let compaction = Compaction::default();
        assert_eq!(is_worth_it(&status, &compaction, 100), expect, "{status:?}");
    }

    #[test]
    fn half_of_the_bytes_must_be_new_or_a_tombstone_be_due() {
        check(0, 0, None, false);
        check(0, 1, None, true);
        check(10, 9, None, false);
        check(10, 10, None, true);
        check(10, 0, Some(101), false);
        check(10, 0, Some(100), true);
        check(u64::MAX, u64::MAX, None, true);
    }
}
