//! Whether a change has the effect that was predicted.

use cloverleaf_doctor::{Bound, Measure};

/// How many times greater or smaller than predicted the measured value may be.
const FACTOR_MAX: f64 = 1.5;

/// The least gain of a change that was predicted to help "up to" some factor: the doctor reports
/// no smaller gains.
const GAIN_MIN: f64 = 1.3;

/// The measured value before the change, the predicted one, and the measured one after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct EffectValues {
    pub(super) before: f64,
    pub(super) predicted: f64,
    pub(super) after: f64,
}

/// The fault of a prediction, if it has one.
pub(super) fn problem(measure: Measure, bound: Bound, values: EffectValues) -> Option<String> {
    let EffectValues {
        before,
        predicted,
        after,
    } = values;
    let factor = after / predicted;
    // How many times as good as predicted, and how many times better than before.
    let (reached, gain) = if smaller_is_better(measure) {
        (1.0 / factor, before / after)
    } else {
        (factor, after / before)
    };
    let is_reached = reached >= 1.0 / FACTOR_MAX;
    let is_kept = reached <= FACTOR_MAX;
    match bound {
        Bound::Exact if is_reached && is_kept => None,
        Bound::AtLeast if is_reached => None,
        Bound::AtMost if is_kept && gain >= GAIN_MIN => None,
        // NaN is no success.
        Bound::AtMost if is_kept => Some(format!(
            "the change does not help: {gain:.2} times as good as before"
        )),
        _ => Some(format!(
            "the prediction is wrong: measured is {factor:.2} of it"
        )),
    }
}

/// Whether a smaller value is better.
fn smaller_is_better(measure: Measure) -> bool {
    match measure {
        Measure::ConnectionMessagesPerSecond | Measure::SubscriptionMessagesPerSecond => false,
        Measure::LatencyUs | Measure::Cost => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_good(bound: Bound, before: f64, predicted: f64, after: f64) -> bool {
        let values = EffectValues {
            before,
            predicted,
            after,
        };
        let of_rate = problem(Measure::SubscriptionMessagesPerSecond, bound, values);
        // The same of a time: all upside down.
        let values = EffectValues {
            before: 1e6 / before,
            predicted: 1e6 / predicted,
            after: 1e6 / after,
        };
        let of_time = problem(Measure::LatencyUs, bound, values);
        assert_eq!(of_rate.is_none(), of_time.is_none());
        of_rate.is_none()
    }

    #[test]
    fn each_bound_is_checked_as_what_it_is() {
        for (after, [exact, at_least, at_most]) in [
            (100.0, [false, false, false]),
            (125.0, [false, false, false]),
            (140.0, [false, false, true]),
            (600.0, [false, false, true]),
            (700.0, [true, true, true]),
            (1_400.0, [true, true, true]),
            (1_600.0, [false, true, false]),
            (9_000.0, [false, true, false]),
            (f64::NAN, [false, false, false]),
        ] {
            let good = |bound| is_good(bound, 100.0, 1_000.0, after);
            let all = [Bound::Exact, Bound::AtLeast, Bound::AtMost].map(good);
            assert_eq!(all, [exact, at_least, at_most], "{after}");
        }
    }
}
