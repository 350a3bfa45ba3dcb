//! The interface between a protocol's connection and its driver: bytes in, bytes out, and a time;
//! and the counts ([`Meter`]) and look-ups ([`Cached`]) that all protocols have alike.
//!
//! Architecture invariant: this crate knows no protocol, no broker, no socket and no clock. A
//! protocol crate implements [`Session`]; the crate `server` reads, writes and tells the time.

mod cached;
mod input;
mod meter;
mod output;

use std::task::Context;

pub use cached::Cached;
pub use input::Input;
pub use meter::{Meter, Published};
pub use output::{FileRange, Output, Piece};

/// The current time by two clocks, which are read once per socket read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The telemetry's monotonic clock, in microseconds.
    pub us: u64,
    /// Microseconds since 1970.
    pub unix_us: u64,
}

impl Now {
    /// Milliseconds since 1970, as records are stamped.
    pub fn unix_ms(&self) -> i64 {
        i64::try_from(self.unix_us / 1000).unwrap_or(i64::MAX)
    }
}

/// The outcome of [`Session::receive`] for its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// These bytes are done with; the rest has to be shown again.
    pub consumed_bytes: usize,
    /// It is no use to show the rest again before it has this many bytes, unless the session
    /// stopped for another reason ([`Session::wants_input`]).
    pub needed_bytes: usize,
    /// How much work that was: the bytes consumed, and what their commands cost beside.
    pub cost_bytes: usize,
}

/// One connection's state machine. No socket, no clock.
///
/// The driver hands it what it has read ([`Session::receive`]), then calls [`Session::poll`], which
/// appends what is to be written.
pub trait Session {
    /// Whether further bytes should be read and shown.
    fn wants_input(&self) -> bool;

    /// Whether the session stopped to let other connections of its core have their turn and has
    /// work left: then the driver calls [`Session::poll`] again though no event has come.
    fn wants_turn(&self) -> bool {
        false
    }

    /// Whether the connection is to be closed once all output is written.
    fn is_ended(&self) -> bool;

    /// Why the connection ends, if the client is to blame. For one line in the log.
    fn take_failure(&mut self) -> Option<String>;

    /// Takes commands from the start of `input`. If it takes the input's buffer
    /// ([`Input::take`]), all of the buffer counts as consumed.
    fn receive(&mut self, input: Input<'_>, now: Now) -> Received;

    /// The peer sends no more; `rest` is what was not consumed.
    fn end_of_input(&mut self, rest: &[u8], now: Now);

    /// The server is shutting down: reads and delivers nothing further, still sends the answers
    /// that are owed.
    fn drain(&mut self);

    /// Appends to `out` what is to be written now: call it again once that is written, until it
    /// appends nothing. Then the context's waker will be woken when there is more. It may want
    /// input again ([`Session::wants_input`]) without having anything to say.
    fn poll(&mut self, cx: &mut Context<'_>, now: Now, out: &mut Output);

    /// The time ([`Now::us`]) at which [`Session::poll`] has to be called at the latest although
    /// nothing else happens; `u64::MAX`: there is none. Asked after a poll that appended nothing.
    fn next_due_us(&self) -> u64;

    /// The counts of this connection.
    fn meter(&mut self) -> &mut Meter;

    /// The driver has read so many bytes from the socket.
    #[inline]
    fn read(&mut self, bytes: usize, now: Now) {
        self.meter().read(bytes, now);
    }

    /// Backpressure: the driver does not read from the peer now, for lack of memory, so the peer's
    /// silence must not count against its idle or heartbeat timeout.
    fn is_not_read(&mut self, _now: Now) {}

    /// A read ended inside a command: its rest has not arrived. The session may not even have seen
    /// its beginning, because a TLS record is decrypted only when it is complete.
    #[inline]
    fn read_ended_inside_frame(&mut self, now: Now) {
        self.meter().ended_inside_frame(now);
    }

    /// The socket has taken so many bytes.
    #[inline]
    fn wrote(&mut self, bytes: usize, now: Now) {
        self.meter().wrote(bytes, now);
    }
}
