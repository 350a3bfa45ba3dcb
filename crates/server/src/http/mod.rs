//! The HTTP interfaces: one thread for all of them, and their connections.

mod activity;
mod body;
mod listener;
mod probe;
pub(crate) mod thread;
pub(crate) mod web_pages;
