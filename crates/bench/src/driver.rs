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
    /// Nothing answers there.
    #[error("cannot connect to {url}: {reason}")]
    Connect {
        /// The URL, as it was given.
        url: String,
        /// The reason, in the words of the system or the client.
        reason: String,
    },
    /// The broker does not do what is asked.
    #[error("{url} refuses: {reason}")]
    Refused {
        /// The URL, as it was given.
        url: String,
        /// The broker's words.
        reason: String,
    },
    /// The connection ended in the middle.
    #[error("{url} went away: {reason}")]
    Gone {
        /// The URL, as it was given.
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

/// Tells consumers, and producers that are stopped early, to end.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Told>);

/// The state that all copies share.
#[derive(Debug)]
struct Told {
    is_set: AtomicBool,
    /// No limit but each waiter's own: [`u64::MAX`].
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
    /// Ends all who ask.
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::Release);
    }

    /// Whether it is time to end.
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Acquire)
    }

    /// Has a broker given up that is silent for so long, from now on: for a caller that knows
    /// better than to wait for half a minute.
    pub fn give_up_after(&self, silence: Duration) {
        let ns = u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX);
        self.0.silence_ns.store(ns, Ordering::Release);
    }

    /// The longest silence that anybody waits, in nanoseconds.
    pub(crate) fn silence_ns(&self) -> u64 {
        self.0.silence_ns.load(Ordering::Acquire)
    }
}

/// Durability that the broker promises when it acknowledges: part of every title.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Promise {
    /// Nothing.
    None,
    /// In the broker's memory.
    Memory,
    /// In the kernel: a killed broker loses nothing.
    Kernel,
    /// Synced to disk.
    Disk,
    /// As the broker is configured; it does not say.
    Configured,
}

impl Promise {
    /// As Cloverleaf tells its clients, and as a user says it: `none`, `memory`, `kernel`, `disk`.
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

/// A broker may stand still so long, to collect its garbage or to move its files, and lose nothing.
const QUIET: Duration = Duration::from_secs(30);

/// A protocol's client: makes connections to one broker. Each connection is used by one thread.
pub trait Connect: Send + Sync {
    /// Looks whether the broker is there, and makes the topic as the plan wants it.
    ///
    /// # Errors
    /// It is not there, or refuses.
    fn prepare(&self, plan: &Plan) -> Result<(), DriverError>;

    /// A connection that publishes, ready to begin.
    ///
    /// # Errors
    /// It cannot be made.
    fn producer(&self, plan: &Plan, number: u32) -> Result<Box<dyn Produce>, DriverError>;

    /// A connection that consumes, subscribed so that no message is missed from now on.
    ///
    /// # Errors
    /// It cannot be made.
    fn consumer(&self, plan: &Plan, number: u32) -> Result<Box<dyn Consume>, DriverError>;

    /// Where each partition ended before the first message of ours, once it is prepared. Empty: the
    /// protocol keeps by itself what a consumer has not seen.
    fn starts(&self) -> Vec<i64> {
        Vec::new()
    }

    /// Consumers begin there: another process has prepared the topic and found these
    /// [`Connect::starts`].
    fn begin_at(&self, _starts: Vec<i64>) {}

    /// Consumers that get nothing for so long, though messages are missing, get nothing more: what
    /// is missing then is lost.
    fn quiet(&self, _plan: &Plan) -> Duration {
        QUIET
    }

    /// Removes what [`Connect::prepare`] has made.
    ///
    /// # Errors
    /// It cannot be removed; what is measured is measured all the same.
    fn clean_up(&self, plan: &Plan) -> Result<(), DriverError>;

    /// The client library with its version, and the broker with its version as far as it says.
    fn versions(&self) -> Vec<(String, String)>;

    /// Durability that an acknowledgement of this broker promises under this plan.
    fn promise(&self, plan: &Plan) -> Promise;

    /// Other remarks since this was asked last, each worded for the middle of a sentence.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// Why messages of one producer may change their order on the way to the broker, though that
    /// keeps what it gets; without a full stop. `None`: they may not.
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
    /// Takes and acknowledges messages, each recorded by [`Recorder::came`], until `stop` is set.
    ///
    /// # Errors
    /// The connection ended; what was recorded until then counts.
    fn run(&mut self, recorder: &mut Recorder, stop: &Stop) -> Result<(), DriverError>;
}
