//! Causes hide symptoms: one cause, one finding.

use crate::Rule;

/// A cause, and the rules whose signs it causes on the same client.
const HIDES: &[(Rule, &[Rule])] = &[
    // A client that opens a connection for each message cannot have two requests in flight.
    (
        Rule::Churn,
        &[
            Rule::SyncProduce,
            Rule::Linger,
            Rule::OneConnection,
            Rule::TinyBatches,
        ],
    ),
    // Bytes delayed by Nagle's algorithm make each round longer.
    (
        Rule::Nagle,
        &[
            Rule::SyncProduce,
            Rule::OneConnection,
            Rule::WindowTooSmall,
            Rule::FetchRhythm,
            Rule::NoCompression,
        ],
    ),
    // On a full link, requests are given up because they are not sent in time.
    (Rule::NoCompression, &[Rule::TooManyInFlight]),
    // A message that the library delays for batching is alone in its request.
    (
        Rule::Linger,
        &[Rule::SyncProduce, Rule::OneConnection, Rule::TinyBatches],
    ),
    (Rule::SyncProduce, &[Rule::OneConnection, Rule::TinyBatches]),
    (
        Rule::TooManyInFlight,
        &[Rule::OneConnection, Rule::TinyBatches],
    ),
    // Messages that one consumer hoards time out there. The credit of the others is not the cause.
    (Rule::Hoarding, &[Rule::WindowTooSmall, Rule::AckDeadline]),
    (Rule::Partitions, &[Rule::FetchRhythm]),
    (Rule::OneConnection, &[Rule::TinyBatches]),
];

/// Whether the sign of `symptom` is only a consequence of the sign of `cause`.
pub(crate) fn hides(cause: Rule, symptom: Rule) -> bool {
    let of_cause = HIDES.iter().filter(|(rule, _)| *rule == cause);
    of_cause
        .flat_map(|(_, symptoms)| *symptoms)
        .any(|rule| *rule == symptom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(seen: &[Rule]) -> Vec<Rule> {
        let is_hidden = |symptom: &Rule| seen.iter().any(|cause| hides(*cause, *symptom));
        let mut shown = seen.to_vec();
        shown.retain(|rule| !is_hidden(rule));
        shown.sort();
        shown
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
