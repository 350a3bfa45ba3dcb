//! healthy: clients that do nothing wrong, of which the doctor says nothing. A client that is idle,
//! works by a timer, has much to do at times, works for long, or is as fast as it needs to be, is
//! no case.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cloverleaf_bench::Stop;
use cloverleaf_doctor::{Query, one_line};
use futures_util::StreamExt;
use lapin::Connection;
use lapin::options::BasicAckOptions;

use super::perform::Told;
use super::play::Playing;
use super::stage::Meter;
use super::tls::{self, Tls};
use super::{Stage, amqp};
use crate::broker::{BrokerOptions, StartBroker};
use crate::command::Wish;
use crate::place::{LabError, Place};

/// The story's name.
pub(crate) const NAME: &str = "healthy";

/// The story's title.
pub(crate) const TITLE: &str = "clients that do nothing wrong: idle, steady, in bursts, slow, TLS";

/// The words before the error of a client that has failed by itself.
const FAILED: &str = "a client has failed: ";

/// For how long they are watched, if the user has no other wish.
const WATCHED_S: f64 = 60.0;
const RTT: Duration = Duration::from_millis(10);
const LOOK: Duration = Duration::from_millis(200);

/// A client and its name.
type Client = (&'static str, fn(&Stage) -> Result<(), String>);

/// With lapin, and without another library also a full house.
const CLIENTS: &[Client] = &[
    ("idle", idle),
    ("timer", timer),
    ("slow-handler", slow_handler),
    ("pipeline", pipeline),
    ("over-tls", over_tls),
];

use super::healthy_kafka::CLIENTS as KAFKA_CLIENTS;

/// Has them work, and tells of what the doctor says of any.
///
/// # Errors
/// The machine does not let it.
pub(crate) fn watch(
    wish: Wish<'_>,
    start: &StartBroker<'_>,
    stop: &Stop,
) -> Result<Told, LabError> {
    let mut link = wish.link.clone();
    link.rtt.get_or_insert(RTT);
    let tls = Tls::make().map_err(|error| LabError::system("no certificate", error))?;
    let wanted = BrokerOptions {
        certificate: Some(tls.certificate.clone()),
        record: wish.record.map(Path::to_path_buf),
        ..BrokerOptions::default()
    };
    let place = Place::open(&link, &wanted, start)?;
    let stage = Arc::new(Stage {
        addresses: *place.reached(),
        stop: Stop::default(),
        meter: Meter::new(),
        name: NAME.to_owned(),
        authority: Some(tls.authority.clone()),
    });
    let playing = Playing::begin_with(&place, stage, all)?;
    let begun = Instant::now();
    let time = Duration::from_secs_f64(wish.seconds.unwrap_or(WATCHED_S));
    while begun.elapsed() < time && !stop.is_set() && playing.goes_on() {
        thread::sleep(LOOK);
    }
    let watched_s = begun.elapsed().as_secs_f64();
    let query = Query {
        since_us: Some(u64::MAX),
        client: None,
    };
    let report = (place.report(&query))?;
    let mut problems: Vec<String> = report.findings.iter().map(one_line).collect();
    problems.extend(playing.end().err().map(|it| format!("{FAILED}{it}")));
    Ok(Told {
        story: NAME,
        title: TITLE,
        distance: place.note(),
        watched_s: Some(watched_s),
        is_good: problems.is_empty(),
        problems,
        ..Told::default()
    })
}

/// All clients, until one has failed or it is over.
fn all(stage: &Stage) -> Result<(), String> {
    let clients = CLIENTS.iter().chain(KAFKA_CLIENTS);
    thread::scope(|scope| {
        let clients = clients.map(|(name, client)| {
            let own = stage.of(name);
            scope.spawn(move || {
                let ended = client(&own).map_err(|error| format!("{name}: {error}"));
                // One that ends ends all.
                own.stop.set();
                ended
            })
        });
        let clients: Vec<_> = clients.collect();
        let mut outcome = Ok(());
        for client in clients {
            let ended = client.join();
            let ended = ended.unwrap_or_else(|_| Err("a client has panicked".to_owned()));
            outcome = outcome.and(ended);
        }
        outcome
    })
}

/// A consumer of a queue to which nothing comes.
fn idle(stage: &Stage) -> Result<(), String> {
    amqp::run(stage, async {
        let connection = amqp::connect(stage).await?;
        let (_channel, mut messages) = amqp::consumer(stage, &connection, 10).await?;
        while let Some(message) = messages.next().await {
            message?;
        }
        Ok(())
    })
}

/// One message at a time, by a timer, each awaited.
fn timer(stage: &Stage) -> Result<(), String> {
    amqp::run(stage, async {
        let connection = amqp::connect(stage).await?;
        let channel = amqp::publisher(stage, &connection).await?;
        amqp::publish_in_groups(stage, &channel, 1, Duration::from_millis(250)).await
    })
}

/// A pool of workers that is busy all the time: it is its own limit.
fn slow_handler(stage: &Stage) -> Result<(), String> {
    const WORKERS: u16 = 4;
    amqp::run(stage, async {
        let connection = amqp::connect(stage).await?;
        let publisher = amqp::publisher(stage, &connection).await?;
        let (_channel, messages) = amqp::consumer(stage, &connection, WORKERS).await?;
        let come = amqp::publish_in_groups(stage, &publisher, 20, Duration::from_secs(1));
        let work = async {
            let done = messages.map(|message| async {
                let message = message?;
                tokio::time::sleep(Duration::from_millis(300)).await;
                message.ack(BasicAckOptions::default()).await.map(|_| ())
            });
            let mut done = std::pin::pin!(done.buffer_unordered(WORKERS.into()));
            while let Some(outcome) = done.next().await {
                outcome?;
            }
            Ok(())
        };
        tokio::try_join!(come, work).map(|((), ())| ())
    })
}

/// Messages in groups with their confirms awaited together, and who takes them.
fn pipeline(stage: &Stage) -> Result<(), String> {
    amqp::run(stage, async {
        let connections = (amqp::connect(stage).await?, amqp::connect(stage).await?);
        work_through(stage, connections, (100, Duration::from_millis(200)), 200).await
    })
}

/// The same over TLS, by a tunnel as programs have it whose library has none.
fn over_tls(stage: &Stage) -> Result<(), String> {
    amqp::run(stage, async {
        let address = tls::tunnel(stage).await.map_err(io_error)?;
        let first = amqp::connect_to(stage, address).await?;
        let second = amqp::connect_to(stage, address).await?;
        let pace = (10, Duration::from_millis(70));
        work_through(stage, (first, second), pace, 50).await
    })
}

async fn work_through(
    stage: &Stage,
    (first, second): (Connection, Connection),
    (count, pause): (usize, Duration),
    prefetch: u16,
) -> amqp::Outcome {
    let publisher = amqp::publisher(stage, &first).await?;
    let (_channel, mut messages) = amqp::consumer(stage, &second, prefetch).await?;
    let come = amqp::publish_in_groups(stage, &publisher, count, pause);
    let take = async {
        while let Some(message) = messages.next().await {
            message?.ack(BasicAckOptions::default()).await?;
        }
        Ok(())
    };
    tokio::try_join!(come, take).map(|((), ())| ())
}

fn io_error(error: io::Error) -> lapin::Error {
    lapin::ErrorKind::IOError(Arc::new(error)).into()
}
