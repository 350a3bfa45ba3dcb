//! Tests of the statistics of rounds, with clients of several patterns.

use std::net::SocketAddr;

use crate::{Histogram, HistogramSnapshot, Probe, Protocol, Registry};

const MS: u64 = 1_000;
const SERVICE_US: u64 = 40;

/// Returns a gap in microseconds, from the round's number and a random number.
type Pattern = Box<dyn Fn(u64, u64) -> u64>;

/// A client that sends one request at a time, with given gaps. It keeps a record of them.
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

    /// Sum of the differences in length between each round and the one before it, without those by
    /// more than half a round.
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
fn rounds_of_an_idle_connection_are_all_watched() {
    let mut client = Client::new();
    let mut dice = dice(7);
    client.rounds(20_000, |_| 900 + dice() % 300);
    let seen = client.seen();
    same(&seen.histograms.request_gap_us, &client.gaps);
    assert_eq!(seen.histograms.service_us.count(), 20_000);
    assert_eq!(seen.histograms.record_age_us.count(), 20_000);
    // The first round has none before it.
    let rounds = (seen.counters.rounds, seen.counters.round_changes_us);
    assert_eq!(rounds, (19_998, client.changes_us_of_watched()));
}

impl Client {
    /// The first request follows no answer, so it begins no round.
    fn changes_us_of_watched(&self) -> u64 {
        let first = Client {
            begun_us: self.begun_us[1..].to_vec(),
            ..Client::new()
        };
        first.changes_us()
    }
}

/// The sums of squared differences of rounds, services and gaps, for rounds with these gaps and
/// services.
fn squares(rounds: impl IntoIterator<Item = (u64, u64)>) -> [u64; 3] {
    let mut client = Client::new();
    for (gap_us, service_us) in rounds {
        client.service_us = service_us;
        client.rounds(1, |_| gap_us);
    }
    let seen = client.seen().counters;
    [
        seen.round_changes_sq,
        seen.served_changes_sq,
        seen.gap_changes_sq,
    ]
}

#[test]
fn squares_of_differences_are_summed() {
    // The first round has no gap before it. A round consists of its own service and the gap after
    // it.
    let first = (0, 300);
    let lasts = [(5_000, 400), (5_000, 900), (4_000, 700), (4_000, 0)];
    // Services 300, 400, 900, 700; the gaps after them 5000, 5000, 4000, 4000.
    let is = squares([(0, 0), first].into_iter().chain(lasts));
    let (round, served, gap) = (
        [100, 500 - 1_000, -200],
        [100, 500, -200],
        [0_i64, -1_000, 0],
    );
    let squared = |of: [i64; 3]| of.iter().map(|it| (it * it) as u64).sum::<u64>();
    assert_eq!(is, [squared(round), squared(served), squared(gap)]);
}

#[test]
fn large_differences_are_left_out_of_the_squares() {
    for far in [25 * MS, 1 << 40, 1 << 62] {
        let usual = [(5 * MS, 300); 4];
        for other in [(far, 300), (5 * MS, far), (far, far)] {
            let rounds = usual.into_iter().chain([other]).chain(usual);
            assert_eq!(squares(rounds), [0; 3], "{other:?}");
        }
    }
}

/// A client that pipelines has sent another request when an answer is late: a round of two
/// requests.
#[test]
fn rounds_of_several_requests_are_left_out_of_the_squares() {
    let mut client = Client::new();
    client.rounds(5, |_| 5 * MS);
    for _ in 0..5 {
        client.now_us += 5 * MS;
        for _ in 0..2 {
            client.probe.request(1, 100, client.now_us, client.now_us);
            client.now_us += MS;
        }
        client.probe.answered(2, client.now_us);
        client.rounds(1, |_| 4 * MS);
    }
    let seen = client.seen().counters;
    assert!(seen.rounds > 10 && seen.round_changes_us > 0);
    assert_eq!(seen.served_changes_sq, 0);
}

#[test]
fn a_client_that_starts_to_pipeline_is_watched_again() {
    let mut client = Client::new();
    client.rounds(20_000, |_| 60);
    assert_eq!(client.seen().histograms.service_us.max(), SERVICE_US);
    // From here on one request is always in flight.
    client.probe.request(1, 100, client.now_us, client.now_us);
    let before = client.seen().histograms.service_us.count();
    for _ in 0..1_000 {
        client.now_us += 500;
        client.probe.request(1, 100, client.now_us, client.now_us);
        client.probe.record_age(0);
        client.probe.answered(1, client.now_us);
    }
    let seen = client.seen().histograms.service_us;
    // After an eighth of a second, the service of every second request is measured.
    assert_eq!(seen.max(), 500);
    let measured = seen.count() - before;
    assert!((350..=500).contains(&measured), "{measured}");
}

#[test]
fn on_a_busy_connection_some_rounds_represent_all() {
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
        // Only the last gaps are not covered by any weight yet.
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
        // Counts that are not weighted are exact.
        assert_eq!((counters.requests, counters.responses), (COUNT, COUNT));
        assert_eq!(seen.histograms.request_messages.count(), COUNT);
        assert_eq!(seen.histograms.request_receive_us.count(), COUNT);
    }
}

#[test]
fn a_pause_is_never_passed_over() {
    let mut client = Client::new();
    let mut dice = dice(1);
    // One gap in twenty is a pause: the client is busy and waits often.
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
fn a_connection_that_is_no_longer_busy_is_watched_in_full_at_once() {
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
    // The changes of the rounds that were passed over last are added to these.
    let passed_max = super::PASSED_MIN + (1 << super::PASSED_BITS);
    let exact = 499 * 100;
    assert!(
        (exact..=exact + passed_max * 100).contains(&changed),
        "{changed}"
    );
}

#[test]
fn waits_for_the_broker_are_all_watched() {
    for busy_rounds in 20_000..20_100 {
        let mut client = Client::new();
        client.rounds(busy_rounds, |_| 20);
        client.service_us = 200 * MS;
        let before = client.seen().histograms;
        client.rounds(20, |_| 20);
        let seen = client.seen().histograms;
        let is_long = |services: &HistogramSnapshot| services.count_between(100 * MS, 400 * MS);
        // The first long round may be passed over.
        let long = is_long(&seen.service_us) - is_long(&before.service_us);
        assert!(long >= 19, "{long} after {busy_rounds}");
    }
}
