//! The watch over the threads "log-reader": one that does not come back from the disk is named, and
//! another takes its place: a file that the disk does not answer for holds up nobody but those who
//! want it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::batch::Offset;
use crate::reader::{ColdReader, no_answer};

/// A read that has taken longer holds up others for no good reason, in milliseconds. A turn of a
/// read is 16 MiB: a slow disk needs a second for that.
const STALLED_MS: i64 = 10_000;

/// Most threads that may wait for the disk in vain. Where more reads than that do not come back, it
/// is not a file that is broken but the disk.
pub(crate) const STALLED_MAX: usize = 8;

/// The reads that the threads do at the moment.
#[derive(Default)]
pub(crate) struct ReaderWatch {
    state: Mutex<Watched>,
    nobody_waits: AtomicBool,
}

#[derive(Default)]
struct Watched {
    turns: Vec<ReadTurn>,
    next_id: u64,
    is_stopped: bool,
}

/// A turn that is under way.
struct ReadTurn {
    id: u64,
    begun_ms: i64,
    file: Arc<str>,
    from: Offset,
    /// The receiver of its outcome, until it is given up.
    reader: Option<ColdReader>,
    /// It has stalled, and somebody was told.
    is_told: bool,
    /// Another thread has taken its place.
    is_replaced: bool,
}

/// How a turn has ended.
pub(crate) struct Ended {
    /// Too late: another thread has taken the place of the one that comes back.
    pub(crate) is_replaced: bool,
    /// The receiver to be told; `None` if it was given up before.
    pub(crate) reader: Option<ColdReader>,
}

/// The turns that take too long.
#[derive(Default)]
pub(crate) struct Look {
    pub(crate) stalled: Vec<String>,
    /// So many threads are to take the place of theirs.
    pub(crate) replace: usize,
    /// Files that were given up since the last look, with those who wait for them.
    pub(crate) given_up: Vec<(Arc<str>, ColdReader)>,
}

impl ReaderWatch {
    /// A turn begins. `None`: it does not, because the log was stopped, or because another one
    /// waits for the same file in vain, of which the reader is told.
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
        let has_stalled = |turn: &ReadTurn| turn.is_told && turn.file == file;
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
        drop(state);
        if let Some(turn) = turn.as_ref().filter(|turn| turn.is_told) {
            let ms = now_ms - turn.begun_ms;
            tracing::warn!(file = %turn.file, ms, "the disk has answered a read");
        }
        Ended {
            is_replaced: turn.as_ref().is_some_and(|turn| turn.is_replaced),
            reader: turn.and_then(|turn| turn.reader),
        }
    }

    /// Waiters for a read go on without it from now on.
    pub(crate) fn stop_waiting(&self) {
        self.nobody_waits.store(true, Ordering::Release);
    }

    pub(crate) fn is_waited_for_by_nobody(&self) -> bool {
        self.nobody_waits.load(Ordering::Acquire)
    }

    /// No turn begins any more, and nobody hears of those that are under way. Says whether there
    /// are some.
    pub(crate) fn stop(&self) -> bool {
        let mut state = self.state.lock();
        state.is_stopped = true;
        let readers: Vec<_> = state.turns.iter_mut().map(|it| it.reader.take()).collect();
        drop(state);
        !readers.is_empty()
    }

    /// Looks for turns that take too long. Each is told in the log once.
    pub(crate) fn look(&self, now_ms: i64) -> Look {
        let mut state = self.state.lock();
        let mut look = Look::default();
        for turn in &mut state.turns {
            let ms = now_ms - turn.begun_ms;
            if ms < STALLED_MS {
                continue;
            }
            if !std::mem::replace(&mut turn.is_told, true) {
                tracing::error!(
                    file = %turn.file, from = turn.from, ms,
                    "the disk does not answer a read; others go on on another thread"
                );
            }
            let given_up = turn.reader.take();
            look.given_up
                .extend(given_up.map(|reader| (turn.file.clone(), reader)));
            if look.stalled.len() < STALLED_MAX && !std::mem::replace(&mut turn.is_replaced, true) {
                look.replace += 1;
            }
            let stalled = format!("{} from offset {}", turn.file, turn.from);
            look.stalled.push(stalled);
        }
        look
    }

    /// No thread could be started in the place of one: it goes on when it comes back, and the next
    /// look tries again.
    pub(crate) fn keep_one(&self) {
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
    use crate::reader::Outcome;

    fn begin(watch: &ReaderWatch, now_ms: i64, file: &str) -> (Option<u64>, Receiver<Outcome>) {
        let (answer, told) = channel();
        let reader = Box::new(move |outcome| answer.send(outcome).unwrap());
        (watch.begin(now_ms, file.into(), 7, reader), told)
    }

    fn stalled(look: &Look) -> (Vec<&str>, usize, usize) {
        let stalled = look.stalled.iter().map(String::as_str).collect();
        (stalled, look.replace, look.given_up.len())
    }

    #[test]
    fn a_read_that_does_not_come_back_is_named_and_its_thread_replaced() {
        let watch = ReaderWatch::default();
        assert_eq!(stalled(&watch.look(50_000)), (vec![], 0, 0));
        let (slow, told) = begin(&watch, 50_000, "a");
        let (quick, _) = begin(&watch, 50_000, "b");
        let ended = watch.end(quick.unwrap(), 50_001);
        assert!(!ended.is_replaced && ended.reader.is_some());
        assert_eq!(stalled(&watch.look(59_999)), (vec![], 0, 0));
        for (now_ms, replace, given_up) in [(60_000, 1, 1), (90_000, 0, 0)] {
            let expected = (vec!["a from offset 7"], replace, given_up);
            assert_eq!(stalled(&watch.look(now_ms)), expected);
        }
        assert!(told.try_recv().is_err(), "that is the looker's");
        let ended = watch.end(slow.unwrap(), 90_001);
        assert!(ended.is_replaced && ended.reader.is_none());
        assert_eq!(stalled(&watch.look(200_000)), (vec![], 0, 0));
    }

    #[test]
    fn a_thread_for_which_no_other_can_be_started_goes_on() {
        let watch = ReaderWatch::default();
        let (slow, _told) = begin(&watch, 0, "a");
        for _ in 0..2 {
            assert_eq!(watch.look(10_000).replace, 1);
            watch.keep_one();
        }
        assert!(!watch.end(slow.unwrap(), 10_001).is_replaced);
    }

    #[test]
    fn a_file_that_the_disk_does_not_answer_for_takes_no_second_thread() {
        let watch = ReaderWatch::default();
        let (first, _) = begin(&watch, 0, "a");
        watch.look(10_000);
        let (second, told) = begin(&watch, 10_000, "a");
        assert_eq!(second, None);
        assert!(told.try_recv().unwrap().is_err());
        assert!(begin(&watch, 10_000, "b").0.is_some());
        watch.end(first.unwrap(), 11_000);
        assert!(begin(&watch, 11_000, "a").0.is_some());
    }

    #[test]
    fn not_every_read_of_a_dead_disk_gets_a_thread() {
        let watch = ReaderWatch::default();
        let turns: Vec<_> = (0..100)
            .map(|number| begin(&watch, 0, &number.to_string()))
            .collect();
        let look = watch.look(10_000);
        assert_eq!((look.stalled.len(), look.replace), (100, STALLED_MAX));
        let (late, told) = begin(&watch, 9_000, "late");
        assert!(watch.stop());
        assert!(told.try_recv().is_err(), "nobody is told any more");
        assert_eq!(begin(&watch, 10_000, "a").0, None);
        assert!(watch.end(late.unwrap(), 10_001).reader.is_none());
        drop(turns);
    }
}
