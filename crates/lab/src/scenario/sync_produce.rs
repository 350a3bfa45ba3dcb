//! sync-produce: a program waits for the answer to each message before it sends the next.

use std::time::{Duration, Instant};

use cloverleaf_doctor::Rule;
use futures_util::{StreamExt, stream};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::{AppliedChange, ClientContext, Scenario, ValueIn, kafka};

/// Bytes of a message.
const SIZE_BYTES: usize = 500;

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::SyncProduce,
        title: "a producer awaits each message before it sends the next (seed 000)",
        library: kafka::LIBRARY,
        setting: "produce() without waiting for each message",
        value: ValueIn::Code("buffer_unordered("),
        rtt: Duration::from_millis(20),
        bandwidth: None,
        broker: &[],
        with_tls: false,
        measured_s: 6.0,
        play,
    }
}

fn play(client: &ClientContext, fix: Option<&AppliedChange>) -> Result<(), String> {
    let in_flight = fix.map_or(Ok(1), AppliedChange::number)?;
    let runtime = kafka::runtime()?;
    kafka::create_topic(&runtime, client, 1)?;
    let mut config = kafka::config(client);
    // Otherwise a message waits for company, which is another story.
    config.set("linger.ms", "0");
    let producer: FutureProducer = config.create().map_err(|error| error.to_string())?;
    runtime.block_on(produce(client, &producer, in_flight))
}

/// Sends so many at a time, each right after an answer.
pub(super) async fn produce(
    client: &ClientContext,
    producer: &FutureProducer,
    in_flight: usize,
) -> Result<(), String> {
    let payload = vec![b'x'; SIZE_BYTES];
    let one = || async {
        let begun = Instant::now();
        let record: FutureRecord<'_, (), _> = FutureRecord::to(&client.name).payload(&payload);
        let sent = producer.send(record, Duration::from_secs(10)).await;
        sent.map_err(|(error, _)| error.to_string())?;
        client.meter.done(begun.elapsed());
        Ok::<(), String>(())
    };
    let messages = stream::repeat(()).take_while(|()| async { client.goes_on() });
    let mut sent = std::pin::pin!(messages.map(|()| one()).buffer_unordered(in_flight));
    while let Some(outcome) = sent.next().await {
        outcome?;
    }
    Ok(())
}
