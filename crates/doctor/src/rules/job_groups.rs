//! Jobs that came together to one client, and when each of them was done.
//!
//! ```text
//! wait for each other        began together, and take different times
//!   J  J  J  2J  2J            J  2J  2J  3J      more later ones: no job was before them
//!   J                          2J                 a single job had no other to wait for
//! ```
//!
//! If jobs wait for each other, a worker's second job in a group is preceded by a first one. A
//! group without that shows that the jobs of this client have several lengths. Two cases look
//! alike: groups of which half of the jobs wait, and groups of equal jobs of which half take twice
//! as long. A consumer with workers of its own also makes jobs wait, but it is limited by its own
//! work: its workers are busy while it has messages. Avoidable waits come from libraries whose
//! consumers share workers with a queue each ([`shares_workers`]). For other libraries the rule
//! requires more evidence.

use crate::Client;
use crate::ack_log::Acked;
use crate::rules::{ConnectionView, LONG_US};

/// Minimum groups of several jobs, and minimum jobs; more if jobs are short.
const GROUPS_MIN: usize = 2;
const JOBS_MIN: u64 = 5;
const SHORT_JOB_US: f64 = 3_000_000.0;
const SHORT_GROUPS_MIN: usize = 4;
const SHORT_JOBS_MIN: u64 = 12;

/// Minimum groups of several jobs, and of a single job, that prove waiting for any library.
const PROVEN_GROUPS_MIN: usize = 4;

/// From this many waves on, jobs of random lengths cannot be the cause.
const PROVEN_WAVES_MIN: usize = 4;

/// Maximum groups of several jobs that are examined: the latest, because the client may have
/// changed.
const RECENT_MAX: usize = 8;

/// Minimum share of these groups with more than one wave; all of them, if there are few.
const WAITING_MIN: f64 = 0.75;

/// Maximum share of groups that contradict.
const CONTRADICTING_MAX: f64 = 0.1;

/// Maximum age of jobs, and the idle time after which a client gets no sign, in microseconds.
const AGE_US_MAX: u64 = 1_800_000_000;
const IDLE_US_MAX: f64 = 600e6;

/// Jobs delivered within this time, in microseconds, count as one group: observations cannot
/// separate them.
const TOGETHER_US: f64 = 1_250_000.0;

/// Tolerances for the durations of jobs.
#[derive(Debug, Clone, Copy)]
struct Tolerances {
    /// Distance from one or two times a job's duration, and from three or more times, as a share of
    /// that duration.
    early: f64,
    late: f64,
    /// Ratio of the durations of two groups' jobs.
    alike: f64,
}

/// Narrow tolerances for few jobs, whose pattern may be chance.
const FEW: Tolerances = Tolerances {
    early: 0.15,
    late: 0.25,
    alike: 1.25,
};
const MANY: Tolerances = Tolerances {
    early: 0.27,
    late: 0.4,
    alike: 1.35,
};

/// Whether this library's consumers pass their messages to workers that they share, whether or not
/// a worker is free: Broadway's producers, which use Erlang's client. Other clients named
/// `RabbitMQ` declare their platform.
pub(super) fn shares_workers(client: &Client) -> bool {
    let others = ["Java", ".NET"];
    client.library == "RabbitMQ" && !others.iter().any(|it| client.platform.starts_with(it))
}

/// Jobs that came together.
#[derive(Debug)]
struct Group {
    /// When the first of them may have been delivered at the earliest, and other bounds of the
    /// group in time, in microseconds.
    start_us: f64,
    last_start_us: f64,
    end_us: f64,
    end_us_max: f64,
    /// The client had nothing in flight when they came, and they came at once.
    is_clear: bool,
    done: Vec<Done>,
}

/// Jobs of a group that took the same time.
#[derive(Debug)]
struct Done {
    time_us: f64,
    count: u64,
    /// Index of the member whose jobs they were.
    member: usize,
}

/// How many jobs were done in each wave, in order.
type Waves = Vec<u64>;

impl Group {
    fn jobs(&self) -> u64 {
        self.done.iter().map(|it| it.count).sum()
    }

    fn shortest_us(&self) -> f64 {
        let times = self.done.iter().map(|it| it.time_us);
        times.fold(f64::MAX, f64::min)
    }

    fn middle_us(&self) -> f64 {
        self.start_us.midpoint(self.end_us)
    }

    fn longest_us(&self) -> f64 {
        self.done.iter().map(|it| it.time_us).fold(0.0, f64::max)
    }

    /// `None` if the durations are not about one, two, three times that of the shortest job.
    fn waves(&self, widths: Tolerances) -> Option<Waves> {
        self.waves_of(widths, |_| true)
    }

    /// Like [`Group::waves`], for the jobs that `is_meant` accepts.
    fn waves_of(&self, widths: Tolerances, is_meant: impl Fn(&Done) -> bool) -> Option<Waves> {
        let job_us = self.shortest_us();
        let mut waves = Waves::new();
        for Done { time_us, count, .. } in self.done.iter().filter(|it| is_meant(it)) {
            let times = (time_us / job_us).round();
            let width = if times <= 2.0 {
                widths.early
            } else {
                widths.late
            };
            if (time_us / job_us - times).abs() > width || times > 1000.0 {
                return None;
            }
            let at = times as usize;
            waves.resize(waves.len().max(at), 0);
            waves[at - 1] += count;
        }
        Some(waves)
    }

    /// Whether its jobs may have this duration and have waited for each other.
    fn agrees(&self, job_us: f64, widths: Tolerances) -> bool {
        let factor = self.shortest_us() / job_us;
        let is_alike = factor.max(1.0 / factor) <= widths.alike;
        let waves = self.waves(widths);
        is_alike && waves.is_some_and(|waves| waves.windows(2).all(|pair| pair[0] >= pair[1]))
    }

    /// In how many waves its jobs were done.
    fn waves_count(&self) -> usize {
        self.waves(MANY).map_or(0, |waves| waves.len())
    }

    /// How many of its jobs had to wait.
    fn waited(&self) -> u64 {
        let waves = self.waves(MANY).unwrap_or_default();
        waves.iter().skip(1).sum()
    }
}

/// Whether this many workers, each of which takes the next job when it has finished one, explain
/// these waves.
fn is_work_of(waves: &Waves, workers: u64) -> bool {
    let jobs: u64 = waves.iter().sum();
    let full = waves.len().saturating_sub(1);
    waves.len() as u64 == jobs.div_ceil(workers.max(1))
        && waves[..full].iter().all(|count| *count == workers)
}

/// Whether nearly all of these groups are explained by one number of workers.
fn has_workers<'g>(groups: impl Iterator<Item = Option<&'g Waves>> + Clone) -> bool {
    let largest = groups.clone().flatten().flat_map(|waves| waves.iter());
    let workers = largest.max().copied().unwrap_or_default();
    let (mut explained, mut all) = (0, 0);
    for waves in groups {
        all += 1;
        explained += usize::from(waves.is_some_and(|waves| is_work_of(waves, workers)));
    }
    explained as f64 >= (1.0 - CONTRADICTING_MAX) * f64::from(all)
}

/// Whether each consumer is limited by workers of its own.
fn have_workers_of_their_own(groups: &[&Group], members: usize) -> bool {
    (0..members).all(|member| {
        let of_member = groups
            .iter()
            .filter(|group| group.done.iter().any(|it| it.member == member));
        let waves: Vec<Option<Waves>> = of_member
            .map(|group| group.waves_of(MANY, |it| it.member == member))
            .collect();
        has_workers(waves.iter().map(Option::as_ref))
    })
}

/// The pattern that the groups of a client show.
#[derive(Debug)]
pub(super) enum GroupPattern {
    /// Its jobs are rarely in clear groups.
    Nothing,
    /// The jobs are in clear groups, and do not wait for each other, or not demonstrably.
    Healthy,
    /// The jobs wait for each other.
    Waiting(Waiting),
}

/// Jobs that wait for each other, in the last groups.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Duration of one job.
    pub(super) job_us: f64,
    pub(super) jobs: f64,
    /// Jobs that had to wait.
    pub(super) waited: f64,
    /// Sum of the durations of all groups, as observed, and if all jobs of each group ran at once.
    pub(super) busy_us: f64,
    pub(super) least_us: f64,
    /// Mean of concurrent jobs in groups of several; and the maximum of messages in flight.
    pub(super) at_a_time: f64,
    pub(super) held_max: f64,
    /// Waves of the longest group.
    pub(super) waves: f64,
    pub(super) span_us: u64,
}

/// The pattern that the consumers of one client show.
pub(super) fn find_pattern(members: &[(&ConnectionView<'_>, u64)]) -> GroupPattern {
    let Some((first, _)) = members.first() else {
        return GroupPattern::Nothing;
    };
    let mut groups = groups(members);
    let recent_us = first.now_us.saturating_sub(LONG_US) as f64;
    let recent = groups.iter().filter(|group| group.end_us >= recent_us);
    let (clear, unclear): (Vec<&Group>, _) = recent.partition(|group| group.is_clear);
    let jobs = |groups: &[&Group]| groups.iter().map(|group| group.jobs()).sum::<u64>();
    let is_clear = jobs(&clear) >= jobs(&unclear);
    groups.retain(|group| group.is_clear);
    let last_us = groups.last().map(|group| group.end_us);
    if last_us.unwrap_or(f64::MIN) < first.now_us as f64 - IDLE_US_MAX {
        return GroupPattern::Nothing;
    }
    let mut times: Vec<f64> = groups.iter().map(Group::shortest_us).collect();
    times.sort_by(f64::total_cmp);
    let job_us = times[times.len() / 2];
    let several = groups.iter().filter(|group| group.jobs() > 1).count();
    let widths = if several <= SHORT_GROUPS_MIN {
        FEW
    } else {
        MANY
    };
    let against = groups.iter().filter(|group| !group.agrees(job_us, widths));
    if against.count() as f64 > CONTRADICTING_MAX * groups.len() as f64 {
        return GroupPattern::Healthy;
    }
    if !is_clear {
        return GroupPattern::Nothing;
    }
    let jobs: u64 = groups.iter().map(Group::jobs).sum();
    // An unfinished group may have further waves.
    let held = members.iter().map(|(it, _)| it.gauges.holding_since_us);
    let held_us = held.filter(|since_us| *since_us > 0).min();
    let is_on = |group: &Group| held_us.is_some_and(|it| group.middle_us() > it as f64);
    groups.retain(|group| !is_on(group));
    let several: Vec<&Group> = groups.iter().filter(|group| group.jobs() > 1).collect();
    if have_workers_of_their_own(&several, members.len()) {
        return GroupPattern::Healthy;
    }
    match waiting(&groups, first, jobs, job_us) {
        Some(waiting) => GroupPattern::Waiting(waiting),
        None => GroupPattern::Healthy,
    }
}

fn waiting(
    groups: &[Group],
    first: &ConnectionView<'_>,
    jobs: u64,
    job_us: f64,
) -> Option<Waiting> {
    let many: Vec<&Group> = groups.iter().filter(|group| group.jobs() > 1).collect();
    let last = &many[many.len().saturating_sub(RECENT_MAX)..];
    let with_waves = last.iter().filter(|group| group.waves_count() > 1).count();
    let share = with_waves as f64 / last.len().max(1) as f64;
    let goes_on = last
        .iter()
        .rev()
        .take(2)
        .any(|group| group.waves_count() > 1);
    let waiting_min = if last.len() < RECENT_MAX / 2 {
        1.0
    } else {
        WAITING_MIN
    };
    let (groups_min, jobs_min) = if job_us < SHORT_JOB_US {
        (SHORT_GROUPS_MIN, SHORT_JOBS_MIN)
    } else {
        (GROUPS_MIN, JOBS_MIN)
    };
    let is_enough = last.len() >= groups_min && jobs >= jobs_min;
    if !is_enough || !goes_on || share < waiting_min {
        return None;
    }
    if !shares_workers(first.client()) && !is_proven(groups, last) {
        return None;
    }
    // Jobs that came alone in the same time are part of the client's work.
    let since_us = last.first()?.start_us;
    let shown: Vec<&Group> = groups.iter().filter(|it| it.start_us >= since_us).collect();
    let sum = |of: &dyn Fn(&Group) -> f64, groups: &[&Group]| -> f64 {
        groups.iter().map(|group| of(group)).sum()
    };
    let shortest: &dyn Fn(&Group) -> f64 = &Group::shortest_us;
    let longest: &dyn Fn(&Group) -> f64 = &Group::longest_us;
    let count: &dyn Fn(&Group) -> f64 = &|group| group.jobs() as f64;
    let work: &dyn Fn(&Group) -> f64 = &|group| group.jobs() as f64 * group.shortest_us();
    Some(Waiting {
        job_us: sum(shortest, &shown) / shown.len() as f64,
        jobs: sum(count, &shown),
        waited: sum(&|group| group.waited() as f64, &shown),
        busy_us: sum(longest, &shown),
        least_us: sum(shortest, &shown),
        at_a_time: sum(work, last) / sum(longest, last),
        held_max: last.iter().map(|group| count(group)).fold(0.0, f64::max),
        waves: last.iter().map(|group| group.waves_count()).max()? as f64,
        span_us: first.now_us.saturating_sub(since_us as u64),
    })
}

/// Whether jobs of different lengths can be excluded: there are enough groups of several waves and
/// enough single jobs, or enough groups of many waves. Not for a pool of workers that all consumers
/// share, which looks the same.
fn is_proven(groups: &[Group], last: &[&Group]) -> bool {
    let alone = groups.iter().filter(|group| group.jobs() == 1).count();
    let with = |waves: usize| {
        last.iter()
            .filter(|group| group.waves_count() >= waves)
            .count()
    };
    let waves: Vec<Option<Waves>> = last.iter().map(|group| group.waves(MANY)).collect();
    let is_single = waves.iter().flatten().all(|waves| waves[0] == 1);
    if !is_single && has_workers(waves.iter().map(Option::as_ref)) {
        return false;
    }
    let is_often = with(2) >= PROVEN_GROUPS_MIN && alone >= PROVEN_GROUPS_MIN;
    is_often || with(PROVEN_WAVES_MIN) >= PROVEN_GROUPS_MIN
}

/// All groups of a client, by the time at which their jobs came.
fn groups(members: &[(&ConnectionView<'_>, u64)]) -> Vec<Group> {
    let whole = members
        .iter()
        .map(|(it, _)| it.history.ack_log.whole_since_us);
    let whole_since_us = whole.max().unwrap_or_default() as f64;
    let mut seen: Vec<(f64, Done, &Acked)> = Vec::new();
    for (member, (view, _)) in members.iter().enumerate() {
        let rtt_us = view.rtt_us().unwrap_or_default();
        let oldest_us = view.now_us.saturating_sub(AGE_US_MAX);
        let entries = view.history.ack_log.entries();
        for acked in entries.filter(|it| it.at_us >= oldest_us) {
            let time_us = (acked.latency_us as f64 - rtt_us).max(1.0);
            let done = Done {
                time_us,
                count: acked.count,
                member,
            };
            let from_us = acked.since_us as f64 - acked.latency_us as f64;
            seen.push((from_us, done, acked));
        }
    }
    seen.sort_by(|a, b| a.0.total_cmp(&b.0));
    let job_us = seen.iter().map(|it| it.1.time_us).fold(f64::MAX, f64::min);
    let mut groups: Vec<Group> = Vec::new();
    for (from_us, done, acked) in seen {
        let half_us = acked.at_us.saturating_sub(acked.since_us) as f64 / 2.0;
        let (start_us, end_us) = (from_us + half_us, acked.at_us as f64 - half_us);
        let end_us_max = acked.at_us as f64;
        // A job that came before the first job of the group was done belongs to the group: a new
        // group must be certain.
        match groups.last_mut() {
            Some(group) if from_us <= group.end_us_max - 0.9 * job_us => {
                group.last_start_us = group.last_start_us.max(start_us);
                group.start_us = group.start_us.min(start_us);
                group.end_us = group.end_us.max(end_us);
                group.end_us_max = group.end_us_max.max(end_us_max);
                group.done.push(done);
            }
            _ => groups.push(Group {
                start_us,
                last_start_us: start_us,
                end_us,
                end_us_max,
                is_clear: start_us + half_us >= whole_since_us,
                done: vec![done],
            }),
        }
    }
    let slack_us = (job_us / 4.0).min(1e6);
    let mut before_us = f64::MIN;
    for group in &mut groups {
        let at_once = group.last_start_us - group.start_us <= TOGETHER_US;
        group.is_clear &= at_once && group.start_us >= before_us - slack_us;
        before_us = group.end_us.max(before_us);
    }
    groups
}
