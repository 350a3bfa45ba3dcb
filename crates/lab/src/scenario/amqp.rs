//! Programs with lapin: publishers, and consumers that share a number of workers.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{TryStreamExt, stream};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;

use super::{AppliedChange, ClientContext, tls};
use crate::broker::BrokerListener;

/// The name that lapin gives itself.
pub(super) const LIBRARY: &str = "lapin";

/// How often a client checks whether the scenario is over.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Messages of a backlog that are published before their confirms are awaited.
const PUBLISHED_AT_ONCE: usize = 1_000;

/// A program, and its mistake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AmqpProgram {
    /// Messages in the queue before the consumers start.
    pub(super) backlog: usize,
    /// Messages that are published at once, and milliseconds from one such group to the next.
    pub(super) publishes: Option<(usize, u64)>,
    /// Channels that consume.
    pub(super) consumers: usize,
    /// Prefetch count of each consumer.
    pub(super) prefetch: u16,
    /// Messages of all consumers that are worked on at the same time.
    pub(super) workers: usize,
    /// Milliseconds of work for a message.
    pub(super) job_ms: u64,
    /// Publisher and consumers share one connection.
    pub(super) is_one_connection: bool,
    /// It connects through a TLS tunnel, as programs do whose library has no TLS.
    pub(super) over_tls: bool,
    pub(super) change: AlteredPart,
}

/// The part of a program that a change alters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum AlteredPart {
    /// The prefetch count becomes the value of the change.
    Prefetch,
    /// There are as many workers as the prefetch count.
    Workers,
    /// The connection is kept, where each message had one of its own.
    Connection,
}

impl AmqpProgram {
    /// A consumer with this prefetch count, on a queue that stays empty.
    pub(super) const fn consuming(prefetch: u16) -> AmqpProgram {
        AmqpProgram {
            backlog: 0,
            publishes: None,
            consumers: 1,
            prefetch,
            workers: 1,
            job_ms: 0,
            is_one_connection: false,
            over_tls: false,
            change: AlteredPart::Prefetch,
        }
    }

    /// A producer that publishes one message after the other, each on a connection of its own.
    pub(super) const CONNECTING: AmqpProgram = AmqpProgram {
        consumers: 0,
        change: AlteredPart::Connection,
        ..AmqpProgram::consuming(0)
    };

    /// Runs until the scenario is over or something fails.
    pub(super) fn run(
        &self,
        context: &ClientContext,
        change: Option<&AppliedChange>,
    ) -> Result<(), String> {
        let mut program = *self;
        match (self.change, change) {
            (AlteredPart::Prefetch, Some(change)) => {
                let prefetch = u16::try_from(change.number()?);
                program.prefetch = prefetch.map_err(|error| error.to_string())?;
            }
            (AlteredPart::Workers, Some(_)) => program.workers = self.prefetch.into(),
            (AlteredPart::Connection, _) => {
                return until_over(context, publish_alone(context, change.is_some()));
            }
            (_, None) => {}
        }
        until_over(context, program.work(context))
    }

    async fn work(&self, context: &ClientContext) -> Outcome {
        let address = if self.over_tls {
            tls::tunnel(context).await.map_err(io_error)?.to_string()
        } else {
            context.addresses.text(BrokerListener::Amqp)
        };
        if self.backlog > 0 {
            let connection = connect(context, &address).await?;
            let channel = publisher(context, &connection).await?;
            for _ in 0..self.backlog / PUBLISHED_AT_ONCE {
                publish(context, &channel, PUBLISHED_AT_ONCE).await?;
            }
            connection.close(200, "all is published".into()).await?;
        }
        let first = connect(context, &address).await?;
        let does_both = self.publishes.is_some() && self.consumers > 0;
        let second = if does_both && !self.is_one_connection {
            Some(connect(context, &address).await?)
        } else {
            None
        };
        let consume = self.consume(context, second.as_ref().unwrap_or(&first));
        tokio::try_join!(self.publish(context, &first), consume).map(|((), ())| ())
    }

    /// Publishes in groups, each of which is confirmed before the next.
    async fn publish(&self, context: &ClientContext, connection: &Connection) -> Outcome {
        let Some((count, ms)) = self.publishes else {
            return Ok(());
        };
        let channel = publisher(context, connection).await?;
        let mut groups = tokio::time::interval(Duration::from_millis(ms));
        loop {
            groups.tick().await;
            publish(context, &channel, count).await?;
        }
    }

    /// Consumes messages and works on them.
    async fn consume(&self, context: &ClientContext, connection: &Connection) -> Outcome {
        if self.consumers == 0 {
            return Ok(());
        }
        let job = Duration::from_millis(self.job_ms);
        let mut channels = Vec::new();
        let mut consumers = Vec::new();
        for _ in 0..self.consumers {
            let (channel, consumer) = consumer(context, connection, self.prefetch).await?;
            channels.push(channel);
            consumers.push(consumer);
        }
        let workers = &Semaphore::new(self.workers);
        // The meter counts a message as held from its delivery on, also while no worker is free.
        let work = |delivery: Delivery| async move {
            let taken = Instant::now();
            if !job.is_zero() {
                context.meter.delivered();
            }
            // No error: the semaphore is never closed.
            let _worker = workers.acquire().await;
            let begun = Instant::now();
            if !job.is_zero() {
                tokio::time::sleep(job).await;
            }
            delivery.ack(BasicAckOptions::default()).await?;
            if job.is_zero() {
                context.meter.done(begun.elapsed())
            } else {
                context.meter.acknowledged(taken.elapsed())
            }
            Ok(())
        };
        let deliveries = stream::select_all(consumers);
        deliveries.try_for_each_concurrent(None, work).await
    }
}

/// Runs a client until it fails or the scenario is over.
fn until_over(context: &ClientContext, work: impl Future<Output = Outcome>) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let over = async {
        while context.is_running() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    runtime.block_on(async {
        tokio::select! {
            outcome = work => outcome.map_err(|error| error.to_string()),
            () = over => Ok(()),
        }
    })
}

/// How a client ends.
type Outcome = Result<(), lapin::Error>;

fn io_error(error: io::Error) -> lapin::Error {
    lapin::ErrorKind::IOError(Arc::new(error)).into()
}

async fn connect(context: &ClientContext, address: &str) -> lapin::Result<Connection> {
    let url = format!("amqp://guest:guest@{address}/%2f");
    let name = format!("lab-{}", context.name);
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    Connection::connect(&url, properties).await
}

/// A channel on which the client's queue is declared, as programs do on every channel.
async fn channel(context: &ClientContext, connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    let (name, options) = (context.name.as_str().into(), QueueDeclareOptions::default());
    channel
        .queue_declare(name, options, FieldTable::default())
        .await?;
    Ok(channel)
}

/// A channel with publisher confirms.
async fn publisher(context: &ClientContext, connection: &Connection) -> lapin::Result<Channel> {
    let channel = channel(context, connection).await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    Ok(channel)
}

/// A consumer with this prefetch count, and its channel.
async fn consumer(
    context: &ClientContext,
    connection: &Connection,
    prefetch: u16,
) -> lapin::Result<(Channel, lapin::Consumer)> {
    let channel = channel(context, connection).await?;
    channel
        .basic_qos(prefetch, BasicQosOptions::default())
        .await?;
    let consumer = channel.basic_consume(
        context.name.as_str().into(),
        "".into(),
        Default::default(),
        FieldTable::default(),
    );
    Ok((channel.clone(), consumer.await?))
}

/// Publishes `count` messages, and waits until all of them are confirmed.
async fn publish(context: &ClientContext, channel: &Channel, count: usize) -> Outcome {
    for _ in 0..count {
        let published = channel.basic_publish(
            "".into(),
            context.name.as_str().into(),
            BasicPublishOptions::default(),
            b"a message of the lab",
            BasicProperties::default(),
        );
        published.await?;
    }
    channel.wait_for_confirms().await.map(|_| ())
}

/// Publishes one message after the other, all on one connection if that is kept.
async fn publish_alone(context: &ClientContext, is_kept: bool) -> Outcome {
    let address = context.addresses.text(BrokerListener::Amqp);
    let mut open: Option<(Connection, Channel)> = None;
    loop {
        let begun = Instant::now();
        let (connection, channel) = match open.take() {
            Some(open) => open,
            None => {
                let connection = connect(context, &address).await?;
                let channel = publisher(context, &connection).await?;
                (connection, channel)
            }
        };
        publish(context, &channel, 1).await?;
        if is_kept {
            open = Some((connection, channel))
        } else {
            connection.close(200, "sent".into()).await?
        }
        context.meter.done(begun.elapsed());
    }
}
