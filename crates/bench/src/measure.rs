//! One measurement from its first connection to its last message.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::book::{Book, Live, Second, Tally};
use crate::check::Ranges;
use crate::clock::Clock;
use crate::driver::{Connect, Consume, DriverError, Produce, Stop};
use crate::feed::Feed;
use crate::outcome::{Kind, Outcome, Subject};
use crate::plan::{Amount, Plan};
use crate::schedule::Arrivals;
use crate::usage::{BrokerPlace, GENERATOR_THREADS, Meter, Usage};

/// Between connecting and the first message, so that all threads are there.
const RUN_UP_NS: u64 = 50_000_000;
/// How often a measurement is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Consumers that got nothing for so long get nothing more: what is missing then is lost.
const QUIET_NS: u64 = 5_000_000_000;
/// Most messages of one request when a topic is filled.
const FILL_BATCH: u32 = 200;
/// Most messages on their way when a topic is filled.
const FILL_IN_FLIGHT: u32 = 2_000;

/// What is shown while it is measured: one second.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// Which second from the beginning of the measurement.
    pub second: u32,
    /// What producers did in it.
    pub produced: Second,
    /// What consumers did in it.
    pub consumed: Second,
}

/// Where and whom to measure.
pub struct Target<'t> {
    /// The client.
    pub connect: &'t dyn Connect,
    /// The broker's name in tables.
    pub label: String,
    /// As it was given.
    pub url: String,
    /// Where the broker runs.
    pub place: BrokerPlace,
    /// The topic is the user's, and stays.
    pub keeps_topic: bool,
}

impl Target<'_> {
    /// Measures. `progress` hears of each second once it is over; `stop` ends it early.
    ///
    /// # Errors
    /// Nothing could be measured. What fails later is in [`Outcome::cut`].
    pub fn measure(
        &self,
        kind: Kind,
        plan: &Plan,
        stop: &Stop,
        mut progress: impl FnMut(&Progress),
    ) -> Result<Outcome, DriverError> {
        let started = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.connect.prepare(plan)?;
        let mut outcome = Outcome {
            subject: Subject {
                label: self.label.clone(),
                url: self.url.clone(),
                versions: self.connect.versions(),
                promise: self.connect.promise(plan),
            },
            kind,
            plan: plan.clone(),
            started_unix_ms: u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
            produced: None,
            consumed: None,
            findings: None,
            usage: Usage::default(),
            cut: None,
        };
        let measured = match kind {
            Kind::Produce => self.sides(plan, true, false, None, &mut outcome, stop, &mut progress),
            Kind::EndToEnd => self.sides(plan, true, true, None, &mut outcome, stop, &mut progress),
            Kind::Consume => self.fill(plan, stop).and_then(|filled| {
                let filled = Some(&filled);
                self.sides(plan, false, true, filled, &mut outcome, stop, &mut progress)
            }),
        };
        // What a failed measurement has made goes too.
        let cleaned = match self.keeps_topic {
            true => Ok(()),
            false => self.connect.clean_up(plan),
        };
        measured?;
        if stop.is_set() {
            let reason = "it was stopped before its time".to_owned();
            outcome.cut.get_or_insert(reason);
        }
        if let Err(error) = cleaned {
            outcome.cut.get_or_insert(error.to_string());
        }
        Ok(outcome)
    }

    /// Puts in what will be consumed, as fast as it goes.
    fn fill(&self, plan: &Plan, stop: &Stop) -> Result<Tally, DriverError> {
        let plan = Plan {
            arrivals: Arrivals::Closed,
            warm_up_s: 0.0,
            batch_messages: plan.batch_messages.max(FILL_BATCH),
            in_flight: FILL_IN_FLIGHT,
            amount: match plan.amount {
                Amount::Messages(messages) => Amount::Messages(messages),
                // Whatever the consumers can do in that time, producers do not do less.
                Amount::Seconds(seconds) => Amount::Seconds(plan.warm_up_s + seconds),
            },
            ..plan.clone()
        };
        let mut producers = self.producers(&plan)?;
        let (clock, live) = (Clock::new(), Live::default());
        let mut all = Tally::default();
        let results: Vec<_> = thread::scope(|scope| {
            let each = (0..).zip(producers.iter_mut());
            let threads: Vec<_> = each
                .map(|(number, producer)| {
                    let book = Book::new(clock, plan.run, number, 0, live.clone());
                    let feed = Feed::new(&plan, number, clock, 0);
                    spawn_producer(scope, number, producer, feed, book, stop, None)
                })
                .collect();
            threads.into_iter().map(join).collect()
        });
        for (tally, result) in results {
            result?;
            all.add(&tally);
        }
        Ok(all)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one measurement")]
    fn sides(
        &self,
        plan: &Plan,
        produces: bool,
        consumes: bool,
        filled: Option<&Tally>,
        outcome: &mut Outcome,
        stop: &Stop,
        progress: &mut impl FnMut(&Progress),
    ) -> Result<(), DriverError> {
        let mut consumers = match consumes {
            true => (0..plan.consumers)
                .map(|n| self.connect.consumer(plan, n))
                .collect(),
            false => Ok(Vec::new()),
        }?;
        let mut producers = match produces {
            true => self.producers(plan)?,
            false => Vec::new(),
        };
        let clock = Clock::new();
        let start_ns = clock.now_ns() + RUN_UP_NS;
        let warm_up_ns = (plan.warm_up_s * 1e9) as u64;
        let measured_from_ns = start_ns + warm_up_ns;
        let book_from_ns = match filled {
            // What lies there was put in before: all of it counts.
            Some(_) => 0,
            None => measured_from_ns,
        };
        let (produced, consumed) = (Live::default(), Live::default());
        let (consumers_stop, left) = (Stop::default(), AtomicUsize::new(producers.len()));
        let book =
            |number, live: &Live| Book::new(clock, plan.run, number, book_from_ns, live.clone());
        let (sent, came, (usage, is_whole)) = thread::scope(|scope| {
            let each = (0..).zip(consumers.iter_mut());
            let consumer_threads: Vec<_> = each
                .map(|(number, consumer)| {
                    let book = book(number, &consumed);
                    spawn_consumer(scope, number, consumer, book, &consumers_stop)
                })
                .collect();
            let each = (0..).zip(producers.iter_mut());
            let producer_threads: Vec<_> = each
                .map(|(number, producer)| {
                    let book = book(number, &produced);
                    let feed = Feed::new(plan, number, clock, start_ns);
                    spawn_producer(scope, number, producer, feed, book, stop, Some(&left))
                })
                .collect();
            let mut watch = Watch {
                plan,
                clock,
                measured_from_ns: book_from_ns.max(start_ns),
                shown: 0,
                produced: &produced,
                consumed: &consumed,
                progress,
            };
            let ended = watch.until_done(&self.place, stop, &left, filled, consumes, || {
                consumer_threads.iter().all(ScopedJoinHandle::is_finished)
            });
            let sent: Vec<_> = producer_threads.into_iter().map(join).collect();
            consumers_stop.set();
            let came: Vec<_> = consumer_threads.into_iter().map(join).collect();
            (sent, came, ended)
        });
        outcome.usage = usage;
        let mut add = |results: Vec<(Tally, Result<(), DriverError>)>| {
            let mut all = Tally::default();
            for (tally, result) in results {
                all.add(&tally);
                if let Err(error) = result {
                    outcome.cut.get_or_insert(error.to_string());
                }
            }
            all
        };
        let sent = produces.then(|| add(sent));
        let came = consumes.then(|| add(came));
        if let Some(came) = &came {
            let acked = sent.as_ref().or(filled).map(|tally| &tally.acked);
            let findings = acked.map(|acked| came.seen.compare(acked));
            let is_whole = is_whole && outcome.cut.is_none();
            outcome.findings = findings.map(|findings| match is_whole {
                true => findings,
                false => findings.of_the_unfinished(),
            });
        }
        (outcome.produced, outcome.consumed) = (sent, came);
        Ok(())
    }

    fn producers(&self, plan: &Plan) -> Result<Vec<Box<dyn Produce>>, DriverError> {
        let each = (0..plan.producers).map(|number| self.connect.producer(plan, number));
        each.collect()
    }
}

type Joined = (Tally, Result<(), DriverError>);

fn spawn_producer<'s, 'e>(
    scope: &'s Scope<'s, 'e>,
    number: u32,
    producer: &'s mut Box<dyn Produce>,
    mut feed: Feed,
    mut book: Book,
    stop: &'s Stop,
    left: Option<&'s AtomicUsize>,
) -> ScopedJoinHandle<'s, Joined> {
    spawn(
        scope,
        format!("{GENERATOR_THREADS}out-{number}"),
        move || {
            let result = producer.run(&mut feed, &mut book, stop);
            if let Some(left) = left {
                left.fetch_sub(1, Ordering::AcqRel);
            }
            (book.finish(), result)
        },
    )
}

fn spawn_consumer<'s, 'e>(
    scope: &'s Scope<'s, 'e>,
    number: u32,
    consumer: &'s mut Box<dyn Consume>,
    mut book: Book,
    stop: &'s Stop,
) -> ScopedJoinHandle<'s, Joined> {
    spawn(
        scope,
        format!("{GENERATOR_THREADS}in-{number}"),
        move || {
            let result = consumer.run(&mut book, stop);
            (book.finish(), result)
        },
    )
}

#[expect(
    clippy::expect_used,
    reason = "without threads there is nothing to be measured"
)]
fn spawn<'s, 'e>(
    scope: &'s Scope<'s, 'e>,
    name: String,
    work: impl FnOnce() -> Joined + Send + 's,
) -> ScopedJoinHandle<'s, Joined> {
    let spawned = thread::Builder::new().name(name).spawn_scoped(scope, work);
    spawned.expect("the system gives threads")
}

fn join(thread: ScopedJoinHandle<'_, Joined>) -> Joined {
    match thread.join() {
        Ok(joined) => joined,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Looks after a measurement while its threads work.
struct Watch<'w, F> {
    plan: &'w Plan,
    clock: Clock,
    measured_from_ns: u64,
    /// Seconds before this one have been shown.
    shown: u32,
    produced: &'w Live,
    consumed: &'w Live,
    progress: &'w mut F,
}

impl<F: FnMut(&Progress)> Watch<'_, F> {
    /// Waits until producers are done, and consumers have all that was acknowledged, or get
    /// nothing more. Measures the costs meanwhile, those of the warm-up apart. `false`: it was
    /// over before everything could come.
    fn until_done(
        &mut self,
        place: &BrokerPlace,
        stop: &Stop,
        left: &AtomicUsize,
        filled: Option<&Tally>,
        consumes: bool,
        consumers_are_gone: impl Fn() -> bool,
    ) -> (Usage, bool) {
        let mut meter = Meter::begin(place);
        let mut is_warm = false;
        let (mut came_before, mut quiet_since_ns) = (0, self.clock.now_ns());
        let end_ns = match (filled, self.plan.end_s()) {
            (Some(_), Some(seconds)) => self.measured_from_ns + (seconds * 1e9) as u64,
            _ => u64::MAX,
        };
        loop {
            thread::sleep(LOOK);
            let now_ns = self.clock.now_ns();
            if !is_warm && now_ns >= self.measured_from_ns {
                is_warm = true;
                meter = Meter::begin(place);
            }
            meter.look();
            self.show(now_ns);
            let came = self.consumed.count();
            // What a producer has given up may have been stored all the same.
            let acked = match filled {
                Some(filled) => filled.acked.values().map(Ranges::len).sum(),
                None => self.produced.count() + self.produced.failures(),
            };
            if came != came_before {
                (came_before, quiet_since_ns) = (came, now_ns);
            }
            let producers_are_done = left.load(Ordering::Acquire) == 0;
            let is_quiet = now_ns.saturating_sub(quiet_since_ns) > QUIET_NS;
            let has_all = !consumes || came >= acked || is_quiet;
            let consumers_are_done = has_all || consumers_are_gone();
            if !producers_are_done {
                // Not quiet because of the consumers.
                quiet_since_ns = quiet_since_ns.max(now_ns.saturating_sub(QUIET_NS / 2));
            }
            let is_over = producers_are_done && (consumers_are_done || now_ns >= end_ns);
            if is_over || (stop.is_set() && producers_are_done) {
                self.show(u64::MAX);
                return (meter.end(), has_all && !stop.is_set());
            }
        }
    }

    /// Shows the seconds that are over.
    fn show(&mut self, now_ns: u64) {
        // A second more, because books close theirs with the first message of the next one.
        let since_ns = now_ns.saturating_sub(self.measured_from_ns);
        let before = match now_ns {
            u64::MAX => u32::MAX,
            _ => u32::try_from(since_ns / 1_000_000_000)
                .unwrap_or(u32::MAX)
                .saturating_sub(1),
        };
        if before <= self.shown {
            return;
        }
        let mut produced = self.produced.take(before);
        let mut consumed = self.consumed.take(before);
        let seconds: std::collections::BTreeSet<u32> =
            produced.keys().chain(consumed.keys()).copied().collect();
        for second in seconds {
            (self.progress)(&Progress {
                second,
                produced: produced.remove(&second).unwrap_or_default(),
                consumed: consumed.remove(&second).unwrap_or_default(),
            });
        }
        self.shown = before;
    }
}
