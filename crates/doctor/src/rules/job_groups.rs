//! Jobs that came together to one client, and when each of them was done.
//!
//! ```text
//! wait for each other        began together, and take different times
//!   J  J  J  2J  2J            J  2J  2J  3J      more of the later ones: nobody was before them
//!   J                          2J                 one that came alone had nobody to wait for
//! ```
//!
//! Before each second job of a worker there is a first one, in each group. A group in which that is
//! not so shows that the jobs of this client have several lengths. Two cases look alike: jobs that
//! half wait, and always the same jobs, of which a half takes twice as long. Consumers that are
//! their own limit do wait, each for itself: with a worker or some of its own it is never without
//! work while it has any. Such waits come from libraries whose consumers share workers that have a
//! line of messages each ([`shares_workers`]); the others have to show more.

use crate::Client;
use crate::ack_log::Acked;
use crate::rules::{ConnectionView, LONG_US};

/// Groups of several jobs that must have been seen, and jobs; more where jobs are short.
const GROUPS_MIN: usize = 2;
const JOBS_MIN: u64 = 5;
const SHORT_JOB_US: f64 = 3_000_000.0;
const SHORT_GROUPS_MIN: usize = 4;
const SHORT_JOBS_MIN: u64 = 12;

/// Groups of several jobs and of one that a client of any library must have shown.
const PROVEN_GROUPS_MIN: usize = 4;

/// Waves that no chance choice of lengths looks like.
const PROVEN_WAVES_MIN: usize = 4;

/// The last groups of several jobs: what was before is no more.
const RECENT_MAX: usize = 8;

/// Of these so many have more than one wave; all, while there are few.
const WAITING_MIN: f64 = 0.75;

/// Of all groups, at most this share may contradict.
const CONTRADICTING_MAX: f64 = 0.1;

/// Older jobs are not known any more, and a client that has done nothing for so long has its peace.
const AGE_US_MAX: u64 = 1_800_000_000;
const IDLE_US_MAX: f64 = 600e6;

/// Jobs that came together were delivered within this time, as far as looks can tell.
const TOGETHER_US: f64 = 1_250_000.0;

/// How far jobs may be from what they should be.
#[derive(Debug, Clone, Copy)]
struct Widths {
    /// From the time of one job or two, in that time; and of three or more.
    early: f64,
    late: f64,
    /// One group's jobs from another's, as a factor.
    alike: f64,
}

/// The pattern of few jobs of any length is chance.
const FEW: Widths = Widths {
    early: 0.15,
    late: 0.25,
    alike: 1.25,
};
const MANY: Widths = Widths {
    early: 0.27,
    late: 0.4,
    alike: 1.35,
};

/// Consumers that hand their messages to workers which all of them share, whether or not one is
/// free: Broadway's producers, of Erlang's client. Others of its name say what they run on.
pub(super) fn shares_workers(client: &Client) -> bool {
    let others = ["Java", ".NET"];
    client.library == "RabbitMQ" && !others.iter().any(|it| client.platform.starts_with(it))
}

/// Jobs that came together.
#[derive(Debug)]
struct Group {
    /// The earliest that one of them may have been delivered, and its middle; likewise their ends.
    start_us: f64,
    last_start_us: f64,
    end_us: f64,
    end_us_max: f64,
    /// Nothing was in hand when they came, and they came at once.
    is_clear: bool,
    done: Vec<Done>,
}

/// Jobs of a group that took the same time.
#[derive(Debug)]
struct Done {
    time_us: f64,
    count: u64,
    /// The member whose jobs they were: its place among the members.
    member: usize,
}

/// How many jobs were done in each wave, from the first.
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

    /// `None` if its jobs did not take about once, twice, three times the time of one.
    fn waves(&self, widths: Widths) -> Option<Waves> {
        self.waves_of(widths, |_| true)
    }

    /// The same, for some of its jobs.
    fn waves_of(&self, widths: Widths, is_meant: impl Fn(&Done) -> bool) -> Option<Waves> {
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

    /// Whether its jobs may be of one length that waited for each other.
    fn agrees(&self, job_us: f64, widths: Widths) -> bool {
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

/// Whether so many workers, who take the next job as soon as they have done one, explain these
/// waves.
fn is_work_of(waves: &Waves, workers: u64) -> bool {
    let jobs: u64 = waves.iter().sum();
    let full = waves.len().saturating_sub(1);
    waves.len() as u64 == jobs.div_ceil(workers.max(1))
        && waves[..full].iter().all(|count| *count == workers)
}

/// Whether these are, nearly all of them, groups of a client that has so many workers each time.
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

/// Whether each consumer by itself is its own limit.
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
pub(super) enum Shown {
    /// Its jobs are seldom in clear groups.
    Nothing,
    /// They are, and do not wait for each other, or have not shown it yet.
    Healthy,
    /// They do.
    Waiting(Waiting),
}

/// Jobs that wait for each other, in the last groups.
#[derive(Debug)]
pub(super) struct Waiting {
    /// How long one takes.
    pub(super) job_us: f64,
    pub(super) jobs: f64,
    /// Those that had to wait.
    pub(super) waited: f64,
    /// Times of all groups together, as they are and if all jobs of each were done at once.
    pub(super) busy_us: f64,
    pub(super) least_us: f64,
    /// Jobs at a time, on the mean, in groups of several; and messages that there are at most.
    pub(super) at_a_time: f64,
    pub(super) held_max: f64,
    /// Of the longest group.
    pub(super) waves: f64,
    pub(super) span_us: u64,
}

/// The pattern that the consumers of one client show.
pub(super) fn look(members: &[(&ConnectionView<'_>, u64)]) -> Shown {
    let Some((first, _)) = members.first() else {
        return Shown::Nothing;
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
        return Shown::Nothing;
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
        return Shown::Healthy;
    }
    if !is_clear {
        return Shown::Nothing;
    }
    let jobs: u64 = groups.iter().map(Group::jobs).sum();
    // A group that is not over yet may have its second wave still to come.
    let held = members.iter().map(|(it, _)| it.gauges.holding_since_us);
    let held_us = held.filter(|since_us| *since_us > 0).min();
    let is_on = |group: &Group| held_us.is_some_and(|it| group.middle_us() > it as f64);
    groups.retain(|group| !is_on(group));
    let several: Vec<&Group> = groups.iter().filter(|group| group.jobs() > 1).collect();
    if have_workers_of_their_own(&several, members.len()) {
        return Shown::Healthy;
    }
    match waiting(&groups, first, jobs, job_us) {
        Some(waiting) => Shown::Waiting(waiting),
        None => Shown::Healthy,
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
    // Those that came alone in the same time are part of what the client does.
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

/// Whether jobs of different lengths would not look like this: they take one time when they come
/// alone, or are done in so many waves each time. A pool that all consumers share does.
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

/// All that is known of a client, by the time at which jobs came.
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
        // A job that came before the first of them was done is one of them: another group must be
        // certain.
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
