//! The healthy clients with librdkafka.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};

use super::{ClientContext, kafka};

type Client = (&'static str, fn(&ClientContext) -> Result<(), String>);

/// All of them.
pub(super) const CLIENTS: &[Client] = &[
    ("idle-producer", idle),
    ("steady", steady),
    ("bursts", bursts),
    ("idempotent", idempotent),
    ("group", group),
];

/// A producer that has said what it had to say.
fn idle(client: &ClientContext) -> Result<(), String> {
    produce(client, &kafka::config(client), 1, Duration::from_secs(20))
}

/// One message every now and then, with the library's defaults.
fn steady(client: &ClientContext) -> Result<(), String> {
    produce(client, &kafka::config(client), 1, Duration::from_millis(50))
}

/// Much at once, and then nothing for a while.
fn bursts(client: &ClientContext) -> Result<(), String> {
    let mut config = kafka::config(client);
    config.set("linger.ms", "20");
    produce(client, &config, 1_000, Duration::from_secs(2))
}

/// 2,000 messages per second in order, exactly once.
fn idempotent(client: &ClientContext) -> Result<(), String> {
    let mut config = kafka::config(client);
    config.set("enable.idempotence", "true");
    produce(client, &config, 50, Duration::from_millis(25))
}

/// So many messages each time, none of them awaited.
fn produce(
    client: &ClientContext,
    config: &ClientConfig,
    count: usize,
    pause: Duration,
) -> Result<(), String> {
    let runtime = kafka::runtime()?;
    kafka::create_topic(&runtime, client, 1)?;
    runtime.block_on(send(client, config, count, pause))
}

async fn send(
    client: &ClientContext,
    config: &ClientConfig,
    count: usize,
    pause: Duration,
) -> Result<(), String> {
    let producer: FutureProducer = config.create().map_err(|error| error.to_string())?;
    let payload = [b'x'; 300];
    let mut ticks = tokio::time::interval(pause);
    while client.goes_on() {
        // So that the end of the story is not missed for long.
        tokio::select! {
            _ = ticks.tick() => {}
            () = tokio::time::sleep(Duration::from_millis(300)) => continue,
        }
        for _ in 0..count {
            let record: FutureRecord<'_, (), _> = FutureRecord::to(&client.name).payload(&payload);
            let sent = producer.send_result(record);
            drop(sent.map_err(|(error, _)| error.to_string())?);
        }
    }
    let flushed = producer.flush(Duration::from_secs(5));
    flushed.map_err(|error| error.to_string())
}

/// Two consumers of four partitions, and who fills these.
fn group(client: &ClientContext) -> Result<(), String> {
    let runtime = kafka::runtime()?;
    kafka::create_topic(&runtime, client, 4)?;
    let consume = || async {
        let mut config = kafka::config(client);
        config
            .set("group.id", &client.name)
            .set("auto.offset.reset", "earliest");
        let consumer: StreamConsumer = config.create().map_err(|error| error.to_string())?;
        let subscribed = consumer.subscribe(&[&client.name]);
        subscribed.map_err(|error| error.to_string())?;
        let mut messages = consumer.stream();
        while let Some(message) = messages.next().await {
            message.map_err(|error| error.to_string())?;
        }
        Ok(())
    };
    let config = kafka::config(client);
    runtime.block_on(async {
        let members: FuturesUnordered<_> = (0..2).map(|_| consume()).collect();
        let members = members.collect::<Vec<Result<(), String>>>();
        tokio::select! {
            outcome = send(client, &config, 20, Duration::from_millis(40)) => outcome,
            outcomes = members => outcomes.into_iter().collect(),
        }
    })
}
