//! The answers that a session owes, in the order of the requests.
//!
//! Requests are carried out as they come; their answers may have to wait: for the disk, for other
//! members of a group, for messages. Answers behind them wait here, so that answers keep the order
//! of their requests.

use std::collections::VecDeque;
use std::task::{Context, Poll, ready};

use cloverleaf_session::Output;

use crate::answer::{Answer, Body, LaterBody};
use crate::fetch::{Env, Fetching, Request};
use crate::frame::{begin_answer, finish_answer};
use crate::produce::{Produced, Producing};

/// Most bytes that answers take while they wait, about.
const OWED_BYTES_MAX: usize = 8 << 20;

/// Bytes that an answer counts that is not known yet: one of usual size. Its maker keeps about the
/// bytes that came with the request, which count too.
const LATER_BYTES: usize = 64 << 10;

/// A longer queue is freed once it is empty, not kept for its allocation.
const KEPT_MAX: usize = 64;

/// The request that an answer belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerHead {
    pub(crate) correlation_id: i32,
    /// The answer's header has tagged fields.
    pub(crate) flexible: bool,
}

struct Owed {
    head: AnswerHead,
    kind: OwedKind,
}

enum OwedKind {
    Known(Body),
    /// With what it counts.
    Later(LaterBody, usize),
    Produce(Produced),
    Fetch(Request),
    /// The Fetch that is under way.
    Begun,
}

/// The messages and errors of the answer at the front of the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answered {
    pub(crate) messages: u64,
    pub(crate) errors: u64,
}

/// The queue of answers.
#[derive(Default)]
pub(crate) struct Answers {
    queue: VecDeque<Owed>,
    /// The bytes that the queue takes, about.
    bytes: usize,
    fetching: Fetching,
    /// A Fetch that was answered, for its allocations.
    spare: Option<Request>,
}

impl Answers {
    /// An answer to a request of so many bytes.
    pub(crate) fn control(&mut self, head: AnswerHead, answer: Answer, request_bytes: usize) {
        let (kind, bytes) = match answer {
            Answer::Ready(body) => {
                let bytes = body.len();
                (OwedKind::Known(body), bytes)
            }
            Answer::Later(body) => {
                let bytes = LATER_BYTES + request_bytes;
                (OwedKind::Later(body, bytes), bytes)
            }
        };
        self.bytes += bytes;
        self.queue.push_back(Owed { head, kind });
    }

    pub(crate) fn produce(&mut self, head: AnswerHead, produced: Produced) {
        self.bytes += produced.weight();
        let kind = OwedKind::Produce(produced);
        self.queue.push_back(Owed { head, kind });
    }

    pub(crate) fn fetch(&mut self, head: AnswerHead, request: Request) {
        self.bytes += request.weight();
        let kind = OwedKind::Fetch(request);
        self.queue.push_back(Owed { head, kind });
    }

    /// A request to read a Fetch into.
    pub(crate) fn spare_fetch(&mut self) -> Request {
        self.spare.take().unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether so much is owed that nothing more should be read.
    pub(crate) fn is_full(&self, answers_max: usize) -> bool {
        self.queue.len() >= answers_max || self.bytes >= OWED_BYTES_MAX
    }

    /// Whether the oldest answer holds up one that is no Fetch's. Fetches wait for each other: with
    /// several under way, an answer for each that comes behind would have a client ask as fast as
    /// it can.
    fn is_awaited(&self) -> bool {
        let mut behind = self.queue.iter().skip(1);
        behind.any(|owed| !matches!(owed.kind, OwedKind::Fetch(_)))
    }

    /// When the Fetch under way has waited long enough; `u64::MAX`: none waits.
    pub(crate) fn due_us(&self) -> u64 {
        self.fetching.due_us()
    }

    /// Appends the oldest answer, if it can be given. `None`: nothing is owed.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        env: &Env<'_>,
        producing: &mut Producing,
        out: &mut Output,
    ) -> Poll<Option<Answered>> {
        let Some(owed) = self.queue.front_mut() else {
            if self.queue.capacity() > KEPT_MAX {
                self.queue = VecDeque::new();
            }
            return Poll::Ready(None);
        };
        let mut answered = Answered::default();
        if let OwedKind::Fetch(request) = &mut owed.kind {
            self.bytes = self.bytes.saturating_sub(request.weight());
            self.fetching.begin(std::mem::take(request), env);
            owed.kind = OwedKind::Begun;
        }
        match &mut owed.kind {
            OwedKind::Known(body) => {
                self.bytes = self.bytes.saturating_sub(body.len());
                write(out, owed.head, |out| out.bytes.extend_from_slice(body));
            }
            OwedKind::Later(body, bytes) => {
                let body = ready!(body.as_mut().poll(cx));
                self.bytes = self.bytes.saturating_sub(*bytes);
                write(out, owed.head, |out| out.bytes.extend_from_slice(&body));
            }
            OwedKind::Produce(produced) => {
                answered.errors = ready!(produced.poll(cx));
                self.bytes = self.bytes.saturating_sub(produced.weight());
                write(out, owed.head, |out| produced.write(&mut out.bytes));
                producing.recycle(std::mem::take(produced));
            }
            OwedKind::Fetch(_) | OwedKind::Begun => {
                let head = owed.head;
                let is_awaited = self.is_awaited();
                let fetching = &mut self.fetching;
                ready!(fetching.poll(cx, env, is_awaited));
                write(out, head, |out| {
                    let told = fetching.answer(env, out);
                    (answered.messages, answered.errors) = (told.messages, told.errors);
                });
                self.spare = Some(self.fetching.take_request()).filter(Request::is_small);
            }
        }
        self.queue.pop_front();
        Poll::Ready(Some(answered))
    }
}

fn write(out: &mut Output, head: AnswerHead, body: impl FnOnce(&mut Output)) {
    let start = begin_answer(&mut out.bytes, head.correlation_id, head.flexible);
    let shared_before = out.len() - out.bytes.len();
    body(out);
    let shared = out.len() - out.bytes.len() - shared_before;
    finish_answer(&mut out.bytes, start, shared);
}
