//! The signals that end the broker.

use std::sync::mpsc;
use std::{io, thread};

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens to SIGTERM, SIGINT and, unless it was ignored at the start (`nohup`), SIGHUP. Made
/// before the broker starts, so that no signal is missed during recovery.
pub struct Signals {
    first_signal: mpsc::Receiver<()>,
}

impl Signals {
    /// Listens from now on. A SIGTERM or SIGINT after the first signal means that the operator does
    /// not want to wait: then `second_signal` is called, on the listening thread.
    ///
    /// # Errors
    /// The system refuses to register for signals.
    pub fn listen(second_signal: impl FnOnce() + Send + 'static) -> io::Result<Signals> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (mut terminate, mut interrupt, mut hangup) = {
            let _runtime = runtime.enter();
            let hangup = if hangup_is_ignored() {
                None
            } else {
                Some(signal(SignalKind::hangup())?)
            };
            (
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
                hangup,
            )
        };
        let (sender, first_signal) = mpsc::channel();
        let listening = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = received(hangup.as_mut()) => {}
            }
            // It fails if the broker has ended for another reason.
            let _ = sender.send(());
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            second_signal();
        };
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || runtime.block_on(listening))?;
        Ok(Signals { first_signal })
    }

    /// Blocks until the first signal; returns at once if it has come already.
    pub fn wait(&self) {
        // The thread ends only after it has sent this.
        let _ = self.first_signal.recv();
    }
}

async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

fn hangup_is_ignored() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only writes the current one to the pointer; if it
    // fails, all zeros are a valid value.
    let action = unsafe {
        libc::sigaction(libc::SIGHUP, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
