//! A consumer through lapin.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};

use crate::driver::DriverError;
use crate::plan::Plan;
use crate::pump::{Arrivals, ReceivePort};
use crate::url::Url;
use crate::wait::Waiter;

use super::connection::{AmqpConnection, words};

/// Maximum of messages that one acknowledgement covers; a small prefetch makes it fewer.
const ACK_AFTER: u64 = 200;
/// The stream number of a queue, whose messages arrive in order.
pub(super) const QUEUE: u32 = 0;

/// An acknowledgement that is being sent.
type Acking = Pin<Box<dyn Future<Output = lapin::Result<()>> + Send>>;

/// A consumer.
pub(super) struct AmqpReceiver {
    acking: Option<Acking>,
    consumer: Option<Consumer>,
    channel: Channel,
    connection: AmqpConnection,
    url: Url,
    queue: ShortString,
    ack_after: u64,
    /// Delivery tags of the last delivery and of the last acknowledged one.
    last: u64,
    acked: u64,
    waiter: Arc<Waiter>,
}

impl AmqpReceiver {
    /// Connects. A prefetch of 0 is unlimited.
    pub(super) fn new(
        url: &Url,
        plan: &Plan,
        number: u32,
        prefetch: u16,
    ) -> Result<AmqpReceiver, DriverError> {
        let connection = AmqpConnection::open(url, number)?;
        let channel = connection.channel()?;
        let limited = channel.basic_qos(prefetch, BasicQosOptions::default());
        let limited = connection.wait(limited)?;
        limited.map_err(|error| url.refused(words(&error)))?;
        Ok(AmqpReceiver {
            acking: None,
            consumer: None,
            channel,
            connection,
            url: url.clone(),
            queue: plan.topic.as_str().into(),
            // After half of the prefetch, so that the broker goes on sending during the
            // acknowledgement.
            ack_after: match prefetch {
                0 => ACK_AFTER,
                prefetch => (u64::from(prefetch) / 2).clamp(1, ACK_AFTER),
            },
            last: 0,
            acked: 0,
            waiter: Waiter::here(),
        })
    }

    /// Acknowledges every message that was delivered.
    fn ack(&mut self) -> Acking {
        let (channel, tag) = (self.channel.clone(), self.last);
        self.acked = tag;
        Box::pin(async move {
            let options = BasicAckOptions { multiple: true };
            channel.basic_ack(tag, options).await
        })
    }
}

impl ReceivePort for AmqpReceiver {
    /// Begins to consume. An earlier `basic.consume` would let the broker send up to the prefetch
    /// before the measurement starts. No message is missed, because the queue keeps them.
    fn start(&mut self) -> Result<(), DriverError> {
        self.waiter = Waiter::here();
        let subscribed = self.channel.basic_consume(
            self.queue.clone(),
            ShortString::default(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let subscribed = self.connection.wait(subscribed)?;
        self.consumer = Some(subscribed.map_err(|error| self.url.refused(words(&error)))?);
        Ok(())
    }

    fn receive(&mut self, most_ns: u64, arrivals: &mut Arrivals<'_>) -> Result<(), DriverError> {
        let waker = Waker::from(Arc::clone(&self.waiter));
        let mut context = Context::from_waker(&waker);
        while self.last < self.acked + self.ack_after
            && let Some(consumer) = &mut self.consumer
            && let Poll::Ready(came) = consumer.poll_next_unpin(&mut context)
        {
            let came = came.ok_or_else(|| self.url.gone("it has cancelled the consumer"))?;
            let delivery = came.map_err(|error| self.url.gone(words(&error)))?;
            let stream = (!delivery.redelivered).then_some(QUEUE);
            arrivals.came(&delivery.data, stream);
            self.last = delivery.delivery_tag;
        }
        if let Some(sending) = &mut self.acking
            && let Poll::Ready(sent) = sending.as_mut().poll(&mut context)
        {
            sent.map_err(|error| self.url.gone(words(&error)))?;
            self.acking = None;
        }
        if self.acking.is_none() && self.last > self.acked {
            self.acking = Some(self.ack());
        } else {
            self.waiter.wait(Duration::from_nanos(most_ns));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), DriverError> {
        let late = (self.last > self.acked).then(|| self.ack());
        for sending in self.acking.take().into_iter().chain(late) {
            // If the acknowledgement fails, the broker requeues the messages. That harms no
            // measurement: this consumer has ended.
            let _ = self.connection.wait(sending)?;
        }
        Ok(())
    }
}
