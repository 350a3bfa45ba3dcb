//! What a protocol's connection is to the one who drives it: bytes in, bytes out, and a time.
//!
//! Architecture invariant: this crate knows no protocol, no socket and no clock. A protocol crate
//! implements [`Session`]; the crate `server` reads, writes and tells the time.

use std::collections::VecDeque;
use std::task::Context;

use bytes::{Bytes, BytesMut};

/// What time it is, by two clocks that are read once per socket read.
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

/// What became of the input.
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

/// What is to be written: bytes of its own, and between them bytes that are shared with the log,
/// which are not copied.
#[derive(Debug, Default)]
pub struct Output {
    /// Bytes made for this connection.
    pub bytes: Vec<u8>,
    shared: Vec<Shared>,
    shared_bytes: usize,
}

/// Bytes of somebody else, and before which of our own bytes they go.
#[derive(Debug)]
struct Shared {
    at: usize,
    bytes: Bytes,
}

impl Output {
    /// Adds shared bytes behind all that was added so far.
    pub fn share(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.shared_bytes += bytes.len();
            let at = self.bytes.len();
            self.shared.push(Shared { at, bytes });
        }
    }

    /// Bytes to be written, all together.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.shared_bytes
    }

    /// Whether there is nothing to write.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all of it lies in [`Output::bytes`].
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.shared.is_empty()
    }

    /// Forgets everything; the allocations stay.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.shared.clear();
        self.shared_bytes = 0;
    }

    /// Moves all but the first `skip_bytes` behind what is in `queue`: what was shared stays so,
    /// our own bytes are copied, once. Nothing is left here.
    pub fn drain_from(&mut self, skip_bytes: usize, queue: &mut VecDeque<Bytes>) {
        if self.is_plain() {
            let rest = self.bytes.get(skip_bytes..).unwrap_or_default();
            if !rest.is_empty() {
                queue.push_back(Bytes::copy_from_slice(rest));
            }
            self.clear();
            return;
        }
        let own = Bytes::copy_from_slice(&self.bytes);
        let (mut from, mut skip) = (0, skip_bytes);
        let mut push = |part: Bytes| {
            let skipped = skip.min(part.len());
            skip -= skipped;
            if skipped < part.len() {
                queue.push_back(part.slice(skipped..));
            }
        };
        for shared in self.shared.drain(..) {
            push(own.slice(from..shared.at));
            push(shared.bytes);
            from = shared.at;
        }
        push(own.slice(from..));
        self.clear();
    }

    /// Its parts in the order in which they are to be written. None is empty.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        let between = self.shared.iter().flat_map(move |shared| {
            let own = &self.bytes[from..shared.at];
            from = shared.at;
            [own, &shared.bytes[..]]
        });
        let last = self.shared.last().map_or(0, |shared| shared.at);
        between
            .chain(std::iter::once(&self.bytes[last..]))
            .filter(|part| !part.is_empty())
    }
}

/// One connection's state machine. No socket, no clock.
///
/// The driver hands it what it has read ([`Session::receive`]), then calls [`Session::poll`], which
/// appends what is to be written.
pub trait Session {
    /// Whether further bytes should be read and shown.
    fn wants_input(&self) -> bool;

    /// Whether the connection is to be closed once all output is written.
    fn is_ended(&self) -> bool;

    /// Why the connection ends, if the client is to blame. For one line in the log.
    fn take_failure(&mut self) -> Option<String>;

    /// Takes commands from the start of `input`.
    fn receive(&mut self, input: &[u8], now: Now) -> Received;

    /// As [`Session::receive`], for one command that is whole, alone, and in a buffer of its own
    /// because it is large. The session may take that buffer (and leave `input` empty) to keep what
    /// it would have to copy otherwise; what it took counts as consumed.
    fn receive_own(&mut self, input: &mut BytesMut, now: Now) -> Received {
        self.receive(input, now)
    }

    /// The peer sends no more; `rest` is what was not consumed.
    fn end_of_input(&mut self, rest: &[u8], now: Now);

    /// Reads and delivers nothing further; what is owed is still answered. For the server's end.
    fn drain(&mut self);

    /// Appends to `out` what is to be written now: call it again once that is written, until it
    /// appends nothing. Then the context's waker will be woken when there is more. It may want
    /// input again ([`Session::wants_input`]) without having anything to say.
    fn poll(&mut self, cx: &mut Context<'_>, now: Now, out: &mut Output);

    /// The time ([`Now::us`]) at which [`Session::poll`] has to be called at the latest although
    /// nothing else happens; `u64::MAX`: there is none. Asked after a poll that appended nothing.
    fn next_due_us(&self) -> u64;

    /// The driver has read so many bytes from the socket.
    fn read(&mut self, bytes: usize, now: Now);

    /// A read ended inside a command, of which more bytes are missing.
    fn read_ended_inside_frame(&mut self);

    /// The socket has taken so many bytes.
    fn wrote(&mut self, bytes: usize, now: Now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_in_the_order_in_which_they_were_added() {
        let mut out = Output::default();
        out.share(Bytes::from_static(b"a"));
        out.bytes.extend_from_slice(b"bc");
        out.share(Bytes::from_static(b"d"));
        out.share(Bytes::from_static(b"e"));
        out.share(Bytes::new());
        out.bytes.extend_from_slice(b"f");
        assert_eq!(
            out.parts().collect::<Vec<_>>(),
            [&b"a"[..], b"bc", b"d", b"e", b"f"]
        );
        assert_eq!(out.len(), 6);
        assert!(!out.is_plain());
        out.clear();
        assert!(out.is_empty() && out.is_plain());
        assert_eq!(out.parts().count(), 0);
        out.bytes.push(b'x');
        assert_eq!(out.parts().collect::<Vec<_>>(), [b"x"]);
    }

    #[test]
    fn what_was_not_written_is_kept_and_shared_bytes_stay_shared() {
        let shared = Bytes::from_static(b"shared");
        for skip_bytes in 0..=11 {
            let (mut out, mut queue) = (Output::default(), VecDeque::new());
            out.bytes.extend_from_slice(b"abc");
            out.share(shared.clone());
            out.bytes.extend_from_slice(b"de");
            out.drain_from(skip_bytes, &mut queue);
            assert!(out.is_empty());
            assert_eq!(queue.iter().flatten().count(), 11 - skip_bytes);
            let rest: Vec<u8> = queue.iter().flatten().copied().collect();
            assert_eq!(rest, b"abcsharedde"[skip_bytes..]);
            let mut parts = queue.iter().map(|part| part.as_ptr());
            if skip_bytes <= 3 {
                assert!(parts.any(|part| part == shared.as_ptr()));
            }
        }
        let (mut plain, mut queue) = (Output::default(), VecDeque::new());
        plain.bytes.extend_from_slice(b"abc");
        plain.drain_from(1, &mut queue);
        assert_eq!(queue, [&b"bc"[..]]);
    }
}
