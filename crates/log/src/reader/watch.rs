//! The watch over the threads "log-reader". If one hangs in a read, its file is logged and another
//! thread replaces it, so a file that the disk does not answer for delays only its own readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::batch::Offset;
use crate::reader::{ColdReader, no_answer};

/// A turn that takes longer than this many milliseconds has stalled. A turn reads at most 16 MiB,
/// which a slow disk reads in a second.
const STALLED_MS: i64 = 10_000;

/// Maximum number of threads that are replaced because they hang in a read. If more reads hang, the
/// disk is broken and not a single file.
pub(crate) const STALLED_MAX: usize = 8;

/// The turns that are running on the reader threads.
#[derive(Default)]
pub(crate) struct ReaderWatch {
    state: Mutex<WatchState>,
    waits_stopped: AtomicBool,
}

#[derive(Default)]
struct WatchState {
    turns: Vec<ReadTurn>,
    next_id: u64,
    is_stopped: bool,
}

/// A turn that is running.
struct ReadTurn {
    id: u64,
    begun_ms: i64,
    file: Arc<str>,
    from: Offset,
    /// The callback; `None` once it was called with an error or dropped.
    reader: Option<ColdReader>,
    /// Whether the turn has stalled and was logged.
    is_reported: bool,
    /// Whether another thread has replaced the one of this turn.
    is_replaced: bool,
}

/// The end of a turn.
pub(crate) struct TurnEnd {
    /// Whether another thread has replaced the one of this turn, which must end.
    pub(crate) is_replaced: bool,
    /// The callback to call; `None` if it was called with an error or dropped before.
    pub(crate) reader: Option<ColdReader>,
}

/// The result of [`ReaderWatch::check`].
#[derive(Default)]
pub(crate) struct WatchReport {
    pub(crate) stalled: Vec<String>,
    /// Number of threads to start as replacements.
    pub(crate) replace: usize,
    /// Files that have stalled since the last call, with the callbacks to fail.
    pub(crate) failed: Vec<(Arc<str>, ColdReader)>,
}

impl ReaderWatch {
    /// Begins a turn and returns its id. `None` if it must not begin: the log was stopped, or
    /// another turn has stalled on the same file; then `reader` is called with an error.
    pub(crate) fn begin(
        &self,
        now_ms: i64,
        file: Arc<str>,
        from: Offset,
        reader: ColdReader,
    ) -> Option<u64> {
        let mut state = self.state.lock();
        if state.is_stopped {
            return None;
        }
        let has_stalled = |turn: &ReadTurn| turn.is_reported && turn.file == file;
        if state.turns.iter().any(has_stalled) {
            drop(state);
            reader(Err(no_answer(&file).into()));
            return None;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.turns.push(ReadTurn {
            id,
            begun_ms: now_ms,
            file,
            from,
            reader: Some(reader),
            is_reported: false,
            is_replaced: false,
        });
        Some(id)
    }

    /// Ends a turn.
    pub(crate) fn end(&self, id: u64, now_ms: i64) -> TurnEnd {
        let mut state = self.state.lock();
        let at = state.turns.iter().position(|turn| turn.id == id);
        let turn = at.map(|at| state.turns.swap_remove(at));
        drop(state);
        if let Some(turn) = turn.as_ref().filter(|turn| turn.is_reported) {
            let ms = now_ms - turn.begun_ms;
            tracing::warn!(file = %turn.file, ms, "the disk has answered a read");
        }
        TurnEnd {
            is_replaced: turn.as_ref().is_some_and(|turn| turn.is_replaced),
            reader: turn.and_then(|turn| turn.reader),
        }
    }

    /// Ends the blocking waits for reads from now on.
    pub(crate) fn stop_waiting(&self) {
        self.waits_stopped.store(true, Ordering::Release);
    }

    pub(crate) fn has_stopped_waiting(&self) -> bool {
        self.waits_stopped.load(Ordering::Acquire)
    }

    /// Refuses further turns, and drops the callbacks of running ones. Returns whether turns are
    /// running.
    pub(crate) fn stop(&self) -> bool {
        let mut state = self.state.lock();
        state.is_stopped = true;
        let readers: Vec<_> = state.turns.iter_mut().map(|it| it.reader.take()).collect();
        drop(state);
        !readers.is_empty()
    }

    /// Finds the turns that take too long. Logs each of them once.
    pub(crate) fn check(&self, now_ms: i64) -> WatchReport {
        let mut state = self.state.lock();
        let mut report = WatchReport::default();
        for turn in &mut state.turns {
            let ms = now_ms - turn.begun_ms;
            if ms < STALLED_MS {
                continue;
            }
            if !std::mem::replace(&mut turn.is_reported, true) {
                tracing::error!(
                    file = %turn.file, from = turn.from, ms,
                    "the disk does not answer a read; others go on on another thread"
                );
            }
            let failed = turn.reader.take();
            report
                .failed
                .extend(failed.map(|reader| (turn.file.clone(), reader)));
            if report.stalled.len() < STALLED_MAX && !std::mem::replace(&mut turn.is_replaced, true)
            {
                report.replace += 1;
            }
            let stalled = format!("{} from offset {}", turn.file, turn.from);
            report.stalled.push(stalled);
        }
        report
    }

    /// Undoes a replacement for which no thread could be started: the hanging thread continues if
    /// the disk answers, and the next call of [`ReaderWatch::check`] tries again.
    pub(crate) fn undo_replacement(&self) {
        let mut state = self.state.lock();
        if let Some(turn) = state.turns.iter_mut().find(|turn| turn.is_replaced) {
            turn.is_replaced = false;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::reader::ReadOutcome;

    fn begin(watch: &ReaderWatch, now_ms: i64, file: &str) -> (Option<u64>, Receiver<ReadOutcome>) {
        let (answer, outcomes) = channel();
        let reader = Box::new(move |outcome| answer.send(outcome).unwrap());
        (watch.begin(now_ms, file.into(), 7, reader), outcomes)
    }

    fn stalled(report: &WatchReport) -> (Vec<&str>, usize, usize) {
        let stalled = report.stalled.iter().map(String::as_str).collect();
        (stalled, report.replace, report.failed.len())
    }

    #[test]
    fn a_stalled_read_is_named_and_its_thread_replaced() {
        let watch = ReaderWatch::default();
        assert_eq!(stalled(&watch.check(50_000)), (vec![], 0, 0));
        let (slow, outcomes) = begin(&watch, 50_000, "a");
        let (quick, _) = begin(&watch, 50_000, "b");
        let ended = watch.end(quick.unwrap(), 50_001);
        assert!(!ended.is_replaced && ended.reader.is_some());
        assert_eq!(stalled(&watch.check(59_999)), (vec![], 0, 0));
        for (now_ms, replace, failed) in [(60_000, 1, 1), (90_000, 0, 0)] {
            let expected = (vec!["a from offset 7"], replace, failed);
            assert_eq!(stalled(&watch.check(now_ms)), expected);
        }
        assert!(
            outcomes.try_recv().is_err(),
            "the caller of `check` has the callback"
        );
        let ended = watch.end(slow.unwrap(), 90_001);
        assert!(ended.is_replaced && ended.reader.is_none());
        assert_eq!(stalled(&watch.check(200_000)), (vec![], 0, 0));
    }

    #[test]
    fn a_thread_that_cannot_be_replaced_continues() {
        let watch = ReaderWatch::default();
        let (slow, _outcomes) = begin(&watch, 0, "a");
        for _ in 0..2 {
            assert_eq!(watch.check(10_000).replace, 1);
            watch.undo_replacement();
        }
        assert!(!watch.end(slow.unwrap(), 10_001).is_replaced);
    }

    #[test]
    fn a_stalled_file_takes_no_second_thread() {
        let watch = ReaderWatch::default();
        let (first, _) = begin(&watch, 0, "a");
        watch.check(10_000);
        let (second, outcomes) = begin(&watch, 10_000, "a");
        assert_eq!(second, None);
        assert!(outcomes.try_recv().unwrap().is_err());
        assert!(begin(&watch, 10_000, "b").0.is_some());
        watch.end(first.unwrap(), 11_000);
        assert!(begin(&watch, 11_000, "a").0.is_some());
    }

    #[test]
    fn replacements_on_a_dead_disk_are_bounded() {
        let watch = ReaderWatch::default();
        let turns: Vec<_> = (0..100)
            .map(|number| begin(&watch, 0, &number.to_string()))
            .collect();
        let report = watch.check(10_000);
        assert_eq!((report.stalled.len(), report.replace), (100, STALLED_MAX));
        let (late, outcomes) = begin(&watch, 9_000, "late");
        assert!(watch.stop());
        assert!(
            outcomes.try_recv().is_err(),
            "no callback is called any more"
        );
        assert_eq!(begin(&watch, 10_000, "a").0, None);
        assert!(watch.end(late.unwrap(), 10_001).reader.is_none());
        drop(turns);
    }
}
