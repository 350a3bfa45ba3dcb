//! The doctor's thread: once a second it looks at all connections and queues, and lets the doctor
//! make of it what it can. Whoever asks gets what was found at the last look.
//!
//! It holds no lock that a connection waits for longer than it takes to copy a list, and a fault of
//! the doctor's ends nothing but that look.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cloverleaf_doctor::{Advice, Doctor, Finding, Observation, Query, Report, RuleCount, one_line};
use parking_lot::Mutex;

use crate::context::ServerContext;
use crate::doctor_queues::queues;
use crate::tcp_info::tcp_info;

/// The name of the thread.
const NAME: &str = "doctor";

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// After a look it rests for this many times as long as that took, at least.
const REST_FACTOR: u32 = 3;

/// How long it rests after a fault, which would come again with the same connections.
const REST: Duration = Duration::from_secs(60);

/// What is known of the clients, for whoever asks.
pub(crate) struct Practice {
    advice: Advice,
    doctor: Mutex<Doctor>,
    /// Apart, because a look takes time, and who reads metrics should not wait for it.
    counts: Mutex<Vec<RuleCount>>,
}

impl Practice {
    pub(crate) fn new(advice: Advice) -> Practice {
        let doctor = Doctor::new(advice.clone());
        Practice {
            advice,
            counts: Mutex::new(doctor.counts()),
            doctor: Mutex::new(doctor),
        }
    }

    /// What is found. It waits while the doctor thinks: tens of milliseconds where there are
    /// thousands of connections.
    pub(crate) fn report(&self, query: &Query) -> Report {
        self.doctor.lock().report(query)
    }

    /// How many findings each rule has, as of the last look.
    pub(crate) fn counts(&self) -> Vec<RuleCount> {
        self.counts.lock().clone()
    }

    /// Shows the doctor what there is. Returns the findings that are new.
    fn observe(&self, observation: &Observation) -> Vec<Finding> {
        let mut doctor = self.doctor.lock();
        let new = doctor.observe(observation);
        *self.counts.lock() = doctor.counts();
        new
    }

    /// As [`Practice::observe`]; `None` after a fault, with which the doctor has begun anew.
    fn observe_safely(&self, observation: &Observation) -> Option<Vec<Finding>> {
        // What the fault has left half done is thrown away.
        let seen = catch_unwind(AssertUnwindSafe(|| self.observe(observation)));
        if seen.is_err() {
            *self.doctor.lock() = Doctor::new(self.advice.clone());
        }
        seen.ok()
    }
}

/// The thread. Dropping it ends it.
pub(crate) struct DoctorThread {
    /// Dropped to end it.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DoctorThread {
    /// Starts it.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(context: &Arc<ServerContext>) -> io::Result<DoctorThread> {
        let context = Arc::clone(context);
        let (end, ended) = channel();
        let thread = thread::Builder::new().name(NAME.to_owned());
        let thread = thread.spawn(move || run(&context, &ended))?;
        Ok(DoctorThread {
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Ends the thread. Blocks until then, at most for a look.
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

fn run(context: &ServerContext, ended: &Receiver<()>) {
    let mut log = FindingsLog::default();
    let mut next = Instant::now();
    loop {
        let began = Instant::now();
        next = match context.practice.observe_safely(&observation(context)) {
            Some(new) => {
                log.write(&new, context.now_us());
                // A look that came late is not made up for, and one that takes long leaves the
                // machine to others for longer.
                let now = Instant::now();
                (next + INTERVAL).max(now + REST_FACTOR * (now - began))
            }
            None => {
                tracing::error!(
                    "the doctor ended by a fault and begins anew in a minute; the broker goes on"
                );
                Instant::now() + REST
            }
        };
        let pause = next.saturating_duration_since(Instant::now());
        if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// What there is to be seen now.
fn observation(context: &ServerContext) -> Observation {
    let taken_us = context.now_us();
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let unix_us = since_epoch.unwrap_or_default().as_micros();
    let snapshot = context.registry.snapshot(taken_us, tcp_info);
    let queues = queues(context, &snapshot.connections);
    Observation {
        taken_us,
        unix_us: u64::try_from(unix_us).unwrap_or(u64::MAX),
        snapshot,
        queues,
    }
}

/// Findings that are told in the log within a minute, one by one: whoever changes its name all the
/// time could fill the disk with lines else.
const LINES_MAX: u64 = 20;
const LINES_WITHIN_US: u64 = 60_000_000;

/// The findings' lines in the log.
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

    /// What is to be written of these.
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
