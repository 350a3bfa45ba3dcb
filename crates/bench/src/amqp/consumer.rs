//! A connection that consumes through lapin.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};

use crate::book::Book;
use crate::driver::{Consume, DriverError, Stop};
use crate::plan::Plan;
use crate::url::Url;
use crate::wait::Waiter;

use super::connection::{AmqpConnection, words};

/// How long to wait at most before stop is looked at.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Messages of one acknowledgement, where the prefetch does not ask for fewer.
const ACK_AFTER: u64 = 200;
/// The stream of a queue.
pub(super) const QUEUE: u32 = 0;

/// A consumer.
pub(super) struct AmqpConsumer {
    channel: Channel,
    connection: AmqpConnection,
    url: Url,
    queue: ShortString,
    ack_after: u64,
}

impl AmqpConsumer {
    /// Connects. A prefetch of 0 is none.
    pub(super) fn new(
        url: &Url,
        plan: &Plan,
        number: u32,
        prefetch: u16,
    ) -> Result<AmqpConsumer, DriverError> {
        let connection = AmqpConnection::open(url, number)?;
        let channel = connection.channel()?;
        let limited = channel.basic_qos(prefetch, BasicQosOptions::default());
        let limited = connection.wait(limited)?;
        limited.map_err(|error| url.refused(words(&error)))?;
        Ok(AmqpConsumer {
            channel,
            connection,
            url: url.clone(),
            queue: plan.topic.as_str().into(),
            // At half of it, so that the broker goes on sending meanwhile.
            ack_after: match prefetch {
                0 => ACK_AFTER,
                prefetch => (u64::from(prefetch) / 2).clamp(1, ACK_AFTER),
            },
        })
    }

    /// Begins to consume. Not before it is measured: the broker sends ahead what the prefetch
    /// allows. Nothing is missed, because the queue keeps it.
    fn subscribe(&self) -> Result<Consumer, DriverError> {
        let subscribed = self.channel.basic_consume(
            self.queue.clone(),
            ShortString::default(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let subscribed = self.connection.wait(subscribed)?;
        subscribed.map_err(|error| self.url.refused(words(&error)))
    }

    /// Acknowledges all up to this delivery.
    fn ack(&self, tag: u64) -> impl Future<Output = lapin::Result<()>> + use<> {
        let channel = self.channel.clone();
        async move {
            let options = BasicAckOptions { multiple: true };
            channel.basic_ack(tag, options).await
        }
    }
}

impl Consume for AmqpConsumer {
    fn run(&mut self, book: &mut Book, stop: &Stop) -> Result<(), DriverError> {
        let mut consumer = self.subscribe()?;
        let clock = book.clock();
        let waiter = Waiter::here();
        let waker = Waker::from(Arc::clone(&waiter));
        let mut context = Context::from_waker(&waker);
        let mut acking: Option<Pin<Box<dyn Future<Output = lapin::Result<()>>>>> = None;
        // The last delivery, and the last one that was acknowledged.
        let (mut last, mut acked) = (0, 0);
        while !stop.is_set() {
            let mut now_ns = 0;
            while last < acked + self.ack_after {
                match consumer.poll_next_unpin(&mut context) {
                    Poll::Ready(Some(Ok(delivery))) => {
                        if now_ns == 0 {
                            now_ns = clock.now_ns();
                        }
                        let stream = (!delivery.redelivered).then_some(QUEUE);
                        book.came(&delivery.data, stream, now_ns);
                        last = delivery.delivery_tag;
                    }
                    Poll::Ready(Some(Err(error))) => return Err(self.url.gone(words(&error))),
                    Poll::Ready(None) => {
                        return Err(self.url.gone("it has cancelled the consumer"));
                    }
                    Poll::Pending => break,
                }
            }
            if let Some(sending) = &mut acking {
                match sending.as_mut().poll(&mut context) {
                    Poll::Ready(Ok(())) => acking = None,
                    Poll::Ready(Err(error)) => return Err(self.url.gone(words(&error))),
                    Poll::Pending => {}
                }
            }
            if acking.is_none() && last > acked {
                acked = last;
                acking = Some(Box::pin(self.ack(last)));
            } else {
                waiter.wait(WAIT_MAX);
            }
        }
        if let Some(sending) = acking {
            // Messages that are acknowledged too late come again, when no consumer is left.
            let _ = self.connection.wait(sending)?;
        }
        if last > acked {
            let _ = self.connection.wait(self.ack(last))?;
        }
        Ok(())
    }
}
