//! partitions: a group has fewer partitions than members, or one partition has most of the
//! messages, while the lag grows.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::Measure;
use crate::observation::Partition;
use crate::queues::QueueHistory;
use crate::rules::{Sign, worthwhile};
use crate::templates::{TEMPLATES, Template};

/// A partition with at least this share of the messages limits the group.
const SKEW_MIN: f64 = 0.8;

/// A lag that grew by less than this share of the published messages counts as constant.
const GROWTH_SHARE_MIN: f64 = 0.05;

/// Minimum messages consumed between two observations for a rate.
const CONSUMED_MIN: f64 = 10.0;

/// Messages published to and consumed from one partition.
struct Flow {
    partition: Partition,
    published: f64,
    consumed: f64,
    /// Negative when the lag shrank.
    grown: f64,
}

/// The sign of a group, and the connection of the member that it is about.
pub(crate) fn see(history: &QueueHistory) -> Option<(u64, Sign)> {
    let flows = flows(history)?;
    let span_us = history.queue_span_us()?;
    let consumed: f64 = flows.iter().map(|flow| flow.consumed).sum();
    let published: f64 = flows.iter().map(|flow| flow.published).sum();
    let grown: f64 = flows.iter().map(|flow| flow.grown).sum();
    if consumed < CONSUMED_MIN || grown <= GROWTH_SHARE_MIN * published {
        return None;
    }
    let seen = GroupLag {
        members: members(history),
        rate: consumed * 1e6 / span_us as f64,
        wanted: published * 1e6 / span_us as f64,
        lag: flows.iter().map(|flow| flow.partition.lag as f64).sum(),
        grown,
        span_us,
    };
    let seen = see_skew(&flows, &seen).or_else(|| see_few(&flows, &seen));
    seen.map(|(connection, sign)| (connection, sign.at(Some(history.place()))))
}

struct GroupLag {
    members: u64,
    rate: f64,
    /// Messages published per second.
    wanted: f64,
    lag: f64,
    grown: f64,
    span_us: u64,
}

impl GroupLag {
    /// The sign, if the group could consume `all` messages per second, of which at most those
    /// published count.
    fn sign(&self, template: &'static Template, all: f64) -> Option<Sign> {
        let measure = Measure::SubscriptionMessagesPerSecond;
        let prediction = worthwhile(measure, self.rate, all.min(self.wanted))?;
        let numbers = [
            ("consumers", self.members as f64),
            ("all", all),
            ("come", self.wanted),
            ("lag", self.lag),
            ("grown", self.grown),
            ("span_us", self.span_us as f64),
        ];
        let sign = Sign::new(template, prediction, self.span_us, numbers);
        Some(sign.advise([("consumers", self.members as f64)]))
    }
}

fn members(history: &QueueHistory) -> u64 {
    let connections = history.queue.consumers.iter().map(|it| it.connection);
    connections.collect::<BTreeSet<u64>>().len() as u64
}

/// Fewer partitions than members: some members have none.
fn see_few(flows: &[Flow], seen: &GroupLag) -> Option<(u64, Sign)> {
    let partitions = flows.len() as u64;
    if seen.members <= partitions || !is_for_want_of_partitions(flows) {
        return None;
    }
    let all = seen.rate * seen.members as f64 / partitions as f64;
    let connection = flows.iter().find_map(|flow| flow.partition.connection)?;
    let sign = seen
        .sign(&TEMPLATES.too_few_partitions, all)?
        .with("partitions", partitions as f64)
        .advise([("partitions", seen.members as f64)]);
    Some((connection, sign))
}

/// Whether more partitions would help: the lag is not caused by a few members that hang.
fn is_for_want_of_partitions(flows: &[Flow]) -> bool {
    let grows = |grown: f64, published: f64| grown > GROWTH_SHARE_MIN * published;
    // A member that began to hang within the window has still consumed something in it. So most of
    // the partitions have to fall behind, ...
    let behind = flows.iter().filter(|it| grows(it.grown, it.published));
    // ... and so have those that are consumed from, together.
    let works = |it: &&Flow| it.consumed > 0.0 || it.partition.lag == 0;
    let working = flows.iter().filter(works);
    let sums = working.fold((0.0, 0.0), |(grown, published), it| {
        (grown + it.grown, published + it.published)
    });
    behind.count() * 2 > flows.len() && grows(sums.0, sums.1)
}

/// One partition has most of the messages.
fn see_skew(flows: &[Flow], seen: &GroupLag) -> Option<(u64, Sign)> {
    let hot = flows
        .iter()
        .max_by(|a, b| a.published.total_cmp(&b.published))?;
    let published: f64 = flows.iter().map(|flow| flow.published).sum();
    let share = hot.published / published.max(1.0);
    let partitions = flows.len() as u64;
    // The other partitions have to keep up, or this one is not the only limit.
    let others = seen.grown - hot.grown;
    if partitions < 2 || seen.members < 2 || share < SKEW_MIN || hot.grown <= others.max(0.0) * 4.0
    {
        return None;
    }
    let hot_rate = hot.consumed * 1e6 / seen.span_us as f64;
    let workers = seen.members.min(partitions) as f64;
    let sign = seen
        .sign(&TEMPLATES.skewed_partitions, hot_rate * workers)?
        .with("share", share)
        .with("partition", f64::from(hot.partition.partition))
        .with("partitions", partitions as f64)
        .with("hot", hot_rate)
        .with("workers", workers)
        .advise([("partitions", partitions as f64)]);
    Some((hot.partition.connection?, sign))
}

fn flows(history: &QueueHistory) -> Option<Vec<Flow>> {
    let before = &history.older_partitions()?.partitions;
    let before: BTreeMap<u32, &Partition> = before.iter().map(|it| (it.partition, it)).collect();
    let flow = |partition: &Partition| {
        let old = before.get(&partition.partition)?;
        let published = partition.published.checked_sub(old.published)? as f64;
        let grown = partition.lag as f64 - old.lag as f64;
        Some(Flow {
            partition: *partition,
            published,
            consumed: (published - grown).max(0.0),
            grown,
        })
    };
    history.queue.partitions.iter().map(flow).collect()
}
