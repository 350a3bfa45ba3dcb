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
//!   begun ──▶ reading ─────────────────────────────────▶ answered
//!               │ ▲  │                                      ▲
//!  too little   ▼ │  ▼  only on the disk                    │
//!             waiting   cold ───────────────────────────────┘
//! ```
//!
//! A message is visible once it is written to the kernel: high watermark and last stable offset are
//! the end of the written log.

mod answer;
mod cold;
mod partition;
mod pass;
mod readers;
mod records;
mod request;
mod sessions;

use std::sync::Arc;
use std::task::{Context, Poll};

use cloverleaf_broker::Watcher;
use cloverleaf_session::Now;
use cloverleaf_telemetry::Probe;

pub use readers::{FetchPositions, FetchedPartition};
pub(crate) use request::FetchRequest;
pub(crate) use sessions::FetchSessions;

use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use cold::ColdReads;
use partition::FetchPartition;
use readers::ReaderEntry;
use records::FetchedRecords;
use request::{FINAL_EPOCH, INITIAL_EPOCH};
use sessions::SessionLease;

/// The first version whose clients are sure to know zstd (KIP-110). A Fetch of an older version
/// gets UNSUPPORTED_COMPRESSION_TYPE for topics whose `compression.type` is zstd; batches of all
/// other topics are sent to it unchanged, even if they are compressed with zstd.
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
pub(crate) struct AnswerCounts {
    pub(crate) messages: u64,
    pub(crate) errors: u64,
}

/// The state of a connection for Fetch requests: at most one Fetch is in progress.
#[derive(Default)]
pub(crate) struct FetchState {
    stage: FetchStage,
    request: FetchRequest,
    mode: SessionMode,
    /// The realm's generation (of definitions and rights, not a group's) when the request's topics
    /// were looked up.
    generation: u64,
    due_us: u64,
    watcher: Option<Arc<Watcher>>,
    /// Bytes counted toward `min_bytes` so far.
    counted_bytes: usize,
    records: Vec<FetchedRecords>,
    /// Reads from files: for this request, and read-ahead for the next one.
    cold: ColdReads,
    /// Indexes of the partitions that the answer includes.
    included: Vec<u32>,
    /// This connection's entry in [`crate::FetchPositions`].
    reader_entry: Option<ReaderEntry>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum FetchStage {
    #[default]
    Idle,
    Reading,
    Waiting,
    ColdRead,
}

/// How a request uses fetch sessions (KIP-227). It decides which partitions are read.
#[derive(Default)]
enum SessionMode {
    /// A full fetch without a session: the partitions of the request.
    #[default]
    Sessionless,
    /// A full fetch that opens a session: the partitions of the request.
    NewSession,
    /// An incremental fetch: the partitions of the session.
    Incremental(SessionLease),
    /// The session id or epoch is wrong: no partitions.
    Refused(ErrorCode),
}

/// The result of one pass over the partitions.
#[derive(Clone, Copy, Default)]
struct PassResult {
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
        self.stage = FetchStage::Reading;
        self.counted_bytes = 0;
        self.mode = self.open_session(env);
        self.update_reader_entry(env);
    }

    fn update_reader_entry(&mut self, env: &FetchEnv<'_>) {
        let now_us = env.now.us;
        let reader_entry = self.reader_entry.take();
        let mut reader_entry =
            reader_entry.unwrap_or_else(|| ReaderEntry::new(&env.context.readers, env.connection));
        if reader_entry.is_due(now_us) {
            reader_entry.update(self.partitions_mut(), now_us);
        }
        self.reader_entry = Some(reader_entry);
    }

    fn open_session(&mut self, env: &FetchEnv<'_>) -> SessionMode {
        let (id, epoch) = (self.request.session_id, self.request.session_epoch);
        let sessions = &env.context.fetch_sessions;
        if matches!(epoch, INITIAL_EPOCH | FINAL_EPOCH) {
            if id != 0 {
                sessions.end(id);
            }
            return match epoch {
                FINAL_EPOCH => SessionMode::Sessionless,
                _ => SessionMode::NewSession,
            };
        }
        match sessions.resume(&mut self.request, &env.context.realm, env.now.us) {
            Ok(lease) => SessionMode::Incremental(lease),
            Err(error) => SessionMode::Refused(error),
        }
    }

    /// When the long poll ends, in microseconds of `Now::us`; `u64::MAX`: none is waiting.
    pub(crate) fn due_us(&self) -> u64 {
        match self.stage {
            FetchStage::Waiting => self.due_us,
            FetchStage::Idle | FetchStage::Reading | FetchStage::ColdRead => u64::MAX,
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
                FetchStage::Idle => return Poll::Ready(()),
                FetchStage::Waiting => {
                    if !is_due && self.watcher().poll_fired(cx).is_pending() {
                        return Poll::Pending;
                    }
                    self.stage = FetchStage::Reading;
                }
                FetchStage::Reading => {
                    let result = self.run_pass(env, is_due);
                    if result.is_cold {
                        self.stage = FetchStage::ColdRead;
                    } else if is_due || result.ends_wait || result.bytes >= self.request.min_bytes {
                        return Poll::Ready(());
                    } else {
                        self.watch();
                    }
                }
                FetchStage::ColdRead => {
                    if self.cold.poll(cx).is_pending() && !env.is_ending {
                        return Poll::Pending;
                    }
                    if self.collect_cold_reads() || is_due {
                        return Poll::Ready(());
                    }
                    self.stage = FetchStage::Reading;
                    self.watch();
                }
            }
        }
    }

    /// Starts to wait for new data, unless some has arrived since the last pass.
    fn watch(&mut self) {
        let watcher = self.watcher().clone();
        let partitions = self.partitions_mut();
        partitions
            .iter_mut()
            .for_each(|partition| partition.watch(&watcher));
        if !partitions
            .iter()
            .any(|partition| partition.has_data_from(partition.counted))
        {
            self.stage = FetchStage::Waiting;
        }
    }

    /// The watcher that fires on new data. A session has its own, because its partitions stay
    /// registered with it from request to request.
    fn watcher(&mut self) -> &Arc<Watcher> {
        let own = &mut self.watcher;
        match &mut self.mode {
            SessionMode::Incremental(lease) => match lease.session_mut() {
                Some(session) => &session.watcher,
                None => own.get_or_insert_with(Watcher::new),
            },
            _ => own.get_or_insert_with(Watcher::new),
        }
    }

    fn partitions_mut(&mut self) -> &mut [FetchPartition] {
        match &mut self.mode {
            SessionMode::Sessionless | SessionMode::NewSession => &mut self.request.partitions,
            SessionMode::Incremental(lease) => lease
                .session_mut()
                .map_or(&mut [], |session| &mut session.partitions),
            SessionMode::Refused(_) => &mut [],
        }
    }
}
