//! partitions: a group has more members than the topic has partitions, and the lag grows.

use std::time::{Duration, Instant};

use cloverleaf_doctor::Rule;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::{AppliedChange, ClientContext, Scenario, ValueIn, kafka};

/// Members of the group.
const MEMBERS: usize = 4;

/// The time of the work on a message.
const JOB: Duration = Duration::from_millis(8);

/// Messages that come: more than one member can do, and fewer than all can.
const GROUP: usize = 15;
const PAUSE: Duration = Duration::from_millis(40);

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::Partitions,
        title: "four consumers of a group share one partition, so three have nothing (seed 000)",
        library: kafka::LIBRARY,
        setting: "partitions of the topic",
        value: ValueIn::Value,
        rtt: Duration::from_millis(5),
        bandwidth: None,
        broker: &[],
        with_tls: false,
        measured_s: 8.0,
        play,
    }
}

fn play(client: &ClientContext, fix: Option<&AppliedChange>) -> Result<(), String> {
    let partitions = fix.map_or(Ok(1), AppliedChange::number)?;
    let partitions = i32::try_from(partitions).map_err(|error| error.to_string())?;
    let runtime = kafka::runtime()?;
    kafka::create_topic(&runtime, client, partitions)?;
    let config = kafka::config(client);
    let producer: FutureProducer = config.create().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let members: FuturesUnordered<_> = (0..MEMBERS).map(|_| consume(client)).collect();
        let members = members.collect::<Vec<Result<(), String>>>();
        tokio::select! {
            outcome = produce(client, &producer) => outcome,
            outcomes = members => outcomes.into_iter().collect(),
        }
    })
}

/// Waits for no answer.
async fn produce(client: &ClientContext, producer: &FutureProducer) -> Result<(), String> {
    let mut groups = tokio::time::interval(PAUSE);
    let mut number = 0_u64;
    while client.goes_on() {
        groups.tick().await;
        for _ in 0..GROUP {
            number += 1;
            let key = number.to_string();
            let record = FutureRecord::to(&client.name).payload("work").key(&key);
            let sent = producer.send_result(record);
            drop(sent.map_err(|(error, _)| error.to_string())?);
        }
    }
    Ok(())
}

async fn consume(client: &ClientContext) -> Result<(), String> {
    let mut config = kafka::config(client);
    config
        .set("group.id", &client.name)
        .set("auto.offset.reset", "earliest")
        .set("auto.commit.interval.ms", "500");
    let consumer: StreamConsumer = config.create().map_err(|error| error.to_string())?;
    let subscribed = consumer.subscribe(&[&client.name]);
    subscribed.map_err(|error| error.to_string())?;
    let mut messages = consumer.stream();
    while let Some(message) = messages.next().await {
        let begun = Instant::now();
        message.map_err(|error| error.to_string())?;
        tokio::time::sleep(JOB).await;
        client.meter.done(begun.elapsed());
    }
    Ok(())
}
