//! Cases: a sign that is seen for some steps opens a case, and a case whose sign has not been seen
//! for some steps ends.

use std::collections::{BTreeMap, BTreeSet};

use crate::rules::Sign;
use crate::{Client, Rule, causes};

/// Steps in which a sign has to be seen before its case opens: a single one may be chance.
const HELD_MIN: u32 = 3;

/// Steps without the sign after which a case ends: a sign that comes and goes remains one case.
const MISSED_MAX: u32 = 5;

/// Maximum open cases; those with the highest cost are kept.
const CASES_MAX: usize = 1024;

/// How long an ended case is remembered, in microseconds.
const REMEMBERED_US: u64 = 3_600_000_000;

/// Maximum ended cases.
const ENDED_MAX: usize = 256;

/// A rule about a client, at a place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CaseKey {
    pub(crate) client: Client,
    pub(crate) rule: Rule,
    pub(crate) place: Option<(String, String)>,
}

impl CaseKey {
    /// The finding's id: stable over restarts of the broker, because it depends on rule, client and
    /// place only.
    pub(crate) fn id(&self) -> String {
        let Client {
            address,
            protocol,
            library,
            version,
            client_id,
            platform,
        } = &self.client;
        let (topic, name) = self.place.clone().unwrap_or_default();
        let address = address.to_string();
        let parts = [
            address.as_str(),
            protocol.name(),
            library,
            version,
            client_id,
            &topic,
            &name,
        ];
        // Few clients declare a platform. It is hashed only if declared, so that the ids of the
        // others do not depend on it.
        let platform = Some(platform.as_str()).filter(|it| !it.is_empty());
        // FNV-1a, written here because the hash of a library may change.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for part in parts.into_iter().chain(platform) {
            for byte in part.bytes().chain([0xff]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        format!("{}-{:08x}", self.rule, (hash >> 32) as u32 ^ hash as u32)
    }
}

/// Whether a place keeps its name for longer than a connection. A queue named by the broker (AMQP's
/// `amq.gen-…`) gets another name whenever its client connects.
fn is_lasting((topic, _): &(String, String)) -> bool {
    !topic.starts_with("amq.gen-")
}

/// A sign, and since when it has been seen.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) sign: Sign,
    pub(crate) connections: u64,
    /// The open connections at which the sign was seen last.
    at: BTreeSet<u64>,
    held: u32,
    missed: u32,
    /// The case was reported and is active.
    is_open: bool,
    /// The case was reported and has ended.
    is_ended: bool,
    pub(crate) first_unix_us: u64,
    pub(crate) last_unix_us: u64,
    pub(crate) last_us: u64,
}

impl Case {
    pub(crate) fn is_active(&self) -> bool {
        self.is_open && !self.is_ended
    }

    pub(crate) fn was_open(&self) -> bool {
        self.is_open
    }
}

/// The signs of one step; of equal ones the strongest.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    seen: BTreeMap<CaseKey, SeenSign>,
}

/// A sign, and where it was seen.
#[derive(Debug)]
struct SeenSign {
    sign: Sign,
    connections: u64,
    at: BTreeSet<u64>,
}

impl Signs {
    /// Adds a sign of a client, seen at these connections.
    pub(crate) fn add(&mut self, client: &Client, at: &[u64], sign: Sign) {
        let key = CaseKey {
            client: client.clone(),
            rule: sign.template.rule,
            place: sign.place.clone().filter(is_lasting),
        };
        match self.seen.get_mut(&key) {
            Some(seen) => {
                seen.connections += at.len().max(1) as u64;
                seen.at.extend(at);
                if sign.prediction.gain > seen.sign.prediction.gain {
                    seen.sign = sign;
                }
            }
            None => {
                let connections = at.len().max(1) as u64;
                let at = at.iter().copied().collect();
                let seen = SeenSign {
                    sign,
                    connections,
                    at,
                };
                self.seen.insert(key, seen);
            }
        }
    }

    /// Leaves out signs that are only symptoms of another sign or of an open case. An open case
    /// stays until its cause has become a case too.
    fn without_symptoms(mut self, open: &Cases) -> Signs {
        let mut causes = Causes::default();
        causes.add(open.active());
        let certain = causes.symptoms(&self.places());
        causes.add(self.places());
        let symptoms = causes.symptoms(&self.places());
        let is_active = |key: &CaseKey| open.get(key).is_some_and(Case::is_active);
        self.seen.retain(|key, _| {
            if is_active(key) {
                !certain.contains(key)
            } else {
                !symptoms.contains(key)
            }
        });
        self
    }

    fn places(&self) -> Vec<(&CaseKey, &BTreeSet<u64>)> {
        self.seen
            .iter()
            .map(|(key, seen)| (key, &seen.at))
            .collect()
    }
}

/// The cases of each client, and the connections at which they are seen.
#[derive(Debug, Default)]
struct Causes<'a> {
    of_clients: BTreeMap<&'a Client, Vec<(&'a CaseKey, &'a BTreeSet<u64>)>>,
}

impl<'a> Causes<'a> {
    fn add(&mut self, places: impl IntoIterator<Item = (&'a CaseKey, &'a BTreeSet<u64>)>) {
        for (key, at) in places {
            self.of_clients
                .entry(&key.client)
                .or_default()
                .push((key, at));
        }
    }

    /// Which of these places are symptoms of the causes. Several programs of one name on one
    /// machine look like one client, so a cause explains only signs on its own connections. If all
    /// connections of the cause or of the sign are closed, they cannot be compared, and the cause
    /// explains the sign.
    fn symptoms(&self, places: &[(&CaseKey, &BTreeSet<u64>)]) -> BTreeSet<CaseKey> {
        let is_symptom = |key: &CaseKey, at: &BTreeSet<u64>| {
            let causes = self.of_clients.get(&key.client);
            causes.into_iter().flatten().any(|(cause, cause_at)| {
                causes::hides(cause.rule, key.rule)
                    && (cause_at.is_empty() || at.is_empty() || !cause_at.is_disjoint(at))
            })
        };
        let symptoms = places.iter().filter(|(key, at)| is_symptom(key, at));
        symptoms.map(|(key, _)| (*key).clone()).collect()
    }
}

/// All cases.
#[derive(Debug, Default)]
pub(crate) struct Cases {
    known: BTreeMap<CaseKey, Case>,
    /// How many cases of each rule have ever opened.
    totals: BTreeMap<Rule, u64>,
}

impl Cases {
    /// Takes the signs of a step. Returns the keys of the cases that are new.
    pub(crate) fn step(&mut self, signs: Signs, now_us: u64, unix_us: u64) -> Vec<CaseKey> {
        let signs = signs.without_symptoms(self);
        let mut new = Vec::new();
        for (key, case) in &mut self.known {
            if !signs.seen.contains_key(key) {
                case.held = 0;
                case.missed = case.missed.saturating_add(1);
                case.is_ended |= case.is_open && case.missed > MISSED_MAX;
            }
        }
        for (key, seen) in signs.seen {
            let SeenSign {
                sign,
                connections,
                at,
            } = seen;
            let case = self.known.entry(key.clone()).or_insert_with(|| Case {
                sign: sign.clone(),
                connections,
                at: BTreeSet::new(),
                held: 0,
                missed: 0,
                is_open: false,
                is_ended: false,
                first_unix_us: unix_us,
                last_unix_us: unix_us,
                last_us: now_us,
            });
            case.sign = sign;
            case.connections = connections;
            case.at = at;
            case.held = case.held.saturating_add(1);
            case.missed = 0;
            case.last_unix_us = unix_us;
            case.last_us = now_us;
            let is_certain = case.held >= HELD_MIN;
            if is_certain && !case.is_open {
                case.is_open = true;
                new.push(key.clone());
                *self.totals.entry(key.rule).or_default() += 1;
            } else if is_certain && case.is_ended {
                // It was reported before, so it is not reported again.
                case.is_ended = false;
            }
        }
        self.end_symptoms();
        self.forget(now_us);
        new.retain(|key| self.known.contains_key(key));
        new
    }

    /// Ends cases whose cause has become a case. They are remembered: if the cause disappears and
    /// they do not, they are not reported again.
    fn end_symptoms(&mut self) {
        let mut causes = Causes::default();
        causes.add(self.active());
        let places: Vec<_> = self.active().collect();
        for key in causes.symptoms(&places) {
            if let Some(case) = self.known.get_mut(&key) {
                case.is_ended = true;
            }
        }
    }

    fn active(&self) -> impl Iterator<Item = (&CaseKey, &BTreeSet<u64>)> {
        let active = self.known.iter().filter(|(_, case)| case.is_active());
        active.map(|(key, case)| (key, &case.at))
    }

    fn forget(&mut self, now_us: u64) {
        let oldest_us = now_us.saturating_sub(REMEMBERED_US);
        self.known
            .retain(|_, case| case.missed == 0 || (case.is_open && case.last_us >= oldest_us));
        let ended: Vec<u64> = self.of(|case| case.is_ended).map(|it| it.last_us).collect();
        if ended.len() > ENDED_MAX {
            let mut times = ended;
            times.sort_unstable();
            let kept_from_us = times[times.len() - ENDED_MAX];
            self.known
                .retain(|_, case| !case.is_ended || case.last_us >= kept_from_us);
        }
        if self.known.len() > CASES_MAX {
            let mut gains: Vec<f64> = self
                .of(|_| true)
                .map(|it| it.sign.prediction.gain)
                .collect();
            gains.sort_by(|a, b| b.total_cmp(a));
            let least = gains[CASES_MAX - 1];
            let mut room = CASES_MAX;
            self.known.retain(|_, case| {
                let is_kept = case.sign.prediction.gain >= least && room > 0;
                room -= usize::from(is_kept);
                is_kept
            });
        }
    }

    fn of(&self, is: impl Fn(&Case) -> bool) -> impl Iterator<Item = &Case> {
        self.known.values().filter(move |case| is(case))
    }

    /// All cases, ended ones included.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&CaseKey, &Case)> {
        self.known.iter()
    }

    /// The case of this key.
    pub(crate) fn get(&self, key: &CaseKey) -> Option<&Case> {
        self.known.get(key)
    }

    /// How many cases of a rule have ever opened.
    pub(crate) fn total(&self, rule: Rule) -> u64 {
        self.totals.get(&rule).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use cloverleaf_telemetry::{Identity, Protocol};

    use super::*;
    use crate::finding::{Measure, Prediction};
    use crate::templates::TEMPLATES;

    fn client(port: u16, library: &str) -> Client {
        let identity = Identity {
            library: library.to_owned(),
            ..Identity::default()
        };
        let peer = std::net::SocketAddr::from(([10, 0, 0, 1], port));
        Client::of(Protocol::Nsq, peer, &identity)
    }

    fn sign(rule: Rule, gain: f64) -> Sign {
        let template = match rule {
            Rule::Linger => &TEMPLATES.linger,
            Rule::Nagle => &TEMPLATES.nagle_of_requests,
            Rule::SyncProduce => &TEMPLATES.sync_produce,
            Rule::WindowTooSmall => &TEMPLATES.window_too_small,
            rule => panic!("no test needs {rule}"),
        };
        let measure = Measure::ConnectionMessagesPerSecond;
        Sign::new(template, Prediction::new(measure, 1.0, gain), 1, [])
    }

    fn step(cases: &mut Cases, at: u64, rules: &[Rule]) -> Vec<Rule> {
        let mut signs = Signs::default();
        for rule in rules {
            signs.add(&client(1, "x"), &[1], sign(*rule, 3.0));
        }
        let new = cases.step(signs, at * 1_000_000, at);
        new.into_iter().map(|key| key.rule).collect()
    }

    fn active(cases: &Cases) -> Vec<Rule> {
        let active = cases.all().filter(|(_, case)| case.is_active());
        active.map(|(key, _)| key.rule).collect()
    }

    #[test]
    fn a_queue_that_the_broker_has_named_is_the_same_case_under_each_name() {
        let mut cases = Cases::default();
        let mut new = Vec::new();
        for at in 0..9 {
            let mut signs = Signs::default();
            for topic in [
                format!("amq.gen-{at}"),
                format!("amq.gen-x{at}"),
                "q".to_owned(),
            ] {
                let place = Some((topic, "queue".to_owned()));
                let sign = sign(Rule::WindowTooSmall, 3.0);
                signs.add(&client(1, "x"), &[at], Sign { place, ..sign });
            }
            new.extend(cases.step(signs, at * 1_000_000, at));
        }
        let ids: BTreeSet<String> = new.iter().map(CaseKey::id).collect();
        assert_eq!((new.len(), ids.len()), (2, 2), "{ids:?}");
        let mut all = cases.all();
        let (_, first) = all.find(|(key, _)| key.place.is_none()).unwrap();
        assert_eq!(first.connections, 2);
        let topic = first.sign.place.clone().unwrap().0;
        assert!(
            topic.starts_with("amq.gen-"),
            "where it is seen at present: {topic}"
        );
    }

    #[test]
    fn a_case_needs_time_to_begin_and_to_end() {
        use Rule::SyncProduce as Sync;
        let mut cases = Cases::default();
        // A sign that is missing in every third step opens no case.
        for at in 0..10 {
            let rules: &[Rule] = if at % 3 < 2 { &[Sync] } else { &[] };
            assert!(step(&mut cases, at, rules).is_empty());
        }
        assert!(step(&mut cases, 10, &[]).is_empty());
        let new: Vec<_> = (11..14).map(|at| step(&mut cases, at, &[Sync])).collect();
        assert_eq!(new, [vec![], vec![], vec![Sync]]);
        for at in 14..19 {
            step(&mut cases, at, &[]);
            assert_eq!(active(&cases), [Sync]);
        }
        step(&mut cases, 19, &[]);
        assert!(active(&cases).is_empty());
        // It comes back: it is the same case and is not reported twice.
        for at in 20..25 {
            assert!(step(&mut cases, at, &[Sync]).is_empty());
        }
        assert_eq!(active(&cases), [Sync]);
        assert_eq!(cases.total(Sync), 1);
        let case = cases.all().next().unwrap().1;
        assert_eq!((case.first_unix_us, case.last_unix_us), (11, 24));
    }

    #[test]
    fn a_cause_that_is_found_later_takes_its_symptom_away() {
        use Rule::{Nagle, SyncProduce};
        let mut cases = Cases::default();
        (0..3).for_each(|at| drop(step(&mut cases, at, &[SyncProduce])));
        assert_eq!(active(&cases), [SyncProduce]);
        (3..6).for_each(|at| drop(step(&mut cases, at, &[SyncProduce, Nagle])));
        assert_eq!(active(&cases), [Nagle]);
        // While the cause is not seen for a moment, its symptom is not shown instead.
        (6..10).for_each(|at| drop(step(&mut cases, at, &[SyncProduce])));
        assert_eq!(active(&cases), [Nagle]);
    }

    #[test]
    fn a_chance_sign_of_a_cause_does_not_end_a_case() {
        use Rule::{Nagle, SyncProduce};
        let mut cases = Cases::default();
        (0..3).for_each(|at| drop(step(&mut cases, at, &[SyncProduce])));
        for at in 3..40 {
            let chance: &[Rule] = match at % 7 {
                0 => &[SyncProduce, Nagle],
                _ => &[SyncProduce],
            };
            assert!(step(&mut cases, at, chance).is_empty());
            assert_eq!(active(&cases), [SyncProduce]);
        }
        assert_eq!(cases.total(SyncProduce), 1);
    }

    #[test]
    fn a_symptom_that_stays_when_its_cause_goes_is_not_told_again() {
        use Rule::{Nagle, SyncProduce};
        let mut cases = Cases::default();
        (0..3).for_each(|at| drop(step(&mut cases, at, &[SyncProduce])));
        (3..9).for_each(|at| drop(step(&mut cases, at, &[SyncProduce, Nagle])));
        assert_eq!(active(&cases), [Nagle]);
        for at in 9..30 {
            assert!(step(&mut cases, at, &[SyncProduce]).is_empty());
        }
        assert_eq!(active(&cases), [SyncProduce]);
        assert_eq!(cases.total(SyncProduce), 1);
    }

    #[test]
    fn a_cause_hides_nothing_on_the_connections_of_others() {
        use Rule::{Nagle, SyncProduce};
        for (of_symptom, expect) in [(&[2][..], 2), (&[1, 2], 1), (&[1], 1)] {
            let mut cases = Cases::default();
            for at in 0..4 {
                let mut signs = Signs::default();
                signs.add(&client(1, "x"), &[1], sign(Nagle, 3.0));
                for connection in of_symptom {
                    signs.add(&client(1, "x"), &[*connection], sign(SyncProduce, 3.0));
                }
                cases.step(signs, at, at);
            }
            assert_eq!(active(&cases).len(), expect);
        }
    }

    #[test]
    fn clients_that_differ_in_their_platform_only_have_cases_of_their_own() {
        let key = |platform: &str| CaseKey {
            client: Client {
                platform: platform.to_owned(),
                ..client(1, "x")
            },
            rule: Rule::Linger,
            place: None,
        };
        assert_ne!(key("linux").id(), key("darwin").id());
        assert_ne!(key("linux").id(), key("").id());
    }

    #[test]
    fn connections_of_one_client_are_one_case_and_two_clients_are_two() {
        let mut cases = Cases::default();
        for at in 0..3 {
            let mut signs = Signs::default();
            for (port, gain) in [(1, 2.0), (2, 9.0), (3, 4.0)] {
                signs.add(
                    &client(port, "x"),
                    &[u64::from(port)],
                    sign(Rule::Linger, gain),
                );
            }
            signs.add(&client(4, "y"), &[4], sign(Rule::Linger, 2.0));
            cases.step(signs, at, at);
        }
        let all: Vec<_> = cases.all().collect();
        assert_eq!(all.len(), 2);
        assert_eq!(
            (all[0].1.connections, all[0].1.sign.prediction.gain),
            (3, 9.0)
        );
        assert_ne!(all[0].0.id(), all[1].0.id());
        assert_eq!(all[0].0.id(), "linger-600d4d2f");
    }

    #[test]
    fn cases_are_bounded_and_the_worst_are_kept() {
        let mut cases = Cases::default();
        for at in 0..4 {
            let mut signs = Signs::default();
            for number in 0..3000 {
                let name = format!("{number}");
                signs.add(
                    &client(1, &name),
                    &[1],
                    sign(Rule::Linger, 2.0 + f64::from(number)),
                );
            }
            cases.step(signs, at, at);
        }
        assert_eq!(cases.all().count(), CASES_MAX);
        let least = cases.all().map(|(_, case)| case.sign.prediction.gain);
        assert_eq!(
            least.fold(f64::MAX, f64::min),
            2.0 + 3000.0 - CASES_MAX as f64
        );
        (4..12).for_each(|at| drop(cases.step(Signs::default(), at, at)));
        assert_eq!(cases.all().count(), ENDED_MAX.max(CASES_MAX));
        let later = REMEMBERED_US + 100;
        cases.step(Signs::default(), later, later);
        assert_eq!(cases.all().count(), 0);
    }
}
