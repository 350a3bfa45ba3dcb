//! Reads that wait for the disk, on the threads "log-reader".
//!
//! A read is done in turns, so that others have theirs, and the watch (`reader/watch.rs`) looks
//! after each: a file that the disk does not answer for holds up nobody for longer than that
//! allows. The caller is called back with the result ([`ReadJob`]) or waits for it ([`wait_for`],
//! [`wait_for_small`]).

pub(crate) mod watch;

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::batch::{Batch, Offset};
use crate::error::{IoFailure, ReadError};
use crate::log::Running;
use crate::reader::watch::STALLED_MAX;
use crate::shared::Shared;

/// A thread that waits for a read looks this often whether one has stalled, because nobody else
/// may, and whether the broker ends.
const LOOK: Duration = Duration::from_millis(100);

/// As a [`ColdReader`] takes it.
pub(crate) type Outcome = Result<Vec<Batch>, ReadError>;

/// Takes the outcome of a cold read: batches as in [`crate::Read::Batches`]; none means
/// [`crate::Read::End`].
pub type ColdReader = Box<dyn FnOnce(Result<Vec<Batch>, ReadError>) + Send>;

/// A read that is done in turns.
pub(crate) trait Reading: Send {
    /// The file that the next turn reads, and from which offset on.
    fn place(&self) -> (Arc<str>, Offset);

    /// One turn; `None` when that was not enough.
    fn turn(&mut self) -> Option<Outcome>;
}

/// A read with whoever wants it.
pub(crate) struct ReadJob {
    pub(crate) reading: Box<dyn Reading>,
    pub(crate) reader: ColdReader,
}

impl ReadJob {
    /// One turn of it. A read that is not done by then comes behind the others. `false`: the disk
    /// has answered so late that another thread has taken the place of this one.
    pub(crate) fn run(self, shared: &Shared) -> bool {
        let ReadJob {
            mut reading,
            reader,
        } = self;
        let (clock, watch) = (&shared.options.clock, &shared.reader_watch);
        let (file, from) = reading.place();
        let Some(turn) = watch.begin(clock.now_ms(), file, from, reader) else {
            return true;
        };
        let outcome = reading.turn();
        let ended = watch.end(turn, clock.now_ms());
        match (outcome, ended.reader) {
            (Some(outcome), Some(reader)) => reader(outcome),
            (None, Some(reader)) => drop(shared.queues.reads.push(ReadJob { reading, reader })),
            // It was told already, or will not be any more.
            (_, None) => {}
        }
        !ended.is_replaced
    }
}

/// Reads, and waits for it. In manual mode that happens here and now.
///
/// # Errors
/// As the read has it; also where the disk does not answer, or the log ends meanwhile.
pub(crate) fn wait_for(shared: &Arc<Shared>, mut reading: impl Reading + 'static) -> Outcome {
    if shared.options.manual {
        loop {
            if let Some(outcome) = reading.turn() {
                return outcome;
            }
        }
    }
    let (answer, told) = channel();
    drop(shared.queues.reads.push(ReadJob {
        reading: Box::new(reading),
        reader: Box::new(move |outcome| drop(answer.send(outcome))),
    }));
    loop {
        if shared.reader_watch.is_waited_for_by_nobody() {
            return Err(ReadError::Closed);
        }
        match told.recv_timeout(LOOK) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Timeout) => drop(shared.look_after_reads()),
            Err(RecvTimeoutError::Disconnected) => return Err(ReadError::Closed),
        }
    }
}

/// Does a read of one small file, and waits for what it found.
///
/// # Errors
/// The disk does not answer, or the log ends meanwhile.
pub(crate) fn wait_for_small<T: Send + 'static>(
    shared: &Arc<Shared>,
    file: String,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReadError> {
    let found = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&found);
    let outcome = wait_for(
        shared,
        Small {
            file: file.into(),
            read: Some(move || *slot.lock() = Some(read())),
        },
    );
    outcome.and_then(|_| found.lock().take().ok_or(ReadError::Closed))
}

struct Small<F> {
    file: Arc<str>,
    read: Option<F>,
}

impl<F: FnOnce() + Send> Reading for Small<F> {
    fn place(&self) -> (Arc<str>, Offset) {
        (self.file.clone(), 0)
    }

    fn turn(&mut self) -> Option<Outcome> {
        if let Some(read) = self.read.take() {
            read();
        }
        Some(Ok(Vec::new()))
    }
}

/// The failure of a read that the disk does not answer.
pub(crate) fn no_answer(file: &str) -> IoFailure {
    let error = io::Error::new(ErrorKind::TimedOut, "the disk does not answer");
    IoFailure::new("read", file, &error)
}

impl Shared {
    pub(crate) fn start_reader(self: &Arc<Shared>) -> io::Result<()> {
        let shared = Arc::clone(self);
        let reader = thread::Builder::new().name("log-reader".to_owned());
        let running = Running("log-reader".to_owned());
        let reader = reader.spawn(move || {
            while let Some(job) = shared.queues.reads.wait_one() {
                if !job.run(&shared) {
                    break;
                }
            }
            drop(running);
        })?;
        let mut readers = self.readers.lock();
        // One that was replaced keeps its stack until its handle goes.
        readers.retain(|reader| !reader.is_finished());
        readers.push(reader);
        Ok(())
    }

    /// Looks for reads that take too long: which they are. Their readers are told that they failed,
    /// and other threads started for the reads behind them.
    pub(crate) fn look_after_reads(self: &Arc<Shared>) -> Vec<String> {
        let look = self.reader_watch.look(self.options.clock.now_ms());
        for (file, reader) in look.given_up {
            reader(Err(no_answer(&file).into()));
        }
        if self.options.manual || self.queues.reads.is_stopped() {
            return look.stalled;
        }
        for _ in 0..look.replace {
            if let Err(error) = self.start_reader() {
                tracing::error!(%error, "no thread can be started for the reads behind it");
                self.reader_watch.keep_one();
            }
        }
        if look.stalled.len() > STALLED_MAX {
            // The disk is dead, and nobody is left who would find that out for each of them.
            for job in self.queues.reads.take() {
                (job.reader)(Err(no_answer(&job.reading.place().0).into()));
            }
        }
        look.stalled
    }

    /// Begins no read any more, and tells nobody of those that there are. Says whether one is under
    /// way: the disk may never answer it, and it changes nothing.
    pub(crate) fn stop_reads(&self) -> bool {
        self.queues.reads.stop();
        drop(self.queues.reads.take());
        self.reader_watch.stop()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

    use uuid::Uuid;

    use super::*;
    use crate::{Log, LogClock, LogOptions, PartitionOptions, SimDisk};

    #[test]
    fn a_thread_that_was_replaced_is_let_go_when_it_has_come_back() {
        let now_ms = Arc::new(AtomicI64::new(0));
        let clock = now_ms.clone();
        let options = LogOptions {
            clock: LogClock::new(move || clock.load(SeqCst)),
            ..LogOptions::default()
        };
        let (log, _) = Log::open(SimDisk::new().mount(), options).unwrap();
        let partition = log.partition(Uuid::nil(), 0, PartitionOptions::default());
        let shared = partition.unwrap().shared.clone();
        for _ in 0..3 {
            let (begun, has_begun) = channel();
            let (go, gone) = channel::<()>();
            let read = move || {
                begun.send(()).unwrap();
                let _ = gone.recv();
            };
            let reading = Box::new(Small {
                file: "a".into(),
                read: Some(read),
            });
            let reader: ColdReader = Box::new(drop);
            drop(shared.queues.reads.push(ReadJob { reading, reader }));
            has_begun.recv().unwrap();
            now_ms.fetch_add(10_000, SeqCst);
            assert_eq!(shared.look_after_reads().len(), 1);
            assert_eq!(shared.readers.lock().len(), 2);
            drop(go);
            while !shared.readers.lock()[0].is_finished() {
                thread::yield_now();
            }
        }
        log.close();
    }
}
