//! The delivery engine: topics, partitions, subscriptions, and their catalog.
//!
//! Architecture invariant: this crate knows no protocol and no socket, and reads the time from a
//! [`Clock`] only. A protocol's session publishes batches ([`Topic::publish`]), attaches consumers
//! ([`Subscription::attach`]) and settles their messages ([`Consumer`]).
//!
//! The way of a message in and out: [`Topic::publish`] → [`Partition`] → [`Subscription`] →
//! `dispatch` → outbox → [`Consumer::poll_deliveries`]. The way of an acknowledgement:
//! [`Consumer::ack_many`] → `ledger` → the state journal.

mod broker;
mod clock;
mod committed;
mod consumer;
mod errors;
mod housekeeping;
mod journal;
mod message;
mod namespace;
mod options;
mod realm;
mod subscription;
#[cfg(test)]
mod test_broker;
mod topic;

pub use broker::{Broker, CatalogError, NAME_BYTES_MAX, OpenError, PARTITIONS_MAX};
pub use clock::{Clock, ManualClock, SystemClock};
pub use committed::Committed;
pub use consumer::attachment::AttachError;
pub use consumer::holds::{ConsumerDeliveries, DeliveryEnd, DeliverySpan};
pub use consumer::shared_window::SharedWindow;
pub use consumer::{Consumer, InFlightCounts, Settlement};
pub use housekeeping::lookup::{Fetched, Lookup, LookupError, LookupReads};
#[doc(hidden)]
pub use journal::atomic::is_entry;
pub use journal::entries::EntryError;
pub use message::{DeadReason, Delivery, MessageId, MessageRange, headers};
pub use namespace::{Name, Namespace};
pub use options::{
    BrokerOptions, Compaction, Compression, ConsumerOptions, Dispatch, DurabilityMode, Overflow,
    PartitionOrder, Retention, StartAt, SubscriptionOptions, TopicOptions,
};
pub use realm::{Realm, TopicUnavailable};
pub use subscription::Subscription;
pub use subscription::died::DeadMessage;
pub use subscription::ledger::NotInFlight;
pub use subscription::stats::{
    ConsumerLoad, ConsumerStats, SubscriptionCounts, SubscriptionLoad, SubscriptionStats,
};
pub use topic::Topic;
pub use topic::partition::{Partition, PartitionStatus};
pub use topic::published::{PublishError, Published, WriteBudget};
pub use topic::settings::TopicOptionChanges;
pub use topic::unwritten::Unwritten;
pub use topic::watch::{Watch, Watcher};
