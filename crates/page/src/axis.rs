//! Axes: they map values to positions in a picture, and have names for round values.

/// Maps values to positions, from left to right or from the bottom up.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The values at both ends; for a logarithmic axis, their logarithms.
    domain: (f64, f64),
    /// The positions of both ends.
    pub range: (f64, f64),
    is_log: bool,
    /// Round values, each with its name.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// A linear axis with the given ends and ticks.
    pub fn between(domain: (f64, f64), range: (f64, f64), ticks: Vec<(f64, String)>) -> Axis {
        Axis {
            domain,
            range,
            is_log: false,
            ticks,
        }
    }

    /// A linear axis from zero to at least `max`, with about `count` ticks.
    pub fn from_zero(
        max: f64,
        count: u32,
        range: (f64, f64),
        name: impl Fn(f64) -> String,
    ) -> Axis {
        let max = if max > 0.0 { max } else { 1.0 };
        let step = round_up(max / f64::from(count.max(1)));
        let last = (max / step - 1e-9).ceil().max(1.0);
        let values = (0..=last as u32).map(|n| f64::from(n) * step);
        let ticks = values.map(|value| (value, name(value))).collect();
        Axis::between((0.0, last * step), range, ticks)
    }

    /// A logarithmic axis from at most `min` to at least `max`. Its ends are powers of ten; if
    /// `min` and `max` are close to each other, 1, 2 or 5 times a power of ten.
    pub fn log(min: f64, max: f64, range: (f64, f64), name: impl Fn(f64) -> String) -> Axis {
        let min = if min > 0.0 { min } else { 1.0 };
        let max = max.max(min);
        let is_wide = max / min > 100.0;
        let (first, mut last) = if is_wide {
            let power = |value: f64| 10f64.powf(value);
            let (first, last) = ((min * 1.001).log10(), (max * 0.999).log10());
            (power(first.floor()), power(last.ceil()))
        } else {
            (round_down(min * 1.001), round_up(max * 0.999))
        };
        if last <= first * 1.001 {
            last = next_round(first);
        }
        let after = |value: &f64| {
            Some(if is_wide {
                value * 10.0
            } else {
                next_round(*value)
            })
        };
        let values = std::iter::successors(Some(first), after);
        let values = values.take_while(|value| *value < last * 1.001);
        Axis {
            domain: (first.log10(), last.log10()),
            range,
            is_log: true,
            ticks: values.map(|value| (value, name(value))).collect(),
        }
    }

    /// The position of a value; a value beyond the ends has the position of the end.
    pub fn at(&self, value: f64) -> f64 {
        let value = if self.is_log {
            value.max(f64::MIN_POSITIVE).log10()
        } else {
            value
        };
        let (from, to) = self.domain;
        let share = ((value - from) / (to - from).max(1e-9)).clamp(0.0, 1.0);
        self.range.0 + share * (self.range.1 - self.range.0)
    }
}

/// The largest of 1, 2 or 5 times a power of ten that is not above `value`.
fn round_down(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [5.0, 2.0];
    let step = steps.iter().find(|step| **step * power <= value);
    step.unwrap_or(&1.0) * power
}

/// The smallest of 1, 2 or 5 times a power of ten that is not below `value`.
fn round_up(value: f64) -> f64 {
    let below = round_down(value);
    if below < value * 0.999 {
        next_round(below)
    } else {
        below
    }
}

/// The next value in the sequence 1, 2, 5, 10.
fn next_round(value: f64) -> f64 {
    let power = 10f64.powf((value * 1.001).log10().floor());
    match value / power {
        digit if digit < 1.5 => 2.0 * power,
        digit if digit < 3.0 => 5.0 * power,
        _ => 10.0 * power,
    }
}

/// Positions for labels of this height, close to `places`, without overlaps and within the ends.
pub fn spread(places: &[f64], height: f64, ends: (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
    // First pass from the start: each is as close to its place as the label before it allows.
    // Second pass from the end: labels that went beyond it are moved back.
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
    use crate::words::tick;

    #[test]
    fn axes_have_round_ends() {
        let axis = Axis::from_zero(870_000.0, 5, (100.0, 0.0), tick);
        assert_eq!(axis.ticks.last(), Some(&(1e6, "1\u{a0}M".to_owned())));
        assert_eq!((axis.at(0.0), axis.at(500_000.0)), (100.0, 50.0));
        let axis = Axis::log(150_000.0, 80_000_000.0, (0.0, 1.0), tick);
        let expected = [1e5, 1e6, 1e7, 1e8];
        let pairs = axis.ticks.iter().zip(expected);
        assert!(
            axis.ticks.len() == 4 && pairs.clone().all(|(a, b)| (a.0 / b - 1.0).abs() < 1e-9),
            "{axis:?}"
        );
    }

    #[test]
    fn an_axis_of_one_value_has_a_length() {
        for axis in [
            Axis::from_zero(0.0, 4, (0.0, 1.0), tick),
            Axis::log(1_000.0, 1_000.0, (0.0, 1.0), tick),
            Axis::log(0.0, 0.0, (0.0, 1.0), tick),
        ] {
            assert!(axis.ticks.len() > 1 && axis.at(0.5).is_finite(), "{axis:?}");
        }
        let axis = Axis::between((7.0, 7.0), (0.0, 1.0), Vec::new());
        assert_eq!(axis.at(7.0), 0.0);
    }

    proptest! {
        #[test]
        fn a_logarithmic_axis_holds_its_values(min in 1.0..1e9f64, by in 1.0..1e6f64) {
            let axis = Axis::log(min, min * by, (0.0, 1.0), tick);
            let (first, last) = (axis.ticks[0].0, axis.ticks[axis.ticks.len() - 1].0);
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
