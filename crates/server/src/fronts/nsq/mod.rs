//! NSQ: its connections, its HTTP interfaces, and what it asks of other programs.

pub(crate) mod auth;
pub(crate) mod auth_http;
pub(crate) mod auth_name;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod http;
pub(crate) mod lookup_channels;
pub(crate) mod lookup_http;
pub(crate) mod lookup_peer;
pub(crate) mod node;
