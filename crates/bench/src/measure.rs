//! One measurement from its first connection to its last message.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::check::Ranges;
use crate::clock::Clock;
use crate::driver::{Connect, DriverError, Stop};
use crate::meanwhile::Overlap;
use crate::outcome::{Kind, Outcome, Subject};
use crate::plan::{Amount, Plan};
use crate::recorder::{ClientStats, Live, Second};
use crate::schedule::Arrivals;
use crate::sides::{Connections, Ending, Part, Standing};
use crate::times::Times;
use crate::usage::{BrokerPlace, Meter, Usage};
use crate::words;

/// Time between connecting and the first message, in which all threads start.
const RUN_UP_NS: u64 = 50_000_000;
/// Minimum of messages in one request when a topic is filled.
const FILL_BATCH: u32 = 200;
/// Maximum of messages in flight when a topic is filled.
const FILL_IN_FLIGHT: u32 = 2_000;

/// One second of a measurement, which is shown during it.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// Number of the second, from the beginning of the measurement.
    pub second: u32,
    /// The producers' figures of this second.
    pub produced: Second,
    /// The consumers' figures of this second.
    pub consumed: Second,
}

/// The broker to be measured.
pub struct Target<'t> {
    /// The client.
    pub connect: &'t dyn Connect,
    /// The broker's name in tables.
    pub label: String,
    /// The URL as the user gave it.
    pub url: String,
    /// Where the broker runs.
    pub place: BrokerPlace,
    /// Whether the topic is the user's, and must not be removed.
    pub keeps_topic: bool,
}

impl Target<'_> {
    /// Measures. `progress` is called with each second once it is over; `stop` ends the measurement
    /// early.
    ///
    /// # Errors
    /// The measurement could not begin. Later failures are in [`Outcome::cut`].
    pub fn measure(
        &self,
        kind: Kind,
        plan: &Plan,
        stop: &Stop,
        mut progress: impl FnMut(&Progress),
    ) -> Result<Outcome, DriverError> {
        self.measure_by(kind, plan, stop, |plan, sides, outcome| {
            self.here(plan, sides, outcome, stop, &mut progress)
        })
    }

    /// Measures; `work` generates the load, from connections of this process or of other machines'
    /// workers.
    ///
    /// # Errors
    /// As [`Target::measure`].
    pub(crate) fn measure_by(
        &self,
        kind: Kind,
        plan: &Plan,
        stop: &Stop,
        mut work: impl FnMut(&Plan, &Sides<'_>, &mut Outcome) -> Result<(), DriverError>,
    ) -> Result<Outcome, DriverError> {
        let started = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let plan = &Plan {
            // A subscription without readers would cost the broker something.
            consumers: if kind == Kind::Produce {
                0
            } else {
                plan.consumers
            },
            // If the plan sets a number of messages, the topic is filled with just these, none for
            // a warm-up, and all of them are measured.
            warm_up_s: match (kind, plan.amount) {
                (Kind::Consume, Amount::Messages(_)) => 0.0,
                _ => plan.warm_up_s,
            },
            ..plan.clone()
        };
        self.connect.prepare(plan)?;
        let mut outcome = Outcome {
            subject: Subject {
                label: self.label.clone(),
                url: self.url.clone(),
                versions: self.versions(),
                promise: self.connect.promise(plan),
                is_claimed: false,
                may_reorder: self.connect.may_reorder(plan),
            },
            kind,
            plan: plan.clone(),
            started_unix_ms: u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
            produced: None,
            consumed: None,
            findings: None,
            usage: Usage::default(),
            cut: None,
            remarks: Vec::new(),
        };
        let sides = Sides {
            produces: kind != Kind::Consume,
            consumes: kind != Kind::Produce,
            filled: None,
        };
        let measured = match kind {
            Kind::Produce | Kind::EndToEnd => work(plan, &sides, &mut outcome),
            Kind::Consume => self.fill(plan, stop).and_then(|filled| {
                let filled = Some(&filled);
                work(plan, &Sides { filled, ..sides }, &mut outcome)
            }),
        };
        outcome.remarks.extend(self.connect.remarks());
        // The topic is removed after a failed measurement, too.
        let cleaned = if self.keeps_topic {
            Ok(())
        } else {
            self.connect.clean_up(plan)
        };
        measured?;
        if stop.is_set() {
            let reason = "it was stopped before its time".to_owned();
            outcome.cut.get_or_insert(reason);
        }
        outcome
            .remarks
            .extend(cleaned.err().map(|error| error.to_string()));
        Ok(outcome)
    }

    /// The versions of client and broker, and the processes whose costs count as the broker's.
    fn versions(&self) -> Vec<(String, String)> {
        let mut versions = self.connect.versions();
        let process = self.place.names();
        versions.extend(process.map(|names| ("broker process".to_owned(), names)));
        versions
    }

    /// Publishes the messages that will be consumed, as fast as possible.
    fn fill(&self, plan: &Plan, stop: &Stop) -> Result<ClientStats, DriverError> {
        let plan = Plan {
            arrivals: Arrivals::Closed,
            warm_up_s: 0.0,
            batch_messages: plan.batch_messages.max(FILL_BATCH),
            in_flight: FILL_IN_FLIGHT,
            amount: match plan.amount {
                Amount::Messages(messages) => Amount::Messages(messages),
                // The speed of consumers is unknown. If they are faster than producers, the topic
                // is empty before the time is over, and the notes say so.
                Amount::Seconds(seconds) => Amount::Seconds(plan.warm_up_s + seconds),
            },
            ..plan.clone()
        };
        let part = Part::whole(&plan, true, false);
        let mut connections = Connections::open(self.connect, &plan, &part)?;
        let times = Times::new(Clock::new(), 0, &plan, false);
        let (produced, consumed) = (Live::default(), Live::default());
        let live = (&produced, &consumed);
        let until_done = |standing: &Standing| standing.producers_are_done;
        let (mut sent, _) = connections.run(&plan, &times, stop, live, until_done);
        if let Some(error) = sent.errors.pop() {
            return Err(error);
        }
        let stats = sent.stats;
        if stats.errors > 0 && !stop.is_set() {
            // Consumers would find fewer messages than the plan has.
            let words = stats.error_texts.first();
            return Err(DriverError::Refused {
                url: self.url.clone(),
                reason: format!(
                    "{} messages could not be put in for consumers, the first because {}",
                    stats.errors,
                    words.map_or("of nothing that it says", String::as_str)
                ),
            });
        }
        Ok(stats)
    }

    /// Measures with connections of this process.
    fn here(
        &self,
        plan: &Plan,
        sides: &Sides<'_>,
        outcome: &mut Outcome,
        stop: &Stop,
        progress: &mut impl FnMut(&Progress),
    ) -> Result<(), DriverError> {
        let part = Part::whole(plan, sides.produces, sides.consumes);
        let mut connections = Connections::open(self.connect, plan, &part)?;
        let clock = Clock::new();
        let start_ns = clock.now_ns() + RUN_UP_NS;
        let times = Times::new(clock, start_ns, plan, sides.filled.is_some());
        let times = times.with_messages(sides.put_in(), plan);
        let planned_ns = times.measured_from_ns();
        let (produced, consumed) = (Live::default(), Live::default());
        let mut watch = Watch::new(&times, &produced, &consumed, progress);
        let mut meter = Meter::begin(&self.place);
        let (mut is_warm, mut is_whole) = (false, true);
        let quiet = self.connect.quiet(plan);
        let mut ending = Ending::new(plan, sides.consumes, sides.put_in(), (start_ns, quiet));
        let mut overlap = Overlap::new(times.measured_from_ns(), plan.warm_up_s > 0.0);
        let live = (&produced, &consumed);
        let (sent, came) = connections.run(plan, &times, stop, live, |standing| {
            if !is_warm && standing.now_ns >= times.measured_from_ns() {
                is_warm = true;
                meter = Meter::begin(&self.place);
            }
            meter.look();
            overlap.look(standing);
            watch.show(standing.now_ns);
            ending.shorten(stop.silence_ns());
            let ended = ending.look(standing, stop.is_set());
            is_whole = ended.unwrap_or(is_whole);
            ended.is_some()
        });
        watch.show(u64::MAX);
        outcome.usage = meter.end();
        if times.measured_from_ns() < planned_ns {
            // Without numbers, so that the remark of all runs is the same and appears once.
            let early = "the warm-up ended early, because consumers had its share of the messages";
            outcome.remarks.push(early.to_owned());
        }
        let errors = sent.errors.iter().chain(&came.errors);
        outcome.cut = errors.map(ToString::to_string).next();
        let tallies = (sent.stats, came.stats);
        sides.settle(outcome, tallies, &overlap, is_whole, stop);
        say_how_long(outcome, quiet);
        Ok(())
    }
}

/// Adds a remark about how long lost messages were waited for.
pub(crate) fn say_how_long(outcome: &mut Outcome, quiet: Duration) {
    if outcome.findings.is_some_and(|findings| findings.lost > 0) {
        outcome.remarks.push(format!(
            "what is called lost had not come when nothing had come for {} s",
            words::number(quiet.as_secs_f64())
        ));
    }
}

/// Which sides are measured: producers, consumers, or both at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sides<'f> {
    pub(crate) produces: bool,
    pub(crate) consumes: bool,
    /// Statistics of the messages that were published before, if these are consumed.
    pub(crate) filled: Option<&'f ClientStats>,
}

impl Sides<'_> {
    /// Number of messages that were published before.
    pub(crate) fn put_in(&self) -> Option<u64> {
        let filled = self.filled?;
        Some(filled.acked.values().map(Ranges::len).sum())
    }

    /// Writes the statistics of both sides into the outcome. `is_whole`: consumers could receive
    /// all messages.
    pub(crate) fn settle(
        &self,
        outcome: &mut Outcome,
        (mut sent, mut came): (ClientStats, ClientStats),
        overlap: &Overlap,
        is_whole: bool,
        stop: &Stop,
    ) {
        let has_ended = outcome.cut.is_none() && !stop.is_set();
        if let Some(seconds) = outcome.plan.least_s().filter(|_| has_ended) {
            sent.lasted(seconds);
        }
        if self.filled.is_some() && has_ended && came.messages == 0 && !came.seen.is_empty() {
            let empty = "the topic was empty before the warm-up was over; take a longer \
                         --duration or a shorter --warm-up";
            outcome.cut = Some(empty.to_owned());
        }
        if self.produces && self.consumes {
            let last_ns = came.span_ns.map(|(_, last)| last);
            came.meanwhile = last_ns.and_then(|last_ns| overlap.end(last_ns));
        }
        let sent = self.produces.then_some(sent);
        let came = self.consumes.then_some(came);
        if let Some(came) = &came {
            let acked = sent.as_ref().or(self.filled).map(|stats| &stats.acked);
            let findings = acked.map(|acked| came.seen.compare(acked));
            let is_whole = is_whole && outcome.cut.is_none();
            outcome.findings = findings.map(|findings| {
                if is_whole {
                    findings
                } else {
                    findings.of_the_unfinished()
                }
            });
        }
        (outcome.produced, outcome.consumed) = (sent, came);
    }
}

/// Shows a measurement while its threads work.
pub(crate) struct Watch<'w, F> {
    measured_from_ns: u64,
    /// Seconds before this one have been shown.
    shown: u32,
    produced: &'w Live,
    consumed: &'w Live,
    progress: &'w mut F,
}

impl<'w, F: FnMut(&Progress)> Watch<'w, F> {
    pub(crate) fn new(
        times: &Times,
        produced: &'w Live,
        consumed: &'w Live,
        progress: &'w mut F,
    ) -> Watch<'w, F> {
        Watch {
            measured_from_ns: times.measured_from_ns(),
            shown: 0,
            produced,
            consumed,
            progress,
        }
    }

    /// Shows the seconds that are over.
    pub(crate) fn show(&mut self, now_ns: u64) {
        // One second late, because a recorder adds a second to the figures only when the first
        // message of a later one comes.
        let since_ns = now_ns.saturating_sub(self.measured_from_ns);
        let before = match now_ns {
            u64::MAX => u32::MAX,
            _ => u32::try_from(since_ns / 1_000_000_000)
                .unwrap_or(u32::MAX)
                .saturating_sub(1),
        };
        if before <= self.shown {
            return;
        }
        let mut produced = self.produced.take(before);
        let mut consumed = self.consumed.take(before);
        let seconds: std::collections::BTreeSet<u32> =
            produced.keys().chain(consumed.keys()).copied().collect();
        for second in seconds {
            (self.progress)(&Progress {
                second,
                produced: produced.remove(&second).unwrap_or_default(),
                consumed: consumed.remove(&second).unwrap_or_default(),
            });
        }
        self.shown = before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::outcome;

    #[test]
    fn a_topic_that_was_empty_within_the_warm_up_is_told() {
        let filled = ClientStats::default();
        let sides = Sides {
            produces: false,
            consumes: true,
            filled: Some(&filled),
        };
        let settled = |came: ClientStats| {
            let mut run = outcome("a", 1);
            let tallies = (ClientStats::default(), came);
            sides.settle(
                &mut run,
                tallies,
                &Overlap::default(),
                true,
                &Stop::default(),
            );
            run.cut.unwrap_or_default()
        };
        assert_eq!(
            settled(ClientStats::default()),
            "",
            "what does not come is lost"
        );
        let mut came = ClientStats::default();
        came.seen.came(0, 0, None);
        assert!(settled(came.clone()).contains("empty before the warm-up was over"));
        came.messages = 1;
        assert_eq!(settled(came), "");
    }
}
