//! Queues over the last half minute: whether messages waited, and which consumers were idle.

use std::collections::{HashMap, VecDeque};

use crate::observation::{Partition, Queue};

/// Maximum observations kept of a queue.
const OBSERVATIONS_MAX: usize = 32;

/// Older observations are not used, in microseconds.
const OBSERVATION_AGE_US_MAX: u64 = 40_000_000;

/// Minimum observations for a share.
const OBSERVATIONS_MIN: usize = 3;

/// Maximum queues that are watched; those with the most consumers are preferred.
const QUEUES_MAX: usize = 4096;

/// Maximum partitions of a queue. If a queue has more, none are examined, because a rule that sees
/// a part of them would take the others for missing.
pub const PARTITIONS_MAX: usize = 1024;

/// Maximum partitions of all queues together: 8 MiB, with those of earlier observations. Queues
/// with the most consumers are preferred; a queue whose partitions do not fit has none.
pub const ALL_PARTITIONS_MAX: usize = 65_536;

/// Minimum time between the two observations of partitions that are compared, in microseconds.
const PARTITIONS_INTERVAL_US: u64 = 6_000_000;

#[derive(Debug, Clone, Copy)]
struct QueueObservation {
    taken_us: u64,
    waits: bool,
    /// A consumer with free credit has no messages, while another one has several.
    idles: bool,
    /// The connection of the consumer with the most messages in flight, and their number.
    most: (u64, u64),
}

/// The state of partitions at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct PartitionsObservation {
    pub(crate) taken_us: u64,
    pub(crate) partitions: Vec<Partition>,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct QueueHistory {
    /// The last observation of the queue.
    pub(crate) queue: Queue,
    observations: VecDeque<QueueObservation>,
    partition_observations: [PartitionsObservation; 2],
}

impl QueueHistory {
    fn new(queue: &Queue) -> QueueHistory {
        QueueHistory {
            queue: shown(queue, false),
            observations: VecDeque::new(),
            partition_observations: Default::default(),
        }
    }

    fn observe(&mut self, seen: &Queue, with_partitions: bool, taken_us: u64) {
        let mut has_several = false;
        let mut has_none = false;
        let mut most = (0, 0);
        for consumer in &seen.consumers {
            has_several |= consumer.in_flight >= 2;
            has_none |= consumer.in_flight == 0 && consumer.credit > 0;
            if consumer.in_flight > most.1 {
                most = (consumer.connection, consumer.in_flight);
            }
        }
        if self.observations.len() == OBSERVATIONS_MAX {
            self.observations.pop_front();
        }
        self.observations.push_back(QueueObservation {
            taken_us,
            waits: seen.backlog > 0,
            idles: has_several && has_none,
            most,
        });
        let oldest_us = taken_us.saturating_sub(OBSERVATION_AGE_US_MAX);
        self.observations.retain(|it| it.taken_us >= oldest_us);
        self.queue = shown(seen, with_partitions);
        if self.queue.partitions.is_empty() {
            self.partition_observations = Default::default();
            return;
        }
        let marked_us = self.partition_observations[1].taken_us;
        if marked_us == 0 || taken_us >= marked_us.saturating_add(PARTITIONS_INTERVAL_US) {
            self.partition_observations.swap(0, 1);
            self.partition_observations[1] = PartitionsObservation {
                taken_us,
                partitions: self.queue.partitions.clone(),
            };
        }
    }

    /// Topic and subscription.
    pub(crate) fn place(&self) -> (String, String) {
        (self.queue.topic.clone(), self.queue.name.clone())
    }

    /// Share of the observations in which messages waited; 0 while there are too few observations.
    pub(crate) fn waiting_share(&self) -> f64 {
        self.share(|it| it.waits)
    }

    /// Share of the observations in which a consumer was idle while another one had several
    /// messages.
    pub(crate) fn idling_share(&self) -> f64 {
        self.share(|it| it.idles)
    }

    /// Mean number of messages of this connection's consumer, over the observations in which it had
    /// the most of all.
    pub(crate) fn held_by(&self, connection: u64) -> Option<f64> {
        let observations = self
            .observations
            .iter()
            .filter(|it| it.most.0 == connection);
        let held: Vec<u64> = observations.map(|it| it.most.1).collect();
        let sum: u64 = held.iter().sum();
        (!held.is_empty()).then(|| sum as f64 / held.len() as f64)
    }

    fn share(&self, is: impl Fn(&QueueObservation) -> bool) -> f64 {
        let count = self.observations.len();
        if count < OBSERVATIONS_MIN {
            return 0.0;
        }
        self.observations.iter().filter(|it| is(it)).count() as f64 / count as f64
    }

    /// Age of the older observation of the partitions, in microseconds.
    pub(crate) fn queue_span_us(&self) -> Option<u64> {
        let now_us = self.observations.back()?.taken_us;
        now_us
            .checked_sub(self.older_partitions()?.taken_us)
            .filter(|span_us| *span_us > 0)
    }

    /// The older of the last two observations of the partitions, if there are two.
    pub(crate) fn older_partitions(&self) -> Option<&PartitionsObservation> {
        Some(&self.partition_observations[0]).filter(|it| it.taken_us > 0)
    }
}

/// The parts of an observed queue that are kept.
fn shown(seen: &Queue, with_partitions: bool) -> Queue {
    Queue {
        topic: seen.topic.clone(),
        name: seen.name.clone(),
        protocol: seen.protocol,
        backlog: seen.backlog,
        deadline_us_max: seen.deadline_us_max,
        consumers: seen.consumers.clone(),
        partitions: if with_partitions {
            seen.partitions.clone()
        } else {
            Vec::new()
        },
    }
}

/// All queues, and which connection consumes from which.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    known: HashMap<(String, String), QueueHistory>,
}

impl Queues {
    /// Adds an observation of all queues, and drops those that no longer exist.
    pub(crate) fn observe(&mut self, seen: &[Queue], taken_us: u64) {
        let mut shown: Vec<&Queue> = seen.iter().filter(|it| !it.consumers.is_empty()).collect();
        shown.sort_by(|a, b| {
            let most = b.consumers.len().cmp(&a.consumers.len());
            most.then_with(|| (&a.topic, &a.name).cmp(&(&b.topic, &b.name)))
        });
        shown.truncate(QUEUES_MAX);
        let mut room = ALL_PARTITIONS_MAX;
        let mut known = HashMap::with_capacity(shown.len());
        for queue in shown {
            let key = (queue.topic.clone(), queue.name.clone());
            let history = self.known.remove(&key);
            let mut history = history.unwrap_or_else(|| QueueHistory::new(queue));
            let count = queue.partitions.len();
            let has_room = count <= PARTITIONS_MAX.min(room);
            room -= if has_room { count } else { 0 };
            history.observe(queue, has_room, taken_us);
            known.insert(key, history);
        }
        self.known = known;
    }

    /// Each connection's queue; `None` if it consumes from several.
    pub(crate) fn by_connection(&self) -> HashMap<u64, Option<&QueueHistory>> {
        let mut by_connection: HashMap<u64, Option<&QueueHistory>> = HashMap::new();
        for history in self.known.values() {
            for consumer in &history.queue.consumers {
                by_connection
                    .entry(consumer.connection)
                    .and_modify(|known| {
                        let is_same = known.is_some_and(|known| std::ptr::eq(known, history));
                        if !is_same {
                            *known = None;
                        }
                    })
                    .or_insert(Some(history));
            }
        }
        by_connection
    }

    /// All queues, ordered by name.
    pub(crate) fn all(&self) -> Vec<&QueueHistory> {
        let mut all: Vec<&QueueHistory> = self.known.values().collect();
        all.sort_by(|a, b| {
            let of = |it: &QueueHistory| (it.queue.topic.clone(), it.queue.name.clone());
            of(a).cmp(&of(b))
        });
        all
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use cloverleaf_telemetry::Protocol;

    use super::*;
    use crate::observation::Consumer;

    fn queue(name: &str, in_flight: &[(u64, u64)], backlog: u64) -> Queue {
        Queue {
            topic: "t".to_owned(),
            name: name.to_owned(),
            protocol: Protocol::Nsq,
            backlog,
            deadline_us_max: None,
            consumers: in_flight
                .iter()
                .map(|&(connection, in_flight)| Consumer {
                    connection,
                    credit: 10,
                    in_flight,
                    deadline_us: None,
                })
                .collect(),
            partitions: Vec::new(),
        }
    }

    #[test]
    fn looks_are_counted_and_forgotten() {
        let mut queues = Queues::default();
        for second in 1..=60 {
            let waits = u64::from(second > 45);
            queues.observe(&[queue("a", &[(1, 3), (2, 0)], waits)], second * 1_000_000);
        }
        let known = queues.all()[0];
        assert_eq!(known.idling_share(), 1.0);
        assert!((known.waiting_share() - 15.0 / 32.0).abs() < 0.01);
        queues.observe(&[queue("b", &[(1, 1), (2, 0)], 9)], 61_000_000);
        assert_eq!(queues.all().len(), 1);
        assert_eq!(queues.all()[0].waiting_share(), 0.0, "one look is none");
    }

    #[test]
    fn partitions_are_compared_once_six_seconds_have_passed() {
        let mut queues = Queues::default();
        let mut seen = queue("a", &[(1, 0)], 0);
        let mut span = |second: u64| {
            seen.partitions = vec![Partition {
                partition: 0,
                published: second,
                lag: 0,
                connection: None,
            }];
            queues.observe(std::slice::from_ref(&seen), second * 1_000_000);
            queues.all()[0].queue_span_us()
        };
        // Also for a broker that has just been started.
        let spans: Vec<_> = (1..=18).map(&mut span).collect();
        assert!(spans[..6].iter().all(Option::is_none), "{spans:?}");
        assert_eq!(spans[6], Some(6_000_000));
        assert_eq!(spans[11..13], [Some(11_000_000), Some(6_000_000)]);
    }

    /// The number of partitions in memory, and the names of the queues whose partitions are kept.
    fn kept(queues: &Queues) -> (usize, Vec<String>) {
        let mut count = 0;
        let mut names = Vec::new();
        for history in queues.all() {
            let marked = history
                .partition_observations
                .iter()
                .map(|it| it.partitions.capacity());
            count += history.queue.partitions.capacity() + marked.sum::<usize>();
            if !history.queue.partitions.is_empty() {
                names.push(history.queue.name.clone());
            }
        }
        (count, names)
    }

    #[test]
    fn partitions_of_all_queues_have_one_bound_and_those_of_a_queue_come_all_or_not() {
        let partition = |partition: u32| Partition {
            partition,
            published: 1,
            lag: 0,
            connection: None,
        };
        let group = |number: u64, consumers: u64, partitions: u32| {
            let consumers: Vec<(u64, u64)> = (0..consumers).map(|it| (number + it, 0)).collect();
            Queue {
                partitions: (0..partitions).map(partition).collect(),
                ..queue(&format!("{number:04}"), &consumers, 0)
            }
        };
        let mut queues = Queues::default();
        let mut seen: Vec<Queue> = (0..500).map(|number| group(number, 1, 1000)).collect();
        seen.push(group(9000, 3, 1024));
        seen.push(group(9001, 3, 1025));
        for second in 1..=20 {
            queues.observe(&seen, second * 1_000_000);
        }
        let (count, names) = kept(&queues);
        assert!(count <= 3 * ALL_PARTITIONS_MAX, "{count}");
        assert_eq!(names.len(), 65);
        assert_eq!(names[..2], ["0000", "0001"]);
        assert_eq!(names[64], "9000");
        // Queues with more consumers appear: the partitions of the first ones are dropped.
        let crowds = (1000..1065).map(|number| group(number, 2, 1000));
        seen.extend(crowds);
        queues.observe(&seen, 21_000_000);
        let (count, names) = kept(&queues);
        assert!(count <= 3 * ALL_PARTITIONS_MAX, "{count}");
        assert_eq!((names.len(), names[0].as_str()), (65, "1000"));
    }

    #[test]
    fn a_connection_with_several_queues_has_none_in_particular() {
        let mut queues = Queues::default();
        let seen = [
            queue("a", &[(1, 0), (1, 0), (2, 0)], 0),
            queue("b", &[(2, 0)], 0),
            queue("c", &[], 0),
        ];
        queues.observe(&seen, 1);
        let by_connection = queues.by_connection();
        assert_eq!(by_connection[&1].unwrap().queue.name, "a");
        assert!(by_connection[&2].is_none());
        assert_eq!(queues.all().len(), 2, "nobody consumes from the third");
    }
}
