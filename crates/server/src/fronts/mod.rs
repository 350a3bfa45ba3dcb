//! The protocols, a folder for each. All that the rest of the server knows of them is a
//! [`Registration`] and a [`Front`]: their addresses (doors), and what serves and describes them.

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

/// The protocols that a broker speaks, in the order in which they are opened and asked.
pub(crate) type Registrations = [&'static Registration];

/// All protocols that there are: those that a broker is started with.
pub(crate) const REGISTRATIONS: &Registrations = &[
    &nsq::REGISTRATION,
    &kafka::REGISTRATION,
    &amqp::REGISTRATION,
];

/// A protocol before anything is open: its addresses, its certificates, and how to open it.
pub(crate) struct Registration {
    /// Its tag.
    pub(crate) protocol: Protocol,
    /// Where it listens.
    pub(crate) doors: fn(&Config) -> Vec<Door<'_>>,
    /// Its certificates; `None` where it has none.
    pub(crate) tls: fn(&Config) -> Result<Option<Arc<ServerConfig>>, TlsError>,
    /// Opens it: what its connections share is there afterwards, and no thread that needs the
    /// server's context.
    pub(crate) open: fn(FrontOpening<'_>) -> Result<Arc<dyn Front>, StartError>,
    /// Takes secrets out of the configuration that are not needed once it is open.
    pub(crate) forget_secrets: fn(&mut Config),
}

/// A protocol before it is open.
pub(crate) struct UnopenedFront {
    pub(crate) registration: &'static Registration,
    /// The result of [`Registration::tls`].
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

/// Reads the certificates of protocols.
///
/// # Errors
/// Those of one cannot be used.
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

/// An address that is listened on.
pub(crate) struct Door<'a> {
    /// The option that says where.
    pub(crate) option: &'static str,
    /// Where.
    pub(crate) address: &'a ListenAddress,
    /// The protocol spoken there.
    pub(crate) kind: DoorKind,
    /// Whether nobody comes in whom nobody knows.
    pub(crate) is_guarded: bool,
    /// The setting that would guard it; empty, or ends with ", or ".
    pub(crate) remedy: &'static str,
}

impl<'a> Door<'a> {
    /// One that nothing guards, nor could.
    pub(crate) fn new(option: &'static str, address: &'a ListenAddress, kind: DoorKind) -> Self {
        Door {
            option,
            address,
            kind,
            is_guarded: false,
            remedy: "",
        }
    }

    /// One that is guarded if so, and else could be by this.
    pub(crate) fn guarded_if(self, is_guarded: bool, remedy: &'static str) -> Self {
        Door {
            is_guarded,
            remedy,
            ..self
        }
    }
}

/// The protocol spoken at a door, which is an address that is listened on.
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
    /// Whether it is open with a certificate only.
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

/// A connection that came in.
pub(crate) struct AcceptedConnection {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    /// Through a [`DoorKind::Tls`].
    pub(crate) is_tls: bool,
    pub(crate) core: Rc<CoreContext>,
}

/// The future that serves a connection on its core.
pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A future that runs on the thread of HTTP until the broker drains.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The router that answers at a door where HTTP is spoken.
pub(crate) struct HttpDoor {
    pub(crate) option: &'static str,
    pub(crate) router: Router,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Its connections publish, so the doctor wants to know of them.
    pub(crate) is_watched: bool,
}

/// A part of the admin interface.
#[derive(Default)]
pub(crate) struct AdminPart {
    pub(crate) router: Router,
    /// The paths that the answer to a request for an unknown path lists.
    pub(crate) paths: &'static [&'static str],
}

/// A member of a group of consumers.
pub(crate) struct GroupMember {
    pub(crate) client_id: String,
    /// The address, as text.
    pub(crate) host: String,
}

/// An open protocol. Nothing here is called for each message.
pub(crate) trait Front: Send + Sync {
    /// Serves a connection from its first byte to its end.
    fn serve(self: Arc<Self>, visitor: AcceptedConnection) -> LocalFuture;

    /// Starts the threads that need the server's context.
    ///
    /// # Errors
    /// The system refuses a thread.
    fn start(&self, _context: &Arc<ServerContext>) -> io::Result<()> {
        Ok(())
    }

    /// Ends its threads. Called once, when no connection is left.
    fn stop(&self) {}

    /// The routers for its doors where HTTP is spoken.
    fn http(self: Arc<Self>, _context: &Arc<ServerContext>) -> Vec<HttpDoor> {
        Vec::new()
    }

    /// The futures that run on the thread of HTTP.
    fn tasks(self: Arc<Self>, _context: &Arc<ServerContext>) -> Vec<Task> {
        Vec::new()
    }

    /// Its part of the admin interface.
    fn admin(self: Arc<Self>, _context: &Arc<ServerContext>) -> AdminPart {
        AdminPart::default()
    }

    /// Adds its part of the page `/metrics`.
    fn metrics(&self, _text: &mut MetricText, _context: &ServerContext) {}

    /// Queues in topics that have no name of their own, with the names under which people know
    /// them.
    fn hidden_queues(&self) -> Vec<(String, Arc<Subscription>)> {
        Vec::new()
    }

    /// The topics that groups of consumers that are no subscriptions read, for the doctor. Asked
    /// once a look.
    fn groups(&self, _context: &ServerContext, _connections: &[ConnectionSnapshot]) -> Vec<Queue> {
        Vec::new()
    }

    /// The members of such a group; `None`: there is none of this name.
    fn group(&self, _name: &str) -> Option<Vec<GroupMember>> {
        None
    }

    /// How a subscription is made by somebody who says nothing of it.
    fn subscription_options(&self, _topic: &str, _name: &str) -> Option<SubscriptionOptions> {
        None
    }

    /// The settings of topics, where they have this protocol's names.
    fn topic_settings(&self) -> Option<&dyn TopicSettings> {
        None
    }

    /// Calls `change` when a client changes the level of the broker's log.
    fn on_log_level(&self, _change: Arc<dyn Fn(tracing::Level) + Send + Sync>) {}
}

/// Settings of topics under the names of a protocol.
pub(crate) trait TopicSettings {
    /// Of a topic of which nothing is said but how many partitions it has.
    fn defaults(&self, partitions: u32) -> TopicOptions;

    /// Gives settings a value, or (`None`) their default.
    ///
    /// # Errors
    /// In words: there is no such setting, or no such value.
    fn change(
        &self,
        options: &mut TopicOptions,
        changes: &BTreeMap<String, Option<String>>,
    ) -> Result<(), String>;
}

#[cfg(test)]
mod echo;
