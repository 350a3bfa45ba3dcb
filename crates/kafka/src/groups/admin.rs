//! Admin operations on groups, and the expiry of committed offsets.

use std::collections::HashMap;
use std::sync::Arc;

use cloverleaf_access::Operation;
use parking_lot::Mutex;
use uuid::Uuid;

use super::reply::{DescribedMember, GroupDescription};
use super::writer::of_write;
use super::{GroupSlot, Groups, key};
use crate::error_code::ErrorCode;

/// Number of groups that are checked for expired offsets before the worker yields to other jobs.
const RETENTION_GROUPS: usize = 256;

/// A group as ListGroups shows it.
#[derive(Debug, Clone)]
pub(crate) struct GroupListing {
    pub(crate) name: Arc<str>,
    pub(crate) state: &'static str,
    pub(crate) protocol_type: String,
}

/// A group as the admin interface shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupView {
    /// Its name.
    pub name: String,
    /// Kafka's name of its state.
    pub state: &'static str,
    /// Its members.
    pub members: Vec<MemberView>,
}

/// A member as the admin interface shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    /// The member id.
    pub id: String,
    /// The `group.instance.id` of a static member (KIP-345).
    pub instance: Option<String>,
    /// The client's `client.id`.
    pub client_id: String,
    /// The client's address, after a slash.
    pub host: String,
}

impl Groups {
    /// One group, for the admin interface.
    pub fn view(&self, name: &str) -> Option<GroupView> {
        let group = self.describe(name)?;
        let member = |member: DescribedMember| MemberView {
            id: member.id,
            instance: member.instance,
            client_id: member.client_id,
            host: member.client_host,
        };
        Some(GroupView {
            name: name.to_owned(),
            state: group.state,
            members: group.members.into_iter().map(member).collect(),
        })
    }

    /// All groups, for the admin interface, sorted by name.
    pub fn views(&self) -> Vec<GroupView> {
        let groups = self.list().into_iter();
        groups.filter_map(|group| self.view(&group.name)).collect()
    }

    /// One group, as DescribeGroups shows it.
    pub(crate) fn describe(&self, name: &str) -> Option<GroupDescription> {
        self.find(name).map(|slot| slot.lock().group.describe())
    }

    /// All groups, sorted by name.
    pub(crate) fn list(&self) -> Vec<GroupListing> {
        let listed = |(name, slot): (Arc<str>, Arc<Mutex<GroupSlot>>)| {
            let slot = slot.lock();
            GroupListing {
                name,
                state: slot.group.state().name(),
                protocol_type: slot.group.protocol_type().to_owned(),
            }
        };
        let mut all: Vec<GroupListing> = self.all().into_iter().map(listed).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Deletes a group without members, with its offsets. May block on the disk: only for the
    /// worker.
    pub(crate) fn delete(self: &Arc<Self>, name: &str) -> ErrorCode {
        let Some(slot) = self.find(name) else {
            return ErrorCode::GroupIdNotFound;
        };
        let at = self.note_time(self.now_ms.load(std::sync::atomic::Ordering::Acquire));
        match self.with_group(&slot, |group| group.delete(at)) {
            Ok(()) => self.delete_dead(name, &slot),
            Err(error) => error,
        }
    }

    /// Deletes a group that is dead, so no request changes it any more.
    fn delete_dead(self: &Arc<Self>, name: &str, slot: &Mutex<GroupSlot>) -> ErrorCode {
        let is_stored = slot.lock().group.is_stored;
        let mut deleted = self.realm.delete_group(name).map(drop);
        if deleted.is_ok() && is_stored {
            deleted = self.realm.put_value(&key(name), None);
        }
        if let Err(error) = deleted {
            tracing::error!(group = name, %error, "a group cannot be deleted");
            self.with_group(slot, super::Group::revive);
            return of_write(&error);
        }
        self.table.write().remove(name);
        let slot = slot.lock();
        self.bytes
            .fetch_sub(slot.counted_bytes, std::sync::atomic::Ordering::Relaxed);
        self.timers
            .lock()
            .remove(&(slot.timer_ms, slot.group.name.clone()));
        ErrorCode::None
    }

    /// Deletes committed offsets of a group that are not in use. Returns the outcome of each topic.
    /// May block on the disk: only for the worker.
    pub(crate) fn delete_offsets(
        self: &Arc<Self>,
        name: &str,
        topics: &[(String, Vec<u32>)],
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        let slot = self.find(name).ok_or(ErrorCode::GroupIdNotFound)?;
        let mut outcomes = Vec::new();
        let mut places: Vec<(Uuid, u32)> = Vec::new();
        {
            let slot = slot.lock();
            slot.group.check_delete_offsets()?;
            for (topic, partitions) in topics {
                if slot.group.is_subscribed_to(topic) {
                    outcomes.push(ErrorCode::GroupSubscribedToTopic);
                    continue;
                }
                outcomes.push(ErrorCode::None);
                if let Ok(topic) = self.realm.topic(Operation::Describe, topic) {
                    places.extend(partitions.iter().map(|partition| (topic.id(), *partition)));
                }
            }
        }
        match self.realm.delete_offsets(name, &places) {
            Ok(()) => Ok(outcomes),
            Err(error) => Err(of_write(&error)),
        }
    }

    /// Lets the worker delete the offsets that have expired.
    pub(super) fn expire_offsets(self: &Arc<Self>) {
        let names = self.all().into_iter().map(|(name, _)| name).collect();
        self.expire_offsets_of(names);
    }

    fn expire_offsets_of(self: &Arc<Self>, mut names: Vec<Arc<str>>) {
        let later = names.split_off(names.len().min(RETENTION_GROUPS));
        let groups = self.clone();
        self.after_writes(move || {
            let mut topics = HashMap::new();
            for name in names {
                groups.expire_offsets_in(&name, &mut topics);
            }
            if !later.is_empty() {
                groups.expire_offsets_of(later);
            }
        });
    }

    fn expire_offsets_in(self: &Arc<Self>, name: &str, topics: &mut HashMap<Uuid, Option<String>>) {
        let Some(slot) = self.find(name) else {
            return;
        };
        let unix_ms = self.realm.now_ms();
        let offsets = self.realm.committed_offsets(name);
        let all = offsets.len();
        let expired: Vec<(Uuid, u32)> = {
            let slot = slot.lock();
            let name_of = |id: Uuid| {
                self.realm
                    .topic_by_id(Operation::Describe, id)
                    .ok()
                    .map(|topic| topic.name().to_owned())
            };
            let mut is_expired = |committed: &cloverleaf_broker::Committed| {
                let topic = topics
                    .entry(committed.topic)
                    .or_insert_with(|| name_of(committed.topic));
                slot.group
                    .unused_since(topic.as_deref(), committed.committed_ms)
                    .is_some_and(|ms| unix_ms.saturating_sub(ms) >= self.offsets_retention_ms)
            };
            let expired = offsets.iter().filter(|committed| is_expired(committed));
            expired
                .map(|committed| (committed.topic, committed.partition))
                .collect()
        };
        if !expired.is_empty() {
            tracing::info!(
                group = name,
                offsets = expired.len(),
                "offsets that nobody uses expire"
            );
            if let Err(error) = self.realm.delete_offsets(name, &expired) {
                tracing::warn!(group = name, %error, "offsets cannot be deleted");
                return;
            }
        }
        let is_unused = slot.lock().group.is_unused();
        if expired.len() == all && is_unused {
            self.delete(name);
        }
    }
}
