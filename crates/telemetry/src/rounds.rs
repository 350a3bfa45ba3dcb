//! The rounds of a connection: how long its client takes from an answer to the next request, and
//! how regular that is.
//!
//! ```text
//! answer ──── gap ────► request … answer ──── gap ────► request …
//!                       ◄────────── round ────────────►
//! ```
//!
//! Of a connection with more than a thousand rounds in a second only some are watched, four in a
//! row of about 64, chosen by chance. Those that were passed over are made up for by the weight of
//! the watched ones: how many there were, and the sum of their times, stays exact. A pause of a
//! millisecond is never passed over, and nothing is for longer than an eighth of a second, so that
//! whoever waits for anything is seen in full.

use std::sync::OnceLock;

use crate::counters::{Cell, CounterCells};
use crate::histogram::Histogram;

/// log2 of the time in microseconds in which rounds are counted: 1.05 s.
const SLOT_BITS: u32 = 20;

/// So many rounds in this time make a connection busy: on the mean they are shorter than what the
/// doctor has anything to say about, a wait of a millisecond.
pub(crate) const BUSY_ROUNDS: u64 = 1100;

/// A gap of this length is always watched.
pub(crate) const PAUSE_US: u64 = 1_000;

/// For how long rounds are passed over at most: those of a connection that still is busy come
/// sooner.
pub(crate) const PASSING_US_MAX: u64 = 1 << 17;

/// Rounds that are watched in a row: it takes three to see one differ from the next.
const WATCHED: u64 = 4;

/// Rounds that are passed over then: 60 on the mean, by chance, because what a client does may
/// have a rhythm too.
const PASSED_MIN: u64 = 28;
const PASSED_BITS: u32 = 6;

/// Which rounds are watched, and what was seen of them. Written by one thread.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Twice the rounds that may still be passed over, and one more while the present one is.
    passing: Cell,
    /// Of a client that has had an answer and sent on.
    watched: OnceLock<Box<Watched>>,
}

impl Rounds {
    /// Whether nothing is noted of the present request.
    #[inline]
    pub(crate) fn is_passing(&self) -> bool {
        self.passing.get() & 1 > 0
    }

    /// For how many like it the present request counts, of which something is noted.
    pub(crate) fn weight(&self) -> u64 {
        self.watched.get().map_or(1, |it| it.weight.get())
    }

    /// Whether the round that begins behind this gap is one that nothing is noted of. The last that
    /// something was noted of began `since_us` ago.
    #[inline]
    pub(crate) fn passes_over(&self, gap_us: u64, since_us: u64) -> bool {
        let passing = self.passing.get();
        if passing < 2 || gap_us >= PAUSE_US || since_us >= PASSING_US_MAX {
            return false;
        }
        self.passing.set((passing - 2) | 1);
        true
    }

    /// Whether a request that is in no round, because others are on their way, is to be noted
    /// again: the last of which something was noted came so long ago.
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

    /// A round begins behind this gap.
    #[inline(never)]
    pub(crate) fn watch(
        &self,
        gap_us: u64,
        now_us: u64,
        counters: &CounterCells,
        gaps: &Histogram,
    ) {
        let watched = self.watched.get_or_init(|| Box::new(Watched::new(now_us)));
        let left = self.passing.get() >> 1;
        let to_pass = watched.round(left, (gap_us, now_us), counters, gaps);
        self.passing.set(to_pass << 1);
    }
}

#[derive(Debug)]
struct Watched {
    /// How many were to be passed over after the last that was watched.
    to_pass: Cell,
    /// Rounds that are still watched before others are passed over.
    to_watch: Cell,
    /// For how many the present one counts; and each that is no pause.
    weight: Cell,
    usual_weight: Cell,
    /// Gaps, and changes from round to round, that watched ones have to make up for.
    owed_gaps: Cell,
    owed_changes: Cell,
    is_busy: Cell,
    slot: Cell,
    /// Rounds of before the slot.
    slot_rounds: Cell,
    chance: Cell,
    /// When the last one began that was watched.
    last_us: Cell,
    /// The length of the one before; 0: it is not known.
    length_us: Cell,
}

impl Watched {
    fn new(now_us: u64) -> Watched {
        let one = || {
            let cell = Cell::default();
            cell.set(1);
            cell
        };
        let watched = Watched {
            to_pass: Cell::default(),
            to_watch: one(),
            weight: one(),
            usual_weight: one(),
            owed_gaps: Cell::default(),
            owed_changes: Cell::default(),
            is_busy: Cell::default(),
            slot: Cell::default(),
            slot_rounds: Cell::default(),
            chance: Cell::default(),
            last_us: Cell::default(),
            length_us: Cell::default(),
        };
        // Any number but zero.
        watched.chance.set(now_us | 1);
        watched.slot.set(now_us >> SLOT_BITS);
        watched
    }

    /// A round begins, `left` of those that were to be passed over have not come. Returns how many
    /// are to be passed over now.
    fn round(
        &self,
        left: u64,
        (gap_us, now_us): (u64, u64),
        counters: &CounterCells,
        gaps: &Histogram,
    ) -> u64 {
        let passed = self.end_of_passing(left);
        let to_watch = self.to_watch.get();
        let (weight, made_up) = match gap_us >= PAUSE_US {
            true => (1, 0),
            false => (self.usual_weight.get(), self.owed_gaps.get() / to_watch),
        };
        self.weight.set(weight);
        self.owed_gaps.set(self.owed_gaps.get() - made_up);
        gaps.record_many(gap_us, 1 + made_up);
        let last_us = self.last_us.get();
        self.last_us.set(now_us);
        if last_us > 0 {
            let since_us = now_us.saturating_sub(last_us);
            counters.rounds.add(1 + passed);
            counters.rounds_us.add(since_us);
            match passed {
                0 => self.compare(since_us, counters),
                _ => self.owe_changes(1 + passed),
            }
        }
        self.count_slot(now_us, counters.rounds.get());
        if to_watch > 1 {
            self.to_watch.set(to_watch - 1);
        } else if self.is_busy.get() > 0 {
            self.to_pass.set(self.by_chance());
        }
        self.to_pass.get()
    }

    /// How many rounds were passed over since the last that was watched.
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

    fn by_chance(&self) -> u64 {
        let mut chance = self.chance.get();
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        self.chance.set(chance);
        // The bit more makes the mean a whole number.
        let few = (chance >> 20) & ((1 << PASSED_BITS) - 1);
        PASSED_MIN + few + ((chance >> 40) & 1)
    }

    /// Two rounds came one after the other, both watched.
    fn compare(&self, length_us: u64, counters: &CounterCells) {
        let before_us = self.length_us.get();
        self.length_us.set(length_us);
        let owed = self.owed_changes.get();
        if before_us == 0 {
            self.owed_changes.set(owed + u64::from(owed > 0));
            return;
        }
        let made_up = owed / self.to_watch.get();
        self.owed_changes.set(owed - made_up);
        let change_us = length_us.abs_diff(before_us);
        // Where a pause begins or ends, that is no wavering.
        if change_us <= length_us / 2 {
            counters.round_changes_us.add(change_us * (1 + made_up));
        }
    }

    /// How much so many rounds differed from those before them was not seen.
    fn owe_changes(&self, rounds: u64) {
        self.owed_changes.add(rounds);
        self.length_us.set(0);
    }

    /// Sees whether the connection is busy: enough rounds in this slot, or in the one before.
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
mod tests {
    use std::net::SocketAddr;

    use crate::{Histogram, HistogramSnapshot, Probe, Protocol, Registry};

    const MS: u64 = 1_000;
    const SERVICE_US: u64 = 40;

    /// A gap, by the round's number and by chance.
    type Pattern = Box<dyn Fn(u64, u64) -> u64>;

    /// A client that takes so long from each answer to its next request, and what it did.
    struct Client {
        probe: Probe,
        registry: Registry,
        now_us: u64,
        service_us: u64,
        begun_us: Vec<u64>,
        gaps: Histogram,
    }

    impl Client {
        fn new() -> Client {
            let registry = Registry::new();
            let peer = SocketAddr::from(([127, 0, 0, 1], 9));
            Client {
                probe: registry.open(Protocol::Nsq, peer, 1),
                registry,
                now_us: 5_000_000,
                service_us: SERVICE_US,
                begun_us: Vec::new(),
                gaps: Histogram::new(),
            }
        }

        fn rounds(&mut self, count: u64, mut gap_us: impl FnMut(u64) -> u64) {
            for number in 0..count {
                let gap_us = gap_us(number);
                if !self.begun_us.is_empty() {
                    self.gaps.record(gap_us);
                }
                self.now_us += gap_us;
                self.begun_us.push(self.now_us);
                self.probe.request(1, 100, self.now_us, self.now_us);
                self.probe.record_age(gap_us as i64);
                self.now_us += self.service_us;
                self.probe.answered(1, self.now_us);
            }
        }

        fn seen(&self) -> crate::ConnectionSnapshot {
            self.registry
                .snapshot(self.now_us, |_| None)
                .connections
                .remove(0)
        }

        /// Sum of what each round differs from the one before it, but for the ends of pauses.
        fn changes_us(&self) -> u64 {
            let lengths = self.begun_us.windows(2).map(|two| two[1] - two[0]);
            let lengths: Vec<u64> = lengths.collect();
            let changes = lengths
                .windows(2)
                .map(|two| (two[1].abs_diff(two[0]), two[1]));
            let changes = changes.filter(|(change, length)| *change <= length / 2);
            changes.map(|(change, _)| change).sum()
        }
    }

    #[track_caller]
    fn about(value: f64, expected: f64, share: f64) {
        let off = (value - expected).abs();
        assert!(off <= share * expected + 0.1, "{value}, not {expected}");
    }

    fn dice(mut state: u64) -> impl FnMut() -> u64 {
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(9);
            state >> 33
        }
    }

    fn same(seen: &HistogramSnapshot, expected: &Histogram) {
        assert_eq!(*seen, expected.snapshot());
    }

    #[test]
    fn whoever_is_not_busy_is_watched_in_full() {
        let mut client = Client::new();
        let mut dice = dice(7);
        client.rounds(20_000, |_| 900 + dice() % 300);
        let seen = client.seen();
        same(&seen.histograms.request_gap_us, &client.gaps);
        assert_eq!(seen.histograms.service_us.count(), 20_000);
        assert_eq!(seen.histograms.record_age_us.count(), 20_000);
        // The first has none before it.
        let rounds = (seen.counters.rounds, seen.counters.round_changes_us);
        assert_eq!(rounds, (19_998, client.changes_us_of_watched()));
    }

    impl Client {
        /// The first request has no answer before it: its round is not seen.
        fn changes_us_of_watched(&self) -> u64 {
            let first = Client {
                begun_us: self.begun_us[1..].to_vec(),
                ..Client::new()
            };
            first.changes_us()
        }
    }

    #[test]
    fn who_does_not_wait_for_answers_any_more_is_watched_again() {
        let mut client = Client::new();
        client.rounds(20_000, |_| 60);
        assert_eq!(client.seen().histograms.service_us.max(), SERVICE_US);
        // From here on one is always on its way.
        client.probe.request(1, 100, client.now_us, client.now_us);
        let before = client.seen().histograms.service_us.count();
        for _ in 0..1_000 {
            client.now_us += 500;
            client.probe.request(1, 100, client.now_us, client.now_us);
            client.probe.record_age(0);
            client.probe.answered(1, client.now_us);
        }
        let seen = client.seen().histograms.service_us;
        // The service of every second one is measured, after an eighth of a second.
        assert_eq!(seen.max(), 500);
        let measured = seen.count() - before;
        assert!((350..=500).contains(&measured), "{measured}");
    }

    #[test]
    fn of_who_is_busy_some_rounds_stand_for_all() {
        let patterns: [(&str, Pattern); 7] = [
            ("constant", Box::new(|_, _| 60)),
            ("by chance", Box::new(|_, chance| 20 + chance % 200)),
            (
                "seldom long",
                Box::new(|_, chance| 30 + 900 * u64::from(chance.is_multiple_of(50))),
            ),
            ("every second", Box::new(|number, _| 40 + number % 2 * 300)),
            (
                "every eighth",
                Box::new(|number, _| 40 + u64::from(number.is_multiple_of(8)) * 700),
            ),
            (
                "each 32nd",
                Box::new(|number, _| 40 + u64::from(number % 32 < 4) * 90),
            ),
            ("slower", Box::new(|number, _| 40 + number / 4_000)),
        ];
        const COUNT: u64 = 400_000;
        for (name, gap_us) in patterns {
            let mut client = Client::new();
            let mut dice = dice(3);
            client.rounds(COUNT, |number| gap_us(number, dice()));
            let (seen, expected) = (client.seen(), client.gaps.snapshot());
            let gaps = &seen.histograms.request_gap_us;
            // What is not made up for yet are the last ones.
            let lag = expected.count() - gaps.count();
            assert!(lag < 100, "{name}: {lag}");
            about(gaps.mean(), expected.mean(), 0.06);
            for q in [0.3, 0.8] {
                about(gaps.quantile(q) as f64, expected.quantile(q) as f64, 0.13);
            }
            let ages = &seen.histograms.record_age_us;
            about(ages.count() as f64, COUNT as f64, 0.05);
            about(ages.mean(), expected.mean(), 0.06);
            let services = &seen.histograms.service_us;
            about(services.count() as f64, COUNT as f64, 0.05);
            assert_eq!(services.max(), SERVICE_US);
            let counters = seen.counters;
            assert!(COUNT - counters.rounds < 100, "{name}: {counters:?}");
            let between = client.begun_us[counters.rounds as usize + 1] - client.begun_us[1];
            assert_eq!(counters.rounds_us, between, "{name}");
            let per_round = |sum_us: u64| sum_us as f64 / COUNT as f64;
            let changes_us = per_round(counters.round_changes_us);
            about(changes_us, per_round(client.changes_us()), 0.1);
            // What has no weight is exact.
            assert_eq!((counters.requests, counters.responses), (COUNT, COUNT));
            assert_eq!(seen.histograms.request_messages.count(), COUNT);
            assert_eq!(seen.histograms.request_receive_us.count(), COUNT);
        }
    }

    #[test]
    fn a_pause_is_never_passed_over() {
        let mut client = Client::new();
        let mut dice = dice(1);
        // One of twenty: it is busy, and waits often.
        let mut pauses = 0;
        client.rounds(100_000, |_| {
            let is_pause = dice().is_multiple_of(20);
            pauses += u64::from(is_pause);
            if is_pause { 3 * MS } else { 50 }
        });
        let gaps = client.seen().histograms.request_gap_us;
        assert_eq!(gaps.count_between(2 * MS, 4 * MS), pauses);
        assert!(client.gaps.snapshot().count() - gaps.count() < 100);
        about(gaps.mean(), client.gaps.snapshot().mean(), 0.001);
    }

    #[test]
    fn who_is_no_longer_busy_is_watched_in_full_at_once() {
        let mut client = Client::new();
        client.rounds(30_000, |_| 20);
        let before = client.seen();
        client.rounds(500, |number| 2 * MS + number % 2 * 100);
        let seen = client.seen();
        let gaps = &seen.histograms.request_gap_us;
        assert_eq!(gaps.count_between(MS, 4 * MS), 500);
        let (services, ages) = (&seen.histograms.service_us, &seen.histograms.record_age_us);
        let more = services.count() - before.histograms.service_us.count();
        assert_eq!((more, ages.count_between(MS, 4 * MS)), (500, 500));
        let changed = seen.counters.round_changes_us - before.counters.round_changes_us;
        // Rounds that were passed over last are made up for by these.
        let passed_max = super::PASSED_MIN + (1 << super::PASSED_BITS);
        let exact = 499 * 100;
        assert!(
            (exact..=exact + passed_max * 100).contains(&changed),
            "{changed}"
        );
    }

    #[test]
    fn who_has_to_wait_for_the_broker_is_watched_in_full_too() {
        for busy_rounds in 20_000..20_100 {
            let mut client = Client::new();
            client.rounds(busy_rounds, |_| 20);
            client.service_us = 200 * MS;
            let before = client.seen().histograms;
            client.rounds(20, |_| 20);
            let seen = client.seen().histograms;
            let is_long = |services: &HistogramSnapshot| services.count_between(100 * MS, 400 * MS);
            // The first of them, and those that it stands for, may be passed over.
            let long = is_long(&seen.service_us) - is_long(&before.service_us);
            assert!(long >= 19, "{long} after {busy_rounds}");
        }
    }
}
