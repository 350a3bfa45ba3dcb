//! How a story goes: what is wrong, what the doctor says of it, the change, and what it brings.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cloverleaf_bench::{Bandwidth, BrokerPlace, Meter, Stop};
use cloverleaf_doctor::{Bound, Finding, Measure, Query, Report};
use serde::Serialize;

use super::client::RunningClient;
use super::context::WorkDone;
use super::tls::Tls;
use super::verdict::Values;
use super::{AppliedChange, Scenario, verdict};
use crate::broker::{BrokerOptions, StartBroker};
use crate::command::ScenarioOptions;
use crate::distance::{DistantBroker, LabError};

/// How often the doctor is asked.
const LOOK: Duration = Duration::from_millis(200);

/// When the doctor has found it at the latest, after the client's first message: what is promised
/// of it.
const FOUND_WITHIN: Duration = Duration::from_secs(15);

/// When the client has done that one at the latest: its program has to start, and to connect.
const BEGUN_WITHIN: Duration = Duration::from_secs(60);

/// After the finding, for others to appear and numbers to settle: two of the doctor's steps.
const SETTLE: Duration = Duration::from_secs(4);

/// A client begins, and only then is measured.
const WARM_UP: Duration = Duration::from_secs(2);

/// The threads of the broker's that serve connections.
const BROKER_THREADS: &str = "core-";

/// The result of a story.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ScenarioReport {
    /// Its name.
    pub(crate) story: &'static str,
    /// The client's doing, in a sentence.
    pub(crate) title: &'static str,
    /// How far the broker was.
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
    /// Whether that was said to be it, or the least, or the most.
    pub(crate) bound: Bound,
    /// The measured value after the change.
    pub(crate) after: f64,
    /// The doctor's findings about the client after the change: rules, and what they would change.
    pub(crate) afterwards: Vec<String>,
    /// Faults: expectations that the story has not met.
    pub(crate) problems: Vec<String>,
    /// All is.
    pub(crate) is_good: bool,
}

impl ScenarioReport {
    /// How many times the measured value is the predicted one.
    pub(crate) fn factor(&self) -> f64 {
        self.after / self.predicted
    }
}

/// Plays a story.
///
/// # Errors
/// The machine does not let it. Faults of the story stand in the answer.
pub(crate) fn perform(
    story: &Scenario,
    wish: ScenarioOptions<'_>,
    start: &StartBroker<'_>,
    stop: &Stop,
) -> Result<ScenarioReport, LabError> {
    let mut link = wish.link.clone();
    link.rtt.get_or_insert(story.rtt);
    let narrow = story.bandwidth.and_then(Bandwidth::from_bits_per_s);
    link.bandwidth = link.bandwidth.or(narrow);
    let tls = story.with_tls.then(Tls::make).transpose();
    let tls = tls.map_err(|error| LabError::system("no certificate", error))?;
    let options = story.broker.iter();
    let wanted = BrokerOptions {
        settings: options
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        certificate: tls.as_ref().map(|it| it.certificate.clone()),
        record: wish.record.map(Path::to_path_buf),
        ..BrokerOptions::default()
    };
    let place = DistantBroker::open(&link, &wanted, start)?;
    let mut told = ScenarioReport {
        story: story.name(),
        title: story.title,
        distance: place.note(),
        ..ScenarioReport::default()
    };
    let measured = Duration::from_secs_f64(wish.seconds.unwrap_or(story.measured_s));
    let mut act = Act {
        story,
        place: &place,
        stop,
        authority: tls.as_ref().map(|it| it.authority.as_str()),
        told: &mut told,
    };
    if let Err(problem) = act.play(measured)? {
        told.problems.push(problem);
    }
    told.is_good = told.problems.is_empty();
    Ok(told)
}

struct Act<'a> {
    story: &'a Scenario,
    place: &'a DistantBroker,
    stop: &'a Stop,
    /// The certificate of the authority that signed the broker's, PEM.
    authority: Option<&'a str>,
    told: &'a mut ScenarioReport,
}

/// Going on makes no sense.
type Ended = Result<(), String>;

impl Act<'_> {
    fn play(&mut self, measured: Duration) -> Result<Ended, LabError> {
        let playing = self.begin(None, 1)?;
        let found = self.wait_for_finding(&playing)?;
        let (finding, before) = match found {
            Ok(found) => found,
            Err(problem) => {
                let ended = playing.end();
                return Ok(Err(ended.err().unwrap_or(problem)));
            }
        };
        if let Err(problem) = playing.end() {
            return Ok(Err(problem));
        }
        let measure = finding.prediction.measure;
        self.told.unit = unit(measure);
        self.told.before = value(measure, &before);
        self.told.bound = finding.prediction.bound;
        self.told.predicted = match measure {
            // The cost of a message depends on the machine; how much less it should be does not.
            Measure::Cost => self.told.before / finding.prediction.gain,
            _ => finding.prediction.after,
        };
        let fix = self.story.fix(&finding);
        self.told.finding = Some(finding);
        let fix = match fix {
            Ok(fix) => fix,
            Err(problem) => return Ok(Err(problem)),
        };
        self.told.change = Some(fix.clone());
        self.after(fix, measure, measured)
    }

    fn begin(&self, fix: Option<AppliedChange>, number: u32) -> Result<RunningClient, LabError> {
        RunningClient::begin(self.place, self.story, (fix, self.authority), number)
    }

    /// The finding, and what the client has done while its numbers were taken.
    fn wait_for_finding(
        &mut self,
        playing: &RunningClient,
    ) -> Result<Result<(Finding, WorkDone), String>, LabError> {
        let called = Instant::now();
        let mut begun: Option<Instant> = None;
        loop {
            if !self.rest(playing, LOOK) {
                return Ok(Err("it was ended".to_owned()));
            }
            if self.report(None)?.findings.iter().any(|it| it.is_active) {
                break;
            }
            if begun.is_none() && playing.client.meter.count().done > 0 {
                begun = Some(Instant::now());
            }
            if begun.is_none() && called.elapsed() > BEGUN_WITHIN {
                let seconds = BEGUN_WITHIN.as_secs();
                let problem = format!("the client has done nothing within {seconds} seconds");
                return Ok(Err(problem));
            }
            if begun.is_some_and(|it| it.elapsed() > FOUND_WITHIN) {
                let seconds = FOUND_WITHIN.as_secs();
                let problem = format!("the doctor has found nothing within {seconds} seconds");
                return Ok(Err(problem));
            }
        }
        self.told.found_s = Some(begun.map_or(0.0, |it| it.elapsed().as_secs_f64()));
        let (goes_on, count) = self.measure(playing, SETTLE);
        if !goes_on {
            return Ok(Err("it was ended".to_owned()));
        }
        let report = self.report(Some(u64::MAX))?;
        let (own, others): (Vec<_>, Vec<_>) = report
            .findings
            .into_iter()
            .partition(|it| it.rule == self.story.rule);
        for other in others {
            let problem = format!("another finding: {}, about {}", other.rule, other.client);
            self.told.problems.push(problem);
        }
        if own.len() > 1 {
            let problem = format!("the same is found {} times", own.len());
            self.told.problems.push(problem);
        }
        let Some(finding) = own.into_iter().next() else {
            return Ok(Err(format!("not found: {}", self.story.rule)));
        };
        if finding.client.library != self.story.library {
            let (is, should_be) = (&finding.client.library, self.story.library);
            let problem = format!("the client is called \"{is}\" and not \"{should_be}\"");
            self.told.problems.push(problem);
        }
        Ok(Ok((finding, count)))
    }

    fn after(
        &mut self,
        fix: AppliedChange,
        measure: Measure,
        measured: Duration,
    ) -> Result<Ended, LabError> {
        let playing = self.begin(Some(fix.clone()), 2)?;
        if !self.rest(&playing, WARM_UP) {
            return Ok(playing.end().and(Err("it was ended".to_owned())));
        }
        let (goes_on, count) = self.measure(&playing, measured);
        let report = self.report(None)?;
        if let Err(problem) = playing.end() {
            return Ok(Err(problem));
        }
        if !goes_on {
            return Ok(Err("it was ended".to_owned()));
        }
        self.told.after = value(measure, &count);
        let since_unix_us = report.unix_us.saturating_sub(measured.as_micros() as u64);
        let now = report.findings.iter();
        for finding in now.filter(|it| it.first_seen_unix_us >= since_unix_us) {
            let next = self.story.fix(finding).ok();
            if finding.rule == self.story.rule && !next.as_ref().is_some_and(|it| it.exceeds(&fix))
            {
                let problem = "after the change the doctor finds the same".to_owned();
                self.told.problems.push(problem);
            }
            let next = next.map_or(String::new(), |it| format!(" ({it})"));
            self.told.afterwards.push(format!("{}{next}", finding.rule));
        }
        let values = Values {
            before: self.told.before,
            predicted: self.told.predicted,
            after: self.told.after,
        };
        let problem = verdict::problem(measure, self.told.bound, values);
        self.told.problems.extend(problem);
        Ok(Ok(()))
    }

    /// The work done within this time, and whether the client goes on.
    fn measure(&self, playing: &RunningClient, time: Duration) -> (bool, WorkDone) {
        let earlier = playing.client.meter.count();
        let costs = Meter::begin(&BrokerPlace::Threads(BROKER_THREADS.to_owned()));
        let goes_on = self.rest(playing, time);
        let count = playing.client.meter.count().since(&earlier);
        let cpu_s = costs.end().broker_cpu_s.unwrap_or_default();
        (goes_on, WorkDone { cpu_s, ..count })
    }

    /// Lets time pass. `false` when the client or the user has ended it.
    fn rest(&self, playing: &RunningClient, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            if self.stop.is_set() || !playing.goes_on() {
                return false;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    fn report(&self, since_us: Option<u64>) -> Result<Report, LabError> {
        self.place.report(&Query {
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

/// As the doctor measures it.
fn value(measure: Measure, count: &WorkDone) -> f64 {
    match measure {
        Measure::ConnectionMessagesPerSecond => count.per_second(),
        Measure::SubscriptionMessagesPerSecond => count.per_busy_second(),
        Measure::LatencyUs => count.mean_us(),
        Measure::Cost => count.cost_us(),
    }
}
