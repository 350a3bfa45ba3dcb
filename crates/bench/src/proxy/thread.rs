//! A thread that carries bytes or packets over a distance.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

/// The name of these threads. Their cost is no broker's and no client's.
pub const PROXY_THREADS: &str = "bench-proxy";

/// The thread. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct DelayThread {
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl DelayThread {
    /// Starts what `prepare` returns. The descriptor becomes readable when the thread has to end.
    ///
    /// # Errors
    /// That of `prepare`, or the system has no resources for a thread.
    pub(crate) fn start<C: FnOnce(&OwnedFd) + Send + 'static>(
        prepare: impl FnOnce(&OwnedFd) -> io::Result<C>,
    ) -> io::Result<DelayThread> {
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (carry, ended) = (prepare(&end)?, Arc::clone(&end));
        let run = move || {
            // Wakes when something is due, not up to 50 µs later. Where the system refuses it, the
            // measured lateness shows it.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            carry(&ended);
        };
        let thread = Builder::new().name(PROXY_THREADS.to_owned()).spawn(run)?;
        Ok(DelayThread {
            end,
            thread: Some(thread),
        })
    }
}

impl Drop for DelayThread {
    fn drop(&mut self) {
        // The counter is far below its maximum.
        let _ = rustix::io::write(&*self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}
