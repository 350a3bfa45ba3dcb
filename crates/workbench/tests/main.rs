//! All integration tests of this crate in one binary, which is linked once.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod bench;
mod bench_clients;
mod bench_distance;
mod bench_fleet;
mod bench_promises;
mod bench_secrets;
mod bench_silent;
mod bench_smoke;
mod bench_stories;
mod lab_run;
mod lab_stories;
#[path = "../../bench/tests/network_support/mod.rs"]
mod network_support;
mod program;
mod support;
