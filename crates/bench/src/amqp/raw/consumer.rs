//! A consumer that sends one acknowledgement for each read from the socket.

use crate::driver::DriverError;
use crate::plan::Plan;
use crate::pump::Arrivals;
use crate::url::Url;
use crate::wire::{ReceiveCodec, SocketReceiver, Wire, WireError};

use super::codec::{self, CHANNEL, Frame, Frames, put_ack, put_method, put_short};
use super::{RawConnection, closing};
use crate::amqp::consumer::QUEUE;

/// The largest message that is accepted, unless the plan's messages are larger. It is RabbitMQ's
/// own bound.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// A consumer.
pub(crate) struct RawReceiver {
    frames: Frames,
    queue: String,
    arriving: Arriving,
    message_bytes_max: u64,
    /// The delivery tag of the last acknowledged message.
    acked: u64,
}

/// The message whose frames are arriving, and the delivery tag of the last complete one.
#[derive(Debug, Default)]
struct Arriving {
    tag: u64,
    is_redelivered: bool,
    left_bytes: u64,
    body: Vec<u8>,
    last: u64,
}

impl RawReceiver {
    /// Connects. A prefetch of 0 is unlimited.
    pub(crate) fn open(
        url: &Url,
        plan: &Plan,
        number: u32,
        prefetch: u16,
    ) -> Result<SocketReceiver<RawReceiver>, DriverError> {
        let mut connection = RawConnection::open(url, plan, number)?;
        connection.ask(CHANNEL, codec::QOS, codec::QOS_OK, |out| {
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&prefetch.to_be_bytes());
            out.push(0);
        })?;
        Ok(SocketReceiver {
            wire: connection.wire,
            url: connection.url,
            codec: RawReceiver {
                frames: connection.frames,
                queue: plan.topic.clone(),
                arriving: Arriving::default(),
                message_bytes_max: MESSAGE_BYTES_MAX.max(plan.size_bytes) as u64,
                acked: 0,
            },
        })
    }
}

impl ReceiveCodec for RawReceiver {
    fn start(&mut self, out: &mut Vec<u8>) {
        put_method(out, CHANNEL, codec::CONSUME, |out| {
            out.extend_from_slice(&[0; 2]);
            put_short(out, &self.queue);
            put_short(out, "");
            out.push(0);
            out.extend_from_slice(&[0; 4]);
        });
    }

    fn messages(&mut self, wire: &mut Wire, arrivals: &mut Arrivals<'_>) -> Result<(), WireError> {
        let (arriving, most) = (&mut self.arriving, self.message_bytes_max);
        wire.frames(self.frames, |frame, _| {
            match frame {
                Frame::Deliver {
                    tag,
                    is_redelivered,
                } => (arriving.tag, arriving.is_redelivered) = (tag, is_redelivered),
                Frame::Header { body_bytes } if body_bytes > most => {
                    return Err(WireError::Protocol(format!(
                        "it announced a message of {body_bytes} bytes"
                    )));
                }
                Frame::Header { body_bytes } => {
                    arriving.left_bytes = body_bytes;
                    arriving.body.clear();
                    if body_bytes == 0 {
                        arriving.end(&[], arrivals);
                    }
                }
                Frame::Body(part) => arriving.part(part, arrivals),
                // Other frames, such as `basic.consume-ok`, are ignored if they close nothing.
                frame => closing(&frame)?,
            }
            Ok(())
        })?;
        if arriving.last > self.acked {
            self.acked = arriving.last;
            put_ack(wire.out(), self.acked);
        }
        Ok(())
    }
}

impl Arriving {
    #[inline]
    fn part(&mut self, part: &[u8], arrivals: &mut Arrivals<'_>) {
        self.left_bytes = self.left_bytes.saturating_sub(part.len() as u64);
        if self.left_bytes == 0 && self.body.is_empty() {
            return self.end(part, arrivals);
        }
        self.body.extend_from_slice(part);
        if self.left_bytes == 0 {
            let body = std::mem::take(&mut self.body);
            self.end(&body, arrivals);
            self.body = body;
        }
    }

    /// Records the message, which is complete.
    #[inline]
    fn end(&mut self, body: &[u8], arrivals: &mut Arrivals<'_>) {
        let stream = (!self.is_redelivered).then_some(QUEUE);
        arrivals.came(body, stream);
        self.last = self.tag;
    }
}
