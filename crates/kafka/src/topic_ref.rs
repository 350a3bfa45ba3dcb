//! A topic as a request names it, whether there is one or not.

use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{Realm, Topic};
use uuid::Uuid;

use crate::control::topics;
use crate::wire::{Malformed, Reader};
use crate::wire_out::Writer;

/// From this version on Produce and Fetch name topics by their ids (KIP-516).
pub(crate) const IDS_FROM: i16 = 13;

/// A topic that was looked up.
#[derive(Clone, Debug)]
pub(crate) enum TopicRef {
    /// It was there.
    Known(Arc<Topic>),
    /// There is none of this name.
    Name(Box<str>),
    /// There is none with this id.
    Id(Uuid),
}

/// What stands in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TopicKey<'a> {
    Name(&'a str),
    Id(Uuid),
}

impl<'a> TopicKey<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>, version: i16) -> Result<Self, Malformed> {
        match version >= IDS_FROM {
            true => reader.uuid().map(TopicKey::Id),
            false => reader.string().map(TopicKey::Name),
        }
    }

    /// Looks the topic up. One that Kafka clients do not see, or may not use so, is not there.
    pub(crate) fn find(self, operation: Operation, realm: &Realm) -> TopicRef {
        let found = match self {
            TopicKey::Name(name) => realm.topic(operation, name),
            TopicKey::Id(id) => realm.topic_by_id(operation, id),
        };
        match (found.ok().filter(|topic| topics::is_visible(topic)), self) {
            (Some(topic), _) => TopicRef::Known(topic),
            (None, TopicKey::Name(name)) => TopicRef::Name(name.into()),
            (None, TopicKey::Id(id)) => TopicRef::Id(id),
        }
    }
}

impl TopicRef {
    /// The topic, if it was there.
    pub(crate) fn topic(&self) -> Option<&Arc<Topic>> {
        match self {
            TopicRef::Known(topic) => Some(topic),
            TopicRef::Name(_) | TopicRef::Id(_) => None,
        }
    }

    /// How requests with ids, or with names, call it.
    pub(crate) fn key(&self, by_id: bool) -> TopicKey<'_> {
        match self {
            TopicRef::Known(topic) if by_id => TopicKey::Id(topic.id()),
            TopicRef::Known(topic) => TopicKey::Name(topic.name()),
            TopicRef::Name(name) => TopicKey::Name(name),
            TopicRef::Id(id) => TopicKey::Id(*id),
        }
    }

    /// Names it in an answer of this version.
    pub(crate) fn write(&self, writer: &mut Writer<'_>, version: i16) {
        match self.key(version >= IDS_FROM) {
            TopicKey::Name(name) => writer.string(name),
            TopicKey::Id(id) => writer.uuid(id),
        }
    }
}
