//! Consumer groups: the group coordinator, with members, committed offsets and timeouts.
//!
//! [`group::Group`] is one group as a pure state machine. [`Groups`] has all groups, drives their
//! timeouts and writes their records to the state journal. The broker stores committed offsets; the
//! group decides whether a commit is accepted.
//!
//! Lock order: the table of groups, then a group, then the timers or the journal queue; never two
//! groups at once. No lock is held while the journal is written.

mod admin;
mod group;
mod join;
mod member;
mod rebalance;
pub(crate) mod reply;
mod requests;
mod snapshots;
mod store;
mod subscription;
mod writer;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_random;
#[cfg(test)]
mod tests_states;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use cloverleaf_broker::Realm;
use cloverleaf_session::Now;
use parking_lot::{Mutex, RwLock};

use crate::answer::{Reply, promise};
use crate::context::Worker;
use crate::error_code::ErrorCode;
use crate::options::KafkaOptions;

pub use admin::{GroupView, MemberView};
pub(crate) use group::ClockReading;
use group::{Group, GroupLimits};
pub(crate) use member::GroupProtocol;
use reply::{JoinAnswer, JoinRequest, MemberIdentity, SyncAnswer, SyncRequest};
pub use snapshots::{GroupSnapshot, MemberSnapshot};
use store::AfterWrite;
#[doc(hidden)]
pub use store::is_stored_group;
pub(crate) use writer::{CommitOutcome, OffsetCommits};

/// Maximum bytes of one member: its ids, its protocols and their metadata. A consumer that
/// subscribes to a thousand topics by name needs a twentieth of it.
pub(crate) const MEMBER_BYTES_MAX: usize = 1 << 20;

/// Maximum bytes of a group with all its members, because it is one entry of the journal.
pub(crate) const GROUP_BYTES_MAX: usize = 8 << 20;

/// Maximum bytes of all groups together, without offsets. The broker keeps a second copy of the
/// groups, for the journal's snapshots.
pub(crate) const GROUPS_BYTES_MAX: usize = 256 << 20;

/// How long the JoinGroup of a new member may wait, in milliseconds, as in Kafka: the member cannot
/// send heartbeats yet.
const NEW_MEMBER_TIMEOUT_MS: u64 = 5 * 60_000;

/// Interval between two checks for expired offsets, in milliseconds. Kafka checks every 10 minutes
/// (`offsets.retention.check.interval.ms`); a check costs less here.
const RETENTION_CHECK_MS: u64 = 60_000;

/// Prefix of the keys of groups in the state journal. Stable: the keys are stored.
const KEY_PREFIX: &str = "kafka-group/";

fn key(name: &str) -> String {
    format!("{KEY_PREFIX}{name}")
}

/// All groups of a namespace.
pub struct Groups {
    realm: Realm,
    worker: Arc<dyn Worker>,
    limits: GroupLimits,
    groups_max: usize,
    offsets_retention_ms: u64,
    table: RwLock<HashMap<Arc<str>, Arc<Mutex<GroupSlot>>>>,
    timers: Mutex<BTreeSet<(u64, Arc<str>)>>,
    queue: writer::JournalQueue,
    /// Bytes of all groups together, without offsets.
    bytes: AtomicUsize,
    /// When the next tick is due, in milliseconds: the time that the last one returned, or an
    /// earlier one if a group has set an earlier timeout since.
    next_tick_ms: AtomicU64,
    /// The latest monotonic time that was passed in, in milliseconds.
    now_ms: AtomicU64,
    /// When the next check for expired offsets is due, in milliseconds.
    retention_due_ms: AtomicU64,
    /// The session timeouts of the members that were loaded from the journal have been started.
    are_sessions_started: AtomicBool,
    /// The broker is shutting down: no request waits for other members any more.
    is_ending: AtomicBool,
    on_due: RwLock<Option<Box<dyn Fn() + Send + std::marker::Sync>>>,
}

/// A group, and its share of the totals and the timers.
struct GroupSlot {
    group: Group,
    /// The bytes for which it counts in `Groups::bytes`.
    counted_bytes: usize,
    /// The time of its entry in `Groups::timers`, in milliseconds; `u64::MAX`: it has none.
    timer_ms: u64,
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups")
            .field("groups", &self.table.read().len())
            .finish()
    }
}

impl Groups {
    /// Loads the groups from the state journal.
    pub fn new(realm: Realm, worker: Arc<dyn Worker>, options: &KafkaOptions) -> Arc<Self> {
        let groups = Self {
            worker,
            limits: GroupLimits {
                members_max: options.group_members_max,
                initial_delay_ms: options.initial_rebalance_delay_ms,
                member_bytes_max: MEMBER_BYTES_MAX,
                group_bytes_max: GROUP_BYTES_MAX,
                new_member_timeout_ms: NEW_MEMBER_TIMEOUT_MS,
            },
            groups_max: options.groups_max,
            offsets_retention_ms: options.offsets_retention_ms,
            table: RwLock::default(),
            timers: Mutex::default(),
            queue: writer::JournalQueue::default(),
            bytes: AtomicUsize::new(0),
            next_tick_ms: AtomicU64::new(u64::MAX),
            now_ms: AtomicU64::new(0),
            retention_due_ms: AtomicU64::new(0),
            are_sessions_started: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            on_due: RwLock::default(),
            realm,
        };
        groups.load();
        Arc::new(groups)
    }

    fn load(&self) {
        let unix_ms = self.realm.now_ms();
        let mut table = self.table.write();
        for (key, value) in self.realm.kept_under(KEY_PREFIX) {
            let name: Arc<str> = key[KEY_PREFIX.len()..].into();
            match Group::decode(name.clone(), &value) {
                Ok(group) => drop(table.insert(name, self.slot(group))),
                // Its members will rejoin. That is better than a broker that does not start.
                Err(error) => tracing::error!(group = %name, %error, "a group is left out"),
            }
        }
        for name in self.realm.groups_with_offsets() {
            let name: Arc<str> = name.into();
            table
                .entry(name.clone())
                .or_insert_with(|| self.slot(Group::new(name, unix_ms)));
        }
    }

    fn slot(&self, group: Group) -> Arc<Mutex<GroupSlot>> {
        let counted_bytes = group.bytes();
        self.bytes.fetch_add(counted_bytes, Ordering::Relaxed);
        Arc::new(Mutex::new(GroupSlot {
            group,
            counted_bytes,
            timer_ms: u64::MAX,
        }))
    }

    /// Calls `hook` when a timeout is set that is due before the time that the last
    /// [`Groups::tick`] returned, so that the caller ticks earlier. The hook must not call
    /// `Groups`.
    pub fn on_due(&self, hook: Box<dyn Fn() + Send + std::marker::Sync>) {
        *self.on_due.write() = Some(hook);
    }

    /// Handles all timeouts that are due at `now_ms`, a monotonic time in milliseconds (the clock
    /// of [`cloverleaf_session::Now`]). Returns the time at which it has to be called again.
    pub fn tick(self: &Arc<Self>, now_ms: u64) -> u64 {
        let at = self.note_time(now_ms);
        if !self.are_sessions_started.swap(true, Ordering::AcqRel) {
            self.retention_due_ms
                .store(now_ms.saturating_add(RETENTION_CHECK_MS), Ordering::Release);
            for (_, slot) in self.all() {
                self.with_group(&slot, |group| group.start_sessions(at));
            }
        }
        if self.retention_due_ms.load(Ordering::Acquire) <= now_ms {
            self.retention_due_ms
                .store(now_ms.saturating_add(RETENTION_CHECK_MS), Ordering::Release);
            self.expire_offsets();
        }
        loop {
            let due: Vec<Arc<str>> = {
                let mut timers = self.timers.lock();
                let later = timers.split_off(&(now_ms.saturating_add(1), "".into()));
                let due = std::mem::replace(&mut *timers, later);
                due.into_iter().map(|(_, name)| name).collect()
            };
            if due.is_empty() {
                break;
            }
            for name in due {
                if let Some(slot) = self.find(&name) {
                    slot.lock().timer_ms = u64::MAX;
                    self.with_group(&slot, |group| group.expire(&self.limits, at));
                }
            }
        }
        let timers = self.timers.lock();
        let next_ms = timers.first().map_or(u64::MAX, |(due_ms, _)| *due_ms);
        let next_ms = next_ms.min(self.retention_due_ms.load(Ordering::Acquire));
        self.next_tick_ms.store(next_ms, Ordering::Release);
        next_ms
    }

    fn note_time(&self, now_ms: u64) -> ClockReading {
        self.now_ms.fetch_max(now_ms, Ordering::AcqRel);
        ClockReading {
            ms: now_ms,
            unix_ms: self.realm.now_ms(),
        }
    }

    /// Both clocks at the time of a request.
    pub(crate) fn at(&self, now: Now) -> ClockReading {
        self.now_ms.fetch_max(now.us / 1000, Ordering::AcqRel);
        ClockReading {
            ms: now.us / 1000,
            unix_ms: self.realm.now_ms(),
        }
    }

    fn find(&self, name: &str) -> Option<Arc<Mutex<GroupSlot>>> {
        self.table.read().get(name).cloned()
    }

    fn find_or_create(
        &self,
        name: &str,
        at: ClockReading,
    ) -> Result<Arc<Mutex<GroupSlot>>, ErrorCode> {
        if let Some(slot) = self.find(name) {
            return Ok(slot);
        }
        let mut table = self.table.write();
        if let Some(slot) = table.get(name) {
            return Ok(slot.clone());
        }
        if table.len() >= self.groups_max || self.bytes_left() == 0 {
            tracing::warn!(group = name, "a group is refused: there are too many");
            return Err(ErrorCode::GroupMaxSizeReached);
        }
        let name: Arc<str> = name.into();
        let slot = self.slot(Group::new(name.clone(), at.unix_ms));
        table.insert(name, slot.clone());
        Ok(slot)
    }

    /// Creates the group again if it was deleted between the acceptance and the write of a commit,
    /// as if the commit had come after the deletion.
    fn recreate(&self, name: &str) {
        let ms = self.now_ms.load(Ordering::Acquire);
        let at = ClockReading {
            ms,
            unix_ms: self.realm.now_ms(),
        };
        let _refused_if_too_many = self.find_or_create(name, at);
    }

    fn bytes_left(&self) -> usize {
        GROUPS_BYTES_MAX.saturating_sub(self.bytes.load(Ordering::Relaxed))
    }

    fn all(&self) -> Vec<(Arc<str>, Arc<Mutex<GroupSlot>>)> {
        let table = self.table.read();
        table
            .iter()
            .map(|(name, slot)| (name.clone(), slot.clone()))
            .collect()
    }

    /// Runs `act` on a group, then handles the consequences: records for the journal, byte counts,
    /// timeouts.
    fn with_group<R>(
        self: &Arc<Self>,
        slot: &Mutex<GroupSlot>,
        act: impl FnOnce(&mut Group) -> R,
    ) -> R {
        let mut slot = slot.lock();
        let result = act(&mut slot.group);
        let pending_writes = std::mem::take(&mut slot.group.pending_writes);
        let has_writes = !pending_writes.is_empty();
        for record_write in pending_writes {
            slot.group.is_stored = true;
            self.queue.push_group(&slot.group.name, record_write);
        }
        let bytes = slot.group.bytes();
        let counted = std::mem::replace(&mut slot.counted_bytes, bytes);
        self.bytes
            .fetch_add(bytes.wrapping_sub(counted), Ordering::Relaxed);
        let due_ms = slot.group.due_hint_ms;
        let is_earlier = due_ms < slot.timer_ms;
        let mut is_earliest = false;
        if is_earlier {
            let before_ms = std::mem::replace(&mut slot.timer_ms, due_ms);
            let name = slot.group.name.clone();
            let mut timers = self.timers.lock();
            timers.remove(&(before_ms, name.clone()));
            timers.insert((due_ms, name));
            // Under the lock of the timers, under which `tick` also sets this time.
            is_earliest = due_ms < self.next_tick_ms.fetch_min(due_ms, Ordering::AcqRel);
        }
        drop(slot);
        if has_writes {
            self.write();
        }
        if is_earliest && let Some(hook) = &*self.on_due.read() {
            hook();
        }
        result
    }

    /// Shuts down: requests that wait for other members, now or later, are answered with
    /// COORDINATOR_NOT_AVAILABLE, so that no connection is delayed. The groups stay as they are,
    /// and the next start loads them.
    pub fn end_waits(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        for (_, slot) in self.all() {
            slot.lock().group.end_waits();
        }
    }

    /// To be called under the group's lock after a request has begun to wait. During a shutdown
    /// either this call or [`Groups::end_waits`] answers the request; otherwise this call does
    /// nothing.
    fn end_waits_of(&self, group: &mut Group) {
        if self.is_ending.load(Ordering::SeqCst) {
            group.end_waits();
        }
    }

    /// Handles a JoinGroup.
    pub(crate) fn join(
        self: &Arc<Self>,
        name: &str,
        join: JoinRequest,
        at: ClockReading,
    ) -> Reply<JoinAnswer> {
        let (promise, reply) = promise();
        let slot = if join.member_id.is_empty() {
            self.find_or_create(name, at)
        } else {
            self.find(name).ok_or(ErrorCode::UnknownMemberId)
        };
        let slot = match slot {
            Ok(_) if join.bytes() > self.bytes_left() => Err(ErrorCode::GroupMaxSizeReached),
            slot => slot,
        };
        match slot {
            Ok(slot) => self.with_group(&slot, |group| {
                group.join(join, promise, &self.limits, at);
                self.end_waits_of(group);
            }),
            Err(error) => promise.keep(JoinAnswer::refused(&join.member_id, error)),
        }
        reply
    }

    /// Handles a SyncGroup.
    pub(crate) fn sync(self: &Arc<Self>, name: &str, sync: SyncRequest) -> Reply<SyncAnswer> {
        let (promise, reply) = promise();
        match self.find(name) {
            Some(_) if sync.assignments_bytes() > self.bytes_left() => {
                promise.keep(SyncAnswer::refused(ErrorCode::GroupMaxSizeReached));
            }
            Some(slot) => self.with_group(&slot, |group| {
                group.sync(sync, promise, &self.limits);
                self.end_waits_of(group);
            }),
            None => promise.keep(SyncAnswer::refused(ErrorCode::UnknownMemberId)),
        }
        reply
    }

    /// Handles a Heartbeat.
    pub(crate) fn heartbeat(
        self: &Arc<Self>,
        name: &str,
        who: &MemberIdentity,
        generation: i32,
        at: ClockReading,
    ) -> ErrorCode {
        match self.find(name) {
            Some(slot) => self.with_group(&slot, |group| group.heartbeat(who, generation, at)),
            None => ErrorCode::UnknownMemberId,
        }
    }

    /// Handles a LeaveGroup. Returns the outcome of each member, or an error of the whole request.
    pub(crate) fn leave(
        self: &Arc<Self>,
        name: &str,
        members: &[(MemberIdentity, Option<String>)],
        at: ClockReading,
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        match self.find(name) {
            Some(slot) => self.with_group(&slot, |group| group.leave(members, &self.limits, at)),
            None => Ok(vec![ErrorCode::UnknownMemberId; members.len()]),
        }
    }

    /// Queues a commit of offsets, if the member may commit them. A commit without a generation
    /// creates the group if it does not exist: a consumer that assigns its own partitions sends it.
    ///
    /// # Errors
    /// The member may not commit. Nothing is written.
    pub(crate) fn commit(
        self: &Arc<Self>,
        name: &str,
        who: &MemberIdentity,
        generation: i32,
        commits: OffsetCommits,
        at: ClockReading,
    ) -> Result<Reply<CommitOutcome>, ErrorCode> {
        let slot = if generation < 0 {
            self.find_or_create(name, at)?
        } else {
            self.find(name).ok_or(ErrorCode::GroupIdNotFound)?
        };
        // Queued under the group's lock, under which it was accepted. Otherwise members of the next
        // generation could fetch the older offsets first, before this commit takes effect.
        let reply = self.with_group(&slot, |group| {
            group.check_commit(who, generation, at)?;
            Ok(self.queue.push_commits(name, commits))
        })?;
        self.write();
        Ok(reply)
    }

    /// Passes the outcome of a journal write to the group.
    fn record_written(
        self: &Arc<Self>,
        name: &str,
        after_write: AfterWrite,
        outcome: Result<(), ErrorCode>,
    ) {
        let ms = self.now_ms.load(Ordering::Acquire);
        let at = ClockReading {
            ms,
            unix_ms: self.realm.now_ms(),
        };
        if let Some(slot) = self.find(name) {
            self.with_group(&slot, |group| {
                group.record_written(after_write, outcome, &self.limits, at)
            });
        }
    }
}
