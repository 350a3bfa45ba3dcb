//! tiny-batches: a producer sends each message in a request of its own, one behind the other.

use std::time::{Duration, Instant};

use cloverleaf_doctor::Rule;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::{AppliedChange, ClientContext, Scenario, ValueIn, kafka};

/// The program's load: so many messages at once, so often.
const GROUP: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::TinyBatches,
        title: "a producer sends each of 4,000 messages per second by itself (seed 004)",
        library: kafka::LIBRARY,
        setting: "linger.ms",
        value: ValueIn::Value,
        rtt: Duration::from_millis(2),
        bandwidth: None,
        broker: &[],
        with_tls: false,
        measured_s: 8.0,
        play,
    }
}

fn play(client: &ClientContext, fix: Option<&AppliedChange>) -> Result<(), String> {
    let runtime = kafka::runtime()?;
    kafka::create_topic(&runtime, client, 1)?;
    let mut config = kafka::config(client);
    config.set("acks", "1");
    if fix.is_none() {
        // "For latency". The finding says of the second that it should go, too.
        config.set("linger.ms", "0").set("batch.num.messages", "1");
    }
    let config = kafka::with_fix(config, fix);
    let producer: FutureProducer = config.create().map_err(|error| error.to_string())?;
    runtime.block_on(produce(client, &producer))
}

/// Sends what comes, and waits for nothing.
async fn produce(client: &ClientContext, producer: &FutureProducer) -> Result<(), String> {
    let mut answers = FuturesUnordered::new();
    let mut groups = tokio::time::interval(PAUSE);
    while client.goes_on() {
        tokio::select! {
            _ = groups.tick() => {
                for _ in 0..GROUP {
                    let record: FutureRecord<'_, (), _> =
                        FutureRecord::to(&client.name).payload(&[b'x'; 200]);
                    let sent = producer.send_result(record);
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
    Ok(())
}
