//! Whether new messages can be stored, and whether all vital threads are running.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cloverleaf_log::LogMetrics;
use parking_lot::Mutex;

use crate::context::ServerContext;

/// How long a failed write or sync counts as trouble: long enough for a monitoring system to see
/// it. It ends because the log goes on in a new segment.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Remembers recent errors of the log, and a vital thread that has panicked.
#[derive(Debug, Default)]
pub(crate) struct Health {
    errors: Mutex<(u64, Option<Instant>)>,
    lost_thread: Mutex<Option<String>>,
}

/// Held by a vital thread: reports the thread as lost if it panics.
pub(crate) struct VitalThreadGuard {
    context: Arc<ServerContext>,
    thread: String,
}

impl VitalThreadGuard {
    pub(crate) fn new(context: &Arc<ServerContext>, thread: impl Into<String>) -> Self {
        Self {
            context: Arc::clone(context),
            thread: thread.into(),
        }
    }
}

impl Drop for VitalThreadGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.context.health.lose_thread(&self.thread);
        }
    }
}

impl Health {
    fn lose_thread(&self, thread: &str) {
        tracing::error!(
            thread,
            "a thread of the broker ended by a fault: restart the broker"
        );
        *self.lost_thread.lock() = Some(thread.to_owned());
    }

    /// Why messages are refused, or were a short time ago; `None` when all is well.
    pub(crate) fn trouble(
        &self,
        metrics: &LogMetrics,
        data_dir: &Path,
        disk_free_bytes_min: u64,
    ) -> Option<String> {
        if let Some(thread) = self.lost_thread.lock().as_deref() {
            return Some(format!(
                "the thread {thread} ended by a fault: restart the broker"
            ));
        }
        if let Some(free) = free_bytes(data_dir)
            && free < disk_free_bytes_min
        {
            return Some(format!(
                "the disk is full: {free} bytes are free, and new messages are refused below \
                 {disk_free_bytes_min} (disk_free_bytes_min)"
            ));
        }
        let errors = metrics.write_errors + metrics.sync_errors;
        let mut seen = self.errors.lock();
        if errors > seen.0 {
            *seen = (errors, Some(Instant::now()));
        }
        let recent = seen.1.is_some_and(|when| when.elapsed() < REMEMBERED);
        recent.then(|| {
            format!(
                "the log failed lately: {} failed writes and {} failed syncs since the start; \
                 see the broker's log lines",
                metrics.write_errors, metrics.sync_errors
            )
        })
    }
}

/// Bytes free for ordinary users; `None` if the system does not know.
fn free_bytes(folder: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(folder).ok()?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_full_disk_and_failed_writes_are_trouble() {
        let folder = tempfile::tempdir().unwrap();
        let health = Health::default();
        let well = LogMetrics::default();
        assert_eq!(health.trouble(&well, folder.path(), 0), None);
        let full = health.trouble(&well, folder.path(), u64::MAX).unwrap();
        assert!(full.contains("disk is full"), "{full}");
        let failed = LogMetrics {
            sync_errors: 1,
            ..well
        };
        assert!(
            health
                .trouble(&failed, folder.path(), 0)
                .unwrap()
                .contains("1 failed syncs")
        );
        assert!(
            health.trouble(&failed, folder.path(), 0).is_some(),
            "remembered for a while"
        );
    }

    #[test]
    fn a_lost_thread_is_trouble() {
        let health = Health::default();
        health.lose_thread("housekeeping");
        let trouble = health.trouble(&LogMetrics::default(), Path::new("/"), 0);
        assert!(trouble.is_some_and(|why| why.contains("housekeeping")));
    }
}
