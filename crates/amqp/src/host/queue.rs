//! A queue: a topic with one subscription, and the properties with which it was declared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cloverleaf_broker::{
    Dispatch, Overflow as Full, PartitionOrder, StartAt, Subscription, SubscriptionOptions, Topic,
};
use parking_lot::Mutex;

use super::Owner;
use super::names::DEAD_TOPIC;
use crate::exception::{Exception, Resource};
use crate::queue_arguments::{DispatchArgument, Overflow, QueueArguments, QueueKind};
use crate::wire::Table;

/// A queue of the virtual host. A handle can outlive the queue: see [`Queue::is_deleted`].
pub struct Queue {
    /// The name.
    pub name: Arc<str>,
    /// The topic that stores its messages.
    pub topic: Arc<Topic>,
    /// The subscription from which its consumers get messages.
    pub subscription: Arc<Subscription>,
    /// The parsed arguments.
    pub arguments: QueueArguments,
    /// The queue survives a restart.
    pub durable: bool,
    /// The queue is deleted with its last consumer.
    pub auto_delete: bool,
    /// The connection that uses the queue exclusively. The queue is deleted when it ends.
    pub exclusive: Option<Owner>,
    /// Deliveries carry `x-delivery-count`, the number of earlier deliveries, unless it is 0.
    pub counts_deliveries: bool,
    /// Number of priorities, each a partition: 1, or one more than `x-max-priority`.
    pub levels: u32,
    /// The topic is older than the queue, and remains when the queue is deleted.
    pub(super) adopted: bool,
    /// The arguments as they were declared, an encoded field table: for checking a later
    /// declaration.
    pub(super) raw: Box<[u8]>,
    pub(super) life: Mutex<QueueLife>,
    deleted: AtomicBool,
    /// Time of the last use, in milliseconds since 1970, for `x-expires`.
    used_ms: AtomicU64,
}

/// The facts that decide whether and when a queue is deleted.
#[derive(Debug, Default)]
pub(super) struct QueueLife {
    /// The queue is being deleted: no consumer may attach anymore.
    pub(super) is_ending: bool,
    /// A queue that never had a consumer is not auto-deleted.
    pub(super) had_consumers: bool,
    /// `Some` while a deletion is postponed: the router retries it. Until this time, in
    /// milliseconds since 1970, it waits for the queue's dead letters to be routed.
    pub(super) wait_until_ms: Option<u64>,
}

/// The properties with which a queue is created or restored.
pub(super) struct QueueDeclaration {
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
        declared: QueueDeclaration,
        now_ms: u64,
    ) -> Self {
        let QueueDeclaration {
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

    /// The partition for messages of this priority.
    pub fn partition(&self, priority: Option<u8>) -> u32 {
        u32::from(priority.unwrap_or(0)).min(self.levels - 1)
    }

    /// Whether the queue was deleted, through AMQP or another protocol.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire) || self.topic.is_deleted()
    }

    /// The number of ready messages, and the number of consumers.
    pub fn counts(&self) -> (u32, u32) {
        let counts = self.subscription.counts();
        let ready = u32::try_from(counts.depth).unwrap_or(u32::MAX);
        (ready, counts.consumers)
    }

    /// The declared arguments.
    pub fn table(&self) -> Table<'_> {
        // Cannot fail: the bytes were validated when the queue was declared.
        Table::check(&self.raw).unwrap_or_default()
    }

    pub(super) fn resource(&self) -> Resource<'_> {
        Resource::queue(&self.name)
    }

    /// Checks that a connection may use the queue: 405 if it is another one's exclusive queue.
    pub(super) fn check_access(&self, owner: Owner) -> Result<(), Exception> {
        match self.exclusive {
            Some(other) if other != owner => Err(Exception::exclusive_to_other(&self.name)),
            _ => Ok(()),
        }
    }

    pub(super) fn set_deleted(&self, deleted: bool) {
        self.deleted.store(deleted, Ordering::Release);
    }

    /// Restarts the queue's expiry (`x-expires`).
    pub(super) fn touch(&self, now_ms: u64) {
        self.used_ms.store(now_ms, Ordering::Relaxed);
    }

    /// When the queue expires if it stays unused, in milliseconds since 1970.
    pub(super) fn expires_at_ms(&self) -> Option<u64> {
        let expires_ms = self.arguments.expires_ms?;
        Some(
            self.used_ms
                .load(Ordering::Relaxed)
                .saturating_add(expires_ms),
        )
    }
}

/// The number of partitions: one per priority.
pub(super) fn levels(arguments: &QueueArguments) -> u32 {
    arguments.priority_max.map_or(1, |max| u32::from(max) + 1)
}

/// The options of a queue's subscription.
pub(super) fn subscription_options(arguments: &QueueArguments) -> SubscriptionOptions {
    SubscriptionOptions {
        start: StartAt::Earliest,
        attempts_max: arguments.attempts_max,
        dead_letter: arguments
            .dead_letter
            .as_ref()
            .map(|_| DEAD_TOPIC.to_owned()),
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
