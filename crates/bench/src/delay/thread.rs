//! A thread that carries things over a distance until it is told to end.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::Alarm;
use crate::histogram::Histogram;

/// The name of the threads that carry: their cost is no broker's and no client's.
pub const PROXY_THREADS: &str = "bench-proxy";

/// The thread. It ends when this is dropped, and drops all that it has.
#[derive(Debug)]
pub(crate) struct DelayThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    late: Arc<Mutex<Histogram>>,
}

impl DelayThread {
    /// Begins. `register` makes, at once and inside the thread's runtime, what `serve` needs.
    ///
    /// # Errors
    /// That of `register`, or the system has no room.
    pub(crate) fn start<S: Send + 'static, F: Future<Output = ()>>(
        register: impl FnOnce() -> io::Result<S>,
        serve: impl FnOnce(S, Rc<Alarm>) -> F + Send + 'static,
    ) -> io::Result<DelayThread> {
        let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
        let late = Arc::default();
        let inside = runtime.enter();
        let (registered, alarm) = (register()?, Alarm::new(Arc::clone(&late))?);
        drop(inside);
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            let alarm = Rc::new(alarm);
            let serve = serve(registered, Rc::clone(&alarm));
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    _ = stopped => {}
                    () = alarm.ring() => {}
                    () = serve => {}
                }
            });
        };
        let thread = Builder::new().name(PROXY_THREADS.to_owned()).spawn(run)?;
        Ok(DelayThread {
            stop: Some(stop),
            thread: Some(thread),
            late,
        })
    }

    /// How much later than it should it has done what was due, since this was asked last: so much
    /// longer was the distance than it was to be.
    pub(crate) fn take_late(&self) -> Histogram {
        std::mem::take(&mut *self.late.lock())
    }
}

/// A descriptor for whose readiness the runtime of this thread waits.
pub(crate) fn registered(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `AsyncFd` owns the descriptor, which is open and always the same until then.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

impl Drop for DelayThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // If it has panicked, it has said so.
            let _ = thread.join();
        }
    }
}
