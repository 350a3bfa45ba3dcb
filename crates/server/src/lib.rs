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
//! (`listener`), one for all HTTP interfaces, one for what Kafka clients ask of the disk
//! (`fronts::kafka`), the router of AMQP's dead letters and delayed messages (`fronts::amqp`), the
//! doctor (`doctor`), the broker's housekeeping, and the log's own.

mod admin;
mod admin_doctor;
mod admin_messages;
mod admin_metrics;
mod admin_metrics_doctor;
mod admin_settings;
mod admin_topics;
pub mod admin_types;
mod balance;
mod config;
mod config_check;
mod config_docs;
mod config_load;
pub mod config_login;
pub mod config_value;
mod connection;
mod connection_io;
mod connection_output;
mod context;
mod cores;
mod doctor;
mod doctor_advice;
mod doctor_queues;
mod failed_logins;
mod file_limit;
mod fronts;
mod half_received;
mod half_received_room;
mod health;
mod http_activity;
mod http_body;
mod http_listener;
mod http_probe;
mod http_thread;
mod listener;
mod options;
mod panics;
mod repeats;
mod server;
mod signals;
mod tcp_info;
#[cfg(test)]
mod test_context;
mod timeline;
pub mod timeline_types;
mod tls;
mod transport;
mod transport_deflate;
mod transport_snappy;
mod verifications;
mod web_pages;

pub use cloverleaf_broker::SystemClock;
pub use cloverleaf_nsq::http_query::escape as percent_encoded;
pub use config::{AnonymousRemote, DeadLetter, DeadLetterRule};
pub use config_check::OutOfRange;
pub use config_docs::options_markdown;
pub use config_load::{ConfigError, Sources};
pub use context::{Addresses, CoreContext, ServerContext};
pub use doctor::Observer;
pub use doctor_advice::AdviceFolderError;
pub use listener::BindError;
pub use options::*;
pub use panics::end_with_engine;
pub use server::{Server, StartError};
pub use signals::Signals;
pub use tcp_info::segments_sent;
pub use timeline::TimelineQuery;
pub use tls::TlsError;
