//! Random actions of members, some of which crash, and the invariants that must hold all the time.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::group::{Group, GroupState};
use super::reply::{JoinAnswer, JoinRequest, SyncAnswer};
use super::tests::{REBALANCE_MS, SESSION_MS, World, join, protocol};
use crate::answer::Reply;
use crate::error_code::ErrorCode;

/// One step of a random scenario.
#[derive(Debug, Clone)]
enum Step {
    /// The client does what it has to do next.
    Act(usize),
    /// The client crashes; its next act is that of a new process.
    Crash(usize),
    Leave(usize),
    Wait(u64),
    /// The journal writes at once, or not until the next step of this kind.
    Journal(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0usize..5).prop_map(Step::Act),
        1 => (0usize..5).prop_map(Step::Crash),
        1 => (0usize..5).prop_map(Step::Leave),
        3 => prop_oneof![1u64..2_000, Just(SESSION_MS), Just(REBALANCE_MS)].prop_map(Step::Wait),
        1 => any::<bool>().prop_map(Step::Journal),
    ]
}

/// A client that follows the protocol.
#[derive(Default)]
struct Client {
    id: String,
    instance: Option<String>,
    generation: i32,
    joining: Option<Reply<JoinAnswer>>,
    syncing: Option<Reply<SyncAnswer>>,
    /// The answer to its JoinGroup, after which it sends a SyncGroup.
    joined: Option<JoinAnswer>,
    is_settled: bool,
}

impl Client {
    fn restart(&mut self) {
        *self = Self {
            instance: self.instance.take(),
            ..Self::default()
        };
    }
}

struct Scenario {
    world: World,
    clients: Vec<Client>,
    /// The leader and the protocol of each generation, as the first answer to a member had them.
    answered: BTreeMap<i32, (String, Option<String>)>,
    /// Assignments by generation and member.
    assigned: BTreeMap<(i32, String), String>,
}

impl Scenario {
    fn new(delay_ms: u64) -> Self {
        let mut world = World::new();
        world.limits.members_max = 10;
        world.limits.initial_delay_ms = delay_ms;
        let client = |n: usize| Client {
            // The first two are static members.
            instance: (n < 2).then(|| format!("i{n}")),
            ..Client::default()
        };
        Self {
            world,
            clients: (0..5).map(client).collect(),
            answered: BTreeMap::new(),
            assigned: BTreeMap::new(),
        }
    }

    fn run_step(&mut self, step: &Step) {
        match step {
            Step::Act(n) => self.act(*n),
            Step::Crash(n) => self.clients[*n].restart(),
            Step::Leave(n) => {
                let id = self.clients[*n].id.clone();
                self.world.leave(&[&id]);
                self.clients[*n].restart();
            }
            Step::Wait(ms) => self.world.advance(*ms),
            Step::Journal(works) => {
                self.world.writes = works.then_some(Ok(()));
                self.world.write();
            }
        }
        self.check();
    }

    fn act(&mut self, n: usize) {
        let client = &mut self.clients[n];
        if let Some(mut reply) = client.joining.take() {
            match reply.peek() {
                None => client.joining = Some(reply),
                Some(joined) => self.joined(n, joined),
            }
        } else if let Some(mut reply) = client.syncing.take() {
            match reply.peek() {
                None => client.syncing = Some(reply),
                Some(synced) => self.synced(n, &synced),
            }
        } else if client.joined.is_some() {
            self.sync(n);
        } else if client.is_settled {
            let (id, generation) = (client.id.clone(), client.generation);
            match self.world.heartbeat(&id, generation) {
                ErrorCode::None => {}
                ErrorCode::RebalanceInProgress => self.clients[n].is_settled = false,
                _ => self.clients[n].restart(),
            }
        } else {
            self.join(n);
        }
    }

    fn join(&mut self, n: usize) {
        let client = &self.clients[n];
        let names: &[&str] = if n.is_multiple_of(2) {
            &["a", "b"]
        } else {
            &["b", "a"]
        };
        let reply = self.world.send(JoinRequest {
            instance: client.instance.clone(),
            protocols: names.iter().map(|name| protocol(name, "")).collect(),
            needs_member_id: n != 4,
            skips_assignment: n != 3,
            ..join(&client.id)
        });
        self.clients[n].joining = Some(reply);
    }

    fn joined(&mut self, n: usize, joined: JoinAnswer) {
        match joined.error {
            ErrorCode::None => {
                let answered = (joined.leader.clone(), joined.protocol.clone());
                let first = self
                    .answered
                    .entry(joined.generation)
                    .or_insert(answered.clone());
                // A static leader that has restarted has another id, so leaders are not compared.
                assert!(joined.members.is_empty() || joined.leader == joined.member_id);
                assert_eq!(first.1, answered.1, "one protocol per generation");
                let client = &mut self.clients[n];
                client.id = joined.member_id.clone();
                client.generation = joined.generation;
                client.joined = Some(joined);
            }
            ErrorCode::MemberIdRequired => self.clients[n].id = joined.member_id,
            ErrorCode::RebalanceInProgress => {}
            ErrorCode::UnknownMemberId | ErrorCode::FencedInstanceId => self.clients[n].restart(),
            // Crashed members count as members until their sessions expire.
            ErrorCode::GroupMaxSizeReached => self.clients[n].restart(),
            error => panic!("{error:?}"),
        }
    }

    fn sync(&mut self, n: usize) {
        let client = &mut self.clients[n];
        let joined = client.joined.take().unwrap();
        let gives: Vec<(String, String)> = match joined.skip_assignment {
            true => Vec::new(),
            false => {
                let members = joined.members.iter();
                members
                    .map(|m| (m.id.clone(), format!("{}@{}", m.id, joined.generation)))
                    .collect()
            }
        };
        let pairs: Vec<(&str, &str)> = gives.iter().map(|(a, b)| (&**a, &**b)).collect();
        let reply = self.world.sync(&client.id, joined.generation, &pairs);
        self.clients[n].syncing = Some(reply);
    }

    fn synced(&mut self, n: usize, synced: &SyncAnswer) {
        let client = &mut self.clients[n];
        match synced.error {
            ErrorCode::None => {
                client.is_settled = true;
                let what = String::from_utf8(synced.assignment.to_vec()).unwrap();
                let key = (client.generation, client.id.clone());
                let known = self.assigned.entry(key).or_insert(what.clone());
                assert_eq!(
                    *known, what,
                    "an assignment does not change within a generation"
                );
            }
            ErrorCode::RebalanceInProgress => {}
            _ => client.restart(),
        }
    }

    /// Checks the invariants, which hold at any time.
    fn check(&self) {
        let group = &self.world.group;
        let waiting = group
            .members
            .values()
            .filter(|member| member.joining.is_some());
        assert_eq!(waiting.count(), group.joining());
        assert_eq!(
            group.leader.is_some(),
            !group.members.is_empty(),
            "one leader"
        );
        if let Some(leader) = &group.leader {
            assert!(group.members.contains_key(leader));
        }
        for (instance, id) in &group.static_ids {
            assert_eq!(group.members[id].instance.as_ref(), Some(instance));
        }
        for id in &group.unsynced {
            assert!(group.members.contains_key(id));
        }
        let ends = match group.state() {
            GroupState::Empty | GroupState::Dead => true,
            GroupState::PreparingRebalance => {
                assert!(
                    group
                        .members
                        .values()
                        .all(|member| member.syncing.is_none())
                );
                group.join_timer.is_some()
            }
            GroupState::CompletingRebalance => {
                group.sync_due_ms.is_some() || !group.pending_writes.is_empty() || {
                    // All members have sent their SyncGroup, also the leader: the write is in
                    // progress.
                    group.unsynced.is_empty()
                }
            }
            GroupState::Stable => group
                .members
                .values()
                .all(|member| member.session_due_ms.is_some() || member.joining.is_some()),
        };
        assert!(ends, "something must end {:?}", group.state());
        let mut again = Group::new("g".into(), 0);
        for member in group.members.values() {
            again.bytes_for_test(member);
        }
        for id in group.pending.keys() {
            again.add_pending(id.clone(), 0);
        }
        assert_eq!(again.bytes(), group.bytes(), "bytes are counted right");
    }

    /// All clients go on and none crashes: the group must become stable with all of them.
    fn run_to_stable(&mut self) {
        self.run_step(&Step::Journal(true));
        for _ in 0..400 {
            for n in 0..self.clients.len() {
                self.run_step(&Step::Act(n));
            }
            self.run_step(&Step::Wait(500));
        }
        assert_eq!(self.world.group.state(), GroupState::Stable);
        assert!(
            self.clients.iter().all(|client| client.is_settled),
            "nobody is owed an answer"
        );
        let generation = self.world.group.generation;
        assert!(
            self.clients
                .iter()
                .all(|client| client.generation == generation)
        );
        assert_eq!(self.world.group.members.len(), self.clients.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_random_scenario_ends_in_a_stable_group(steps in prop::collection::vec(step(), 0..150),
                          delay_ms in prop_oneof![Just(0u64), Just(3_000)]) {
        let mut scenario = Scenario::new(delay_ms);
        for step in &steps {
            scenario.run_step(step);
        }
        scenario.run_to_stable();
    }

    #[test]
    fn stored_groups_are_read_as_they_were_written(
        steps in prop::collection::vec(step(), 0..80),
        cut in any::<prop::sample::Index>(),
        flip in any::<u8>(),
    ) {
        let mut scenario = Scenario::new(0);
        for step in &steps {
            scenario.run_step(step);
        }
        scenario.run_to_stable();
        let stored = scenario.world.group.encode(None);
        let again = Group::decode("g".into(), &stored).unwrap();
        prop_assert_eq!(again.encode(None), stored.clone());
        prop_assert_eq!(again.bytes(), scenario.world.group.bytes());
        let at = cut.index(stored.len());
        prop_assert!(Group::decode("g".into(), &stored[..at]).is_err());
        let mut changed = stored;
        changed[at] ^= flip;
        super::is_stored_group(&changed);
    }

    #[test]
    fn arbitrary_bytes_are_no_group(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Some(first) = bytes.first_mut() {
            *first = 1;
        }
        super::is_stored_group(&bytes);
    }
}
