//! All integration tests of this crate in one binary, which is linked once.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod doctor;
mod doctor_many;
mod serve;
mod support;
mod timeline;
mod workbench;
