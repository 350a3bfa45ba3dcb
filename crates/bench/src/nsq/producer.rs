//! A producer: messages that are due are sent in batches.

use std::collections::VecDeque;

use crate::message_source::{Message, MessageSource};
use crate::nsq::codec::{Frame, Frames, HEARTBEAT, Publish, command};
use crate::pump::Answers;
use crate::wire::{PublishCodec, Wire, WireError};

/// While this many bytes wait to be sent, no more messages are written.
pub(super) const WAITING_BYTES_MAX: usize = 4 << 20;
/// Maximum of a publish: brokers refuse larger ones (nsqd's `max-body-size` is 5 MiB).
const BODY_BYTES_MAX: usize = 4 << 20;

/// A connection that publishes.
pub(super) struct Publisher {
    frames: Frames,
    topic: String,
    /// The publish that is being written, and the sequence of its last message.
    open: Option<(Publish, u64)>,
    /// The sequence of the last message of each publish that is not answered.
    unanswered: VecDeque<u64>,
    /// The text of the last error.
    refused: Option<String>,
}

/// Maximum of messages of a publish, if messages have this many bytes.
pub(super) fn batch_messages(plan_messages: u32, bytes: usize) -> usize {
    let fitting = BODY_BYTES_MAX / (bytes + 4);
    (plan_messages as usize).min(fitting).max(1)
}

impl Publisher {
    pub(super) fn new(frames: Frames, topic: &str) -> Publisher {
        Publisher {
            frames,
            topic: topic.to_owned(),
            open: None,
            unanswered: VecDeque::new(),
            refused: None,
        }
    }
}

impl PublishCodec for Publisher {
    fn begin_request(&mut self, out: &mut Vec<u8>, messages_max: usize, _unix_ns: u64) {
        let publish = Publish::begin(out, &self.topic, messages_max > 1);
        self.open = Some((publish, 0));
    }

    #[inline]
    fn put(&mut self, out: &mut Vec<u8>, message: &Message, source: &mut MessageSource) {
        if let Some((publish, last)) = &mut self.open {
            publish.message(out, source.size_bytes());
            *last = message.sequence;
        }
        source.push(message, out);
    }

    fn end_request(&mut self, out: &mut Vec<u8>) {
        if let Some((publish, last)) = self.open.take() {
            publish.end(out);
            self.unanswered.push_back(last);
        }
    }

    fn answers(&mut self, wire: &mut Wire, answers: &mut Answers<'_>) -> Result<(), WireError> {
        wire.frames(self.frames, |frame, out| {
            match frame {
                Frame::Response(HEARTBEAT) => command(out, &["NOP"]),
                Frame::Response(_) => {
                    if let Some(last) = self.unanswered.pop_front() {
                        answers.acked_to(last);
                    }
                }
                Frame::Error(words) => {
                    let words = String::from_utf8_lossy(words).into_owned();
                    if let Some(last) = self.unanswered.pop_front() {
                        answers.failed_to(last, &words);
                    }
                    self.refused = Some(words);
                }
                // Cannot happen without a subscription.
                Frame::Message { .. } => {}
            }
            Ok(())
        })
    }

    fn refusal(&mut self) -> Option<String> {
        self.refused.take()
    }
}
