//! The signals by which the system tells the broker to end.

use std::sync::mpsc;
use std::{io, thread};

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens to SIGTERM, SIGINT and, unless it was ignored from the beginning (`nohup`), SIGHUP.
/// Made before the broker starts, so that none is missed while it recovers.
pub struct Signals {
    told: mpsc::Receiver<()>,
}

impl Signals {
    /// Listens from now on. When SIGTERM or SIGINT comes after another signal was there already,
    /// somebody does not want to wait any more: `impatient` is called, on a thread of its own.
    ///
    /// # Errors
    /// Signals cannot be listened to.
    pub fn listen(impatient: impl FnOnce() + Send + 'static) -> io::Result<Signals> {
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
        let (sender, told) = mpsc::channel();
        let listening = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = received(hangup.as_mut()) => {}
            }
            // The receiver is gone when the broker ends by itself.
            let _ = sender.send(());
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            impatient();
        };
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || runtime.block_on(listening))?;
        Ok(Signals { told })
    }

    /// Blocks until the process is told to end; at once if it was told before.
    pub fn wait(&self) {
        // The thread ends only after it has told.
        let _ = self.told.recv();
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
    // SAFETY: with no new action the call only writes the present one to where it is told; all
    // zeros are a valid value should it fail.
    let action = unsafe {
        libc::sigaction(libc::SIGHUP, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
