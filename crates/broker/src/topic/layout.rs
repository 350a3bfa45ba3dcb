//! A topic's partitions: their logs, their watchers, and how their number grows.

use std::sync::{Arc, Weak};

use cloverleaf_log::{Offset, PartitionOptions};
use uuid::Uuid;

use crate::broker::{CatalogError, PARTITIONS_MAX, Shared};
use crate::journal::entries::Entry;
use crate::options::TopicOptions;
use crate::topic::Topic;
use crate::topic::partition::Partition;
use crate::topic::watch::{Watch, Watcher, Watchers};

/// The parts of a topic that change while it is in use. A change replaces the whole value, so a
/// publish reads one consistent value.
pub(crate) struct TopicLayout {
    pub(crate) options: Arc<TopicOptions>,
    pub(crate) partitions: Arc<[Partition]>,
    pub(crate) watchers: Arc<[Arc<Watchers>]>,
}

impl TopicLayout {
    /// Opens the partitions of a topic with these options. Partitions that `old` has keep their
    /// watchers.
    pub(crate) fn open(
        shared: &Shared,
        id: Uuid,
        options: TopicOptions,
        old: Option<&TopicLayout>,
    ) -> Result<Self, CatalogError> {
        let partitions = (0..options.partitions)
            .map(|n| Partition::open(&shared.log, id, n, partition_options(shared, &options)))
            .collect::<Result<_, _>>()
            .map_err(|error| CatalogError::Log {
                reason: error.to_string(),
            })?;
        let known = old.map(|old| old.watchers.clone()).unwrap_or_default();
        let watchers = (0..options.partitions as usize)
            .map(|n| known.get(n).cloned().unwrap_or_default())
            .collect();
        Ok(Self {
            options: Arc::new(options),
            partitions,
            watchers,
        })
    }
}

/// The log's options for the partitions of a topic.
fn partition_options(shared: &Shared, options: &TopicOptions) -> PartitionOptions {
    // Records in the active segment cannot be compacted, so the segment must be rolled within the
    // maximum compaction lag.
    let max_lag_ms = options.compaction.as_ref().and_then(|c| c.max_lag_ms);
    PartitionOptions {
        segment_bytes: options
            .segment_bytes
            .unwrap_or(shared.options.segment_bytes),
        segment_ms: options.segment_ms.into_iter().chain(max_lag_ms).min(),
    }
}

impl Topic {
    pub(crate) fn layout(&self) -> Arc<TopicLayout> {
        self.layout.read().clone()
    }

    /// Its partitions, in order of their numbers.
    pub fn partitions(&self) -> Arc<[Partition]> {
        self.layout.read().partitions.clone()
    }

    /// The partition with that number.
    pub fn partition(&self, partition: u32) -> Option<Partition> {
        self.layout
            .read()
            .partitions
            .get(partition as usize)
            .cloned()
    }

    /// Bytes of the batches in all partitions on disk.
    pub fn stored_bytes(&self) -> u64 {
        let partitions = self.partitions();
        partitions.iter().map(Partition::stored_bytes).sum()
    }

    /// The end of each partition for readers.
    pub(crate) fn written_ends(&self) -> Vec<Offset> {
        let partitions = self.partitions();
        partitions.iter().map(Partition::written_end).collect()
    }

    /// The number of its partitions.
    pub fn partition_count(&self) -> u32 {
        self.layout.read().options.partitions
    }

    /// Registers `watcher` with a partition: it fires with the next write, or when the topic is
    /// deleted. `None`: the partition does not exist.
    ///
    /// Register first, then read: a write that the read misses fires the watcher. A second
    /// registration changes nothing.
    pub fn watch(&self, partition: u32, watcher: &Arc<Watcher>) -> Option<Watch> {
        let watchers = self.layout.read().watchers.get(partition as usize).cloned();
        watchers.map(|watchers| watchers.add(watcher))
    }

    /// Registers with the log for each write to the partitions from `first` on.
    pub(crate) fn listen(self: &Arc<Self>, layout: &TopicLayout, first: usize) {
        for (log, watchers) in layout
            .partitions
            .iter()
            .zip(layout.watchers.iter())
            .skip(first)
        {
            let (topic, watchers): (Weak<Self>, _) = (Arc::downgrade(self), watchers.clone());
            log.on_written(Box::new(move |_| {
                if let Some(topic) = topic.upgrade() {
                    topic.written();
                }
                // The subscriptions have been notified first.
                watchers.fire();
            }));
        }
    }

    /// Raises the number of partitions to `total` while the topic is in use. Subscriptions deliver
    /// from the new partitions what is published from now on.
    ///
    /// # Errors
    /// `total` is not above the present number or is too large, the broker's limit of partitions is
    /// reached, the topic was deleted, or the journal cannot be written.
    pub fn add_partitions(self: &Arc<Self>, total: u32) -> Result<(), CatalogError> {
        let partitions = total;
        let definitions = self.lock_definitions()?;
        let old = self.layout();
        let current = old.options.partitions;
        if partitions > PARTITIONS_MAX {
            return Err(CatalogError::Partitions { partitions });
        }
        if partitions <= current {
            return Err(CatalogError::PartitionsOnlyGrow {
                partitions,
                current,
            });
        }
        let more = partitions - current;
        self.shared().check_partition_limit(more)?;
        let options = TopicOptions {
            partitions,
            ..(*old.options).clone()
        };
        let layout = TopicLayout::open(self.shared(), self.id(), options, Some(&old))?;
        // A paused topic holds back everything in the new partitions.
        let paused_at = self.paused_at.lock().clone().map(|mut limits| {
            limits.resize(layout.partitions.len(), 0);
            limits
        });
        let mut definition = self.next_definition();
        let revision = definition.revision;
        definition.options = (*layout.options).clone();
        definition.paused_at.clone_from(&paused_at);
        self.shared().write_entries(&[Entry::Topic(definition)])?;
        self.listen(&layout, old.partitions.len());
        *self.paused_at.lock() = paused_at;
        for subscription in self.subscriptions().iter() {
            subscription.add_partitions(&layout.partitions);
        }
        *self.layout.write() = Arc::new(layout);
        self.definition_changed(revision);
        self.shared().count_partitions(more);
        drop(definitions);
        self.shared().notify_changed();
        Ok(())
    }

    /// Permanently removes the messages of a partition before an offset. Returns the offset of the
    /// first remaining message. Blocks on the disk.
    ///
    /// # Errors
    /// There is no such partition, the offset lies above its end, the topic was deleted, or the
    /// journal cannot be written.
    pub fn delete_records(
        self: &Arc<Self>,
        partition: u32,
        before: Offset,
    ) -> Result<Offset, CatalogError> {
        let definitions = self.lock_definitions()?;
        let Some(log) = self.partition(partition) else {
            return Err(CatalogError::NoSuchPartition {
                topic: self.name().to_owned(),
                partition,
            });
        };
        let end = log.written_end();
        if before > log.next_offset() {
            let offset = before;
            return Err(CatalogError::OffsetAboveEnd { offset, end });
        }
        // After a power loss the end is lower than `next_offset`: readers may have seen messages
        // that the disk has lost.
        let before = before.min(end);
        if before <= log.start_offset() {
            return Ok(log.start_offset());
        }
        if !self.is_ephemeral() {
            // When its last segment is removed, a log forgets its end, so the journal records it.
            let next = log.next_offset();
            let entry = |offset, is_start| {
                let topic = self.id();
                if is_start {
                    Entry::Start {
                        topic,
                        partition,
                        offset,
                    }
                } else {
                    Entry::Next {
                        topic,
                        partition,
                        offset,
                    }
                }
            };
            let entries = [entry(before, true), entry(next, false)];
            self.shared().write_entries(&entries)?;
        }
        // The files are removed without the lock, so that no definition waits for the disk.
        drop(definitions);
        crate::broker::truncate(self, &log, before);
        for subscription in self.subscriptions().iter() {
            subscription.forget_range(partition, 0, before);
        }
        Ok(log.start_offset())
    }
}
