//! A publish on its way: its promise, and the bound on what is accepted and not yet written.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Waker};

use cloverleaf_log::{AppendError, Appended, Log};
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

    /// The log has written something (or failed to): whoever waits looks again.
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
}

impl Published {
    pub(crate) fn new(appended: Appended) -> Self {
        Self { appended }
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
