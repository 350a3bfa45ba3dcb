//! Lookup of topics for Kafka clients, and automatic creation.

use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{Partition, Topic, TopicOptions, TopicUnavailable};
use uuid::Uuid;

use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_catalog};

use super::ErrorWithReason;
use super::names::topic_name_fault;
use super::settings;

/// Whether Kafka clients see this topic. Internal topics of the broker are hidden. So are topics
/// whose names are invalid in Kafka, because they would break its clients.
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
pub(crate) fn visible(topic: Arc<Topic>) -> Result<Arc<Topic>, TopicUnavailable> {
    if is_visible(&topic) {
        Ok(topic)
    } else {
        Err(TopicUnavailable::Unknown)
    }
}

/// The topic of that name, if the principal may do `operation`.
///
/// # Errors
/// There is no such topic, it is hidden from Kafka clients, or the principal lacks the right.
pub(crate) fn find(
    context: &KafkaContext,
    operation: Operation,
    name: &str,
) -> Result<Arc<Topic>, ErrorCode> {
    let topic = context.realm.topic(operation, name).and_then(visible);
    topic.map_err(|why| match why {
        TopicUnavailable::Denied => ErrorCode::TopicAuthorizationFailed,
        TopicUnavailable::Unknown if topic_name_fault(name).is_some() => {
            ErrorCode::InvalidTopicException
        }
        TopicUnavailable::Unknown => ErrorCode::UnknownTopicOrPartition,
    })
}

/// The same, with an error message.
///
/// # Errors
/// Those of [`find`].
pub(crate) fn find_or_say(
    context: &KafkaContext,
    operation: Operation,
    name: &str,
) -> Result<Arc<Topic>, ErrorWithReason> {
    find(context, operation, name).map_err(|error| {
        let name = name.escape_debug();
        let reason = match error {
            ErrorCode::TopicAuthorizationFailed => format!("topic '{name}': not allowed"),
            _ => format!("there is no topic '{name}'"),
        };
        (error, reason)
    })
}

/// The topic with that id, if the principal may do `operation`.
///
/// # Errors
/// There is no such topic, it is hidden from Kafka clients, or the principal lacks the right.
pub(crate) fn find_by_id(
    context: &KafkaContext,
    operation: Operation,
    id: Uuid,
) -> Result<Arc<Topic>, ErrorCode> {
    let topic = context.realm.topic_by_id(operation, id).and_then(visible);
    topic.map_err(|why| match why {
        TopicUnavailable::Denied => ErrorCode::TopicAuthorizationFailed,
        TopicUnavailable::Unknown => ErrorCode::UnknownTopicId,
    })
}

/// The topic of that name. It is created with the default settings if it does not exist and
/// automatic creation is enabled.
///
/// # Errors
/// The topic does not exist and is not created, its name is invalid, or the catalog cannot be
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
        // The name belongs to a hidden topic.
        Err(ErrorCode::InvalidTopicException)
    }
}

/// The options of a topic that is created automatically.
fn default_options(context: &KafkaContext) -> TopicOptions {
    settings::defaults(context, context.options.partitions_default)
}

/// The same as [`find`] for requests about partitions, which report an invalid name as an unknown
/// topic.
///
/// # Errors
/// There is no such topic, it is hidden from Kafka clients, or the principal lacks the right.
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

/// A partition of a topic, if the principal may do `operation`.
///
/// # Errors
/// There is no such topic or partition, it is hidden from Kafka clients, or the principal lacks the
/// right.
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
