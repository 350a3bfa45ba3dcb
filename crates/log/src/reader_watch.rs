//! Whether the threads "log-reader" come back from the disk. One that does not is named, and
//! another takes its place: a file that the disk does not answer for holds up nobody but those who
//! want it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::batch::Offset;

/// A read that has taken longer holds up others for no good reason, in milliseconds. A turn of a
/// read is 16 MiB: a slow disk needs a second for that.
const STALLED_MS: i64 = 10_000;

/// Most threads that may wait for the disk in vain. Where more reads than that do not come back, it
/// is not a file that is broken but the disk.
const STALLED_MAX: usize = 8;

/// What the threads read at the moment.
#[derive(Default)]
pub(crate) struct ReaderWatch {
    state: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    turns: Vec<Turn>,
    next_id: u64,
    is_stopped: bool,
}

/// A turn that is under way.
struct Turn {
    id: u64,
    begun_ms: i64,
    folder: Arc<str>,
    from: Offset,
    /// It has stalled, and somebody was told.
    is_told: bool,
    /// Another thread has taken its place.
    is_replaced: bool,
}

/// How a turn has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    InTime,
    /// Too late: another thread has taken the place of the one that comes back.
    Replaced,
    /// The log was stopped meanwhile: nobody is told what was read.
    Stopped,
}

impl ReaderWatch {
    /// A turn begins; `None` when the log was stopped.
    pub(crate) fn begin(&self, now_ms: i64, folder: Arc<str>, from: Offset) -> Option<u64> {
        let mut state = self.state.lock();
        if state.is_stopped {
            return None;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.turns.push(Turn {
            id,
            begun_ms: now_ms,
            folder,
            from,
            is_told: false,
            is_replaced: false,
        });
        Some(id)
    }

    /// It is over.
    pub(crate) fn end(&self, id: u64, now_ms: i64) -> Ended {
        let mut state = self.state.lock();
        let at = state.turns.iter().position(|turn| turn.id == id);
        let turn = at.map(|at| state.turns.swap_remove(at));
        let is_stopped = state.is_stopped;
        drop(state);
        if let Some(turn) = turn.as_ref().filter(|turn| turn.is_told) {
            let ms = now_ms - turn.begun_ms;
            tracing::warn!(folder = %turn.folder, ms, "the disk has answered a read");
        }
        match turn {
            _ if is_stopped => Ended::Stopped,
            Some(turn) if turn.is_replaced => Ended::Replaced,
            _ => Ended::InTime,
        }
    }

    /// No turn begins any more. Says whether one is under way, which nobody should wait for: the
    /// disk may never answer it.
    pub(crate) fn stop(&self) -> bool {
        let mut state = self.state.lock();
        state.is_stopped = true;
        !state.turns.is_empty()
    }

    /// Looks for turns that take too long: what they read, and how many threads are to take the
    /// place of theirs. Each is told in the log once.
    pub(crate) fn look(&self, now_ms: i64) -> (Vec<String>, usize) {
        let mut state = self.state.lock();
        let (mut stalled, mut replace) = (Vec::new(), 0);
        for turn in &mut state.turns {
            let ms = now_ms - turn.begun_ms;
            if ms < STALLED_MS {
                continue;
            }
            if !std::mem::replace(&mut turn.is_told, true) {
                tracing::error!(
                    folder = %turn.folder, from = turn.from, ms,
                    "the disk does not answer a read; others go on on another thread"
                );
            }
            if stalled.len() < STALLED_MAX && !std::mem::replace(&mut turn.is_replaced, true) {
                replace += 1;
            }
            stalled.push(format!("{} from offset {}", turn.folder, turn.from));
        }
        (stalled, replace)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_read_that_does_not_come_back_is_named_and_its_thread_replaced() {
        let watch = ReaderWatch::default();
        assert_eq!(watch.look(50_000), (vec![], 0));
        let slow = watch.begin(50_000, "a".into(), 7).unwrap();
        let quick = watch.begin(50_000, "b".into(), 8).unwrap();
        assert_eq!(watch.end(quick, 50_001), Ended::InTime);
        assert_eq!(watch.look(59_999), (vec![], 0));
        for (now_ms, replace) in [(60_000, 1), (90_000, 0)] {
            let named = vec!["a from offset 7".to_owned()];
            assert_eq!(watch.look(now_ms), (named, replace));
        }
        assert_eq!(watch.end(slow, 90_001), Ended::Replaced);
        assert_eq!(watch.look(200_000), (vec![], 0));
    }

    #[test]
    fn not_every_read_of_a_dead_disk_gets_a_thread() {
        let watch = ReaderWatch::default();
        for from in 0..100 {
            watch.begin(0, "a".into(), from).unwrap();
        }
        let (stalled, replace) = watch.look(10_000);
        assert_eq!((stalled.len(), replace), (100, STALLED_MAX));
        assert!(watch.stop());
        assert_eq!(watch.begin(10_000, "a".into(), 0), None);
        assert_eq!(watch.end(3, 10_001), Ended::Stopped);
    }
}
