//! The only way from a session to the broker's topics, consumer groups and the values that
//! protocols keep in the journal. A realm sees the names of one namespace; each call on a topic or
//! a group is for one operation, so that rights are checked in one place.
//!
//! Rights are checked when something is looked up, created or deleted, never per message. A session
//! that caches what it looked up stores [`Realm::generation`] beside it, and looks it up again once
//! the generation has changed.

use std::sync::Arc;

use cloverleaf_access::{Grants, Operation, Principal, Resource, ResourceKind};
use cloverleaf_log::{DiskSpace, Pending};
use uuid::Uuid;

use crate::broker::{Broker, CatalogError};
use crate::committed::Committed;
use crate::namespace::Namespace;
use crate::options::{BrokerOptions, SubscriptionOptions, TopicOptions};
use crate::subscription::Subscription;
use crate::topic::Topic;
use crate::topic::published::WriteBudget;
use crate::topic::settings::TopicOptionChanges;

/// One namespace of a broker, with the rights of one user. Cheap to clone.
#[derive(Clone)]
pub struct Realm {
    broker: Broker,
    namespace: Namespace,
    /// `None`: a client without a name, or a broker without rules. Everything is allowed.
    rights: Option<Arc<Rights>>,
    /// How often the rights were replaced.
    revision: u64,
}

struct Rights {
    principal: Principal,
    grants: Arc<Grants>,
}

/// Why a client does not get a topic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicUnavailable {
    /// There is no such topic.
    #[error("there is no such topic")]
    Unknown,
    /// No rule allows it, or a rule denies it.
    #[error("not allowed")]
    Denied,
}

impl std::fmt::Debug for Realm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let principal = self.rights.as_ref().map(|rights| &rights.principal);
        f.debug_struct("Realm")
            .field("namespace", &self.namespace)
            .field("principal", &principal)
            .finish_non_exhaustive()
    }
}

impl Realm {
    /// A namespace with all rights.
    pub fn new(broker: Broker, namespace: Namespace) -> Self {
        Self {
            broker,
            namespace,
            rights: None,
            revision: 0,
        }
    }

    /// The default namespace with all rights.
    pub fn unrestricted(broker: Broker) -> Self {
        Self::new(broker, Namespace::DEFAULT)
    }

    /// The same namespace without checks of rights, for the broker's own work.
    pub fn with_all_rights(&self) -> Self {
        Self::new(self.broker.clone(), self.namespace.clone())
    }

    /// Sets the user: from now on `grants` decide what `principal` may do.
    pub fn set_user(&mut self, principal: Principal, grants: impl Into<Arc<Grants>>) {
        self.rights = Some(Arc::new(Rights {
            principal,
            grants: grants.into(),
        }));
        self.revision += 1;
    }

    /// Whether the principal may do `operation` with the object `name`. `topic` is the topic of an
    /// NSQ channel, and empty for other kinds.
    #[inline]
    pub fn may(&self, operation: Operation, kind: ResourceKind, topic: &str, name: &str) -> bool {
        let Some(rights) = &self.rights else {
            return true;
        };
        let resource = Resource {
            namespace: self.namespace.as_str(),
            kind,
            topic,
            name,
        };
        rights.grants.may(&rights.principal, operation, &resource)
    }

    /// Whether everything is allowed, so that callers can skip their checks.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.rights.is_none()
    }

    fn may_topic(&self, operation: Operation, name: &str) -> bool {
        self.may(operation, ResourceKind::Topic, "", name)
    }

    fn check(
        &self,
        operation: Operation,
        kind: ResourceKind,
        name: &str,
    ) -> Result<(), CatalogError> {
        if self.may(operation, kind, "", name) {
            Ok(())
        } else {
            Err(CatalogError::Denied {
                name: name.to_owned(),
            })
        }
    }

    /// Changes with each definition that is created, changed or deleted, and when the rights are
    /// replaced: cached lookups and permissions are invalid then.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.broker.generation() + self.revision
    }

    /// The topic with that name.
    ///
    /// # Errors
    /// There is no such topic, or access is denied.
    pub fn topic(&self, operation: Operation, name: &str) -> Result<Arc<Topic>, TopicUnavailable> {
        if !self.may_topic(operation, name) {
            return Err(TopicUnavailable::Denied);
        }
        let topic = self.broker.topic(self.namespace.name(name));
        topic.ok_or(TopicUnavailable::Unknown)
    }

    /// The topic with that id.
    ///
    /// # Errors
    /// There is no such topic in this namespace, or access is denied.
    pub fn topic_by_id(
        &self,
        operation: Operation,
        id: Uuid,
    ) -> Result<Arc<Topic>, TopicUnavailable> {
        let topic = self.broker.topic_by_id(id);
        let topic = topic.filter(|topic| *topic.full_name().namespace == self.namespace);
        let topic = topic.ok_or(TopicUnavailable::Unknown)?;
        if self.may_topic(operation, topic.name()) {
            Ok(topic)
        } else {
            Err(TopicUnavailable::Denied)
        }
    }

    /// The topic with that name, created if there is none. `operation` is checked in both cases: in
    /// some protocols the right to publish includes creating the topic.
    ///
    /// # Errors
    /// Access is denied, or the topic cannot be created.
    pub fn topic_or_create(
        &self,
        operation: Operation,
        name: &str,
        options: impl FnOnce() -> TopicOptions,
    ) -> Result<Arc<Topic>, CatalogError> {
        self.check(operation, ResourceKind::Topic, name)?;
        let name = self.namespace.name(name);
        self.broker.topic_or_create(name, options)
    }

    /// An NSQ channel (a subscription by name) to consume from; it and its topic are created if
    /// missing.
    ///
    /// # Errors
    /// Access is denied, or the channel cannot be created.
    pub fn channel_or_create(
        &self,
        topic: &str,
        channel: &str,
        topic_options: impl FnOnce() -> TopicOptions,
        options: impl FnOnce() -> SubscriptionOptions,
    ) -> Result<Arc<Subscription>, CatalogError> {
        if !self.may(Operation::Consume, ResourceKind::Channel, topic, channel) {
            let name = channel.to_owned();
            return Err(CatalogError::Denied { name });
        }
        let topic = self.namespace.name(topic);
        let topic = self.broker.topic_or_create(topic, topic_options)?;
        topic.subscription_or_create(channel, options)
    }

    /// As [`Broker::delete_topic`].
    ///
    /// # Errors
    /// Access is denied, or the journal cannot be written.
    pub fn delete_topic(&self, name: &str) -> Result<bool, CatalogError> {
        self.check(Operation::Declare, ResourceKind::Topic, name)?;
        self.broker.delete_topic(self.namespace.name(name))
    }

    /// As [`Broker::delete_topic_if`].
    ///
    /// # Errors
    /// Access is denied, or the journal cannot be written.
    pub fn delete_topic_if(
        &self,
        topic: &Arc<Topic>,
        may_go: impl FnOnce() -> bool,
    ) -> Result<bool, CatalogError> {
        self.check(Operation::Declare, ResourceKind::Topic, topic.name())?;
        self.broker.delete_topic_if(topic, may_go)
    }

    /// The topics that the principal may see, without hidden ones, sorted by name.
    pub fn topics(&self) -> Vec<Arc<Topic>> {
        self.visible(self.broker.topics())
    }

    /// The topics that the principal may see, including hidden ones, in no particular order.
    pub fn all_topics(&self) -> Vec<Arc<Topic>> {
        self.visible(self.broker.all_topics())
    }

    fn visible(&self, mut topics: Vec<Arc<Topic>>) -> Vec<Arc<Topic>> {
        topics.retain(|topic| {
            let name = topic.full_name();
            *name.namespace == self.namespace && self.may_topic(Operation::Describe, name.text)
        });
        topics
    }
}

/// Groups: committed offsets.
impl Realm {
    /// As [`Broker::commit_offsets`].
    ///
    /// # Errors
    /// Access is denied for one of the groups, or the journal cannot be written; then no offset has
    /// changed.
    pub fn commit_offsets(&self, offsets: Vec<Committed>) -> Result<(), CatalogError> {
        for of_one in offsets.chunk_by(|a, b| a.group == b.group) {
            self.check(Operation::Consume, ResourceKind::Group, &of_one[0].group)?;
        }
        self.broker.commit_offsets_in(&self.namespace, offsets)
    }

    /// The committed offsets of a group; empty if the principal may not see the group.
    pub fn committed_offsets(&self, group: &str) -> Vec<Committed> {
        if self.may(Operation::Describe, ResourceKind::Group, "", group) {
            self.broker.committed_offsets(self.namespace.name(group))
        } else {
            Vec::new()
        }
    }

    /// The committed offset of a group for one partition; `None` also if the principal may not see
    /// the group.
    pub fn committed_offset(&self, group: &str, topic: Uuid, partition: u32) -> Option<Committed> {
        let group = if self.may(Operation::Describe, ResourceKind::Group, "", group) {
            self.namespace.name(group)
        } else {
            return None;
        };
        self.broker.committed_offset(group, topic, partition)
    }

    /// The groups that have committed offsets and that the principal may see, sorted.
    pub fn groups_with_offsets(&self) -> Vec<String> {
        let mut groups = self.broker.groups_with_offsets_in(&self.namespace);
        groups.retain(|group| self.may(Operation::Describe, ResourceKind::Group, "", group));
        groups
    }

    /// As [`Broker::delete_offsets`].
    ///
    /// # Errors
    /// Access is denied, or the journal cannot be written; then no offset is removed.
    pub fn delete_offsets(
        &self,
        group: &str,
        partitions: &[(Uuid, u32)],
    ) -> Result<(), CatalogError> {
        self.check(Operation::Consume, ResourceKind::Group, group)?;
        let group = self.namespace.name(group);
        self.broker.delete_offsets(group, partitions)
    }

    /// As [`Broker::delete_group`].
    ///
    /// # Errors
    /// Access is denied, or the journal cannot be written; then the offsets stay.
    pub fn delete_group(&self, group: &str) -> Result<bool, CatalogError> {
        self.check(Operation::Declare, ResourceKind::Group, group)?;
        self.broker.delete_group(self.namespace.name(group))
    }
}

/// Values that protocols store for themselves, in this namespace.
impl Realm {
    /// As [`Broker::put_value`].
    ///
    /// # Errors
    /// The journal cannot be written; then the old value stays.
    pub fn put_value(&self, key: &str, value: Option<Vec<u8>>) -> Result<(), CatalogError> {
        self.broker.put_value(self.namespace.name(key), value)
    }

    /// As [`Broker::put_value_with`].
    ///
    /// # Errors
    /// The journal cannot be written; then nothing has changed.
    pub fn put_value_with(
        &self,
        key: &str,
        value: Option<Vec<u8>>,
        options: impl FnOnce() -> TopicOptionChanges,
    ) -> Result<(), CatalogError> {
        let key = self.namespace.name(key);
        self.broker.put_value_with(key, value, options)
    }

    /// The value stored under `key`.
    pub fn value(&self, key: &str) -> Option<Vec<u8>> {
        self.broker.value(self.namespace.name(key))
    }

    /// All values whose keys begin with `prefix`, sorted by key.
    pub fn kept_under(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        self.broker.kept_under(self.namespace.name(prefix))
    }

    /// As [`Broker::route_dead`], for this namespace.
    pub fn route_dead(
        &self,
        to: &str,
        on_dead: impl Fn(&Arc<Subscription>) + Send + Sync + 'static,
    ) {
        self.broker.route_dead(self.namespace.name(to), on_dead);
    }
}

/// Calls about the broker as a whole, which need no rights.
impl Realm {
    /// The limit on bytes that are accepted but not yet written.
    #[inline]
    pub fn write_budget(&self) -> &Arc<WriteBudget> {
        self.broker.write_budget()
    }

    /// The broker's options.
    pub fn options(&self) -> &BrokerOptions {
        self.broker.options()
    }

    /// Milliseconds since the Unix epoch, by the broker's clock.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.broker.now_ms()
    }

    /// As [`Broker::starts`].
    pub fn starts(&self) -> u64 {
        self.broker.starts()
    }

    /// As [`Broker::cluster_id`].
    pub fn cluster_id(&self) -> Uuid {
        self.broker.cluster_id()
    }

    /// As [`Broker::is_closed`].
    pub fn is_closed(&self) -> bool {
        self.broker.is_closed()
    }

    /// As [`Broker::is_storage_full`].
    pub fn is_storage_full(&self) -> bool {
        self.broker.is_storage_full()
    }

    /// As [`Broker::disk_space`].
    ///
    /// # Errors
    /// The system call failed.
    pub fn disk_space(&self) -> std::io::Result<DiskSpace> {
        self.broker.disk_space()
    }

    /// As [`Broker::check_partitions`].
    ///
    /// # Errors
    /// The broker's limit of partitions would be exceeded.
    pub fn check_partitions(&self, more: u32) -> Result<(), CatalogError> {
        self.broker.check_partitions(more)
    }

    /// As [`Broker::sync_definitions`].
    ///
    /// # Errors
    /// The journal cannot be synced.
    pub fn sync_definitions(&self) -> Result<(), CatalogError> {
        self.broker.sync_definitions()
    }

    /// As [`Broker::state_synced`].
    ///
    /// # Errors
    /// The journal has failed.
    pub fn state_synced(&self) -> Result<Pending, CatalogError> {
        self.broker.state_synced()
    }

    /// As [`Broker::on_change`].
    pub fn on_change(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.broker.on_change(listener);
    }

    /// Whether any group of any namespace has committed offsets of a topic.
    pub fn is_committed(&self, topic: Uuid) -> bool {
        self.broker.is_committed(topic)
    }
}
