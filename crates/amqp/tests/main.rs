//! All integration tests of this crate in one binary, which is linked once.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod host_common;
mod host_crashes;
mod host_damage;
mod host_dead_letter_copies;
mod host_dead_letters;
mod host_dead_routing;
mod host_delays;
mod host_exchanges;
mod host_hostile;
mod host_namespaces;
mod host_queues;
mod host_router_crashes;
mod host_threads;
mod session_common;
mod session_consume;
mod session_copies;
mod session_dead_letters;
mod session_earlier;
mod session_large;
mod session_open;
mod session_publish;
mod session_rest;
mod session_rights;
mod wire;
