//! The knee, where a broker's latency bends upwards: a search over rates.
//!
//! The knee is the lowest rate at which the p99 of the response time is more than ten times what
//! it is at a low load, or at which less than 98 % of what was asked is done. Below it a broker
//! answers about as fast as if it were alone; above it, it only gets later.

/// The p99 may grow by this factor.
const GROWTH_MAX: f64 = 10.0;
/// A p99 below this is good in any case: so long a busy machine may let a thread wait.
const GOOD_NS: f64 = 1e6;
/// A rate below this share of what was asked was not reached.
const REACHED: f64 = 0.98;
/// The search is over when the knee is known so well: the bad rate by the good one.
const PRECISION: f64 = 1.05;
/// A low load, as a share of one that is reached.
const LOW: f64 = 0.1;
/// Times that a load that is too high from the beginning is halved.
const HALVES_MAX: u32 = 12;

/// The measurement at one rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Probe {
    /// Messages per second that were asked for.
    pub(super) asked: f64,
    /// Messages per second that were done.
    pub(super) achieved: f64,
    /// Response time in nanoseconds.
    pub(super) p99_ns: f64,
}

/// Why a rate is at the knee or above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bend {
    /// The response time has grown too much.
    Late,
    /// The rate was not reached.
    Short,
}

/// The result of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Knee {
    /// The low load, to which others are compared.
    pub(super) low: Probe,
    /// The highest rate that is below the knee.
    pub(super) good: Probe,
    /// The knee: the lowest rate at which it bends, and how; `None`: not within the limit.
    pub(super) bad: Option<(Probe, Bend)>,
}

impl Knee {
    /// The rate of which others are shares.
    pub(super) fn rate(&self) -> f64 {
        self.bad.map_or(self.good.asked, |(probe, _)| probe.asked)
    }
}

/// Searches from the rate `start` up to `limit`. A rate that looks bad is measured once more, and
/// is bad if it is again: one pause of the machine makes no knee. The low load, to which all others
/// are compared, is measured twice in any case. `measure` gives `None` when it is to end.
/// `Ok(None)`: that, or no rate is low enough.
///
/// # Errors
/// Those of `measure`.
pub(super) fn search<E>(
    start: f64,
    limit: f64,
    mut measure: impl FnMut(f64) -> Result<Option<Probe>, E>,
) -> Result<Option<Knee>, E> {
    // The better of one or two measurements: what was done once can be done.
    let mut best_of = |rate: f64, is_enough: &dyn Fn(&Probe) -> bool| {
        let Some(probe) = measure(rate)? else {
            return Ok(None);
        };
        if is_enough(&probe) {
            return Ok(Some(probe));
        }
        let again = measure(rate)?;
        Ok(again.map(|again| better(probe, again)))
    };
    // First a rate that is reached at all.
    let mut rate = start.min(limit);
    let mut bad = None;
    let mut reached = None;
    for _ in 0..HALVES_MAX {
        let Some(probe) = best_of(rate, &Probe::is_reached)? else {
            return Ok(None);
        };
        if probe.is_reached() {
            reached = Some(probe);
            break;
        }
        bad = Some((probe, Bend::Short));
        rate /= 2.0;
    }
    let Some(reached) = reached else {
        return Ok(None);
    };
    let mut knee = Knee {
        low: reached,
        good: reached,
        bad,
    };
    // A pause in the measurement to which all others are compared would let them be as late.
    match knee.bad {
        None => {
            let Some(again) = best_of(rate, &|_| true)? else {
                return Ok(None);
            };
            knee.low = better(reached, again);
            knee.good = knee.low;
        }
        // One that was only just reached is no low load.
        Some(_) => {
            let Some(low) = best_of(rate * LOW, &|_| false)? else {
                return Ok(None);
            };
            knee.low = low;
            if let Some(bend) = bend(&low, &reached) {
                (knee.good, knee.bad) = (low, Some((reached, bend)));
            }
        }
    }
    let low = knee.low;
    loop {
        let good = knee.good.asked;
        let rate = match &knee.bad {
            Some((bad, _)) if bad.asked <= good * PRECISION => break,
            // The middle, as rates are compared: by their ratio.
            Some((bad, _)) => (good * bad.asked).sqrt(),
            None if good >= limit => break,
            None => (good * 2.0).min(limit),
        };
        let Some(probe) = best_of(rate, &|probe| bend(&low, probe).is_none())? else {
            return Ok(None);
        };
        match bend(&low, &probe) {
            None => knee.good = probe,
            Some(bend) => knee.bad = Some((probe, bend)),
        }
    }
    Ok(Some(knee))
}

impl Probe {
    /// Of a measurement that ended before its time.
    pub(super) fn of_nothing(asked: f64) -> Probe {
        Probe {
            asked,
            achieved: 0.0,
            p99_ns: f64::INFINITY,
        }
    }

    /// Whether what was asked was done.
    fn is_reached(&self) -> bool {
        self.achieved >= self.asked * REACHED
    }
}

/// The better one of two at the same rate: that which was reached, and was sooner.
fn better(one: Probe, two: Probe) -> Probe {
    match (one.is_reached(), two.is_reached()) {
        (true, false) => one,
        (false, true) => two,
        (true, true) if one.p99_ns <= two.p99_ns => one,
        (false, false) if one.achieved >= two.achieved => one,
        _ => two,
    }
}

/// How a rate is at the knee or above it; `None`: it is below.
fn bend(low: &Probe, probe: &Probe) -> Option<Bend> {
    if !probe.is_reached() {
        return Some(Bend::Short);
    }
    let late = (low.p99_ns * GROWTH_MAX).max(GOOD_NS);
    (probe.p99_ns > late).then_some(Bend::Late)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// A queue with one server and random arrivals (M/M/1): the p99 of the time in it is
    /// ln(100) / (capacity - rate), so that it is ten times as long at nine tenths of the way.
    fn queue(capacity: f64, rate: f64) -> Probe {
        let spare = (capacity - rate).max(capacity * 1e-3);
        Probe {
            asked: rate,
            achieved: rate.min(capacity),
            p99_ns: 100f64.ln() / spare * 1e9,
        }
    }

    fn found(start: f64, limit: f64, mut measure: impl FnMut(f64) -> Probe) -> Option<Knee> {
        search(start, limit, |rate| {
            Ok::<_, Infallible>(Some(measure(rate)))
        })
        .unwrap()
    }

    #[test]
    fn the_knee_of_a_queue_is_where_theory_puts_it() {
        let capacity = 5_000.0;
        let mut probes = 0;
        let knee = found(100.0, 1e7, |rate| {
            probes += 1;
            queue(capacity, rate)
        });
        let knee = knee.unwrap();
        // Ten times as late as at 100 per second: capacity - (capacity - 100) / 10 = 4,510.
        assert!((4_510.0..4_510.0 * 1.06).contains(&knee.rate()), "{knee:?}");
        assert!(knee.good.asked < 4_510.0, "{knee:?}");
        assert_eq!(knee.bad.unwrap().1, Bend::Late);
        assert!(probes < 22, "{probes} measurements");
    }

    #[test]
    fn a_wall_is_found_though_nothing_gets_late() {
        let knee = found(1_000.0, 1e7, |rate| Probe {
            asked: rate,
            achieved: rate.min(70_000.0),
            p99_ns: 50_000.0,
        });
        let knee = knee.unwrap();
        assert!((70_000.0..75_100.0).contains(&knee.rate()), "{knee:?}");
        assert_eq!(knee.bad.unwrap().1, Bend::Short);
    }

    #[test]
    fn one_pause_makes_no_knee() {
        let mut number = 0;
        let knee = found(1_000.0, 1e7, |rate| {
            number += 1;
            let mut probe = queue(100_000.0, rate);
            // Each third measurement meets a pause of the machine.
            if number % 3 == 2 {
                probe.p99_ns += 1e9;
            }
            probe
        });
        assert!(knee.unwrap().rate() > 80_000.0, "{knee:?}");
    }

    #[test]
    fn a_pause_at_the_low_load_or_at_the_start_changes_nothing() {
        for paused in [1, 2] {
            let mut number = 0;
            let knee = found(100.0, 1e7, |rate| {
                number += 1;
                let mut probe = queue(5_000.0, rate);
                if number == paused {
                    // It would be the measure of all others.
                    (probe.p99_ns, probe.achieved) = (1e9, probe.achieved * 0.5);
                }
                probe
            });
            let rate = knee.unwrap().rate();
            assert!(
                (4_510.0..4_510.0 * 1.06).contains(&rate),
                "{paused}: {knee:?}"
            );
        }
        // The pause only made it late.
        let mut number = 0;
        let knee = found(100.0, 1e7, |rate| {
            number += 1;
            let mut probe = queue(5_000.0, rate);
            probe.p99_ns += if number == 1 { 2e7 } else { 0.0 };
            probe
        });
        assert!(
            (4_510.0..4_510.0 * 1.06).contains(&knee.unwrap().rate()),
            "{knee:?}"
        );
    }

    #[test]
    fn a_start_that_is_too_high_is_lowered() {
        let knee = found(1_000_000.0, 1e7, |rate| queue(5_000.0, rate)).unwrap();
        assert!(
            knee.low.asked < 5_000.0 && knee.rate() <= 1_000_000.0,
            "{knee:?}"
        );
        assert!((2_500.0..5_500.0).contains(&knee.rate()), "{knee:?}");
        assert_eq!(found(1_000_000.0, 1e7, |rate| queue(0.001, rate)), None);
    }

    #[test]
    fn a_limit_ends_it() {
        let knee = found(1_000.0, 30_000.0, |rate| queue(1e9, rate)).unwrap();
        assert_eq!((knee.good.asked, knee.bad), (30_000.0, None));
        let stopped = search(1.0, 1e6, |_| Ok::<_, Infallible>(None));
        assert_eq!(stopped, Ok(None));
    }

    proptest! {
        #[test]
        fn it_ends_and_is_between_a_good_and_a_bad_rate(
            capacity in 10.0..1e6f64,
            start in 1.0..1e5f64,
        ) {
            let mut probes = 0;
            let knee = found(start, 1e7, |rate| {
                probes += 1;
                queue(capacity, rate)
            });
            prop_assert!(probes < 80, "{probes} measurements");
            if let Some(Knee { good, bad: Some((bad, _)), low }) = knee {
                prop_assert!(good.asked < bad.asked && low.asked <= good.asked);
                prop_assert!(bad.asked <= good.asked * (PRECISION + 1e-9));
                prop_assert!(bad.asked <= capacity * 2.0 * PRECISION);
            }
        }
    }
}
