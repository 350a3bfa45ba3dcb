//! Fetch sessions (KIP-227): the broker remembers the partitions that a client reads, so that
//! requests and answers include only those that have changed.
//!
//! A request takes its session out of the cache, and its answer puts the session back. No lock is
//! held in between. Meanwhile, a second request for the session is refused with
//! INVALID_FETCH_SESSION_EPOCH. If the connection ends before the answer, its session ends, too.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use cloverleaf_broker::{Realm, Watcher};
use parking_lot::Mutex;

use super::partition::FetchPartition;
use super::request::FetchRequest;
use crate::error_code::ErrorCode;
use crate::topic_ref::{IDS_FROM, TopicKey, TopicRef};

/// A session that was idle for longer, in microseconds, may be evicted to admit a new one (Kafka's
/// `min.incremental.fetch.session.eviction.ms`).
const IDLE_US: u64 = 120_000_000;

/// Approximate limit of the memory of all sessions in bytes: enough for a million partitions.
const BYTES_MAX: usize = 128 << 20;

/// A fetch session of one client.
pub(crate) struct FetchSession {
    pub(crate) id: i32,
    /// The epoch that the next request must have.
    epoch: i32,
    by_id: bool,
    /// The realm's generation when the topics were looked up.
    generation: u64,
    pub(crate) partitions: Vec<FetchPartition>,
    /// Index of each partition in `partitions`, by the hash of its topic and number.
    places: HashMap<u64, u32>,
    /// Index of the partition that the next request reads first, so that none starves.
    pub(crate) next: usize,
    /// The watcher that fires on new data in the session's partitions.
    pub(crate) watcher: Arc<Watcher>,
    weight: usize,
}

/// A session's entry in the cache.
struct CacheSlot {
    used_us: u64,
    weight: usize,
    /// `None`: a request has taken it out.
    session: Option<Box<FetchSession>>,
}

#[derive(Default)]
struct SessionCache {
    slots: HashMap<i32, CacheSlot>,
    weight: usize,
    /// Number of ids that were drawn, the seed of the next one.
    ids_drawn: u64,
}

/// All fetch sessions of a namespace.
pub(crate) struct FetchSessions {
    sessions_max: usize,
    hasher: RandomState,
    cache: Mutex<SessionCache>,
}

/// A session that a request has taken out of the cache. If the lease is dropped, the session ends.
pub(crate) struct SessionLease {
    sessions: Arc<FetchSessions>,
    session: Option<Box<FetchSession>>,
}

impl FetchSessions {
    pub(crate) fn new(sessions_max: usize) -> Arc<FetchSessions> {
        Arc::new(FetchSessions {
            sessions_max,
            hasher: RandomState::new(),
            cache: Mutex::default(),
        })
    }

    /// Ends a session, if it is in the cache.
    pub(crate) fn end(&self, id: i32) {
        self.cache.lock().remove(id);
    }

    /// Takes the request's session out of the cache, and applies the changes of the request to it.
    pub(crate) fn resume(
        self: &Arc<Self>,
        request: &mut FetchRequest,
        realm: &Realm,
        now_us: u64,
    ) -> Result<SessionLease, ErrorCode> {
        let mut session = {
            let mut cache = self.cache.lock();
            let slot = cache.slots.get_mut(&request.session_id);
            let slot = slot.ok_or(ErrorCode::FetchSessionIdNotFound)?;
            let by_id = request.version >= IDS_FROM;
            match &slot.session {
                Some(session) if session.by_id != by_id => {
                    return Err(ErrorCode::FetchSessionTopicIdError);
                }
                Some(session) if session.epoch == request.session_epoch => {}
                _ => return Err(ErrorCode::InvalidFetchSessionEpoch),
            }
            slot.used_us = now_us;
            slot.session
                .take()
                .ok_or(ErrorCode::InvalidFetchSessionEpoch)?
        };
        // KIP-227: epochs wrap around to 1.
        session.epoch = session.epoch.checked_add(1).unwrap_or(1);
        let generation = realm.generation();
        if session.generation != generation {
            session.generation = generation;
            let by_id = session.by_id;
            for partition in &mut session.partitions {
                partition.refresh(realm, by_id);
            }
        }
        session.update(&mut request.partitions, &request.forgotten, &self.hasher);
        Ok(SessionLease {
            sessions: self.clone(),
            session: Some(session),
        })
    }

    /// Creates a session with a request's partitions. Returns its id; 0: the cache is full, and no
    /// session may be evicted.
    pub(crate) fn create(
        &self,
        partitions: &mut Vec<FetchPartition>,
        by_id: bool,
        generation: u64,
        now_us: u64,
    ) -> i32 {
        let weight = partitions.iter().map(FetchPartition::weight).sum();
        let mut cache = self.cache.lock();
        if !cache.evict_for(self.sessions_max, weight, now_us) {
            return 0;
        }
        let id = loop {
            // Random as in Kafka, so that a client with an id from before a restart does not meet
            // another client's session.
            cache.ids_drawn += 1;
            let id = (self.hasher.hash_one(cache.ids_drawn) & 0x7fff_ffff) as i32;
            if id != 0 && !cache.slots.contains_key(&id) {
                break id;
            }
        };
        let mut session = Box::new(FetchSession {
            id,
            epoch: 1,
            by_id,
            generation,
            partitions: std::mem::take(partitions),
            places: HashMap::new(),
            next: 0,
            watcher: Watcher::new(),
            weight,
        });
        session.index(&self.hasher);
        // Until now they were registered with the connection's own watcher.
        session
            .partitions
            .iter_mut()
            .for_each(FetchPartition::forget_watch);
        cache.weight += weight;
        let slot = CacheSlot {
            used_us: now_us,
            weight,
            session: Some(session),
        };
        cache.slots.insert(id, slot);
        id
    }

    /// Puts a session back. It is dropped if it was ended meanwhile, is empty, or makes the cache
    /// exceed its limit.
    fn put_back(&self, session: Box<FetchSession>) {
        let mut cache = self.cache.lock();
        let total = cache.weight;
        let Some(slot) = cache.slots.get_mut(&session.id) else {
            return;
        };
        let total = total - slot.weight + session.weight;
        if total > BYTES_MAX || session.partitions.is_empty() {
            cache.remove(session.id);
            return;
        }
        slot.weight = session.weight;
        slot.session = Some(session);
        cache.weight = total;
    }
}

impl SessionCache {
    fn remove(&mut self, id: i32) {
        if let Some(slot) = self.slots.remove(&id) {
            self.weight -= slot.weight;
        }
    }

    fn evict_for(&mut self, sessions_max: usize, weight: usize, now_us: u64) -> bool {
        let fits = |cache: &SessionCache| {
            cache.slots.len() < sessions_max && cache.weight + weight <= BYTES_MAX
        };
        while !fits(self) {
            let idle = self.slots.iter().filter(|(_, slot)| {
                slot.session.is_some() && now_us.saturating_sub(slot.used_us) > IDLE_US
            });
            let Some((&id, _)) = idle.min_by_key(|(_, slot)| slot.used_us) else {
                return false;
            };
            self.remove(id);
        }
        true
    }
}

impl FetchSession {
    fn index(&mut self, hasher: &RandomState) {
        for (place, partition) in self.partitions.iter().enumerate() {
            let hash = hash(hasher, partition.topic.key(self.by_id), partition.index);
            self.places.insert(hash, place as u32);
        }
    }

    fn place(&self, hasher: &RandomState, key: TopicKey<'_>, index: i32) -> Option<usize> {
        let place = *self.places.get(&hash(hasher, key, index))? as usize;
        self.partitions
            .get(place)
            .is_some_and(|partition| partition.is(key, index))
            .then_some(place)
    }

    /// Adds or changes `partitions`, and removes `forgotten`.
    fn update(
        &mut self,
        partitions: &mut Vec<FetchPartition>,
        forgotten: &[(TopicRef, i32)],
        hasher: &RandomState,
    ) {
        for partition in partitions.drain(..) {
            let key = partition.topic.key(self.by_id);
            match self.place(hasher, key, partition.index) {
                Some(place) => self.partitions[place].requested = partition.requested,
                None => {
                    let place = self.partitions.len() as u32;
                    self.places
                        .insert(hash(hasher, key, partition.index), place);
                    self.weight += partition.weight();
                    self.partitions.push(partition);
                }
            }
        }
        for (topic, index) in forgotten {
            let key = topic.key(self.by_id);
            let Some(place) = self.place(hasher, key, *index) else {
                continue;
            };
            self.places.remove(&hash(hasher, key, *index));
            self.weight -= self.partitions.swap_remove(place).weight().min(self.weight);
            if let Some(moved) = self.partitions.get(place) {
                let hash = hash(hasher, moved.topic.key(self.by_id), moved.index);
                self.places.insert(hash, place as u32);
            }
        }
    }
}

fn hash(hasher: &RandomState, key: TopicKey<'_>, index: i32) -> u64 {
    hasher.hash_one((key, index))
}

impl SessionLease {
    pub(crate) fn session(&self) -> Option<&FetchSession> {
        self.session.as_deref()
    }

    pub(crate) fn session_mut(&mut self) -> Option<&mut FetchSession> {
        self.session.as_deref_mut()
    }

    /// Puts the session back into the cache, after its answer is written.
    pub(crate) fn release(mut self) {
        if let Some(session) = self.session.take() {
            self.sessions.put_back(session);
        }
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.sessions.end(session.id);
        }
    }
}
