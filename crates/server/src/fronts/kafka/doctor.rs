//! Kafka's consumer groups for the doctor: lag and readers of each partition.
//!
//! A member joins on one connection and fetches on another one. The connection is found by the
//! partitions that it reads, its address and the client ID. If several fit, as with programs on one
//! machine that share a client ID, one of them is taken: to the doctor they are one client.
//!
//! Work and memory of each check are bounded: if groups read more partitions than the bound, the
//! smaller groups are left out, each topic of a group as a whole.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use cloverleaf_broker::Topic;
use cloverleaf_doctor::{ALL_PARTITIONS_MAX, Consumer, PARTITIONS_MAX, Partition, Queue};
use cloverleaf_kafka::groups::{GroupSnapshot, MemberSnapshot};
use cloverleaf_kafka::{FetchedPartition, KafkaContext};
use cloverleaf_telemetry::{ConnectionSnapshot, Identity, Protocol};
use uuid::Uuid;

use crate::context::ServerContext;

/// Maximum topics of a group that are checked, in order of their names.
const TOPICS_MAX: usize = 256;

/// Maximum partitions read by all connections together that are looked up.
const READINGS_MAX: usize = 2 * ALL_PARTITIONS_MAX;

/// Maximum partitions of a member by which its connection is searched.
const ASSIGNED_MAX: usize = 64;

/// A message counts as waiting if it was not fetched during this many checks of the doctor after it
/// came. A younger one may be on its way: a reader's position is up to a second old.
const CHECKS: usize = 3;

/// The ends of partitions at the doctor's last checks.
#[derive(Debug, Default)]
pub(crate) struct PartitionEnds {
    check: u64,
    by_partition: HashMap<(Uuid, u32), RecentEnds>,
}

#[derive(Debug, Default)]
struct RecentEnds {
    check: u64,
    ends: VecDeque<u64>,
}

impl PartitionEnds {
    /// Begins a new check. Partitions that the last one did not see are dropped.
    fn begin(&mut self) {
        let last = self.check;
        self.by_partition.retain(|_, known| known.check == last);
        self.check += 1;
    }

    /// The end of a partition [`CHECKS`] checks ago; `end`, the current one, while that is not
    /// known.
    fn before(&mut self, key: (Uuid, u32), end: u64) -> u64 {
        let known = self.by_partition.entry(key).or_default();
        if known.check != self.check {
            known.check = self.check;
            known.ends.push_back(end);
            if known.ends.len() > CHECKS + 1 {
                known.ends.pop_front();
            }
        }
        match known.ends.front() {
            Some(before) if known.ends.len() > CHECKS => *before,
            _ => end,
        }
    }
}

/// A queue for the doctor for each group and topic. `ends` has the partitions' ends of earlier
/// checks.
pub(super) fn queues(
    kafka: &KafkaContext,
    context: &ServerContext,
    connections: &[ConnectionSnapshot],
    ends: &mut PartitionEnds,
) -> Vec<Queue> {
    ends.begin();
    let groups = kafka.groups.snapshots();
    if groups.is_empty() {
        return Vec::new();
    }
    let chosen = choose(&groups, |name| {
        let topic = context.broker.topic(name)?;
        let partitions = topic.partition_count() as usize;
        Some((topic, partitions))
    });
    let topics = chosen.iter().flat_map(|(_, topics)| topics.values());
    let topics: HashSet<Uuid> = topics.map(|topic| topic.id()).collect();
    let mut clients = ClientConnections::new(connections, kafka.readers.list(), &topics);
    let queues = chosen
        .iter()
        .flat_map(|(group, topics)| group_queues(context, group, topics, &mut clients, ends));
    queues.collect()
}

/// The topics of a group that are checked, by name.
type CheckedTopics<'a, T> = BTreeMap<&'a str, T>;

/// The groups and topics whose partitions fit into the bound; groups with most members first.
/// `find` looks up a topic and its number of partitions.
fn choose<T>(
    groups: &[GroupSnapshot],
    find: impl Fn(&str) -> Option<(T, usize)>,
) -> Vec<(&GroupSnapshot, CheckedTopics<'_, T>)> {
    let mut sorted: Vec<&GroupSnapshot> = groups.iter().collect();
    sorted.sort_by_key(|group| Reverse(group.members.len()));
    let mut left = ALL_PARTITIONS_MAX;
    let mut chosen = Vec::new();
    for group in sorted {
        if left == 0 {
            break;
        }
        let members = group.members.iter();
        let names: BTreeSet<&str> = members
            .flat_map(|member| {
                let assigned = member.partitions.iter().map(|(name, _)| name);
                assigned.chain(&member.topics).map(String::as_str)
            })
            .collect();
        let mut topics = CheckedTopics::new();
        for name in names.into_iter().take(TOPICS_MAX) {
            let Some((topic, partitions)) = find(name) else {
                continue;
            };
            if partitions <= left.min(PARTITIONS_MAX) {
                left -= partitions;
                topics.insert(name, topic);
            }
        }
        if !topics.is_empty() {
            chosen.push((group, topics));
        }
    }
    chosen
}

/// Address and client ID: a member and its connections have them in common.
type ClientKey = (IpAddr, String);

/// The connections of Kafka's clients.
struct ClientConnections {
    /// Connections that read a partition, without those already matched with a member.
    readers: HashMap<(Uuid, u32, ClientKey), Vec<u64>>,
    /// All connections of a client, without those already matched with a member.
    all: HashMap<ClientKey, Vec<u64>>,
    offsets: HashMap<(u64, Uuid, u32), u64>,
    taken: HashSet<u64>,
}

impl ClientConnections {
    /// Counts only partitions of these topics.
    fn new(
        connections: &[ConnectionSnapshot],
        mut readers: Vec<(u64, Arc<[FetchedPartition]>)>,
        topics: &HashSet<Uuid>,
    ) -> ClientConnections {
        let mut all: HashMap<ClientKey, Vec<u64>> = HashMap::new();
        let mut names: HashMap<u64, ClientKey> = HashMap::new();
        // The oldest connections come last and are taken first, so that each check chooses the same
        // ones.
        for connection in connections.iter().rev() {
            if connection.protocol == Protocol::Kafka {
                let address = connection.peer.ip().to_canonical();
                let client_key = (address, connection.identity.client_id.clone());
                names.insert(connection.id, client_key.clone());
                all.entry(client_key).or_default().push(connection.id);
            }
        }
        let mut by_partition: HashMap<(Uuid, u32, ClientKey), Vec<u64>> = HashMap::new();
        let mut offsets = HashMap::new();
        // Oldest connections first, so that each check covers the same ones if the bound is too
        // small for all.
        readers.sort_unstable_by_key(|(connection, _)| *connection);
        for (connection, readings) in readers {
            let Some(client_key) = names.get(&connection) else {
                continue;
            };
            let of_topics = readings.iter().filter(|it| topics.contains(&it.topic));
            let left = READINGS_MAX.saturating_sub(offsets.len());
            for reading in of_topics.take(left) {
                let key = (reading.topic, reading.partition, client_key.clone());
                by_partition.entry(key).or_default().push(connection);
                offsets.insert(
                    (connection, reading.topic, reading.partition),
                    reading.offset,
                );
            }
        }
        for connections in by_partition.values_mut() {
            connections.sort_unstable_by(|a, b| b.cmp(a));
        }
        ClientConnections {
            readers: by_partition,
            all,
            offsets,
            taken: HashSet::new(),
        }
    }

    /// The connection on which a member fetches; if unknown, another connection of its client.
    fn of_member(&mut self, client_key: &ClientKey, assigned: &[(Uuid, u32)]) -> Option<u64> {
        let mut found = None;
        for (topic, partition) in assigned {
            let Some(readers) = self
                .readers
                .get_mut(&(*topic, *partition, client_key.clone()))
            else {
                continue;
            };
            found = last_free(readers, &self.taken);
            if found.is_some() {
                break;
            }
        }
        let found = found.or_else(|| last_free(self.all.get_mut(client_key)?, &self.taken))?;
        self.taken.insert(found);
        Some(found)
    }

    fn offset(&self, connection: u64, topic: Uuid, partition: u32) -> Option<u64> {
        self.offsets.get(&(connection, topic, partition)).copied()
    }
}

/// Takes the last connection that is not matched with a member yet.
fn last_free(connections: &mut Vec<u64>, taken: &HashSet<u64>) -> Option<u64> {
    std::iter::from_fn(|| connections.pop()).find(|connection| !taken.contains(connection))
}

/// Members of a group that read a topic, each with its connection and its partitions.
type TopicReaders<'a> = BTreeMap<&'a str, Vec<(u64, &'a [u32])>>;

fn group_queues(
    context: &ServerContext,
    group: &GroupSnapshot,
    topics: &CheckedTopics<'_, Arc<Topic>>,
    clients: &mut ClientConnections,
    ends: &mut PartitionEnds,
) -> Vec<Queue> {
    let mut readers = TopicReaders::new();
    for member in &group.members {
        let mut assigned = Vec::new();
        let mut is_shown = member
            .topics
            .iter()
            .any(|name| topics.contains_key(&**name));
        for (name, partitions) in &member.partitions {
            if let Some(topic) = topics.get(&**name) {
                let left = ASSIGNED_MAX - assigned.len();
                let partitions = partitions.iter().take(left);
                assigned.extend(partitions.map(|partition| (topic.id(), *partition)));
                is_shown = true;
            }
        }
        if !is_shown {
            continue;
        }
        let Some(connection) =
            client_key(member).and_then(|client_key| clients.of_member(&client_key, &assigned))
        else {
            continue;
        };
        for name in member.topics.iter() {
            readers.entry(name).or_default().push((connection, &[]));
        }
        for (name, partitions) in &member.partitions {
            let of_topic = readers.entry(name).or_default();
            // The loop above may have pushed it without partitions.
            of_topic.pop_if(|(last, _)| *last == connection);
            of_topic.push((connection, partitions));
        }
    }
    let committed = context.broker.committed_places(&group.name);
    let queues = readers.iter().filter_map(|(name, readers)| {
        let topic = topics.get(name)?;
        let seen = (&committed, &*clients, &mut *ends);
        Some(queue(&group.name, topic, readers, seen))
    });
    queues.collect()
}

/// Address and client ID of a member, shortened as in telemetry.
fn client_key(member: &MemberSnapshot) -> Option<ClientKey> {
    let address: IpAddr = member.host.strip_prefix('/')?.parse().ok()?;
    let name = Identity {
        client_id: member.client_id.clone(),
        ..Identity::default()
    };
    Some((address, name.shortened().client_id))
}

fn queue(
    group: &str,
    topic: &Topic,
    readers: &[(u64, &[u32])],
    (committed, clients, ends): (
        &HashMap<(Uuid, u32), u64>,
        &ClientConnections,
        &mut PartitionEnds,
    ),
) -> Queue {
    let id = topic.id();
    let mut owners: HashMap<u32, u64> = HashMap::new();
    for (connection, partitions) in readers {
        owners.extend(partitions.iter().map(|partition| (*partition, *connection)));
    }
    let mut backlog = 0u64;
    let mut partitions = Vec::new();
    for (partition, log) in (0u32..).zip(topic.partitions().iter()).take(PARTITIONS_MAX) {
        let end = log.written_end();
        let committed = committed.get(&(id, partition)).copied();
        let connection = owners.get(&partition).copied();
        let read = connection.and_then(|it| clients.offset(it, id, partition));
        // Messages that a client has fetched do not wait here, even if they are not committed yet.
        if let Some(from) = committed.max(read) {
            let before = ends.before((id, partition), end);
            let waits = before.saturating_sub(from).min(log.lag_from(from));
            backlog = backlog.saturating_add(waits);
        }
        partitions.push(Partition {
            partition,
            published: end,
            // A group that has committed nothing may want all messages or only new ones. All are
            // assumed: then the first commit can only lower the lag, and a falling lag is no
            // finding.
            lag: log.lag_from(committed.unwrap_or(0)),
            connection,
        });
    }
    let consumer = |(connection, _): &(u64, &[u32])| Consumer {
        connection: *connection,
        credit: u64::MAX,
        in_flight: 0,
        deadline_us: None,
    };
    Queue {
        topic: topic.name().to_owned(),
        name: group.to_owned(),
        protocol: Protocol::Kafka,
        backlog,
        deadline_us_max: None,
        consumers: readers.iter().map(consumer).collect(),
        partitions,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use cloverleaf_telemetry::{Probe, Registry};

    use super::*;

    const TOPIC: Uuid = Uuid::from_u128(7);

    fn open(registry: &Registry, address: [u8; 4], client_id: &str) -> Probe {
        let probe = registry.open(Protocol::Kafka, (address, 1).into(), 1);
        probe.identify(Identity {
            client_id: client_id.to_owned(),
            ..Identity::default()
        });
        probe
    }

    fn reads(probe: &Probe, partitions: &[u32]) -> (u64, Arc<[FetchedPartition]>) {
        let reading = |partition: &u32| FetchedPartition {
            topic: TOPIC,
            partition: *partition,
            offset: 3,
        };
        (probe.id(), partitions.iter().map(reading).collect())
    }

    fn key_of(address: [u8; 4], client_id: &str) -> ClientKey {
        (address.into(), client_id.to_owned())
    }

    #[test]
    fn a_member_is_the_connection_that_reads_its_partitions() {
        let registry = Registry::new();
        let here = [10, 0, 0, 1];
        let names = ["a", "a", "a", "b"];
        let probes = names.map(|name| open(&registry, here, name));
        let far = open(&registry, [10, 0, 0, 2], "a");
        let connections = registry.snapshot(2, |_| None).connections;
        let readers = vec![
            reads(&probes[1], &[0, 1]),
            reads(&probes[2], &[2]),
            reads(&probes[3], &[0]),
            reads(&far, &[2]),
        ];
        let mut clients = ClientConnections::new(&connections, readers, &HashSet::from([TOPIC]));
        let a = key_of(here, "a");
        assert_eq!(
            clients.of_member(&a, &[(TOPIC, 9), (TOPIC, 2)]),
            Some(probes[2].id())
        );
        assert_eq!(clients.of_member(&a, &[(TOPIC, 0)]), Some(probes[1].id()));
        assert_eq!(clients.offset(probes[1].id(), TOPIC, 1), Some(3));
        // This member reads nothing: it gets the connection that is left.
        assert_eq!(clients.of_member(&a, &[]), Some(probes[0].id()));
        assert_eq!(
            clients.of_member(&a, &[(TOPIC, 2)]),
            None,
            "no other is left"
        );
        assert_eq!(clients.of_member(&key_of(here, "c"), &[(TOPIC, 0)]), None);
    }

    #[test]
    fn new_messages_do_not_count_as_waiting() {
        let mut ends = PartitionEnds::default();
        let key = (TOPIC, 0);
        let mut check = |end| {
            ends.begin();
            // Two groups read the partition: both get the same end.
            let first = ends.before(key, end);
            assert_eq!(ends.before(key, end), first);
            first
        };
        let seen: Vec<u64> = [10, 20, 30, 40, 50].map(&mut check).to_vec();
        assert_eq!(seen, [10, 20, 30, 10, 20]);
        // No group reads it for one check: its history starts again.
        ends.begin();
        ends.begin();
        assert_eq!(ends.before(key, 90), 90);
        assert_eq!(ends.by_partition.len(), 1);
    }

    #[test]
    fn thousands_of_clients_with_one_name_each_get_a_connection() {
        let registry = Registry::new();
        let here = [10, 0, 0, 1];
        let probes: Vec<Probe> = (0..10_000).map(|_| open(&registry, here, "a")).collect();
        let connections = registry.snapshot(2, |_| None).connections;
        // Half of them read the same partition, as members of many groups do.
        let readers = probes.iter().step_by(2).map(|probe| reads(probe, &[0]));
        let mut clients =
            ClientConnections::new(&connections, readers.collect(), &HashSet::from([TOPIC]));
        let a = key_of(here, "a");
        let found: HashSet<u64> = (0..10_000)
            .filter_map(|_| clients.of_member(&a, &[(TOPIC, 0)]))
            .collect();
        assert_eq!(found.len(), 10_000);
    }
    fn group(name: &str, members: usize, topics: &[&str]) -> GroupSnapshot {
        let member = MemberSnapshot {
            client_id: name.to_owned(),
            host: "/10.0.0.1".to_owned(),
            topics: topics.iter().map(|it| (*it).to_owned()).collect(),
            partitions: Vec::new(),
        };
        GroupSnapshot {
            name: name.into(),
            members: vec![member; members],
        }
    }

    #[test]
    fn the_partitions_of_all_groups_have_a_bound() {
        let partitions = |name: &str| match name {
            "wide" => Some(1000),
            "too wide" => Some(PARTITIONS_MAX + 1),
            "narrow" => Some(3),
            _ => None,
        };
        let names: Vec<String> = (0..10_000).map(|it| format!("{it:05}")).collect();
        let mut groups: Vec<GroupSnapshot> = names
            .iter()
            .map(|name| group(name, 1, &["wide", "gone"]))
            .collect();
        groups.push(group("two", 2, &["narrow", "too wide", "wide"]));
        let chosen = choose(&groups, |name| Some(((), partitions(name)?)));
        let topics = |at: usize| chosen[at].1.keys().copied().collect::<Vec<_>>();
        assert_eq!(
            (&*chosen[0].0.name, topics(0)),
            ("two", vec!["narrow", "wide"])
        );
        assert_eq!((&*chosen[1].0.name, topics(1)), ("00000", vec!["wide"]));
        let all = chosen.iter().flat_map(|(_, topics)| topics.keys());
        let all: usize = all.filter_map(|name| partitions(name)).sum();
        assert!(
            all <= ALL_PARTITIONS_MAX && all > ALL_PARTITIONS_MAX - 1000,
            "{all}"
        );
    }

    #[test]
    fn the_partitions_read_by_connections_have_a_bound() {
        let registry = Registry::new();
        let probes: Vec<Probe> = (0..300)
            .map(|_| open(&registry, [10, 0, 0, 1], "a"))
            .collect();
        let connections = registry.snapshot(2, |_| None).connections;
        let all: Vec<u32> = (0..1000).collect();
        let readers = probes.iter().map(|probe| reads(probe, &all)).collect();
        let clients = ClientConnections::new(&connections, readers, &HashSet::from([TOPIC]));
        assert_eq!(clients.offsets.len(), READINGS_MAX);
        assert_eq!(clients.offset(probes[0].id(), TOPIC, 999), Some(3));
        let read: usize = clients.readers.values().map(Vec::len).sum();
        assert_eq!(read, READINGS_MAX);
        // Readings of other topics are not kept.
        let readers = vec![reads(&probes[0], &all)];
        let clients = ClientConnections::new(&connections, readers, &HashSet::new());
        assert!(clients.offsets.is_empty());
    }
}
