//! churn: a program opens a connection for each message.

use std::time::{Duration, Instant};

use cloverleaf_doctor::Rule;
use lapin::{Channel, Connection};

use super::{Fix, Stage, Story, ValueIn, amqp};

pub(super) fn story() -> Story {
    Story {
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

fn play(stage: &Stage, fix: Option<&Fix>) -> Result<(), String> {
    amqp::run(stage, produce(stage, fix.is_some()))
}

async fn produce(stage: &Stage, is_kept: bool) -> amqp::Outcome {
    let mut open: Option<(Connection, Channel)> = None;
    loop {
        let begun = Instant::now();
        let (connection, channel) = match open.take() {
            Some(open) => open,
            None => {
                let connection = amqp::connect(stage).await?;
                let channel = amqp::publisher(stage, &connection).await?;
                (connection, channel)
            }
        };
        amqp::publish(stage, &channel, 1).await?;
        if is_kept {
            open = Some((connection, channel))
        } else {
            connection.close(200, "sent".into()).await?
        }
        stage.meter.done(begun.elapsed());
    }
}
