//! The doctor: evaluates an observation once a second and reports findings.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use cloverleaf_telemetry::{ConnectionSnapshot, Gauges};
use serde::{Deserialize, Serialize};

use crate::advice::Advice;
use crate::case::{Case, CaseKey, Cases, Signs};
use crate::finding::{Confidence, Finding, Prediction};
use crate::names::Names;
use crate::queues::{QueueHistory, Queues};
use crate::rules::{self, ClientConsumers, ClosedConnections, ConnectionView, Rule, SHORT_US};
use crate::window::{History, STEP_US};
use crate::{Client, Observation};

/// Maximum bytes of all histories together: beyond it each is shortened to its share. Ten thousand
/// busy connections have 6 KB each, which is the last minute.
const HISTORY_BYTES_MAX: usize = 64 << 20;

/// Maximum findings in a report, which has the number of the others.
const FINDINGS_MAX: usize = 200;

/// Maximum connections of one client at one queue that are examined together.
const CLIENT_CONSUMERS_MAX: usize = 64;

/// Times beyond this, in microseconds, are invalid.
const TIME_US_MAX: u64 = u64::MAX / 4;

/// Which findings are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// Includes findings that have ended, if they were seen within this many microseconds before
    /// the last observation.
    pub since_us: Option<u64>,
    /// Only findings about clients whose address, library or name contains this text.
    pub client: Option<String>,
}

/// The doctor's report: its findings, and how much it has observed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When the last observation was made, in microseconds since 1970; 0 before the first.
    pub unix_us: u64,
    /// For how long it has been observing, in microseconds.
    pub watched_us: u64,
    /// Open connections.
    pub connections: u64,
    /// Connections opened since the broker was started.
    #[serde(default)]
    pub connections_opened: u64,
    /// The findings: active ones first, by descending cost.
    pub findings: Vec<Finding>,
    /// How many findings were left out.
    pub more: u64,
}

/// How many findings a rule has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCount {
    /// The rule.
    pub rule: Rule,
    /// Findings that are active.
    pub active: u64,
    /// Findings that have ever appeared. Never falls.
    pub appeared: u64,
}

/// The state of a doctor at one time. It gives the reports that the doctor would have given then.
#[derive(Debug, Clone)]
pub struct DoctorSnapshot {
    /// In the order of a report.
    entries: Vec<(CaseStatus, Finding)>,
    /// A report without findings.
    blank: Report,
    counts: Vec<RuleCount>,
}

impl DoctorSnapshot {
    /// The findings, as [`Doctor::report`].
    pub fn report(&self, query: &Query) -> Report {
        let wanted = self.entries.iter();
        let mut wanted =
            wanted.filter(|(status, finding)| status.is_wanted(&finding.client, query));
        let first = wanted.by_ref().take(FINDINGS_MAX);
        Report {
            findings: first.map(|(_, finding)| finding.clone()).collect(),
            more: wanted.count() as u64,
            ..self.blank.clone()
        }
    }

    /// How many findings each rule had, as [`Doctor::counts`].
    pub fn counts(&self) -> &[RuleCount] {
        &self.counts
    }
}

/// The state of a case, as far as queries select by it.
#[derive(Debug, Clone, Copy)]
struct CaseStatus {
    is_active: bool,
    was_open: bool,
    /// Microseconds since it was seen last.
    age_us: u64,
}

impl CaseStatus {
    fn is_wanted(self, client: &Client, query: &Query) -> bool {
        let is_recent = self.was_open && query.since_us.is_some_and(|us| self.age_us <= us);
        let text = query.client.as_deref();
        (self.is_active || is_recent) && text.is_none_or(|text| client.matches(text))
    }
}

/// Active cases first, by descending cost.
fn order((a_key, a): (&CaseKey, &Case), (b_key, b): (&CaseKey, &Case)) -> Ordering {
    let (a_is, b_is) = (&a.sign.prediction, &b.sign.prediction);
    b.is_active()
        .cmp(&a.is_active())
        .then(b_is.severity().cmp(&a_is.severity()))
        .then(b_is.gain.total_cmp(&a_is.gain))
        .then(a_key.cmp(b_key))
}

/// Keeps the history of all connections, and the cases found in it.
///
/// It gets an [`Observation`] once a second ([`Doctor::observe`]). A report ([`Doctor::report`]) is
/// cheap and changes nothing.
#[derive(Debug)]
pub struct Doctor {
    advice: Advice,
    history_bytes_max: usize,
    since_us: Option<u64>,
    seen_us: u64,
    seen_unix_us: u64,
    step_us: u64,
    connections: u64,
    connections_opened: u64,
    histories: HashMap<u64, History>,
    names: Names,
    queues: Queues,
    closed: ClosedConnections,
    cases: Cases,
}

impl Doctor {
    /// A doctor that has seen nothing yet.
    pub fn new(advice: Advice) -> Doctor {
        Doctor {
            advice,
            history_bytes_max: HISTORY_BYTES_MAX,
            since_us: None,
            seen_us: 0,
            seen_unix_us: 0,
            step_us: 0,
            connections: 0,
            connections_opened: 0,
            histories: HashMap::new(),
            names: Names::default(),
            queues: Queues::default(),
            closed: ClosedConnections::default(),
            cases: Cases::default(),
        }
    }

    /// Limits the histories of all connections together to this many bytes, if the default of 64
    /// MiB is too much. With fewer bytes windows are shorter, and rules about slow events see less.
    pub fn with_history_bytes_max(self, bytes: usize) -> Doctor {
        Doctor {
            history_bytes_max: bytes,
            ..self
        }
    }

    /// Evaluates an observation. Returns the findings that appear with it, for a line in the log
    /// each. A finding that ends and comes back within an hour is not returned again.
    ///
    /// Observations may come at any rate; one that is older than the last is ignored.
    pub fn observe(&mut self, observation: &Observation) -> Vec<Finding> {
        let now_us = observation.taken_us;
        let is_late = self.since_us.is_some() && now_us <= self.seen_us;
        if is_late || now_us > TIME_US_MAX {
            return Vec::new();
        }
        self.seen_us = now_us;
        self.seen_unix_us = observation.unix_us;
        self.connections = observation.snapshot.connections.len() as u64;
        let totals = observation.snapshot.totals.iter();
        self.connections_opened = totals.map(|it| it.connections_opened).sum();
        self.queues.observe(&observation.queues, now_us);
        let way = |id| self.histories.get(&id).map(History::round_trips);
        self.closed
            .observe(&observation.snapshot, |id| way(id).unwrap_or_default());
        self.names.observe(&observation.snapshot, &self.advice);
        let is_first = self.since_us.is_none();
        let since_us = *self.since_us.get_or_insert(now_us);
        for connection in &observation.snapshot.connections {
            if let Some(history) = self.histories.get_mut(&connection.id) {
                history.observe(connection, now_us);
            }
        }
        // An observation that comes a little early still ends the step.
        if !is_first && now_us < self.step_us + STEP_US - STEP_US / 10 {
            return Vec::new();
        }
        self.step_us = now_us;
        self.step_histories(&observation.snapshot.connections, now_us, since_us);
        let signs = self.signs(&observation.snapshot.connections, now_us);
        let new = self.cases.step(signs, now_us, observation.unix_us);
        let cases = new
            .iter()
            .filter_map(|key| Some((key, self.cases.get(key)?)));
        cases.map(|(key, case)| self.finding(key, case)).collect()
    }

    fn step_histories(&mut self, seen: &[ConnectionSnapshot], now_us: u64, since_us: u64) {
        let share = self.history_bytes_max / seen.len().max(1);
        let mut histories = HashMap::with_capacity(seen.len());
        for connection in seen {
            let client = self.names.client(connection);
            let mut history = match self.histories.remove(&connection.id) {
                Some(history) => history,
                None => History::new(connection, client.clone(), since_us),
            };
            // The remembered name of the client's library may have expired meanwhile; this
            // connection keeps it.
            let is_known =
                client.library.is_empty() && history.client.client_id == client.client_id;
            if history.client != client && !is_known {
                history.client = client;
            }
            history.step(connection, now_us);
            self.closed.note_rtt(&history.client, history.rtt_us);
            history.shrink(share);
            histories.insert(connection.id, history);
        }
        self.histories = histories;
    }

    fn signs(&self, seen: &[ConnectionSnapshot], now_us: u64) -> Signs {
        let by_connection = self.queues.by_connection();
        let mut consumers: HashMap<u64, u64> = HashMap::new();
        for consumer in self.queues.all().iter().flat_map(|it| &it.queue.consumers) {
            *consumers.entry(consumer.connection).or_default() += 1;
        }
        let views = seen.iter().filter_map(|connection| {
            let history = self.histories.get(&connection.id)?;
            let queue = by_connection.get(&connection.id).copied();
            if history.is_blank() || (queue.is_none() && !history.is_active(now_us)) {
                return None;
            }
            let view = ConnectionView {
                consumers: consumers.get(&connection.id).copied().unwrap_or_default(),
                ..view(connection, history, queue.flatten(), now_us)
            };
            Some((connection.id, view))
        });
        let mut views: BTreeMap<u64, ConnectionView<'_>> = views.collect();
        count_publishers(&mut views);
        let mut signs = Signs::default();
        for (connection, view) in &views {
            for sign in view.signs() {
                signs.add(view.client(), &[*connection], sign);
            }
            let abandoned = self.closed.abandoned(view.client());
            if let Some(sign) = rules::see_too_many_in_flight(view, abandoned) {
                signs.add(view.client(), &[*connection], sign);
            }
        }
        for history in self.queues.all() {
            for of_client in consumers_by_client(history, &views) {
                if let (Some(sign), Some((first, _))) = (of_client.see(), of_client.members.first())
                {
                    let at: Vec<u64> = of_client
                        .members
                        .iter()
                        .map(|(it, _)| it.connection)
                        .collect();
                    signs.add(first.client(), &at, sign);
                }
            }
            if let Some((connection, sign)) = rules::see_partitions(history)
                && let Some(owner) = self.histories.get(&connection)
            {
                signs.add(&owner.client, &[connection], sign);
            }
        }
        let of_closed = rules::connections(&self.closed, now_us);
        for (client, sign) in of_closed
            .into_iter()
            .chain(rules::see_too_many_given_up(&self.closed, now_us))
        {
            signs.add(&client, &[], sign);
        }
        signs
    }

    /// The current findings.
    pub fn report(&self, query: &Query) -> Report {
        let mut cases: Vec<(&CaseKey, &Case)> = self
            .cases
            .all()
            .filter(|(key, case)| self.status(case).is_wanted(&key.client, query))
            .collect();
        cases.sort_by(|a, b| order(*a, *b));
        let more = cases.len().saturating_sub(FINDINGS_MAX) as u64;
        cases.truncate(FINDINGS_MAX);
        let findings = cases.iter().map(|(key, case)| self.finding(key, case));
        self.answer(findings.collect(), more)
    }

    /// A copy of the current state, from which queries are answered while the doctor is busy.
    pub fn snapshot(&self) -> DoctorSnapshot {
        let cases = self.cases.all();
        let mut cases: Vec<(&CaseKey, &Case)> = cases
            .filter(|(_, case)| case.is_active() || case.was_open())
            .collect();
        cases.sort_by(|a, b| order(*a, *b));
        let entries = cases
            .into_iter()
            .map(|(key, case)| (self.status(case), self.finding(key, case)));
        DoctorSnapshot {
            entries: entries.collect(),
            blank: self.answer(Vec::new(), 0),
            counts: self.counts(),
        }
    }

    fn status(&self, case: &Case) -> CaseStatus {
        CaseStatus {
            is_active: case.is_active(),
            was_open: case.was_open(),
            age_us: self.seen_us.saturating_sub(case.last_us),
        }
    }

    fn answer(&self, findings: Vec<Finding>, more: u64) -> Report {
        Report {
            unix_us: self.seen_unix_us,
            watched_us: self.seen_us - self.since_us.unwrap_or(self.seen_us),
            connections: self.connections,
            connections_opened: self.connections_opened,
            findings,
            more,
        }
    }

    /// How many findings each rule has, for metrics. All rules are included.
    pub fn counts(&self) -> Vec<RuleCount> {
        let active = |rule| {
            let of_rule = |(key, case): &(&CaseKey, &Case)| key.rule == rule && case.is_active();
            self.cases.all().filter(of_rule).count() as u64
        };
        let count = |rule| RuleCount {
            rule,
            active: active(rule),
            appeared: self.cases.total(rule),
        };
        Rule::ALL.into_iter().map(count).collect()
    }

    /// Memory of the histories, in bytes.
    pub fn history_bytes(&self) -> usize {
        self.histories.values().map(History::len_bytes).sum()
    }

    fn finding(&self, key: &CaseKey, case: &Case) -> Finding {
        let sign = &case.sign;
        let (template, numbers) = (sign.template, &sign.numbers);
        let mut unseen = template.unseen(numbers);
        let mut confidence = sign.confidence;
        let place = sign.place.clone();
        let advised = self.advice.of(
            (key.rule, sign.picture),
            sign.side,
            &key.client,
            &sign.variables,
            &place,
        );
        if let Some(why) = advised.immune {
            confidence = Confidence::Medium;
            unseen.push(why);
        }
        let (topic, subscription) = place.unzip();
        Finding {
            id: key.id(),
            rule: key.rule,
            severity: sign.prediction.severity(),
            confidence,
            library_shown: self.advice.library_shown(&key.client),
            client: key.client.clone(),
            connections: case.connections,
            topic,
            subscription,
            cause: template.cause(numbers),
            evidence: template.evidence(numbers),
            window_us: sign.window_us,
            prediction: Prediction {
                arithmetic: template.arithmetic(numbers),
                ..sign.prediction.clone()
            },
            changes: advised.changes,
            unseen,
            first_seen_unix_us: case.first_unix_us,
            last_seen_unix_us: case.last_unix_us,
            is_active: case.is_active(),
        }
    }
}

fn view<'a>(
    connection: &'a ConnectionSnapshot,
    history: &'a History,
    queue: Option<&'a QueueHistory>,
    now_us: u64,
) -> ConnectionView<'a> {
    let gauges: &Gauges = &connection.gauges;
    ConnectionView {
        connection: connection.id,
        protocol: connection.protocol,
        history,
        gauges,
        totals: &connection.counters,
        now_us,
        short: history.window(now_us, SHORT_US),
        consumers: 0,
        publishers: 1,
        queue,
    }
}

/// How many connections of each client publish.
fn count_publishers(views: &mut BTreeMap<u64, ConnectionView<'_>>) {
    let mut counts: HashMap<&Client, u64> = HashMap::new();
    for view in views.values().filter(|it| it.publishes()) {
        *counts.entry(&view.history.client).or_default() += 1;
    }
    for view in views.values_mut().filter(|it| it.publishes()) {
        let count = counts.get(&view.history.client);
        view.publishers = count.copied().unwrap_or(1);
    }
}

/// The consumers of a queue, by client.
fn consumers_by_client<'a, 'p>(
    queue: &'a QueueHistory,
    views: &'a BTreeMap<u64, ConnectionView<'p>>,
) -> Vec<ClientConsumers<'a, 'p>> {
    let mut consumers: BTreeMap<u64, u64> = BTreeMap::new();
    for consumer in &queue.queue.consumers {
        *consumers.entry(consumer.connection).or_default() += 1;
    }
    let mut by_client: BTreeMap<&Client, Vec<(&ConnectionView<'p>, u64)>> = BTreeMap::new();
    for (connection, count) in consumers {
        // The telemetry of a connection that consumes from several queues cannot be attributed to
        // this one.
        if let Some(view) = views.get(&connection)
            && view.queue.is_some()
        {
            let members = by_client.entry(view.client()).or_default();
            if members.len() < CLIENT_CONSUMERS_MAX {
                members.push((view, count));
            }
        }
    }
    let groups = by_client.into_values();
    groups
        .map(|members| ClientConsumers { queue, members })
        .collect()
}
