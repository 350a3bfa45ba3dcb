//! linger: the library holds each message back for company, and the program waits for it.

use std::time::Duration;

use cloverleaf_doctor::Rule;
use rdkafka::producer::FutureProducer;

use super::{AppliedChange, ClientContext, Scenario, ValueIn, kafka, sync_produce};

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::Linger,
        title: "a producer collects for 50 ms and awaits each message, so none joins it (seed 001)",
        library: kafka::LIBRARY,
        setting: "linger.ms",
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
    let runtime = kafka::runtime()?;
    kafka::create_topic(&runtime, client, 1)?;
    let mut config = kafka::config(client);
    // "For throughput".
    config.set("linger.ms", "50");
    let config = kafka::with_fix(config, fix);
    let producer: FutureProducer = config.create().map_err(|error| error.to_string())?;
    runtime.block_on(sync_produce::produce(client, &producer, 1))
}
