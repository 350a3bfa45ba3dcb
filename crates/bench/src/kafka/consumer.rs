//! A consumer through librdkafka.

use rdkafka::Offset;
use rdkafka::config::ClientConfig;
use rdkafka::topic_partition_list::TopicPartitionList;

use crate::driver::DriverError;
use crate::plan::Plan;
use crate::pump::{Arrivals, ReceivePort};
use crate::url::Url;

use super::ANSWER;
use super::ends::Ends;
use super::native::{Came, NativeConsumer};

/// A consumer of some partitions.
pub(super) struct KafkaReceiver {
    native: NativeConsumer,
    url: Url,
    topic: String,
    /// Each partition, with the offset to start from.
    partitions: Vec<(i32, i64)>,
    ends: Ends,
}

impl KafkaReceiver {
    /// A consumer of these partitions.
    pub(super) fn new(
        url: &Url,
        config: &ClientConfig,
        plan: &Plan,
        partitions: Vec<(i32, i64)>,
    ) -> Result<KafkaReceiver, DriverError> {
        let native = NativeConsumer::new(config).map_err(|error| url.refused(error))?;
        let known = native.client().fetch_metadata(Some(&plan.topic), ANSWER);
        known.map_err(|error| url.unreachable(error))?;
        Ok(KafkaReceiver {
            native,
            url: url.clone(),
            topic: plan.topic.clone(),
            partitions,
            ends: Ends::default(),
        })
    }
}

impl ReceivePort for KafkaReceiver {
    /// Begins to read, not before the measurement, because the library reads ahead. No message is
    /// missed, because the offsets were determined before.
    fn start(&mut self) -> Result<(), DriverError> {
        let mut list = TopicPartitionList::new();
        for (partition, start) in &self.partitions {
            list.add_partition_offset(&self.topic, *partition, Offset::Offset(*start))
                .map_err(|error| self.url.refused(error))?;
        }
        let assigned = self.native.assign(&list);
        assigned.map_err(|error| self.url.refused(error))
    }

    fn receive(&mut self, most_ns: u64, arrivals: &mut Arrivals<'_>) -> Result<(), DriverError> {
        let (ends, mut refused) = (&mut self.ends, None);
        let wait_ms = i32::try_from(most_ns / 1_000_000).unwrap_or(i32::MAX);
        let count = self.native.take(wait_ms, |came| match came {
            Came::Message(partition, bytes) => arrivals.came(bytes, Some(partition)),
            Came::Trouble(Some(partition), trouble) => {
                refused = Some(format!("partition {partition}: {}", trouble.text));
            }
            Came::Trouble(None, trouble) => ends.hear(trouble),
        });
        if let Some(words) = refused {
            return Err(self.url.refused(words));
        }
        if count == 0 {
            self.native.troubles(|trouble| ends.hear(trouble));
        }
        self.ends.check(&self.url)
    }
}
