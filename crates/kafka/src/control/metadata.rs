//! Metadata: the topics with their partitions, and the address of the broker.

use std::collections::HashSet;
use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::Topic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use uuid::Uuid;

use crate::answer::{Answer, Body, body, later};
use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use crate::wire::{Malformed, Reader};

use super::advertised::Advertised;
use super::names::{text, topic_name};
use super::{ControlCall, LEADER_EPOCH, cluster, topics};

/// The authorized operations on a topic, as Kafka reports them without an authorizer: the bits of
/// READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS.
pub(super) const TOPIC_OPERATIONS: i32 = 0b1101_1111_1000;

/// How a request names a topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum RequestedTopic {
    Name(Box<str>),
    /// Since version 12.
    Id(Uuid),
    /// Neither name nor id.
    Nothing,
}

struct MetadataRequest {
    /// `None`: all topics.
    topics: Option<Vec<RequestedTopic>>,
    auto_create: bool,
    cluster_operations: bool,
    topic_operations: bool,
}

impl MetadataRequest {
    fn read(body: &mut Reader<'_>, version: i16) -> Result<Self, Malformed> {
        let topics = body.nullable_array(|reader| {
            let id = match version {
                10.. => reader.uuid()?,
                _ => Uuid::nil(),
            };
            let name = match version {
                10.. => reader.nullable_string()?,
                _ => Some(reader.string()?),
            };
            reader.skip_tagged()?;
            Ok(match name {
                // Ids are refused before version 12, as in Kafka.
                _ if version >= 12 && !id.is_nil() => RequestedTopic::Id(id),
                Some(name) if id.is_nil() => RequestedTopic::Name(name.into()),
                _ => RequestedTopic::Nothing,
            })
        })?;
        let request = Self {
            // In version 0 an empty list asks for all topics; it has no null list.
            topics: topics.filter(|topics| version > 0 || !topics.is_empty()),
            auto_create: version < 4 || body.bool()?,
            cluster_operations: (8..=10).contains(&version) && body.bool()?,
            topic_operations: version >= 8 && body.bool()?,
        };
        body.skip_tagged()?;
        Ok(request)
    }

    /// Whether the request creates topics, which may block on the disk.
    fn creates_topics(&self, context: &KafkaContext) -> bool {
        let is_created = |wanted: &RequestedTopic| match wanted {
            RequestedTopic::Name(name) => topics::find(context, Operation::Describe, name).is_err(),
            RequestedTopic::Id(_) | RequestedTopic::Nothing => false,
        };
        self.auto_create
            && context.options.auto_create_topics
            && self.topics.iter().flatten().any(is_created)
    }
}

pub(super) fn handle(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let request = MetadataRequest::read(&mut call.body, version)?;
    let broker = broker(&call);
    if !request.creates_topics(call.context) {
        return Ok(Answer::Ready(answer(
            call.context,
            &request,
            broker,
            version,
        )));
    }
    let context = call.context.clone();
    Ok(later(call.context, move || {
        answer(&context, &request, broker, version)
    }))
}

fn answer(
    context: &KafkaContext,
    request: &MetadataRequest,
    broker: MetadataResponseBroker,
    version: i16,
) -> Body {
    let operations = if request.topic_operations {
        TOPIC_OPERATIONS
    } else {
        cluster::OPERATIONS_UNKNOWN
    };
    let found: Vec<MetadataResponseTopic> = match &request.topics {
        None => topics::all(context)
            .iter()
            .map(|topic| describe(context, topic, operations))
            .collect(),
        Some(wanted) => {
            // Each topic once, as in Kafka: a short request must not cause a huge answer.
            let mut seen = HashSet::new();
            wanted
                .iter()
                .filter(|wanted| seen.insert(*wanted))
                .map(|wanted| answer_one(context, wanted, request.auto_create, operations))
                .collect()
        }
    };
    let mut response = MetadataResponse::default()
        .with_brokers(vec![broker])
        .with_cluster_id(Some(cluster::id(context)))
        .with_controller_id(context.options.node_id.into())
        .with_topics(found);
    if request.cluster_operations {
        response = response.with_cluster_authorized_operations(cluster::OPERATIONS);
    }
    body(&response, version)
}

fn broker(call: &ControlCall<'_>) -> MetadataResponseBroker {
    let Advertised { host, port } = Advertised::to(call.context, call.peer);
    MetadataResponseBroker::default()
        .with_node_id(call.context.options.node_id.into())
        .with_host(text(&host))
        .with_port(port)
        .with_rack(None)
}

fn answer_one(
    context: &KafkaContext,
    wanted: &RequestedTopic,
    auto_create: bool,
    operations: i32,
) -> MetadataResponseTopic {
    let refused = MetadataResponseTopic::default().with_topic_authorized_operations(operations);
    match wanted {
        RequestedTopic::Nothing => refused
            .with_error_code(ErrorCode::InvalidRequest.code())
            .with_name(Some(topic_name(""))),
        RequestedTopic::Id(id) => match topics::find_by_id(context, Operation::Describe, *id) {
            Ok(topic) => describe(context, &topic, operations),
            Err(error) => refused
                .with_error_code(error.code())
                .with_name(None)
                .with_topic_id(*id),
        },
        RequestedTopic::Name(name) => {
            let found = if auto_create {
                topics::find_or_create(context, name)
            } else {
                topics::find(context, Operation::Describe, name)
            };
            match found {
                Ok(topic) => describe(context, &topic, operations),
                Err(code) => refused
                    .with_error_code(code.code())
                    .with_name(Some(topic_name(name))),
            }
        }
    }
}

fn describe(context: &KafkaContext, topic: &Arc<Topic>, operations: i32) -> MetadataResponseTopic {
    let node = context.options.node_id;
    let partition = |index: i32| {
        MetadataResponsePartition::default()
            .with_partition_index(index)
            .with_leader_id(node.into())
            .with_leader_epoch(LEADER_EPOCH)
            .with_replica_nodes(vec![node.into()])
            .with_isr_nodes(vec![node.into()])
    };
    let partitions = i32::try_from(topic.partition_count()).unwrap_or(i32::MAX);
    MetadataResponseTopic::default()
        .with_name(Some(topic_name(topic.name())))
        .with_topic_id(topic.id())
        .with_partitions((0..partitions).map(partition).collect())
        .with_topic_authorized_operations(operations)
}
