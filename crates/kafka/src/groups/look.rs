//! Groups as the doctor looks at them: who reads which partitions.

use std::sync::Arc;

use super::group::{CONSUMER_TYPE, State};
use super::reply::Description;
use super::{Groups, subscription};

/// A group that reads, at rest between two rebalances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupLook {
    /// Its name.
    pub name: Arc<str>,
    /// Its members.
    pub members: Vec<MemberLook>,
}

/// A member of such a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberLook {
    /// The client's name for itself.
    pub client_id: String,
    /// Where it comes from: `/` and its address.
    pub host: String,
    /// The topics that it wants to read.
    pub topics: Vec<String>,
    /// The partitions that it was given, by topic.
    pub partitions: Vec<(String, Vec<u32>)>,
}

impl Groups {
    /// All groups of consumers that are stable, by name. Each is locked for as long as a list of
    /// its members takes.
    pub fn looks(&self) -> Vec<GroupLook> {
        let mut looks = Vec::new();
        for (name, slot) in self.all() {
            let described = {
                let slot = slot.lock();
                let is_read = slot.group.state() == State::Stable
                    && slot.group.protocol_type() == CONSUMER_TYPE;
                is_read.then(|| slot.group.describe())
            };
            looks.extend(described.map(|group| look(name, group)));
        }
        looks.sort_by(|a, b| a.name.cmp(&b.name));
        looks
    }
}

fn look(name: Arc<str>, group: Description) -> GroupLook {
    let members = group.members.into_iter().map(|member| MemberLook {
        topics: subscription::topics(&member.metadata).unwrap_or_default(),
        partitions: subscription::assigned(&member.assignment).unwrap_or_default(),
        client_id: member.client_id,
        host: member.client_host,
    });
    GroupLook {
        name,
        members: members.collect(),
    }
}
