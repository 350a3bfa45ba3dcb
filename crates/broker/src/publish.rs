//! A publish on its way: its promise, and the bound on what is accepted and not yet written.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use cloverleaf_log::{AppendError, Appended};
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
    /// No subscription can read a compressed batch.
    #[error("batches with compressed records are not taken")]
    Compressed,
    /// Too many delayed messages wait.
    #[error("{scheduled_messages_max} delayed messages wait, as many as may")]
    ScheduleFull {
        /// The limit.
        scheduled_messages_max: u64,
    },
    /// A delayed publish wants a batch of exactly one readable record.
    #[error("a delayed publish takes one message")]
    NotOneMessage,
    /// The schedule topic could not be made.
    #[error("the schedule topic cannot be made: {reason}")]
    NoSchedule {
        /// The catalog's error in words.
        reason: String,
    },
}

/// Bytes accepted from producers and not yet written, broker-wide.
///
/// A producer waits for nothing but these, and the disk alone drains them: so waiting cannot
/// deadlock.
#[derive(Debug)]
pub struct Room {
    bytes_max: u64,
    bytes: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
}

impl Room {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: AtomicU64::new(0),
            waiting: Mutex::new(Vec::new()),
        }
    }

    /// Bytes accepted and not yet written.
    pub fn unwritten_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
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
        self.waiting.lock().push(context.waker().clone());
        // What was waited for may have been written just before the waker was filed.
        if self.is_free() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn take(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        if before >= self.bytes_max {
            for waker in std::mem::take(&mut *self.waiting.lock()) {
                waker.wake();
            }
        }
    }
}

/// A publish that was accepted. Resolves when its promise holds, or to the reason why it does not.
#[derive(Debug)]
pub struct Published {
    appended: Appended,
    held: Option<(Arc<Room>, u64)>,
}

impl Published {
    pub(crate) fn new(appended: Appended, room: &Arc<Room>, bytes: u64) -> Self {
        let held = (!appended.is_ready()).then(|| {
            room.take(bytes);
            (room.clone(), bytes)
        });
        Self { appended, held }
    }

    /// Whether the promise is decided already.
    pub fn is_ready(&self) -> bool {
        self.appended.is_ready()
    }

    /// The offset of the first message.
    pub fn first_offset(&self) -> u64 {
        self.appended.base
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

impl Drop for Published {
    fn drop(&mut self) {
        if let Some((room, bytes)) = self.held.take() {
            room.give_back(bytes);
        }
    }
}
