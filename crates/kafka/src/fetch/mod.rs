//! Fetch: stored batches to the client, as they are.
//!
//! A Fetch begins when it is the oldest request that is owed an answer. It reads what is there; if
//! that is less than `min_bytes` it waits (a long poll) for arrivals in any of its partitions, or
//! until `max_wait_ms` is over. If a request other than a Fetch stands behind it, it does not wait:
//! answers leave in order, and the wait would be head-of-line blocking. Batches that lie in files
//! and not in memory are fetched by the log's reader thread.
//!
//! ```text
//!             enough, an error, no time left, another request behind it
//!   begun ──▶ looking ─────────────────────────────────▶ answered
//!               │ ▲  │                                      ▲
//!  too little   ▼ │  ▼  only on the disk                    │
//!             waiting   cold ───────────────────────────────┘
//! ```
//!
//! A message is visible once it is handed to the kernel: high watermark and last stable offset are
//! the end of what is written.

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
pub(crate) use request::Request;
pub(crate) use sessions::FetchSessions;

use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use cold::Cold;
use part::Part;
use readers::Reader;
use records::Records;
use request::{FINAL_EPOCH, INITIAL_EPOCH};
use sessions::Lease;

/// Clients that send an older version may not know zstd (KIP-110). Stored batches are sent as they
/// are, but a topic whose `compression.type` is zstd is refused.
const ZSTD_FROM: i16 = 10;

/// The environment that a fetch works in.
pub(crate) struct Env<'a> {
    pub(crate) context: &'a Arc<KafkaContext>,
    pub(crate) now: Now,
    /// The connection's number.
    pub(crate) connection: u64,
    /// The connection ends: nothing is waited for.
    pub(crate) is_ending: bool,
    /// The telemetry of the connection.
    pub(crate) probe: &'a Probe,
}

/// The counts of an answer, for the telemetry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) messages: u64,
    pub(crate) errors: u64,
}

/// The fetching half of a connection: at most one Fetch is under way.
#[derive(Default)]
pub(crate) struct Fetching {
    stage: Stage,
    request: Request,
    kind: Kind,
    /// The broker's generation when the request's topics were looked up.
    generation: u64,
    due_us: u64,
    watcher: Option<Arc<Watcher>>,
    /// Bytes counted toward `min_bytes` so far.
    counted_bytes: usize,
    records: Vec<Records>,
    /// The reads from files: for this request, and ahead for what the next one will probably want.
    cold: Cold,
    /// Which partitions the answer names.
    named: Vec<u32>,
    /// The entry about this connection's reading in [`crate::Readers`].
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

/// Whose partitions are read.
#[derive(Default)]
enum Kind {
    /// The request's.
    #[default]
    Sessionless,
    /// The request's, and a session is made of them.
    NewSession,
    /// The session's.
    Incremental(Lease),
    /// No partitions: the session is not what the client thinks.
    Refused(ErrorCode),
}

/// The result of one look.
#[derive(Clone, Copy, Default)]
struct Look {
    bytes: usize,
    /// There is an error to be told, or there is more than may be taken.
    ends_wait: bool,
    is_cold: bool,
}

/// These functions are never inlined where answers are polled: that would slow down the answers to
/// a Produce, too.
impl Fetching {
    /// Begins a request. The one before it was answered, or given up with its connection.
    #[inline(never)]
    pub(crate) fn begin(&mut self, request: Request, env: &Env<'_>) {
        env.probe.fetch_begun(env.now.us);
        self.request = request;
        self.generation = self.request.generation;
        self.due_us = env.now.us + u64::from(self.request.max_wait_ms) * 1000;
        self.stage = Stage::Looking;
        self.counted_bytes = 0;
        self.kind = self.open(env);
        self.tell_reader(env);
    }

    fn tell_reader(&mut self, env: &Env<'_>) {
        let now_us = env.now.us;
        let reader = self.reader.take();
        let mut reader =
            reader.unwrap_or_else(|| Reader::new(&env.context.readers, env.connection));
        if reader.is_due(now_us) {
            reader.tell(self.parts_mut(), now_us);
        }
        self.reader = Some(reader);
    }

    fn open(&mut self, env: &Env<'_>) -> Kind {
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

    /// When the wait is over; `u64::MAX`: nothing waits.
    pub(crate) fn due_us(&self) -> u64 {
        match self.stage {
            Stage::Waiting => self.due_us,
            Stage::Idle | Stage::Looking | Stage::Cold => u64::MAX,
        }
    }

    /// The request that was answered, for its allocations.
    pub(crate) fn take_request(&mut self) -> Request {
        let mut request = std::mem::take(&mut self.request);
        request.clear();
        request
    }

    /// Goes on; ready when the body of the answer may be appended with [`Fetching::answer`].
    /// `is_awaited`: a request other than a Fetch stands behind it, so it does not wait for more
    /// data.
    #[inline(never)]
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        env: &Env<'_>,
        is_awaited: bool,
    ) -> Poll<()> {
        loop {
            let is_due = is_awaited || env.is_ending || env.now.us >= self.due_us;
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

    /// Waits for arrivals, unless one came since the look.
    fn watch(&mut self) {
        let watcher = self.watcher().clone();
        let parts = self.parts_mut();
        parts.iter_mut().for_each(|part| part.watch(&watcher));
        if !parts.iter().any(|part| part.has_data_from(part.counted)) {
            self.stage = Stage::Waiting;
        }
    }

    /// The watcher that is told of arrivals. A session has its own, because it remembers what is
    /// watched.
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
