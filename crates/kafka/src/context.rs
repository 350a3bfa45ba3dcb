//! The state that all Kafka connections of a principal share.

use std::sync::Arc;

use cloverleaf_access::{Operation, ResourceKind};
use cloverleaf_broker::Realm;

use crate::control::{ClientMetrics, DynamicSettings, ProducerIds};
use crate::error_code::ErrorCode;
use crate::fetch::{FetchPositions, FetchSessions};
use crate::groups::Groups;
use crate::options::KafkaOptions;

/// Runs jobs that may block on the disk, on a thread that serves no connections.
pub trait Worker: Send + Sync {
    /// Queues `job` and returns. Jobs run in the order of the calls.
    fn run(&self, job: Box<dyn FnOnce() + Send>);
}

/// The state that all connections of a principal share, on all cores.
#[derive(Clone)]
pub struct KafkaContext {
    /// Topics and offsets, as the principal may use them.
    pub realm: Realm,
    /// Limits and defaults.
    pub options: Arc<KafkaOptions>,
    /// Runs short jobs that may block on the disk, such as changes of definitions.
    pub worker: Arc<dyn Worker>,
    /// Runs read-only jobs that may read much from the disk, so that they do not delay the jobs of
    /// `worker`.
    pub lookups: Arc<dyn Worker>,
    /// The metrics that clients push about themselves (KIP-714).
    pub client_metrics: Arc<ClientMetrics>,
    /// Assigns the ids of idempotent producers.
    pub producer_ids: Arc<ProducerIds>,
    /// The partitions that each connection fetches.
    pub readers: Arc<FetchPositions>,
    /// Settings of the broker and of groups that were changed by AlterConfigs.
    pub(crate) dynamic_settings: Arc<DynamicSettings>,
    pub(crate) fetch_sessions: Arc<FetchSessions>,
    /// Consumer groups. The owner of the context has to call [`Groups::tick`] for their timeouts.
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
        // Expiry of groups and loading of settings do not depend on the rights of clients.
        let own = realm.with_all_rights();
        let groups = Groups::new(own.clone(), worker.clone(), &options);
        Arc::new(Self {
            dynamic_settings: Arc::new(DynamicSettings::load(&own)),
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

    /// A context for clients with the rights of another realm of the same namespace. It shares
    /// groups, producer ids and everything else with this one.
    pub fn with_realm(&self, realm: Realm) -> Arc<Self> {
        Arc::new(Self {
            realm,
            ..self.clone()
        })
    }

    /// Checks the principal's right to do `operation` with a group.
    ///
    /// # Errors
    /// The principal does not have the right.
    pub(crate) fn check_group(&self, operation: Operation, name: &str) -> Result<(), ErrorCode> {
        if self.realm.may(operation, ResourceKind::Group, "", name) {
            Ok(())
        } else {
            Err(ErrorCode::GroupAuthorizationFailed)
        }
    }

    /// Checks the principal's right to administrate the broker.
    ///
    /// # Errors
    /// The principal does not have the right.
    pub(crate) fn check_administrator(&self) -> Result<(), ErrorCode> {
        if self
            .realm
            .may(Operation::Administrate, ResourceKind::Broker, "", "")
        {
            Ok(())
        } else {
            Err(ErrorCode::ClusterAuthorizationFailed)
        }
    }
}
