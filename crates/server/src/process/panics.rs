//! The effect of a panic in the broker on the process.
//!
//! A fault within one connection ends that connection only: its runtime catches it. A thread that
//! all depend on is not replaced when it is lost: the broker would look alive, and time out no
//! message or write down none. When the engine's memory contradicts itself, on whatever thread, the
//! disk is the truth: the next start reads it. A supervisor of the process can start it again.

use std::panic::{self, Location, PanicHookInfo};
use std::{fmt, io, process, thread};

use cloverleaf_log::{engine_has_failed, panic_is_contained};

/// Ends the process when the engine fails, or a thread panics that all depend on, after the usual
/// message: with a report, and as `abort` does.
pub fn end_with_engine() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |fault| {
        usual(fault);
        let thread = thread::current();
        if panic_is_contained() {
            return;
        }
        let cause = match engine_has_failed() {
            true => Cause::Engine,
            false if is_vital(thread.name()) => Cause::VitalThread,
            false => return,
        };
        let report = Report {
            cause,
            thread: thread.name(),
            fault,
        };
        // There is nowhere else to say it.
        let _ = io::Write::write_all(&mut io::stderr(), report.to_string().as_bytes());
        process::abort();
    }));
}

/// Threads that run no connection, so that a panic there is the end of the thread.
fn is_vital(thread: Option<&str>) -> bool {
    let name = thread.unwrap_or_default();
    matches!(name, "housekeeping" | "acceptor" | "amqp-router") || name.starts_with("log-")
}

/// Why the process ends.
enum Cause {
    /// The state in memory contradicts itself.
    Engine,
    /// A thread without which nothing works has ended.
    VitalThread,
}

/// The last words of the process.
struct Report<'a> {
    cause: Cause,
    thread: Option<&'a str>,
    fault: &'a PanicHookInfo<'a>,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.thread.unwrap_or("without a name");
        let version = env!("CARGO_PKG_VERSION");
        writeln!(
            to,
            "cloverleaf {version} ends by a fault of its own: {}",
            match self.cause {
                Cause::Engine => "what it has in memory contradicts itself".to_owned(),
                Cause::VitalThread => format!("without the thread {name} nothing works"),
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
