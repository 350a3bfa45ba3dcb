//! A pipeline as Elixir's Broadway builds it on a queue: its producers consume from the queue, and
//! its processors work on the messages. For story 003.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Consumer};

use super::connection::{AmqpConnection, words};
use crate::driver::{DriverError, Stop};
use crate::stories::Demand;
use crate::url::Url;
use crate::usage::GENERATOR_THREADS;
use crate::wait::Waiter;

/// Maximum of a wait before the end of the run is checked.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// The run fails if it takes this much longer than one processor alone would need.
const SPARE: Duration = Duration::from_secs(20);

/// Structure and work of a pipeline.
#[derive(Debug, Clone)]
pub(crate) struct Pipeline {
    /// The queue's argument `x-cloverleaf-dispatch`; `None`: the broker's default.
    pub(crate) dispatch: Option<&'static str>,
    pub(crate) producers: usize,
    pub(crate) processors: usize,
    /// Messages that each processor requests from each producer.
    pub(crate) demand: usize,
    /// Maximum of unacknowledged messages of a producer.
    pub(crate) prefetch: u16,
    pub(crate) messages: usize,
    /// Time that a processor needs for one message.
    pub(crate) work: Duration,
}

/// The result of a pipeline's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Played {
    /// From the first publish until all work was done.
    pub(crate) took: Duration,
    /// Messages that each processor has worked on.
    pub(crate) worked: Vec<usize>,
}

impl Played {
    /// The number of processors that got no message.
    pub(crate) fn idle(&self) -> usize {
        self.worked
            .iter()
            .filter(|messages| **messages == 0)
            .count()
    }

    /// The number of messages of the busiest processor.
    pub(crate) fn most(&self) -> usize {
        self.worked.iter().copied().max().unwrap_or(0)
    }
}

/// A message for a processor, by its producer and delivery tag.
struct Work {
    producer: usize,
    tag: u64,
}

/// A message that a processor has finished.
struct Done {
    processor: usize,
    tag: u64,
}

/// A Broadway producer: a consumer of the queue with its own connection.
struct Source {
    connection: AmqpConnection,
    channel: Channel,
    consumer: Consumer,
}

impl Pipeline {
    /// Builds the pipeline, publishes the messages, and waits until the processors have finished
    /// them.
    ///
    /// # Errors The broker does not answer, refuses a request or closes the connection, or the run
    /// takes longer than its limit.
    pub(crate) fn play(&self, url: &Url, queue: &str, stop: &Stop) -> Result<Played, DriverError> {
        let publishing = AmqpConnection::open(url, 0)?;
        let channel = publishing.channel()?;
        let mut arguments = FieldTable::default();
        if let Some(dispatch) = self.dispatch {
            let value = AMQPValue::LongString(LongString::from(dispatch));
            arguments.insert("x-cloverleaf-dispatch".into(), value);
        }
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let made = publishing.wait(channel.queue_declare(queue.into(), options, arguments))?;
        made.map_err(|error| url.refused(words(&error)))?;
        let played = self.with_queue(url, queue, (&publishing, &channel), stop);
        let options = QueueDeleteOptions::default();
        let deleted = publishing.wait(channel.queue_delete(queue.into(), options))?;
        let played = played?;
        deleted.map_err(|error| url.refused(words(&error)))?;
        Ok(played)
    }

    fn with_queue(
        &self,
        url: &Url,
        queue: &str,
        (publishing, channel): (&AmqpConnection, &Channel),
        stop: &Stop,
    ) -> Result<Played, DriverError> {
        let sources: Vec<Source> = (0..self.producers)
            .map(|_| self.source(url, queue))
            .collect::<Result<_, _>>()?;
        let over = Stop::default();
        let (tell, told) = channel_of();
        let (mailboxes, inboxes): (Vec<_>, Vec<_>) =
            (0..self.processors).map(|_| channel_of::<Work>()).unzip();
        thread::scope(|scope| {
            let mut backs = Vec::new();
            let mut threads = Vec::new();
            for (number, source) in sources.into_iter().enumerate() {
                let (back, done) = channel_of::<Done>();
                let (ready, waiter) = channel_of();
                let (mailboxes, over) = (mailboxes.clone(), &over);
                let name = format!("{GENERATOR_THREADS}source-{number}");
                let work = move || {
                    let waiter = Waiter::here();
                    // This cannot fail: the spawning thread waits for the value.
                    let _ = ready.send(Arc::clone(&waiter));
                    self.give(url, number, &source, &waiter, (&mailboxes, &done), over)
                };
                let spawned = thread::Builder::new().name(name).spawn_scoped(scope, work);
                threads.push(spawned.map_err(|error| url.gone(error))?);
                let waiter = waiter.recv().map_err(|error| url.gone(error))?;
                backs.push((back, waiter));
            }
            drop(mailboxes);
            for (processor, inbox) in inboxes.into_iter().enumerate() {
                let (backs, tell) = (backs.clone(), tell.clone());
                let name = format!("{GENERATOR_THREADS}processor-{processor}");
                let work = move || self.process(processor, &inbox, &backs, &tell);
                let spawned = thread::Builder::new().name(name).spawn_scoped(scope, work);
                spawned.map_err(|error| url.gone(error))?;
            }
            let begun = Instant::now();
            let published = self.publish(url, queue, publishing, channel);
            let played = published.and_then(|()| self.wait(url, begun, &told, stop));
            over.set();
            backs.iter().for_each(|(_, waiter)| waiter.ring());
            for thread in threads {
                match thread.join() {
                    Ok(gave) => gave?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            played
        })
    }

    fn source(&self, url: &Url, queue: &str) -> Result<Source, DriverError> {
        let connection = AmqpConnection::open(url, 0)?;
        let channel = connection.channel()?;
        let limited = channel.basic_qos(self.prefetch, BasicQosOptions::default());
        let limited = connection.wait(limited)?;
        limited.map_err(|error| url.refused(words(&error)))?;
        let subscribed = channel.basic_consume(
            queue.into(),
            ShortString::default(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = connection.wait(subscribed)?;
        let consumer = consumer.map_err(|error| url.refused(words(&error)))?;
        Ok(Source {
            connection,
            channel,
            consumer,
        })
    }

    fn publish(
        &self,
        url: &Url,
        queue: &str,
        connection: &AmqpConnection,
        channel: &Channel,
    ) -> Result<(), DriverError> {
        for number in 0..self.messages {
            let body = (number as u64).to_be_bytes();
            let sent = channel.basic_publish(
                ShortString::default(),
                queue.into(),
                BasicPublishOptions::default(),
                &body,
                BasicProperties::default(),
            );
            let sent = connection.wait(sent)?;
            sent.map_err(|error| url.gone(words(&error)))?;
        }
        Ok(())
    }

    /// The loop of a Broadway producer: hands deliveries to processors by demand, and acknowledges
    /// finished messages.
    fn give(
        &self,
        url: &Url,
        number: usize,
        source: &Source,
        waiter: &Arc<Waiter>,
        (mailboxes, done): (&[Sender<Work>], &Receiver<Done>),
        over: &Stop,
    ) -> Result<(), DriverError> {
        let waker = Waker::from(Arc::clone(waiter));
        let mut context = Context::from_waker(&waker);
        let mut consumer = source.consumer.clone();
        let mut demand = Demand::new(self.processors, self.demand);
        let give = |processor: usize, tag: u64| {
            let work = Work {
                producer: number,
                tag,
            };
            // This cannot fail: processors end after producers.
            let _ = mailboxes[processor].send(work);
        };
        while !over.is_set() {
            while let Ok(Done { processor, tag }) = done.try_recv() {
                let acked = source.channel.basic_ack(tag, BasicAckOptions::default());
                let acked = source.connection.wait(acked)?;
                acked.map_err(|error| url.gone(words(&error)))?;
                if let Some(tag) = demand.ask(processor) {
                    give(processor, tag);
                }
            }
            match consumer.poll_next_unpin(&mut context) {
                Poll::Ready(Some(Ok(delivery))) => {
                    let tag = delivery.delivery_tag;
                    if let Some(processor) = demand.came(tag) {
                        give(processor, tag);
                    }
                }
                Poll::Ready(Some(Err(error))) => return Err(url.gone(words(&error))),
                Poll::Ready(None) => return Err(url.gone("it has cancelled the consumer")),
                Poll::Pending => waiter.wait(WAIT_MAX),
            }
        }
        Ok(())
    }

    /// The loop of a processor: works on one message after the other, in the order in which it gets
    /// them.
    fn process(
        &self,
        processor: usize,
        inbox: &Receiver<Work>,
        backs: &[(Sender<Done>, Arc<Waiter>)],
        tell: &Sender<usize>,
    ) {
        while let Ok(work) = inbox.recv() {
            thread::sleep(self.work);
            let (back, waiter) = &backs[work.producer];
            let done = Done {
                processor,
                tag: work.tag,
            };
            if back.send(done).is_err() || tell.send(processor).is_err() {
                return;
            }
            waiter.ring();
        }
    }

    /// Waits until all messages are finished.
    fn wait(
        &self,
        url: &Url,
        begun: Instant,
        told: &Receiver<usize>,
        stop: &Stop,
    ) -> Result<Played, DriverError> {
        let alone = self.work * u32::try_from(self.messages).unwrap_or(u32::MAX);
        let mut worked: HashMap<usize, usize> = HashMap::new();
        let mut count = 0;
        while count < self.messages {
            if stop.is_set() {
                return Err(url.gone("it was stopped before its time"));
            }
            if begun.elapsed() > alone + SPARE {
                let left = self.messages - count;
                return Err(url.gone(format!("{left} messages have not come")));
            }
            if let Ok(processor) = told.recv_timeout(WAIT_MAX) {
                *worked.entry(processor).or_default() += 1;
                count += 1;
            }
        }
        let took = begun.elapsed();
        let worked = (0..self.processors).map(|it| worked.get(&it).copied().unwrap_or(0));
        Ok(Played {
            took,
            worked: worked.collect(),
        })
    }
}

/// A channel between threads, under a name that is not mistaken for an AMQP channel.
fn channel_of<T>() -> (Sender<T>, Receiver<T>) {
    channel()
}
