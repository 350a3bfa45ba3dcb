//! The coordinator: hands out the parts of a plan, lets all begin at one moment, decides when it is
//! over, and adds up what was measured.

use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::FleetError;
use super::frame::REPLY_BYTES_MAX;
use super::line::{LineError, Listener, Speaker, halves};
use super::message::{Job, Place, Reply, Request, VERSION, short};
use super::offset::{Offset, Round};
use super::sum::Sum;
use crate::clock::Clock;
use crate::conditions::Conditions;
use crate::driver::{DriverError, Stop};
use crate::measure::{Progress, Sides, Target};
use crate::outcome::{Kind, Outcome};
use crate::plan::Plan;
use crate::proxy::Link;
use crate::sides::{Ending, Standing, Times};
use crate::url::Url;
use crate::usage::{GENERATOR_THREADS, Meter};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Who has said nothing for so long is gone. A worker that measures says something all the time.
const SILENCE: Duration = Duration::from_secs(15);
/// Making all connections may take so long.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(120);
/// How often it is looked at what workers have said.
const LOOK: Duration = Duration::from_millis(50);
/// What workers have said and nobody has looked at: they wait then.
const WAITING: usize = 256;
/// Round trips by which a clock is compared.
const ROUNDS: u32 = 24;
/// From telling all to begin until they do; the slowest round trip is added.
const RUN_UP: Duration = Duration::from_millis(500);
/// A second is shown when all have reported it, or so much later.
const SHOW_AFTER_S: u32 = 2;

/// Workers that measure together.
pub struct Fleet {
    workers: Vec<Member>,
    events: Receiver<Event>,
    clock: Clock,
}

/// A worker.
struct Member {
    name: String,
    speaker: Arc<Speaker>,
    reader: Option<JoinHandle<()>>,
    conditions: Conditions,
    offset: Offset,
    /// Why it is gone.
    gone: Option<String>,
    heard: Instant,
    place: Place,
}

struct Event {
    worker: usize,
    /// By the fleet's clock.
    at_ns: u64,
    said: Result<Reply, LineError>,
}

impl Fleet {
    /// Connects to all of them.
    ///
    /// # Errors
    /// One is not there, or refuses.
    pub fn connect(addresses: &[String], token: Option<&str>) -> Result<Fleet, FleetError> {
        let clock = Clock::new();
        let (send, events) = sync_channel(WAITING);
        let mut workers = Vec::new();
        for (number, address) in addresses.iter().enumerate() {
            let failed = |reason: String| FleetError::Worker {
                name: address.clone(),
                reason,
            };
            let member = join(number, address, token.unwrap_or_default(), clock, &send);
            workers.push(member.map_err(failed)?);
        }
        let mut fleet = Fleet {
            workers,
            events,
            clock,
        };
        for worker in 0..fleet.workers.len() {
            fleet.compare_clock(worker);
        }
        match fleet.workers.iter().find_map(|it| Some((it.name.clone(), it.gone.clone()?))) {
            Some((name, reason)) => Err(FleetError::Worker { name, reason }),
            None => Ok(fleet),
        }
    }

    /// A sentence about each worker: its machine, its clock.
    pub fn notes(&self) -> Vec<String> {
        let each = self.workers.iter().map(|it| {
            let here = &it.conditions;
            format!(
                "Worker {}: {}, {} cores, {}, bench {}; {}.",
                it.name,
                short(here.processor.clone()),
                here.cores,
                short(here.kernel.clone()),
                short(here.version.clone()),
                it.offset
            )
        });
        each.collect()
    }

    /// Measures as [`Target::measure`] does, with connections of the workers. The target's client is
    /// that of this process, which makes the topic, and fills it where it is to be emptied.
    ///
    /// # Errors
    /// Nothing could be measured. What fails later is in [`Outcome::cut`].
    pub fn measure(
        &mut self,
        target: &Target<'_>,
        (url, link): (&Url, &Link),
        kind: Kind,
        plan: &Plan,
        stop: &Stop,
        mut progress: impl FnMut(&Progress),
    ) -> Result<Outcome, DriverError> {
        target.measure_by(kind, plan, stop, |plan, sides, outcome| {
            let jobs = jobs(self.workers.len(), plan, sides, url, link);
            self.prepare(jobs)?;
            self.run(target, plan, sides, outcome, stop, &mut progress)
        })
    }

    /// Sends each its part; all are ready then, or none begins.
    fn prepare(&mut self, jobs: Vec<Job>) -> Result<(), DriverError> {
        for worker in 0..self.workers.len() {
            self.compare_clock(worker);
        }
        for (worker, job) in jobs.into_iter().enumerate() {
            self.say(worker, &Request::Prepare(Box::new(job)));
        }
        let until = Instant::now() + PREPARE_TIMEOUT;
        let mut ready = vec![false; self.workers.len()];
        while let Some(waited_for) = ready.iter().position(|is_ready| !is_ready) {
            if let Some(error) = self.first_gone() {
                return Err(error);
            }
            match self.next(until) {
                Some((worker, Reply::Ready)) => ready[worker] = true,
                Some((worker, Reply::Failed { reason })) => {
                    let what = format!("worker {}: {}", self.workers[worker].name, short(reason));
                    return Err(DriverError::Unsupported { what });
                }
                Some(_) => {}
                None if Instant::now() >= until => {
                    self.lose(waited_for, "it did not make its connections in time".to_owned());
                }
                None => {}
            }
        }
        Ok(())
    }

    fn run(
        &mut self,
        target: &Target<'_>,
        plan: &Plan,
        sides: &Sides<'_>,
        outcome: &mut Outcome,
        stop: &Stop,
        progress: &mut impl FnMut(&Progress),
    ) -> Result<(), DriverError> {
        let slowest_ns = self.workers.iter().map(|it| it.offset.round_ns).max();
        let run_up_ns = RUN_UP.as_nanos() as u64 + slowest_ns.unwrap_or(0);
        let zero_ns = self.clock.now_ns();
        let zero_unix_ns = self.clock.to_unix_ns(zero_ns);
        for worker in 0..self.workers.len() {
            self.workers[worker].place = Place::default();
            self.workers[worker].heard = Instant::now();
            let ahead_ns = self.workers[worker].offset.ahead_ns;
            self.say(
                worker,
                &Request::Begin {
                    zero_unix_ns,
                    start_ns: run_up_ns,
                    ahead_ns,
                },
            );
        }
        let times = Times::new(
            self.clock.another(zero_unix_ns, 0),
            run_up_ns,
            plan,
            sides.filled.is_some(),
        );
        let mut shown = Shown::default();
        let mut meter = Meter::begin(&target.place);
        let mut is_warm = false;
        let mut ending = Ending::new(plan, sides.consumes, sides.put_in(), run_up_ns);
        let mut is_stopping = false;
        let is_whole = loop {
            let until = Instant::now() + LOOK;
            while let Some((worker, reply)) = self.next(until) {
                match reply {
                    Reply::Standing(place) => self.workers[worker].place = place,
                    Reply::Live {
                        at,
                        produced,
                        consumed,
                    } => shown.add(at, *produced, *consumed),
                    Reply::Failed { reason } => self.lose(worker, short(reason)),
                    _ => {}
                }
            }
            let now_ns = times.clock.now_ns();
            if !is_warm && now_ns >= times.measured_from_ns() {
                is_warm = true;
                meter = Meter::begin(&target.place);
            }
            meter.look();
            let passed_s = (now_ns.saturating_sub(times.measured_from_ns()) / 1_000_000_000) as u32;
            shown.show(passed_s.saturating_sub(SHOW_AFTER_S), progress);
            let is_gone = self.lose_the_silent();
            if (is_gone || stop.is_set()) && !is_stopping {
                // What is measured now would not be what was asked for.
                is_stopping = true;
                self.say_all(&Request::Abort);
            }
            let standing = self.standing(now_ns);
            if let Some(is_whole) = ending.look(&standing, is_stopping) {
                break is_whole;
            }
        };
        self.say_all(&Request::End);
        outcome.usage = meter.end();
        let passed_s = (times.clock.now_ns() / 1_000_000_000) as u32;
        let sum = self.reports(passed_s);
        shown.show(u32::MAX, progress);
        outcome.usage.client_cpu_s = sum.client_cpu_s;
        outcome.usage.proxy_cpu_s = sum.proxy_cpu_s;
        let gone = self.first_gone();
        let error = gone.as_ref().map(ToString::to_string);
        outcome.cut = error.or(sum.errors.into_iter().next());
        sides.settle(outcome, sum.sent, sum.came, is_whole);
        if gone.is_some() {
            // What it has acknowledged or got, nobody knows.
            outcome.findings = None;
        }
        Ok(())
    }

    /// All reports together.
    fn reports(&mut self, passed_s: u32) -> Sum {
        let mut sum = Sum::default();
        let mut waiting: Vec<bool> = self.workers.iter().map(|it| it.gone.is_none()).collect();
        for worker in &mut self.workers {
            worker.heard = Instant::now();
        }
        while waiting.contains(&true) {
            let next = self.next(Instant::now() + LOOK);
            self.lose_the_silent();
            for (waits, worker) in waiting.iter_mut().zip(&self.workers) {
                *waits &= worker.gone.is_none();
            }
            let Some((worker, reply)) = next else {
                continue;
            };
            if !waiting[worker] || matches!(reply, Reply::Standing(_) | Reply::Live { .. }) {
                continue;
            }
            match sum.add(reply, passed_s) {
                Ok(is_done) => waiting[worker] &= !is_done,
                Err(error) => self.lose(worker, error.to_string()),
            }
        }
        sum
    }

    /// What all of them together have done. Who is gone does nothing more.
    fn standing(&self, now_ns: u64) -> Standing {
        let mut all = Standing {
            now_ns,
            producers_are_done: true,
            consumers_are_gone: true,
            ..Standing::default()
        };
        for worker in &self.workers {
            let place = &worker.place;
            all.stored = all.stored.saturating_add(place.stored);
            all.came = all.came.saturating_add(place.came);
            let is_gone = worker.gone.is_some();
            all.producers_are_done &= place.producers_are_done || is_gone;
            all.consumers_are_gone &= place.consumers_are_gone || is_gone;
        }
        all
    }

    /// Compares a worker's clock with this one's.
    fn compare_clock(&mut self, worker: usize) {
        let mut rounds = Vec::new();
        for number in 0..ROUNDS {
            let sent_ns = self.clock.now_ns();
            self.say(worker, &Request::Time { number });
            let until = Instant::now() + CONNECT_TIMEOUT;
            let unix_ns = loop {
                if self.workers[worker].gone.is_some() {
                    return;
                }
                match self.next_with_time(until) {
                    Some((who, at_ns, Reply::Time { number: it, unix_ns }))
                        if (who, it) == (worker, number) =>
                    {
                        break Some((at_ns, unix_ns));
                    }
                    Some(_) => {}
                    None if Instant::now() < until => {}
                    None => break None,
                }
            };
            let Some((came_ns, theirs_ns)) = unix_ns else {
                self.lose(worker, "it does not say what time it is".to_owned());
                return;
            };
            rounds.push(Round {
                sent_ns: self.clock.to_unix_ns(sent_ns),
                theirs_ns,
                came_ns: self.clock.to_unix_ns(came_ns),
            });
        }
        self.workers[worker].offset = Offset::of(&rounds);
    }

    fn say(&mut self, worker: usize, request: &Request) {
        if self.workers[worker].gone.is_none()
            && let Err(error) = self.workers[worker].speaker.say(request)
        {
            self.lose(worker, error.to_string());
        }
    }

    fn say_all(&mut self, request: &Request) {
        for worker in 0..self.workers.len() {
            self.say(worker, request);
        }
    }

    /// What a worker says next, if one says something until then.
    fn next(&mut self, until: Instant) -> Option<(usize, Reply)> {
        self.next_with_time(until).map(|(worker, _, reply)| (worker, reply))
    }

    fn next_with_time(&mut self, until: Instant) -> Option<(usize, u64, Reply)> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let event = match self.events.recv_timeout(left) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => {
                    // All of them are gone, and are known to be.
                    thread::sleep(left.min(LOOK));
                    return None;
                }
            };
            self.workers[event.worker].heard = Instant::now();
            match event.said {
                Ok(reply) => return Some((event.worker, event.at_ns, reply)),
                Err(error) => {
                    self.lose(event.worker, error.to_string());
                    return None;
                }
            }
        }
    }

    fn lose(&mut self, worker: usize, reason: String) {
        let worker = &mut self.workers[worker];
        worker.gone.get_or_insert(reason);
        worker.speaker.hang_up();
    }

    /// Gives up workers that say nothing. `true`: one or more are gone.
    fn lose_the_silent(&mut self) -> bool {
        for worker in 0..self.workers.len() {
            let silent = self.workers[worker].heard.elapsed();
            if self.workers[worker].gone.is_none() && silent > SILENCE {
                let reason = format!("it has said nothing for {} seconds", silent.as_secs());
                self.lose(worker, reason);
            }
        }
        self.workers.iter().any(|it| it.gone.is_some())
    }

    fn first_gone(&self) -> Option<DriverError> {
        self.workers.iter().find_map(|worker| {
            let reason = worker.gone.clone()?;
            let url = format!("worker {}", worker.name);
            Some(DriverError::Gone { url, reason })
        })
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.speaker.hang_up();
        }
        for worker in &mut self.workers {
            if let Some(reader) = worker.reader.take() {
                while !reader.is_finished() {
                    // It may wait for room. Nobody cares for what it says.
                    let _ = self.events.recv_timeout(LOOK);
                }
                // If it has panicked, it has said so.
                let _ = reader.join();
            }
        }
    }
}

/// Shares connections out evenly. Numbers are those of the whole plan, so that each is unique.
fn jobs(workers: usize, plan: &Plan, sides: &Sides<'_>, url: &Url, link: &Link) -> Vec<Job> {
    let cut = |all: u32, is_meant: bool, number: usize| {
        let all = if is_meant { u64::from(all) } else { 0 };
        let at = |number: usize| (all * number as u64 / workers.max(1) as u64) as u32;
        (at(number), at(number + 1))
    };
    let job = |number: usize| Job {
        url: url.clone(),
        link: *link,
        is_filled: sides.filled.is_some(),
        plan: plan.clone(),
        producers: cut(plan.producers, sides.produces, number),
        consumers: cut(plan.consumers, sides.consumes, number),
    };
    (0..workers).map(job).collect()
}

/// Connects, says hello, and lets a thread read.
fn join(
    number: usize,
    address: &str,
    token: &str,
    clock: Clock,
    events: &SyncSender<Event>,
) -> Result<Member, String> {
    let text = |error: LineError| error.to_string();
    let stream = reach(address).map_err(|error| error.to_string())?;
    let (speaker, mut listener) = halves(stream, REPLY_BYTES_MAX).map_err(text)?;
    let hello = Request::Hello {
        version: VERSION,
        token: token.to_owned(),
    };
    speaker.say(&hello).map_err(text)?;
    let conditions = match listener.hear(Some(CONNECT_TIMEOUT)).map_err(text)? {
        Reply::Welcome { conditions } => *conditions,
        Reply::Refused { reason } => return Err(format!("it refuses: {}", short(reason))),
        _ => return Err("it does not answer a hello with a welcome".to_owned()),
    };
    let speaker = Arc::new(speaker);
    let events = events.clone();
    let reader = thread::Builder::new()
        .name(format!("{GENERATOR_THREADS}fleet-{number}"))
        .spawn(move || listen(number, listener, clock, &events))
        .map_err(|error| error.to_string())?;
    Ok(Member {
        name: address.to_owned(),
        speaker,
        reader: Some(reader),
        conditions,
        offset: Offset::default(),
        gone: None,
        heard: Instant::now(),
        place: Place::default(),
    })
}

fn reach(address: &str) -> std::io::Result<TcpStream> {
    let mut refusal = std::io::Error::other("its name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

fn listen(worker: usize, mut listener: Listener, clock: Clock, events: &SyncSender<Event>) {
    loop {
        let said = listener.hear(None);
        let is_over = said.is_err();
        let event = Event {
            worker,
            at_ns: clock.now_ns(),
            said,
        };
        if events.send(event).is_err() || is_over {
            return;
        }
    }
}

/// Seconds as they are reported, until they are shown.
#[derive(Default)]
struct Shown {
    seconds: BTreeMap<u32, Progress>,
    /// Seconds before this one were shown.
    before: u32,
}

impl Shown {
    fn add(&mut self, at: u32, produced: crate::book::Second, consumed: crate::book::Second) {
        /// More than this waits for nothing that anybody would look at.
        const WAITING_MAX: usize = 100;
        if at < self.before || self.seconds.len() >= WAITING_MAX {
            return;
        }
        let progress = self.seconds.entry(at).or_insert_with(|| Progress {
            second: at,
            ..Progress::default()
        });
        progress.produced.add(&produced);
        progress.consumed.add(&consumed);
    }

    fn show(&mut self, before: u32, progress: &mut impl FnMut(&Progress)) {
        let later = self.seconds.split_off(&before);
        for second in std::mem::replace(&mut self.seconds, later).values() {
            progress(second);
        }
        self.before = self.before.max(before);
    }
}
