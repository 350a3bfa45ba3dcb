//! Runs a scenario: a client with its mistake, the doctor's finding, the change, and its effect.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cloverleaf_bench::{Bandwidth, BrokerPlace, Meter, Stop};
use cloverleaf_doctor::{Bound, Finding, Measure, Query, Report};
use serde::Serialize;

use super::client::RunningClient;
use super::context::{WorkDone, WorkMeter};
use super::tls::Tls;
use super::verdict::EffectValues;
use super::{AppliedChange, ClientContext, Scenario, verdict};
use crate::broker::{BrokerOptions, StartBroker};
use crate::command::ScenarioOptions;
use crate::distance::{DistantBroker, LabError};

/// How often the doctor is asked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How long after the client's first message the doctor may take to find the mistake. The
/// documentation promises it.
const FOUND_WITHIN: Duration = Duration::from_secs(15);

/// How long the client may take for its first message: its program has to start, and to connect.
const BEGUN_WITHIN: Duration = Duration::from_secs(60);

/// How long after the finding others may appear and numbers settle: two of the doctor's steps.
const SETTLE: Duration = Duration::from_secs(4);

/// How long a changed client runs before it is measured.
const WARM_UP: Duration = Duration::from_secs(2);

/// What the names of the broker's threads that serve connections begin with.
const BROKER_THREADS: &str = "core-";

/// The result of a scenario.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ScenarioReport {
    /// Its name.
    pub(crate) story: &'static str,
    /// The client's mistake, in a sentence.
    pub(crate) title: &'static str,
    /// The distance in words.
    pub(crate) distance: String,
    /// For how long healthy clients were watched, in seconds.
    pub(crate) watched_s: Option<f64>,
    /// How long after the first message the doctor had found it, in seconds.
    pub(crate) found_s: Option<f64>,
    /// The doctor's finding.
    pub(crate) finding: Option<Finding>,
    /// The change that was made.
    pub(crate) change: Option<AppliedChange>,
    /// The unit of the next three.
    pub(crate) unit: &'static str,
    /// The measured value before the change.
    pub(crate) before: f64,
    /// The predicted value.
    pub(crate) predicted: f64,
    /// Whether the prediction is exact, a lower bound or an upper bound.
    pub(crate) bound: Bound,
    /// The measured value after the change.
    pub(crate) after: f64,
    /// The doctor's findings about the client after the change: rules, and what they would change.
    pub(crate) afterwards: Vec<String>,
    /// Faults: expectations that the scenario has not met.
    pub(crate) problems: Vec<String>,
    /// The scenario has met all expectations.
    pub(crate) is_good: bool,
}

impl ScenarioReport {
    /// How many times the measured value is the predicted one.
    pub(crate) fn factor(&self) -> f64 {
        self.after / self.predicted
    }
}

/// A broker for a scenario, and its certificate if it has one.
pub(super) struct ScenarioBroker {
    pub(super) broker: DistantBroker,
    tls: Option<Tls>,
}

impl ScenarioBroker {
    /// Starts a broker with this setting behind this link, or behind the link that the user sets.
    pub(super) fn open(
        options: ScenarioOptions<'_>,
        (rtt_ms, bandwidth): (u64, Option<u64>),
        setting: Option<(&str, &str)>,
        with_tls: bool,
        start: &StartBroker<'_>,
    ) -> Result<ScenarioBroker, LabError> {
        let mut link = options.link.clone();
        link.rtt.get_or_insert(Duration::from_millis(rtt_ms));
        let narrow = bandwidth.and_then(Bandwidth::from_bits_per_s);
        link.bandwidth = link.bandwidth.or(narrow);
        let tls = with_tls.then(Tls::make).transpose();
        let tls = tls.map_err(|error| LabError::system("no certificate", error))?;
        let wanted = BrokerOptions {
            settings: (setting.into_iter())
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            certificate: tls.as_ref().map(|it| it.certificate.clone()),
            record: options.record.map(Path::to_path_buf),
            ..BrokerOptions::default()
        };
        let broker = DistantBroker::open(&link, &wanted, start)?;
        Ok(ScenarioBroker { broker, tls })
    }

    /// The context of a client with this name.
    pub(super) fn context(&self, name: String) -> ClientContext {
        ClientContext {
            addresses: *self.broker.reached(),
            stop: Stop::default(),
            meter: WorkMeter::new(),
            name,
            authority: self.tls.as_ref().map(|it| it.authority.clone()),
        }
    }
}

/// Runs a scenario.
///
/// # Errors
/// The system refuses something that it needs. What the scenario does not meet is in the report.
pub(crate) fn perform(
    scenario: &'static Scenario,
    options: ScenarioOptions<'_>,
    start: &StartBroker<'_>,
    stop: &Stop,
) -> Result<ScenarioReport, LabError> {
    let link = (scenario.rtt_ms, scenario.bandwidth);
    let setting = scenario.acks_late.then_some(("quick-ack", "false"));
    let scenario_broker = ScenarioBroker::open(options, link, setting, scenario.with_tls, start)?;
    let measured = Duration::from_secs_f64(options.seconds.unwrap_or(scenario.measured_s));
    let mut report = ScenarioReport {
        story: scenario.name(),
        title: scenario.title,
        distance: scenario_broker.broker.note(),
        ..ScenarioReport::default()
    };
    let mut run = ScenarioRun {
        scenario,
        scenario_broker: &scenario_broker,
        stop,
        report: &mut report,
    };
    match run.run(measured) {
        Ok(()) => {}
        Err(ScenarioError::Problem(problem)) => report.problems.push(problem),
        Err(ScenarioError::Machine(error)) => return Err(error),
    }
    report.is_good = report.problems.is_empty();
    Ok(report)
}

/// Why a scenario goes no further.
#[derive(Debug, thiserror::Error)]
enum ScenarioError {
    #[error(transparent)]
    Machine(#[from] LabError),
    #[error("{0}")]
    Problem(String),
}

impl From<String> for ScenarioError {
    fn from(problem: String) -> ScenarioError {
        ScenarioError::Problem(problem)
    }
}

struct ScenarioRun<'a> {
    scenario: &'static Scenario,
    scenario_broker: &'a ScenarioBroker,
    stop: &'a Stop,
    report: &'a mut ScenarioReport,
}

impl ScenarioRun<'_> {
    fn run(&mut self, measured: Duration) -> Result<(), ScenarioError> {
        let client = self.begin(None, 1)?;
        let found = self.wait_for_finding(&client);
        if !matches!(found, Err(ScenarioError::Machine(_))) {
            // An error of the client explains why there is no finding, so it comes first.
            client.end()?;
        }
        let (finding, before) = found?;
        let measure = finding.prediction.measure;
        self.report.unit = unit(measure);
        self.report.before = value(measure, &before);
        self.report.bound = finding.prediction.bound;
        self.report.predicted = match measure {
            // The cost of a message depends on the machine; how much less it should be does not.
            Measure::Cost => self.report.before / finding.prediction.gain,
            _ => finding.prediction.after,
        };
        let change = self.scenario.change(&finding);
        self.report.finding = Some(finding);
        let change = change?;
        self.report.change = Some(change.clone());
        self.after(change, measure, measured)
    }

    /// Starts the client. `number` tells it from the other clients of this broker.
    fn begin(&self, change: Option<AppliedChange>, number: u32) -> Result<RunningClient, LabError> {
        let name = format!("{}-{number}", self.scenario.name());
        let program = self.scenario.program;
        let context = self.scenario_broker.context(name);
        RunningClient::begin(&self.scenario_broker.broker, context, move |context| {
            program.run(context, change.as_ref())
        })
    }

    /// Waits for the finding. Returns it with the client's work while its numbers settled.
    fn wait_for_finding(
        &mut self,
        client: &RunningClient,
    ) -> Result<(Finding, WorkDone), ScenarioError> {
        let called = Instant::now();
        let mut begun: Option<Instant> = None;
        loop {
            self.wait_for(client, POLL_INTERVAL)?;
            if self.report_of(None)?.findings.iter().any(|it| it.is_active) {
                break;
            }
            if begun.is_none() && client.context.meter.count().done > 0 {
                begun = Some(Instant::now());
            }
            if begun.is_none() && called.elapsed() > BEGUN_WITHIN {
                let seconds = BEGUN_WITHIN.as_secs();
                let problem = format!("the client has done nothing within {seconds} seconds");
                return Err(problem.into());
            }
            if begun.is_some_and(|it| it.elapsed() > FOUND_WITHIN) {
                let seconds = FOUND_WITHIN.as_secs();
                let problem = format!("the doctor has found nothing within {seconds} seconds");
                return Err(problem.into());
            }
        }
        self.report.found_s = Some(begun.map_or(0.0, |it| it.elapsed().as_secs_f64()));
        let count = self.measure(client, SETTLE)?;
        let findings = self.report_of(Some(u64::MAX))?.findings.into_iter();
        let (own, others): (Vec<_>, Vec<_>) =
            findings.partition(|it| it.rule == self.scenario.rule);
        for other in others {
            let problem = format!("another finding: {}, about {}", other.rule, other.client);
            self.report.problems.push(problem);
        }
        if own.len() > 1 {
            let problem = format!("the same is found {} times", own.len());
            self.report.problems.push(problem);
        }
        let Some(finding) = own.into_iter().next() else {
            return Err(format!("not found: {}", self.scenario.rule).into());
        };
        if finding.client.library != self.scenario.library {
            let (is, should_be) = (&finding.client.library, self.scenario.library);
            let problem = format!("the client is called \"{is}\" and not \"{should_be}\"");
            self.report.problems.push(problem);
        }
        Ok((finding, count))
    }

    fn after(
        &mut self,
        change: AppliedChange,
        measure: Measure,
        measured: Duration,
    ) -> Result<(), ScenarioError> {
        let client = self.begin(Some(change.clone()), 2)?;
        let count = self.wait_for(&client, WARM_UP);
        let count = count.and_then(|()| self.measure(&client, measured));
        let report = self.report_of(None)?;
        client.end()?;
        self.report.after = value(measure, &count?);
        let since_unix_us = report.unix_us.saturating_sub(measured.as_micros() as u64);
        let now = report.findings.iter();
        for finding in now.filter(|it| it.first_seen_unix_us >= since_unix_us) {
            let next = self.scenario.change(finding).ok();
            let is_running = next.as_ref().is_some_and(|it| it.exceeds(&change));
            if finding.rule == self.scenario.rule && !is_running {
                let problem = "after the change the doctor finds the same".to_owned();
                self.report.problems.push(problem);
            }
            let next = next.map_or(String::new(), |it| format!(" ({it})"));
            let next = format!("{}{next}", finding.rule);
            self.report.afterwards.push(next);
        }
        let values = EffectValues {
            before: self.report.before,
            predicted: self.report.predicted,
            after: self.report.after,
        };
        let problem = verdict::problem(measure, self.report.bound, values);
        self.report.problems.extend(problem);
        Ok(())
    }

    /// The work done within this time.
    fn measure(&self, client: &RunningClient, time: Duration) -> Result<WorkDone, ScenarioError> {
        let earlier = client.context.meter.count();
        let costs = Meter::begin(&BrokerPlace::Threads(BROKER_THREADS.to_owned()));
        self.wait_for(client, time)?;
        let count = client.context.meter.count().since(&earlier);
        let cpu_s = costs.end().broker_cpu_s.unwrap_or_default();
        Ok(WorkDone { cpu_s, ..count })
    }

    /// Waits for this time. It is an error if the client ends or the user stops it before.
    fn wait_for(&self, client: &RunningClient, time: Duration) -> Result<(), ScenarioError> {
        let end = Instant::now() + time;
        loop {
            if self.stop.is_set() || !client.is_running() {
                return Err("it was ended".to_owned().into());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    fn report_of(&self, since_us: Option<u64>) -> Result<Report, LabError> {
        self.scenario_broker.broker.report(&Query {
            since_us,
            client: None,
        })
    }
}

fn unit(measure: Measure) -> &'static str {
    match measure {
        Measure::ConnectionMessagesPerSecond => "messages/s",
        Measure::SubscriptionMessagesPerSecond => "messages/s while there is work",
        Measure::LatencyUs => "ms for each",
        Measure::Cost => "µs of the broker's CPU time for each",
    }
}

/// The value of a measure as the doctor defines it.
fn value(measure: Measure, count: &WorkDone) -> f64 {
    match measure {
        Measure::ConnectionMessagesPerSecond => count.per_second(),
        Measure::SubscriptionMessagesPerSecond => count.per_busy_second(),
        Measure::LatencyUs => count.mean_us(),
        Measure::Cost => count.cost_us(),
    }
}
