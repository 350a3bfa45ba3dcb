//! The doctor's thread: once a second it takes an observation of all connections and queues and
//! gives it to the doctor. A request is answered with the findings of the last check.
//!
//! It holds no lock that a connection waits for longer than it takes to copy a list, and a panic in
//! the doctor ends only that check.

pub(crate) mod advice;
mod queues;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cloverleaf_doctor::{
    Advice, Doctor, DoctorSnapshot, Finding, Observation, Query, Report, RuleCount, one_line,
};
use parking_lot::Mutex;

use crate::context::ServerContext;
use crate::doctor::queues::queues;
use crate::tcp_info::tcp_info;

/// The name of the thread.
const NAME: &str = "doctor";

/// The interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// After a check, the thread rests for at least this many times as long as the check took.
const REST_FACTOR: u32 = 3;

/// How long it rests after a panic, which would occur again with the same connections.
const REST_AFTER_PANIC: Duration = Duration::from_secs(60);

/// How long an answer waits for the end of a running check, to include its findings.
const ANSWER_WAIT_MAX: Duration = Duration::from_millis(300);

/// The doctor and its latest findings, which any thread may ask for.
pub(crate) struct SharedDoctor {
    advice: Advice,
    doctor: Mutex<Doctor>,
    /// The findings after the last check, for callers that cannot wait for the end of the next one.
    known: Mutex<Arc<DoctorSnapshot>>,
}

impl SharedDoctor {
    pub(crate) fn new(advice: Advice) -> SharedDoctor {
        let doctor = Doctor::new(advice.clone());
        SharedDoctor {
            advice,
            known: Mutex::new(Arc::new(doctor.snapshot())),
            doctor: Mutex::new(doctor),
        }
    }

    /// The advice that findings give.
    pub(crate) fn advice(&self) -> &Advice {
        &self.advice
    }

    /// The current findings. While a check runs, which takes some time with thousands of
    /// connections, they are those of the last check.
    pub(crate) fn report(&self, query: &Query) -> Report {
        match self.doctor.try_lock_for(ANSWER_WAIT_MAX) {
            Some(doctor) => doctor.report(query),
            None => self.known().report(query),
        }
    }

    /// How many findings each rule has, as of the last check.
    pub(crate) fn counts(&self) -> Vec<RuleCount> {
        self.known().counts().to_vec()
    }

    fn known(&self) -> Arc<DoctorSnapshot> {
        Arc::clone(&self.known.lock())
    }

    /// Gives the doctor an observation. Returns the findings that are new.
    fn observe(&self, observation: &Observation) -> Vec<Finding> {
        let mut doctor = self.doctor.lock();
        let new = doctor.observe(observation);
        let known = Arc::new(doctor.snapshot());
        drop(doctor);
        *self.known.lock() = known;
        new
    }

    /// Runs a check; `None` after a panic, after which the doctor starts with no memory.
    fn catch_panics<R>(&self, look: impl FnOnce() -> R) -> Option<R> {
        // Unwind safe: the doctor's state, which the panic may have left half changed, is replaced.
        let seen = catch_unwind(AssertUnwindSafe(look));
        if seen.is_err() {
            let doctor = Doctor::new(self.advice.clone());
            *self.known.lock() = Arc::new(doctor.snapshot());
            *self.doctor.lock() = doctor;
        }
        seen.ok()
    }
}

/// State that is kept from one check to the next.
#[derive(Default)]
struct DoctorChecks {
    log: FindingsLog,
    observer: Option<Observer>,
}

/// Gets each observation, before the doctor does.
pub type Observer = Box<dyn FnMut(&Observation) + Send>;

impl DoctorChecks {
    fn look(&mut self, context: &ServerContext) {
        let seen = observation(context);
        if let Some(observer) = &mut self.observer {
            observer(&seen);
        }
        let new = context.doctor.observe(&seen);
        self.log.write(&new, context.now_us());
    }
}

/// The doctor's thread. Dropping this ends it.
pub(crate) struct DoctorThread {
    checks: Arc<Mutex<DoctorChecks>>,
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DoctorThread {
    /// Starts the thread. If a test drives the clock, there is none: the test calls
    /// [`DoctorThread::look`].
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(
        context: &Arc<ServerContext>,
        observer: Option<Observer>,
    ) -> io::Result<DoctorThread> {
        let checks = DoctorChecks {
            observer,
            ..DoctorChecks::default()
        };
        let checks = Arc::new(Mutex::new(checks));
        let (end, ended) = channel();
        let mut doctor = DoctorThread {
            checks: Arc::clone(&checks),
            end: Some(end),
            thread: None,
        };
        if !context.clock.is_driven() {
            let context = Arc::clone(context);
            let thread = thread::Builder::new().name(NAME.to_owned());
            doctor.thread = Some(thread.spawn(move || run(&context, &checks, &ended))?);
        }
        Ok(doctor)
    }

    /// Runs a check now, on the caller's thread.
    pub(crate) fn look(&self, context: &ServerContext) {
        self.checks.lock().look(context);
    }

    /// Ends the thread. Blocks until then, which takes one check at most.
    pub(crate) fn stop(&mut self) {
        drop(self.end.take());
        let Some(thread) = self.thread.take() else {
            return;
        };
        if thread.join().is_err() {
            tracing::error!("a thread of the broker ended by a fault");
        }
    }
}

impl Drop for DoctorThread {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(context: &ServerContext, checks: &Mutex<DoctorChecks>, ended: &Receiver<()>) {
    let mut next = Instant::now();
    loop {
        let began = Instant::now();
        let look = || checks.lock().look(context);
        next = match context.doctor.catch_panics(look) {
            Some(()) => {
                // A late check is not made up for, and a slow one leaves more time to other
                // threads.
                let now = Instant::now();
                (next + CHECK_INTERVAL).max(now + REST_FACTOR * (now - began))
            }
            None => {
                tracing::error!(
                    "the doctor ended by a fault and begins anew in a minute; the broker goes on"
                );
                Instant::now() + REST_AFTER_PANIC
            }
        };
        let pause = next.saturating_duration_since(Instant::now());
        if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Takes an observation of all connections and queues.
fn observation(context: &ServerContext) -> Observation {
    let taken_us = context.now_us();
    let snapshot = context.registry.snapshot(taken_us, tcp_info);
    let queues = queues(context, &snapshot.connections);
    Observation {
        taken_us,
        unix_us: context.clock.unix_us(),
        snapshot,
        queues,
    }
}

/// Maximum findings that are logged one by one within a minute: otherwise a client that changes its
/// name all the time could fill the disk with lines.
const LINES_MAX: u64 = 20;
const LINES_WITHIN_US: u64 = 60_000_000;

/// Writes findings to the log, at a limited rate.
#[derive(Default)]
struct FindingsLog {
    since_us: u64,
    lines: u64,
    left_out: u64,
}

impl FindingsLog {
    fn write(&mut self, new: &[Finding], now_us: u64) {
        for line in self.lines(new, now_us) {
            tracing::warn!("doctor: {line}");
        }
    }

    /// The lines to write for these new findings.
    fn lines(&mut self, new: &[Finding], now_us: u64) -> Vec<String> {
        let mut lines = Vec::new();
        if now_us >= self.since_us.saturating_add(LINES_WITHIN_US) {
            if self.left_out > 0 {
                let count = self.left_out;
                lines.push(format!(
                    "{count} more findings within the last minute; `cloverleaf doctor` has them"
                ));
            }
            *self = FindingsLog {
                since_us: now_us,
                ..FindingsLog::default()
            };
        }
        for finding in new {
            if self.lines < LINES_MAX {
                self.lines += 1;
                lines.push(one_line(finding));
            } else {
                self.left_out += 1;
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::SocketAddr;

    use cloverleaf_telemetry::{Identity, Probe, Protocol, Registry, TcpInfo};

    use super::*;

    /// Producers ten milliseconds away that wait for each answer.
    struct Clients {
        registry: Registry,
        probes: Vec<Probe>,
        sent_us: u64,
        now_us: u64,
        random: u64,
    }

    impl Clients {
        fn new(names: &[&str]) -> Clients {
            let registry = Registry::new();
            let open = |name: &&str| {
                let probe = registry.open(Protocol::Nsq, SocketAddr::from(([10, 0, 0, 1], 1)), 1);
                probe.attach_socket(1);
                probe.identify(Identity {
                    library: "go-nsq".to_owned(),
                    client_id: (*name).to_owned(),
                    ..Identity::default()
                });
                probe
            };
            Clients {
                probes: names.iter().map(open).collect(),
                registry,
                sent_us: 1,
                now_us: 0,
                random: 1,
            }
        }

        /// Lets the producers run for a second, and takes the observation at its end.
        fn second(&mut self) -> Observation {
            let until_us = self.now_us + 1_000_000;
            while self.sent_us < until_us - 12_000 {
                // A round trip plus the varying time of a program's own work. Each time is random:
                // requests at regular times would look like a timer's.
                self.random = self
                    .random
                    .wrapping_mul(0x5851_f42d_4c95_7f2d)
                    .wrapping_add(1);
                self.sent_us += 10_200 + (self.random >> 33) % 700;
                let us = self.sent_us;
                for probe in &self.probes {
                    probe.read(100, us);
                    probe.request(1, 100, us, us);
                    probe.answered(1, us + 40);
                }
            }
            self.now_us = until_us;
            let tcp = TcpInfo {
                rtt_us: 10_000,
                min_rtt_us: 10_000,
                ..TcpInfo::default()
            };
            Observation {
                taken_us: self.now_us,
                unix_us: self.now_us,
                snapshot: self.registry.snapshot(self.now_us, |_| Some(tcp)),
                queues: Vec::new(),
            }
        }
    }

    fn shared() -> SharedDoctor {
        SharedDoctor::new(Advice::embedded())
    }

    #[test]
    fn an_answer_does_not_wait_for_a_check() {
        let shared = shared();
        let mut clients = Clients::new(&["a", "b"]);
        for _ in 0..12 {
            shared.observe(&clients.second());
        }
        let all = shared.report(&Query::default());
        assert_eq!(all.findings.len(), 2, "{all:?}");
        let busy = shared.doctor.lock();
        let asked = thread::scope(|scope| {
            let ask = |query: Query| scope.spawn(|| shared.report(&{ query })).join().unwrap();
            let all_again = ask(Query::default());
            let of_b = ask(Query {
                client: Some("B".to_owned()),
                ..Query::default()
            });
            [all_again, of_b]
        });
        drop(busy);
        assert_eq!(asked[0], all);
        assert_eq!(asked[1].findings, all.findings[1..]);
        let active: u64 = shared.counts().iter().map(|count| count.active).sum();
        assert_eq!(active, 2);
    }

    #[test]
    fn answers_during_a_check_are_complete() {
        let shared = shared();
        let names: Vec<String> = (0..260).map(|it| format!("name-{it:03}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut clients = Clients::new(&names);
        for _ in 0..12 {
            shared.observe(&clients.second());
        }
        let of = |client: &str| Query {
            client: Some(client.to_owned()),
            ..Query::default()
        };
        let queries = [Query::default(), of("name-1"), of("name-259"), of("nobody")];
        let awake = queries.each_ref().map(|query| shared.report(query));
        let busy = shared.doctor.lock();
        let answers = thread::scope(|scope| {
            let shared = &shared;
            let ask = |query| scope.spawn(move || shared.report(query));
            let asked = queries.each_ref().map(ask);
            asked.map(|answer| answer.join().unwrap())
        });
        drop(busy);
        assert_eq!(answers, awake);
        let counts = answers.each_ref().map(|it| (it.findings.len(), it.more));
        assert_eq!(counts, [(200, 60), (100, 0), (1, 0), (0, 0)]);
    }

    #[test]
    fn after_a_panic_the_doctor_starts_again() {
        let shared = shared();
        let mut clients = Clients::new(&["a"]);
        for _ in 0..12 {
            shared.observe(&clients.second());
        }
        let fault = shared.catch_panics(|| -> Vec<Finding> { panic!("a fault in a test") });
        assert_eq!(fault, None);
        assert_eq!(shared.report(&Query::default()).watched_us, 0);
        for _ in 0..12 {
            let observation = clients.second();
            shared
                .catch_panics(|| shared.observe(&observation))
                .unwrap();
        }
        assert_eq!(shared.report(&Query::default()).findings.len(), 1);
    }

    #[test]
    fn logged_findings_per_minute_are_limited() {
        let shared = shared();
        let names: Vec<String> = (0..30).map(|it| format!("{it}\u{1b}[2J")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut clients = Clients::new(&names);
        let new: Vec<Finding> = (0..12)
            .flat_map(|_| shared.observe(&clients.second()))
            .collect();
        assert_eq!(new.len(), 30);
        let mut log = FindingsLog::default();
        let lines = log.lines(&new, 100_000_000);
        assert_eq!(lines.len(), 20);
        assert!(
            lines.iter().all(|line| !line.contains(char::is_control)),
            "{lines:?}"
        );
        assert!(lines[0].starts_with("sync-produce: go-nsq"), "{}", lines[0]);
        assert_eq!(log.lines(&new[..1], 130_000_000), [""; 0]);
        let later = log.lines(&new[..1], 161_000_000);
        assert_eq!(later.len(), 2);
        assert!(later[0].starts_with("11 more findings"), "{}", later[0]);
    }
}
