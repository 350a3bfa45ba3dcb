//! window-too-small: a consumer takes one message at a time, and the next comes a round trip later.

use std::time::{Duration, Instant};

use cloverleaf_doctor::Rule;
use futures_util::StreamExt;
use lapin::options::BasicAckOptions;

use super::{AppliedChange, ClientContext, Scenario, ValueIn, amqp};

/// Messages that wait for it: more than it takes in the whole story.
const BACKLOG: usize = 25_000;

/// So many are published before their confirms are waited for.
const PUBLISHED_AT_ONCE: usize = 1_000;

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::WindowTooSmall,
        title: "a consumer with a prefetch of 1 waits a round trip for each message (seed 003)",
        library: amqp::LIBRARY,
        setting: "basic_qos",
        value: ValueIn::Value,
        rtt: Duration::from_millis(10),
        bandwidth: None,
        broker: &[],
        with_tls: false,
        measured_s: 6.0,
        play,
    }
}

fn play(client: &ClientContext, fix: Option<&AppliedChange>) -> Result<(), String> {
    let prefetch = fix.map_or(Ok(1), AppliedChange::number)?;
    let prefetch = u16::try_from(prefetch).map_err(|error| error.to_string())?;
    amqp::run(client, consume(client, prefetch))
}

async fn consume(client: &ClientContext, prefetch: u16) -> amqp::Outcome {
    let connection = amqp::connect(client).await?;
    let channel = amqp::publisher(client, &connection).await?;
    for _ in 0..BACKLOG / PUBLISHED_AT_ONCE {
        amqp::publish(client, &channel, PUBLISHED_AT_ONCE).await?;
    }
    connection.close(200, "all is published".into()).await?;
    let connection = amqp::connect(client).await?;
    let (_channel, mut deliveries) = amqp::consumer(client, &connection, prefetch).await?;
    while let Some(delivery) = deliveries.next().await {
        let begun = Instant::now();
        delivery?.ack(BasicAckOptions::default()).await?;
        client.meter.done(begun.elapsed());
    }
    Ok(())
}
