//! All integration tests of this crate in one binary, which is linked once.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod common;
mod http_lookup;
mod http_nsqd;
mod http_support;
mod memory;
mod session_consume;
mod session_negotiate;
mod session_publish;
mod session_samples;
