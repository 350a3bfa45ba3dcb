//! How far another machine's clock is ahead, estimated by round trips.
//!
//! ```text
//! here    sent ─────────────────────────── came
//!              ╲                         ╱
//! there          ─────── theirs ────────
//! ```
//!
//! The other clock was read between `sent` and `came`. The estimate takes the middle, which is
//! wrong by at most half a round trip, so the shortest round trip gives the best estimate.

use std::fmt;

use crate::words;

/// The times of one request and its answer, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    pub(super) sent_ns: u64,
    pub(super) theirs_ns: u64,
    pub(super) came_ns: u64,
}

/// The estimated difference of another clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Offset {
    /// Nanoseconds by which the other clock is ahead of ours; negative: it is behind.
    pub(super) ahead_ns: i64,
    /// The shortest round trip. `ahead_ns` is wrong by at most half of it.
    pub(super) round_ns: u64,
}

impl Offset {
    /// Estimates the difference from the shortest of these round trips.
    pub(super) fn of(rounds: &[Round]) -> Offset {
        let length = |round: &&Round| round.came_ns.saturating_sub(round.sent_ns);
        let Some(best) = rounds.iter().min_by_key(length) else {
            return Offset::default();
        };
        let round_ns = length(&best);
        let middle = i128::from(best.sent_ns) + i128::from(round_ns / 2);
        let ahead = i128::from(best.theirs_ns) - middle;
        Offset {
            ahead_ns: i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX }),
            round_ns,
        }
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let where_to = if self.ahead_ns < 0 { "behind" } else { "ahead" };
        let error_us = self.round_ns as f64 / 2_000.0;
        let (by, unit) = match self.ahead_ns.unsigned_abs() {
            ns @ ..10_000_000 => (ns as f64 / 1_000.0, "µs"),
            ns => (ns as f64 / 1_000_000.0, "ms"),
        };
        write!(
            f,
            "its clock is {by:.1} {unit} {where_to}, ± {error_us:.1} µs"
        )
    }
}

/// A sentence on the maximum error of a latency between two of these machines. Each clock was
/// compared before and after the measurement. `None`: there is only one machine.
pub(super) fn error_of(clocks: &[(Offset, Offset)]) -> Option<String> {
    let drift_ns = |(before, after): &(Offset, Offset)| before.ahead_ns.abs_diff(after.ahead_ns);
    let error_ns = |clock: &(Offset, Offset)| clock.0.round_ns / 2 + drift_ns(clock);
    let mut errors: Vec<u64> = clocks.iter().map(error_ns).collect();
    errors.sort_unstable_by(|one, two| two.cmp(one));
    let [one, two, ..] = errors.as_slice() else {
        return None;
    };
    let drift_ns = clocks.iter().map(drift_ns).max().unwrap_or(0);
    Some(format!(
        "a latency between two workers may be wrong by {} by their clocks, which were compared \
         before and after and went apart by {} at most meanwhile",
        words::time(one.saturating_add(*two) as f64),
        words::time(drift_ns as f64)
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_true_offset_lies_within_the_error(
            ahead_ns in -1_000_000_000_000i64..1_000_000_000_000,
            rounds in prop::collection::vec((1..50_000_000u64, 0..50_000_000u64), 1..10),
        ) {
            let mut now_ns = 1_800_000_000_000_000_000u64;
            let mut all = Vec::new();
            for (there, back) in rounds {
                let read = now_ns + there;
                all.push(Round {
                    sent_ns: now_ns,
                    theirs_ns: read.saturating_add_signed(ahead_ns),
                    came_ns: read + back,
                });
                now_ns = read + back + 1_000;
            }
            let found = Offset::of(&all);
            let error_ns = found.round_ns / 2 + 1;
            prop_assert!(found.ahead_ns.abs_diff(ahead_ns) <= error_ns, "{found:?}");
        }
    }

    #[test]
    fn errors_of_two_clocks_add_up_and_drift_is_seen() {
        let clock = |ahead_ns, round_ns| Offset { ahead_ns, round_ns };
        let still = (clock(5_000_000, 20_000), clock(5_000_000, 30_000));
        assert_eq!(error_of(&[still]), None, "it has one clock");
        let drifts = (clock(-100_000, 40_000), clock(200_000, 40_000));
        let told = error_of(&[still, still, drifts]).unwrap_or_default();
        let told = told.replace('\u{a0}', " ");
        assert!(told.contains("wrong by 330 µs"), "{told}");
        assert!(told.contains("apart by 300 µs"), "{told}");
    }

    #[test]
    fn it_is_said_with_its_error() {
        let round = |sent_ns, theirs_ns, came_ns| Round {
            sent_ns,
            theirs_ns,
            came_ns,
        };
        let offset = Offset::of(&[round(0, 900_000, 1_000_000), round(100, 1_150, 200)]);
        assert_eq!(
            offset,
            Offset {
                ahead_ns: 1_000,
                round_ns: 100
            }
        );
        assert_eq!(offset.to_string(), "its clock is 1.0 µs ahead, ± 0.1 µs");
        assert_eq!(Offset::of(&[]), Offset::default());
        // A clock that is wrong by centuries.
        let _ = Offset::of(&[
            round(u64::MAX - 9, 0, u64::MAX),
            round(0, u64::MAX, 1_000_000),
        ]);
    }
}
