//! A queue: a topic with one subscription, and how it was declared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cloverleaf_broker::{
    Dispatch, Overflow as Full, PartitionOrder, StartAt, Subscription, SubscriptionOptions, Topic,
};
use parking_lot::Mutex;

use super::Owner;
use super::names::DEAD;
use crate::exception::{Exception, Resource};
use crate::queue_arguments::{DispatchArgument, Overflow, QueueArguments, QueueKind};
use crate::wire::Table;

/// A queue of the virtual host. A handle can be older than the queue's end: [`Queue::is_deleted`].
pub struct Queue {
    /// Its name.
    pub name: Arc<str>,
    /// The topic that stores it.
    pub topic: Arc<Topic>,
    /// The subscription through which consumers get its messages.
    pub subscription: Arc<Subscription>,
    /// Its arguments.
    pub arguments: QueueArguments,
    /// Still there after a restart.
    pub durable: bool,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// The connection that has it for itself, and with which it goes.
    pub exclusive: Option<Owner>,
    /// Deliveries carry `x-delivery-count`: how often the message was delivered before, if it was.
    pub counts_deliveries: bool,
    /// Levels of priority: 1, or one more than `x-max-priority`.
    pub levels: u32,
    /// The topic was there before the queue, and stays when the queue goes.
    pub(super) adopted: bool,
    /// The arguments as they came, a field table's bytes: for a second declaration.
    pub(super) raw: Box<[u8]>,
    pub(super) life: Mutex<Life>,
    deleted: AtomicBool,
    /// When it was last used, milliseconds since 1970: for `x-expires`.
    used_ms: AtomicU64,
}

/// The facts that decide whether a queue goes.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// No consumer attaches any more.
    pub(super) over: bool,
    /// A queue that never had a consumer does not go with its last one.
    pub(super) had_consumers: bool,
    /// It could not be deleted when it had to go: the router tries it again. From this time on,
    /// milliseconds since 1970, without regard to its dead letters.
    pub(super) leaves_by_ms: Option<u64>,
}

/// How a queue was declared.
pub(super) struct Declared {
    pub(super) arguments: QueueArguments,
    pub(super) raw: Box<[u8]>,
    pub(super) durable: bool,
    pub(super) auto_delete: bool,
    pub(super) exclusive: Option<Owner>,
    pub(super) adopted: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).finish()
    }
}

impl Queue {
    pub(super) fn new(
        name: Arc<str>,
        topic: Arc<Topic>,
        subscription: Arc<Subscription>,
        declared: Declared,
        now_ms: u64,
    ) -> Self {
        let Declared {
            arguments,
            raw,
            durable,
            auto_delete,
            exclusive,
            adopted,
        } = declared;
        Self {
            name,
            topic,
            subscription,
            counts_deliveries: arguments.kind == QueueKind::Quorum,
            levels: levels(&arguments),
            arguments,
            durable,
            auto_delete,
            exclusive,
            adopted,
            raw,
            life: Mutex::default(),
            deleted: AtomicBool::new(false),
            used_ms: AtomicU64::new(now_ms),
        }
    }

    /// The partition of messages with this priority.
    pub fn partition(&self, priority: Option<u8>) -> u32 {
        u32::from(priority.unwrap_or(0)).min(self.levels - 1)
    }

    /// Whether it is gone, by whomever.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire) || self.topic.is_deleted()
    }

    /// How many messages are ready, and how many consumers it has.
    pub fn counts(&self) -> (u32, u32) {
        let counts = self.subscription.counts();
        let ready = u32::try_from(counts.depth).unwrap_or(u32::MAX);
        (ready, counts.consumers)
    }

    /// The arguments with which it was declared.
    pub fn table(&self) -> Table<'_> {
        // It was a table when it was declared.
        Table::check(&self.raw).unwrap_or_default()
    }

    pub(super) fn resource(&self) -> Resource<'_> {
        Resource::queue(&self.name)
    }

    /// Whether a connection may use it at all.
    pub(super) fn check_access(&self, owner: Owner) -> Result<(), Exception> {
        match self.exclusive {
            Some(other) if other != owner => Err(Exception::locked(&self.name)),
            _ => Ok(()),
        }
    }

    pub(super) fn set_deleted(&self, deleted: bool) {
        self.deleted.store(deleted, Ordering::Release);
    }

    /// Its time to expire begins anew.
    pub(super) fn used(&self, now_ms: u64) {
        self.used_ms.store(now_ms, Ordering::Relaxed);
    }

    /// When it expires if nobody uses it until then.
    pub(super) fn expires_at_ms(&self) -> Option<u64> {
        let expires_ms = self.arguments.expires_ms?;
        Some(
            self.used_ms
                .load(Ordering::Relaxed)
                .saturating_add(expires_ms),
        )
    }
}

/// How many partitions a queue needs: one for each priority.
pub(super) fn levels(arguments: &QueueArguments) -> u32 {
    arguments.priority_max.map_or(1, |max| u32::from(max) + 1)
}

/// How a queue's subscription delivers.
pub(super) fn subscription_options(arguments: &QueueArguments) -> SubscriptionOptions {
    SubscriptionOptions {
        start: StartAt::Earliest,
        attempts_max: arguments.attempts_max,
        dead_letter: arguments.dead_letter.as_ref().map(|_| DEAD.to_owned()),
        length_max: arguments.length_max,
        length_bytes_max: arguments.length_bytes_max,
        overflow: match arguments.overflow {
            Overflow::DropHead => Full::DropHead,
            Overflow::RejectPublish | Overflow::RejectPublishDeadLetter => Full::RejectPublish,
        },
        single_active: arguments.single_active,
        active_yields: arguments.single_active && arguments.kind == QueueKind::Quorum,
        order: match arguments.priority_max {
            Some(_) => PartitionOrder::HighestFirst,
            None => PartitionOrder::RoundRobin,
        },
        expires: true,
        message_ttl_ms: arguments.message_ttl_ms,
        dispatch: match arguments.dispatch {
            DispatchArgument::LeastLoaded => Dispatch::LeastLoaded,
            DispatchArgument::FillFirst => Dispatch::FillFirst,
        },
        ..SubscriptionOptions::default()
    }
}
