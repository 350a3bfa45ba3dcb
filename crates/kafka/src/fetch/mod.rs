//! Fetch: sends stored batches to the client, unchanged.
//!
//! A Fetch is executed when it is the oldest request without an answer. It reads the available
//! data. If that is less than `min_bytes`, it waits (long poll) for new data in any of its
//! partitions, at most for `max_wait_ms`. It does not wait if a request other than a Fetch follows
//! it: answers leave in order, so the wait would be head-of-line blocking. Batches that are only on
//! the disk are read by the log's reader thread.
//!
//! ```text
//!             enough, an error, time is up, another request follows it
//!   begun ──▶ looking ─────────────────────────────────▶ answered
//!               │ ▲  │                                      ▲
//!  too little   ▼ │  ▼  only on the disk                    │
//!             waiting   cold ───────────────────────────────┘
//! ```
//!
//! A message is visible once it is written to the kernel: high watermark and last stable offset are
//! the end of the written log.

mod answer;
mod cold;
mod look;
mod part;
mod readers;
mod records;
mod request;
mod sessions;

use std::sync::Arc;
use std::task::{Context, Poll};

use cloverleaf_broker::Watcher;
use cloverleaf_session::Now;
use cloverleaf_telemetry::Probe;

pub use readers::{Readers, Reading};
pub(crate) use request::FetchRequest;
pub(crate) use sessions::FetchSessions;

use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use cold::Cold;
use part::Part;
use readers::Reader;
use records::Records;
use request::{FINAL_EPOCH, INITIAL_EPOCH};
use sessions::Lease;

/// Clients that send an older version may not know zstd (KIP-110). They are refused only topics
/// whose `compression.type` is zstd; other batches are sent to them unchanged.
const ZSTD_FROM: i16 = 10;

/// The environment of a Fetch.
pub(crate) struct FetchEnv<'a> {
    pub(crate) context: &'a Arc<KafkaContext>,
    pub(crate) now: Now,
    /// The connection's telemetry id.
    pub(crate) connection: u64,
    /// The connection is ending: no Fetch waits any more.
    pub(crate) is_ending: bool,
    /// The telemetry of the connection.
    pub(crate) probe: &'a Probe,
}

/// Numbers of messages and errors in an answer, for the telemetry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) messages: u64,
    pub(crate) errors: u64,
}

/// The state of a connection for Fetch requests: at most one Fetch is in progress.
#[derive(Default)]
pub(crate) struct FetchState {
    stage: Stage,
    request: FetchRequest,
    kind: Kind,
    /// The broker's generation when the request's topics were looked up.
    generation: u64,
    due_us: u64,
    watcher: Option<Arc<Watcher>>,
    /// Bytes counted toward `min_bytes` so far.
    counted_bytes: usize,
    records: Vec<Records>,
    /// Reads from files: for this request, and read-ahead for the next one.
    cold: Cold,
    /// Indexes of the partitions that the answer includes.
    named: Vec<u32>,
    /// This connection's entry in [`crate::Readers`].
    reader: Option<Reader>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    Looking,
    Waiting,
    Cold,
}

/// How a request uses fetch sessions (KIP-227). It decides which partitions are read.
#[derive(Default)]
enum Kind {
    /// A full fetch without a session: the partitions of the request.
    #[default]
    Sessionless,
    /// A full fetch that opens a session: the partitions of the request.
    NewSession,
    /// An incremental fetch: the partitions of the session.
    Incremental(Lease),
    /// The session id or epoch is wrong: no partitions.
    Refused(ErrorCode),
}

/// The result of one pass over the partitions.
#[derive(Clone, Copy, Default)]
struct Look {
    bytes: usize,
    /// Waiting would not add data: a partition has an error, or more data than the limits allow.
    ends_wait: bool,
    is_cold: bool,
}

/// Never inlined into the polling of answers: that would slow down the answers to Produce, too.
impl FetchState {
    /// Begins a request. The previous one has been answered.
    #[inline(never)]
    pub(crate) fn begin(&mut self, request: FetchRequest, env: &FetchEnv<'_>) {
        env.probe.fetch_begun(env.now.us);
        self.request = request;
        self.generation = self.request.generation;
        self.due_us = env.now.us + u64::from(self.request.max_wait_ms) * 1000;
        self.stage = Stage::Looking;
        self.counted_bytes = 0;
        self.kind = self.open(env);
        self.tell_reader(env);
    }

    fn tell_reader(&mut self, env: &FetchEnv<'_>) {
        let now_us = env.now.us;
        let reader = self.reader.take();
        let mut reader =
            reader.unwrap_or_else(|| Reader::new(&env.context.readers, env.connection));
        if reader.is_due(now_us) {
            reader.tell(self.parts_mut(), now_us);
        }
        self.reader = Some(reader);
    }

    fn open(&mut self, env: &FetchEnv<'_>) -> Kind {
        let (id, epoch) = (self.request.session_id, self.request.session_epoch);
        let sessions = &env.context.fetch_sessions;
        if matches!(epoch, INITIAL_EPOCH | FINAL_EPOCH) {
            if id != 0 {
                sessions.end(id);
            }
            return match epoch {
                FINAL_EPOCH => Kind::Sessionless,
                _ => Kind::NewSession,
            };
        }
        match sessions.resume(&mut self.request, &env.context.realm, env.now.us) {
            Ok(lease) => Kind::Incremental(lease),
            Err(error) => Kind::Refused(error),
        }
    }

    /// When the long poll ends, in microseconds of `Now::us`; `u64::MAX`: none is waiting.
    pub(crate) fn due_us(&self) -> u64 {
        match self.stage {
            Stage::Waiting => self.due_us,
            Stage::Idle | Stage::Looking | Stage::Cold => u64::MAX,
        }
    }

    /// Takes the answered request, whose allocations are reused.
    pub(crate) fn take_request(&mut self) -> FetchRequest {
        let mut request = std::mem::take(&mut self.request);
        request.clear();
        request
    }

    /// Continues the Fetch. Ready when [`FetchState::answer`] can append the body of the answer.
    /// `is_blocking`: a request other than a Fetch follows, so this one does not wait for more
    /// data.
    #[inline(never)]
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        env: &FetchEnv<'_>,
        is_blocking: bool,
    ) -> Poll<()> {
        loop {
            let is_due = is_blocking || env.is_ending || env.now.us >= self.due_us;
            match self.stage {
                Stage::Idle => return Poll::Ready(()),
                Stage::Waiting => {
                    if !is_due && self.watcher().poll_fired(cx).is_pending() {
                        return Poll::Pending;
                    }
                    self.stage = Stage::Looking;
                }
                Stage::Looking => {
                    let look = self.look(env, is_due);
                    if look.is_cold {
                        self.stage = Stage::Cold;
                    } else if is_due || look.ends_wait || look.bytes >= self.request.min_bytes {
                        return Poll::Ready(());
                    } else {
                        self.watch();
                    }
                }
                Stage::Cold => {
                    if self.cold.poll(cx).is_pending() && !env.is_ending {
                        return Poll::Pending;
                    }
                    if self.take_cold() || is_due {
                        return Poll::Ready(());
                    }
                    self.stage = Stage::Looking;
                    self.watch();
                }
            }
        }
    }

    /// Starts to wait for new data, unless some has arrived since the last pass.
    fn watch(&mut self) {
        let watcher = self.watcher().clone();
        let parts = self.parts_mut();
        parts.iter_mut().for_each(|part| part.watch(&watcher));
        if !parts.iter().any(|part| part.has_data_from(part.counted)) {
            self.stage = Stage::Waiting;
        }
    }

    /// The watcher that fires on new data. A session has its own, because its partitions stay
    /// registered with it from request to request.
    fn watcher(&mut self) -> &Arc<Watcher> {
        let own = &mut self.watcher;
        match &mut self.kind {
            Kind::Incremental(lease) => match lease.session_mut() {
                Some(session) => &session.watcher,
                None => own.get_or_insert_with(Watcher::new),
            },
            _ => own.get_or_insert_with(Watcher::new),
        }
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        match &mut self.kind {
            Kind::Sessionless | Kind::NewSession => &mut self.request.parts,
            Kind::Incremental(lease) => lease
                .session_mut()
                .map_or(&mut [], |session| &mut session.parts),
            Kind::Refused(_) => &mut [],
        }
    }
}
