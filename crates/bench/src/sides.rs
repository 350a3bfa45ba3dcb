//! The connections of one or both sides of a measurement, and the threads that use them until it is
//! over.

use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::cpu_clock;
use crate::driver::{Connect, Consume, DriverError, Produce, Stop};
use crate::meanwhile::Mark;
use crate::message_source::MessageSource;
use crate::plan::{Amount, Plan};
use crate::recorder::{ClientStats, Live, Recorder};
use crate::times::Times;
use crate::usage::GENERATOR_THREADS;

/// How often the progress of a measurement is checked.
const LOOK: Duration = Duration::from_millis(50);

/// Several consumers that have received as many messages as there are may have received one twice
/// and miss another. More messages are waited for, for this fraction of the time after which
/// missing messages count as lost: a second, unless the link is slow.
const SETTLE_SHARE: u64 = 30;

/// The connections of a plan that one machine makes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) producers: Range<u32>,
    pub(crate) consumers: Range<u32>,
}

impl Part {
    /// All connections of these sides.
    pub(crate) fn whole(plan: &Plan, produces: bool, consumes: bool) -> Part {
        Part {
            producers: 0..if produces { plan.producers } else { 0 },
            consumers: 0..if consumes { plan.consumers } else { 0 },
        }
    }
}

/// The progress of a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The time of these numbers, in nanoseconds of the measurement's clock.
    pub(crate) now_ns: u64,
    /// Messages that may be received: those that were acknowledged, and those that were given up,
    /// which the broker may have stored all the same.
    pub(crate) stored: u64,
    /// Messages that were received.
    pub(crate) came: u64,
    pub(crate) producers_are_done: bool,
    pub(crate) consumers_are_gone: bool,
    /// The progress when producers were done, if that is known.
    pub(crate) sent: Option<Mark>,
}

/// Decides when a measurement is over: producers are done, and consumers have received all
/// messages, or have received none for long.
#[derive(Debug)]
pub(crate) struct Ending {
    consumes: bool,
    has_several: bool,
    /// Number of messages that were published before the measurement, if these are consumed.
    filled: Option<u64>,
    end_ns: u64,
    quiet_ns: u64,
    came_before: u64,
    quiet_since_ns: u64,
}

impl Ending {
    /// For a measurement that begins at `start_ns`. If consumers receive nothing for `quiet`, no
    /// more messages are expected.
    pub(crate) fn new(
        plan: &Plan,
        consumes: bool,
        filled: Option<u64>,
        (start_ns, quiet): (u64, Duration),
    ) -> Ending {
        let end_s = match plan.amount {
            // Producers end at the time of the plan themselves.
            Amount::Seconds(_) if filled.is_some() => plan.end_s(),
            _ => None,
        };
        Ending {
            consumes,
            has_several: plan.consumers > 1,
            filled,
            end_ns: end_s.map_or(u64::MAX, |seconds| start_ns + (seconds * 1e9) as u64),
            quiet_ns: u64::try_from(quiet.as_nanos()).unwrap_or(u64::MAX),
            came_before: 0,
            quiet_since_ns: 0,
        }
    }

    /// Shortens the time after which a silent broker is given up.
    pub(crate) fn shorten(&mut self, quiet_ns: u64) {
        self.quiet_ns = self.quiet_ns.min(quiet_ns);
    }

    /// `None`: it is not over. Otherwise, whether consumers could receive all messages.
    pub(crate) fn look(&mut self, standing: &Standing, is_stopped: bool) -> Option<bool> {
        let now_ns = standing.now_ns;
        if standing.came != self.came_before || self.quiet_since_ns == 0 {
            (self.came_before, self.quiet_since_ns) = (standing.came, now_ns);
        }
        let quiet_ns = now_ns.saturating_sub(self.quiet_since_ns);
        let is_quiet = quiet_ns > self.quiet_ns;
        let is_settled = !self.has_several || quiet_ns > self.quiet_ns / SETTLE_SHARE;
        let has_come = is_settled && standing.came >= self.filled.unwrap_or(standing.stored);
        let has_all = !self.consumes || has_come || is_quiet;
        if !standing.producers_are_done {
            // The silence may be that of producers, so at most a half of it counts.
            let earliest_ns = now_ns.saturating_sub(self.quiet_ns / 2);
            self.quiet_since_ns = self.quiet_since_ns.max(earliest_ns);
            return None;
        }
        let is_over = has_all || standing.consumers_are_gone || now_ns >= self.end_ns;
        (is_over || is_stopped).then_some(has_all && !is_stopped)
    }
}

/// Connections that are ready to begin.
pub(crate) struct Connections {
    producers: Vec<(u32, Box<dyn Produce>)>,
    consumers: Vec<(u32, Box<dyn Consume>)>,
}

/// The figures of a side, and the errors that ended connections.
#[derive(Debug, Default)]
pub(crate) struct Side {
    pub(crate) stats: ClientStats,
    pub(crate) errors: Vec<DriverError>,
}

impl Side {
    fn add(&mut self, (stats, result): Joined) {
        self.stats.add(&stats);
        self.errors.extend(result.err());
    }
}

impl Connections {
    /// Makes the connections, those of consumers first.
    ///
    /// # Errors
    /// A connection cannot be made.
    pub(crate) fn open(
        connect: &dyn Connect,
        plan: &Plan,
        part: &Part,
    ) -> Result<Connections, DriverError> {
        let consumers = part.consumers.clone();
        let consumers = consumers.map(|it| Ok((it, connect.consumer(plan, it)?)));
        let consumers = consumers.collect::<Result<_, DriverError>>()?;
        let producers = part.producers.clone();
        let producers = producers.map(|it| Ok((it, connect.producer(plan, it)?)));
        Ok(Connections {
            producers: producers.collect::<Result<_, DriverError>>()?,
            consumers,
        })
    }

    /// Runs until `look` returns that it is over: then consumers end, and producers if `stop` is
    /// set. Returns the producers' and the consumers' side.
    pub(crate) fn run(
        &mut self,
        plan: &Plan,
        times: &Times,
        stop: &Stop,
        (produced, consumed): (&Live, &Live),
        mut look: impl FnMut(&Standing) -> bool,
    ) -> (Side, Side) {
        let recorder = |number, live: &Live| {
            let from_ns = times.measured_from_ns();
            let recorder = Recorder::new(times.clock, plan.run, number, from_ns, live.clone());
            if times.is_filled {
                recorder.by_arrival(times.warm_up_end.clone())
            } else {
                recorder
            }
        };
        let mark = || Mark {
            at_ns: times.clock.now_ns(),
            stored: produced.count() + produced.failures(),
            came: consumed.count(),
        };
        let consumers_stop = Stop::default();
        let (left, sent_at) = (AtomicUsize::new(self.producers.len()), OnceLock::new());
        // The last producer that ends records the time.
        let done = || {
            let now = mark();
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                let _ = sent_at.set(now);
            }
        };
        let done = &done;
        thread::scope(|scope| {
            let consumers: Vec<_> = self
                .consumers
                .iter_mut()
                .map(|(number, consumer)| {
                    let recorder = recorder(*number, consumed);
                    let stop = &consumers_stop;
                    spawn_consumer(scope, (*number, times), consumer, recorder, stop)
                })
                .collect();
            let producers: Vec<_> = self
                .producers
                .iter_mut()
                .map(|(number, producer)| {
                    let recorder = recorder(*number, produced);
                    let source = MessageSource::new(plan, *number, times.clock, times.start_ns);
                    let thread =
                        spawn_producer(scope, (*number, done), producer, source, recorder, stop);
                    // A producer without a thread counts as ended.
                    if thread.is_err() {
                        done();
                    }
                    thread
                })
                .collect();
            loop {
                thread::sleep(times.next_look(LOOK));
                let now = mark();
                let is_over = look(&Standing {
                    now_ns: now.at_ns,
                    stored: now.stored,
                    came: now.came,
                    sent: sent_at.get().copied(),
                    producers_are_done: left.load(Ordering::Acquire) == 0,
                    consumers_are_gone: consumers.iter().all(is_finished),
                });
                if is_over {
                    break;
                }
            }
            let (mut sent, mut came) = (Side::default(), Side::default());
            producers
                .into_iter()
                .for_each(|thread| sent.add(join(thread)));
            consumers_stop.set();
            consumers
                .into_iter()
                .for_each(|thread| came.add(join(thread)));
            (sent, came)
        })
    }
}

type Joined = (ClientStats, Result<(), DriverError>);

fn spawn_producer<'s, 'e>(
    scope: &'s Scope<'s, 'e>,
    (number, done): (u32, &'s (impl Fn() + Sync)),
    producer: &'s mut Box<dyn Produce>,
    mut source: MessageSource,
    mut recorder: Recorder,
    stop: &'s Stop,
) -> Spawned<'s> {
    spawn(
        scope,
        format!("{GENERATOR_THREADS}out-{number}"),
        move || {
            let (result, busy) = watched(|| producer.run(&mut source, &mut recorder, stop));
            done();
            let sent = ClientStats {
                busy,
                ..recorder.finish()
            };
            (sent, result)
        },
    )
}

fn spawn_consumer<'s, 'e>(
    scope: &'s Scope<'s, 'e>,
    (number, times): (u32, &'s Times),
    consumer: &'s mut Box<dyn Consume>,
    mut recorder: Recorder,
    stop: &'s Stop,
) -> Spawned<'s> {
    spawn(
        scope,
        format!("{GENERATOR_THREADS}in-{number}"),
        move || {
            if times.is_filled {
                // CPU time before the beginning does not count as cost.
                thread::sleep(times.until(times.start_ns));
            }
            let (result, busy) = watched(|| consumer.run(&mut recorder, stop));
            let came = ClientStats {
                busy,
                ..recorder.finish()
            };
            (came, result)
        },
    )
}

/// Calls `work`. Returns also the share of the time that this thread was on a CPU.
fn watched<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let (begun, before_s) = (Instant::now(), cpu_clock::of_this_thread());
    let result = work();
    let (cpu_s, wall_s) = (cpu_clock::of_this_thread() - before_s, begun.elapsed());
    (result, cpu_s / wall_s.as_secs_f64().max(1e-9))
}

/// A thread, or the error of starting it: there may be more connections than the system allows
/// threads.
type Spawned<'s> = io::Result<ScopedJoinHandle<'s, Joined>>;

fn spawn<'s, 'e>(
    scope: &'s Scope<'s, 'e>,
    name: String,
    work: impl FnOnce() -> Joined + Send + 's,
) -> Spawned<'s> {
    let work = move || {
        // A thread that sleeps until a message is due wakes at that time, not up to 50 µs later. If
        // the system refuses it, the generator's lag shows it.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        work()
    };
    thread::Builder::new().name(name).spawn_scoped(scope, work)
}

fn is_finished(thread: &Spawned<'_>) -> bool {
    thread.as_ref().map_or(true, ScopedJoinHandle::is_finished)
}

fn join(thread: Spawned<'_>) -> Joined {
    match thread.map(ScopedJoinHandle::join) {
        Ok(Ok(joined)) => joined,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => {
            let what = format!("the system gives no thread for another connection: {error}");
            (
                ClientStats::default(),
                Err(DriverError::Unsupported { what }),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_had_is_a_connection_that_failed() {
        let none = || Err(io::Error::from(io::ErrorKind::WouldBlock));
        assert!(is_finished(&none()));
        let (stats, result) = join(none());
        assert_eq!(stats.sent, 0);
        let error = result.map_err(|error| error.to_string());
        assert!(error.is_err_and(|text| text.starts_with("the system gives no thread")));
    }
    use crate::payload::PayloadKind;
    use crate::plan::Acks;
    use crate::schedule::Arrivals;

    const SECOND: u64 = 1_000_000_000;
    const QUIET: Duration = Duration::from_secs(20);

    fn plan(amount: Amount) -> Plan {
        Plan {
            run: 1,
            topic: "t".to_owned(),
            producers: 1,
            consumers: 1,
            size_bytes: 100,
            payload: PayloadKind::Random,
            amount,
            warm_up_s: 1.0,
            arrivals: Arrivals::Closed,
            batch_messages: 1,
            in_flight: 1,
            acks: Acks::One,
            partitions: 1,
            keys: 0,
            seed: 1,
        }
    }

    #[test]
    fn it_is_over_when_everything_has_come_or_nothing_comes() {
        let mut ending = Ending::new(&plan(Amount::Messages(5)), true, None, (0, QUIET));
        let mut standing = Standing {
            now_ns: 60 * SECOND,
            stored: 4,
            came: 4,
            ..Standing::default()
        };
        assert_eq!(ending.look(&standing, false), None, "producers go on");
        (standing.producers_are_done, standing.stored) = (true, 5);
        assert_eq!(ending.look(&standing, false), None, "one is to come");
        assert_eq!(ending.look(&standing, true), Some(false));
        standing.now_ns += 19 * SECOND;
        assert_eq!(ending.look(&standing, false), None, "it may still come");
        standing.now_ns += 2 * SECOND;
        assert_eq!(ending.look(&standing, false), Some(true), "and is lost");
        (standing.came, standing.now_ns) = (5, standing.now_ns + 1);
        assert_eq!(ending.look(&standing, false), Some(true));
    }

    #[test]
    fn what_came_twice_does_not_stand_for_what_is_to_come() {
        let plan = Plan {
            consumers: 2,
            ..plan(Amount::Messages(5))
        };
        let mut ending = Ending::new(&plan, true, None, (0, QUIET));
        let mut standing = Standing {
            now_ns: 60 * SECOND,
            stored: 5,
            // One of them at both consumers.
            came: 5,
            producers_are_done: true,
            ..Standing::default()
        };
        assert_eq!(ending.look(&standing, false), None);
        standing.now_ns += SECOND / 2;
        assert_eq!(ending.look(&standing, false), None);
        (standing.came, standing.now_ns) = (6, standing.now_ns + SECOND);
        assert_eq!(ending.look(&standing, false), None, "it was on its way");
        standing.now_ns += 2 * SECOND;
        assert_eq!(ending.look(&standing, false), Some(true));
    }

    #[test]
    fn who_empties_a_topic_may_run_out_of_time() {
        let mut ending = Ending::new(&plan(Amount::Seconds(2.0)), true, Some(9), (SECOND, QUIET));
        let mut standing = Standing {
            now_ns: SECOND,
            came: 4,
            producers_are_done: true,
            ..Standing::default()
        };
        assert_eq!(ending.look(&standing, false), None);
        (standing.came, standing.now_ns) = (5, 4 * SECOND);
        assert_eq!(ending.look(&standing, false), Some(false));
        standing.consumers_are_gone = true;
        standing.now_ns = 2 * SECOND;
        assert_eq!(ending.look(&standing, false), Some(false));
    }
}
