//! hoarding: a consumer has messages in flight that it does not work on yet, while other workers of
//! its client, or other consumers, could process them.
//!
//! ```text
//! two connections of one client, a message each, delivered at the same time:
//!   A  ├── job ──┤ ack                       latencies J and 2 J: B's message waited
//!   B  ├───────────┼── job ──┤ ack           while A's was worked on
//! ```
//!
//! Seen in two ways. *Others idle*: a consumer has several messages and works on them one by one,
//! while another consumer of the queue has none and would take some. *Waves*: the consumers of one
//! client together acknowledge in waves, after J, 2 J, 3 J, although none of them had to wait for
//! messages. A single worker with a prefetch also shows J, 2 J, 3 J, but blocks only itself. The
//! rule recognises it by its connection: one job at a time for as long as it has messages. Jobs of
//! seconds are seen in the groups in which they came (`job_groups`).

use cloverleaf_telemetry::HistogramSnapshot;

use crate::advice::Picture;
use crate::finding::Measure;
use crate::queues::QueueHistory;
use crate::rules::job_groups::{self, GroupPattern, Waiting};
use crate::rules::{ConnectionView, LONG_US, SHORT_US, Sign, WAIT_US_MIN, worthwhile};
use crate::templates::TEMPLATES;
use crate::window::Window;

/// Minimum jobs in the window: few, because some jobs take a minute each.
const JOBS_MIN: u64 = 5;

/// Minimum number of short jobs, which are judged by the distribution of their latencies. Longer
/// jobs are judged in the groups in which they came (`job_groups`).
const SHORT_JOBS_MIN: u64 = 20;
const SHORT_JOB_US: f64 = 900_000.0;

/// From this many waves on, jobs of two different lengths cannot be the cause.
const PROVEN_WAVES_MIN: f64 = 4.0;

/// Windows in microseconds; the first one with enough jobs is used.
const WINDOWS_US: [u64; 4] = [SHORT_US, LONG_US, 300_000_000, 600_000_000];

/// Minimum share of the observations in which one consumer is idle while another one has several
/// messages.
const IDLING_MIN: f64 = 0.8;

/// Minimum share of acknowledgements in the order of delivery, which shows that jobs are done one
/// by one.
const IN_ORDER_MIN: f64 = 0.95;

/// Share of the latencies up to 3 J that are close to J, 2 J or 3 J.
const WAVES_MIN: f64 = 0.9;

/// How far a latency may be from a multiple of J, in J. Rare jobs are a small sample, which can
/// look like waves by chance: they get the narrower width.
const WAVE_WIDTH: f64 = 0.25;
const SELDOM_WAVE_WIDTH: f64 = 0.1;

/// Share of the latencies beyond the first wave.
const LATER_MIN: f64 = 0.25;

/// How much that share may exceed the one expected for equal waves.
const LATER_SLACK: f64 = 0.04;

/// Concurrent jobs per consumer while it has messages: at most this many show a worker shared by
/// several consumers, at least [`PARALLEL_MIN`] show parallel workers. A worker per consumer gives
/// 1.
const SERIAL_MAX: f64 = 0.8;
const PARALLEL_MIN: f64 = 1.5;

/// Consumers that share one worker have at most this many concurrent jobs together, and at least
/// [`HELD_MIN`] messages in flight.
const AT_A_TIME_MAX: f64 = 1.1;
const HELD_MIN: f64 = 1.3;

/// Maximum share of the window in which the client has messages.
const BUSY_SHARE_MAX: f64 = 0.995;

/// The consumers of one client on one queue.
pub(crate) struct ClientConsumers<'a, 'p> {
    pub(crate) queue: &'a QueueHistory,
    /// The client's connections, each with the number of its consumers on the queue.
    pub(crate) members: Vec<(&'a ConnectionView<'p>, u64)>,
}

impl ClientConsumers<'_, '_> {
    /// The sign that this rule sees at these consumers.
    pub(crate) fn see(&self) -> Option<Sign> {
        let sign = self.see_idle_others().or_else(|| self.see_waves())?;
        Some(sign.at(Some(self.queue.place())))
    }

    fn see_idle_others(&self) -> Option<Sign> {
        if self.queue.idling_share() < IDLING_MIN {
            return None;
        }
        let consumers = &self.queue.queue.consumers;
        let idle = consumers
            .iter()
            .filter(|it| it.in_flight == 0 && it.credit > 0);
        let idle = idle.count() as f64;
        let worst = self.members.iter().map(|(view, _)| *view);
        let worst = worst.max_by_key(|view| view.gauges.credit_used)?;
        let work = ConsumerWork::of(&[(worst, 1)], JOBS_MIN)?;
        let counters = &work.window.flow.counters;
        let in_order = counters.acks_in_order as f64 / counters.acks.max(1) as f64;
        // The observed number may be larger than the mean of the window, because finished messages
        // waited less than those still in flight.
        let held = self.queue.held_by(worst.connection).unwrap_or_default();
        let (latencies, held) = (&work.latencies, held.max(work.held()));
        // If jobs are done one by one, the last message of a delivery waits for all the others. So
        // latencies differ widely, or rise over the window as fast as time passes.
        let low_us = latencies.quantile(0.1) as f64;
        let high_us = latencies.quantile(0.9) as f64;
        let is_serial = low_us < 0.6 * high_us || high_us - low_us > 0.6 * work.busy_us;
        if idle < 1.0 || in_order < IN_ORDER_MIN || work.held() < 2.0 || !is_serial {
            return None;
        }
        let spacing_us = work.busy_us / work.acks.max(1.0);
        let workers = (1.0 + idle).min(held);
        let rate = work.acks * 1e6 / work.busy_us;
        let measure = Measure::SubscriptionMessagesPerSecond;
        let prediction = worthwhile(measure, rate, rate * workers)?;
        if spacing_us < WAIT_US_MIN {
            return None;
        }
        let numbers = [
            ("held", held),
            ("ack_gap_us", spacing_us),
            ("idle_consumers", idle),
            ("idling_share", self.queue.idling_share()),
            ("workers", workers),
        ];
        let template = &TEMPLATES.hoarding_idle_others;
        let sign = Sign::new(template, prediction, work.window.span_us, numbers);
        Some(sign.advise([
            ("credit", 1.0),
            ("prefetch", prefetch(self.credits_of(worst))),
            ("consumers", consumers.len() as f64),
        ]))
    }

    fn see_waves(&self) -> Option<Sign> {
        let consumers: u64 = self.members.iter().map(|(_, consumers)| consumers).sum();
        if consumers < 2 || self.queue.waiting_share() > 0.2 {
            // With a backlog, the prefetch is always used up and a pool of workers always busy, so
            // waves show nothing.
            return None;
        }
        match job_groups::find_pattern(&self.members) {
            GroupPattern::Waiting(waiting) => self.waves_of(&waiting, consumers),
            GroupPattern::Healthy => None,
            GroupPattern::Nothing => self.waves_of(&self.short_waves()?, consumers),
        }
    }

    /// Waves of short jobs, judged by the distribution of all latencies in the window.
    fn short_waves(&self) -> Option<Waiting> {
        let work = ConsumerWork::of(&self.members, SHORT_JOBS_MIN)?;
        let job_us = work.job_us();
        let per_consumer = work.acks * job_us / work.consumer_busy_us;
        let at_a_time = work.acks * job_us / work.busy_us;
        // One worker does one job at a time, for as long as the client has any. If the client holds
        // no more messages than it works on, or works on several at once, nothing waits: the jobs
        // have two lengths.
        let hidden =
            per_consumer <= SERIAL_MAX && at_a_time <= AT_A_TIME_MAX && work.held() >= HELD_MIN;
        // A pool of workers: more than half of the acknowledgements come together with others.
        let pooled = per_consumer >= PARALLEL_MIN && work.ack_gap_us < 0.2 * job_us;
        let is_seldom = work.window.span_us > 2 * SHORT_US;
        let width = if is_seldom {
            SELDOM_WAVE_WIDTH
        } else {
            WAVE_WIDTH
        };
        let (waves, later) = work.waves(job_us, width);
        if !(WAIT_US_MIN..SHORT_JOB_US).contains(&job_us)
            // A client that always has messages never shows how long one of them takes.
            || work.busy_us > BUSY_SHARE_MAX * work.window.span_us as f64
            || !(hidden || pooled)
            || waves < WAVES_MIN
            || later < LATER_MIN
        {
            return None;
        }
        let last = (work.latencies.quantile(0.9) as f64 / job_us)
            .round()
            .max(1.0);
        // Each job in a later wave has one in the first wave before it. If later jobs are more
        // frequent than that, they are longer jobs and did not wait.
        if later > (last - 1.0) / last + LATER_SLACK {
            return None;
        }
        // Jobs of two lengths, or a program with a pool of its own, look the same. So waves count
        // only if they are many, or if the library is known to share workers.
        let (view, _) = self.members.first()?;
        let is_proven = hidden && last >= PROVEN_WAVES_MIN && work.in_order >= IN_ORDER_MIN;
        if !is_proven && !job_groups::shares_workers(view.client()) {
            return None;
        }
        Some(Waiting {
            job_us,
            jobs: work.acks,
            waited: later * work.acks,
            busy_us: work.busy_us,
            least_us: work.busy_us / last,
            at_a_time,
            held_max: at_a_time * last,
            waves: last,
            span_us: work.window.span_us,
        })
    }

    /// The sign of jobs that wait for each other.
    fn waves_of(&self, waiting: &Waiting, consumers: u64) -> Option<Sign> {
        let Waiting {
            job_us,
            jobs,
            at_a_time,
            waves,
            ..
        } = *waiting;
        let rate = jobs * 1e6 / waiting.busy_us;
        let after = jobs * 1e6 / waiting.least_us;
        let measure = Measure::SubscriptionMessagesPerSecond;
        let prediction = worthwhile(measure, rate, after)?;
        let members = self.members.iter().map(|(view, _)| *view);
        let credits: Vec<u64> = members.flat_map(|it| self.credits_of(it)).collect();
        // The advice leaves one consumer, which gets the sum of their prefetches; unlimited (0)
        // stays unlimited.
        let together = if credits.contains(&u64::MAX) {
            0.0
        } else {
            waiting.held_max.max(credits.iter().sum::<u64>() as f64)
        };
        // Consumers that share workers with a queue each: such a queue gets about one message from
        // each consumer. More waves than consumers mean that a single worker processes everything
        // that came at once.
        let (client, _) = self.members.first()?;
        let is_one = at_a_time <= AT_A_TIME_MAX
            && waves > consumers as f64
            && !job_groups::shares_workers(client.client());
        let last_wave = Some(waves.trunc()).filter(|last| *last != 2.0);
        let numbers = [
            ("concurrency", at_a_time),
            ("ack_latency_us", job_us),
            ("acks", jobs),
            ("waves", waves),
            ("held_max", waiting.held_max),
            ("consumers", consumers as f64),
            ("later_share", waiting.waited / jobs),
        ];
        let template = &TEMPLATES.hoarding_waves;
        let mut sign = Sign::new(template, prediction, waiting.span_us, numbers)
            .with("last_wave", last_wave)
            .when("is_up_to", waves > 2.0)
            .when("one_worker", is_one)
            .advise([
                ("credit", together),
                ("prefetch", prefetch(credits)),
                ("at_once", waiting.held_max.ceil()),
                ("consumers", consumers as f64),
            ]);
        if is_one {
            sign.picture = Picture::OneWorker;
        }
        Some(sign)
    }

    /// The credit of each consumer of a member, in messages.
    fn credits_of(&self, member: &ConnectionView<'_>) -> Vec<u64> {
        let consumers = self.queue.queue.consumers.iter();
        let of_member = consumers.filter(|it| it.connection == member.connection);
        of_member.map(|it| it.credit).collect()
    }
}

/// The maximum credit of one of these consumers; 0 stands for no limit.
fn prefetch(credits: impl IntoIterator<Item = u64>) -> f64 {
    let most = credits.into_iter().max().unwrap_or_default();
    if most == u64::MAX { 0.0 } else { most as f64 }
}

/// The work of some consumers in one window.
struct ConsumerWork {
    /// The window of the first member.
    window: Window,
    latencies: HistogramSnapshot,
    acks: f64,
    /// Sum of the latencies.
    held_us: f64,
    /// How long the busiest member had messages in flight.
    busy_us: f64,
    /// Sum over all consumers of the time in which they had messages in flight.
    consumer_busy_us: f64,
    rtt_us: f64,
    /// Share of acknowledgements in the order of delivery, of the member with the lowest share.
    in_order: f64,
    /// The median time between two acknowledgements of a connection, of the member with the
    /// longest.
    ack_gap_us: f64,
}

impl ConsumerWork {
    /// The work in the shortest window that has at least this many acknowledgements.
    fn of(members: &[(&ConnectionView<'_>, u64)], acks_min: u64) -> Option<ConsumerWork> {
        WINDOWS_US.iter().find_map(|length_us| {
            let work = ConsumerWork::within(members, *length_us)?;
            // A window that is shorter than the longest jobs has seen too few of them.
            let longest_us = work.latencies.quantile(0.9) as f64;
            let is_long = work.window.span_us as f64 >= longest_us;
            (work.acks as u64 >= acks_min && work.busy_us > 0.0 && is_long).then_some(work)
        })
    }

    fn within(members: &[(&ConnectionView<'_>, u64)], length_us: u64) -> Option<ConsumerWork> {
        let mut all: Option<ConsumerWork> = None;
        for (view, consumers) in members {
            let window = view.history.window(view.now_us, length_us);
            let acks = window.flow.counters.acks as f64;
            if acks == 0.0 {
                continue;
            }
            let busy_us = window.flow.counters.holding_us.min(window.span_us) as f64;
            let latencies = &window.flow.histograms.ack_latency_us;
            let rtt_us = view.rtt_us().unwrap_or_default();
            let work = all.get_or_insert_with(|| ConsumerWork {
                window: window.clone(),
                latencies: HistogramSnapshot::default(),
                acks: 0.0,
                held_us: 0.0,
                busy_us: 0.0,
                consumer_busy_us: 0.0,
                rtt_us: 0.0,
                in_order: 1.0,
                ack_gap_us: 0.0,
            });
            work.latencies.merge(latencies);
            work.acks += acks;
            work.held_us += latencies.sum() as f64;
            work.busy_us = work.busy_us.max(busy_us);
            work.consumer_busy_us += busy_us * *consumers as f64;
            work.rtt_us = work.rtt_us.max(rtt_us);
            let in_order = window.flow.counters.acks_in_order as f64 / acks;
            work.in_order = work.in_order.min(in_order);
            let gaps = &window.flow.histograms.ack_gap_us;
            work.ack_gap_us = work.ack_gap_us.max(gaps.quantile(0.5) as f64);
        }
        all
    }

    /// Messages in flight, on average while there are any.
    fn held(&self) -> f64 {
        self.held_us / self.busy_us.max(1.0)
    }

    /// The duration of a job that does not have to wait, in microseconds.
    fn job_us(&self) -> f64 {
        (self.latencies.quantile(0.1) as f64 - self.rtt_us).max(0.0)
    }

    /// Of the latencies of up to three jobs, the share that is close to one, two or three; and of
    /// all latencies, the share beyond the first wave.
    fn waves(&self, job_us: f64, width: f64) -> (f64, f64) {
        let near = |times: f64| {
            let (low, high) = (times - width, times + width);
            let bound = |times: f64| (times * job_us + self.rtt_us) as u64;
            self.latencies.count_between(bound(low), bound(high))
        };
        let close = near(1.0) + near(2.0) + near(3.0);
        let limit = (3.25 * job_us + self.rtt_us) as u64;
        let up_to = self.latencies.count_between(0, limit).max(1);
        if (up_to as f64) < 0.5 * self.acks {
            return (0.0, 0.0);
        }
        let first = (1.6 * job_us + self.rtt_us) as u64;
        let later = self.latencies.count_between(first, u64::MAX);
        (close as f64 / up_to as f64, later as f64 / self.acks)
    }
}
