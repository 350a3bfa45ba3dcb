//! NSQ's lookup service, both sides: this broker registers at real nsqlookupds, and it answers
//! look-ups itself, so that none is needed.
//!
//! [`peer`] registers this broker's topics and channels at a real nsqlookupd, in the commands of
//! [`protocol`]. [`http`] answers consumers that look for producers, as nsqlookupd does; [`nodes`]
//! keeps the tombstones and the deleted registrations, which hide a topic or channel from them.

pub mod definitions;
pub mod http;
pub mod nodes;
pub mod peer;
pub mod protocol;
