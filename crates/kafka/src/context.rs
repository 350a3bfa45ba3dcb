//! The state that all Kafka connections of a principal share.

use std::sync::Arc;

use cloverleaf_access::{Kind, Operation};
use cloverleaf_broker::Realm;

use crate::control::{ChangedSettings, ClientMetrics, ProducerIds};
use crate::error_code::ErrorCode;
use crate::fetch::{FetchSessions, Readers};
use crate::groups::Groups;
use crate::options::KafkaOptions;

/// Runs what may block on the disk away from the threads that serve connections.
pub trait Worker: Send + Sync {
    /// Runs `job` soon, jobs in the order of their calls.
    fn run(&self, job: Box<dyn FnOnce() + Send>);
}

/// Shared by all connections of a principal, on all cores.
#[derive(Clone)]
pub struct KafkaContext {
    /// Topics and offsets, as the principal may use them.
    pub realm: Realm,
    /// Limits and defaults.
    pub options: Arc<KafkaOptions>,
    /// Where calls go that may block: short ones, which others wait for.
    pub worker: Arc<dyn Worker>,
    /// Where calls go that may read much from the disk, and change nothing.
    pub lookups: Arc<dyn Worker>,
    /// The metrics that clients push about themselves (KIP-714).
    pub client_metrics: Arc<ClientMetrics>,
    /// The numbers of idempotent producers.
    pub producer_ids: Arc<ProducerIds>,
    /// Which connection reads what.
    pub readers: Arc<Readers>,
    /// The configuration that was changed through the protocol.
    pub(crate) changed: Arc<ChangedSettings>,
    pub(crate) fetch_sessions: Arc<FetchSessions>,
    /// Consumer groups. To be told the time: [`Groups::tick`].
    pub groups: Arc<Groups>,
}

impl KafkaContext {
    /// The context of a namespace, for clients with the rights of `realm`.
    pub fn new(
        realm: Realm,
        options: KafkaOptions,
        worker: Arc<dyn Worker>,
        lookups: Arc<dyn Worker>,
    ) -> Arc<Self> {
        // Groups expire and settings load whoever the clients are.
        let own = realm.with_all_rights();
        let groups = Groups::new(own.clone(), worker.clone(), &options);
        Arc::new(Self {
            changed: Arc::new(ChangedSettings::load(&own)),
            fetch_sessions: FetchSessions::new(options.fetch_sessions_max),
            readers: Arc::default(),
            client_metrics: Arc::default(),
            producer_ids: Arc::default(),
            groups,
            realm,
            options: Arc::new(options),
            worker,
            lookups,
        })
    }

    /// The same for clients with the rights of another realm of the namespace: groups, the numbers
    /// of producers and all else are shared.
    pub fn with_realm(&self, realm: Realm) -> Arc<Self> {
        Arc::new(Self {
            realm,
            ..self.clone()
        })
    }

    /// Asks whether the principal may do this with a group.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn check_group(&self, operation: Operation, name: &str) -> Result<(), ErrorCode> {
        if self.realm.may(operation, Kind::Group, "", name) {
            Ok(())
        } else {
            Err(ErrorCode::GroupAuthorizationFailed)
        }
    }

    /// Asks whether the principal looks after the broker.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn check_administrator(&self) -> Result<(), ErrorCode> {
        if self
            .realm
            .may(Operation::Administrate, Kind::Broker, "", "")
        {
            Ok(())
        } else {
            Err(ErrorCode::ClusterAuthorizationFailed)
        }
    }
}
