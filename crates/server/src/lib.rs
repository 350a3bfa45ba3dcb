//! The broker as a whole: configuration, listeners, TLS, the admin interface, and for each
//! protocol the part that has the socket. The only crate that knows every protocol.
//!
//! It is a library: a program or a test runs a real broker in its own process.
//!
//! ```no_run
//! use cloverleaf_server::{Config, Server};
//!
//! let server = Server::start(Config::default())?;
//! println!("Kafka clients connect to {:?}", server.addresses().of("kafka.address"));
//! server.shutdown();
//! # Ok::<(), cloverleaf_server::StartError>(())
//! ```
//!
//! Threads: one per core that serves connections (`cores`), the acceptor that hands them out
//! (`listener`), one for all HTTP interfaces, one for Kafka requests that wait for the disk
//! (`fronts::kafka`), the router of AMQP's dead letters and delayed messages (`fronts::amqp`), the
//! doctor (`doctor`), the broker's housekeeping, and the log's own.

mod admin;
mod config;
mod connection;
mod context;
mod cores;
mod doctor;
mod failed_logins;
mod fronts;
mod half_received;
mod health;
mod http;
mod listener;
mod log_throttle;
mod process;
mod server;
mod tcp_info;
#[cfg(test)]
mod test_context;
mod timeline;
mod transport;
mod verifications;

pub use admin::types as admin_types;
pub use cloverleaf_broker::SystemClock;
pub use cloverleaf_nsq::http::query::escape as percent_encoded;
pub use config::check::OutOfRange;
pub use config::docs::options_markdown;
pub use config::load::{ConfigError, ConfigSources};
pub use config::options::*;
pub use config::{AnonymousRemote, DeadLetter, DeadLetterRule};
pub use config::{login as config_login, value as config_value};
pub use context::{Addresses, CoreContext, ServerContext};
pub use doctor::Observer;
pub use doctor::advice::AdviceFolderError;
pub use listener::BindError;
pub use process::panics::end_with_engine;
pub use process::signals::Signals;
pub use server::{Server, StartError};
pub use tcp_info::segments_sent;
pub use timeline::{TimelineQuery, types as timeline_types};
pub use transport::tls::TlsError;
