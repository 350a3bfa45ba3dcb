//! one-connection: a producer may have four requests in flight, and its batches are small, so that
//! most of its messages wait in the client.

use std::time::{Duration, Instant};

use cloverleaf_doctor::Rule;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::{AppliedChange, ClientContext, Scenario, ValueIn, kafka};

/// Requests in flight, to which the program has lowered them: so few retries overtake.
const IN_FLIGHT: &str = "4";

/// Messages of a batch, which the program has set so.
const BATCH: &str = "3";

/// Messages that the program would like to send: more than it can, and hardly less than it can with
/// the change. With more than that it would need a further one.
const GROUP: usize = 48;
const PAUSE: Duration = Duration::from_millis(25);

/// Messages that may wait in the client.
const WAITING: &str = "1000000";

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::OneConnection,
        title: "a producer with small batches may have four requests in flight (seed 000)",
        library: kafka::LIBRARY,
        setting: "producers",
        value: ValueIn::Value,
        rtt: Duration::from_millis(20),
        bandwidth: None,
        broker: &[],
        with_tls: false,
        measured_s: 6.0,
        play,
    }
}

fn play(client: &ClientContext, fix: Option<&AppliedChange>) -> Result<(), String> {
    let producers = fix.map_or(Ok(1), AppliedChange::number)?;
    let runtime = kafka::runtime()?;
    kafka::create_topic(&runtime, client, 1)?;
    let mut config = kafka::config(client);
    config
        .set("max.in.flight", IN_FLIGHT)
        .set("batch.num.messages", BATCH)
        .set("queue.buffering.max.messages", WAITING);
    let producers: Result<Vec<FutureProducer>, _> =
        (0..producers).map(|_| config.create()).collect();
    let producers = producers.map_err(|error| error.to_string())?;
    runtime.block_on(produce(client, &producers))
}

/// Sends to all of them what comes, and waits for nothing.
async fn produce(client: &ClientContext, producers: &[FutureProducer]) -> Result<(), String> {
    let payload = [b'x'; 100];
    let mut answers = FuturesUnordered::new();
    let mut groups = tokio::time::interval(PAUSE);
    while client.goes_on() {
        tokio::select! {
            _ = groups.tick() => {
                for number in 0..GROUP {
                    let record: FutureRecord<'_, (), _> =
                        FutureRecord::to(&client.name).payload(&payload);
                    let sent = producers[number % producers.len()].send_result(record);
                    let sent = sent.map_err(|(error, _)| error.to_string())?;
                    let begun = Instant::now();
                    answers.push(sent.map(move |answer| (begun, answer)));
                }
            }
            Some((begun, answer)) = answers.next(), if !answers.is_empty() => {
                let answer = answer.map_err(|_| "the producer has ended".to_owned())?;
                answer.map_err(|(error, _)| error.to_string())?;
                client.meter.done(begun.elapsed());
            }
        }
    }
    // Waiting messages need not be sent any more.
    use rdkafka::producer::{Producer, PurgeConfig};
    let all = || PurgeConfig::default().queue().inflight();
    producers.iter().for_each(|it| it.purge(all()));
    Ok(())
}
