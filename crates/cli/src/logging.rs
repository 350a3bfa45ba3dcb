//! Log lines on standard error.

use std::io::IsTerminal as _;

use cloverleaf_server::config_value::LogLevel;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt, reload};

/// Changes the level while the broker runs.
pub(crate) type LevelHandle = Handle<LevelFilter, Registry>;

/// Installs the subscriber.
pub(crate) fn init(level: LogLevel) -> LevelHandle {
    let (filter, handle) = reload::Layer::new(filter_of(level));
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    // A second subscriber would be a second call, which only a test could make.
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init();
    handle
}

fn filter_of(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    }
}
