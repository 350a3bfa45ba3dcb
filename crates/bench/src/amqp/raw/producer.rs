//! A producer that sends all due messages, up to the window, in one write.

use crate::driver::DriverError;
use crate::message_source::{Message, MessageSource};
use crate::plan::{Acks, Plan};
use crate::pump::{Answers, Limits};
use crate::url::Url;
use crate::wire::{PublishCodec, SocketPublisher, Wire, WireError};

use super::codec::{self, FRAME_EXTRA_BYTES, Frame, Frames, publish_head, put_body};
use super::{RawConnection, closing};
use crate::amqp::{NACKED, delivery_mode};

/// No more messages are encoded while this many bytes wait for the kernel to accept them.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Maximum of messages in flight if the plan sets none.
const HELD_MESSAGES: u32 = 100_000;

/// A producer. The broker numbers the publishes of a channel from 1, the sequences here begin at 0.
pub(crate) struct RawPublisher {
    frames: Frames,
    /// The encoded frames of `basic.publish` and the content header, the same for every message.
    head: Vec<u8>,
    /// Buffer for a message that does not fit into one frame.
    body: Vec<u8>,
}

impl RawPublisher {
    /// Connects, and enables publisher confirms except with `--acks none`.
    pub(crate) fn open(
        url: &Url,
        plan: &Plan,
        number: u32,
    ) -> Result<SocketPublisher<RawPublisher>, DriverError> {
        let mut connection = RawConnection::open(url, plan, number)?;
        let is_confirmed = plan.acks != Acks::None;
        if is_confirmed {
            let (confirm, confirm_ok) = (codec::CONFIRM, codec::CONFIRM_OK);
            connection.ask(codec::CHANNEL, confirm, confirm_ok, |out| out.push(0))?;
        }
        Ok(SocketPublisher {
            wire: connection.wire,
            url: connection.url,
            limits: Limits::new(plan.window(HELD_MESSAGES)),
            waiting_bytes_max: WAITING_BYTES_MAX,
            is_answered: is_confirmed,
            codec: RawPublisher {
                frames: connection.frames,
                head: publish_head(&plan.topic, plan.size_bytes, delivery_mode(plan.acks)),
                body: Vec::new(),
            },
        })
    }
}

impl PublishCodec for RawPublisher {
    #[inline]
    fn put(&mut self, out: &mut Vec<u8>, message: &Message, source: &mut MessageSource) {
        out.extend_from_slice(&self.head);
        let most = self.frames.bytes_max - FRAME_EXTRA_BYTES;
        if source.size_bytes() <= most {
            put_body(out, |out| source.push(message, out));
            return;
        }
        self.body.clear();
        source.push(message, &mut self.body);
        for part in self.body.chunks(most) {
            put_body(out, |out| out.extend_from_slice(part));
        }
    }

    fn answers(&mut self, wire: &mut Wire, answers: &mut Answers<'_>) -> Result<(), WireError> {
        wire.frames(self.frames, |frame, _| {
            match frame {
                Frame::Answer {
                    tag,
                    is_multiple,
                    is_ack,
                } => {
                    // The delivery tag 0 means all messages so far.
                    let message = tag.checked_sub(1).unwrap_or(u64::MAX);
                    match (is_multiple, is_ack) {
                        (true, true) => answers.acked_to(message),
                        (true, false) => answers.failed_to(message, &NACKED),
                        (false, true) => answers.acked(message),
                        (false, false) => answers.failed(message, &NACKED),
                    }
                }
                frame => closing(&frame)?,
            }
            Ok(())
        })
    }
}
