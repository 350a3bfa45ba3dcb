//! Which topics a Kafka client sees, and how they come to be.

use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{Partition, Topic, TopicOptions};
use uuid::Uuid;

use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_catalog};

use super::names::topic_name_fault;
use super::settings;

/// Whether Kafka clients see this topic: those of the broker itself are hidden, and a name that
/// Kafka cannot spell would break its clients.
pub(crate) fn is_visible(topic: &Topic) -> bool {
    !topic.options().hidden && topic_name_fault(topic.name()).is_none()
}

/// All topics that Kafka clients see, sorted by name.
pub(crate) fn all(context: &KafkaContext) -> Vec<Arc<Topic>> {
    let mut topics = context.realm.topics();
    topics.retain(|topic| is_visible(topic));
    topics
}

/// The topic of that name, if Kafka clients see it and this one may do that with it.
pub(crate) fn find(context: &KafkaContext, operation: Operation, name: &str) -> Option<Arc<Topic>> {
    let topic = context.realm.topic(operation, name).ok();
    topic.filter(|topic| is_visible(topic))
}

/// The topic with that id, if Kafka clients see it and this one may do that with it.
pub(crate) fn find_by_id(
    context: &KafkaContext,
    operation: Operation,
    id: Uuid,
) -> Option<Arc<Topic>> {
    let topic = context.realm.topic_by_id(operation, id).ok();
    topic.filter(|topic| is_visible(topic))
}

/// The topic of that name, made with the default settings if there is none and the configuration
/// makes topics by themselves.
///
/// # Errors
/// There is none and none is made; a name that Kafka does not take; a catalog that cannot be
/// written.
pub(crate) fn find_or_create(context: &KafkaContext, name: &str) -> Result<Arc<Topic>, ErrorCode> {
    if topic_name_fault(name).is_some() {
        return Err(ErrorCode::InvalidTopicException);
    }
    if let Some(topic) = find(context, Operation::Describe, name) {
        return Ok(topic);
    }
    if !context.options.auto_create_topics {
        return Err(ErrorCode::UnknownTopicOrPartition);
    }
    let made = context
        .realm
        .topic_or_create(Operation::Declare, name, || default_options(context))
        .map_err(|error| of_catalog(&error))?;
    match is_visible(&made) {
        true => Ok(made),
        // A hidden topic of that name: it is not theirs.
        false => Err(ErrorCode::InvalidTopicException),
    }
}

/// How a topic is kept about which nothing was said.
fn default_options(context: &KafkaContext) -> TopicOptions {
    settings::defaults(context, context.options.partitions_default)
}

/// What is told of a topic that there is not: whether its name could be one at all.
pub(crate) fn missing(name: &str) -> ErrorCode {
    match topic_name_fault(name) {
        Some(_) => ErrorCode::InvalidTopicException,
        None => ErrorCode::UnknownTopicOrPartition,
    }
}

/// A partition of a topic that Kafka clients see.
///
/// # Errors
/// There is none.
pub(crate) fn partition(
    context: &KafkaContext,
    operation: Operation,
    name: &str,
    index: i32,
) -> Result<(Arc<Topic>, Partition), ErrorCode> {
    let topic = find(context, operation, name).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let log = u32::try_from(index)
        .ok()
        .and_then(|index| topic.partition(index))
        .ok_or(ErrorCode::UnknownTopicOrPartition)?;
    Ok((topic, log))
}
