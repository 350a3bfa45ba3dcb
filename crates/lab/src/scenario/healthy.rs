//! The scenario `healthy`: clients that do nothing wrong. Any finding about them is a fault.

use std::thread;
use std::time::{Duration, Instant};

use cloverleaf_bench::Stop;
use cloverleaf_doctor::{Query, one_line};

use super::ClientContext;
use super::client::RunningClient;
use super::runner::{ScenarioBroker, ScenarioReport};
use super::table::HEALTHY;
use crate::broker::StartBroker;
use crate::command::ScenarioOptions;
use crate::distance::LabError;

/// The scenario's name.
pub(crate) const NAME: &str = "healthy";

/// The scenario's title.
pub(crate) const TITLE: &str = "clients that do nothing wrong: idle, steady, in bursts, slow, TLS";

/// The words before the error of a client that fails.
const FAILED: &str = "a client has failed: ";

/// Seconds for which the clients are watched, unless `--time` sets another time.
const WATCHED_S: f64 = 60.0;
const RTT_MS: u64 = 10;
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the clients, and reports each of the doctor's findings as a problem.
///
/// # Errors
/// The system refuses the network, the broker or the clients' threads.
pub(crate) fn watch(
    options: ScenarioOptions<'_>,
    start: &StartBroker<'_>,
    stop: &Stop,
) -> Result<ScenarioReport, LabError> {
    let scenario_broker = ScenarioBroker::open(options, (RTT_MS, None), None, true, start)?;
    let broker = &scenario_broker.broker;
    let clients = RunningClient::begin(broker, scenario_broker.context(NAME.to_owned()), all)?;
    let begun = Instant::now();
    let time = Duration::from_secs_f64(options.seconds.unwrap_or(WATCHED_S));
    while begun.elapsed() < time && !stop.is_set() && clients.is_running() {
        thread::sleep(POLL_INTERVAL);
    }
    let watched_s = begun.elapsed().as_secs_f64();
    let report = broker.report(&Query {
        since_us: Some(u64::MAX),
        client: None,
    })?;
    let mut problems: Vec<String> = report.findings.iter().map(one_line).collect();
    problems.extend(clients.end().err().map(|it| format!("{FAILED}{it}")));
    Ok(ScenarioReport {
        story: NAME,
        title: TITLE,
        distance: broker.note(),
        watched_s: Some(watched_s),
        is_good: problems.is_empty(),
        problems,
        ..ScenarioReport::default()
    })
}

/// Runs all clients, until one of them fails or the scenario is over.
fn all(context: &ClientContext) -> Result<(), String> {
    thread::scope(|scope| {
        let clients = HEALTHY.iter().map(|(name, program)| {
            let own = context.of(name);
            scope.spawn(move || {
                let ended = program.run(&own, None);
                // The first client that ends, ends the others.
                own.stop.set();
                ended.map_err(|error| format!("{name}: {error}"))
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
