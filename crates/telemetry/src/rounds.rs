//! The rounds of a connection: how long its client takes from an answer to the next request, and
//! how regular that is.
//!
//! A round begins with a request that arrives while no other request is in flight, and ends where
//! the next round begins:
//!
//! ```text
//! request         answer        request         answer        request
//!    ├─── service ───┼──── gap ────┤─── service ───┼──── gap ────┤
//!    ├────────── round ────────────┼────────── round ────────────┤  ──► time
//! ```
//!
//! A pipelined request, sent before the answer to an earlier one, begins no round: it is part of
//! the current one.
//!
//! On a busy connection, with more than a thousand rounds a second, only a sample is measured
//! ("watched"); the other rounds are only counted ("passed over"):
//!
//! ```text
//! ├ 4 watched ┼ 28 to 92 passed over ┼ 4 watched ┼ 28 to 92 passed over ┼ …
//! ```
//!
//! Watched rounds get the weight of those passed over before them, so that the number of rounds and
//! the sum of their times stay exact. A round after a gap of a millisecond or more is always
//! watched, and no connection is unwatched for more than an eighth of a second: every wait of a
//! client is measured.

use std::sync::OnceLock;

use crate::counters::{Cell, CounterCells};
use crate::histogram::Histogram;

/// log2 of a slot's length in microseconds, 1.05 s. Rounds are counted per slot to find busy
/// connections.
const SLOT_BITS: u32 = 20;

/// Rounds per slot from which a connection is busy. Its rounds then take less than a millisecond on
/// average, which is the shortest wait that the doctor reports.
pub(crate) const BUSY_ROUNDS: u64 = 1100;

/// A round after a gap of this length or longer, in microseconds, is always watched.
pub(crate) const PAUSE_US: u64 = 1_000;

/// Maximum time for which rounds are passed over, in microseconds. A connection that is still busy
/// reaches its number of rounds to pass over earlier.
pub(crate) const PASSING_US_MAX: u64 = 1 << 17;

/// Rounds that are watched in a row. The third is the first one that allows a comparison of two
/// lengths.
const WATCHED: u64 = 4;

/// Minimum rounds that are passed over after [`WATCHED`] rounds were watched. A random number of
/// [`PASSED_BITS`] bits is added, because the client's requests may be periodic too. The mean is
/// 60.
const PASSED_MIN: u64 = 28;
const PASSED_BITS: u32 = 6;

/// Differences above this, in microseconds, are left out of the sums of squares, in which a few
/// outliers would outweigh all others. The limit also keeps the sums from overflowing for years.
const CHANGE_US_MAX: u64 = 1 << 13;

/// Decides which rounds are watched, and measures them. Written by one thread.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Rounds that may still be passed over, shifted left by one; bit 0: the current one is passed
    /// over.
    passing: Cell,
    /// Allocated when the client first sends a request after an answer: until then there is no
    /// round to measure.
    watched: OnceLock<Box<WatchedRounds>>,
}

impl Rounds {
    /// Whether the current round is passed over, so that its requests are not measured.
    #[inline]
    pub(crate) fn is_passing(&self) -> bool {
        self.passing.get() & 1 > 0
    }

    /// The sampling weight of the current round, which is watched: how many rounds it represents.
    pub(crate) fn weight(&self) -> u64 {
        self.watched.get().map_or(1, |it| it.weight.get())
    }

    /// Whether the round that begins after this gap is passed over; if so, counts it. `since_us`:
    /// time since the last measured request.
    #[inline]
    pub(crate) fn passes_over(&self, gap_us: u64, since_us: u64) -> bool {
        let passing = self.passing.get();
        if passing < 2 || gap_us >= PAUSE_US || since_us >= PASSING_US_MAX {
            return false;
        }
        self.passing.set((passing - 2) | 1);
        true
    }

    /// For a pipelined request, which begins no round: whether measuring resumes with it, because
    /// the last measured request came at least [`PASSING_US_MAX`] ago.
    pub(crate) fn ends_passing(&self, since_us: u64) -> bool {
        if since_us < PASSING_US_MAX {
            return false;
        }
        self.passing.set(self.passing.get() & !1);
        if let Some(watched) = self.watched.get() {
            watched.weight.set(1);
        }
        true
    }

    /// A watched round begins after this gap, and the round before it ends.
    #[inline(never)]
    pub(crate) fn watch(
        &self,
        gap_us: u64,
        now_us: u64,
        counters: &CounterCells,
        gaps: &Histogram,
    ) {
        let watched = self
            .watched
            .get_or_init(|| Box::new(WatchedRounds::new(now_us)));
        let left = self.passing.get() >> 1;
        let to_pass = watched.round(left, (gap_us, now_us), counters, gaps);
        self.passing.set(to_pass << 1);
    }
}

#[derive(Debug)]
struct WatchedRounds {
    /// Rounds to be passed over, as decided at the last watched round; 0: none.
    to_pass: Cell,
    /// Rounds that are still watched before others are passed over.
    to_watch: Cell,
    /// Weight of the current round.
    weight: Cell,
    /// Weight of a watched round after a gap shorter than [`PAUSE_US`]; any other round has weight
    /// 1.
    usual_weight: Cell,
    /// Gaps that were passed over and are not yet represented by a watched one; below, the same for
    /// changes of length from one round to the next.
    owed_gaps: Cell,
    owed_changes: Cell,
    is_busy: Cell,
    slot: Cell,
    /// The total of rounds when the current slot began.
    slot_rounds: Cell,
    random_state: Cell,
    /// When the last watched round began; 0: none has begun.
    last_us: Cell,
    /// Length of the round that ended then; 0: not known, because rounds were passed over.
    length_us: Cell,
    /// The gap at the end of that round.
    gap_us: Cell,
    /// Requests received when that round ended, including the one that ended it.
    requests: Cell,
    /// How many rounds in a row have had exactly one request each.
    in_a_row: Cell,
}

impl WatchedRounds {
    fn new(now_us: u64) -> WatchedRounds {
        let one = || {
            let cell = Cell::default();
            cell.set(1);
            cell
        };
        let watched = WatchedRounds {
            to_pass: Cell::default(),
            to_watch: one(),
            weight: one(),
            usual_weight: one(),
            owed_gaps: Cell::default(),
            owed_changes: Cell::default(),
            is_busy: Cell::default(),
            slot: Cell::default(),
            slot_rounds: Cell::default(),
            random_state: Cell::default(),
            last_us: Cell::default(),
            length_us: Cell::default(),
            gap_us: Cell::default(),
            requests: Cell::default(),
            in_a_row: Cell::default(),
        };
        // Any number but zero.
        watched.random_state.set(now_us | 1);
        watched.slot.set(now_us >> SLOT_BITS);
        watched
    }

    /// A watched round begins. `left`: how many of the rounds that were to be passed over have not
    /// come. Returns how many to pass over next.
    fn round(
        &self,
        left: u64,
        (gap_us, now_us): (u64, u64),
        counters: &CounterCells,
        gaps: &Histogram,
    ) -> u64 {
        let passed = self.end_of_passing(left);
        let to_watch = self.to_watch.get();
        let (weight, made_up) = if gap_us >= PAUSE_US {
            (1, 0)
        } else {
            (self.usual_weight.get(), self.owed_gaps.get() / to_watch)
        };
        self.weight.set(weight);
        self.owed_gaps.set(self.owed_gaps.get() - made_up);
        gaps.record_many(gap_us, 1 + made_up);
        let last_us = self.last_us.get();
        self.last_us.set(now_us);
        self.count_requests(counters.requests.get());
        if last_us > 0 {
            let since_us = now_us.saturating_sub(last_us);
            counters.rounds.add(1 + passed);
            counters.rounds_us.add(since_us);
            match passed {
                0 => self.compare((since_us, gap_us), counters),
                _ => self.owe_changes(1 + passed),
            }
        }
        self.count_slot(now_us, counters.rounds.get());
        if to_watch > 1 {
            self.to_watch.set(to_watch - 1);
        } else if self.is_busy.get() > 0 {
            self.to_pass.set(self.random_rounds_to_pass());
        }
        self.to_pass.get()
    }

    /// Returns how many rounds were passed over since the last watched one, and gives their weight
    /// to the next watched rounds.
    fn end_of_passing(&self, left: u64) -> u64 {
        let to_pass = self.to_pass.get();
        if to_pass == 0 {
            return 0;
        }
        let passed = to_pass - left;
        self.to_pass.set(0);
        self.to_watch.set(WATCHED);
        self.usual_weight.set(1 + (passed + WATCHED / 2) / WATCHED);
        self.owed_gaps.add(passed);
        passed
    }

    fn random_rounds_to_pass(&self) -> u64 {
        let mut random_state = self.random_state.get();
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        self.random_state.set(random_state);
        // Another random bit makes the mean a whole number, 60: 28 + 31.5 + 0.5.
        let few = (random_state >> 20) & ((1 << PASSED_BITS) - 1);
        PASSED_MIN + few + ((random_state >> 40) & 1)
    }

    /// To be called at the end of a round, with all requests received so far.
    fn count_requests(&self, requests: u64) {
        let is_one = requests.wrapping_sub(self.requests.get()) == 1;
        self.requests.set(requests);
        self.in_a_row
            .set(if is_one { self.in_a_row.get() + 1 } else { 0 });
    }

    /// Compares two consecutive rounds, both watched. Length and gap are those of the later one.
    fn compare(&self, (length_us, gap_us): (u64, u64), counters: &CounterCells) {
        let (before_us, gap_before_us) = (self.length_us.get(), self.gap_us.get());
        self.length_us.set(length_us);
        self.gap_us.set(gap_us);
        let owed = self.owed_changes.get();
        if before_us == 0 {
            self.owed_changes.set(owed + u64::from(owed > 0));
            return;
        }
        let made_up = owed / self.to_watch.get();
        self.owed_changes.set(owed - made_up);
        let change_us = length_us.abs_diff(before_us);
        // A change of more than half a round is a pause that begins or ends, not jitter.
        if change_us <= length_us / 2 {
            counters.round_changes_us.add(change_us * (1 + made_up));
        }
        if change_us <= CHANGE_US_MAX && self.in_a_row.get() >= 2 {
            let gap_change_us = gap_us.abs_diff(gap_before_us);
            // A round less its gap is its service time: from the request to the answer.
            let served_us = length_us.saturating_sub(gap_us);
            let served_before_us = before_us.saturating_sub(gap_before_us);
            let served_change_us = served_us.abs_diff(served_before_us);
            if served_change_us <= CHANGE_US_MAX {
                counters.round_changes_sq.add(change_us * change_us);
                counters
                    .served_changes_sq
                    .add(served_change_us * served_change_us);
                counters.gap_changes_sq.add(gap_change_us * gap_change_us);
            }
        }
    }

    /// Notes that the change from one round to the next was not observed this many times.
    fn owe_changes(&self, rounds: u64) {
        self.owed_changes.add(rounds);
        self.length_us.set(0);
    }

    /// Decides whether the connection is busy: it had enough rounds in this slot, or in the one
    /// before.
    fn count_slot(&self, now_us: u64, rounds: u64) {
        let (slot, before) = (now_us >> SLOT_BITS, self.slot.get());
        let is_enough = rounds - self.slot_rounds.get() >= BUSY_ROUNDS;
        if slot == before {
            if is_enough {
                self.is_busy.set(1);
            }
            return;
        }
        let is_busy = slot == before + 1 && is_enough;
        self.slot.set(slot);
        self.slot_rounds.set(rounds);
        self.is_busy.set(u64::from(is_busy));
        if !is_busy {
            self.usual_weight.set(1);
        }
    }
}

#[cfg(all(test, feature = "probe"))]
#[path = "rounds_tests.rs"]
mod tests;
