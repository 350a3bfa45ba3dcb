//! too-many-in-flight: a producer hands over what it has, over a narrow link, and gives messages up
//! that take long.

use std::time::{Duration, Instant};

use cloverleaf_doctor::Rule;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer, PurgeConfig};

use super::{AppliedChange, ClientContext, Scenario, ValueIn, kafka};

/// When the program gives a message up: later nobody wants it.
const TIMEOUT_MS: &str = "1000";

/// How many it hands over before it looks at answers.
const GROUP: usize = 100;

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::TooManyInFlight,
        title: "a producer hands all over at once, and gives up what takes a second",
        library: kafka::LIBRARY,
        setting: "queue.buffering.max.messages",
        value: ValueIn::Value,
        rtt: Duration::from_millis(20),
        bandwidth: Some(40_000_000),
        broker: &[],
        with_tls: false,
        measured_s: 6.0,
        play,
    }
}

fn play(client: &ClientContext, fix: Option<&AppliedChange>) -> Result<(), String> {
    let runtime = kafka::runtime()?;
    kafka::create_topic(&runtime, client, 1)?;
    let mut config = kafka::config(client);
    config
        .set("acks", "1")
        .set("message.timeout.ms", TIMEOUT_MS);
    let config = kafka::with_fix(config, fix);
    let producer: FutureProducer = config.create().map_err(|error| error.to_string())?;
    runtime.block_on(produce(client, &producer))
}

/// A payload that does not compress.
fn noise() -> [u8; 1000] {
    let mut state = 7u64;
    std::array::from_fn(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
}

/// Sends as much as the library takes.
async fn produce(client: &ClientContext, producer: &FutureProducer) -> Result<(), String> {
    // A payload that compresses well over a narrow link is another story.
    let payload = noise();
    let mut answers = FuturesUnordered::new();
    while client.goes_on() {
        let mut is_full = false;
        for _ in 0..GROUP {
            let record: FutureRecord<'_, (), _> = FutureRecord::to(&client.name).payload(&payload);
            match producer.send_result(record) {
                Ok(sent) => {
                    let begun = Instant::now();
                    answers.push(sent.map(move |answer| (begun, answer)));
                }
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                    is_full = true;
                    break;
                }
                Err((error, _)) => return Err(error.to_string()),
            }
        }
        // A producer with a full queue waits for the next answer, and takes all that are there.
        let mut next = if is_full {
            answers.next().await
        } else {
            answers.next().now_or_never().flatten()
        };
        while let Some((begun, answer)) = next {
            match answer.map_err(|_| "the producer has ended".to_owned())? {
                Ok(_) => client.meter.done(begun.elapsed()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::MessageTimedOut), _)) => {}
                Err((error, _)) => return Err(error.to_string()),
            }
            next = answers.next().now_or_never().flatten();
        }
    }
    // Waiting messages need not be sent any more.
    producer.purge(PurgeConfig::default().queue().inflight());
    Ok(())
}
