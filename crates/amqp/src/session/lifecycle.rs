//! A connection's life: from the protocol header to the end, and how long each part may take.

use crate::exception::{Exception, ReplyCode};

/// A client that we have told of the end, and that does not answer, is left after this long.
const CLOSE_TIMEOUT_US: u64 = 10_000_000;
/// A client that has not opened its connection is left after this long (`handshake_timeout`).
const HANDSHAKE_TIMEOUT_US: u64 = 10_000_000;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The protocol header has not come.
    Header,
    /// `connection.start` was sent.
    Starting,
    /// The client has said who it is, and it is being found out.
    Verifying,
    /// `connection.tune` was sent.
    Tuning,
    /// The virtual host has to be opened.
    Opening,
    Open,
    /// We have sent `connection.close`.
    Closing,
    /// Nothing is read any more; what is owed will be written.
    Draining,
    /// All is said.
    Ended,
}

impl Phase {
    /// RabbitMQ's name of the state.
    fn name(self) -> &'static str {
        match self {
            Phase::Header | Phase::Starting | Phase::Verifying => "starting",
            Phase::Tuning => "tuning",
            Phase::Opening => "opening",
            Phase::Open => "running",
            Phase::Closing => "closing",
            Phase::Draining | Phase::Ended => "closed",
        }
    }

    /// A method that may not come now.
    pub(super) fn unexpected_method(self) -> Exception {
        let text = format!("unexpected method in connection state {}", self.name());
        Exception::new(ReplyCode::ChannelError, text)
    }
}

/// The phase of a connection, and why it ends.
pub(super) struct Lifecycle {
    phase: Phase,
    opened_us: u64,
    closing_since_us: u64,
    /// The broker ends: nothing further is taken, and the client is told once what it is owed has
    /// been written.
    is_stopping: bool,
    /// Either side has said `connection.close-ok`.
    said_goodbye: bool,
    failure: Option<String>,
}

impl Lifecycle {
    /// A connection that has just been accepted.
    pub(super) fn new(now_us: u64) -> Self {
        Self {
            phase: Phase::Header,
            opened_us: now_us,
            closing_since_us: 0,
            is_stopping: false,
            said_goodbye: false,
            failure: None,
        }
    }

    #[inline]
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether it is over but for the bytes that are not written.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Draining | Phase::Ended)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    pub(super) fn said_goodbye(&self) -> bool {
        self.said_goodbye
    }

    /// Whether the client's frames are of interest.
    #[inline]
    pub(super) fn takes_input(&self) -> bool {
        match self.phase {
            Phase::Draining | Phase::Ended | Phase::Verifying => false,
            // Its answer is still wanted.
            Phase::Closing => true,
            _ => !self.is_stopping,
        }
    }

    /// Goes on to a later phase of an orderly life.
    pub(super) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// We have sent `connection.close`.
    pub(super) fn close(&mut self, now_us: u64) {
        self.phase = Phase::Closing;
        self.closing_since_us = now_us;
    }

    /// Either side has sent `connection.close-ok`.
    pub(super) fn goodbye(&mut self) {
        self.said_goodbye = true;
        self.phase = Phase::Draining;
    }

    /// The broker ends. A client whose connection is open is told of it, any other is not.
    pub(super) fn stop(&mut self) {
        match self.phase {
            Phase::Open => self.is_stopping = true,
            Phase::Closing | Phase::Draining | Phase::Ended => {}
            _ => self.phase = Phase::Draining,
        }
    }

    /// Says why it ends, unless an earlier reason is known.
    pub(super) fn blame(&mut self, failure: String) {
        self.failure.get_or_insert(failure);
    }

    /// The client is not to blame for the end.
    pub(super) fn excuse(&mut self) {
        self.failure = None;
    }

    pub(super) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// When [`Lifecycle::end_if_overdue`] has to be asked at the latest.
    #[inline]
    pub(super) fn due_us(&self) -> u64 {
        match self.phase {
            Phase::Open | Phase::Draining | Phase::Ended => u64::MAX,
            Phase::Closing => self.closing_since_us + CLOSE_TIMEOUT_US,
            _ => self.opened_us + HANDSHAKE_TIMEOUT_US,
        }
    }

    /// Ends a connection whose client takes too long to open it, or to answer its end.
    #[inline]
    pub(super) fn end_if_overdue(&mut self, now_us: u64) {
        if now_us < self.due_us() {
            return;
        }
        if self.phase != Phase::Closing {
            self.blame("handshake_timeout".to_owned());
        }
        self.phase = Phase::Ended;
    }
}
