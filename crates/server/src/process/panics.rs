//! The effect that a panic in the broker has on the process.
//!
//! A panic within one connection ends only that connection: its runtime catches it. A vital thread
//! is not replaced after a panic; without it, the broker would look alive, but would for example
//! never expire a lease or store progress. If the engine's state in memory contradicts itself, on
//! any thread, the process ends too: the next start reads the true state from the disk. A
//! supervisor of the process can restart it.

use std::panic::{self, Location, PanicHookInfo};
use std::{fmt, io, process, thread};

use cloverleaf_log::{engine_has_failed, panic_is_contained};

/// After the usual message of a panic, ends the process with a report, by `abort`, if the engine
/// has failed or a vital thread has panicked.
pub fn end_with_engine() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |fault| {
        usual(fault);
        let thread = thread::current();
        if panic_is_contained() {
            return;
        }
        let cause = match engine_has_failed() {
            true => ExitCause::Engine,
            false if is_vital(thread.name()) => ExitCause::VitalThread,
            false => return,
        };
        let report = ExitReport {
            cause,
            thread: thread.name(),
            fault,
        };
        // It fails if standard error is closed, and there is no other place for the report.
        let _ = io::Write::write_all(&mut io::stderr(), report.to_string().as_bytes());
        process::abort();
    }));
}

/// Threads that serve no connections, so that a panic there ends the thread.
fn is_vital(thread: Option<&str>) -> bool {
    let name = thread.unwrap_or_default();
    matches!(name, "housekeeping" | "acceptor" | "amqp-router") || name.starts_with("log-")
}

/// Why the process ends.
enum ExitCause {
    /// The state in memory contradicts itself.
    Engine,
    /// A thread that the broker needs has ended.
    VitalThread,
}

/// The text that the process writes before it ends.
struct ExitReport<'a> {
    cause: ExitCause,
    thread: Option<&'a str>,
    fault: &'a PanicHookInfo<'a>,
}

impl fmt::Display for ExitReport<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.thread.unwrap_or("without a name");
        let version = env!("CARGO_PKG_VERSION");
        writeln!(
            to,
            "cloverleaf {version} ends by a fault of its own: {}",
            match self.cause {
                ExitCause::Engine => "what it has in memory contradicts itself".to_owned(),
                ExitCause::VitalThread => format!("without the thread {name} nothing works"),
            }
        )?;
        let sentence = self.fault.payload_as_str().unwrap_or("not said");
        writeln!(to, "  fault   {sentence}")?;
        if let Some(place) = self.fault.location().map(Location::to_string) {
            writeln!(to, "  place   {place}")?;
        }
        writeln!(to, "  thread  {name}")?;
        writeln!(
            to,
            "all that was acknowledged is in the log: start the broker again"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_connections_are_not_vital() {
        assert!(
            ["housekeeping", "acceptor", "log-writer", "log-sync"]
                .iter()
                .all(|name| is_vital(Some(name)))
        );
        assert!(!is_vital(Some("core-0")) && !is_vital(Some("http")) && !is_vital(None));
    }
}
