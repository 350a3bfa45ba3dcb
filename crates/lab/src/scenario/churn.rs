//! churn: a program opens a connection for each message.

use std::time::{Duration, Instant};

use cloverleaf_doctor::Rule;
use lapin::{Channel, Connection};

use super::{AppliedChange, ClientContext, Scenario, ValueIn, amqp};

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::Churn,
        title: "a producer opens a connection and a channel for each message",
        library: amqp::LIBRARY,
        setting: "one Connection and Channel for the life of the process",
        value: ValueIn::Nothing,
        rtt: Duration::from_millis(10),
        bandwidth: None,
        broker: &[],
        with_tls: false,
        measured_s: 6.0,
        play,
    }
}

fn play(client: &ClientContext, fix: Option<&AppliedChange>) -> Result<(), String> {
    amqp::run(client, produce(client, fix.is_some()))
}

async fn produce(client: &ClientContext, is_kept: bool) -> amqp::Outcome {
    let mut open: Option<(Connection, Channel)> = None;
    loop {
        let begun = Instant::now();
        let (connection, channel) = match open.take() {
            Some(open) => open,
            None => {
                let connection = amqp::connect(client).await?;
                let channel = amqp::publisher(client, &connection).await?;
                (connection, channel)
            }
        };
        amqp::publish(client, &channel, 1).await?;
        if is_kept {
            open = Some((connection, channel))
        } else {
            connection.close(200, "sent".into()).await?
        }
        client.meter.done(begun.elapsed());
    }
}
