//! NSQ's lookup service: this broker as a client of nsqlookupd, and in the place of one.
//!
//! [`peer`] registers this broker's topics and channels at a real nsqlookupd, in the commands of
//! [`protocol`]. [`http`] answers consumers that look for producers, as nsqlookupd does; [`nodes`]
//! remembers the tombstones that it sets.

pub mod definitions;
pub mod http;
pub mod nodes;
pub mod peer;
pub mod protocol;
