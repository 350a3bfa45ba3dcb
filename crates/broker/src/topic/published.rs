//! The result of a publish, and the limit on bytes that are accepted but not yet written.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Waker};

use cloverleaf_log::{AppendError, Appended, BatchError, InflateError, Log};
use parking_lot::Mutex;

/// Why messages were not stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PublishError {
    /// The log refused them: a full disk, a failed write, or shutdown.
    #[error(transparent)]
    Log(#[from] AppendError),
    /// The topic was deleted.
    #[error("topic {topic} was deleted")]
    TopicDeleted {
        /// Its name.
        topic: String,
    },
    /// A subscription's length limit refuses new messages.
    #[error("{topic}/{subscription} holds as many messages as it may")]
    QueueFull {
        /// The topic's name.
        topic: String,
        /// The subscription's name.
        subscription: String,
    },
    /// The topic has no such partition.
    #[error("topic {topic} has no partition {partition}")]
    NoSuchPartition {
        /// The topic's name.
        topic: String,
        /// The partition asked for.
        partition: u32,
    },
    /// The batch claims that a broker has stamped it with its append time, or with the time from
    /// which compaction may remove its tombstones. Producers must not claim either.
    #[error("a producer's batch must not claim to have the broker's timestamps")]
    ForeignAppendTime,
    /// Too many delayed messages wait.
    #[error("{scheduled_messages_max} delayed messages wait, as many as may")]
    ScheduleFull {
        /// The limit.
        scheduled_messages_max: u64,
    },
    /// A delayed publish takes a batch of exactly one readable record.
    #[error("a delayed publish takes one message")]
    NotOneMessage,
    /// The batch is larger than the topic allows.
    #[error("a batch of {bytes} bytes is larger than the topic's limit of {bytes_max} bytes")]
    TooLarge {
        /// Size of the refused batch in bytes.
        bytes: u64,
        /// The limit: the topic's `batch_bytes_max`.
        bytes_max: u64,
    },
    /// A message's timestamp lies outside what the topic allows.
    #[error("timestamp {timestamp_ms} lies outside {earliest_ms} to {latest_ms}")]
    Timestamp {
        /// The timestamp, milliseconds since 1970.
        timestamp_ms: i64,
        /// The earliest timestamp that is allowed now.
        earliest_ms: i64,
        /// The latest timestamp that is allowed now.
        latest_ms: i64,
        /// The bad messages' positions in the batch, from 0: the first 10,000, including those
        /// without a required key. Empty if the timestamp in the batch's header is bad.
        records: Vec<u32>,
    },
    /// Messages without a key for a topic that is compacted by key.
    #[error("the topic is compacted, so each message needs a key")]
    NoKey {
        /// Their positions in the batch, from 0: the first 10,000; never empty.
        records: Vec<u32>,
    },
    /// The batch holds records that cannot be read.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The topic must check the records, but they cannot be inflated.
    #[error(transparent)]
    Inflate(#[from] InflateError),
    /// The schedule topic could not be created.
    #[error("the schedule topic cannot be made: {reason}")]
    NoSchedule {
        /// The catalog's error in words.
        reason: String,
    },
}

/// The broker-wide limit on bytes that are accepted from producers but not yet written.
///
/// Producers wait only for this limit, and only the disk frees it, independent of clients. So
/// waiting for it cannot deadlock.
pub struct WriteBudget {
    log: Log,
    bytes_max: u64,
    waiting: Mutex<Vec<Waker>>,
    /// Whether `waiting` has a waker. A write checks this flag before it takes the lock.
    has_waiting: AtomicBool,
}

impl std::fmt::Debug for WriteBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteBudget")
            .field("unwritten_bytes", &self.unwritten_bytes())
            .finish()
    }
}

impl WriteBudget {
    pub(crate) fn new(log: Log, bytes_max: u64) -> Self {
        let (waiting, has_waiting) = (Mutex::default(), AtomicBool::new(false));
        Self {
            log,
            bytes_max,
            waiting,
            has_waiting,
        }
    }

    /// Bytes accepted but not yet written.
    pub fn unwritten_bytes(&self) -> u64 {
        self.log.unwritten_bytes()
    }

    /// Whether producers may continue.
    pub fn is_free(&self) -> bool {
        self.unwritten_bytes() < self.bytes_max
    }

    /// Ready when producers may continue.
    pub fn poll_free(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_free() {
            return Poll::Ready(());
        }
        {
            let mut waiting = self.waiting.lock();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            self.has_waiting.store(true, Ordering::SeqCst);
        }
        // Pairs with the fence in `written`: either `written` sees the waiter, or this call sees
        // the free bytes.
        fence(Ordering::SeqCst);
        if self.is_free() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// The log has written something, or a write has failed: wakes the waiting producers if bytes
    /// are free.
    pub(crate) fn written(&self) {
        fence(Ordering::SeqCst);
        if self.has_waiting.load(Ordering::Relaxed) && self.is_free() {
            let waiting = {
                let mut waiting = self.waiting.lock();
                self.has_waiting.store(false, Ordering::SeqCst);
                std::mem::take(&mut *waiting)
            };
            for waker in waiting {
                waker.wake();
            }
        }
    }
}

/// An accepted publish. Resolves when it is as durable as asked, or with the reason why it is not.
#[derive(Debug)]
pub struct Published {
    appended: Appended,
    append_time_ms: Option<i64>,
}

impl Published {
    pub(crate) fn new(appended: Appended, append_time_ms: Option<i64>) -> Self {
        Self {
            appended,
            append_time_ms,
        }
    }

    /// Whether the future would resolve at once.
    pub fn is_ready(&self) -> bool {
        self.appended.is_ready()
    }

    /// Whether the messages are written, so that a kill cannot lose them. The sync may still be
    /// pending.
    pub fn is_written(&self) -> bool {
        self.appended.is_written()
    }

    /// The offset of the first message.
    pub fn first_offset(&self) -> u64 {
        self.appended.base
    }

    /// Whether this is a repeated batch of an idempotent producer, so that nothing was stored now.
    pub fn is_duplicate(&self) -> bool {
        self.appended.is_duplicate
    }

    /// The append time that the topic gave the messages, if it uses append time; milliseconds since
    /// 1970.
    pub fn append_time_ms(&self) -> Option<i64> {
        self.append_time_ms
    }
}

impl Future for Published {
    type Output = Result<(), PublishError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.appended)
            .poll(context)
            .map(|result| result.map_err(PublishError::from))
    }
}
