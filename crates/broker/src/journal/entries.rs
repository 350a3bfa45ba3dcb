//! The entries of the state journal: definitions, progress, committed offsets.
//!
//! ```text
//! entry      kind u8, body
//! 1 topic            JSON of TopicDefinition (created or changed)
//! 2 topic deleted    uuid [16]
//! 3 subscription     JSON of SubscriptionDefinition (created or changed)
//! 4 sub. deleted     id u64
//! 5 progress         id u64, partition u32, floor u64,
//!                    words u32 { word u64, bits u64 }, ranges u32 { start u64, end u64 },
//!                    retries u32 { word u64, mask u64, attempts u16, due_ms u64 }
//! 6 committed        JSON of Committed (written by older versions, 15 replaces it)
//! 7 group deleted    name, UTF-8
//! 8 start            uuid [16], partition u32, offset u64
//! 9 opened           boot id, UTF-8: a broker has started
//! 10 closed          (nothing): the broker shut down in order, everything was synced
//! 11 next            uuid [16], partition u32, offset u64: lower offsets may have been used
//! 12 kept            key text, has value u8 (0 or 1), value (the rest)
//! 13 offsets deleted group text, count u32 { uuid [16], partition u32 }
//! 14 identity        cluster uuid [16], starts u64
//! 15 offsets         group text, count u32 { uuid [16], partition u32, offset u64,
//!                    leader epoch i32, committed ms u64, metadata text }
//! 16 delivered       subscription id u64, partition u32, offset u64: messages below may have
//!                    been delivered; the last entry counts
//! 17 moved           as progress, but only the words count: messages whose copies are written
//!                    to their destination and not synced; the last entry of a word counts
//! 18 together        several entries ([`crate::journal::atomic`])
//! 19 elsewhere       namespace text, then an entry of kind 1, 7, 12, 13 or 15 with names of that
//!                    namespace; entries without this wrapper belong to the default namespace
//!
//! text       length u32, UTF-8
//! ```
//!
//! Numbers are big endian. The kinds are stored: never change one.

use cloverleaf_log::Offset;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::committed::{Committed, OffsetCommit, TopicPartition};
use crate::journal::protocol_values::Identity;
use crate::namespace::{Name, Namespace, OwnedName};
use crate::options::{SubscriptionOptions, TopicOptions};
use crate::subscription::ledger::cursor::CursorDelta;
use crate::subscription::ledger::{PartitionDelta, Retry};

/// A topic as the journal knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TopicDefinition {
    pub(crate) id: Uuid,
    /// Stored in an entry of kind 19, not in the JSON: an earlier version refuses that kind. It
    /// would ignore a field, and take the topic for one of the default namespace.
    #[serde(skip)]
    pub(crate) namespace: Namespace,
    pub(crate) name: String,
    pub(crate) created_ms: u64,
    /// The number of the broker's start in which the topic was created, and the topic's number in
    /// that start: later topics compare higher, whatever the clock said. Zeros: created by a
    /// version without this field.
    #[serde(default, rename = "made")]
    pub(crate) creation_order: (u64, u32),
    pub(crate) options: TopicOptions,
    /// The end of each partition when the topic was paused.
    #[serde(default)]
    pub(crate) paused_at: Option<Vec<Offset>>,
    /// Increases with each change: the copies in the journal and in the folder may differ.
    #[serde(default)]
    pub(crate) revision: u64,
}

impl TopicDefinition {
    pub(crate) fn full_name(&self) -> Name<'_> {
        self.namespace.name(&self.name)
    }
}

/// A subscription as the journal knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SubscriptionDefinition {
    pub(crate) id: u64,
    pub(crate) topic: Uuid,
    pub(crate) name: String,
    pub(crate) options: SubscriptionOptions,
    pub(crate) paused: bool,
    /// The first offset of each partition. Later progress is in other entries.
    pub(crate) floors: Vec<Offset>,
}

/// One journal entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Topic(TopicDefinition),
    TopicDeleted(Uuid),
    Subscription(SubscriptionDefinition),
    SubscriptionDeleted(u64),
    Progress(u64, PartitionDelta),
    Moved(u64, PartitionDelta),
    Committed(Committed),
    GroupDeleted(OwnedName),
    Start {
        topic: Uuid,
        partition: u32,
        offset: Offset,
    },
    Opened(String),
    Closed,
    Next {
        topic: Uuid,
        partition: u32,
        offset: Offset,
    },
    Kept {
        key: OwnedName,
        value: Option<Vec<u8>>,
    },
    OffsetsDeleted {
        group: OwnedName,
        places: Vec<TopicPartition>,
    },
    Identity(Identity),
    Offsets {
        group: OwnedName,
        commits: Vec<(TopicPartition, OffsetCommit)>,
    },
    Delivered {
        subscription: u64,
        partition: u32,
        end: Offset,
    },
}

/// Bytes that this version cannot decode as an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("state entry of kind {kind} cannot be read: {reason}")]
pub struct EntryError {
    /// The first byte.
    pub kind: u8,
    /// The fault in the entry.
    pub reason: String,
}

impl Entry {
    /// The entry's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let namespace = self.namespace();
        if !namespace.is_default() {
            out.push(IN_NAMESPACE);
            put_text(&mut out, namespace.as_str());
        }
        match self {
            Self::Topic(definition) => put_json(&mut out, 1, definition),
            Self::TopicDeleted(topic) => {
                out.push(2);
                out.extend_from_slice(topic.as_bytes());
            }
            Self::Subscription(definition) => put_json(&mut out, 3, definition),
            Self::SubscriptionDeleted(id) => {
                out.push(4);
                out.extend_from_slice(&id.to_be_bytes());
            }
            Self::Progress(id, delta) | Self::Moved(id, delta) => {
                out.push(if matches!(self, Self::Moved(..)) {
                    17
                } else {
                    5
                });
                out.extend_from_slice(&id.to_be_bytes());
                put_delta(&mut out, delta);
            }
            Self::Committed(committed) => put_json(&mut out, 6, committed),
            Self::GroupDeleted(group) => {
                out.push(7);
                out.extend_from_slice(group.text.as_bytes());
            }
            Self::Start {
                topic,
                partition,
                offset,
            } => {
                put_place(&mut out, 8, *topic, *partition, *offset);
            }
            Self::Next {
                topic,
                partition,
                offset,
            } => {
                put_place(&mut out, 11, *topic, *partition, *offset);
            }
            Self::Opened(boot_id) => {
                out.push(9);
                out.extend_from_slice(boot_id.as_bytes());
            }
            Self::Closed => out.push(10),
            Self::Kept { key, value } => {
                out.push(12);
                put_text(&mut out, &key.text);
                out.push(u8::from(value.is_some()));
                out.extend_from_slice(value.as_deref().unwrap_or_default());
            }
            Self::OffsetsDeleted { group, places } => {
                out.push(13);
                put_text(&mut out, &group.text);
                put_count(&mut out, places.len());
                for place in places {
                    put_partition(&mut out, *place);
                }
            }
            Self::Identity(identity) => {
                out.push(14);
                out.extend_from_slice(identity.cluster.as_bytes());
                out.extend_from_slice(&identity.starts.to_be_bytes());
            }
            Self::Offsets { group, commits } => put_offsets(&mut out, &group.text, commits),
            Self::Delivered {
                subscription,
                partition,
                end,
            } => {
                out.push(16);
                out.extend_from_slice(&subscription.to_be_bytes());
                out.extend_from_slice(&partition.to_be_bytes());
                out.extend_from_slice(&end.to_be_bytes());
            }
        }
        out
    }

    /// The namespace of the names in the entry.
    fn namespace(&self) -> &Namespace {
        match self {
            Self::Topic(definition) => &definition.namespace,
            Self::GroupDeleted(name)
            | Self::Kept { key: name, .. }
            | Self::OffsetsDeleted { group: name, .. }
            | Self::Offsets { group: name, .. } => &name.namespace,
            _ => const { &Namespace::DEFAULT },
        }
    }

    /// Reads an entry back.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, EntryError> {
        let Some((&IN_NAMESPACE, rest)) = bytes.split_first() else {
            return Self::decode_in(&Namespace::DEFAULT, bytes);
        };
        let error = |reason: &str| EntryError {
            kind: IN_NAMESPACE,
            reason: reason.to_owned(),
        };
        let mut reader = EntryReader(rest);
        let namespace = reader.text().ok_or_else(|| error("too short"))?;
        let namespace = Namespace::new(&namespace);
        let entry = Self::decode_in(&namespace, reader.0)?;
        if *entry.namespace() == namespace && !namespace.is_default() {
            Ok(entry)
        } else {
            Err(error("nothing that a namespace has"))
        }
    }

    fn decode_in(namespace: &Namespace, bytes: &[u8]) -> Result<Self, EntryError> {
        let kind = bytes.first().copied().unwrap_or(0);
        let error = |reason: &str| EntryError {
            kind,
            reason: reason.to_owned(),
        };
        let body = bytes.get(1..).unwrap_or_default();
        let mut reader = EntryReader(body);
        let short = || error("too short");
        let name = |text: String| OwnedName {
            namespace: namespace.clone(),
            text,
        };
        match kind {
            1 => read_json(kind, body).map(|definition| {
                Self::Topic(TopicDefinition {
                    namespace: namespace.clone(),
                    ..definition
                })
            }),
            2 => reader.uuid().map(Self::TopicDeleted).ok_or_else(short),
            3 => read_json(kind, body).map(Self::Subscription),
            4 => reader
                .u64()
                .map(Self::SubscriptionDeleted)
                .ok_or_else(short),
            5 | 17 => {
                let id = reader.u64().ok_or_else(short)?;
                let delta = reader.delta().ok_or_else(short)?;
                Ok(if kind == 5 {
                    Self::Progress(id, delta)
                } else {
                    Self::Moved(id, delta)
                })
            }
            6 => read_json(kind, body).map(Self::Committed),
            7 | 9 => {
                let text = String::from_utf8(body.to_vec()).map_err(|_| error("not UTF-8"))?;
                Ok(if kind == 7 {
                    Self::GroupDeleted(name(text))
                } else {
                    Self::Opened(text)
                })
            }
            10 => Ok(Self::Closed),
            8 | 11 => {
                let topic = reader.uuid().ok_or_else(short)?;
                let partition = reader.u32().ok_or_else(short)?;
                let offset = reader.u64().ok_or_else(short)?;
                Ok(match kind {
                    8 => Self::Start {
                        topic,
                        partition,
                        offset,
                    },
                    _ => Self::Next {
                        topic,
                        partition,
                        offset,
                    },
                })
            }
            12 => {
                let key = reader.text().map(name).ok_or_else(short)?;
                let [has_value] = reader.take().ok_or_else(short)?;
                let value = (has_value != 0).then(|| reader.0.to_vec());
                Ok(Self::Kept { key, value })
            }
            13 => {
                let group = reader.text().map(name).ok_or_else(short)?;
                let places = reader.list(20, EntryReader::place).ok_or_else(short)?;
                Ok(Self::OffsetsDeleted { group, places })
            }
            14 => {
                let cluster = reader.uuid().ok_or_else(short)?;
                let starts = reader.u64().ok_or_else(short)?;
                Ok(Self::Identity(Identity { cluster, starts }))
            }
            15 => {
                let group = reader.text().map(name).ok_or_else(short)?;
                let commits = reader.list(44, EntryReader::commit).ok_or_else(short)?;
                Ok(Self::Offsets { group, commits })
            }
            16 => Ok(Self::Delivered {
                subscription: reader.u64().ok_or_else(short)?,
                partition: reader.u32().ok_or_else(short)?,
                end: reader.u64().ok_or_else(short)?,
            }),
            _ => Err(error("unknown kind")),
        }
    }
}

/// The kind of an entry in another namespace than the default one.
const IN_NAMESPACE: u8 = 19;

fn put_json(out: &mut Vec<u8>, kind: u8, value: &impl Serialize) {
    out.push(kind);
    // Cannot fail: a definition is plain data with string keys.
    let _written = serde_json::to_writer(&mut *out, value);
    debug_assert!(_written.is_ok());
}

fn read_json<T: for<'a> Deserialize<'a>>(kind: u8, body: &[u8]) -> Result<T, EntryError> {
    serde_json::from_slice(body).map_err(|error| EntryError {
        kind,
        reason: error.to_string(),
    })
}

fn put_place(out: &mut Vec<u8>, kind: u8, topic: Uuid, partition: u32, offset: Offset) {
    out.push(kind);
    out.extend_from_slice(topic.as_bytes());
    out.extend_from_slice(&partition.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_count(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn put_partition(out: &mut Vec<u8>, (topic, partition): TopicPartition) {
    out.extend_from_slice(topic.as_bytes());
    out.extend_from_slice(&partition.to_be_bytes());
}

fn put_offsets(out: &mut Vec<u8>, group: &str, commits: &[(TopicPartition, OffsetCommit)]) {
    out.reserve(16 + group.len() + commits.len() * 48);
    out.push(15);
    put_text(out, group);
    put_count(out, commits.len());
    for (place, commit) in commits {
        put_partition(out, *place);
        out.extend_from_slice(&commit.offset.to_be_bytes());
        out.extend_from_slice(&commit.leader_epoch.to_be_bytes());
        out.extend_from_slice(&commit.committed_ms.to_be_bytes());
        put_text(out, &commit.metadata);
    }
}

fn put_delta(out: &mut Vec<u8>, delta: &PartitionDelta) {
    out.extend_from_slice(&delta.partition.to_be_bytes());
    out.extend_from_slice(&delta.cursor.floor.to_be_bytes());
    for pairs in [&delta.cursor.words, &delta.cursor.ranges] {
        put_count(out, pairs.len());
        for (first, second) in pairs {
            out.extend_from_slice(&first.to_be_bytes());
            out.extend_from_slice(&second.to_be_bytes());
        }
    }
    put_count(out, delta.retries.len());
    for retry in &delta.retries {
        out.extend_from_slice(&retry.word.to_be_bytes());
        out.extend_from_slice(&retry.mask.to_be_bytes());
        out.extend_from_slice(&retry.attempts.to_be_bytes());
        out.extend_from_slice(&retry.due_ms.to_be_bytes());
    }
}

/// The bytes that are left to read. Every method returns `None` if they are too few.
struct EntryReader<'a>(&'a [u8]);

impl EntryReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn uuid(&mut self) -> Option<Uuid> {
        self.take().map(Uuid::from_bytes)
    }

    /// Reads a count of elements of `size` bytes each; `None` unless all of them follow.
    fn count(&mut self, size: usize) -> Option<usize> {
        let count = usize::try_from(self.u32()?).ok()?;
        (count.checked_mul(size)? <= self.0.len()).then_some(count)
    }

    fn text(&mut self) -> Option<String> {
        let count = self.count(1)?;
        let (text, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(std::str::from_utf8(text).ok()?.to_owned())
    }

    /// Reads a list whose elements have at least `size` bytes each.
    fn list<T>(
        &mut self,
        size: usize,
        mut element: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.count(size)?;
        (0..count).map(|_| element(self)).collect()
    }

    fn place(&mut self) -> Option<TopicPartition> {
        Some((self.uuid()?, self.u32()?))
    }

    fn commit(&mut self) -> Option<(TopicPartition, OffsetCommit)> {
        let place = self.place()?;
        let commit = OffsetCommit {
            offset: self.u64()?,
            leader_epoch: i32::from_be_bytes(self.take()?),
            committed_ms: self.u64()?,
            metadata: self.text()?.into(),
        };
        Some((place, commit))
    }

    fn pairs(&mut self) -> Option<Vec<(u64, u64)>> {
        let count = self.count(16)?;
        (0..count)
            .map(|_| Some((self.u64()?, self.u64()?)))
            .collect()
    }

    fn delta(&mut self) -> Option<PartitionDelta> {
        let partition = self.u32()?;
        let floor = self.u64()?;
        let (words, ranges) = (self.pairs()?, self.pairs()?);
        let count = self.count(26)?;
        let retries = (0..count)
            .map(|_| {
                Some(Retry {
                    word: self.u64()?,
                    mask: self.u64()?,
                    attempts: self.u16()?,
                    due_ms: self.u64()?,
                })
            })
            .collect::<Option<_>>()?;
        let cursor = CursorDelta {
            floor,
            words,
            ranges,
        };
        Some(PartitionDelta {
            partition,
            cursor,
            retries,
        })
    }
}

#[cfg(test)]
mod tests;
