//! All integration tests of this crate, in one binary.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod common;
mod compressed;
mod consumers;
mod crashes;
mod crashes_of_state;
mod damage;
mod damage_crashes;
mod deletion;
mod delivery;
mod folders;
mod holds;
mod limits;
mod looks;
mod many_consumers;
mod many_topics;
mod moves;
mod namespaces;
mod orphans;
mod pack;
mod power_losses;
mod queues;
mod realm;
mod redelivered;
mod regressions;
mod retention;
mod shared_windows;
mod simulation;
mod single_active;
mod stalled_reads;
mod topics;
