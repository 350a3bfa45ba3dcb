//! A consumer: one Fetch after the other.

use rdkafka::metadata::Metadata;

use crate::driver::DriverError;
use crate::plan::Plan;
use crate::pump::Arrivals;
use crate::url::Url;
use crate::wire::{ReceiveCodec, SocketReceiver, Wire, WireError};

use super::codec::{Answer, cut_short, fetched, put_fetch, records};
use super::{open, words};

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
pub(crate) struct RawReceiver {
    topic: String,
    /// Partitions, and what is wanted next of each.
    partitions: Vec<(i32, i64)>,
    /// Most bytes of an answer, and of a partition in it.
    bytes_max: (i32, i32),
    /// The last request's.
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

    /// Takes the messages of an answer; sets what is wanted next.
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
            // The next one.
            self.start(out);
            Ok(())
        })
    }
}
