//! The virtual host: exchanges, queues and bindings on the broker's topics.
//!
//! A queue is a topic with one subscription. The topic's settings say that it is a queue, and how
//! it was declared (`stored.rs`), so that one entry of the journal creates it. Exchanges and
//! bindings have entries of their own. Dead messages are routed out of their queue, and delayed
//! ones out of a hidden topic, by the bindings that exist when they are routed (`router/mod.rs`).
//!
//! All sessions of all cores share one [`VirtualHost`]. Changes are serialized by one lock. Routing
//! takes a read lock, and sessions cache routes until [`VirtualHost::generation`] changes.
//!
//! Lock order: `definitions` → a queue's `life` → `state` → the broker's locks.

mod bindings;
mod deaths;
mod exchanges;
mod names;
mod queue;
mod queue_declaration;
mod queue_deletion;
mod queue_use;
mod recovery;
mod router;
mod router_input;
mod routes;
mod signal;
mod snapshots;
mod stored;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cloverleaf_broker::{CatalogError, Realm, Subscription, Topic};
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use self::names::DEAD_TOPIC;
use self::queue_deletion::DeletedQueues;
use self::queue_use::DeletionSchedule;
use self::router::Router;
use self::signal::RouterSignal;
use crate::exception::{Exception, ReplyCode, Resource};
use crate::routing::Topology;

pub use self::names::DIRECT_REPLY_TO;
pub(crate) use self::names::{is_reply_queue, strip_newlines};
pub use self::queue::Queue;
pub(crate) use self::queue_declaration::name_prefix;
pub use self::router::DeadLetterWait;
pub use self::router_input::delay_ms;
pub use self::routes::Route;
pub use self::snapshots::{BindingFacts, ExchangeFacts};

/// The name of a queue's subscription in its topic.
pub const SUBSCRIPTION: &str = "queue";

/// Approximate memory of a definition besides its strings, in bytes.
const DEFINITION_BYTES: usize = 512;

/// Limits of a virtual host.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Approximate memory budget of all exchanges, queues and bindings together, in bytes: clients
    /// declare them, and no retention removes them.
    pub definition_bytes_max: usize,
}

impl Default for HostOptions {
    /// Enough for a million typical bindings.
    fn default() -> Self {
        Self {
            definition_bytes_max: 768 << 20,
        }
    }
}

/// Identifies a connection as the owner of exclusive queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(u64);

/// A virtual host: the definitions in one namespace. The default virtual host is `/`.
pub struct VirtualHost {
    realm: Realm,
    /// Hidden topic of dead-lettered messages that were never stored in a queue: a full queue with
    /// `reject-publish-dlx` refused them.
    dead: Arc<Topic>,
    /// Hidden topic in which a delayed message appears once its delay is over; the router routes it
    /// from there.
    delayed: Arc<Topic>,
    options: HostOptions,
    /// Locked during each change.
    definitions: Mutex<Definitions>,
    state: RwLock<RoutingState>,
    generation: AtomicU64,
    last_owner: AtomicU64,
    /// The last number used for the topic of a queue that other protocols must not see.
    last_hidden: AtomicU64,
    deletions: Mutex<DeletionSchedule>,
    signal: Arc<RouterSignal>,
    router: Mutex<Router>,
    /// Queues whose dead-letter cycle was logged already: one line for each.
    cycles_logged: Mutex<HashSet<Arc<str>>>,
}

/// The part of the definitions that only declaring and deleting need; routing needs
/// [`RoutingState`].
#[derive(Default)]
struct Definitions {
    /// The exclusive queues of each connection.
    owned: HashMap<Owner, BTreeSet<Arc<str>>>,
    /// The declared exchanges.
    exchanges: HashMap<Arc<str>, ExchangeEntry>,
    /// Approximate memory of all definitions, in bytes.
    bytes: usize,
}

/// What is known of an exchange besides its options.
#[derive(Debug, Clone, Copy)]
struct ExchangeEntry {
    /// `Some` for a durable exchange. Persisted bindings carry this id. So a binding that a failed
    /// write left behind never attaches to a later exchange of the same name.
    id: Option<Uuid>,
    /// The bytes charged to the memory budget.
    bytes: usize,
}

/// The state that routing needs.
#[derive(Default)]
struct RoutingState {
    topology: Topology,
    queues: HashMap<Arc<str>, QueueSlot>,
    /// The queue's name by its topic's name, for queues whose topic has another name.
    by_topic: HashMap<Arc<str>, Arc<str>>,
    deleted_queues: DeletedQueues,
}

/// A queue in the table.
struct QueueSlot {
    queue: Arc<Queue>,
    /// The route to this queue only, ready for use.
    single_route: Arc<[Arc<Queue>]>,
}

impl std::fmt::Debug for VirtualHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualHost")
            .field("queues", &self.state.read().queues.len())
            .finish_non_exhaustive()
    }
}

impl VirtualHost {
    /// Restores the definitions, drops those that a crash left incomplete, and creates the
    /// predeclared exchanges (`amq.*`) and the hidden topics.
    ///
    /// # Errors
    /// The broker cannot be changed: a full disk, a failed journal.
    pub fn open(realm: Realm) -> Result<Arc<Self>, CatalogError> {
        Self::open_with(realm, HostOptions::default())
    }

    /// Like [`VirtualHost::open`], with other limits.
    ///
    /// # Errors
    /// The same.
    pub fn open_with(realm: Realm, options: HostOptions) -> Result<Arc<Self>, CatalogError> {
        let signal = Arc::new(RouterSignal::default());
        let (dead, delayed) = (recovery::dead(&realm)?, recovery::delayed(&realm)?);
        let host = Self {
            realm,
            dead,
            delayed,
            options,
            definitions: Mutex::default(),
            state: RwLock::default(),
            generation: AtomicU64::new(1),
            last_owner: AtomicU64::new(0),
            last_hidden: AtomicU64::new(0),
            deletions: Mutex::default(),
            signal: signal.clone(),
            router: Mutex::default(),
            cycles_logged: Mutex::default(),
        };
        host.restore()?;
        let router_signal = signal.clone();
        let died = move |subscription: &Arc<Subscription>| {
            router_signal.give_work(|it| it.died(subscription))
        };
        host.realm.route_dead(DEAD_TOPIC, died);
        // Other protocols can delete a queue's topic. A listener must not call the broker, so it
        // only wakes the router, which finds such queues.
        host.realm.on_change(move || signal.catalog_changed());
        Ok(Arc::new(host))
    }

    /// The realm in which the definitions are stored.
    pub fn realm(&self) -> &Realm {
        &self.realm
    }

    /// Rises with every change that can change a route. Read it before [`VirtualHost::route`], and
    /// cache the route together with it.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// An identity for a new connection.
    pub fn owner(&self) -> Owner {
        Owner(self.last_owner.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Charges a new definition to the memory budget.
    fn charge(
        &self,
        definitions: &mut Definitions,
        what: &Resource<'_>,
        bytes: usize,
    ) -> Result<(), Exception> {
        let bytes_max = self.options.definition_bytes_max;
        let total = definitions.bytes + DEFINITION_BYTES + bytes;
        if total > bytes_max {
            return Err(Exception::precondition(format!(
                "cannot declare {what}: the limit of {bytes_max} bytes for exchanges, queues and \
                 bindings is reached"
            )));
        }
        definitions.bytes = total;
        Ok(())
    }
}

impl Definitions {
    /// Releases a definition's memory.
    fn discharge(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(DEFINITION_BYTES + bytes);
    }
}

/// The exception that a client gets for an error of the catalog.
fn refused(what: &Resource<'_>, error: &CatalogError) -> Exception {
    match error {
        CatalogError::TopicDeleted { .. } | CatalogError::SubscriptionDeleted { .. } => {
            Exception::not_found(what)
        }
        CatalogError::Name
        | CatalogError::Partitions { .. }
        | CatalogError::PartitionsOnlyGrow { .. }
        | CatalogError::PartitionsFull { .. } => {
            Exception::precondition(format!("cannot declare {what}: {error}"))
        }
        CatalogError::Denied { .. } => Exception::new(
            ReplyCode::AccessRefused,
            format!("access to {what} refused"),
        ),
        CatalogError::Closed
        | CatalogError::Log { .. }
        | CatalogError::NoSuchPartition { .. }
        | CatalogError::OffsetAboveEnd { .. } => {
            Exception::new(ReplyCode::InternalError, format!("{what}: {error}"))
        }
    }
}
