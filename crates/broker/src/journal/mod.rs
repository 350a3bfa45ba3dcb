//! The broker's part of the state journal: its entries, how they are written, and the way back from
//! them at the start.

pub(crate) mod atomic;
pub(crate) mod durable;
pub(crate) mod entries;
pub(crate) mod orphans;
pub(crate) mod protocol_values;
pub(crate) mod restore;
