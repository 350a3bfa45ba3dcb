//! The broker's process: its open files, its signals, and its end after a panic.

pub(crate) mod file_limit;
pub(crate) mod panics;
pub(crate) mod signals;
