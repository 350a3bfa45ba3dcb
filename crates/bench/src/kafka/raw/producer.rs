//! A producer that sends due messages in batches.

use std::collections::VecDeque;

use rdkafka::metadata::Metadata;

use crate::driver::DriverError;
use crate::message_source::{Message, MessageSource};
use crate::plan::{Acks, Plan};
use crate::pump::{Answers, Limits};
use crate::url::Url;
use crate::wire::{PublishCodec, SocketPublisher, Wire, WireError};

use super::codec::{Answer, ProduceRequest, cut_short, produced};
use super::{open, words};

/// No more messages are encoded while this many bytes wait for the kernel to accept them.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Maximum of messages in flight if the plan sets none.
const HELD_MESSAGES: u32 = 100_000;
/// Maximum of bytes of a batch. Brokers refuse larger ones by default (`message.max.bytes` is 1
/// MiB).
const BATCH_BYTES_MAX: usize = 1_000_000;
/// Maximum of bytes of an answer to a batch, which has a topic's name and a few numbers.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Upper bound of the bytes of a record in addition to its value.
const RECORD_EXTRA_BYTES: usize = 32;

/// A producer.
pub(crate) struct RawPublisher {
    topic: String,
    partitions: i32,
    /// The partition of the next batch.
    partition: i32,
    acks: i16,
    /// The correlation id of the last request.
    number: i32,
    /// The request that is being written, and the sequence of its last message.
    open: Option<(ProduceRequest, u64)>,
    /// The sequence of the last message of each unanswered request, in order.
    unanswered: VecDeque<u64>,
}

impl RawPublisher {
    /// Connects producer number `number`.
    pub(crate) fn open(
        url: &Url,
        plan: &Plan,
        number: u32,
        metadata: &Metadata,
    ) -> Result<SocketPublisher<RawPublisher>, DriverError> {
        if plan.keys > 0 {
            return Err(DriverError::Unsupported {
                what: "?client=raw has no keys; librdkafka has".to_owned(),
            });
        }
        let partitions = plan.partitions.max(1);
        let fitting = BATCH_BYTES_MAX / (plan.size_bytes + RECORD_EXTRA_BYTES);
        let acks = match plan.acks {
            Acks::None => 0,
            Acks::One => 1,
            Acks::All => -1,
        };
        Ok(SocketPublisher {
            wire: open(url, plan, metadata)?,
            url: url.clone(),
            limits: Limits {
                batch_messages: (plan.batch_messages as usize).min(fitting).max(1),
                ..Limits::new(plan.window(HELD_MESSAGES))
            },
            waiting_bytes_max: WAITING_BYTES_MAX,
            is_answered: acks != 0,
            codec: RawPublisher {
                topic: plan.topic.clone(),
                partitions: i32::try_from(partitions).unwrap_or(i32::MAX),
                // Producers start at different partitions.
                partition: i32::try_from(number % partitions).unwrap_or(0),
                acks,
                number: 0,
                open: None,
                unanswered: VecDeque::new(),
            },
        })
    }
}

impl PublishCodec for RawPublisher {
    fn begin_request(&mut self, out: &mut Vec<u8>, _messages_max: usize, unix_ns: u64) {
        self.number = self.number.wrapping_add(1);
        let place = (self.topic.as_str(), self.partition);
        let now_ms = i64::try_from(unix_ns / 1_000_000).unwrap_or(i64::MAX);
        let request = ProduceRequest::begin(out, self.number, self.acks, place, now_ms);
        self.open = Some((request, 0));
        self.partition = (self.partition + 1) % self.partitions;
    }

    #[inline]
    fn put(&mut self, out: &mut Vec<u8>, message: &Message, source: &mut MessageSource) {
        if let Some((request, last)) = &mut self.open {
            request.push(out, source.size_bytes(), |out| source.push(message, out));
            *last = message.sequence;
        }
    }

    fn end_request(&mut self, out: &mut Vec<u8>) {
        if let Some((request, last)) = self.open.take() {
            request.end(out);
            if self.acks != 0 {
                self.unanswered.push_back(last);
            }
        }
    }

    fn answers(&mut self, wire: &mut Wire, answers: &mut Answers<'_>) -> Result<(), WireError> {
        wire.frames(Answer(ANSWER_BYTES_MAX), |body, _| {
            let code = produced(body).ok_or_else(cut_short)?;
            if let Some(last) = self.unanswered.pop_front() {
                match code {
                    0 => answers.acked_to(last),
                    code => answers.failed_to(last, &words(code)),
                }
            }
            Ok(())
        })
    }
}
