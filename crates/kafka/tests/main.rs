//! All integration tests of this crate in one binary, which is linked once.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod common;
mod control_changed;
mod control_configs;
mod control_described;
mod control_hostile;
mod control_offsets;
mod control_placement;
mod control_producers;
mod control_topics;
mod control_world;
mod groups_clock;
mod groups_common;
mod groups_crashes;
mod groups_hostile;
mod groups_membership;
mod groups_offsets;
mod groups_tools;
mod memory;
mod namespaces;
mod power_losses;
mod rights;
mod session_fetch;
mod session_fetch_cold;
mod session_fetch_sessions;
mod session_frames;
mod session_produce;
mod session_produce_own;
mod session_samples;
mod session_times;
