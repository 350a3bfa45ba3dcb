//! The interface between a protocol's connection and its driver (bytes in, bytes out, and a time),
//! plus what all protocols share: counts ([`Meter`]) and cached lookups ([`Cached`]).
//!
//! Architecture invariant: this crate knows no protocol, no broker, no socket and no clock. A
//! protocol crate implements [`Session`]; the crate `server` is the driver: it reads, writes and
//! passes in the time.

mod cached;
mod input;
mod meter;
mod output;

use std::task::Context;

pub use cached::Cached;
pub use input::Input;
pub use meter::{Meter, Published};
pub use output::{FileRange, Output, Piece};

/// The current time by two clocks, read once per socket read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Microseconds of the telemetry's monotonic clock.
    pub us: u64,
    /// Microseconds since 1970, by the wall clock.
    pub unix_us: u64,
}

impl Now {
    /// Milliseconds since 1970, the unit of records' timestamps.
    pub fn unix_ms(&self) -> i64 {
        i64::try_from(self.unix_us / 1000).unwrap_or(i64::MAX)
    }
}

/// The result of [`Session::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// How many bytes were consumed; the driver must pass the rest in again.
    pub consumed_bytes: usize,
    /// The driver need not pass the rest in again before it has this many bytes, unless the session
    /// stopped for another reason ([`Session::wants_input`]).
    pub needed_bytes: usize,
    /// The cost of the work: the bytes consumed, plus the cost of their commands.
    pub cost_bytes: usize,
}

/// One connection's state machine, without socket and clock.
///
/// The driver passes in what it has read ([`Session::receive`]), then calls [`Session::poll`],
/// which appends the output.
pub trait Session {
    /// Whether the driver should read and pass in more bytes.
    fn wants_input(&self) -> bool;

    /// Whether the session has paused with work left, so that other connections of its core get a
    /// turn. The driver then calls [`Session::poll`] again without waiting for an event.
    fn wants_turn(&self) -> bool {
        false
    }

    /// Whether the driver should close the connection once all output is written.
    fn is_ended(&self) -> bool;

    /// Why the connection ends, if the client caused it: one line for the log.
    fn take_failure(&mut self) -> Option<String>;

    /// Consumes commands from the start of `input`. If it takes the input's buffer
    /// ([`Input::take`]), the whole buffer counts as consumed.
    fn receive(&mut self, input: Input<'_>, now: Now) -> Received;

    /// The peer has closed its sending side; `rest` is what was not consumed.
    fn end_of_input(&mut self, rest: &[u8], now: Now);

    /// The server is shutting down: the session reads and delivers nothing more, but still sends
    /// outstanding answers.
    fn drain(&mut self);

    /// Appends to `out` what is to be written now. The driver writes it and calls again, until
    /// nothing is appended; after that the waker is woken when there is more. A call may make the
    /// session want input again ([`Session::wants_input`]) without appending anything.
    fn poll(&mut self, cx: &mut Context<'_>, now: Now, out: &mut Output);

    /// The latest time ([`Now::us`]) for the next call of [`Session::poll`] if no event happens
    /// before; `u64::MAX`: no limit. Valid after a poll that appended nothing.
    fn next_due_us(&self) -> u64;

    /// This connection's counts.
    fn meter(&mut self) -> &mut Meter;

    /// The driver has read `bytes` from the socket.
    #[inline]
    fn read(&mut self, bytes: usize, now: Now) {
        self.meter().read(bytes, now);
    }

    /// Backpressure: for lack of memory the driver does not read from the peer now, so the peer's
    /// silence must not count against its idle or heartbeat timeout.
    fn reading_paused(&mut self, _now: Now) {}

    /// A read ended inside a command, whose rest has not arrived. The session may not have seen any
    /// of it, because a TLS record is decrypted only when it is complete.
    #[inline]
    fn read_ended_inside_frame(&mut self, now: Now) {
        self.meter().ended_inside_frame(now);
    }

    /// The socket has accepted `bytes`.
    #[inline]
    fn wrote(&mut self, bytes: usize, now: Now) {
        self.meter().wrote(bytes, now);
    }
}
