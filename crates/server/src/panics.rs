//! What a fault of the broker does to the process.
//!
//! A fault within one connection ends that connection only: its runtime catches it. A thread that
//! all depend on is not replaced when it is lost: the broker would look alive, and time out no
//! message or write down none. Whoever supervises the process can start it again.

use std::{io, panic, process, thread};

/// Ends the process when such a thread panics, after the usual message.
pub fn end_with_vital_threads() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |fault| {
        usual(fault);
        if is_vital(thread::current().name()) {
            use io::Write;

            let name = thread::current().name().unwrap_or_default().to_owned();
            // There is nowhere else to say it.
            let _ = writeln!(
                io::stderr(),
                "cloverleaf: the thread {name} ended by a fault, without which nothing works; \
                 all that was acknowledged is in the log: start the broker again"
            );
            process::abort();
        }
    }));
}

/// Threads that run no connection, so that a panic there is the end of the thread.
fn is_vital(thread: Option<&str>) -> bool {
    let name = thread.unwrap_or_default();
    matches!(name, "housekeeping" | "acceptor" | "amqp-router") || name.starts_with("log-")
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
