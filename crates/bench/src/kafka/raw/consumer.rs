//! A consumer that sends one Fetch request after the other.

use rdkafka::metadata::Metadata;

use crate::driver::DriverError;
use crate::plan::Plan;
use crate::pump::Arrivals;
use crate::url::Url;
use crate::wire::{ReceiveCodec, SocketReceiver, Wire, WireError};

use super::codec::{Answer, cut_short, fetched, put_fetch, records};
use super::{open, words};

/// Time that the broker may wait for messages: librdkafka's default.
const FETCH_WAIT_MS: i32 = 500;
/// Maximum of bytes of a partition in an answer: librdkafka's default. Large messages raise it.
const PARTITION_BYTES_MAX: usize = 1 << 20;
/// Maximum of bytes of all partitions in an answer, likewise.
const FETCH_BYTES_MAX: usize = 50 << 20;
/// An answer may exceed the maximum by this many bytes: a broker sends the first batch whole, and a
/// user's topic may have large batches of other producers.
const ANSWER_EXTRA_BYTES: usize = 16 << 20;

/// A consumer of some partitions.
pub(crate) struct RawReceiver {
    topic: String,
    /// Each partition, with the offset to fetch next.
    partitions: Vec<(i32, i64)>,
    /// Maximum of bytes of an answer, and of a partition in it.
    bytes_max: (i32, i32),
    /// The correlation id of the last request.
    number: i32,
}

impl RawReceiver {
    /// Connects.
    pub(crate) fn open(
        url: &Url,
        plan: &Plan,
        partitions: Vec<(i32, i64)>,
        metadata: &Metadata,
    ) -> Result<SocketReceiver<RawReceiver>, DriverError> {
        let partition_bytes_max = PARTITION_BYTES_MAX.max(2 * plan.size_bytes);
        let all = partition_bytes_max.saturating_mul(partitions.len().max(1));
        let bytes_max = all.min(FETCH_BYTES_MAX.max(partition_bytes_max));
        let number = |bytes| i32::try_from(bytes).unwrap_or(i32::MAX);
        Ok(SocketReceiver {
            wire: open(url, plan, metadata)?,
            url: url.clone(),
            codec: RawReceiver {
                topic: plan.topic.clone(),
                partitions,
                bytes_max: (number(bytes_max), number(partition_bytes_max)),
                number: 0,
            },
        })
    }

    /// Records the messages of an answer, and advances the partitions' offsets.
    fn take(&mut self, body: &[u8], arrivals: &mut Arrivals<'_>) -> Result<(), WireError> {
        let mut result = Ok(());
        let error = fetched(body, |partition, error, batches| {
            let mut wanted = self.partitions.iter_mut();
            let Some((_, offset)) = wanted.find(|(own, _)| *own == partition) else {
                return;
            };
            if error != 0 {
                result = Err(WireError::Refused(words(error)));
                return;
            }
            let stream = u32::try_from(partition).ok();
            let next = records(batches, *offset, |value| arrivals.came(value, stream));
            match next {
                Some(next) => *offset = next,
                None => {
                    let what = "it sent a batch that cannot be read".to_owned();
                    result = Err(WireError::Protocol(what));
                }
            }
        });
        result?;
        match error.ok_or_else(cut_short)? {
            0 => Ok(()),
            code => Err(WireError::Refused(words(code))),
        }
    }
}

impl ReceiveCodec for RawReceiver {
    fn start(&mut self, out: &mut Vec<u8>) {
        if !self.partitions.is_empty() {
            self.number = self.number.wrapping_add(1);
            let (topic, partitions) = (&self.topic, &self.partitions);
            let bytes_max = self.bytes_max;
            put_fetch(
                out,
                self.number,
                topic,
                partitions,
                FETCH_WAIT_MS,
                bytes_max,
            );
        }
    }

    fn messages(&mut self, wire: &mut Wire, arrivals: &mut Arrivals<'_>) -> Result<(), WireError> {
        let bytes_max = usize::try_from(self.bytes_max.0).unwrap_or(0) + ANSWER_EXTRA_BYTES;
        wire.frames(Answer(bytes_max), |body, out| {
            self.take(body, arrivals)?;
            // Sends the next Fetch request.
            self.start(out);
            Ok(())
        })
    }
}
