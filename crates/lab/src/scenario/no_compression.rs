//! no-compression: a producer sends text as it is, over a link that is full of it.

use std::time::{Duration, Instant};

use cloverleaf_doctor::Rule;
use futures_util::{StreamExt, stream};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::{AppliedChange, ClientContext, Scenario, ValueIn, kafka};

/// Bytes of a message, about.
const SIZE_BYTES: usize = 2_000;

/// Enough for the link to be always full.
const IN_FLIGHT: usize = 200;

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::NoCompression,
        title: "a producer sends JSON as it is over a link of 20 Mbit/s",
        library: kafka::LIBRARY,
        setting: "compression.type",
        value: ValueIn::Value,
        rtt: Duration::from_millis(10),
        bandwidth: Some(20_000_000),
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
    config.set("batch.size", "65536");
    let config = kafka::with_fix(config, fix);
    let producer: FutureProducer = config.create().map_err(|error| error.to_string())?;
    runtime.block_on(produce(client, &producer))
}

async fn produce(client: &ClientContext, producer: &FutureProducer) -> Result<(), String> {
    let one = |number: u64| async move {
        let payload = payload(number);
        let begun = Instant::now();
        let record: FutureRecord<'_, (), _> = FutureRecord::to(&client.name).payload(&payload);
        let sent = producer.send(record, Duration::from_secs(30)).await;
        sent.map_err(|(error, _)| error.to_string())?;
        client.meter.done(begun.elapsed());
        Ok::<(), String>(())
    };
    let numbers = stream::iter(0..).take_while(|_| async { client.goes_on() });
    let mut sent = std::pin::pin!(numbers.map(one).buffer_unordered(IN_FLIGHT));
    while let Some(outcome) = sent.next().await {
        outcome?;
    }
    Ok(())
}

/// A payload as programs send it to each other: the same names in each, with other values.
fn payload(number: u64) -> Vec<u8> {
    let mut text = String::with_capacity(SIZE_BYTES + 200);
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while text.len() < SIZE_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push_str(&format!(
            "{{\"order\":{},\"customer\":\"c-{:06}\",\"item\":\"{:08x}\",\"amount\":{}.{:02},\
             \"currency\":\"EUR\",\"state\":\"{}\",\"warehouse\":\"north-{}\"}}\n",
            number,
            state % 1_000_000,
            (state >> 20) as u32,
            state % 500,
            (state >> 8) % 100,
            ["new", "paid", "packed", "shipped"][(state >> 30) as usize % 4],
            (state >> 40) % 12,
        ));
    }
    text.into_bytes()
}
