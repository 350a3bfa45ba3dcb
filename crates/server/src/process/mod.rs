//! What the broker has of its process: files, signals, and the end after a panic.

pub(crate) mod file_limit;
pub(crate) mod panics;
pub(crate) mod signals;
