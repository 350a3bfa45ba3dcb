//! All integration tests of this crate in one binary, which is linked once.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod hostile;
mod measure;
mod network;
mod network_support;
mod nsq;
mod report;
