//! The broker's own threads. Each does one kind of work and does not delay the others.

use std::sync::Arc;
use std::thread;

use crate::broker::{Broker, Shared};

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the housekeeping has panicked: the broker ends, start it again");
            std::process::abort();
        }
    }
}

impl Broker {
    /// Runs the housekeeping until [`Self::close`], on the caller's thread. Starts two more
    /// threads: "inflater" inflates large batches for subscriptions, "upkeep" does retention and
    /// compaction.
    ///
    /// A panic in one of these threads would stop timeouts and the writing of progress while
    /// everything else seems to work. So it ends the process, which a restart survives by design.
    pub fn run_housekeeping(&self) {
        let _guard = AbortOnPanic;
        thread::scope(|scope| {
            let mut all_run = true;
            let mut start = |name: &str, work: fn(&Arc<Shared>)| {
                let shared = &self.shared;
                let thread = thread::Builder::new().name(name.to_owned());
                let started = thread.spawn_scoped(scope, move || {
                    let _guard = AbortOnPanic;
                    work(shared);
                });
                if let Err(error) = started {
                    all_run = false;
                    tracing::error!(name, %error, "cannot start a thread; its work is done beside");
                }
            };
            start("inflater", |shared| shared.inflater.run());
            start("upkeep", |shared| shared.upkeep.run(shared));
            self.shared.has_background_threads.set(all_run);
            self.run_housekeeping_loop();
            self.shared.inflater.close();
            self.shared.upkeep.close();
        });
    }

    fn run_housekeeping_loop(&self) {
        let shared = Arc::downgrade(&self.shared);
        self.shared.clock.on_move(Box::new(move || {
            if let Some(shared) = shared.upgrade() {
                shared.work.kick();
            }
        }));
        loop {
            let until_ms = {
                let mut housekeeping = self.housekeeping.lock();
                if housekeeping.is_closed() {
                    return;
                }
                housekeeping.tick()
            };
            self.shared.work.wait(self.shared.clock.now_ms(), until_ms);
        }
    }
}
