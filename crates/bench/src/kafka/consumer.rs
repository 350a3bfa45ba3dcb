//! A connection that consumes through librdkafka.

use rdkafka::Offset;
use rdkafka::config::ClientConfig;
use rdkafka::topic_partition_list::TopicPartitionList;

use crate::book::Book;
use crate::driver::{Consume, DriverError, Stop};
use crate::plan::Plan;
use crate::url::Url;

use super::ANSWER;
use super::ends::Ends;
use super::native::{Came, NativeConsumer};

/// How long to wait at most before stop is looked at.
const WAIT_MS: i32 = 50;

/// A consumer of some partitions.
pub(super) struct KafkaConsumer {
    native: NativeConsumer,
    url: Url,
    topic: String,
    /// Partitions, and where each begins.
    partitions: Vec<(i32, i64)>,
}

impl KafkaConsumer {
    /// Makes one of these partitions.
    pub(super) fn new(
        url: &Url,
        config: &ClientConfig,
        plan: &Plan,
        partitions: Vec<(i32, i64)>,
    ) -> Result<KafkaConsumer, DriverError> {
        let native = NativeConsumer::new(config).map_err(|error| url.refused(error))?;
        let known = native.client().fetch_metadata(Some(&plan.topic), ANSWER);
        known.map_err(|error| url.unreachable(error))?;
        Ok(KafkaConsumer {
            native,
            url: url.clone(),
            topic: plan.topic.clone(),
            partitions,
        })
    }

    /// Begins to read. Not before it is measured: the library reads ahead what it can get. Nothing
    /// is missed, because it is known where each partition begins.
    fn assign(&self) -> Result<(), DriverError> {
        let mut list = TopicPartitionList::new();
        for (partition, start) in &self.partitions {
            list.add_partition_offset(&self.topic, *partition, Offset::Offset(*start))
                .map_err(|error| self.url.refused(error))?;
        }
        let assigned = self.native.assign(&list);
        assigned.map_err(|error| self.url.refused(error))
    }
}

impl Consume for KafkaConsumer {
    fn run(&mut self, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        self.assign()?;
        let clock = book.clock();
        let mut ends = Ends::default();
        while !stop.is_set() {
            let (mut now_ns, mut refused) = (0, None);
            let count = self.native.take(WAIT_MS, |came| match came {
                Came::Message(partition, bytes) => {
                    if now_ns == 0 {
                        now_ns = clock.now_ns();
                    }
                    book.came(bytes, Some(partition), now_ns);
                }
                Came::Trouble(Some(partition), trouble) => {
                    let words = format!("partition {partition}: {}", trouble.text);
                    refused = Some(self.url.refused(words));
                }
                Came::Trouble(None, trouble) => ends.hear(trouble),
            });
            if let Some(error) = refused {
                return Err(error);
            }
            if count == 0 {
                self.native.troubles(|trouble| ends.hear(trouble));
            }
            ends.check(&self.url)?;
        }
        Ok(())
    }
}
