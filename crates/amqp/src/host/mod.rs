//! The virtual host: exchanges, queues and bindings on the broker's topics.
//!
//! A queue is a topic with one subscription; that it is a queue, and how it was declared, stands in
//! the topic's own definition (`stored.rs`), so it is made by one entry of the journal. Exchanges
//! and bindings are kept beside. Messages that died are routed out of their queue, delayed ones out
//! of a hidden topic, by what is bound at that time (`router/mod.rs`).
//!
//! All sessions of all cores share one [`VirtualHost`]. Changes are made one after another, under
//! one lock; routing takes a read lock, and sessions remember routes until
//! [`VirtualHost::generation`] rises.
//!
//! Lock order: `definitions` → a queue's `life` → `state` → the broker's.

mod bindings;
mod deaths;
mod exchanges;
mod letters;
mod names;
mod queue;
mod queue_declaration;
mod queue_deletion;
mod queue_use;
mod recovery;
mod router;
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

use self::names::DEAD;
use self::queue_deletion::Departed;
use self::queue_use::Expiries;
use self::router::Router;
use self::signal::Signal;
use crate::exception::{Exception, ReplyCode, Resource};
use crate::routing::Topology;

pub use self::letters::delay_ms;
pub use self::names::DIRECT_REPLY_TO;
pub(crate) use self::names::{is_reply_queue, strip};
pub use self::queue::Queue;
pub(crate) use self::queue_declaration::name_prefix;
pub use self::router::Routing;
pub use self::routes::Route;
pub use self::snapshots::{BindingFacts, ExchangeFacts};

/// The name of a queue's subscription in its topic.
pub const SUBSCRIPTION: &str = "queue";

/// The bytes that a definition takes in memory beside its text, about.
const DEFINITION_BYTES: usize = 512;

/// Bounds of a virtual host.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Memory budget, in bytes and approximate, of all exchanges, queues and bindings together:
    /// clients declare them, and no retention removes them.
    pub definition_bytes_max: usize,
}

impl Default for HostOptions {
    /// A million bindings of the usual kind.
    fn default() -> Self {
        Self {
            definition_bytes_max: 768 << 20,
        }
    }
}

/// A connection, as the owner of exclusive queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(u64);

/// A virtual host: what clients declare in a namespace. The default one is `/`.
pub struct VirtualHost {
    realm: Realm,
    /// Hidden topic of dead letters that no queue has stored: a full queue with
    /// `reject-publish-dlx` refused them.
    dead: Arc<Topic>,
    /// Hidden topic in which a delayed message appears when its delay is over; the router publishes
    /// it from there.
    delayed: Arc<Topic>,
    options: HostOptions,
    /// Held while anything changes.
    definitions: Mutex<Definitions>,
    state: RwLock<State>,
    generation: AtomicU64,
    last_owner: AtomicU64,
    /// Numbers the topics of queues whose names no other protocol may see.
    last_hidden: AtomicU64,
    expiries: Mutex<Expiries>,
    signal: Arc<Signal>,
    router: Mutex<Router>,
    /// Queues whose dead-letter cycle is in the server's log already: one line each.
    cycles_told: Mutex<HashSet<Arc<str>>>,
}

/// The definitions that only changes look at.
#[derive(Default)]
struct Definitions {
    /// The exclusive queues of each connection.
    owned: HashMap<Owner, BTreeSet<Arc<str>>>,
    /// The exchanges that were declared.
    exchanges: HashMap<Arc<str>, Note>,
    /// The bytes that all definitions take, about.
    bytes: usize,
}

/// The facts about an exchange beside its options.
#[derive(Debug, Clone, Copy)]
struct Note {
    /// `Some` for a durable exchange. Stored bindings carry this id, so that one that a failed
    /// write left behind never attaches to a later exchange of the same name.
    id: Option<Uuid>,
    /// The bytes that were charged for it.
    bytes: usize,
}

/// The state that routing looks at.
#[derive(Default)]
struct State {
    topology: Topology,
    queues: HashMap<Arc<str>, Slot>,
    /// The queue's name by its topic's name, for each queue whose topic has a different name.
    by_topic: HashMap<Arc<str>, Arc<str>>,
    departed: Departed,
}

/// A queue in the table.
struct Slot {
    queue: Arc<Queue>,
    /// The route that leads to this queue alone, ready made.
    alone: Arc<[Arc<Queue>]>,
}

impl std::fmt::Debug for VirtualHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualHost")
            .field("queues", &self.state.read().queues.len())
            .finish_non_exhaustive()
    }
}

impl VirtualHost {
    /// Reads back what was declared, drops definitions that a crash left half made, and makes the
    /// predeclared exchanges (`amq.*`) and the hidden topics.
    ///
    /// # Errors
    /// The broker cannot be changed: a full disk, a failed journal.
    pub fn open(realm: Realm) -> Result<Arc<Self>, CatalogError> {
        Self::open_with(realm, HostOptions::default())
    }

    /// As [`VirtualHost::open`], with bounds of your own.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(realm: Realm, options: HostOptions) -> Result<Arc<Self>, CatalogError> {
        let signal = Arc::new(Signal::default());
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
            expiries: Mutex::default(),
            signal: signal.clone(),
            router: Mutex::default(),
            cycles_told: Mutex::default(),
        };
        host.restore()?;
        let told = signal.clone();
        let died = move |subscription: &Arc<Subscription>| told.hand(|it| it.died(subscription));
        host.realm.route_dead(DEAD, died);
        // Other protocols can delete a queue's topic. A listener must not call the broker, so it
        // only wakes the router, which looks.
        host.realm.on_change(move || signal.catalog_changed());
        Ok(Arc::new(host))
    }

    /// The realm below.
    pub fn realm(&self) -> &Realm {
        &self.realm
    }

    /// Rises with every change that can change a route. Read it before [`VirtualHost::route`], and
    /// remember the route with it.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The identity of a new connection.
    pub fn owner(&self) -> Owner {
        Owner(self.last_owner.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Counts what a new definition takes.
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
    /// A definition is gone.
    fn discharge(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(DEFINITION_BYTES + bytes);
    }
}

/// The exception for a client when the catalog does not do what it asked for.
fn refused(what: &Resource<'_>, error: &CatalogError) -> Exception {
    match error {
        CatalogError::TopicDeleted { .. } | CatalogError::SubscriptionDeleted { .. } => {
            Exception::no(what)
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
