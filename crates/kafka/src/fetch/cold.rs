//! Reads by the log's reader thread: those that the current answer waits for, and read-ahead for
//! the next request.

use std::task::{Context, Poll};

use cloverleaf_broker::Partition;
use cloverleaf_log::{Batch, ColdRead, Offset, Read, ReadError};

use crate::answer::{Reply, promise};

/// Maximum number of read-aheads that a connection keeps. Each has at most one chunk of the log, 1
/// MiB.
const AHEAD_MAX: usize = 4;

/// The result of a read; `None`: the log was closed before it ran.
pub(super) type ReadOutcome = Option<Result<Vec<Batch>, ReadError>>;

/// A read that is in progress or done.
pub(super) enum ColdReadState {
    Running(Reply<ReadOutcome>),
    Done(ReadOutcome),
}

/// The reads of one connection.
#[derive(Default)]
pub(super) struct ColdReads {
    pending: Vec<PendingRead>,
    ahead: Vec<ReadAhead>,
}

/// A read that the current answer waits for.
struct PendingRead {
    /// Index of the partition in the request or session.
    place: u32,
    /// The written end of the log before the read; 0: unknown.
    end: Offset,
    reading: ColdReadState,
}

/// The result of a read that the current answer has waited for.
pub(super) struct ColdResult {
    pub(super) place: u32,
    pub(super) end: Offset,
    pub(super) outcome: ReadOutcome,
}

struct ReadAhead {
    log: Partition,
    from: Offset,
    reading: ColdReadState,
}

impl ColdReadState {
    fn start(read: ColdRead) -> ColdReadState {
        let (promise, reply) = promise();
        read.on_ready(Box::new(move |outcome| promise.keep(Some(outcome))));
        ColdReadState::Running(reply)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let ColdReadState::Running(reply) = self {
            match std::pin::Pin::new(reply).poll(cx) {
                Poll::Ready(outcome) => *self = ColdReadState::Done(outcome),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

impl ColdReads {
    /// Starts a read for the partition with the index `place`.
    pub(super) fn start_read(&mut self, place: u32, end: Offset, read: ColdRead) {
        let reading = ColdReadState::start(read);
        self.pending.push(PendingRead {
            place,
            end,
            reading,
        });
    }

    /// Makes the current answer wait for a read that was started as a read-ahead.
    pub(super) fn await_read_ahead(&mut self, place: u32, reading: ColdReadState) {
        let end = 0;
        self.pending.push(PendingRead {
            place,
            end,
            reading,
        });
    }

    /// Ready when all reads of the current answer are done.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for pending in &mut self.pending {
            if pending.reading.poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// The results of the reads that the current answer has waited for.
    pub(super) fn take_pending(&mut self) -> impl Iterator<Item = ColdResult> {
        self.pending.drain(..).map(|pending| ColdResult {
            place: pending.place,
            end: pending.end,
            outcome: match pending.reading {
                ColdReadState::Done(outcome) => outcome,
                ColdReadState::Running(_) => None,
            },
        })
    }

    /// Drops the reads of the current answer.
    pub(super) fn forget_pending(&mut self) {
        self.pending.clear();
    }

    /// Takes the read-ahead of the partition, if it begins at `from`. One that begins elsewhere is
    /// dropped: it is of no use any more.
    pub(super) fn take_ahead(&mut self, log: &Partition, from: Offset) -> Option<ColdReadState> {
        let at = self.ahead.iter().position(|it| it.log == *log)?;
        let ahead = self.ahead.swap_remove(at);
        (ahead.from == from).then_some(ahead.reading)
    }

    /// Starts a read-ahead at `from`, unless memory has that offset.
    pub(super) fn read_ahead(&mut self, log: &Partition, from: Offset, bytes_max: usize) {
        if self.ahead.len() >= AHEAD_MAX || log.is_in_memory(from) {
            return;
        }
        let reading = match log.read(from, bytes_max) {
            Read::Cold(read) => ColdReadState::start(read),
            Read::Batches(batches) => ColdReadState::Done(Some(Ok(batches))),
            Read::End => return,
        };
        let log = log.clone();
        self.ahead.push(ReadAhead { log, from, reading });
    }
}
