//! Whether the thread "log-reader" comes back from the disk: one file that the disk does not answer
//! for holds up all reads that are not in memory.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::batch::Offset;

/// A read that has taken longer holds up others for no good reason, in milliseconds. A turn of a
/// read is 16 MiB: a slow disk needs a second for that.
const STALLED_MS: i64 = 10_000;

/// What the thread reads at the moment.
#[derive(Default)]
pub(crate) struct ReaderWatch {
    turn: Mutex<Option<Turn>>,
}

struct Turn {
    begun_ms: i64,
    folder: Arc<str>,
    from: Offset,
    is_told: bool,
}

impl ReaderWatch {
    /// A turn begins.
    pub(crate) fn begin(&self, now_ms: i64, folder: Arc<str>, from: Offset) {
        *self.turn.lock() = Some(Turn {
            begun_ms: now_ms,
            folder,
            from,
            is_told: false,
        });
    }

    /// It is over.
    pub(crate) fn end(&self, now_ms: i64) {
        let turn = self.turn.lock().take();
        if let Some(turn) = turn.filter(|turn| turn.is_told) {
            let ms = now_ms - turn.begun_ms;
            tracing::warn!(folder = %turn.folder, ms, "the disk has answered a read");
        }
    }

    /// What is read, if it has taken too long. Told in the log once.
    pub(crate) fn stalled(&self, now_ms: i64) -> Option<String> {
        let mut turn = self.turn.lock();
        let turn = turn.as_mut()?;
        let ms = now_ms - turn.begun_ms;
        if ms < STALLED_MS {
            return None;
        }
        if !std::mem::replace(&mut turn.is_told, true) {
            tracing::error!(
                folder = %turn.folder, from = turn.from, ms,
                "the disk does not answer a read; all others that are not in memory wait for it"
            );
        }
        Some(format!("{} from offset {}", turn.folder, turn.from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_does_not_come_back_is_named() {
        let watch = ReaderWatch::default();
        assert_eq!(watch.stalled(50_000), None);
        watch.begin(50_000, "a".into(), 7);
        assert_eq!(watch.stalled(59_999), None);
        for now_ms in [60_000, 90_000] {
            assert_eq!(watch.stalled(now_ms).as_deref(), Some("a from offset 7"));
        }
        watch.end(90_001);
        assert_eq!(watch.stalled(200_000), None);
    }
}
