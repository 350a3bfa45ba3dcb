//! The answers that a connection still owes, in the order of its requests.
//!
//! A request is executed when it arrives, but its answer may have to wait: for the disk, for other
//! members of a group, for messages. The answers to later requests then wait in this queue, because
//! the protocol requires answers in the order of the requests.

use std::collections::VecDeque;
use std::task::{Context, Poll, ready};

use cloverleaf_session::Output;

use crate::answer::{Answer, Body, LaterBody};
use crate::fetch::{AnswerCounts, FetchEnv, FetchRequest, FetchState};
use crate::frame::{begin_answer, finish_answer};
use crate::produce::{ProduceAnswer, ProduceState};

/// Approximate limit of the memory that the queued answers of a connection take, in bytes. Beyond
/// it, no more requests are read.
const OWED_BYTES_MAX: usize = 8 << 20;

/// Bytes for which an answer counts while it is not known yet: a usual size. The size of the
/// request is added, because the pending job keeps about as many bytes.
const LATER_BYTES: usize = 64 << 10;

/// An empty queue with more capacity than this is freed; a smaller one keeps its allocation.
const KEPT_MAX: usize = 64;

/// The response header of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerHead {
    pub(crate) correlation_id: i32,
    /// Whether the header has tagged fields (response header version 1).
    pub(crate) flexible: bool,
}

struct OwedAnswer {
    head: AnswerHead,
    kind: OwedKind,
}

enum OwedKind {
    Ready(Body),
    /// The pending body, and the bytes for which it counts in `AnswerQueue::bytes`.
    Later(LaterBody, usize),
    Produce(ProduceAnswer),
    Fetch(FetchRequest),
    /// The Fetch in progress. Its state is in `AnswerQueue::fetch_state`.
    FetchInProgress,
}

/// The queue of answers.
#[derive(Default)]
pub(crate) struct AnswerQueue {
    queue: VecDeque<OwedAnswer>,
    /// Approximate memory of the queued answers, in bytes.
    bytes: usize,
    fetch_state: FetchState,
    /// An answered Fetch request, kept to reuse its allocations.
    spare: Option<FetchRequest>,
}

impl AnswerQueue {
    /// Queues the answer to a control-plane request of `request_bytes` bytes.
    pub(crate) fn push_control(&mut self, head: AnswerHead, answer: Answer, request_bytes: usize) {
        let (kind, bytes) = match answer {
            Answer::Ready(body) => {
                let bytes = body.len();
                (OwedKind::Ready(body), bytes)
            }
            Answer::Later(body) => {
                let bytes = LATER_BYTES + request_bytes;
                (OwedKind::Later(body, bytes), bytes)
            }
        };
        self.bytes += bytes;
        self.queue.push_back(OwedAnswer { head, kind });
    }

    pub(crate) fn push_produce(&mut self, head: AnswerHead, answer: ProduceAnswer) {
        self.bytes += answer.weight();
        let kind = OwedKind::Produce(answer);
        self.queue.push_back(OwedAnswer { head, kind });
    }

    pub(crate) fn push_fetch(&mut self, head: AnswerHead, request: FetchRequest) {
        self.bytes += request.weight();
        let kind = OwedKind::Fetch(request);
        self.queue.push_back(OwedAnswer { head, kind });
    }

    /// An empty request, into which the next Fetch is decoded.
    pub(crate) fn take_spare_fetch(&mut self) -> FetchRequest {
        self.spare.take().unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether no more requests should be read until answers have left (backpressure).
    pub(crate) fn is_full(&self, answers_max: usize) -> bool {
        self.queue.len() >= answers_max || self.bytes >= OWED_BYTES_MAX
    }

    /// Whether the oldest answer delays the answer to a request other than a Fetch (head-of-line
    /// blocking). Later Fetches do not count: if each of them ended the long poll before it, a
    /// client with several Fetches in flight would poll in a busy loop.
    fn is_blocking(&self) -> bool {
        let mut behind = self.queue.iter().skip(1);
        behind.any(|owed| !matches!(owed.kind, OwedKind::Fetch(_)))
    }

    /// When the long poll in progress ends, in microseconds of `Now::us`; `u64::MAX`: none is
    /// waiting.
    pub(crate) fn due_us(&self) -> u64 {
        self.fetch_state.due_us()
    }

    /// Appends the oldest answer to `out`, once it is complete. `Ready(None)`: no answer is owed.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        env: &FetchEnv<'_>,
        produce_state: &mut ProduceState,
        out: &mut Output,
    ) -> Poll<Option<AnswerCounts>> {
        let Some(owed) = self.queue.front_mut() else {
            if self.queue.capacity() > KEPT_MAX {
                self.queue = VecDeque::new();
            }
            return Poll::Ready(None);
        };
        let mut counts = AnswerCounts::default();
        if let OwedKind::Fetch(request) = &mut owed.kind {
            self.bytes = self.bytes.saturating_sub(request.weight());
            self.fetch_state.begin(std::mem::take(request), env);
            owed.kind = OwedKind::FetchInProgress;
        }
        match &mut owed.kind {
            OwedKind::Ready(body) => {
                self.bytes = self.bytes.saturating_sub(body.len());
                write(out, owed.head, |out| out.bytes.extend_from_slice(body));
            }
            OwedKind::Later(body, bytes) => {
                let body = ready!(body.as_mut().poll(cx));
                self.bytes = self.bytes.saturating_sub(*bytes);
                write(out, owed.head, |out| out.bytes.extend_from_slice(&body));
            }
            OwedKind::Produce(answer) => {
                counts.errors = ready!(answer.poll(cx));
                self.bytes = self.bytes.saturating_sub(answer.weight());
                write(out, owed.head, |out| answer.write(&mut out.bytes));
                produce_state.recycle(std::mem::take(answer));
            }
            OwedKind::Fetch(_) | OwedKind::FetchInProgress => {
                let head = owed.head;
                let is_blocking = self.is_blocking();
                let fetch_state = &mut self.fetch_state;
                ready!(fetch_state.poll(cx, env, is_blocking));
                write(out, head, |out| {
                    counts = fetch_state.answer(env, out);
                });
                self.spare = Some(self.fetch_state.take_request()).filter(FetchRequest::is_small);
            }
        }
        self.queue.pop_front();
        Poll::Ready(Some(counts))
    }
}

fn write(out: &mut Output, head: AnswerHead, body: impl FnOnce(&mut Output)) {
    let start = begin_answer(&mut out.bytes, head.correlation_id, head.flexible);
    let shared_before = out.len() - out.bytes.len();
    body(out);
    let shared = out.len() - out.bytes.len() - shared_before;
    finish_answer(&mut out.bytes, start, shared);
}
