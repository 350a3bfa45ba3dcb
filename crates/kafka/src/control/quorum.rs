//! DescribeQuorum: the metadata quorum. It has one voter, this node, which stores the definitions
//! in its state journal.

use kafka_protocol::messages::DescribeQuorumResponse;
use kafka_protocol::messages::describe_quorum_response::{
    Listener, Node, PartitionData, ReplicaState, TopicData,
};

use crate::answer::{Answer, body};
use crate::error_code::ErrorCode;
use crate::wire::Malformed;

use super::ControlCall;
use super::advertised::Advertised;
use super::names::{text, topic_name};

/// Kafka's name of the metadata log.
const TOPIC: &str = "__cluster_metadata";
const PARTITION: i32 = 0;

/// The first version with the last caught-up time of a replica (KIP-836), and the first with nodes
/// and directory ids (KIP-853).
const TIMES_FROM: i16 = 1;
const NODES_FROM: i16 = 2;

pub(super) fn describe(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let reader = &mut call.body;
    let wanted = reader.array(|reader| {
        let name = reader.string()?;
        let partitions = reader.array(|reader| {
            let index = reader.i32()?;
            reader.skip_tagged()?;
            Ok(index)
        })?;
        reader.skip_tagged()?;
        Ok((name, partitions))
    })?;
    reader.skip_tagged()?;
    // As in Kafka: a request for anything but this one partition gets an error for each partition.
    let is_ours = wanted.len() == 1 && wanted[0].0 == TOPIC && wanted[0].1 == [PARTITION];
    let partition = |index: i32| {
        if is_ours {
            leader(&call).with_partition_index(index)
        } else {
            PartitionData::default()
                .with_partition_index(index)
                .with_error_message(None)
                .with_error_code(ErrorCode::UnknownTopicOrPartition.code())
        }
    };
    let topics = wanted.iter().map(|(name, partitions)| {
        TopicData::default()
            .with_topic_name(topic_name(name))
            .with_partitions(partitions.iter().copied().map(partition).collect())
    });
    let mut response = DescribeQuorumResponse::default()
        .with_error_message(None)
        .with_topics(topics.collect());
    if is_ours && call.version >= NODES_FROM {
        let Advertised { host, port } = Advertised::to(call.context, call.peer);
        let listener = Listener::default()
            .with_name(text(if call.peer.tls { "SSL" } else { "PLAINTEXT" }))
            .with_host(text(&host))
            .with_port(u16::try_from(port).unwrap_or_default());
        let node = Node::default()
            .with_node_id(call.context.options.node_id.into())
            .with_listeners(vec![listener]);
        response = response.with_nodes(vec![node]);
    }
    Ok(Answer::Ready(body(&response, call.version)))
}

/// The only voter, which is the leader and always caught up. Its log end offset counts the changes
/// of definitions since the start.
fn leader(call: &ControlCall<'_>) -> PartitionData {
    let context = call.context;
    let node_id = context.options.node_id.into();
    let end = i64::try_from(context.realm.generation()).unwrap_or(i64::MAX);
    let mut replica = ReplicaState::default()
        .with_replica_id(node_id)
        .with_log_end_offset(end);
    if call.version >= TIMES_FROM {
        let now_ms = i64::try_from(call.now.unix_us / 1000).unwrap_or(i64::MAX);
        replica = replica.with_last_caught_up_timestamp(now_ms);
    }
    if call.version >= NODES_FROM {
        replica = replica.with_replica_directory_id(context.realm.cluster_id());
    }
    PartitionData::default()
        .with_error_message(None)
        .with_leader_id(node_id)
        .with_leader_epoch(super::LEADER_EPOCH)
        .with_high_watermark(end)
        .with_current_voters(vec![replica])
}
