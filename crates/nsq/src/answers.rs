//! The answers that a session owes, in the order of the commands.
//!
//! A publish is answered when the log has stored it. The session parses on meanwhile, and the
//! answers to later commands wait in this queue until the publish is answered.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use cloverleaf_broker::{PublishError, Published};

use crate::error::{Code, ProtocolError};
use crate::frame::{FrameType, push_frame, push_oks};
use crate::options::{ANSWERS_MAX, PENDING_BATCHES_MAX, PENDING_BYTES_MAX};

/// The command that a batch's error names. Consecutive publishes of one read share a batch, and its
/// error names the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishCommand {
    Pub,
    Mpub,
    Dpub,
}

impl PublishCommand {
    /// The error for a batch that was not stored.
    pub(crate) fn failed(self, error: &PublishError) -> ProtocolError {
        self.failed_with(&error.to_string())
    }

    /// The error with nsqd's code and wording, and our reason.
    pub(crate) fn failed_with(self, reason: &str) -> ProtocolError {
        let (code, name) = match self {
            PublishCommand::Pub => (Code::PubFailed, "PUB"),
            PublishCommand::Mpub => (Code::MpubFailed, "MPUB"),
            PublishCommand::Dpub => (Code::DpubFailed, "DPUB"),
        };
        ProtocolError::new(code, format!("{name} failed {reason}"))
    }
}

/// A batch on its way into the log.
pub(crate) struct PendingBatch {
    pub(crate) published: Published,
    pub(crate) command: PublishCommand,
    /// How many commands it answers, each with an OK.
    pub(crate) oks: u32,
    /// Bytes of the batch, counted against [`PENDING_BYTES_MAX`].
    pub(crate) bytes: usize,
}

enum Answer {
    Response(Vec<u8>),
    Error(ProtocolError),
    FinalError(&'static [u8]),
    Batch(PendingBatch),
}

/// The queue of answers.
#[derive(Default)]
pub(crate) struct Answers {
    queue: VecDeque<Answer>,
    pending_batches: usize,
    pending_bytes: usize,
}

impl Answers {
    pub(crate) fn response(&mut self, body: impl Into<Vec<u8>>) {
        self.queue.push_back(Answer::Response(body.into()));
    }

    pub(crate) fn error(&mut self, error: ProtocolError) {
        self.queue.push_back(Answer::Error(error));
    }

    /// An error frame that is no [`ProtocolError`]; the connection ends after it.
    pub(crate) fn final_error(&mut self, body: &'static [u8]) {
        self.queue.push_back(Answer::FinalError(body));
    }

    pub(crate) fn batch(&mut self, batch: PendingBatch) {
        self.pending_batches += 1;
        self.pending_bytes += batch.bytes;
        self.queue.push_back(Answer::Batch(batch));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a limit on pending answers is reached, so that no further command is to be read.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= ANSWERS_MAX
            || self.pending_batches >= PENDING_BATCHES_MAX
            || self.pending_bytes >= PENDING_BYTES_MAX
    }

    /// Appends the answers that are ready to `out`, up to the first batch that is not stored yet.
    /// Returns how many commands were answered, and as `Err` the fatal error after which the
    /// connection is to be closed.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> (u64, Result<(), ProtocolError>) {
        let mut answered = 0;
        while let Some(answer) = self.queue.front_mut() {
            let outcome = match answer {
                Answer::Response(body) => {
                    push_frame(out, FrameType::Response, body);
                    answered += 1;
                    Ok(())
                }
                Answer::Error(error) => Err(error.clone()),
                Answer::FinalError(body) => {
                    push_frame(out, FrameType::Error, body);
                    Ok(())
                }
                Answer::Batch(batch) => {
                    let Poll::Ready(result) = Pin::new(&mut batch.published).poll(cx) else {
                        return (answered, Ok(()));
                    };
                    self.pending_batches -= 1;
                    self.pending_bytes -= batch.bytes;
                    match result {
                        Ok(()) => {
                            push_oks(out, batch.oks);
                            answered += u64::from(batch.oks);
                            Ok(())
                        }
                        Err(error) => Err(batch.command.failed(&error)),
                    }
                }
            };
            self.queue.pop_front();
            if let Err(error) = outcome {
                push_frame(out, FrameType::Error, &error.body());
                answered += 1;
                if error.code.is_fatal() {
                    // nsqd closes the connection here: later commands are never answered.
                    *self = Answers::default();
                    return (answered, Err(error));
                }
            }
        }
        if self.queue.capacity() > 64 {
            // An idle connection must not keep the memory of a burst of answers.
            self.queue = VecDeque::new();
        }
        (answered, Ok(()))
    }
}
