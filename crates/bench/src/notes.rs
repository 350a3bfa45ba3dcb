//! Notes: sentences about facts that the tables do not show.

use crate::driver::Promise;
use crate::outcome::{ASKED_RATE, Kind, Outcome, Report, Row};
use crate::plan::Amount;
use crate::recorder::ClientStats;
use crate::schedule::Arrivals;
use crate::words;

/// A note reports a generator that sends later than this.
const LAG_NS: u64 = 1_000_000;
/// A note reports a backlog of more than this share of the received messages.
const BACKLOG: f64 = 0.05;
/// A thread, or all cores, that worked for more than this share of the time had no time to spare.
const BUSY: f64 = 0.9;
/// Shorter measurements get no note about busy threads or cores.
const BUSY_MIN_S: f64 = 0.5;
/// Below this share of the requested rate, the rate counts as not reached.
const REACHED: f64 = 0.95;

/// Prefix of the URLs of brokers in this process.
const EMBEDDED: &str = "embedded:";

/// All sentences that belong to a report, each once.
pub(crate) fn of(report: &Report) -> Vec<String> {
    let mut notes = report.notes.clone();
    for row in &report.rows {
        for note in row.runs.iter().flat_map(of_outcome) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes.extend(of_backlog(row));
        notes.extend(of_empty(row));
        // A search for the knee goes beyond it.
        let is_search = row.variations.iter().any(|it| it.name == ASKED_RATE);
        let missed = row.runs.iter().filter_map(of_rate).filter(|_| !is_search);
        for note in missed {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    if report.rows.iter().flat_map(|row| &row.runs).any(is_closed) {
        notes.push(
            "Closed loop: a producer waits for the broker, so there is no intended time, and what \
             a broker's pause delays is not seen. Latency is service time; --rate shows response \
             time."
                .to_owned(),
        );
    }
    if report
        .rows
        .iter()
        .flat_map(|row| &row.runs)
        .any(hides_memory)
    {
        notes.push(
            "The embedded broker's memory is not shown: it lies in one process with the \
             generator's, and who has how much of it cannot be told. Its CPU time can, by its \
             threads. Start `cloverleaf serve` and name it with --url to see both."
                .to_owned(),
        );
    }
    if let Some(failure) = &report.failure {
        notes.push(format!("Rows are missing: {failure}."));
    }
    notes
}

fn is_closed(outcome: &Outcome) -> bool {
    outcome.plan.arrivals == Arrivals::Closed && outcome.kind != Kind::Consume
}

/// Whether the broker runs in this process.
fn hides_memory(outcome: &Outcome) -> bool {
    let usage = &outcome.usage;
    let is_embedded = outcome.subject.url.starts_with(EMBEDDED);
    is_embedded && usage.broker_cpu_s.is_some() && usage.broker_rss_bytes.is_none()
}

fn of_outcome(outcome: &Outcome) -> Vec<String> {
    let label = &outcome.subject.label;
    let mut notes = Vec::new();
    if let Some(reason) = &outcome.cut {
        notes.push(match outcome.main() {
            Some(_) => format!("CUT SHORT: {label}: {reason}. The figures are those until then."),
            None => format!("FAILED: {label}: {reason}."),
        });
    }
    if let Some(findings) = &outcome.findings {
        if findings.lost > 0 {
            let lost = words::count(findings.lost);
            notes.push(match outcome.subject.promise {
                Promise::None => format!(
                    "LOST: {label}: {lost} messages were sent and came to no consumer. Nobody \
                     acknowledges them with these settings, so nothing else was promised."
                ),
                _ => format!(
                    "LOST: {label}: {lost} messages were acknowledged and came to no consumer."
                ),
            });
        }
        if findings.out_of_order > 0 {
            notes.push(format!(
                "OUT OF ORDER: {label}: {} messages came behind a later one of the same producer \
                 {}.",
                words::count(findings.out_of_order),
                match &outcome.subject.may_reorder {
                    None => "where order is promised".to_owned(),
                    Some(why) => format!("on the same way. The broker need not be at fault: {why}"),
                }
            ));
        }
        if findings.duplicates > 0 {
            notes.push(format!(
                "{label}: {} messages came more than once, which a broker that delivers at least \
                 once may do.",
                words::count(findings.duplicates)
            ));
        }
        if findings.unread > 0 {
            notes.push(format!(
                "{label}: {} messages had not been consumed when it was over; whether one of \
                 them is lost is not known.",
                words::count(findings.unread)
            ));
        }
    }
    notes.extend(of_busy(outcome));
    if let Some(produced) = &outcome.produced {
        let lag_ns = produced.lag.quantile_ns(0.99);
        if is_late(produced) {
            notes.push(format!(
                "{label}: the generator itself was late: one message in a hundred was sent {} or \
                 more after its time though nothing had to be waited for. Response times contain \
                 that; take more connections or a lower rate.",
                words::time(lag_ns as f64)
            ));
        }
    }
    notes.extend(of_faults(outcome));
    notes.extend(
        outcome
            .remarks
            .iter()
            .map(|remark| format!("{label}: {remark}.")),
    );
    let sides = [&outcome.produced, &outcome.consumed];
    for stats in sides.into_iter().flatten() {
        for error in &stats.error_texts {
            notes.push(format!("{label} says: {error}"));
        }
        if stats.early > 0 {
            notes.push(format!(
                "{label}: {} messages came before they were sent, by the clocks of their machines: \
                 latencies are wrong by more than that, and these count as none.",
                words::count(stats.early)
            ));
        }
        if stats.foreign > 0 {
            notes.push(format!(
                "{label}: {} messages of other programs or earlier measurements came and were not \
                 counted.",
                words::count(stats.foreign)
            ));
        }
    }
    notes
}

/// Whether the generator may be what was measured.
fn of_busy(outcome: &Outcome) -> Option<String> {
    // In a very short time, a thread's load means nothing.
    if outcome.usage.wall_s < BUSY_MIN_S {
        return None;
    }
    let label = &outcome.subject.label;
    let busy = |stats: &Option<ClientStats>| stats.as_ref().map_or(0.0, |it| it.busy) > BUSY;
    let who = match (busy(&outcome.produced), busy(&outcome.consumed)) {
        (true, true) => "a producer and a consumer",
        (true, false) => "a producer",
        (false, true) => "a consumer",
        (false, false) => {
            let cores = outcome.usage.cores_busy.filter(|share| *share > BUSY);
            return cores.map(|_| {
                format!(
                    "{label}: all cores of the generator's machine were busy, so that its threads, \
                     and those of a broker there, waited for a processor: rates would be higher, \
                     and latencies lower, with more cores."
                )
            });
        }
    };
    Some(format!(
        "{label}: {who} of the generator used a whole core nearly all the time: the generator may \
         be the limit, and what waits for it is in the latencies. Take more connections if there \
         are cores to spare, or more machines."
    ))
}

/// The backlog when the producers had ended, of the run with the largest one.
fn of_backlog(row: &Row) -> Option<String> {
    let left = |run: &Outcome| run.consumed.as_ref()?.meanwhile.map(|it| it.backlog);
    let outcome = row.counted().max_by_key(|run| left(run))?;
    let consumed = outcome.consumed.as_ref()?;
    let meanwhile = consumed.meanwhile.as_ref()?;
    let waited_s = meanwhile.backlog as f64 / meanwhile.rate();
    (waited_s > meanwhile.seconds * BACKLOG).then(|| {
        format!(
            "{}: consumers were slower than producers: when these had ended, up to {} messages had \
             not come, which took another {}. The rate of consumers is that of the time before; \
             latency contains the waiting, and such a load does not last.",
            outcome.subject.label,
            words::count(meanwhile.backlog),
            words::time(meanwhile.drain_s * 1e9)
        )
    })
}

/// A note if consumers emptied the topic before their time ended, about the run that ended first.
fn of_empty(row: &Row) -> Option<String> {
    let span_ns = |run: &Outcome| Some((run.consumed.as_ref()?.span_s() * 1e9) as u64);
    let outcome = row.counted().min_by_key(|run| span_ns(run))?;
    let consumed = outcome.consumed.as_ref()?;
    let Amount::Seconds(seconds) = outcome.plan.amount else {
        return None;
    };
    let has_all = outcome.findings.is_some_and(|found| found.unread == 0);
    let is_short = consumed.span_s() < seconds * REACHED;
    let is_empty = outcome.kind == Kind::Consume && outcome.cut.is_none() && has_all && is_short;
    is_empty.then(|| {
        format!(
            "{}: the topic was empty after {} of {}, because consumers are faster than who fills \
             it; the rate is that of this time.",
            outcome.subject.label,
            words::time(consumed.span_s() * 1e9),
            words::time(seconds * 1e9)
        )
    })
}

/// Messages that were refused, not answered, or damaged on their way.
fn of_faults(outcome: &Outcome) -> Vec<String> {
    let label = &outcome.subject.label;
    let mut notes = Vec::new();
    let sides = [&outcome.produced, &outcome.consumed];
    for stats in sides.into_iter().flatten() {
        let refused = stats.errors.saturating_sub(stats.unanswered);
        if refused > 0 {
            notes.push(format!(
                "ERRORS: {label}: {} messages were refused, or lost their connection before they \
                 were acknowledged. Latencies are those of the others.",
                words::count(refused)
            ));
        }
        if stats.unanswered > 0 {
            notes.push(format!(
                "NO ANSWER: {label}: {} messages were not acknowledged until they were given up. \
                 They stand in the latencies with the time until then; in truth it is longer.",
                words::count(stats.unanswered)
            ));
        }
        if stats.damaged > 0 {
            notes.push(format!(
                "DAMAGED: {label}: {} messages came with other bytes than they were sent with. If \
                 they were acknowledged, they are among those that came to no consumer.",
                words::count(stats.damaged)
            ));
        }
    }
    notes
}

/// Whether an open loop's rate was reached.
fn of_rate(outcome: &Outcome) -> Option<String> {
    let produced = outcome.produced.as_ref()?;
    let rate = produced.rate();
    let wanted = match outcome.plan.arrivals {
        Arrivals::Constant { rate } | Arrivals::Poisson { rate } => rate,
        Arrivals::Closed | Arrivals::Bursts { .. } | Arrivals::Ramp { .. } => return None,
    };
    let is_long = !matches!(outcome.plan.amount, Amount::Messages(few) if (few as f64) < wanted);
    let taken = produced.messages as f64 / produced.taken_s();
    let is_missed = is_long && outcome.cut.is_none() && taken < wanted * REACHED;
    is_missed.then(|| {
        format!(
            "{}: of {} messages per second only {} were acknowledged: {}, so latency grew with \
             time and says little.",
            outcome.subject.label,
            words::number(wanted),
            words::number(rate),
            if is_generators(outcome) {
                "more than it bears under these settings, or than the generator or this \
                     machine can do, as other notes say"
            } else {
                "more than it bears under these settings"
            }
        )
    })
}

/// Whether it may be the generator that was too slow, not the broker.
fn is_generators(outcome: &Outcome) -> bool {
    let sides = [&outcome.produced, &outcome.consumed];
    let is_busy = sides.into_iter().flatten().any(|stats| stats.busy > BUSY);
    let is_late = outcome.produced.as_ref().is_some_and(is_late);
    let cores = outcome.usage.cores_busy.is_some_and(|share| share > BUSY);
    is_busy || is_late || cores
}

fn is_late(produced: &ClientStats) -> bool {
    produced.lag.quantile_ns(0.99) > LAG_NS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Findings;
    use crate::meanwhile::Meanwhile;
    use crate::table::tests::{outcome, report};

    fn notes(outcome: Outcome) -> String {
        let row = Row {
            variations: Vec::new(),
            runs: vec![outcome.clone(), outcome],
        };
        of(&report(vec![row])).join("\n").replace('\u{a0}', " ")
    }

    #[test]
    fn what_is_well_is_not_talked_about() {
        assert_eq!(notes(outcome("a", 5)), "");
    }

    #[test]
    fn what_is_not_well_is_said_once() {
        let mut bad = outcome("a", 5);
        bad.findings = Some(Findings {
            lost: 1_234,
            duplicates: 2,
            out_of_order: 3,
            unread: 4,
        });
        bad.cut = Some("it went away".to_owned());
        bad.remarks = vec!["its topic stays".to_owned()];
        if let Some(produced) = &mut bad.produced {
            (0..30).for_each(|_| produced.lag.record(2_500_000));
            produced.error_texts = vec!["no room".to_owned()];
            produced.foreign = 7;
            produced.early = 8;
            (produced.errors, produced.unanswered) = (9, 4);
        }
        if let Some(consumed) = &mut bad.consumed {
            consumed.damaged = 6;
        }
        let notes = notes(bad);
        for part in [
            "CUT SHORT: a: it went away",
            "LOST: a: 1,234 messages",
            "OUT OF ORDER: a: 3 messages came behind a later one of the same producer where order \
             is promised.",
            "ERRORS: a: 5 messages were refused",
            "NO ANSWER: a: 4 messages were not acknowledged",
            "DAMAGED: a: 6 messages came with other bytes",
            "2 messages came more than once",
            "4 messages had not been consumed",
            "the generator itself was late: one message in a hundred was sent 2.50 ms or more",
            "a says: no room",
            "a: 7 messages of other programs",
            "a: 8 messages came before they were sent",
            "a: its topic stays.",
        ] {
            assert_eq!(notes.matches(part).count(), 1, "{part} in\n{notes}");
        }
    }

    #[test]
    fn a_generator_without_time_to_spare_is_told() {
        let changed = |change: fn(&mut Outcome)| {
            let mut run = outcome("a", 5);
            run.usage.cores_busy = Some(0.5);
            change(&mut run);
            notes(run)
        };
        assert_eq!(changed(|_| ()), "");
        let busy = |stats: &mut Option<ClientStats>| stats.iter_mut().for_each(|it| it.busy = 0.97);
        let told = changed(|run| run.usage.cores_busy = Some(0.97));
        assert!(
            told.contains("a: all cores of the generator's machine were busy"),
            "{told}"
        );
        let one = |run: &mut Outcome| {
            run.consumed.iter_mut().for_each(|it| it.busy = 0.97);
            run.usage.cores_busy = Some(1.0);
        };
        let told = changed(one);
        assert!(
            told.contains("a: a consumer of the generator used"),
            "{told}"
        );
        let mut both = outcome("a", 5);
        busy(&mut both.produced);
        busy(&mut both.consumed);
        assert!(notes(both.clone()).contains("a producer and a consumer of the generator"));
        both.usage.wall_s = 0.1;
        assert_eq!(notes(both), "", "a moment says nothing");
    }

    #[test]
    fn what_consumers_did_not_get_in_time_is_told() {
        let mut slow = outcome("a", 5);
        let meanwhile = Meanwhile {
            messages: 400,
            seconds: 1.0,
            backlog: 600,
            drain_s: 1.5,
        };
        slow.consumed
            .iter_mut()
            .for_each(|it| it.meanwhile = Some(meanwhile));
        let told = notes(slow.clone());
        assert!(
            told.contains("up to 600 messages had not come, which took another 1.50 s"),
            "{told}"
        );
        let few = Meanwhile {
            backlog: 10,
            ..meanwhile
        };
        slow.consumed
            .iter_mut()
            .for_each(|it| it.meanwhile = Some(few));
        assert_eq!(notes(slow), "");
    }

    #[test]
    fn a_topic_that_was_empty_before_the_time_was_over_is_told() {
        let mut run = outcome("a", 5);
        run.kind = Kind::Consume;
        run.produced = None;
        run.plan.amount = Amount::Seconds(4.0);
        let told = notes(run.clone());
        assert!(
            told.contains("the topic was empty after 1.00 s of 4.00 s"),
            "{told}"
        );
        run.plan.amount = Amount::Messages(1_000);
        assert_eq!(notes(run), "");
    }

    #[test]
    fn why_a_figure_is_missing_is_told() {
        let mut embedded = outcome("a", 5);
        embedded.subject.url = "embedded:nsq".to_owned();
        assert_eq!(notes(embedded.clone()), "", "its process was named");
        embedded.usage.broker_rss_bytes = None;
        let told = notes(embedded);
        assert_eq!(told.matches("memory is not shown").count(), 1, "{told}");
    }

    #[test]
    fn nobody_is_blamed_for_what_was_not_promised() {
        let mut bad = outcome("a", 5);
        bad.findings = Some(Findings {
            lost: 7,
            out_of_order: 3,
            ..Findings::default()
        });
        bad.subject.promise = Promise::None;
        bad.subject.may_reorder = Some("its client sends again".to_owned());
        assert!(!bad.is_good(), "it is told, and by the exit status");
        let notes = notes(bad);
        for part in [
            "LOST: a: 7 messages were sent and came to no consumer. Nobody acknowledges",
            "OUT OF ORDER: a: 3 messages",
            "The broker need not be at fault: its client sends again.",
        ] {
            assert!(notes.contains(part), "{part} in\n{notes}");
        }
        assert!(!notes.contains("were acknowledged and") && !notes.contains("order is promised"));
    }

    #[test]
    fn a_rate_that_was_not_reached_is_told() {
        let mut slow = outcome("a", 5);
        slow.plan.arrivals = Arrivals::Poisson { rate: 2_000.0 };
        let told = notes(slow.clone());
        let expected = "a: of 2,000 messages per second only 1,000 were acknowledged: more than \
                        it bears under these settings, so";
        assert!(told.contains(expected), "{told}");
        // It may be the generator's fault.
        let changes: [fn(&mut Outcome); 3] = [
            |it| it.produced.iter_mut().for_each(|it| it.busy = 0.99),
            |it| it.usage.cores_busy = Some(0.99),
            |it| {
                let produced = it.produced.iter_mut();
                produced.for_each(|it| (0..30).for_each(|_| it.lag.record(2_500_000)));
            },
        ];
        for change in changes {
            let mut limited = slow.clone();
            change(&mut limited);
            let told = notes(limited);
            assert!(
                told.contains("or than the generator or this machine can do"),
                "{told}"
            );
        }
        slow.plan.amount = Amount::Messages(1_000);
        assert_eq!(notes(slow), "", "half a second says nothing about a rate");
    }
}
