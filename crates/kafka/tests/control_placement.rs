//! Leader elections, reassignments, log directories and the metadata quorum: the answers of a
//! single node, in every version.

use cloverleaf_broker::TopicOptions;
use kafka_protocol::messages::alter_partition_reassignments_request as reassign;
use kafka_protocol::messages::alter_replica_log_dirs_request as move_to;
use kafka_protocol::messages::describe_quorum_request as quorum;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterReplicaLogDirsRequest, BrokerId,
    DescribeQuorumRequest, ElectLeadersRequest,
};
use uuid::Uuid;

use crate::control_world::{World, name, text, versions};

const NONE: i16 = 0;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const INVALID_REPLICA_ASSIGNMENT: i16 = 39;
const INVALID_REQUEST: i16 = 42;
const LOG_DIR_NOT_FOUND: i16 = 57;
const ELECTION_NOT_NEEDED: i16 = 84;
const NO_REASSIGNMENT_IN_PROGRESS: i16 = 85;

/// A broker with the topic `t` of two partitions.
fn world() -> World {
    let world = World::new();
    let options = || TopicOptions {
        partitions: 2,
        ..TopicOptions::default()
    };
    world.broker.topic_or_create("t", options).unwrap();
    world
}

#[test]
fn no_leader_has_to_be_elected() {
    let world = world();
    let elect = |version, kind, of: Option<&[(&str, Vec<i32>)]>| {
        let one = |(topic, partitions): &(&str, Vec<i32>)| {
            TopicPartitions::default()
                .with_topic(name(topic))
                .with_partitions(partitions.clone())
        };
        let request = ElectLeadersRequest::default()
            .with_topic_partitions(of.map(|of| of.iter().map(one).collect()));
        let request = match version {
            0 => request,
            _ => request.with_election_type(kind),
        };
        let response = world.ask(version, &request);
        let results = response.replica_election_results.iter().map(|topic| {
            let partitions = topic.partition_result.iter();
            let partitions = partitions.map(|it| (it.partition_id, it.error_code));
            (topic.topic.to_string(), partitions.collect::<Vec<_>>())
        });
        (response.error_code, results.collect::<Vec<_>>())
    };
    for version in versions::<ElectLeadersRequest>() {
        for kind in [0, 1] {
            let some = [("t", vec![1, 0, 2]), ("nowhere", vec![0])];
            let (error, found) = elect(version, kind, Some(&some));
            assert_eq!(error, NONE);
            let of_t = vec![
                (1, ELECTION_NOT_NEEDED),
                (0, ELECTION_NOT_NEEDED),
                (2, UNKNOWN_TOPIC_OR_PARTITION),
            ];
            let of_nowhere = vec![(0, UNKNOWN_TOPIC_OR_PARTITION)];
            let expect = [("t".to_owned(), of_t), ("nowhere".to_owned(), of_nowhere)];
            assert_eq!(found, expect);
            // A request for all topics lists them without partitions, because none needs an
            // election.
            let all = vec![("t".to_owned(), Vec::new())];
            assert_eq!(elect(version, kind, None), (NONE, all));
        }
    }
    let (error, found) = elect(2, 7, Some(&[("t", vec![0])]));
    assert_eq!(error, INVALID_REQUEST);
    assert_eq!(found, [("t".to_owned(), vec![(0, INVALID_REQUEST)])]);
}

#[test]
fn only_the_current_replica_is_a_valid_reassignment() {
    let world = world();
    for version in versions::<AlterPartitionReassignmentsRequest>() {
        for (topic, index, replicas, expect) in [
            ("t", 0, Some(vec![1]), NONE),
            ("t", 1, None, NO_REASSIGNMENT_IN_PROGRESS),
            ("t", 0, Some(vec![]), INVALID_REPLICA_ASSIGNMENT),
            ("t", 0, Some(vec![2]), INVALID_REPLICA_ASSIGNMENT),
            ("t", 0, Some(vec![1, 2]), INVALID_REPLICA_ASSIGNMENT),
            ("t", 0, Some(vec![1, 1]), INVALID_REPLICA_ASSIGNMENT),
            ("t", 2, Some(vec![1]), UNKNOWN_TOPIC_OR_PARTITION),
            ("nowhere", 0, None, UNKNOWN_TOPIC_OR_PARTITION),
        ] {
            let replicas = replicas.map(|ids| ids.into_iter().map(BrokerId).collect());
            let partition = reassign::ReassignablePartition::default()
                .with_partition_index(index)
                .with_replicas(replicas);
            let topic = reassign::ReassignableTopic::default()
                .with_name(name(topic))
                .with_partitions(vec![partition]);
            let request = AlterPartitionReassignmentsRequest::default().with_topics(vec![topic]);
            let response = world.ask(version, &request);
            assert_eq!((response.error_code, response.error_message), (NONE, None));
            let found = &response.responses[0].partitions[0];
            assert_eq!((found.partition_index, found.error_code), (index, expect));
            assert_eq!(found.error_message.is_none(), expect == NONE);
        }
    }
}

#[test]
fn replicas_cannot_move_to_another_folder() {
    let world = world();
    for version in versions::<AlterReplicaLogDirsRequest>() {
        let one = |path: &str| {
            let topic = |topic: &str, partitions| {
                move_to::AlterReplicaLogDirTopic::default()
                    .with_name(name(topic))
                    .with_partitions(partitions)
            };
            move_to::AlterReplicaLogDir::default()
                .with_path(text(path))
                .with_topics(vec![topic("t", vec![0, 2]), topic("nowhere", vec![0])])
        };
        let dirs = vec![one("cloverleaf-data"), one("/elsewhere")];
        let response = world.ask(
            version,
            &AlterReplicaLogDirsRequest::default().with_dirs(dirs),
        );
        let found: Vec<Vec<i16>> = response
            .results
            .iter()
            .map(|topic| topic.partitions.iter().map(|it| it.error_code).collect())
            .collect();
        let expect = [
            vec![NONE, UNKNOWN_TOPIC_OR_PARTITION],
            vec![UNKNOWN_TOPIC_OR_PARTITION],
            vec![LOG_DIR_NOT_FOUND; 2],
            vec![LOG_DIR_NOT_FOUND],
        ];
        assert_eq!(found, expect);
    }
}

#[test]
fn the_quorum_is_one_voter_that_is_caught_up() {
    let world = world();
    let ask = |version, topic: &str, index| {
        let partition = quorum::PartitionData::default().with_partition_index(index);
        let topic = quorum::TopicData::default()
            .with_topic_name(name(topic))
            .with_partitions(vec![partition]);
        world.ask(
            version,
            &DescribeQuorumRequest::default().with_topics(vec![topic]),
        )
    };
    for version in versions::<DescribeQuorumRequest>() {
        let response = ask(version, "__cluster_metadata", 0);
        assert_eq!(response.error_code, NONE);
        let found = &response.topics[0].partitions[0];
        assert_eq!((found.error_code, found.leader_id.0), (NONE, 1));
        assert!(found.high_watermark > 0, "a topic was made");
        assert!(found.observers.is_empty());
        let [voter] = &found.current_voters[..] else {
            panic!("{:?}", found.current_voters);
        };
        assert_eq!(voter.replica_id.0, 1);
        assert_eq!(voter.log_end_offset, found.high_watermark);
        let now_ms = (world.now().unix_us / 1000) as i64;
        let times = (voter.last_fetch_timestamp, voter.last_caught_up_timestamp);
        match version {
            0 => assert_eq!(times, (-1, -1)),
            _ => assert_eq!(times, (-1, now_ms)),
        }
        if version >= 2 {
            assert_ne!(voter.replica_directory_id, Uuid::nil());
            let listener = &response.nodes[0].listeners[0];
            assert_eq!((listener.host.as_str(), listener.port), ("127.0.0.2", 9092));
        }
        for (topic, index) in [("__cluster_metadata", 1), ("t", 0)] {
            let response = ask(version, topic, index);
            let found = &response.topics[0].partitions[0];
            assert_eq!(found.error_code, UNKNOWN_TOPIC_OR_PARTITION);
        }
    }
}
