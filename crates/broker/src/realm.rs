//! The only way from a session to the broker's topics, groups and kept values. A realm sees the
//! names of one namespace; each call states its operation, so that rights are checked in one place.
//!
//! Rights are checked when something is looked up, created or deleted, never per message. A session
//! that caches what it looked up stores [`Realm::generation`] beside it, and looks it up again once
//! the generation has changed.

use std::sync::Arc;

use cloverleaf_access::{Grants, Kind, Operation, Principal, Resource};
use cloverleaf_log::{DiskSpace, Pending};
use uuid::Uuid;

use crate::broker::{Broker, CatalogError};
use crate::committed::Committed;
use crate::namespace::Namespace;
use crate::options::{BrokerOptions, SubscriptionOptions, TopicOptions};
use crate::subscription::Subscription;
use crate::topic::Topic;
use crate::topic::published::Room;
use crate::topic::settings::NewOptions;

/// A namespace of a broker, as somebody may use it. Cheap to clone.
#[derive(Clone)]
pub struct Realm {
    broker: Broker,
    namespace: Namespace,
    /// `None`: a client without a name, or of a broker without rules. It may do all.
    rights: Option<Arc<Rights>>,
    /// How often rights were replaced.
    revision: u64,
}

struct Rights {
    principal: Principal,
    grants: Arc<Grants>,
}

/// Why there is no topic for who asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoTopic {
    /// There is none.
    #[error("there is no such topic")]
    Unknown,
    /// No rule allows it, or one denies it.
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
    /// A namespace, with all rights.
    pub fn new(broker: Broker, namespace: Namespace) -> Self {
        Self {
            broker,
            namespace,
            rights: None,
            revision: 0,
        }
    }

    /// The default namespace, with all rights.
    pub fn whole(broker: Broker) -> Self {
        Self::new(broker, Namespace::DEFAULT)
    }

    /// The same namespace without a rights check, for the broker's own work.
    pub fn with_all_rights(&self) -> Self {
        Self::new(self.broker.clone(), self.namespace.clone())
    }

    /// From now on it is used by `principal`, who may do what `grants` say.
    pub fn enter(&mut self, principal: Principal, grants: impl Into<Arc<Grants>>) {
        self.rights = Some(Arc::new(Rights {
            principal,
            grants: grants.into(),
        }));
        self.revision += 1;
    }

    /// Whether the principal may do this with what is called `name`; `topic` is what a channel
    /// belongs to, and empty for the other kinds.
    #[inline]
    pub fn may(&self, operation: Operation, kind: Kind, topic: &str, name: &str) -> bool {
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

    /// Whether everything is allowed, so that nobody has to ask.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.rights.is_none()
    }

    fn may_topic(&self, operation: Operation, name: &str) -> bool {
        self.may(operation, Kind::Topic, "", name)
    }

    fn check(&self, operation: Operation, kind: Kind, name: &str) -> Result<(), CatalogError> {
        if self.may(operation, kind, "", name) {
            Ok(())
        } else {
            Err(CatalogError::Denied {
                name: name.to_owned(),
            })
        }
    }

    /// Rises with each definition that is made, changed or deleted, and with other rights: what was
    /// found and allowed before is to be asked for again.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.broker.generation() + self.revision
    }

    /// The topic of that name.
    ///
    /// # Errors
    /// There is none, or it is not allowed.
    pub fn topic(&self, operation: Operation, name: &str) -> Result<Arc<Topic>, NoTopic> {
        if !self.may_topic(operation, name) {
            return Err(NoTopic::Denied);
        }
        let topic = self.broker.topic(self.namespace.name(name));
        topic.ok_or(NoTopic::Unknown)
    }

    /// The topic with that id.
    ///
    /// # Errors
    /// There is none in this namespace, or it is not allowed.
    pub fn topic_by_id(&self, operation: Operation, id: Uuid) -> Result<Arc<Topic>, NoTopic> {
        let topic = self.broker.topic_by_id(id);
        let topic = topic.filter(|topic| *topic.full_name().namespace == self.namespace);
        let topic = topic.ok_or(NoTopic::Unknown)?;
        if self.may_topic(operation, topic.name()) {
            Ok(topic)
        } else {
            Err(NoTopic::Denied)
        }
    }

    /// The topic of that name, made if there is none. The operation is asked for in both cases: in
    /// some protocols who may publish may make.
    ///
    /// # Errors
    /// It is not allowed, or cannot be made.
    pub fn topic_or_create(
        &self,
        operation: Operation,
        name: &str,
        options: impl FnOnce() -> TopicOptions,
    ) -> Result<Arc<Topic>, CatalogError> {
        self.check(operation, Kind::Topic, name)?;
        let name = self.namespace.name(name);
        self.broker.topic_or_create(name, options)
    }

    /// A channel to consume from, and its topic, both made if need be.
    ///
    /// # Errors
    /// It is not allowed, or cannot be made.
    pub fn channel_or_create(
        &self,
        topic: &str,
        channel: &str,
        topic_options: impl FnOnce() -> TopicOptions,
        options: impl FnOnce() -> SubscriptionOptions,
    ) -> Result<Arc<Subscription>, CatalogError> {
        if !self.may(Operation::Consume, Kind::Channel, topic, channel) {
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
    /// It is not allowed, or the journal does not take it.
    pub fn delete_topic(&self, name: &str) -> Result<bool, CatalogError> {
        self.check(Operation::Declare, Kind::Topic, name)?;
        self.broker.delete_topic(self.namespace.name(name))
    }

    /// As [`Broker::delete_topic_if`].
    ///
    /// # Errors
    /// It is not allowed, or the journal does not take it.
    pub fn delete_topic_if(
        &self,
        topic: &Arc<Topic>,
        may_go: impl FnOnce() -> bool,
    ) -> Result<bool, CatalogError> {
        self.check(Operation::Declare, Kind::Topic, topic.name())?;
        self.broker.delete_topic_if(topic, may_go)
    }

    /// The topics that the principal may see, but for hidden ones, sorted by name.
    pub fn topics(&self) -> Vec<Arc<Topic>> {
        self.seen(self.broker.topics())
    }

    /// The same with hidden ones, in no order.
    pub fn all_topics(&self) -> Vec<Arc<Topic>> {
        self.seen(self.broker.all_topics())
    }

    fn seen(&self, mut topics: Vec<Arc<Topic>>) -> Vec<Arc<Topic>> {
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
    /// It is not allowed for one of the groups, or the journal does not take it; none is changed.
    pub fn commit_offsets(&self, offsets: Vec<Committed>) -> Result<(), CatalogError> {
        for of_one in offsets.chunk_by(|a, b| a.group == b.group) {
            self.check(Operation::Consume, Kind::Group, &of_one[0].group)?;
        }
        self.broker.commit_offsets_in(&self.namespace, offsets)
    }

    /// The committed offsets of a group; none for who may not see it.
    pub fn committed_offsets(&self, group: &str) -> Vec<Committed> {
        if self.may(Operation::Describe, Kind::Group, "", group) {
            self.broker.committed_offsets(self.namespace.name(group))
        } else {
            Vec::new()
        }
    }

    /// The committed offset of a group for one partition, for who may see it.
    pub fn committed_offset(&self, group: &str, topic: Uuid, partition: u32) -> Option<Committed> {
        let group = if self.may(Operation::Describe, Kind::Group, "", group) {
            self.namespace.name(group)
        } else {
            return None;
        };
        self.broker.committed_offset(group, topic, partition)
    }

    /// The groups that have committed offsets and that the principal may see, sorted.
    pub fn groups_with_offsets(&self) -> Vec<String> {
        let mut groups = self.broker.groups_with_offsets_in(&self.namespace);
        groups.retain(|group| self.may(Operation::Describe, Kind::Group, "", group));
        groups
    }

    /// As [`Broker::delete_offsets`].
    ///
    /// # Errors
    /// It is not allowed, or the journal does not take it; none is forgotten.
    pub fn delete_offsets(
        &self,
        group: &str,
        partitions: &[(Uuid, u32)],
    ) -> Result<(), CatalogError> {
        self.check(Operation::Consume, Kind::Group, group)?;
        let group = self.namespace.name(group);
        self.broker.delete_offsets(group, partitions)
    }

    /// As [`Broker::delete_group`].
    ///
    /// # Errors
    /// It is not allowed, or the journal does not take it; they are kept.
    pub fn delete_group(&self, group: &str) -> Result<bool, CatalogError> {
        self.check(Operation::Declare, Kind::Group, group)?;
        self.broker.delete_group(self.namespace.name(group))
    }
}

/// The state that protocols keep for themselves, in their namespace.
impl Realm {
    /// As [`Broker::keep`].
    ///
    /// # Errors
    /// The journal does not take it; the old value is kept.
    pub fn keep(&self, key: &str, value: Option<Vec<u8>>) -> Result<(), CatalogError> {
        self.broker.keep(self.namespace.name(key), value)
    }

    /// As [`Broker::keep_with`].
    ///
    /// # Errors
    /// The journal does not take it; nothing has changed then.
    pub fn keep_with(
        &self,
        key: &str,
        value: Option<Vec<u8>>,
        options: impl FnOnce() -> NewOptions,
    ) -> Result<(), CatalogError> {
        let key = self.namespace.name(key);
        self.broker.keep_with(key, value, options)
    }

    /// The value kept under `key`.
    pub fn kept(&self, key: &str) -> Option<Vec<u8>> {
        self.broker.kept(self.namespace.name(key))
    }

    /// All values whose keys begin with `prefix`, by key.
    pub fn kept_under(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        self.broker.kept_under(self.namespace.name(prefix))
    }

    /// As [`Broker::route_dead`], of this namespace.
    pub fn route_dead(&self, to: &str, told: impl Fn(&Arc<Subscription>) + Send + Sync + 'static) {
        self.broker.route_dead(self.namespace.name(to), told);
    }
}

/// The broker as a whole: what is no matter of names or rights.
impl Realm {
    /// The bound on what is accepted and not yet written.
    #[inline]
    pub fn room(&self) -> &Arc<Room> {
        self.broker.room()
    }

    /// The settings.
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
    /// The system does not know.
    pub fn disk_space(&self) -> std::io::Result<DiskSpace> {
        self.broker.disk_space()
    }

    /// As [`Broker::check_partitions`].
    ///
    /// # Errors
    /// There would be too many.
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
