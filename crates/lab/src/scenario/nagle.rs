//! nagle: librdkafka writes a request to TLS in pieces, and the kernel holds the later ones back
//! until the broker's has acknowledged the first, 40 ms later: seed 001, with its own library.

use std::time::Duration;

use cloverleaf_doctor::Rule;

use super::{AppliedChange, ClientContext, Scenario, ValueIn, program};

const SCRIPT: &str = include_str!("nagle.py");

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::Nagle,
        title: "confluent-kafka over TLS waits 40 ms for each message (seed 001)",
        library: "confluent-kafka-python",
        setting: "socket.nagle.disable",
        value: ValueIn::Value,
        rtt: Duration::from_millis(1),
        bandwidth: None,
        // As other brokers do: the kernel acknowledges when it likes.
        broker: &[("quick-ack", "false")],
        with_tls: true,
        measured_s: 6.0,
        play,
    }
}

fn play(client: &ClientContext, fix: Option<&AppliedChange>) -> Result<(), String> {
    let is_off = fix.and_then(|fix| fix.value.as_deref()).unwrap_or("false");
    let address = client.addresses.kafka_tls.map(|it| it.to_string());
    let address = address.ok_or("it needs Kafka over TLS, which no proxy carries")?;
    let authority = client.authority.as_deref().unwrap_or_default();
    let args = [&address, authority, &client.name, is_off];
    let needs = ("confluent_kafka", "confluent-kafka");
    program::python(client, needs, SCRIPT, &args)
}
