//! The broker's use of the state journal: its entries, writing them, and restoring the state at the
//! start.

pub(crate) mod atomic;
pub(crate) mod durable;
pub(crate) mod entries;
pub(crate) mod orphans;
pub(crate) mod protocol_values;
pub(crate) mod restore;
