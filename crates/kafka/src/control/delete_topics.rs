//! DeleteTopics.

use std::collections::HashMap;

use cloverleaf_access::Operation;
use kafka_protocol::messages::DeleteTopicsResponse;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use uuid::Uuid;

use crate::answer::{Answer, body, later};
use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_catalog};
use crate::wire::{Malformed, Reader};

use super::names::{message, topic_name};
use super::{ControlCall, topics};

/// A topic to be deleted, by name or (since version 6) by id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TopicToDelete {
    name: Option<String>,
    id: Uuid,
}

fn read(reader: &mut Reader<'_>, version: i16) -> Result<Vec<TopicToDelete>, Malformed> {
    let wanted = match version {
        6.. => reader.array(|reader| {
            let name = reader.nullable_string()?.map(str::to_owned);
            let id = reader.uuid()?;
            reader.skip_tagged()?;
            Ok(TopicToDelete { name, id })
        }),
        _ => reader.array(|reader| {
            let name = Some(reader.string()?.to_owned());
            let id = Uuid::nil();
            Ok(TopicToDelete { name, id })
        }),
    }?;
    let _timeout_ms = reader.i32()?;
    reader.skip_tagged()?;
    Ok(wanted)
}

pub(super) fn handle(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let wanted = read(&mut call.body, version)?;
    let context = call.context.clone();
    Ok(later(call.context, move || {
        let mut mentions: HashMap<&TopicToDelete, u32> = HashMap::new();
        for topic in &wanted {
            *mentions.entry(topic).or_default() += 1;
        }
        // A topic that is named several times gets one answer, in the place of the first.
        let mut results: Vec<DeletableTopicResult> = Vec::new();
        results.extend(wanted.iter().filter_map(|wanted| {
            Some(match mentions.remove(wanted)? {
                1 => delete(&context, wanted),
                _ => refused(
                    wanted,
                    (ErrorCode::InvalidRequest, "Duplicate topic name or id."),
                ),
            })
        }));
        sync_deletions(&context, &mut results);
        let response = DeleteTopicsResponse::default().with_responses(results);
        body(&response, version)
    }))
}

/// Syncs the deletions before they are answered, so that no crash brings a deleted topic back. One
/// sync for the whole request.
fn sync_deletions(context: &KafkaContext, results: &mut [DeletableTopicResult]) {
    let mut deleted = results.iter_mut().filter(|result| result.error_code == 0);
    let Some(first) = deleted.next() else {
        return;
    };
    let Err(error) = context.realm.sync_definitions() else {
        return;
    };
    for result in std::iter::once(first).chain(deleted) {
        result.error_code = of_catalog(&error).code();
        result.error_message = message(&error.to_string());
    }
}

fn refused(
    wanted: &TopicToDelete,
    (code, reason): (ErrorCode, &'static str),
) -> DeletableTopicResult {
    DeletableTopicResult::default()
        .with_name(wanted.name.as_deref().map(topic_name))
        .with_topic_id(wanted.id)
        .with_error_code(code.code())
        .with_error_message(message(reason))
}

fn delete(context: &KafkaContext, wanted: &TopicToDelete) -> DeletableTopicResult {
    let topic = match (&wanted.name, wanted.id.is_nil()) {
        (Some(_), false) => {
            let reason = "You may not specify both topic name and topic id.";
            return refused(wanted, (ErrorCode::InvalidRequest, reason));
        }
        (None, true) => {
            let reason = "Neither topic name nor id were specified.";
            return refused(wanted, (ErrorCode::InvalidRequest, reason));
        }
        (Some(name), true) => topics::find(context, Operation::Declare, name)
            .map_err(|error| (error, "there is no topic of that name")),
        (None, false) => topics::find_by_id(context, Operation::Declare, wanted.id)
            .map_err(|error| (error, "there is no topic with that id")),
    };
    let topic = match topic {
        Ok(topic) => topic,
        Err((ErrorCode::TopicAuthorizationFailed, _)) => {
            return refused(wanted, (ErrorCode::TopicAuthorizationFailed, "not allowed"));
        }
        Err(missing) => return refused(wanted, missing),
    };
    let result = DeletableTopicResult::default()
        .with_name(Some(topic_name(topic.name())))
        .with_topic_id(topic.id());
    // Only this topic, not a new one of the same name that was created since the lookup.
    match context.realm.delete_topic_if(&topic, || true) {
        Ok(true) => result,
        Ok(false) => refused(
            wanted,
            (
                ErrorCode::UnknownTopicOrPartition,
                "it was deleted meanwhile",
            ),
        ),
        Err(error) => result
            .with_error_code(of_catalog(&error).code())
            .with_error_message(message(&error.to_string())),
    }
}
