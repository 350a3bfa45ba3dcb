//! Which topics a Kafka client sees, and how they come to be.

use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{NoTopic, Partition, Topic, TopicOptions};
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

/// A topic that was found, if Kafka clients see it.
pub(crate) fn visible(topic: Arc<Topic>) -> Result<Arc<Topic>, NoTopic> {
    if is_visible(&topic) {
        Ok(topic)
    } else {
        Err(NoTopic::Unknown)
    }
}

/// The topic of that name, to do this with it.
///
/// # Errors
/// Kafka clients see none, or this one may not.
pub(crate) fn find(
    context: &KafkaContext,
    operation: Operation,
    name: &str,
) -> Result<Arc<Topic>, ErrorCode> {
    let topic = context.realm.topic(operation, name).and_then(visible);
    topic.map_err(|why| match why {
        NoTopic::Denied => ErrorCode::TopicAuthorizationFailed,
        NoTopic::Unknown if topic_name_fault(name).is_some() => ErrorCode::InvalidTopicException,
        NoTopic::Unknown => ErrorCode::UnknownTopicOrPartition,
    })
}

/// The same, with the reason as people read it.
///
/// # Errors
/// As [`find`].
pub(crate) fn find_or_say(
    context: &KafkaContext,
    operation: Operation,
    name: &str,
) -> Result<Arc<Topic>, (ErrorCode, String)> {
    find(context, operation, name).map_err(|error| {
        let name = name.escape_debug();
        let reason = match error {
            ErrorCode::TopicAuthorizationFailed => format!("topic '{name}': not allowed"),
            _ => format!("there is no topic '{name}'"),
        };
        (error, reason)
    })
}

/// The topic with that id, to do this with it.
///
/// # Errors
/// Kafka clients see none, or this one may not.
pub(crate) fn find_by_id(
    context: &KafkaContext,
    operation: Operation,
    id: Uuid,
) -> Result<Arc<Topic>, ErrorCode> {
    let topic = context.realm.topic_by_id(operation, id).and_then(visible);
    topic.map_err(|why| match why {
        NoTopic::Denied => ErrorCode::TopicAuthorizationFailed,
        NoTopic::Unknown => ErrorCode::UnknownTopicId,
    })
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
    match find(context, Operation::Describe, name) {
        Err(ErrorCode::UnknownTopicOrPartition) if context.options.auto_create_topics => {}
        found => return found,
    }
    let made = context
        .realm
        .topic_or_create(Operation::Declare, name, || default_options(context))
        .map_err(|error| of_catalog(&error))?;
    if is_visible(&made) {
        Ok(made)
    } else {
        // A hidden topic of that name: it is not theirs.

        Err(ErrorCode::InvalidTopicException)
    }
}

/// How a topic is kept about which nothing was said.
fn default_options(context: &KafkaContext) -> TopicOptions {
    settings::defaults(context, context.options.partitions_default)
}

/// The same for a request about its partitions, to which no name is invalid.
///
/// # Errors
/// Kafka clients see none, or this one may not.
pub(crate) fn find_partitioned(
    context: &KafkaContext,
    operation: Operation,
    name: &str,
) -> Result<Arc<Topic>, ErrorCode> {
    find(context, operation, name).map_err(|error| match error {
        ErrorCode::InvalidTopicException => ErrorCode::UnknownTopicOrPartition,
        error => error,
    })
}

/// A partition of a topic, to do this with it.
///
/// # Errors
/// Kafka clients see none, or this one may not.
pub(crate) fn partition(
    context: &KafkaContext,
    operation: Operation,
    name: &str,
    index: i32,
) -> Result<(Arc<Topic>, Partition), ErrorCode> {
    let topic = find_partitioned(context, operation, name)?;
    let log = u32::try_from(index)
        .ok()
        .and_then(|index| topic.partition(index))
        .ok_or(ErrorCode::UnknownTopicOrPartition)?;
    Ok((topic, log))
}
