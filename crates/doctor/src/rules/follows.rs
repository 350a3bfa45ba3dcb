//! Whether requests follow answers: how much later the next request comes for each millisecond by
//! which an answer comes later.
//!
//! ```text
//! waits     request ─ served ─► answer ─ gap ─► request      an answer 1 ms later: it, too
//! sleeps    request ─ served ─► answer ─── gap ───► request
//!           request ─ served ──────► answer ─ gap ► request  comes when it comes
//! ```
//!
//! A client that works between two messages, and waits, has the rounds of one that sleeps and does
//! not: both are as long as chance has them, and longer than the round trip. But what makes the
//! broker take longer for one request than for the one before it, the disk, knows nothing of the
//! times at which a client sends that does not wait for answers. So on the mean its rounds differ
//! as much where the service has risen as where it has fallen, whatever their lengths are, and
//! whichever of them are left out or how much any counts. That is a slope of 0; a client that waits
//! has 1, less what the clocks of a busy machine blur.
//!
//! With s for what the service and r for what the round differs from the one before, and so r − s
//! for the gap, the slope is `sum(s r) / sum(s s)`, and `2 s r = s s + r r − (r − s)²`: three
//! sums of squares, which only grow.

use cloverleaf_telemetry::Counters;

use crate::rules::ConnectionView;
use crate::window::Window;

/// The time that is looked at: so many rounds of a slow client take a minute or two.
const LOOKED_AT_US: u64 = 120_000_000;

/// Fewer rounds than this tell nothing. Those that are not compared count, too.
const ROUNDS_MIN: u64 = 800;

/// Spans whose slopes are compared: fewer do not show how far off one is.
const SPANS_MIN: usize = 8;

/// A client that waits has 1, another 0: nearer to this than to that, by so many standard errors.
const SLOPE_MIN: f64 = 0.5;
const ERRORS: f64 = 3.0;

/// A slope that is no better known than this is none.
const ERROR_MAX: f64 = 0.15;

/// A slope far above 1: something slows the client and the broker down at the same time.
const SLOPE_MAX: f64 = 1.5;

/// Differences of neighbours depend on each other: their slope is less certain by the root of 1.5
/// than that of as many which do not. The rest is for rounds that are left out.
const NEIGHBOURS: f64 = 1.5;

/// Answers that waited for the disk took this long at least, in microseconds. Others are late by
/// the broker's machine, which may be the client's.
const DISK_US_MIN: u64 = 100;

/// How requests follow answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Follows {
    /// Microseconds for each microsecond.
    pub(crate) slope: f64,
    /// Its standard error.
    pub(crate) error: f64,
    pub(crate) rounds: u64,
}

impl Follows {
    /// As seen in the last minutes, if that is clear, and they do.
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
        // Spans in which much happened count as much as they weigh.
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

/// Sum of the products of what the service and what the round differs.
fn products(of: &Counters) -> f64 {
    let [served, round, gap] = [of.served_changes_sq, of.round_changes_sq, of.gap_changes_sq];
    (served as f64 + round as f64 - gap as f64) / 2.0
}
