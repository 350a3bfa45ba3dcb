//! Log lines on standard error.

use std::borrow::Cow;
use std::io::{self, Write};

use cloverleaf_server::config_value::LogLevel;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt, reload};

/// Changes the log level while the broker runs.
pub(crate) type LevelHandle = Handle<LevelFilter, Registry>;

/// Installs the subscriber.
pub(crate) fn init(level: LogLevel) -> LevelHandle {
    let (filter, handle) = reload::Layer::new(filter_of(level));
    let lines = fmt::layer().with_writer(|| OneLine(io::stderr()));
    // Colours would be control characters, too.
    let lines = lines.with_target(false).with_ansi(false);
    // It fails only if a subscriber is installed already, which happens only in tests.
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

/// Writes each event as one line, even if a peer's name has line breaks: no peer can forge lines of
/// the log. The subscriber writes an event in one call.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(&without_controls(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The event with control characters written as in Rust, except for the end of the line.
fn without_controls(event: &[u8]) -> Cow<'_, [u8]> {
    let text = String::from_utf8_lossy(event);
    let line = text.strip_suffix('\n').unwrap_or(&text);
    if !line.contains(char::is_control) {
        return Cow::Borrowed(event);
    }
    let mut clean = String::with_capacity(event.len() + 16);
    for it in line.chars() {
        if it.is_control() {
            clean.extend(it.escape_default())
        } else {
            clean.push(it)
        }
    }
    clean.push('\n');
    Cow::Owned(clean.into_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_peer_makes_no_lines_of_its_own() {
        let written = Written::default();
        let to = written.clone();
        let lines = fmt::layer().with_writer(move || OneLine(to.clone()));
        let subscriber = tracing_subscriber::registry().with(lines.with_ansi(false));
        let name = "x\r\n2026-11-23T00:00:00Z  INFO all is well\u{1b}[2J\t\u{0}\u{9b}é";
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(user = %name, "PLAIN login refused: user '{name}'");
            tracing::info!("in order");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("x\\r\\n2026"), "{text}");
        assert!(
            lines[0].contains('é') && lines[1].ends_with("in order"),
            "{text}"
        );
        let controls = text.chars().filter(|it| it.is_control()).count();
        assert_eq!(controls, 2, "the ends of two lines: {text:?}");
    }
}
