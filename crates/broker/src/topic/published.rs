//! A publish on its way: its promise, and the bound on what is accepted and not yet written.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Waker};

use cloverleaf_log::{AppendError, Appended, BatchError, InflateError, Log};
use parking_lot::Mutex;

/// Why messages were not stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PublishError {
    /// The log did not take them: a full disk, a failed write, shutdown.
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
    /// The batch says that a broker has stamped it, with the time of its append or with the time
    /// from which compaction may remove its tombstones; producers must not.
    #[error("a producer's batch must not claim to have the broker's timestamps")]
    ForeignAppendTime,
    /// Too many delayed messages wait.
    #[error("{scheduled_messages_max} delayed messages wait, as many as may")]
    ScheduleFull {
        /// The limit.
        scheduled_messages_max: u64,
    },
    /// A delayed publish wants a batch of exactly one readable record.
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
        /// The earliest that is allowed now.
        earliest_ms: i64,
        /// The latest that is allowed now.
        latest_ms: i64,
        /// Which messages of the batch are at fault, counted from 0: the first 10,000, also those
        /// without a key that they need. Empty: it is what the batch says of itself.
        records: Vec<u32>,
    },
    /// Messages without a key for a topic that is compacted by key.
    #[error("the topic is compacted, so each message needs a key")]
    NoKey {
        /// Which messages of the batch they are, counted from 0: the first 10,000; never empty.
        records: Vec<u32>,
    },
    /// The batch holds records that cannot be read.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The topic needs to see the records, and they cannot be inflated.
    #[error(transparent)]
    Inflate(#[from] InflateError),
    /// The schedule topic could not be made.
    #[error("the schedule topic cannot be made: {reason}")]
    NoSchedule {
        /// The catalog's error in words.
        reason: String,
    },
}

/// The bound on bytes that were accepted from producers and not yet written, broker-wide.
///
/// A producer waits for nothing but these, and the disk alone drains them, whatever clients do: so
/// waiting cannot deadlock.
pub struct Room {
    log: Log,
    bytes_max: u64,
    waiting: Mutex<Vec<Waker>>,
    /// Whether `waiting` holds anybody: what a write asks before it takes the lock.
    is_waited_for: AtomicBool,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room")
            .field("unwritten_bytes", &self.unwritten_bytes())
            .finish()
    }
}

impl Room {
    pub(crate) fn new(log: Log, bytes_max: u64) -> Self {
        let (waiting, is_waited_for) = (Mutex::default(), AtomicBool::new(false));
        Self {
            log,
            bytes_max,
            waiting,
            is_waited_for,
        }
    }

    /// Bytes accepted and not yet written.
    pub fn unwritten_bytes(&self) -> u64 {
        self.log.unwritten_bytes()
    }

    /// Whether producers may go on.
    pub fn is_free(&self) -> bool {
        self.unwritten_bytes() < self.bytes_max
    }

    /// Ready when producers may go on.
    pub fn poll_free(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_free() {
            return Poll::Ready(());
        }
        {
            let mut waiting = self.waiting.lock();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            self.is_waited_for.store(true, Ordering::SeqCst);
        }
        // Pairs with the fence in `written`: either it sees the waiter, or this sees the room.
        fence(Ordering::SeqCst);
        if self.is_free() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// The log has written something (or failed to): the waiters look again.
    pub(crate) fn written(&self) {
        fence(Ordering::SeqCst);
        if self.is_waited_for.load(Ordering::Relaxed) && self.is_free() {
            let waiting = {
                let mut waiting = self.waiting.lock();
                self.is_waited_for.store(false, Ordering::SeqCst);
                std::mem::take(&mut *waiting)
            };
            for waker in waiting {
                waker.wake();
            }
        }
    }
}

/// A publish that was accepted. Resolves when its promise holds, or to the reason why it does not.
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

    /// Whether the promise is decided already.
    pub fn is_ready(&self) -> bool {
        self.appended.is_ready()
    }

    /// While it waits for the disk: whether no kill takes it back any more.
    pub fn is_written(&self) -> bool {
        self.appended.is_written()
    }

    /// The offset of the first message.
    pub fn first_offset(&self) -> u64 {
        self.appended.base
    }

    /// Whether an idempotent producer has sent this batch before, so that nothing was stored now.
    pub fn is_duplicate(&self) -> bool {
        self.appended.is_duplicate
    }

    /// The time that the messages got, where the topic stamps them itself; milliseconds since 1970.
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
