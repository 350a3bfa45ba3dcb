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

use super::client::RunningClient;
use super::context::Meter;
use super::runner::ScenarioReport;
use super::tls::{self, Tls};
use super::{ClientContext, amqp};
use crate::broker::{BrokerOptions, StartBroker};
use crate::command::ScenarioOptions;
use crate::distance::{DistantBroker, LabError};

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
type Client = (&'static str, fn(&ClientContext) -> Result<(), String>);

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
    wish: ScenarioOptions<'_>,
    start: &StartBroker<'_>,
    stop: &Stop,
) -> Result<ScenarioReport, LabError> {
    let mut link = wish.link.clone();
    link.rtt.get_or_insert(RTT);
    let tls = Tls::make().map_err(|error| LabError::system("no certificate", error))?;
    let wanted = BrokerOptions {
        certificate: Some(tls.certificate.clone()),
        record: wish.record.map(Path::to_path_buf),
        ..BrokerOptions::default()
    };
    let place = DistantBroker::open(&link, &wanted, start)?;
    let client = Arc::new(ClientContext {
        addresses: *place.reached(),
        stop: Stop::default(),
        meter: Meter::new(),
        name: NAME.to_owned(),
        authority: Some(tls.authority.clone()),
    });
    let playing = RunningClient::begin_with(&place, client, all)?;
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
    Ok(ScenarioReport {
        story: NAME,
        title: TITLE,
        distance: place.note(),
        watched_s: Some(watched_s),
        is_good: problems.is_empty(),
        problems,
        ..ScenarioReport::default()
    })
}

/// All clients, until one has failed or it is over.
fn all(client: &ClientContext) -> Result<(), String> {
    let clients = CLIENTS.iter().chain(KAFKA_CLIENTS);
    thread::scope(|scope| {
        let clients = clients.map(|(name, work)| {
            let own = client.of(name);
            scope.spawn(move || {
                let ended = work(&own).map_err(|error| format!("{name}: {error}"));
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
fn idle(client: &ClientContext) -> Result<(), String> {
    amqp::run(client, async {
        let connection = amqp::connect(client).await?;
        let (_channel, mut messages) = amqp::consumer(client, &connection, 10).await?;
        while let Some(message) = messages.next().await {
            message?;
        }
        Ok(())
    })
}

/// One message at a time, by a timer, each awaited.
fn timer(client: &ClientContext) -> Result<(), String> {
    amqp::run(client, async {
        let connection = amqp::connect(client).await?;
        let channel = amqp::publisher(client, &connection).await?;
        amqp::publish_in_groups(client, &channel, 1, Duration::from_millis(250)).await
    })
}

/// A pool of workers that is busy all the time: it is its own limit.
fn slow_handler(client: &ClientContext) -> Result<(), String> {
    const WORKERS: u16 = 4;
    amqp::run(client, async {
        let connection = amqp::connect(client).await?;
        let publisher = amqp::publisher(client, &connection).await?;
        let (_channel, messages) = amqp::consumer(client, &connection, WORKERS).await?;
        let come = amqp::publish_in_groups(client, &publisher, 20, Duration::from_secs(1));
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
fn pipeline(client: &ClientContext) -> Result<(), String> {
    amqp::run(client, async {
        let connections = (amqp::connect(client).await?, amqp::connect(client).await?);
        work_through(client, connections, (100, Duration::from_millis(200)), 200).await
    })
}

/// The same over TLS, by a tunnel as programs have it whose library has none.
fn over_tls(client: &ClientContext) -> Result<(), String> {
    amqp::run(client, async {
        let address = tls::tunnel(client).await.map_err(io_error)?;
        let first = amqp::connect_to(client, address).await?;
        let second = amqp::connect_to(client, address).await?;
        let pace = (10, Duration::from_millis(70));
        work_through(client, (first, second), pace, 50).await
    })
}

async fn work_through(
    client: &ClientContext,
    (first, second): (Connection, Connection),
    (count, pause): (usize, Duration),
    prefetch: u16,
) -> amqp::Outcome {
    let publisher = amqp::publisher(client, &first).await?;
    let (_channel, mut messages) = amqp::consumer(client, &second, prefetch).await?;
    let come = amqp::publish_in_groups(client, &publisher, count, pause);
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
