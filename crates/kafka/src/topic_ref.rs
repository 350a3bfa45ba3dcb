//! References to topics in Produce and Fetch, by name or by id, whether or not the topic exists.

use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{Realm, Topic, TopicUnavailable};
use uuid::Uuid;

use crate::control::topics;
use crate::error_code::ErrorCode;
use crate::wire::{Malformed, Reader};
use crate::wire_out::Writer;

/// From this version on Produce and Fetch name topics by their ids (KIP-516).
pub(crate) const IDS_FROM: i16 = 13;

/// The result of looking a topic up.
#[derive(Clone, Debug)]
pub(crate) enum TopicRef {
    /// The topic exists, and the client has the right.
    Known(Arc<Topic>),
    /// The request gave this name. The topic does not exist, or the client lacks the right.
    Name(Box<str>, TopicUnavailable),
    /// The same for a request that gave this id.
    Id(Uuid, TopicUnavailable),
}

/// A topic as the request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TopicKey<'a> {
    Name(&'a str),
    Id(Uuid),
}

impl<'a> TopicKey<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>, version: i16) -> Result<Self, Malformed> {
        if version >= IDS_FROM {
            reader.uuid().map(TopicKey::Id)
        } else {
            reader.string().map(TopicKey::Name)
        }
    }

    /// Looks the topic up and checks the right to do `operation`. A topic that is hidden from Kafka
    /// clients is reported as unknown.
    pub(crate) fn find(self, operation: Operation, realm: &Realm) -> TopicRef {
        let found = match self {
            TopicKey::Name(name) => realm.topic(operation, name),
            TopicKey::Id(id) => realm.topic_by_id(operation, id),
        };
        match (found.and_then(topics::visible), self) {
            (Ok(topic), _) => TopicRef::Known(topic),
            (Err(why), TopicKey::Name(name)) => TopicRef::Name(name.into(), why),
            (Err(why), TopicKey::Id(id)) => TopicRef::Id(id, why),
        }
    }
}

impl TopicRef {
    /// The topic, if it was found.
    pub(crate) fn topic(&self) -> Option<&Arc<Topic>> {
        match self {
            TopicRef::Known(topic) => Some(topic),
            TopicRef::Name(..) | TopicRef::Id(..) => None,
        }
    }

    /// The error code for a topic that was not found or is deleted, in an answer of this version.
    pub(crate) fn error(&self, version: i16) -> ErrorCode {
        match self {
            TopicRef::Name(_, TopicUnavailable::Denied)
            | TopicRef::Id(_, TopicUnavailable::Denied) => ErrorCode::TopicAuthorizationFailed,
            _ if version >= IDS_FROM => ErrorCode::UnknownTopicId,
            _ => ErrorCode::UnknownTopicOrPartition,
        }
    }

    /// The key by which requests refer to the topic: its id or its name. A topic that was not found
    /// has the key of its request.
    pub(crate) fn key(&self, by_id: bool) -> TopicKey<'_> {
        match self {
            TopicRef::Known(topic) if by_id => TopicKey::Id(topic.id()),
            TopicRef::Known(topic) => TopicKey::Name(topic.name()),
            TopicRef::Name(name, _) => TopicKey::Name(name),
            TopicRef::Id(id, _) => TopicKey::Id(*id),
        }
    }

    /// Writes the topic's name or id, depending on the version of the answer.
    pub(crate) fn write(&self, writer: &mut Writer<'_>, version: i16) {
        match self.key(version >= IDS_FROM) {
            TopicKey::Name(name) => writer.string(name),
            TopicKey::Id(id) => writer.uuid(id),
        }
    }
}
