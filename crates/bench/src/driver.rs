//! The interface that a protocol's client implements for a measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message_source::MessageSource;
use crate::plan::Plan;
use crate::recorder::Recorder;

/// Why a measurement cannot go on, in a sentence for its user.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DriverError {
    /// No connection can be made.
    #[error("cannot connect to {url}: {reason}")]
    Connect {
        /// The URL as the user gave it.
        url: String,
        /// The reason, in the words of the system or the client.
        reason: String,
    },
    /// The broker refuses a request.
    #[error("{url} refuses: {reason}")]
    Refused {
        /// The URL as the user gave it.
        url: String,
        /// The broker's words.
        reason: String,
    },
    /// The connection ended during the measurement.
    #[error("{url} went away: {reason}")]
    Gone {
        /// The URL as the user gave it.
        url: String,
        /// The reason, in the words of the system or the client.
        reason: String,
    },
    /// The plan asks for something that this protocol or client does not have.
    #[error("{what}")]
    Unsupported {
        /// The missing feature, and what there is instead.
        what: String,
    },
}

/// A flag that ends consumers, and producers before their time. Copies share the flag.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Told>);

/// The shared state.
#[derive(Debug)]
struct Told {
    is_set: AtomicBool,
    /// Longest silence of a broker, in nanoseconds; [`u64::MAX`]: each caller's own limit.
    silence_ns: AtomicU64,
}

impl Default for Told {
    fn default() -> Told {
        Told {
            is_set: AtomicBool::new(false),
            silence_ns: AtomicU64::new(u64::MAX),
        }
    }
}

impl Stop {
    /// Sets the flag.
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::Release);
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Acquire)
    }

    /// Shortens the silence after which a broker is given up, for a caller that need not wait for
    /// half a minute.
    pub fn give_up_after(&self, silence: Duration) {
        let ns = u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX);
        self.0.silence_ns.store(ns, Ordering::Release);
    }

    /// The silence after which a broker is given up at the latest, in nanoseconds.
    pub(crate) fn silence_ns(&self) -> u64 {
        self.0.silence_ns.load(Ordering::Acquire)
    }
}

/// Durability that an acknowledgement promises. Every title of figures names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Promise {
    /// No durability.
    None,
    /// The broker has the message in memory.
    Memory,
    /// The message is written to the kernel: a killed broker does not lose it.
    Kernel,
    /// The message is synced to disk.
    Disk,
    /// It depends on the broker's configuration, which the broker does not report.
    Configured,
}

impl Promise {
    /// By the name that Cloverleaf reports and users write: `none`, `memory`, `kernel`, `disk`.
    pub fn named(name: &str) -> Option<Promise> {
        Some(match name {
            "none" => Promise::None,
            "memory" => Promise::Memory,
            "kernel" => Promise::Kernel,
            "disk" => Promise::Disk,
            _ => return None,
        })
    }
}

/// A broker may pause for this long, to collect garbage or to move files, and lose no message.
const QUIET: Duration = Duration::from_secs(30);

/// A protocol's client, which makes connections to one broker. One thread uses each connection.
pub trait Connect: Send + Sync {
    /// Checks that the broker answers, and creates the topic of the plan.
    ///
    /// # Errors
    /// The broker does not answer, or refuses.
    fn prepare(&self, plan: &Plan) -> Result<(), DriverError>;

    /// A connection that is ready to publish.
    ///
    /// # Errors
    /// It cannot be made.
    fn producer(&self, plan: &Plan, number: u32) -> Result<Box<dyn Produce>, DriverError>;

    /// A connection that is subscribed: it misses no message that is published from now on.
    ///
    /// # Errors
    /// It cannot be made.
    fn consumer(&self, plan: &Plan, number: u32) -> Result<Box<dyn Consume>, DriverError>;

    /// After [`Connect::prepare`], the offset at which each partition ended before the first
    /// message of the measurement. Empty if the broker keeps the position of consumers.
    fn starts(&self) -> Vec<i64> {
        Vec::new()
    }

    /// Sets where consumers begin: another process prepared the topic and has these
    /// [`Connect::starts`].
    fn begin_at(&self, _starts: Vec<i64>) {}

    /// If consumers receive nothing for this long, the missing messages count as lost.
    fn quiet(&self, _plan: &Plan) -> Duration {
        QUIET
    }

    /// Removes the topic that [`Connect::prepare`] created.
    ///
    /// # Errors
    /// It cannot be removed. The measurement is valid all the same.
    fn clean_up(&self, plan: &Plan) -> Result<(), DriverError>;

    /// The client library and the broker, with their versions as far as they are known.
    fn versions(&self) -> Vec<(String, String)>;

    /// Durability that this broker's acknowledgements promise under this plan.
    fn promise(&self, plan: &Plan) -> Promise;

    /// Other remarks since the last call, each worded for the middle of a sentence.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// Why messages of one producer may arrive at the broker in another order, without a full stop.
    /// `None`: they keep their order.
    fn may_reorder(&self, plan: &Plan) -> Option<String> {
        let _ = plan;
        None
    }
}

/// A connection that publishes.
pub trait Produce: Send {
    /// Sends the messages of `source`, until it is done or `stop` is set, and waits for those that
    /// are not acknowledged then. Each is recorded: [`Recorder::sent`], then [`Recorder::acked`] or
    /// [`Recorder::failed`].
    ///
    /// # Errors
    /// The connection ended; what was recorded until then counts.
    fn run(
        &mut self,
        source: &mut MessageSource,
        recorder: &mut Recorder,
        stop: &Stop,
    ) -> Result<(), DriverError>;
}

/// A connection that consumes.
pub trait Consume: Send {
    /// Receives, records ([`Recorder::came`]) and acknowledges messages until `stop` is set.
    ///
    /// # Errors
    /// The connection ended; what was recorded until then counts.
    fn run(&mut self, recorder: &mut Recorder, stop: &Stop) -> Result<(), DriverError>;
}
