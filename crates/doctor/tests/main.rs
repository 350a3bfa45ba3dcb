//! All integration tests of this crate in one binary, which is linked once.

#![allow(clippy::panic, clippy::unwrap_used)]

mod bounds;
mod busy;
mod clocks;
mod common;
mod compression;
mod consumers;
mod deadlines;
mod follows;
mod full_batch;
mod given_up;
mod job_groups;
mod late_acks;
mod link_queue;
mod others;
mod producers;
mod recorded;
mod short;
mod text;
