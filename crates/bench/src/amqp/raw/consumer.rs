//! A connection that consumes: one acknowledgement per read.

use std::time::Duration;

use crate::book::Book;
use crate::driver::{Consume, DriverError, Stop};
use crate::plan::Plan;
use crate::url::Url;
use crate::wire::WireError;

use super::codec::{self, CHANNEL, Frame, put_ack, put_short};
use super::{RawConnection, closing};
use crate::amqp::consumer::QUEUE;

/// How often a consumer that gets nothing looks whether it is stopped.
const LOOK: Duration = Duration::from_millis(50);

/// The largest message that is taken, if those of the plan are not larger: RabbitMQ's own bound.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// A consumer.
pub(crate) struct RawConsumer {
    connection: RawConnection,
    queue: String,
    arriving: Arriving,
    message_bytes_max: u64,
    /// The last delivery, and the last one that was acknowledged.
    last: u64,
    acked: u64,
}

/// The message that is arriving.
#[derive(Debug, Default)]
struct Arriving {
    tag: u64,
    is_redelivered: bool,
    left_bytes: u64,
    body: Vec<u8>,
}

impl RawConsumer {
    /// Connects. A prefetch of 0 is none.
    pub(crate) fn new(
        url: &Url,
        plan: &Plan,
        number: u32,
        prefetch: u16,
    ) -> Result<RawConsumer, DriverError> {
        let mut connection = RawConnection::open(url, plan, number)?;
        connection.ask(CHANNEL, codec::QOS, codec::QOS_OK, |out| {
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&prefetch.to_be_bytes());
            out.push(0);
        })?;
        Ok(RawConsumer {
            connection,
            queue: plan.topic.clone(),
            arriving: Arriving::default(),
            message_bytes_max: MESSAGE_BYTES_MAX.max(plan.size_bytes) as u64,
            last: 0,
            acked: 0,
        })
    }

    /// Takes what has come.
    fn take(&mut self, book: &mut Book) -> Result<(), WireError> {
        let now_ns = book.clock().now_ns();
        let (arriving, last) = (&mut self.arriving, &mut self.last);
        let most = self.message_bytes_max;
        self.connection.read(|frame| {
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
                        arriving.end(&[], last, book, now_ns);
                    }
                }
                Frame::Body(part) => arriving.part(part, last, book, now_ns),
                // The answer to basic.consume among them.
                frame => closing(&frame)?,
            }
            Ok(())
        })
    }

    fn work(&mut self, book: &mut Book, stop: &Stop) -> Result<(), WireError> {
        let queue = self.queue.clone();
        self.connection.say(CHANNEL, codec::CONSUME, |out| {
            out.extend_from_slice(&[0; 2]);
            put_short(out, &queue);
            put_short(out, "");
            out.push(0);
            out.extend_from_slice(&[0; 4]);
        });
        while !stop.is_set() {
            if self.connection.exchange(LOOK)? {
                self.take(book)?;
                if self.last > self.acked {
                    self.acked = self.last;
                    put_ack(self.connection.wire.out(), self.last);
                }
            }
        }
        self.connection.wire.send()
    }
}

impl Arriving {
    #[inline]
    fn part(&mut self, part: &[u8], last: &mut u64, book: &mut Book, now_ns: u64) {
        self.left_bytes = self.left_bytes.saturating_sub(part.len() as u64);
        if self.left_bytes == 0 && self.body.is_empty() {
            return self.end(part, last, book, now_ns);
        }
        self.body.extend_from_slice(part);
        if self.left_bytes == 0 {
            let body = std::mem::take(&mut self.body);
            self.end(&body, last, book, now_ns);
            self.body = body;
        }
    }

    /// It is whole.
    #[inline]
    fn end(&mut self, body: &[u8], last: &mut u64, book: &mut Book, now_ns: u64) {
        let stream = (!self.is_redelivered).then_some(QUEUE);
        book.came(body, stream, now_ns);
        *last = self.tag;
    }
}

impl Consume for RawConsumer {
    fn run(&mut self, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let result = self.work(book, stop);
        result.map_err(|error| self.connection.error(error))
    }
}
