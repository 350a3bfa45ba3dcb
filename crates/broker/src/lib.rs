//! The delivery engine: topics, partitions, subscriptions, and the catalog of them.
//!
//! Architecture invariant: this crate knows no protocol and no socket, and learns the time from a
//! [`Clock`] only. A protocol's session publishes batches ([`Topic::publish`]), attaches consumers
//! ([`Subscription::attach`]) and settles what they were given ([`Consumer`]).
//!
//! The way in: [`Topic::publish`] → [`Partition`] → [`Subscription`] → `dispatch` → outbox →
//! [`Consumer::poll_deliveries`]. The way back: [`Consumer::ack_many`] → `ledger` → the state
//! journal.

mod admission;
mod attaching;
mod broker;
mod choose;
mod clock;
mod committed;
mod compaction;
mod consumer;
mod consumers;
mod dead_letter;
mod died;
mod dispatch;
mod disposing;
mod durable;
mod entries;
mod errors;
mod expiring;
mod filter;
mod holds;
mod housekeeping;
mod inflater;
mod kept;
mod ledger;
mod length;
mod lookup;
mod marking;
mod message;
mod moving;
mod namespace;
mod options;
mod orphans;
mod outbox;
mod overdue;
mod partition;
mod partitions;
mod pick;
mod publish;
mod publishing;
mod purge;
mod ranking;
mod realm;
mod restore;
mod retention;
mod schedule;
mod settings;
mod settling;
mod shared_window;
mod source;
mod stats;
mod subscription;
mod taking;
mod threads;
mod together;
mod topic;
mod unwritten;
mod upkeep;
mod watch;
mod work;

pub use attaching::AttachError;
pub use broker::{Broker, CatalogError, NAME_BYTES_MAX, OpenError, PARTITIONS_MAX};
pub use clock::{Clock, ManualClock, SystemClock};
pub use committed::Committed;
pub use consumer::{Consumer, Holding, Settlement};
pub use died::Died;
pub use entries::EntryError;
pub use holds::{ConsumerHolds, Hold, HoldEnd};
pub use ledger::NotInFlight;
pub use lookup::{Fetched, Lookup, LookupError, LookupReads};
pub use message::{DeadReason, Delivery, MessageId, MessageRange, headers};
pub use namespace::{Name, Namespace};
pub use options::{
    BrokerOptions, Compaction, Compression, ConsumerOptions, Dispatch, DurabilityMode, Overflow,
    PartitionOrder, Retention, StartAt, SubscriptionOptions, TopicOptions,
};
pub use partition::{Partition, PartitionStatus};
pub use publish::{PublishError, Published, Room};
pub use realm::{NoTopic, Realm};
pub use settings::NewOptions;
pub use shared_window::SharedWindow;
pub use stats::{
    ConsumerLook, ConsumerStats, SubscriptionCounts, SubscriptionLook, SubscriptionStats,
};
pub use subscription::Subscription;
#[doc(hidden)]
pub use together::is_entry;
pub use topic::Topic;
pub use unwritten::Unwritten;
pub use watch::{Watch, Watcher};
