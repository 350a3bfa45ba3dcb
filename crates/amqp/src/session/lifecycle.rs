//! The phases of a connection, from the protocol header to its end, and their timeouts.

use crate::exception::{Exception, ReplyCode};

/// The connection ends if the client has not answered `connection.close` after this time.
const CLOSE_TIMEOUT_US: u64 = 10_000_000;
/// The connection ends if the client has not opened it after this time (`handshake_timeout`).
const HANDSHAKE_TIMEOUT_US: u64 = 10_000_000;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for the protocol header.
    Header,
    /// `connection.start` was sent; waits for `start-ok`.
    Starting,
    /// `start-ok` was received; the credentials are being verified.
    Verifying,
    /// `connection.tune` was sent; waits for `tune-ok`.
    Tuning,
    /// `tune-ok` was received; waits for `connection.open`.
    Opening,
    Open,
    /// The broker has sent `connection.close`; waits for `close-ok`.
    Closing,
    /// Nothing further is read; pending replies are written.
    Draining,
    /// Nothing further is read or written.
    Ended,
}

impl Phase {
    /// RabbitMQ's name of the phase, for error texts.
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

    /// The error of a method that is not allowed in this phase.
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
    /// The broker shuts down: no further input is taken. `connection.close` follows once all
    /// publishes are confirmed.
    is_stopping: bool,
    /// The connection was closed in the orderly way, with `connection.close-ok` from either side.
    said_goodbye: bool,
    failure: Option<String>,
}

impl Lifecycle {
    /// The state of a newly accepted connection.
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

    /// Whether the connection is over, except for pending writes.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Draining | Phase::Ended)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    pub(super) fn said_goodbye(&self) -> bool {
        self.said_goodbye
    }

    /// Whether the client's frames are handled now.
    #[inline]
    pub(super) fn takes_input(&self) -> bool {
        match self.phase {
            Phase::Draining | Phase::Ended | Phase::Verifying => false,
            // The client's `close-ok` is still awaited.
            Phase::Closing => true,
            _ => !self.is_stopping,
        }
    }

    /// Moves on to a later phase.
    pub(super) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// The broker has sent `connection.close`.
    pub(super) fn close(&mut self, now_us: u64) {
        self.phase = Phase::Closing;
        self.closing_since_us = now_us;
    }

    /// Either side has sent `connection.close-ok`.
    pub(super) fn close_ok(&mut self) {
        self.said_goodbye = true;
        self.phase = Phase::Draining;
    }

    /// The broker shuts down. Only clients whose connection is open get a `connection.close`.
    pub(super) fn stop(&mut self) {
        match self.phase {
            Phase::Open => self.is_stopping = true,
            Phase::Closing | Phase::Draining | Phase::Ended => {}
            _ => self.phase = Phase::Draining,
        }
    }

    /// Records why the connection ends; the first reason is kept.
    pub(super) fn record_failure(&mut self, failure: String) {
        self.failure.get_or_insert(failure);
    }

    /// Clears the failure: the client did not cause the close.
    pub(super) fn clear_failure(&mut self) {
        self.failure = None;
    }

    pub(super) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// The time by which [`Lifecycle::end_if_overdue`] has to be called.
    #[inline]
    pub(super) fn due_us(&self) -> u64 {
        match self.phase {
            Phase::Open | Phase::Draining | Phase::Ended => u64::MAX,
            Phase::Closing => self.closing_since_us + CLOSE_TIMEOUT_US,
            _ => self.opened_us + HANDSHAKE_TIMEOUT_US,
        }
    }

    /// Ends the connection if the client takes too long to open it, or to answer a close.
    #[inline]
    pub(super) fn end_if_overdue(&mut self, now_us: u64) {
        if now_us < self.due_us() {
            return;
        }
        if self.phase != Phase::Closing {
            self.record_failure("handshake_timeout".to_owned());
        }
        self.phase = Phase::Ended;
    }
}
