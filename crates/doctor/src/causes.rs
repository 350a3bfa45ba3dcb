//! Causes hide symptoms: one cause, one finding.

use std::collections::BTreeSet;

use crate::Rule;

/// A cause, and what looks like it only because of it, on the same client.
const HIDES: &[(Rule, &[Rule])] = &[
    // Who opens a connection for each message cannot have two requests in flight.
    (
        Rule::Churn,
        &[
            Rule::SyncProduce,
            Rule::Linger,
            Rule::OneConnection,
            Rule::TinyBatches,
        ],
    ),
    // Bytes that are held back make each round longer.
    (
        Rule::Nagle,
        &[
            Rule::SyncProduce,
            Rule::OneConnection,
            Rule::WindowTooSmall,
            Rule::FetchRhythm,
        ],
    ),
    // A message that waits in the library for company is alone in its request.
    (
        Rule::Linger,
        &[Rule::SyncProduce, Rule::OneConnection, Rule::TinyBatches],
    ),
    (Rule::SyncProduce, &[Rule::OneConnection, Rule::TinyBatches]),
    (
        Rule::TooManyInFlight,
        &[Rule::OneConnection, Rule::TinyBatches],
    ),
    // What one has too much of times out there, and the others' credit is not the point.
    (Rule::Hoarding, &[Rule::WindowTooSmall, Rule::AckDeadline]),
    (Rule::Partitions, &[Rule::FetchRhythm]),
    (Rule::OneConnection, &[Rule::TinyBatches]),
];

/// Which of these rules, seen at one client, are symptoms of others of them.
pub(crate) fn hidden(seen: &BTreeSet<Rule>) -> BTreeSet<Rule> {
    let causes = HIDES.iter().filter(|(cause, _)| seen.contains(cause));
    let symptoms = causes.flat_map(|(_, symptoms)| symptoms.iter().copied());
    symptoms.filter(|symptom| seen.contains(symptom)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(seen: &[Rule]) -> Vec<Rule> {
        let seen: BTreeSet<Rule> = seen.iter().copied().collect();
        let hidden = hidden(&seen);
        seen.difference(&hidden).copied().collect()
    }

    #[test]
    fn the_cause_is_shown_and_not_the_symptom() {
        use Rule::*;
        assert_eq!(shown(&[Nagle, SyncProduce]), [Nagle]);
        assert_eq!(shown(&[SyncProduce, Linger]), [Linger]);
        assert_eq!(
            shown(&[SyncProduce, WindowTooSmall]),
            [SyncProduce, WindowTooSmall]
        );
        assert_eq!(shown(&[Hoarding, WindowTooSmall, AckDeadline]), [Hoarding]);
        // Two causes are two findings.
        assert_eq!(
            shown(&[Nagle, Linger, SyncProduce, TinyBatches]),
            [Linger, Nagle]
        );
    }

    #[test]
    fn no_two_rules_hide_each_other() {
        for (cause, symptoms) in HIDES {
            for symptom in *symptoms {
                assert_eq!(shown(&[*cause, *symptom]), [*cause]);
            }
        }
        assert!(!shown(&Rule::ALL).is_empty());
    }
}
