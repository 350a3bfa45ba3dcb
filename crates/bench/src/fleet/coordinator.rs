//! The coordinator: assigns each worker a part of the plan, starts all workers at one moment,
//! decides when the measurement ends, and adds up the workers' reports.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::FleetError;
use super::member::{Event, Member, PATIENCE, join};
use super::message::{Job, Place, Reply, Request, short};
use super::offset::{self, Offset, Round};
use super::shown::Shown;
use super::sum::Sum;
use crate::clock::Clock;
use crate::driver::{DriverError, Stop};
use crate::meanwhile::Overlap;
use crate::measure::{Progress, Sides, Target, say_how_long};
use crate::outcome::{Kind, Outcome};
use crate::plan::Plan;
use crate::proxy::Link;
use crate::sides::{Ending, Standing};
use crate::times::Times;
use crate::url::Url;
use crate::usage::Meter;

/// A worker that sends nothing for this long is given up. During a measurement a worker reports its
/// progress continually.
const SILENCE: Duration = Duration::from_secs(15);
/// Time limit for opening all connections.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval of checking the workers' replies and the progress.
const LOOK: Duration = Duration::from_millis(50);
/// Capacity of the queue of workers' replies. When it is full, the threads that read from workers
/// wait.
const WAITING: usize = 256;
/// Round trips of one comparison of clocks.
const ROUNDS: u32 = 24;
/// Time between the Begin request and the start of the measurement, in addition to the slowest
/// round trip.
const RUN_UP: Duration = Duration::from_millis(500);
/// A second's figures are shown this many seconds later, so that the workers' reports of it have
/// arrived.
const SHOW_AFTER_S: u32 = 2;

/// Workers that measure together.
pub struct Fleet {
    workers: Vec<Member>,
    events: Receiver<Event>,
    clock: Clock,
}

impl Fleet {
    /// Connects to all workers.
    ///
    /// # Errors A worker does not answer, or refuses.
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
        match fleet
            .workers
            .iter()
            .find_map(|it| Some((it.name.clone(), it.gone.clone()?)))
        {
            Some((name, reason)) => Err(FleetError::Worker { name, reason }),
            None => Ok(fleet),
        }
    }

    /// A sentence about each worker: its machine, versions and clock.
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

    /// Measures like [`Target::measure`], but the workers have the connections. The target's client
    /// is in this process: it creates the topic, and fills it before a measurement that only
    /// consumes.
    ///
    /// # Errors The measurement could not begin. Later failures are in [`Outcome::cut`].
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
            let starts = target.connect.starts();
            let jobs = jobs(self.workers.len(), plan, sides, (url, link, &starts));
            self.prepare(jobs)?;
            let by_link = link.quiet(plan.size_bytes, plan.consumers);
            let quiet = target.connect.quiet(plan).max(by_link);
            self.run(target, (plan, quiet), sides, outcome, stop, &mut progress)
        })
    }

    /// Sends each worker its job, and waits until all workers are ready. If one fails, none begins.
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
                    self.lose(
                        waited_for,
                        "it did not make its connections in time".to_owned(),
                    );
                }
                None => {}
            }
        }
        Ok(())
    }

    fn run(
        &mut self,
        target: &Target<'_>,
        (plan, quiet): (&Plan, Duration),
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
        let mut ending = Ending::new(plan, sides.consumes, sides.put_in(), (run_up_ns, quiet));
        let mut overlap = Overlap::new(times.measured_from_ns(), plan.warm_up_s > 0.0);
        let mut is_stopping = false;
        let is_whole = loop {
            let until = Instant::now() + times.next_look(LOOK);
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
                if Instant::now() >= until {
                    break;
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
                // From now on, the load would differ from the plan.
                is_stopping = true;
                self.say_all(&Request::Abort);
            }
            let standing = self.standing(now_ns);
            overlap.look(&standing);
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
        outcome.usage.cores_busy = sum.cores_busy;
        let gone = self.first_gone();
        let error = gone.as_ref().map(ToString::to_string);
        outcome.cut = error.or(sum.errors.into_iter().next());
        sides.settle(outcome, (sum.sent, sum.came), &overlap, is_whole, stop);
        say_how_long(outcome, quiet);
        outcome.remarks.extend(self.clock_error());
        if gone.is_some() {
            // Without the report of the lost worker, its acknowledged and received messages are
            // unknown, so losses cannot be counted.
            outcome.findings = None;
        }
        Ok(())
    }

    /// Compares all clocks again. Returns a sentence on the possible error of a latency between two
    /// machines.
    fn clock_error(&mut self) -> Option<String> {
        let before: Vec<Offset> = self.workers.iter().map(|it| it.offset).collect();
        for worker in 0..self.workers.len() {
            self.compare_clock(worker);
        }
        let after = self.workers.iter().map(|it| it.offset);
        offset::error_of(&before.into_iter().zip(after).collect::<Vec<_>>())
    }

    /// Collects the reports of all workers.
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

    /// The progress of all workers together. The connections of a lost worker count as finished.
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

    /// Compares a worker's clock with the coordinator's.
    fn compare_clock(&mut self, worker: usize) {
        let mut rounds = Vec::new();
        for number in 0..ROUNDS {
            let sent_ns = self.clock.now_ns();
            self.say(worker, &Request::Time { number });
            let until = Instant::now() + PATIENCE;
            let unix_ns = loop {
                if self.workers[worker].gone.is_some() {
                    return;
                }
                match self.next_with_time(until) {
                    Some((
                        who,
                        at_ns,
                        Reply::Time {
                            number: it,
                            unix_ns,
                        },
                    )) if (who, it) == (worker, number) => {
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

    /// The next reply of a worker, if one arrives before `until`.
    fn next(&mut self, until: Instant) -> Option<(usize, Reply)> {
        self.next_with_time(until)
            .map(|(worker, _, reply)| (worker, reply))
    }

    fn next_with_time(&mut self, until: Instant) -> Option<(usize, u64, Reply)> {
        let left = until.saturating_duration_since(Instant::now());
        let event = match self.events.recv_timeout(left) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => {
                // All reading threads have ended, and `lose` was called for each worker.
                thread::sleep(left.min(LOOK));
                return None;
            }
        };
        self.workers[event.worker].heard = Instant::now();
        match event.said {
            Ok(reply) => Some((event.worker, event.at_ns, reply)),
            Err(error) => {
                self.lose(event.worker, error.to_string());
                None
            }
        }
    }

    fn lose(&mut self, worker: usize, reason: String) {
        let worker = &mut self.workers[worker];
        worker.gone.get_or_insert(reason);
        worker.speaker.hang_up();
    }

    /// Gives up workers that were silent for longer than [`SILENCE`]. Returns whether any worker
    /// was given up, now or before.
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
                    // The thread may wait because the channel is full. Its replies do not matter
                    // any more.
                    let _ = self.events.recv_timeout(LOOK);
                }
                // If the thread has panicked, the panic was printed.
                let _ = reader.join();
            }
        }
    }
}

/// Distributes the connections evenly among workers. They are numbered over the whole plan, so that
/// each number is unique.
fn jobs(
    workers: usize,
    plan: &Plan,
    sides: &Sides<'_>,
    (url, link, starts): (&Url, &Link, &[i64]),
) -> Vec<Job> {
    let cut = |all: u32, is_meant: bool, number: usize| {
        let all = if is_meant { u64::from(all) } else { 0 };
        let at = |number: usize| (all * number as u64 / workers.max(1) as u64) as u32;
        (at(number), at(number + 1))
    };
    let job = |number: usize| Job {
        url: url.clone(),
        link: *link,
        is_filled: sides.filled.is_some(),
        starts: starts.to_vec(),
        plan: plan.clone(),
        producers: cut(plan.producers, sides.produces, number),
        consumers: cut(plan.consumers, sides.consumes, number),
    };
    (0..workers).map(job).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::payload::PayloadKind;
    use crate::plan::{Acks, Amount};
    use crate::schedule::Arrivals;

    fn plan(producers: u32, consumers: u32) -> Plan {
        Plan {
            run: 1,
            topic: "t".to_owned(),
            producers,
            consumers,
            size_bytes: 100,
            payload: PayloadKind::Random,
            amount: Amount::Messages(1),
            warm_up_s: 0.0,
            arrivals: Arrivals::Closed,
            batch_messages: 1,
            in_flight: 1,
            acks: Acks::One,
            partitions: 1,
            keys: 0,
            seed: 1,
        }
    }

    proptest! {
        #[test]
        fn each_connection_is_one_workers(
            workers in 1..20usize, producers in 0..200u32, consumers in 0..200u32,
            consumes in prop::bool::ANY,
        ) {
            let sides = Sides {
                produces: true,
                consumes,
                filled: None,
            };
            let url: Url = "nsq://a".parse().unwrap();
            let plan = plan(producers, consumers);
            let place = (&url, &Link::default(), &[5, 7][..]);
            let jobs = jobs(workers, &plan, &sides, place);
            prop_assert_eq!(jobs.len(), workers);
            let all = |cut: fn(&Job) -> (u32, u32)| -> Vec<u32> {
                jobs.iter().map(cut).flat_map(|(first, end)| first..end).collect()
            };
            let expected = if consumes { consumers } else { 0 };
            prop_assert_eq!(all(|job| job.producers), (0..producers).collect::<Vec<_>>());
            prop_assert_eq!(all(|job| job.consumers), (0..expected).collect::<Vec<_>>());
            let sizes = jobs.iter().map(|job| job.producers.1 - job.producers.0);
            let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
            prop_assert!(most - least <= 1, "evenly");
            prop_assert!(jobs.iter().all(|job| job.check().is_ok() && job.starts == [5, 7]));
        }
    }

    #[test]
    fn what_no_worker_should_try_is_refused() {
        let sides = Sides {
            produces: true,
            consumes: true,
            filled: None,
        };
        let url: Url = "nsq://a".parse().unwrap();
        let place = (&url, &Link::default(), &[][..]);
        let job = jobs(1, &plan(2, 2), &sides, place).remove(0);
        assert_eq!(job.check(), Ok(()));
        let changed = |change: fn(&mut Job)| {
            let mut job = job.clone();
            change(&mut job);
            job.check()
        };
        assert!(changed(|job| job.plan.size_bytes = usize::MAX).is_err());
        assert!(changed(|job| job.plan.size_bytes = 1).is_err());
        assert!(changed(|job| job.producers = (0, 3)).is_err());
        assert!(changed(|job| job.consumers = (2, 1)).is_err());
        assert!(changed(|job| job.starts = vec![-1]).is_err());
        assert!(changed(|job| job.starts = vec![0; 100_001]).is_err());
        assert!(changed(|job| job.plan.warm_up_s = f64::NAN).is_err());
        assert!(changed(|job| job.plan.amount = Amount::Seconds(1e30)).is_err());
        assert!(changed(|job| job.plan.arrivals = Arrivals::Constant { rate: 0.0 }).is_err());
        let ramp = |from, to| {
            let mut job = job.clone();
            let seconds = 1.0;
            job.plan.arrivals = Arrivals::Ramp { from, to, seconds };
            job.check()
        };
        assert_eq!((ramp(0.0, 5e3), ramp(5e3, 0.0)), (Ok(()), Ok(())));
        assert!(ramp(0.0, 0.0).is_err() && ramp(f64::NAN, 5e3).is_err());
        assert!(ramp(-1.0, 5e3).is_err() && ramp(0.0, 1e30).is_err());
        let many = |job: &mut Job| {
            job.plan.producers = u32::MAX;
            job.producers = (0, u32::MAX);
        };
        assert!(changed(many).is_err());
    }
}
