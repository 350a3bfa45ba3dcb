//! The record of a group in the state journal, and the steps that wait for its write.
//!
//! ```text
//! version         u8, 1
//! since           u64, milliseconds since 1970: when the state was reached
//! generation      i32
//! protocol type   text or none
//! protocol        text or none
//! leader          text or none: a member's id
//! member count    u32
//!   id            text
//!   instance      text or none
//!   client id     text
//!   client host   text
//!   rebalance     u64, milliseconds
//!   session       u64, milliseconds
//!   protocol count u32
//!     name        text
//!     metadata    bytes
//!   assignment    bytes
//!
//! text            u32 length, UTF-8; ffff ffff: none
//! bytes           u32 length
//! ```
//!
//! Numbers are big endian. A change of the layout takes the next version. As in Kafka, a group is
//! written when a generation has its assignments and when the group becomes empty. So a rebalance
//! that a crash interrupts begins again from the previous generation.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::group::{Group, GroupState};
use super::join::FormerMember;
use super::member::{GroupProtocol, Member};

/// The only version so far.
const VERSION: u8 = 1;

/// The length that stands for no text.
const NONE: u32 = u32::MAX;

/// A record to be written, and the step that waits for the write.
#[derive(Debug)]
pub(crate) struct RecordWrite {
    /// The encoded group.
    pub(crate) value: Vec<u8>,
    /// To be passed to [`Group::record_written`] after the write.
    pub(crate) after_write: AfterWrite,
}

impl RecordWrite {
    pub(super) fn new(value: Vec<u8>, after_write: AfterWrite) -> Self {
        Self { value, after_write }
    }
}

/// The step that continues once the record is in the journal.
#[derive(Debug)]
pub(crate) enum AfterWrite {
    /// No step waits.
    Nothing,
    /// The members of this generation get their assignments.
    Assignments {
        generation: i32,
        assignments: BTreeMap<String, Bytes>,
    },
    /// A static member that has restarted gets the answer to its JoinGroup, and keeps its
    /// assignment.
    Swap {
        generation: i32,
        new_id: String,
        old: Box<FormerMember>,
        leader_before: String,
        skips_assignment: bool,
    },
}

/// The bytes are not a group record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stored group cannot be read: {what}")]
pub(crate) struct StoredError {
    what: &'static str,
}

impl Group {
    /// Encodes the record for the journal. `assignments`: new ones that are not handed out yet;
    /// `None`: those that the members have.
    pub(super) fn encode(&self, assignments: Option<&BTreeMap<String, Bytes>>) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes());
        out.push(VERSION);
        out.extend_from_slice(&self.since_unix_ms.to_be_bytes());
        out.extend_from_slice(&self.generation.to_be_bytes());
        put_text(&mut out, self.protocol_type.as_deref());
        put_text(&mut out, self.protocol.as_deref());
        put_text(&mut out, self.leader.as_deref());
        put_len(&mut out, self.members.len());
        for member in self.members.values() {
            put_text(&mut out, Some(&member.id));
            put_text(&mut out, member.instance.as_deref());
            put_text(&mut out, Some(&member.client_id));
            put_text(&mut out, Some(&member.client_host));
            out.extend_from_slice(&member.rebalance_timeout_ms.to_be_bytes());
            out.extend_from_slice(&member.session_timeout_ms.to_be_bytes());
            put_len(&mut out, member.protocols.len());
            for protocol in &member.protocols {
                put_text(&mut out, Some(&protocol.name));
                put_bytes(&mut out, &protocol.metadata);
            }
            match assignments {
                None => put_bytes(&mut out, &member.assignment),
                Some(new) => put_bytes(&mut out, new.get(&member.id).map_or(&[], |b| &b[..])),
            }
        }
        out
    }

    /// Decodes a record. The session timeouts of the members start with [`Group::start_sessions`].
    pub(crate) fn decode(name: Arc<str>, bytes: &[u8]) -> Result<Self, StoredError> {
        let mut input = RecordReader(bytes);
        if input.take::<1>()? != [VERSION] {
            return refused("its version is not known");
        }
        let mut group = Self::new(name, u64::from_be_bytes(input.take()?));
        group.generation = i32::from_be_bytes(input.take()?);
        let protocol_type = input.optional_text()?;
        let protocol = input.optional_text()?;
        let leader = input.optional_text()?;
        for _ in 0..input.len()? {
            let member = input.member()?;
            if group.members.contains_key(&member.id) {
                return refused("a member is in it twice");
            }
            let instance = member.instance.as_ref();
            if instance.is_some_and(|instance| group.static_ids.contains_key(instance)) {
                return refused("an instance is in it twice");
            }
            group.add(member, None);
        }
        if !input.0.is_empty() {
            return refused("there is more than a group");
        }
        if group.generation < 0 || group.select_protocol().is_none() != protocol.is_none() {
            return refused("its members know no common protocol");
        }
        if leader
            .as_ref()
            .is_some_and(|id| !group.members.contains_key(id))
            || leader.is_some() == group.members.is_empty()
            || (protocol_type.is_none() && !group.members.is_empty())
        {
            return refused("its leader or type is missing");
        }
        let knows =
            |member: &Member, name: &String| member.protocols.iter().any(|p| p.name == *name);
        if let Some(name) = &protocol
            && !group.members.values().all(|member| knows(member, name))
        {
            return refused("a member does not know its protocol");
        }
        (group.protocol_type, group.protocol, group.leader) = (protocol_type, protocol, leader);
        group.topics = group.find_topics();
        group.is_stored = true;
        if !group.members.is_empty() {
            group.state = GroupState::Stable;
        }
        Ok(group)
    }

    /// Starts the session timeouts of all members that were loaded from the journal, each at its
    /// full length.
    pub(crate) fn start_sessions(&mut self, at: super::group::ClockReading) {
        let is_silent = |m: &&Member| m.session_due_ms.is_none() && !m.has_satisfied_heartbeat();
        let silent = self.members.values().filter(is_silent);
        let silent: Vec<String> = silent.map(|member| member.id.clone()).collect();
        for id in silent {
            self.renew_session(&id, at);
        }
    }
}

/// Whether `bytes` are a group record. Asserts that the group's encoding decodes to the same group.
/// For the fuzz target.
#[doc(hidden)]
pub fn is_stored_group(bytes: &[u8]) -> bool {
    let Ok(group) = Group::decode("fuzz".into(), bytes) else {
        return false;
    };
    let again = Group::decode("fuzz".into(), &group.encode(None));
    assert!(again.is_ok_and(|again| again.encode(None) == group.encode(None)));
    true
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    // Fits in u32: the limits of groups and members are far lower.
    let len = u32::try_from(len).unwrap_or(NONE);
    out.extend_from_slice(&len.to_be_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_text(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => put_bytes(out, text.as_bytes()),
        None => out.extend_from_slice(&NONE.to_be_bytes()),
    }
}

fn refused<T>(what: &'static str) -> Result<T, StoredError> {
    Err(StoredError { what })
}

/// The bytes that were not read yet.
struct RecordReader<'a>(&'a [u8]);

impl<'a> RecordReader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], StoredError> {
        let Some((head, rest)) = self.0.split_first_chunk::<N>() else {
            return refused("it is too short");
        };
        self.0 = rest;
        Ok(*head)
    }

    /// A length or a count. Each element takes at least a byte, so it cannot exceed the remaining
    /// bytes.
    fn len(&mut self) -> Result<usize, StoredError> {
        let len = u32::from_be_bytes(self.take()?) as usize;
        if len > self.0.len() {
            return refused("a length goes beyond its end");
        }
        Ok(len)
    }

    fn slice(&mut self) -> Result<&'a [u8], StoredError> {
        let len = self.len()?;
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        Ok(head)
    }

    fn optional_text(&mut self) -> Result<Option<String>, StoredError> {
        if let Some(rest) = self.0.strip_prefix(&NONE.to_be_bytes()) {
            self.0 = rest;
            return Ok(None);
        }
        self.text().map(Some)
    }

    fn text(&mut self) -> Result<String, StoredError> {
        match std::str::from_utf8(self.slice()?) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => refused("a text is not UTF-8"),
        }
    }

    fn member(&mut self) -> Result<Member, StoredError> {
        let id = self.text()?;
        let instance = self.optional_text()?;
        let (client_id, client_host) = (self.text()?, self.text()?);
        let rebalance_timeout_ms = u64::from_be_bytes(self.take()?);
        let session_timeout_ms = u64::from_be_bytes(self.take()?);
        let mut protocols: Vec<GroupProtocol> = Vec::new();
        for _ in 0..self.len()? {
            let name = self.text()?;
            if protocols.iter().any(|known| known.name == name) {
                return refused("a protocol is in it twice");
            }
            let metadata = Bytes::copy_from_slice(self.slice()?);
            protocols.push(GroupProtocol { name, metadata });
        }
        Ok(Member {
            id,
            instance,
            client_id,
            client_host,
            rebalance_timeout_ms,
            session_timeout_ms,
            protocols,
            assignment: Bytes::copy_from_slice(self.slice()?),
            is_new: false,
            session_due_ms: None,
            joining: None,
            syncing: None,
        })
    }
}
