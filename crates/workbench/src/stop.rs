//! Ends by signals: the first lets what is under way end in order, the second does not wait.

use std::{process, thread};

use cloverleaf_bench::{GENERATOR_THREADS, Stop};
use cloverleaf_server::Signals;

/// Exit status when a second Ctrl-C does not wait for what is being done.
const EXIT_IMPATIENT: i32 = 130;

/// Gives what a signal sets.
pub(crate) fn by_signals() -> anyhow::Result<Stop> {
    let stop = Stop::default();
    let signals = Signals::listen(|| process::exit(EXIT_IMPATIENT))?;
    let told = stop.clone();
    let name = format!("{GENERATOR_THREADS}signals");
    thread::Builder::new().name(name).spawn(move || {
        signals.wait();
        told.set();
    })?;
    Ok(stop)
}
