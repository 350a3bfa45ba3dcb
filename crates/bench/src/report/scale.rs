//! From values to places: axes that begin at zero, axes by powers of ten, and percentiles.

/// Percentiles that are marked, as shares.
pub(super) const MARKS: [f64; 6] = [0.5, 0.9, 0.99, 0.999, 0.9999, 0.999_99];

/// An axis.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    /// Values at both ends; of a logarithmic axis their logarithms.
    domain: (f64, f64),
    /// Places of both ends.
    range: (f64, f64),
    is_log: bool,
    /// Values that have a name, in order.
    pub(super) ticks: Vec<f64>,
}

impl Scale {
    /// From zero to at least `max`, some `count` ticks.
    pub(super) fn from_zero(max: f64, count: u32, range: (f64, f64)) -> Scale {
        let max = if max > 0.0 { max } else { 1.0 };
        let rough = max / f64::from(count.max(1));
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0];
        let step = steps.iter().find(|step| **step * power >= rough * 0.999);
        let step = step.unwrap_or(&10.0) * power;
        let last = (max / step - 1e-9).ceil().max(1.0);
        Scale {
            domain: (0.0, last * step),
            range,
            is_log: false,
            ticks: (0..=last as u32).map(|n| f64::from(n) * step).collect(),
        }
    }

    /// By powers of ten, from at most `min` to at least `max`. Where these are near to each other
    /// the ends are 1, 2 or 5 times a power of ten.
    pub(super) fn log(min: f64, max: f64, range: (f64, f64)) -> Scale {
        let min = if min > 0.0 { min } else { 1.0 };
        let max = max.max(min);
        let is_wide = max / min > 100.0;
        let first = match is_wide {
            true => 10f64.powf((min * 1.001).log10().floor()),
            false => down(min * 1.001),
        };
        let mut last = match is_wide {
            true => 10f64.powf((max * 0.999).log10().ceil()),
            false => up(max * 0.999),
        };
        if last <= first * 1.001 {
            last = next(first);
        }
        let mut ticks = Vec::new();
        let mut tick = first;
        while tick < last * 1.001 {
            ticks.push(tick);
            tick = if is_wide { tick * 10.0 } else { next(tick) };
        }
        Scale {
            domain: (first.log10(), last.log10()),
            range,
            is_log: true,
            ticks,
        }
    }

    /// From zero to exactly `end`, with ticks at whole numbers.
    pub(super) fn whole(end: u32, range: (f64, f64)) -> Scale {
        let mut scale = Scale::from_zero(f64::from(end), 6, range);
        scale.domain.1 = f64::from(end);
        scale
            .ticks
            .retain(|tick| tick.fract() == 0.0 && *tick <= f64::from(end));
        scale
    }

    /// Shares between 0 and `1 - 10^-nines`, each further nine as wide as the one before.
    pub(super) fn percentiles(nines: f64, range: (f64, f64)) -> Scale {
        let ends = MARKS.iter().copied();
        Scale {
            domain: (0.0, nines),
            range,
            is_log: false,
            ticks: ends
                .filter(|share| nines_of(*share) <= nines + 1e-6)
                .collect(),
        }
    }

    /// The place of a value; beyond the ends it is an end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = match self.is_log {
            true => value.max(f64::MIN_POSITIVE).log10(),
            false => value,
        };
        let (from, to) = self.domain;
        let share = ((value - from) / (to - from)).clamp(0.0, 1.0);
        self.range.0 + share * (self.range.1 - self.range.0)
    }

    /// Its two ends.
    pub(super) fn range(&self) -> (f64, f64) {
        self.range
    }
}

/// How many nines a share has: 1 for 90 %, 2 for 99 %.
pub(super) fn nines_of(share: f64) -> f64 {
    -(1.0 - share).max(1e-12).log10()
}

/// The greatest of 1, 2, 5 times a power of ten that is not above.
fn down(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [5.0, 2.0];
    let step = steps.iter().find(|step| **step * power <= value);
    step.unwrap_or(&1.0) * power
}

/// The least of 1, 2, 5 times a power of ten that is not below.
fn up(value: f64) -> f64 {
    let below = down(value);
    match below < value * 0.999 {
        true => next(below),
        false => below,
    }
}

/// The next value in 1, 2, 5, 10.
fn next(value: f64) -> f64 {
    let power = 10f64.powf((value * 1.001).log10().floor());
    match value / power {
        digit if digit < 1.5 => 2.0 * power,
        digit if digit < 3.0 => 5.0 * power,
        _ => 10.0 * power,
    }
}

/// Places near these for labels of this height, none over another, none beyond the ends.
pub(super) fn spread(places: &[f64], height: f64, ends: (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
    // Each as near to its place as those above let it be; then from below what went too far.
    let mut spread = places.to_vec();
    let mut free = ends.0;
    for at in &order {
        spread[*at] = spread[*at].max(free);
        free = spread[*at] + height;
    }
    let mut free = ends.1;
    for at in order.iter().rev() {
        spread[*at] = spread[*at].min(free);
        free = spread[*at] - height;
    }
    spread
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn axes_have_round_ends() {
        let axis = Scale::from_zero(870_000.0, 5, (100.0, 0.0));
        assert_eq!(axis.ticks.last(), Some(&1_000_000.0));
        assert_eq!((axis.at(0.0), axis.at(500_000.0)), (100.0, 50.0));
        let axis = Scale::log(150_000.0, 80_000_000.0, (0.0, 1.0));
        let expected = [1e5, 1e6, 1e7, 1e8];
        let pairs = axis.ticks.iter().zip(expected);
        assert!(
            axis.ticks.len() == 4 && pairs.clone().all(|(a, b)| (a / b - 1.0).abs() < 1e-9),
            "{axis:?}"
        );
        let axis = Scale::percentiles(3.0, (0.0, 300.0));
        assert_eq!(axis.ticks, MARKS[..4]);
        assert!((axis.at(nines_of(0.99)) - 200.0).abs() < 1e-6);
    }

    #[test]
    fn an_axis_of_one_value_has_a_length() {
        for axis in [
            Scale::from_zero(0.0, 4, (0.0, 1.0)),
            Scale::log(1_000.0, 1_000.0, (0.0, 1.0)),
            Scale::log(0.0, 0.0, (0.0, 1.0)),
        ] {
            assert!(axis.ticks.len() > 1 && axis.at(0.5).is_finite(), "{axis:?}");
        }
    }

    proptest! {
        #[test]
        fn a_logarithmic_axis_holds_its_values(min in 1.0..1e9f64, by in 1.0..1e6f64) {
            let axis = Scale::log(min, min * by, (0.0, 1.0));
            let (first, last) = (axis.ticks[0], axis.ticks[axis.ticks.len() - 1]);
            prop_assert!(first <= min * 1.01 && last >= min * by * 0.99, "{axis:?}");
            prop_assert!((2..=16).contains(&axis.ticks.len()), "{axis:?}");
        }

        #[test]
        fn labels_do_not_lie_over_each_other(places in prop::collection::vec(0.0..100.0f64, 1..8)) {
            let spread = spread(&places, 12.0, (0.0, 100.0));
            let mut sorted = spread.clone();
            sorted.sort_by(f64::total_cmp);
            prop_assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] > 11.999));
            prop_assert!(sorted[0] > -0.001 && sorted[sorted.len() - 1] < 100.001);
        }
    }
}
