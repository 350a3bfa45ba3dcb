//! Errors: why the catalog refuses a request, and why a broker does not start.

use cloverleaf_log::Offset;

use crate::broker::{NAME_BYTES_MAX, PARTITIONS_MAX};
use crate::journal::entries::EntryError;

/// Why a definition cannot be created, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// The topic was deleted in the meantime.
    #[error("topic {topic} was deleted")]
    TopicDeleted {
        /// Its name.
        topic: String,
    },
    /// The subscription was deleted in the meantime.
    #[error("subscription {subscription} was deleted")]
    SubscriptionDeleted {
        /// Its name.
        subscription: String,
    },
    /// The name is empty, too long or contains control characters.
    #[error("a name has 1 to {NAME_BYTES_MAX} bytes and no control characters")]
    Name,
    /// The client has no right to do this with the object of this name.
    #[error("{name}: not allowed")]
    Denied {
        /// The name.
        name: String,
    },
    /// The broker is shutting down.
    #[error("the broker is shutting down")]
    Closed,
    /// The log or the journal cannot be written or opened.
    #[error("the log refuses: {reason}")]
    Log {
        /// The log's error in words.
        reason: String,
    },
    /// The number of partitions is out of range.
    #[error("{partitions} partitions: 1 to {PARTITIONS_MAX} are possible")]
    Partitions {
        /// The number asked for.
        partitions: u32,
    },
    /// The number of partitions of a topic can only grow.
    #[error("{partitions} partitions: there are {current} already, and their number only grows")]
    PartitionsOnlyGrow {
        /// The number asked for.
        partitions: u32,
        /// The present number.
        current: u32,
    },
    /// The topic has no such partition.
    #[error("topic {topic} has no partition {partition}")]
    NoSuchPartition {
        /// The topic's name.
        topic: String,
        /// The partition asked for.
        partition: u32,
    },
    /// The broker's limit of partitions would be exceeded.
    #[error(
        "{partitions} more partitions: the broker has {current}, and may have {partitions_max}"
    )]
    PartitionsFull {
        /// The number of new partitions.
        partitions: u32,
        /// The present number.
        current: u64,
        /// The limit: `partitions_max` in the broker's options.
        partitions_max: u32,
    },
    /// The offset lies above the end of its partition.
    #[error("offset {offset} lies above the end {end}")]
    OffsetAboveEnd {
        /// The offset asked for.
        offset: Offset,
        /// The offset after the last message.
        end: Offset,
    },
}

/// Why the stored state cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// This version cannot decode an entry of the state journal.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// The log of a topic cannot be opened.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The state journal is lost.
    #[error("{reason}")]
    Lost {
        /// The log's error in words.
        reason: String,
    },
    /// Topic folders that neither the journal nor the folders themselves describe.
    #[error(
        "{count} topic folders hold messages, and neither the state journal nor the folders say \
         which topics they are ({folders}): damage has taken that. Put the journal (state.0, \
         state.1) back from a copy, or start once with --repair. That keeps their messages, as \
         topics with names of the form recovered-ID, and gives up their names, settings, \
         subscriptions and committed offsets"
    )]
    Unnamed {
        /// Their number.
        count: usize,
        /// Some of them.
        folders: String,
    },
}
