//! Kafka: its connections, its groups, and the threads for calls that may block.

mod admin;
mod config;
mod connection;
mod doctor;
mod groups;
mod metrics;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;

use cloverleaf_broker::{Realm, TopicOptions};
use cloverleaf_doctor::Queue;
use cloverleaf_kafka::KafkaContext;
use cloverleaf_kafka::control::{change_topic_settings, topic_defaults};
use cloverleaf_telemetry::{ConnectionSnapshot, MetricText, Protocol};
use parking_lot::Mutex;
use rustls::ServerConfig;

use self::doctor::PartitionEnds;
use self::worker::KafkaWorker;
use super::{
    AcceptedConnection, AdminPart, Door, DoorKind, Front, FrontOpening, GroupMember, LocalFuture,
    Registration, Task, TopicSettings,
};
use crate::config::Config;
use crate::config::value::ClientAuthPolicy;
use crate::context::ServerContext;
use crate::log_throttle::LogThrottle;
use crate::server::StartError;
use crate::transport::tls::tls_settings;

pub(super) const REGISTRATION: Registration = Registration {
    protocol: Protocol::Kafka,
    doors,
    tls: |config| tls_settings!(config.kafka).for_listener(&config.kafka.tls_address),
    open: KafkaFront::open,
    forget_secrets: |_| {},
};

fn doors(config: &Config) -> Vec<Door<'_>> {
    let kafka = &config.kafka;
    vec![
        Door::new("kafka.address", &kafka.address, DoorKind::Plain).guarded_if(
            false,
            "use kafka.tls_address with clients' certificates (kafka.tls_client_auth_policy = \
             \"require-verify\"), or ",
        ),
        Door::new("kafka.tls_address", &kafka.tls_address, DoorKind::Tls).guarded_if(
            kafka.tls_client_auth_policy == ClientAuthPolicy::RequireVerify,
            "ask for clients' certificates (kafka.tls_client_auth_policy = \
             \"require-verify\"), or ",
        ),
    ]
}

/// State that all Kafka connections share, and the front's threads.
pub(crate) struct KafkaFront {
    kafka: Arc<KafkaContext>,
    tls: Option<Arc<ServerConfig>>,
    control: Mutex<KafkaWorker>,
    lookups: Mutex<KafkaWorker>,
    /// Throttles the log's lines about plain connections that ended in an error.
    closed_throttle: Mutex<LogThrottle>,
    /// Throttles the log's lines about TLS connections that ended in an error.
    tls_closed_throttle: Mutex<LogThrottle>,
    /// The ends of partitions at the doctor's last checks.
    ends: Mutex<PartitionEnds>,
}

impl KafkaFront {
    fn open(opening: FrontOpening<'_>) -> Result<Arc<dyn Front>, StartError> {
        let control = KafkaWorker::start("kafka-control")?;
        let lookups = KafkaWorker::start("kafka-lookups")?;
        let options = config::kafka_options(opening.config);
        let realm = Realm::unrestricted(opening.broker.clone());
        Ok(Arc::new(KafkaFront {
            kafka: KafkaContext::new(realm, options, control.worker(), lookups.worker()),
            tls: opening.tls,
            control: Mutex::new(control),
            lookups: Mutex::new(lookups),
            closed_throttle: Mutex::default(),
            tls_closed_throttle: Mutex::default(),
            ends: Mutex::default(),
        }))
    }
}

impl Front for KafkaFront {
    fn serve(self: Arc<Self>, accepted: AcceptedConnection) -> LocalFuture {
        Box::pin(connection::serve(self, accepted))
    }

    fn stop(&self) {
        self.control.lock().stop();
        self.lookups.lock().stop();
    }

    fn tasks(self: Arc<Self>, context: &Arc<ServerContext>) -> Vec<Task> {
        vec![Box::pin(groups::run(self, Arc::clone(context)))]
    }

    fn admin(self: Arc<Self>, context: &Arc<ServerContext>) -> AdminPart {
        admin::part(self, Arc::clone(context))
    }

    fn metrics(&self, text: &mut MetricText, context: &ServerContext) {
        metrics::add(text, &self.kafka, context);
    }

    fn group_queues(
        &self,
        context: &ServerContext,
        connections: &[ConnectionSnapshot],
    ) -> Vec<Queue> {
        doctor::queues(&self.kafka, context, connections, &mut self.ends.lock())
    }

    fn group_members(&self, name: &str) -> Option<Vec<GroupMember>> {
        let members = self.kafka.groups.view(name)?.members.into_iter();
        let members = members.map(|member| GroupMember {
            client_id: member.client_id,
            host: member.host,
        });
        Some(members.collect())
    }

    fn topic_settings(&self) -> Option<&dyn TopicSettings> {
        Some(self)
    }
}

impl TopicSettings for KafkaFront {
    fn defaults(&self, partitions: u32) -> TopicOptions {
        topic_defaults(&self.kafka, partitions)
    }

    fn change(
        &self,
        options: &mut TopicOptions,
        changes: &BTreeMap<String, Option<String>>,
    ) -> Result<(), String> {
        change_topic_settings(&self.kafka, options, changes).map_err(|why| why.to_string())
    }
}
