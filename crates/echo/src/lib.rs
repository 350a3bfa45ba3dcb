//! The smallest protocol: it sends each frame back unchanged. No product speaks it. The server's
//! tests start a broker with it, as a dry run of "How to add a protocol" in `ARCHITECTURE.md`.
//!
//! ```text
//! frame   u32, big-endian: bytes of the body, at most BODY_BYTES_MAX
//!         body
//! ```
//!
//! Architecture invariant: like every protocol crate, this one has no socket and no clock.

use std::mem;
use std::task::Context;

use cloverleaf_session::{Input, Meter, Now, Output, Received};
use cloverleaf_telemetry::Probe;

/// The largest body that is accepted, in bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// Bytes of the length field before the body.
const HEAD_BYTES: usize = 4;

/// One connection.
#[derive(Debug)]
pub struct Session {
    meter: Meter,
    /// Frames that were not sent back yet.
    output: Vec<u8>,
    /// The number of frames in `output`.
    unanswered: u64,
    /// No further input is read.
    is_closing: bool,
    failure: Option<String>,
}

impl Session {
    /// The session of a new connection.
    pub fn new(probe: Probe) -> Session {
        Session {
            meter: Meter::new(probe),
            output: Vec::new(),
            unanswered: 0,
            is_closing: false,
            failure: None,
        }
    }
}

/// The bytes of the first frame with its length field; only the length field's if that is
/// incomplete.
fn frame_bytes(input: &[u8]) -> usize {
    let body = input.first_chunk().map(|size| u32::from_be_bytes(*size));
    HEAD_BYTES + body.unwrap_or_default() as usize
}

impl cloverleaf_session::Session for Session {
    fn wants_input(&self) -> bool {
        // Backpressure: no input is read while the client does not read its answers.
        !self.is_closing && self.output.is_empty()
    }

    fn is_ended(&self) -> bool {
        self.is_closing && self.output.is_empty()
    }

    fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    fn receive(&mut self, input: Input<'_>, now: Now) -> Received {
        self.meter.begin();
        let (mut consumed, mut needed) = (0, 0);
        while consumed < input.len() {
            let rest = &input[consumed..];
            let bytes = frame_bytes(rest);
            if bytes > HEAD_BYTES + BODY_BYTES_MAX {
                self.failure = Some("it sent a frame that is too large".to_owned());
                self.is_closing = true;
                break;
            }
            let Some(frame) = rest.get(..bytes) else {
                needed = bytes;
                break;
            };
            self.output.extend_from_slice(frame);
            self.meter.others += 1;
            self.unanswered += 1;
            consumed += bytes;
        }
        self.meter.end(consumed, input.len(), needed, now)
    }

    fn end_of_input(&mut self, _rest: &[u8], _now: Now) {
        self.is_closing = true;
    }

    fn drain(&mut self) {
        self.is_closing = true;
    }

    fn poll(&mut self, _cx: &mut Context<'_>, _now: Now, out: &mut Output) {
        out.bytes.append(&mut self.output);
        self.meter.answered(mem::take(&mut self.unanswered));
    }

    fn next_due_us(&self) -> u64 {
        u64::MAX
    }

    fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::task::Waker;

    use cloverleaf_session::Session as _;
    use cloverleaf_telemetry::{Protocol, Registry};

    use super::*;

    const NOW: Now = Now { us: 1, unix_us: 1 };

    fn session() -> Session {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        Session::new(Registry::new().open(Protocol::Nats, peer, 1))
    }

    /// The bytes that the session wants to write.
    fn said(session: &mut Session) -> Vec<u8> {
        let mut out = Output::default();
        session.poll(&mut Context::from_waker(Waker::noop()), NOW, &mut out);
        out.bytes
    }

    #[test]
    fn whole_frames_come_back_and_a_partial_one_waits() {
        let mut session = session();
        let input = b"\0\0\0\x02ab\0\0\0\0\0\0\0\x05cd";
        let received = session.receive(Input::Lent(input), NOW);
        assert_eq!((received.consumed_bytes, received.needed_bytes), (10, 9));
        assert!(!session.wants_input());
        assert_eq!(said(&mut session), input[..10]);
        assert!(session.wants_input());
        let received = session.receive(Input::Lent(b"\0\0"), NOW);
        assert_eq!((received.consumed_bytes, received.needed_bytes), (0, 4));
        let seen = session.meter().probe.snapshot(|_| None);
        assert_eq!(seen.counters.requests, 2);
    }

    #[test]
    fn a_frame_that_is_too_large_ends_the_session_after_the_whole_ones() {
        let mut session = session();
        session.receive(Input::Lent(b"\0\0\0\0\0\x10\0\x01"), NOW);
        assert!(!session.is_ended());
        assert_eq!(said(&mut session), [0; 4]);
        assert!(session.is_ended() && session.take_failure().is_some());
    }
}
