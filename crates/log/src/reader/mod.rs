//! Reads that may block on the disk, on the threads "log-reader".
//!
//! A read is done in turns of bounded length, so that it does not block other reads for long. The
//! watch (`reader/watch.rs`) replaces a thread that hangs in a turn, so a file that the disk does
//! not answer for delays other reads only for a bounded time. The result goes to a callback
//! ([`ReadJob`]) or to a waiting thread ([`wait_for`], [`wait_for_small`]).

pub(crate) mod watch;

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::batch::{Batch, Offset};
use crate::error::{IoFailure, ReadError};
use crate::log::AbortOnPanic;
use crate::reader::watch::STALLED_MAX;
use crate::shared::Shared;

/// Interval at which a thread that waits for a read checks whether a read has stalled (perhaps no
/// other thread checks) and whether the broker is stopping.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The outcome of a cold read, as passed to a [`ColdReader`].
pub(crate) type ReadOutcome = Result<Vec<Batch>, ReadError>;

/// The callback of a cold read: batches as in [`crate::Read::Batches`]; no batch means
/// [`crate::Read::End`].
pub type ColdReader = Box<dyn FnOnce(Result<Vec<Batch>, ReadError>) + Send>;

/// A read that is done in turns.
pub(crate) trait ReadInTurns: Send {
    /// The file that the next turn reads, and the offset from which on.
    fn target(&self) -> (Arc<str>, Offset);

    /// Does one turn; `None` if the read needs another one.
    fn turn(&mut self) -> Option<ReadOutcome>;
}

/// A read and its callback.
pub(crate) struct ReadJob {
    pub(crate) reading: Box<dyn ReadInTurns>,
    pub(crate) reader: ColdReader,
}

impl ReadJob {
    /// Does one turn. If the read is not finished, queues it again after the others. Returns
    /// `false` if the disk answered so late that another thread has replaced this one.
    pub(crate) fn run(self, shared: &Shared) -> bool {
        let ReadJob {
            mut reading,
            reader,
        } = self;
        let (clock, watch) = (&shared.options.clock, &shared.reader_watch);
        let (file, from) = reading.target();
        let Some(turn) = watch.begin(clock.now_ms(), file, from, reader) else {
            return true;
        };
        let outcome = reading.turn();
        let ended = watch.end(turn, clock.now_ms());
        match (outcome, ended.reader) {
            (Some(outcome), Some(reader)) => reader(outcome),
            (None, Some(reader)) => drop(shared.queues.reads.push(ReadJob { reading, reader })),
            // The callback was called with an error before, or was dropped by the stop.
            (_, None) => {}
        }
        !ended.is_replaced
    }
}

/// Runs a read on a reader thread and waits for it. In manual mode, runs it on this thread.
///
/// # Errors
/// The error of the read; or the disk does not answer, or the log is stopped meanwhile.
pub(crate) fn wait_for(
    shared: &Arc<Shared>,
    mut reading: impl ReadInTurns + 'static,
) -> ReadOutcome {
    if shared.options.manual {
        loop {
            if let Some(outcome) = reading.turn() {
                return outcome;
            }
        }
    }
    let (answer, outcomes) = channel();
    drop(shared.queues.reads.push(ReadJob {
        reading: Box::new(reading),
        reader: Box::new(move |outcome| drop(answer.send(outcome))),
    }));
    loop {
        if shared.reader_watch.has_stopped_waiting() {
            return Err(ReadError::Closed);
        }
        match outcomes.recv_timeout(CHECK_INTERVAL) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Timeout) => drop(shared.check_stalled_reads()),
            Err(RecvTimeoutError::Disconnected) => return Err(ReadError::Closed),
        }
    }
}

/// Runs a read of one small file on a reader thread and waits for its result.
///
/// # Errors
/// The disk does not answer, or the log is stopped meanwhile.
pub(crate) fn wait_for_small<T: Send + 'static>(
    shared: &Arc<Shared>,
    file: String,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReadError> {
    let found = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&found);
    let outcome = wait_for(
        shared,
        SmallRead {
            file: file.into(),
            read: Some(move || *slot.lock() = Some(read())),
        },
    );
    outcome.and_then(|_| found.lock().take().ok_or(ReadError::Closed))
}

struct SmallRead<F> {
    file: Arc<str>,
    read: Option<F>,
}

impl<F: FnOnce() + Send> ReadInTurns for SmallRead<F> {
    fn target(&self) -> (Arc<str>, Offset) {
        (self.file.clone(), 0)
    }

    fn turn(&mut self) -> Option<ReadOutcome> {
        if let Some(read) = self.read.take() {
            read();
        }
        Some(Ok(Vec::new()))
    }
}

/// The error of a read that the disk does not answer.
pub(crate) fn no_answer(file: &str) -> IoFailure {
    let error = io::Error::new(ErrorKind::TimedOut, "the disk does not answer");
    IoFailure::new("read", file, &error)
}

impl Shared {
    pub(crate) fn start_reader(self: &Arc<Shared>) -> io::Result<()> {
        let shared = Arc::clone(self);
        let reader = thread::Builder::new().name("log-reader".to_owned());
        let running = AbortOnPanic("log-reader".to_owned());
        let reader = reader.spawn(move || {
            while let Some(job) = shared.queues.reads.wait_one() {
                if !job.run(&shared) {
                    break;
                }
            }
            drop(running);
        })?;
        let mut readers = self.readers.lock();
        // A replaced thread that has ended keeps its stack until its handle is dropped.
        readers.retain(|reader| !reader.is_finished());
        readers.push(reader);
        Ok(())
    }

    /// Returns the reads that take too long, as lines of text. Reports the failure to their
    /// readers, and starts other threads for the queued reads.
    pub(crate) fn check_stalled_reads(self: &Arc<Shared>) -> Vec<String> {
        let report = self.reader_watch.check(self.options.clock.now_ms());
        for (file, reader) in report.failed {
            reader(Err(no_answer(&file).into()));
        }
        if self.options.manual || self.queues.reads.is_stopped() {
            return report.stalled;
        }
        for _ in 0..report.replace {
            if let Err(error) = self.start_reader() {
                tracing::error!(%error, "no thread can be started for the reads behind it");
                self.reader_watch.undo_replacement();
            }
        }
        if report.stalled.len() > STALLED_MAX {
            // The disk is dead, and no thread is left for the queued reads: fail them all.
            for job in self.queues.reads.take() {
                (job.reader)(Err(no_answer(&job.reading.target().0).into()));
            }
        }
        report.stalled
    }

    /// Begins no more reads, and drops the callbacks of all others. Returns whether a read is
    /// running: the disk may never answer it, and it changes no data.
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
    fn a_replaced_thread_is_dropped_once_it_has_ended() {
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
            let reading = Box::new(SmallRead {
                file: "a".into(),
                read: Some(read),
            });
            let reader: ColdReader = Box::new(drop);
            drop(shared.queues.reads.push(ReadJob { reading, reader }));
            has_begun.recv().unwrap();
            now_ms.fetch_add(10_000, SeqCst);
            assert_eq!(shared.check_stalled_reads().len(), 1);
            assert_eq!(shared.readers.lock().len(), 2);
            drop(go);
            while !shared.readers.lock()[0].is_finished() {
                thread::yield_now();
            }
        }
        log.close();
    }
}
