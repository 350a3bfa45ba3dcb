//! A producer through lapin.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};

use crate::driver::{DriverError, Produce};
use crate::message_source::{Message, MessageSource};
use crate::plan::{Acks, Plan};
use crate::pump::{Answers, Limits, NotTaken, Producer, PublishPort};
use crate::url::Url;
use crate::wait::Waiter;

use super::connection::{AmqpConnection, words};
use super::{HELD_MESSAGES, NACKED, delivery_mode};

/// The sequence of a message, and its confirmation or error.
type Answer = (u64, lapin::Result<Confirmation>);

/// A producer. `F` is the type of the future that [`publish`] returns, which cannot be named.
struct AmqpPublisher<F> {
    publish: fn(Channel, ShortString, BasicProperties, Vec<u8>, u64) -> F,
    pending: FuturesUnordered<F>,
    channel: Channel,
    /// Kept because dropping it closes the connection.
    _connection: AmqpConnection,
    url: Url,
    queue: ShortString,
    properties: BasicProperties,
    window: u32,
    waiter: Arc<Waiter>,
    waker: Waker,
}

/// Connects, and enables publisher confirms except with `--acks none`.
pub(super) fn producer(
    url: &Url,
    plan: &Plan,
    number: u32,
) -> Result<Box<dyn Produce>, DriverError> {
    let connection = AmqpConnection::open(url, number)?;
    let channel = connection.channel()?;
    if plan.acks != Acks::None {
        let asked = channel.confirm_select(ConfirmSelectOptions::default());
        let answer = connection.wait(asked)?;
        answer.map_err(|error| url.refused(words(&error)))?;
    }
    let waiter = Waiter::here();
    Ok(Box::new(Producer(AmqpPublisher {
        publish,
        pending: FuturesUnordered::new(),
        channel,
        _connection: connection,
        url: url.clone(),
        queue: plan.topic.as_str().into(),
        properties: BasicProperties::default().with_delivery_mode(delivery_mode(plan.acks)),
        window: plan.window(HELD_MESSAGES),
        waker: Waker::from(Arc::clone(&waiter)),
        waiter,
    })))
}

/// Publishes one message. The first poll passes the message to lapin.
async fn publish(
    channel: Channel,
    queue: ShortString,
    properties: BasicProperties,
    value: Vec<u8>,
    sequence: u64,
) -> Answer {
    let options = BasicPublishOptions::default();
    let exchange = ShortString::default();
    let sent = channel.basic_publish(exchange, queue, options, &value, properties);
    let answer = match sent.await {
        Ok(confirm) => confirm.await,
        Err(error) => Err(error),
    };
    (sequence, answer)
}

impl<F: Future<Output = Answer>> AmqpPublisher<F> {
    /// Polls the pending publishes: passes new messages to lapin, and takes the confirmations that
    /// have arrived. Returns whether there was any.
    fn serve(&mut self, answers: &mut Answers<'_>) -> Result<bool, DriverError> {
        let mut context = Context::from_waker(&self.waker);
        let mut has_come = false;
        while let Poll::Ready(Some((message, answer))) = self.pending.poll_next_unpin(&mut context)
        {
            has_come = true;
            match answer {
                Ok(Confirmation::Nack(_)) => answers.failed(message, &NACKED),
                Ok(_) => answers.acked(message),
                Err(error) => {
                    let words = words(&error);
                    answers.failed(message, &words);
                    return Err(self.url.gone(words));
                }
            }
        }
        Ok(has_come)
    }
}

impl<F: Future<Output = Answer> + Send> PublishPort for AmqpPublisher<F> {
    fn url(&self) -> &Url {
        &self.url
    }

    fn limits(&self, _feed: &MessageSource) -> Limits {
        Limits {
            look_after_messages: 1,
            ..Limits::new(self.window)
        }
    }

    fn start(&mut self) {
        self.waiter = Waiter::here();
        self.waker = Waker::from(Arc::clone(&self.waiter));
    }

    fn put(&mut self, message: &Message, source: &mut MessageSource) -> Result<(), NotTaken> {
        let mut value = Vec::with_capacity(source.size_bytes());
        source.push(message, &mut value);
        let (channel, queue) = (self.channel.clone(), self.queue.clone());
        let properties = self.properties.clone();
        let publish = self.publish;
        self.pending
            .push(publish(channel, queue, properties, value, message.sequence));
        Ok(())
    }

    fn exchange(&mut self, most_ns: u64, answers: &mut Answers<'_>) -> Result<(), DriverError> {
        if !self.serve(answers)? && most_ns > 0 {
            self.waiter.wait(Duration::from_nanos(most_ns));
            self.serve(answers)?;
        }
        Ok(())
    }
}
