//! Groups as the doctor sees them: the partitions of each member.

use std::sync::Arc;

use super::group::{CONSUMER_TYPE, GroupState};
use super::reply::GroupDescription;
use super::{Groups, subscription};

/// A stable consumer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSnapshot {
    /// Its name.
    pub name: Arc<str>,
    /// Its members.
    pub members: Vec<MemberSnapshot>,
}

/// A member of a stable consumer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberSnapshot {
    /// The client's `client.id`.
    pub client_id: String,
    /// The client's address, after a slash.
    pub host: String,
    /// The topics that it subscribes to.
    pub topics: Vec<String>,
    /// Its assigned partitions, by topic.
    pub partitions: Vec<(String, Vec<u32>)>,
}

impl Groups {
    /// All stable consumer groups, sorted by name. Each group is locked only while its members are
    /// listed.
    pub fn snapshots(&self) -> Vec<GroupSnapshot> {
        let mut looks = Vec::new();
        for (name, slot) in self.all() {
            let described = {
                let slot = slot.lock();
                let is_read = slot.group.state() == GroupState::Stable
                    && slot.group.protocol_type() == CONSUMER_TYPE;
                is_read.then(|| slot.group.describe())
            };
            looks.extend(described.map(|group| look(name, group)));
        }
        looks.sort_by(|a, b| a.name.cmp(&b.name));
        looks
    }
}

fn look(name: Arc<str>, group: GroupDescription) -> GroupSnapshot {
    let members = group.members.into_iter().map(|member| MemberSnapshot {
        topics: subscription::topics(&member.metadata).unwrap_or_default(),
        partitions: subscription::assigned(&member.assignment).unwrap_or_default(),
        client_id: member.client_id,
        host: member.client_host,
    });
    GroupSnapshot {
        name,
        members: members.collect(),
    }
}
