//! hoarding: a pipeline takes messages by two consumers, and one worker has all of them, as the
//! Broadway pipelines of seed 003 did.

use std::time::{Duration, Instant};

use cloverleaf_doctor::Rule;
use futures_util::StreamExt;
use futures_util::stream;
use lapin::message::Delivery;
use lapin::options::BasicAckOptions;

use super::{AppliedChange, ClientContext, Scenario, ValueIn, amqp};

/// The time of a job.
const JOB: Duration = Duration::from_millis(200);

/// So many come at once, this long after each other: light load, as in the seed.
const JOBS: usize = 4;
const PAUSE: Duration = Duration::from_millis(1_000);

/// Messages that each of the two consumers takes at a time.
const PREFETCH: u16 = 10;

pub(super) fn story() -> Scenario {
    Scenario {
        rule: Rule::Hoarding,
        title: "two consumers of a pipeline hand all messages to one worker (seed 003)",
        library: amqp::LIBRARY,
        setting: "for_each_concurrent",
        value: ValueIn::Nothing,
        rtt: Duration::from_millis(10),
        bandwidth: None,
        broker: &[],
        with_tls: false,
        measured_s: 8.0,
        play,
    }
}

fn play(client: &ClientContext, fix: Option<&AppliedChange>) -> Result<(), String> {
    // The change says: as many as the prefetch count.
    let at_once = fix.map_or(1, |_| usize::from(PREFETCH));
    amqp::run(client, async {
        tokio::try_join!(publish(client), work(client, at_once)).map(|_| ())
    })
}

/// Jobs that come in groups.
async fn publish(client: &ClientContext) -> amqp::Outcome {
    let connection = amqp::connect(client).await?;
    let channel = amqp::publisher(client, &connection).await?;
    amqp::publish_in_groups(client, &channel, JOBS, PAUSE).await
}

async fn work(client: &ClientContext, at_once: usize) -> amqp::Outcome {
    let connection = amqp::connect(client).await?;
    let (_first, one) = amqp::consumer(client, &connection, PREFETCH).await?;
    let (_second, other) = amqp::consumer(client, &connection, PREFETCH).await?;
    let deliveries = stream::select(one, other).map(|delivery| {
        client.meter.took();
        (Instant::now(), delivery)
    });
    // A delivered message is in the client's hands, whether or not somebody works on it.
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    let take = deliveries.for_each(|taken| {
        // The receiver is gone when the story is over.
        let _ = sender.send(taken);
        async {}
    });
    let handle = |(taken, delivery): (Instant, lapin::Result<Delivery>)| async move {
        let delivery = delivery?;
        tokio::time::sleep(JOB).await;
        delivery.ack(BasicAckOptions::default()).await?;
        client.meter.gave(taken.elapsed());
        Ok::<(), lapin::Error>(())
    };
    let next = |mut receiver: tokio::sync::mpsc::UnboundedReceiver<_>| async move {
        let taken = receiver.recv().await?;
        Some((taken, receiver))
    };
    let jobs = stream::unfold(receiver, next).map(handle);
    let mut done = std::pin::pin!(jobs.buffer_unordered(at_once));
    let work = async {
        while let Some(outcome) = done.next().await {
            outcome?;
        }
        Ok(())
    };
    tokio::select! {
        () = take => Ok(()),
        outcome = work => outcome,
    }
}
