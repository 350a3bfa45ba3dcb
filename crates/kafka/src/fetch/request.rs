//! Fetch requests.
//!
//! ```text
//! [..14: replica id i32], max wait i32 ms, min bytes i32, max bytes i32, isolation i8,
//! [7+: session id i32, session epoch i32],
//! array of { name | 13+: id, array of { partition i32, [9+: leader epoch i32], offset i64,
//!   [12+: last fetched epoch i32], [5+: log start i64], partition max bytes i32 } },
//! [7+: forgotten: array of { name | 13+: id, array of partition i32 }], [11+: rack]
//! ```
//!
//! Source: <https://kafka.apache.org/protocol#The_Messages_Fetch>.

use cloverleaf_access::Operation;
use cloverleaf_broker::Realm;

use super::partition::FetchPartition;
use crate::topic_ref::{TopicKey, TopicRef};
use crate::wire::{Malformed, Reader};

/// The session epoch of a request that wants no session, or ends one.
pub(crate) const FINAL_EPOCH: i32 = -1;
/// The session epoch of a request that wants a new session.
pub(crate) const INITIAL_EPOCH: i32 = 0;

/// A request with more capacity than this, in partitions, is freed; a smaller one keeps its
/// allocations.
const KEPT_MAX: usize = 256;

/// A request, with its topics looked up.
#[derive(Default)]
pub(crate) struct FetchRequest {
    pub(crate) version: i16,
    /// The broker's generation before the topics were looked up.
    pub(crate) generation: u64,
    pub(crate) max_wait_ms: u32,
    pub(crate) min_bytes: usize,
    pub(crate) max_bytes: usize,
    pub(crate) session_id: i32,
    pub(crate) session_epoch: i32,
    pub(crate) partitions: Vec<FetchPartition>,
    pub(crate) forgotten: Vec<(TopicRef, i32)>,
}

impl FetchRequest {
    /// Decodes a request into this one, and reuses its allocations.
    pub(crate) fn read(
        &mut self,
        mut body: Reader<'_>,
        version: i16,
        realm: &Realm,
    ) -> Result<(), Malformed> {
        self.version = version;
        self.generation = realm.generation();
        self.clear();
        if version <= 14 {
            body.i32()?;
        }
        self.max_wait_ms = u32::try_from(body.i32()?).unwrap_or(0);
        self.min_bytes = usize::try_from(body.i32()?).unwrap_or(0);
        self.max_bytes = usize::try_from(body.i32()?).unwrap_or(0);
        let _isolation = body.i8()?;
        (self.session_id, self.session_epoch) = if version >= 7 {
            (body.i32()?, body.i32()?)
        } else {
            (0, FINAL_EPOCH)
        };
        for _ in 0..body.array_count()?.unwrap_or(0) {
            let key = TopicKey::read(&mut body, version)?;
            let topic = key.find(Operation::Consume, realm);
            for _ in 0..body.array_count()?.unwrap_or(0) {
                let index = body.i32()?;
                let leader_epoch = if version >= 9 { body.i32()? } else { -1 };
                let offset = body.i64()?;
                if version >= 12 {
                    body.i32()?;
                }
                if version >= 5 {
                    body.i64()?;
                }
                let bytes_max = usize::try_from(body.i32()?).unwrap_or(0);
                body.skip_tagged()?;
                let requested = RequestedRead {
                    offset,
                    bytes_max,
                    leader_epoch,
                };
                self.partitions
                    .push(FetchPartition::new(topic.clone(), index, requested));
            }
            body.skip_tagged()?;
        }
        if version >= 7 {
            self.read_forgotten(&mut body, version, realm)?;
        }
        if version >= 11 {
            body.string()?;
        }
        body.skip_tagged()
    }

    /// Empties the lists of partitions.
    pub(crate) fn clear(&mut self) {
        self.partitions.clear();
        self.forgotten.clear();
    }

    /// Approximate memory of the queued request, in bytes.
    pub(crate) fn weight(&self) -> usize {
        (self.partitions.len() + self.forgotten.len()) * size_of::<FetchPartition>()
    }

    /// Whether its allocations may be kept for the next request.
    pub(crate) fn is_small(&self) -> bool {
        self.partitions.capacity() <= KEPT_MAX && self.forgotten.capacity() <= KEPT_MAX
    }

    fn read_forgotten(
        &mut self,
        body: &mut Reader<'_>,
        version: i16,
        realm: &Realm,
    ) -> Result<(), Malformed> {
        for _ in 0..body.array_count()?.unwrap_or(0) {
            let topic = TopicKey::read(body, version)?.find(Operation::Consume, realm);
            for _ in 0..body.array_count()?.unwrap_or(0) {
                self.forgotten.push((topic.clone(), body.i32()?));
            }
            body.skip_tagged()?;
        }
        Ok(())
    }
}

/// Where a client wants to read a partition, and how much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedRead {
    pub(crate) offset: i64,
    pub(crate) bytes_max: usize,
    pub(crate) leader_epoch: i32,
}
