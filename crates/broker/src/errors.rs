//! Errors: why the catalog refuses something, and why a broker does not open.

use cloverleaf_log::Offset;

use crate::broker::{NAME_BYTES_MAX, PARTITIONS_MAX};
use crate::journal::entries::EntryError;

/// Why a definition cannot be made, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// The topic was deleted meanwhile.
    #[error("topic {topic} was deleted")]
    TopicDeleted {
        /// Its name.
        topic: String,
    },
    /// The subscription was deleted meanwhile.
    #[error("subscription {subscription} was deleted")]
    SubscriptionDeleted {
        /// Its name.
        subscription: String,
    },
    /// A name that is empty, too long or not printable.
    #[error("a name has 1 to {NAME_BYTES_MAX} bytes and no control characters")]
    Name,
    /// The principal that asks may not do that with the object of this name.
    #[error("{name}: not allowed")]
    Denied {
        /// The name.
        name: String,
    },
    /// The broker is shutting down.
    #[error("the broker is shutting down")]
    Closed,
    /// The log cannot hold it.
    #[error("the log refuses: {reason}")]
    Log {
        /// The log's error in words.
        reason: String,
    },
    /// A number of partitions that cannot be.
    #[error("{partitions} partitions: 1 to {PARTITIONS_MAX} are possible")]
    Partitions {
        /// The number asked for.
        partitions: u32,
    },
    /// Partitions can be added, never taken away.
    #[error("{partitions} partitions: there are {current} already, and their number only grows")]
    PartitionsOnlyGrow {
        /// The number asked for.
        partitions: u32,
        /// The number that there is.
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
    /// All topics together would have too many partitions.
    #[error(
        "{partitions} more partitions: the broker has {current}, and may have {partitions_max}"
    )]
    PartitionsFull {
        /// The number of new ones.
        partitions: u32,
        /// The number that there is.
        current: u64,
        /// The limit: `partitions_max` of the broker's options.
        partitions_max: u32,
    },
    /// An offset above the end of its partition.
    #[error("offset {offset} lies above the end {end}")]
    OffsetAboveEnd {
        /// The offset asked for.
        offset: Offset,
        /// Offset after the last message.
        end: Offset,
    },
}

/// Why the stored state cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// An entry of the state journal that this version cannot read.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// A topic whose log cannot be opened.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The journal is lost.
    #[error("{reason}")]
    Lost {
        /// The log's error in words.
        reason: String,
    },
    /// Folders of topics of which nobody knows what they are.
    #[error(
        "{count} topic folders hold messages, and neither the state journal nor the folders say \
         which topics they are ({folders}): damage has taken that. Put the journal (state.0, \
         state.1) back from a copy, or start once with --repair. That keeps their messages, as \
         topics with names of the form recovered-ID, and gives up their names, settings, \
         subscriptions and committed offsets"
    )]
    Unnamed {
        /// How many.
        count: usize,
        /// Some of them.
        folders: String,
    },
}
