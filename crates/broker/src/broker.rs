//! The broker: the catalog of topics, and the state that all topics share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cloverleaf_log::{AppendError, DiskSpace, Log, LogMetrics, Offset, Recovery};
use cloverleaf_telemetry::{LANES_BYTES_MAX, LaneMemory};
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use crate::clock::Clock;
use crate::committed::CommittedOffsets;
pub use crate::errors::{CatalogError, OpenError};
use crate::housekeeping::Housekeeping;
use crate::housekeeping::inflater::{BackgroundThreads, Inflater};
use crate::housekeeping::schedule::ScheduledCounts;
use crate::housekeeping::upkeep::Upkeep;
use crate::housekeeping::work::HousekeepingWork;
use crate::journal::entries::{Entry, TopicDefinition};
use crate::journal::orphans::check_journal;
use crate::journal::protocol_values::{Identity, ProtocolValues};
use crate::journal::restore::Restored;
use crate::namespace::{Name, Namespace};
use crate::options::{BrokerOptions, TopicOptions};
use crate::subscription::died::DeadRouter;
use crate::topic::Topic;
use crate::topic::partition::Partition;
use crate::topic::published::WriteBudget;

/// Upper limit of partitions per topic: their number shares 64 bits with the offset in an NSQ
/// message id.
pub const PARTITIONS_MAX: u32 = 1024;

/// Upper limit of bytes in a name of a topic or subscription: slightly more than Kafka's 249.
pub const NAME_BYTES_MAX: usize = 255;

/// A broker on one log. Cheap to clone.
#[derive(Clone)]
pub struct Broker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) housekeeping: Arc<Mutex<Housekeeping>>,
}

type ChangeListener = Box<dyn Fn() + Send + Sync>;

/// The state that topics, subscriptions and the housekeeping thread share.
pub(crate) struct Shared {
    pub(crate) log: Log,
    pub(crate) options: BrokerOptions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) work: HousekeepingWork,
    pub(crate) write_budget: Arc<WriteBudget>,
    /// Held while a definition changes and while a snapshot of all definitions is made.
    pub(crate) definitions: Mutex<()>,
    pub(crate) committed: CommittedOffsets,
    pub(crate) protocol_values: ProtocolValues,
    pub(crate) scheduled: ScheduledCounts,
    pub(crate) inflater: Inflater,
    /// Whether the threads "inflater" and "upkeep" run.
    pub(crate) has_background_threads: BackgroundThreads,
    pub(crate) upkeep: Upkeep,
    pub(crate) identity: OnceLock<Identity>,
    /// The bounded memory for the timeline's record of which consumer held which messages, and
    /// when.
    pub(crate) hold_memory: OnceLock<Arc<LaneMemory>>,
    last_topic_number: AtomicU32,
    topics: RwLock<TopicCatalog>,
    closed: AtomicBool,
    boot_id: String,
    last_subscription_id: AtomicU64,
    generation: AtomicU64,
    listeners: RwLock<Vec<ChangeListener>>,
    pub(crate) dead_routers: RwLock<HashMap<Namespace, Arc<DeadRouter>>>,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker")
            .field("topics", &self.shared.topics.read().by_id.len())
            .finish()
    }
}

impl Broker {
    /// Opens a broker with the state that `recovery` found in the log.
    pub fn open(
        log: Log,
        mut recovery: Recovery,
        options: BrokerOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let inflater = Inflater::new(
            options.inflated_batch_bytes_max,
            options.inflated_cache_bytes_max,
        );
        let shared = Arc::new(Shared {
            write_budget: Arc::new(WriteBudget::new(log.clone(), options.unwritten_bytes_max)),
            log,
            options,
            clock,
            work: HousekeepingWork::default(),
            definitions: Mutex::new(()),
            committed: CommittedOffsets::default(),
            protocol_values: ProtocolValues::default(),
            scheduled: ScheduledCounts::default(),
            inflater,
            has_background_threads: BackgroundThreads::default(),
            upkeep: Upkeep::default(),
            identity: OnceLock::new(),
            hold_memory: OnceLock::new(),
            last_topic_number: AtomicU32::new(0),
            topics: RwLock::default(),
            closed: AtomicBool::new(false),
            boot_id: recovery.boot_id.clone(),
            last_subscription_id: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            listeners: RwLock::new(Vec::new()),
            dead_routers: RwLock::default(),
        });
        let describing = Arc::downgrade(&shared);
        shared.log.describe_topics(Box::new(move |id| {
            let topic = describing.upgrade()?.topic_by_id(id)?;
            Some(topic.description())
        }));
        check_journal(&shared, &mut recovery)?;
        let mut restored = Restored::read(&recovery)?;
        let found = restored.complete(&shared, &recovery)?;
        restored.install(&shared, &recovery)?;
        if !found.is_empty() {
            shared.write_entries(&found)?;
        }
        let identity = *shared.identity();
        shared.write_synced(&[Entry::Opened(recovery.boot_id), Entry::Identity(identity)])?;
        let housekeeping = Arc::new(Mutex::new(Housekeeping::new(shared.clone())));
        Ok(Self {
            shared,
            housekeeping,
        })
    }

    /// The topic with that name.
    pub fn topic<'a>(&self, name: impl Into<Name<'a>>) -> Option<Arc<Topic>> {
        self.shared.topic(name.into())
    }

    /// The topic with that id.
    pub fn topic_by_id(&self, id: Uuid) -> Option<Arc<Topic>> {
        self.shared.topic_by_id(id)
    }

    /// The topic with that name, created if there is none.
    pub fn topic_or_create<'a>(
        &self,
        name: impl Into<Name<'a>>,
        options: impl FnOnce() -> TopicOptions,
    ) -> Result<Arc<Topic>, CatalogError> {
        self.shared.topic_or_create(name.into(), options)
    }

    /// Deletes a topic with its messages and subscriptions. `false`: there is no such topic. Its
    /// files are removed in the background. The deletion survives a kill, and after
    /// [`Self::sync_definitions`] also a power loss.
    pub fn delete_topic<'a>(&self, name: impl Into<Name<'a>>) -> Result<bool, CatalogError> {
        self.shared.delete_topic(name.into())
    }

    /// As [`Self::delete_topic`], but deletes this topic only, not a later one with its name, and
    /// only if `may_go` returns true. `may_go` is called while no definition can change. `false`:
    /// the topic stays, or was deleted before.
    pub fn delete_topic_if(
        &self,
        topic: &Arc<Topic>,
        may_go: impl FnOnce() -> bool,
    ) -> Result<bool, CatalogError> {
        self.shared.delete_topic_if(topic, may_go)
    }

    /// Waits until all definitions that were created, changed or deleted before this call survive a
    /// power loss. Blocks on the disk.
    ///
    /// # Errors
    /// The journal cannot be synced.
    pub fn sync_definitions(&self) -> Result<(), CatalogError> {
        self.shared.write_synced(&[])
    }

    /// Checks the limit for `more` partitions, without creating any.
    ///
    /// # Errors
    /// There would be more than [`BrokerOptions::partitions_max`].
    pub fn check_partitions(&self, more: u32) -> Result<(), CatalogError> {
        self.shared.check_partition_limit(more)
    }

    /// All topics that are not hidden, sorted by namespace and name.
    pub fn topics(&self) -> Vec<Arc<Topic>> {
        let mut topics = self.shared.all_topics();
        topics.retain(|topic| !topic.options().hidden);
        topics.sort_by(|a, b| a.full_name().cmp(&b.full_name()));
        topics
    }

    /// Increases with each definition that is created, changed or deleted.
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Calls `listener` after each change of the definitions. `listener` must not call the broker.
    pub fn on_change(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.shared.listeners.write().push(Box::new(listener));
    }

    /// The limit on bytes that are accepted but not yet written.
    pub fn write_budget(&self) -> &Arc<WriteBudget> {
        &self.shared.write_budget
    }

    /// The broker's options.
    pub fn options(&self) -> &BrokerOptions {
        &self.shared.options
    }

    /// The log's metrics.
    pub fn log_metrics(&self) -> LogMetrics {
        self.shared.log.metrics()
    }

    /// Whether the disk is full, so that publishes are refused.
    pub fn is_storage_full(&self) -> bool {
        self.shared.log.is_storage_full()
    }

    /// How full the file system is. Makes a system call, so do not call it on a thread that serves
    /// connections.
    ///
    /// # Errors
    /// The system call failed.
    pub fn disk_space(&self) -> std::io::Result<DiskSpace> {
        self.shared.log.disk_space()
    }

    /// Compressed batches that could not be inflated since the process started; subscriptions have
    /// skipped their messages.
    pub fn unreadable_batches(&self) -> u64 {
        self.shared.inflater.unreadable()
    }

    /// Does the housekeeping that is due. Returns when to call again, in milliseconds since the
    /// epoch.
    pub fn tick(&self) -> u64 {
        self.housekeeping.lock().tick()
    }

    /// Writes all progress and ends the housekeeping. The caller closes the log afterwards.
    pub fn close(&self) {
        // A thread that waits for a read may hold a lock that is needed below.
        self.shared.log.stop_waiting();
        {
            let _definitions = self.shared.definitions.lock();
            self.shared.closed.store(true, Ordering::Release);
        }
        // Stop these first: nothing new may be written once everything is synced.
        self.shared.upkeep.close();
        self.shared.inflater.close();
        self.housekeeping.lock().close();
        self.shared.work.close();
        // Topics and `Shared` refer to each other: without this they would never be freed.
        let topics = self.shared.topics.write().drain();
        for topic in topics {
            topic.close();
        }
    }
}

impl Shared {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn hold_memory(&self) -> Arc<LaneMemory> {
        let own = || LaneMemory::new(LANES_BYTES_MAX);
        self.hold_memory.get_or_init(own).clone()
    }

    /// A number that no other topic of this process has.
    pub(crate) fn next_topic_number(&self) -> u32 {
        self.last_topic_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether a topic or subscription with this name may be created. The caller holds
    /// `definitions`.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), CatalogError> {
        if self.is_closed() {
            return Err(CatalogError::Closed);
        }
        let length_fits = (1..=NAME_BYTES_MAX).contains(&name.len());
        if !length_fits || name.chars().any(char::is_control) {
            return Err(CatalogError::Name);
        }
        Ok(())
    }

    /// Checks the limit for `partitions` more. A caller that then creates them holds `definitions`.
    pub(crate) fn check_partition_limit(&self, partitions: u32) -> Result<(), CatalogError> {
        let partitions_max = self.options.partitions_max;
        let current = self.topics.read().partitions;
        if current + u64::from(partitions) > u64::from(partitions_max) {
            return Err(CatalogError::PartitionsFull {
                partitions,
                current,
                partitions_max,
            });
        }
        Ok(())
    }

    /// Adds to the number of partitions of all topics. The caller holds `definitions`.
    pub(crate) fn count_partitions(&self, more: u32) {
        self.topics.write().partitions += u64::from(more);
    }

    pub(crate) fn topic(&self, name: Name<'_>) -> Option<Arc<Topic>> {
        self.topics.read().get(name).cloned()
    }

    pub(crate) fn topic_by_id(&self, id: Uuid) -> Option<Arc<Topic>> {
        self.topics.read().by_id.get(&id).cloned()
    }

    pub(crate) fn all_topics(&self) -> Vec<Arc<Topic>> {
        let topics = self.topics.read();
        topics
            .by_name
            .values()
            .flat_map(HashMap::values)
            .cloned()
            .collect()
    }

    pub(crate) fn topic_or_create(
        self: &Arc<Self>,
        name: Name<'_>,
        options: impl FnOnce() -> TopicOptions,
    ) -> Result<Arc<Topic>, CatalogError> {
        if let Some(topic) = self.topic(name) {
            return Ok(topic);
        }
        let _definitions = self.definitions.lock();
        if let Some(topic) = self.topic(name) {
            return Ok(topic);
        }
        self.check_name(name.text)?;
        let options = options();
        let partitions = options.partitions;
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(CatalogError::Partitions { partitions });
        }
        if !options.hidden {
            self.check_partition_limit(partitions)?;
        }
        let definition = TopicDefinition {
            id: Uuid::new_v4(),
            namespace: name.namespace.clone(),
            name: name.text.to_owned(),
            created_ms: self.clock.now_ms(),
            creation_order: (self.identity().starts, self.next_topic_number()),
            options,
            paused_at: None,
            revision: 0,
        };
        // Written for an ephemeral topic too, so that a restart may remove its folder.
        self.write_entries(&[Entry::Topic(definition.clone())])?;
        let topic = Topic::open(self, definition)?;
        self.topics.write().insert(&topic);
        self.notify_changed();
        Ok(topic)
    }

    pub(crate) fn delete_topic(&self, name: Name<'_>) -> Result<bool, CatalogError> {
        {
            let _definitions = self.definitions.lock();
            let Some(topic) = self.topic(name) else {
                return Ok(false);
            };
            self.remove_topic(&topic)?;
        }
        self.notify_changed();
        Ok(true)
    }

    pub(crate) fn delete_topic_if(
        &self,
        topic: &Arc<Topic>,
        may_go: impl FnOnce() -> bool,
    ) -> Result<bool, CatalogError> {
        {
            let _definitions = self.definitions.lock();
            if topic.is_deleted() || !may_go() {
                return Ok(false);
            }
            self.remove_topic(topic)?;
        }
        self.notify_changed();
        Ok(true)
    }

    /// Removes a topic from the catalog. The caller holds `definitions`, so that a snapshot has
    /// either the topic or its deletion.
    fn remove_topic(&self, topic: &Arc<Topic>) -> Result<(), CatalogError> {
        self.write_entries(&[Entry::TopicDeleted(topic.id())])?;
        self.topics.write().remove(topic);
        self.committed.remove_topic(topic.id());
        topic.close();
        self.log.delete_topic(topic.id());
        Ok(())
    }

    /// Writes entries to the journal. They are in the kernel when this returns, not synced.
    pub(crate) fn write_entries(&self, entries: &[Entry]) -> Result<(), CatalogError> {
        let encoded: Vec<Vec<u8>> = entries.iter().map(Entry::encode).collect();
        self.write_encoded(&encoded)
    }

    pub(crate) fn write_encoded(&self, encoded: &[Vec<u8>]) -> Result<(), CatalogError> {
        let slices: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
        self.log
            .journal()
            .append(&slices)
            .map(|_| ())
            .map_err(|error| CatalogError::Log {
                reason: error.to_string(),
            })
    }

    /// Writes entries to the journal and waits for their sync. Do not call it on a thread that
    /// serves connections.
    pub(crate) fn write_synced(&self, entries: &[Entry]) -> Result<(), CatalogError> {
        let refused = |error: AppendError| CatalogError::Log {
            reason: error.to_string(),
        };
        let journal = self.log.journal();
        let encoded: Vec<Vec<u8>> = entries.iter().map(Entry::encode).collect();
        let slices: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
        let position = journal.append(&slices).map_err(refused)?;
        let synced = journal.wait_synced(position);
        if !synced.is_ready() && self.log.is_manual() {
            self.log.step_commit();
        }
        synced.wait().map_err(refused)
    }

    /// Adds a topic from the journal to the catalog.
    pub(crate) fn restore_topic(&self, topic: &Arc<Topic>) {
        self.topics.write().insert(topic);
    }

    /// New subscriptions get ids above this one.
    pub(crate) fn restore_subscription_id(&self, last: u64) {
        self.last_subscription_id.store(last, Ordering::Relaxed);
    }

    pub(crate) fn next_subscription_id(&self) -> u64 {
        self.last_subscription_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn notify_changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        for listener in self.listeners.read().iter() {
            listener();
        }
    }

    /// All entries that a restart needs. The caller holds `definitions`.
    pub(crate) fn snapshot(&self) -> Vec<Entry> {
        let topics = self.all_topics();
        // Ids are never reused, or a new subscription would get the progress of a deleted one. So
        // the snapshot begins with the highest id that was given, in an entry that declares it
        // deleted. If that subscription still exists, its definition follows and overrides this
        // entry.
        let last = self.last_subscription_id.load(Ordering::Relaxed);
        let mut entries = vec![
            Entry::Opened(self.boot_id.clone()),
            Entry::Identity(*self.identity()),
            Entry::SubscriptionDeleted(last),
        ];
        let removed = self.log.topics_being_removed().into_iter();
        entries.extend(removed.map(Entry::TopicDeleted));
        entries.extend(topics.iter().flat_map(|topic| topic.snapshot()));
        entries.extend(self.committed.snapshot());
        entries.extend(self.protocol_values.snapshot());
        entries
    }
}

/// The catalog of topics.
#[derive(Default)]
struct TopicCatalog {
    by_name: HashMap<Namespace, HashMap<String, Arc<Topic>>>,
    by_id: HashMap<Uuid, Arc<Topic>>,
    /// The number of partitions of all topics.
    partitions: u64,
}

impl TopicCatalog {
    fn insert(&mut self, topic: &Arc<Topic>) {
        let Name { namespace, text } = topic.full_name();
        let named = self.by_name.entry(namespace.clone()).or_default();
        named.insert(text.to_owned(), topic.clone());
        self.by_id.insert(topic.id(), topic.clone());
        self.partitions += u64::from(topic.partition_count());
    }

    fn remove(&mut self, topic: &Arc<Topic>) {
        if self.by_id.remove(&topic.id()).is_some() {
            self.partitions -= u64::from(topic.partition_count());
        }
        let Name { namespace, text } = topic.full_name();
        if let Some(named) = self.by_name.get_mut(namespace) {
            named.remove(text);
            if named.is_empty() {
                self.by_name.remove(namespace);
            }
        }
    }

    fn get(&self, name: Name<'_>) -> Option<&Arc<Topic>> {
        self.by_name.get(name.namespace)?.get(name.text)
    }

    fn drain(&mut self) -> Vec<Arc<Topic>> {
        self.by_id.clear();
        let named = std::mem::take(&mut self.by_name);
        named.into_values().flat_map(HashMap::into_values).collect()
    }
}

/// Makes `start` the partition's first offset. Records that cannot be removed are hidden.
pub(crate) fn truncate(topic: &Topic, log: &Partition, start: Offset) {
    if let Err(error) = log.truncate_before(start) {
        tracing::warn!(topic = topic.name(), %error, "cannot remove segments that were emptied");
    }
}
