//! What a table does not say by itself, in sentences.

use crate::outcome::{ASKED_RATE, Kind, Outcome, Report};
use crate::plan::Amount;
use crate::schedule::Arrivals;
use crate::words;

/// A generator that is later than this is told of.
const LAG_NS: u64 = 1_000_000;
/// A rate below this share of what was asked for was not reached.
const REACHED: f64 = 0.95;

/// All sentences that belong to a report, each once.
pub(crate) fn of(report: &Report) -> Vec<String> {
    let mut notes = report.notes.clone();
    for row in &report.rows {
        for note in row.runs.iter().flat_map(of_outcome) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
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
    if let Some(failure) = &report.failure {
        notes.push(format!("Rows are missing: {failure}."));
    }
    notes
}

fn is_closed(outcome: &Outcome) -> bool {
    outcome.plan.arrivals == Arrivals::Closed && outcome.kind != Kind::Consume
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
            notes.push(format!(
                "LOST: {label}: {} messages were acknowledged and came to no consumer.",
                words::count(findings.lost)
            ));
        }
        if findings.out_of_order > 0 {
            notes.push(format!(
                "OUT OF ORDER: {label}: {} messages came behind a later one where order is \
                 promised.",
                words::count(findings.out_of_order)
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
    if let Some(produced) = &outcome.produced {
        let lag_ns = produced.lag.quantile_ns(0.99);
        if lag_ns > LAG_NS {
            notes.push(format!(
                "{label}: the generator itself was late: one message in a hundred was sent {} or \
                 more after its time though nothing had to be waited for. Response times contain \
                 that; take more connections or a lower rate.",
                words::time(lag_ns as f64)
            ));
        }
    }
    notes.extend(
        outcome
            .remarks
            .iter()
            .map(|remark| format!("{label}: {remark}.")),
    );
    let sides = [&outcome.produced, &outcome.consumed];
    for tally in sides.into_iter().flatten() {
        for error in &tally.error_texts {
            notes.push(format!("{label} says: {error}"));
        }
        if tally.foreign > 0 {
            notes.push(format!(
                "{label}: {} messages of other programs or earlier measurements came and were not \
                 counted.",
                words::count(tally.foreign)
            ));
        }
    }
    notes
}

/// Whether an open loop's rate was reached.
fn of_rate(outcome: &Outcome) -> Option<String> {
    let rate = outcome.produced.as_ref()?.rate();
    let wanted = match outcome.plan.arrivals {
        Arrivals::Constant { rate } | Arrivals::Poisson { rate } => rate,
        Arrivals::Closed | Arrivals::Bursts { .. } | Arrivals::Ramp { .. } => return None,
    };
    let is_long = !matches!(outcome.plan.amount, Amount::Messages(few) if (few as f64) < wanted);
    let is_missed = is_long && outcome.cut.is_none() && rate < wanted * REACHED;
    is_missed.then(|| {
        format!(
            "{}: of {} messages per second only {} were acknowledged: more than it bears under \
             these settings, so latency grew with time and says little.",
            outcome.subject.label,
            words::number(wanted),
            words::number(rate)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Findings;
    use crate::outcome::Row;
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
        }
        let notes = notes(bad);
        for part in [
            "CUT SHORT: a: it went away",
            "LOST: a: 1,234 messages",
            "OUT OF ORDER: a: 3 messages",
            "2 messages came more than once",
            "4 messages had not been consumed",
            "the generator itself was late: one message in a hundred was sent 2.50 ms or more",
            "a says: no room",
            "a: 7 messages of other programs",
            "a: its topic stays.",
        ] {
            assert_eq!(notes.matches(part).count(), 1, "{part} in\n{notes}");
        }
    }

    #[test]
    fn a_rate_that_was_not_reached_is_told() {
        let mut slow = outcome("a", 5);
        slow.plan.arrivals = Arrivals::Poisson { rate: 2_000.0 };
        let told = notes(slow.clone());
        let expected = "a: of 2,000 messages per second only 1,000 were acknowledged";
        assert!(told.contains(expected), "{told}");
        slow.plan.amount = Amount::Messages(1_000);
        assert_eq!(notes(slow), "", "half a second says nothing about a rate");
    }
}
