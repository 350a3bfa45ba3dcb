//! All integration tests of this crate in one binary, which is linked once.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod behaviour;
mod common;
mod compaction;
mod compaction_crashes;
mod compression;
mod crashes;
mod faults;
mod first_files;
mod hostile_bytes;
mod idempotence;
mod journal;
mod leftovers;
mod lost_files;
mod misplaced_writes;
mod prepared;
mod producer_crashes;
#[cfg(feature = "races")]
mod races;
mod raises;
mod real_disk;
mod stalled_reads;
mod stored;
mod times;
