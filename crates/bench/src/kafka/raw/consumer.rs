//! A connection that consumes: one Fetch after the other.

use std::time::Duration;

use rdkafka::metadata::Metadata;

use crate::book::Book;
use crate::driver::{Consume, DriverError, Stop};
use crate::plan::Plan;
use crate::url::Url;
use crate::wire::WireError;

use super::codec::{answer, fetched, put_fetch, records};
use super::{RawConnection, words};

/// How often a consumer that gets nothing looks whether it is stopped.
const LOOK: Duration = Duration::from_millis(50);
/// How long the broker may wait for messages: librdkafka's default.
const FETCH_WAIT_MS: i32 = 500;
/// Most bytes of a partition in an answer, if one message does not have more: librdkafka's default.
const PARTITION_BYTES_MAX: usize = 1 << 20;
/// Most bytes of all partitions in an answer, likewise.
const FETCH_BYTES_MAX: usize = 50 << 20;
/// Bytes that an answer may have beside that: the first batch comes whole whatever was asked for,
/// and batches of others may lie in a user's topic.
const ANSWER_EXTRA_BYTES: usize = 16 << 20;

/// A consumer of some partitions.
pub(crate) struct RawConsumer {
    connection: RawConnection,
    topic: String,
    /// Partitions, and what is wanted next of each.
    partitions: Vec<(i32, i64)>,
    /// Most bytes of an answer, and of a partition in it.
    bytes_max: (i32, i32),
}

impl RawConsumer {
    /// Connects.
    pub(crate) fn new(
        url: &Url,
        plan: &Plan,
        partitions: Vec<(i32, i64)>,
        metadata: &Metadata,
    ) -> Result<RawConsumer, DriverError> {
        let partition_bytes_max = PARTITION_BYTES_MAX.max(2 * plan.size_bytes);
        let all = partition_bytes_max.saturating_mul(partitions.len().max(1));
        let bytes_max = all.min(FETCH_BYTES_MAX.max(partition_bytes_max));
        let number = |bytes| i32::try_from(bytes).unwrap_or(i32::MAX);
        Ok(RawConsumer {
            connection: RawConnection::open(url, plan, metadata)?,
            topic: plan.topic.clone(),
            partitions,
            bytes_max: (number(bytes_max), number(partition_bytes_max)),
        })
    }

    fn fetch(&mut self) {
        let number = self.connection.next_number();
        let out = self.connection.wire.out();
        let wait_ms = FETCH_WAIT_MS;
        put_fetch(
            out,
            number,
            &self.topic,
            &self.partitions,
            wait_ms,
            self.bytes_max,
        );
    }

    fn work(&mut self, book: &mut Book, stop: &Stop) -> Result<(), WireError> {
        let clock = book.clock();
        let bytes_max = usize::try_from(self.bytes_max.0).unwrap_or(0) + ANSWER_EXTRA_BYTES;
        if !self.partitions.is_empty() {
            self.fetch();
        }
        while !stop.is_set() {
            if !self.connection.exchange(LOOK)? {
                continue;
            }
            while let Some((body, used)) = answer(self.connection.wire.received(), bytes_max)? {
                let now_ns = clock.now_ns();
                take(body, &mut self.partitions, book, now_ns)?;
                self.connection.wire.take(used);
                self.fetch();
            }
        }
        Ok(())
    }
}

/// Takes the messages of an answer; sets what is wanted next.
fn take(
    body: &[u8],
    partitions: &mut [(i32, i64)],
    book: &mut Book,
    now_ns: u64,
) -> Result<(), WireError> {
    let mut wrong = None;
    let error = fetched(body, |partition, error, batches| {
        let wanted = partitions.iter_mut().find(|(own, _)| *own == partition);
        let Some((_, offset)) = wanted else {
            return;
        };
        if error != 0 {
            wrong = Some(WireError::Refused(words(error)));
            return;
        }
        let stream = u32::try_from(partition).ok();
        let next = records(batches, *offset, |value| {
            book.came(value, stream, now_ns);
        });
        match next {
            Some(next) => *offset = next,
            None => {
                wrong = Some(WireError::Protocol(
                    "it sent a batch that cannot be read".to_owned(),
                ))
            }
        }
    });
    match (wrong, error) {
        (Some(error), _) => Err(error),
        (None, Some(0)) => Ok(()),
        (None, Some(code)) => Err(WireError::Refused(words(code))),
        (None, None) => Err(WireError::Protocol(
            "it sent an answer that is cut short".to_owned(),
        )),
    }
}

impl Consume for RawConsumer {
    fn run(&mut self, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let result = self.work(book, stop);
        result.map_err(|error| self.connection.error(error))
    }
}
