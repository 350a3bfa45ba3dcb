//! The control plane: everything but Produce, Fetch and ApiVersions.
//!
//! Each file has the requests about one subject: their decoding, their execution and their answers.

pub(crate) mod advertised;
mod alter_configs;
mod alter_dynamic;
mod client_metrics;
mod cluster;
mod configs;
mod coordinator;
mod create_partitions;
mod create_topics;
mod delete_records;
mod delete_topics;
mod dynamic_settings;
mod group_tools;
mod groups;
mod leader_epochs;
mod list_configs;
mod list_offsets;
mod log_dirs;
mod metadata;
pub(crate) mod names;
mod offsets;
mod otlp;
mod placement;
mod producer_ids;
mod producers;
mod quorum;
mod replicas;
pub(crate) mod settings;
mod telemetry;
mod topic_partitions;
mod topic_settings;
pub(crate) mod topics;
mod unsupported;

use std::net::SocketAddr;
use std::sync::Arc;

use cloverleaf_session::Now;
use cloverleaf_telemetry::Probe;

use crate::answer::Answer;
use crate::apis::Api;
use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use crate::wire::{Malformed, Reader};

pub use client_metrics::{ClientMetrics, MetricValue, PushedMetrics};
pub(crate) use dynamic_settings::DynamicSettings;
pub use producer_ids::ProducerIds;
pub use settings::SettingRefused;
pub use topic_settings::{change_topic_settings, topic_defaults, topic_settings};

/// The leader epoch of every partition. It never changes, because the only broker is always the
/// leader.
pub(crate) const LEADER_EPOCH: i32 = 0;

/// The connection that a request came on.
#[derive(Debug, Clone)]
pub struct ConnectionPeer {
    /// The client's address.
    pub remote: SocketAddr,
    /// The address that the client has connected to.
    pub local: SocketAddr,
    /// Whether the connection is over TLS.
    pub tls: bool,
    /// Name and version of the client's software, from ApiVersions (KIP-511).
    pub software: Option<(String, String)>,
}

/// A request of the control plane.
pub(crate) struct ControlCall<'a> {
    pub(crate) context: &'a Arc<KafkaContext>,
    pub(crate) peer: &'a ConnectionPeer,
    /// The connection's telemetry, whose id is unique in the process.
    pub(crate) probe: &'a Probe,
    pub(crate) version: i16,
    pub(crate) client_id: Option<&'a str>,
    pub(crate) body: Reader<'a>,
    pub(crate) now: Now,
}

/// An error code, and the message that the client gets with it.
pub(crate) type ErrorWithReason = (ErrorCode, String);

/// Executes a request.
///
/// # Errors
/// The body does not follow the schema of its version: the connection has to be closed, as in
/// Kafka.
pub(crate) fn handle(api: Api, call: ControlCall<'_>) -> Result<Answer, Malformed> {
    match api {
        Api::ListOffsets => list_offsets::handle(call),
        Api::Metadata => metadata::handle(call),
        Api::CreateTopics => create_topics::handle(call),
        Api::DeleteTopics => delete_topics::handle(call),
        Api::DeleteRecords => delete_records::handle(call),
        Api::InitProducerId => producer_ids::init(call),
        Api::OffsetForLeaderEpoch => leader_epochs::handle(call),
        Api::DescribeConfigs => configs::describe(call),
        Api::AlterConfigs => alter_configs::alter(call),
        Api::DescribeLogDirs => log_dirs::handle(call),
        Api::CreatePartitions => create_partitions::handle(call),
        Api::IncrementalAlterConfigs => alter_configs::alter_incrementally(call),
        Api::DescribeTopicPartitions => topic_partitions::describe(call),
        Api::ListConfigResources => list_configs::list(call),
        Api::ListPartitionReassignments => unsupported::list_reassignments(call),
        Api::ElectLeaders => placement::elect_leaders(call),
        Api::AlterPartitionReassignments => placement::alter_reassignments(call),
        Api::AlterReplicaLogDirs => placement::alter_log_dirs(call),
        Api::DescribeQuorum => quorum::describe(call),
        Api::DescribeAcls => unsupported::describe_acls(call),
        Api::DescribeClientQuotas => unsupported::describe_quotas(call),
        Api::DescribeCluster => cluster::describe(call),
        Api::DescribeProducers => producers::describe(call),
        Api::GetTelemetrySubscriptions => telemetry::get_subscriptions(call),
        Api::PushTelemetry => telemetry::push(call),
        Api::FindCoordinator => coordinator::find(call),
        Api::JoinGroup => groups::join(call),
        Api::SyncGroup => groups::sync(call),
        Api::Heartbeat => groups::heartbeat(call),
        Api::LeaveGroup => groups::leave(call),
        Api::DescribeGroups => group_tools::describe(call),
        Api::ListGroups => group_tools::list(call),
        Api::DeleteGroups => group_tools::delete(call),
        Api::OffsetCommit => offsets::commit(call),
        Api::OffsetFetch => offsets::fetch(call),
        Api::OffsetDelete => offsets::delete(call),
        _ => Err(Malformed {
            what: "not a request of the control plane",
        }),
    }
}

/// The text of `docs/kafka-settings.md`: how each topic setting of Kafka is handled.
pub fn settings_markdown() -> String {
    settings::markdown()
}

/// Checks the current leader epoch that a client sends; -1: it sends none.
///
/// # Errors
/// As in Kafka: the client's epoch is newer (UNKNOWN_LEADER_EPOCH) or older (FENCED_LEADER_EPOCH).
pub(crate) fn check_epoch(epoch: i32) -> Result<(), ErrorCode> {
    match epoch {
        -1 | LEADER_EPOCH => Ok(()),
        LEADER_EPOCH.. => Err(ErrorCode::UnknownLeaderEpoch),
        _ => Err(ErrorCode::FencedLeaderEpoch),
    }
}
