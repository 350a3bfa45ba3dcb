//! Whether requests follow answers: how much later the next request comes for each millisecond by
//! which an answer comes later.
//!
//! ```text
//! waits     request ─ served ─► answer ─ gap ─► request      an answer 1 ms later: it, too
//! sleeps    request ─ served ─► answer ─── gap ───► request
//!           request ─ served ──────► answer ─ gap ► request  comes when it comes
//! ```
//!
//! A client that works between two messages and waits for answers has rounds like one that sleeps
//! and does not wait: both have random lengths above the round trip. But service times vary because
//! of the broker's disk, which does not depend on when a client sends. If the client does not wait
//! for answers, its rounds are therefore independent of changes in the service time. That is a
//! slope of 0, whatever the rounds' lengths and weights are. For a client that waits the slope is
//! 1, less the blur of a busy machine's clocks.
//!
//! Let s and r be the differences of service and round from the round before, so r − s is that of
//! the gap. The slope is `sum(s r) / sum(s s)`, and `2 s r = s s + r r − (r − s)²`. So three sums
//! of squares are enough, which can be counters.

use cloverleaf_telemetry::Counters;

use crate::rules::ConnectionView;
use crate::window::Window;

/// The window, in microseconds: [`ROUNDS_MIN`] rounds of a slow client take a minute or two.
const LOOKED_AT_US: u64 = 120_000_000;

/// Minimum rounds, including those that are not compared.
const ROUNDS_MIN: u64 = 800;

/// Minimum spans whose slopes are compared: fewer do not show the error of the slope.
const SPANS_MIN: usize = 8;

/// The minimum slope, half way between that of a client that waits (1) and of any other (0). It has
/// to be exceeded by this many standard errors.
const SLOPE_MIN: f64 = 0.5;
const ERRORS: f64 = 3.0;

/// Maximum standard error of a slope that counts.
const ERROR_MAX: f64 = 0.15;

/// Maximum slope: far above 1, something slows client and broker down at the same time.
const SLOPE_MAX: f64 = 1.5;

/// Differences of adjacent rounds depend on each other, which raises the standard error by the root
/// of 1.5. Rounds that are left out raise it further.
const NEIGHBOURS: f64 = 1.5;

/// Minimum service time of answers that waited for the disk, in microseconds. Shorter ones vary
/// with the broker's machine, which may also be the client's.
const DISK_US_MIN: u64 = 100;

/// How requests follow answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Follows {
    /// By how many microseconds the next request comes later for each microsecond by which the
    /// answer comes later.
    pub(crate) slope: f64,
    /// Its standard error.
    pub(crate) error: f64,
    pub(crate) rounds: u64,
}

impl Follows {
    /// The result of the last minutes, if requests clearly follow answers.
    pub(crate) fn clearly(view: &ConnectionView<'_>) -> Option<Follows> {
        let served = &view.short.flow.histograms.service_us;
        if served.quantile(0.1) < DISK_US_MIN {
            return None;
        }
        let spans = view.history.since(view.now_us, LOOKED_AT_US);
        let follows = Follows::of(&spans)?;
        let Follows { slope, error, .. } = follows;
        let is_clear = error <= ERROR_MAX && slope - ERRORS * error >= SLOPE_MIN;
        (is_clear && slope <= SLOPE_MAX).then_some(follows)
    }

    fn of(spans: &[Window]) -> Option<Follows> {
        let spans: Vec<&Counters> = spans.iter().map(|it| &it.flow.counters).collect();
        let rounds = spans.iter().map(|it| it.rounds).sum();
        let squares = |it: &&Counters| it.served_changes_sq as f64;
        let all: f64 = spans.iter().map(squares).sum();
        if spans.len() < SPANS_MIN || rounds < ROUNDS_MIN || all <= 0.0 {
            return None;
        }
        let slope = spans.iter().map(|it| products(it)).sum::<f64>() / all;
        // Spans are weighted by their sums of squares.
        let off = spans
            .iter()
            .map(|it| products(it) - slope * squares(it))
            .map(|off| off * off);
        let count = spans.len() as f64;
        let by_spans = (off.sum::<f64>() * count / (count - 1.0)).sqrt() / all;
        let rounds_sq: f64 = spans.iter().map(|it| it.round_changes_sq as f64).sum();
        let rest = (rounds_sq - slope * slope * all).max(0.0);
        let by_rounds = NEIGHBOURS * (rest / rounds as f64 / all).sqrt();
        Some(Follows {
            slope,
            error: by_spans.max(by_rounds),
            rounds,
        })
    }
}

/// Sum of the products of the differences in service and in round.
fn products(of: &Counters) -> f64 {
    let [served, round, gap] = [of.served_changes_sq, of.round_changes_sq, of.gap_changes_sq];
    (served as f64 + round as f64 - gap as f64) / 2.0
}
