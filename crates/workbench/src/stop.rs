//! The first signal lets the running command end in order, the second ends the process at once.

use std::{process, thread};

use cloverleaf_bench::{GENERATOR_THREADS, Stop};
use cloverleaf_server::Signals;

/// Exit status after a second Ctrl-C.
const EXIT_IMPATIENT: i32 = 130;

/// Listens for signals. The first one sets the returned [`Stop`].
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
