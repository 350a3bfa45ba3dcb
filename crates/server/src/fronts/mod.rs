//! The protocols, a folder for each. The rest of the server knows each one only as a
//! [`Registration`] and a [`Front`]: its addresses (doors), and the code that serves its
//! connections and reports on them.

pub(crate) mod amqp;
pub(crate) mod kafka;
pub(crate) mod nsq;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use axum::Router;
use cloverleaf_broker::{Broker, Subscription, SubscriptionOptions, TopicOptions};
use cloverleaf_doctor::Queue;
use cloverleaf_telemetry::{ConnectionSnapshot, MetricText, Protocol};
use rustls::ServerConfig;
use tokio::net::TcpStream;

use crate::config::Config;
use crate::config::value::ListenAddress;
use crate::context::{CoreContext, ServerContext};
use crate::server::StartError;
use crate::transport::tls::TlsError;

/// The protocols that a broker speaks, in the order in which they are opened and queried.
pub(crate) type Registrations = [&'static Registration];

/// All protocols of the product.
pub(crate) const REGISTRATIONS: &Registrations = &[
    &nsq::REGISTRATION,
    &kafka::REGISTRATION,
    &amqp::REGISTRATION,
];

/// A protocol before anything is open: its addresses, its certificates, and how to open it.
pub(crate) struct Registration {
    /// The protocol's tag.
    pub(crate) protocol: Protocol,
    /// The addresses that it listens on.
    pub(crate) doors: fn(&Config) -> Vec<Door<'_>>,
    /// The TLS configuration of its listeners; `None` without a certificate.
    pub(crate) tls: fn(&Config) -> Result<Option<Arc<ServerConfig>>, TlsError>,
    /// Opens the protocol: makes the state that its connections share, and starts no thread that
    /// needs the server's context.
    pub(crate) open: fn(FrontOpening<'_>) -> Result<Arc<dyn Front>, StartError>,
    /// Clears secrets in the configuration that are not needed once the protocol is open.
    pub(crate) forget_secrets: fn(&mut Config),
}

/// A protocol before it is open.
pub(crate) struct UnopenedFront {
    pub(crate) registration: &'static Registration,
    /// The result of [`Registration::tls`].
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

/// Reads the certificates of all protocols.
///
/// # Errors
/// A protocol's certificates cannot be used.
pub(crate) fn load(
    registrations: &Registrations,
    config: &Config,
) -> Result<Vec<UnopenedFront>, TlsError> {
    let loaded = registrations.iter().map(|registration| {
        let tls = (registration.tls)(config)?;
        Ok(UnopenedFront { registration, tls })
    });
    loaded.collect()
}

/// A listening address.
pub(crate) struct Door<'a> {
    /// The option with the address.
    pub(crate) option: &'static str,
    /// The address itself.
    pub(crate) address: &'a ListenAddress,
    /// The protocol spoken there.
    pub(crate) kind: DoorKind,
    /// Whether all clients have to authenticate there.
    pub(crate) is_guarded: bool,
    /// How to make clients authenticate, for an error text; empty, or ends with ", or ".
    pub(crate) remedy: &'static str,
}

impl<'a> Door<'a> {
    /// A door without authentication, and without a way to have it.
    pub(crate) fn new(option: &'static str, address: &'a ListenAddress, kind: DoorKind) -> Self {
        Door {
            option,
            address,
            kind,
            is_guarded: false,
            remedy: "",
        }
    }

    /// The same door, with or without authentication, and the remedy if it has none.
    pub(crate) fn guarded_if(self, is_guarded: bool, remedy: &'static str) -> Self {
        Door {
            is_guarded,
            remedy,
            ..self
        }
    }
}

/// The protocol spoken at a door.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DoorKind {
    /// The protocol itself.
    Plain,
    /// The protocol over TLS, from the first byte.
    Tls,
    /// HTTP.
    Http,
    /// HTTP over TLS.
    Https,
}

impl DoorKind {
    /// Whether the door is open only if there is a certificate.
    pub(crate) fn needs_tls(self) -> bool {
        matches!(self, DoorKind::Tls | DoorKind::Https)
    }

    /// Whether HTTP is spoken there.
    pub(crate) fn is_http(self) -> bool {
        matches!(self, DoorKind::Http | DoorKind::Https)
    }
}

/// The arguments with which a protocol is opened.
pub(crate) struct FrontOpening<'a> {
    pub(crate) config: &'a Config,
    pub(crate) broker: &'a Broker,
    /// The result of [`Registration::tls`].
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

/// A new connection on its core.
pub(crate) struct AcceptedConnection {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    /// Whether it came through a [`DoorKind::Tls`] door.
    pub(crate) is_tls: bool,
    pub(crate) core: Rc<CoreContext>,
}

/// The future that serves a connection on its core.
pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A future that runs on the HTTP thread until the broker drains.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The router that answers at an HTTP door.
pub(crate) struct HttpDoor {
    pub(crate) option: &'static str,
    pub(crate) router: Router,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Whether its connections publish, so that the doctor has to see them.
    pub(crate) is_watched: bool,
}

/// A part of the admin interface.
#[derive(Default)]
pub(crate) struct AdminPart {
    pub(crate) router: Router,
    /// The paths that the answer to an unknown path suggests.
    pub(crate) paths: &'static [&'static str],
}

/// A member of a consumer group.
pub(crate) struct GroupMember {
    pub(crate) client_id: String,
    /// The IP address, as text.
    pub(crate) host: String,
}

/// An open protocol. Nothing here is called for each message.
pub(crate) trait Front: Send + Sync {
    /// Serves a connection from its first byte to its end.
    fn serve(self: Arc<Self>, accepted: AcceptedConnection) -> LocalFuture;

    /// Starts the threads that need the server's context.
    ///
    /// # Errors
    /// The system refuses a thread.
    fn start(&self, _context: &Arc<ServerContext>) -> io::Result<()> {
        Ok(())
    }

    /// Ends its threads. Called once, after the last connection has ended.
    fn stop(&self) {}

    /// The routers of its HTTP doors.
    fn http(self: Arc<Self>, _context: &Arc<ServerContext>) -> Vec<HttpDoor> {
        Vec::new()
    }

    /// The futures to run on the HTTP thread.
    fn tasks(self: Arc<Self>, _context: &Arc<ServerContext>) -> Vec<Task> {
        Vec::new()
    }

    /// Its part of the admin interface.
    fn admin(self: Arc<Self>, _context: &Arc<ServerContext>) -> AdminPart {
        AdminPart::default()
    }

    /// Appends its part of the page `/metrics`.
    fn metrics(&self, _text: &mut MetricText, _context: &ServerContext) {}

    /// The queues whose topics are hidden, with the names that clients use for them.
    fn hidden_queues(&self) -> Vec<(String, Arc<Subscription>)> {
        Vec::new()
    }

    /// For the doctor: one queue for each topic that a consumer group reads by offset, without a
    /// subscription. Called once per check.
    fn group_queues(
        &self,
        _context: &ServerContext,
        _connections: &[ConnectionSnapshot],
    ) -> Vec<Queue> {
        Vec::new()
    }

    /// The members of such a group; `None`: there is no group of this name.
    fn group_members(&self, _name: &str) -> Option<Vec<GroupMember>> {
        None
    }

    /// The options of a new subscription for which the caller has given none.
    fn subscription_options(&self, _topic: &str, _name: &str) -> Option<SubscriptionOptions> {
        None
    }

    /// Access to topics' settings under the protocol's names, if it has any.
    fn topic_settings(&self) -> Option<&dyn TopicSettings> {
        None
    }

    /// Calls `change` when a client changes the level of the broker's log.
    fn on_log_level(&self, _change: Arc<dyn Fn(tracing::Level) + Send + Sync>) {}
}

/// Settings of topics under a protocol's names.
pub(crate) trait TopicSettings {
    /// The options of a new topic of which only the number of partitions is given.
    fn defaults(&self, partitions: u32) -> TopicOptions;

    /// Sets settings to a value, or (`None`) to their default.
    ///
    /// # Errors
    /// A text for people: there is no such setting, or the value is not allowed.
    fn change(
        &self,
        options: &mut TopicOptions,
        changes: &BTreeMap<String, Option<String>>,
    ) -> Result<(), String>;
}

#[cfg(test)]
mod echo;
