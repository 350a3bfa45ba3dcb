//! Heartbeats: each side shows the other that it is alive while there is nothing to send.

/// The negotiated heartbeat interval, and the times of the last read and write.
pub(super) struct Heartbeats {
    /// 0: no heartbeats.
    interval_us: u64,
    last_read_us: u64,
    last_write_us: u64,
}

impl Heartbeats {
    /// Heartbeats with this interval, starting now; 0: no heartbeats.
    pub(super) fn of_interval(interval_us: u64, now_us: u64) -> Self {
        Self {
            interval_us,
            last_read_us: now_us,
            last_write_us: now_us,
        }
    }

    /// The interval in seconds.
    pub(super) fn interval_s(&self) -> u64 {
        self.interval_us / 1_000_000
    }

    /// Bytes were received, or the broker is not reading (backpressure): then silence is not the
    /// client's fault.
    #[inline]
    pub(super) fn read(&mut self, now_us: u64) {
        self.last_read_us = now_us;
    }

    #[inline]
    pub(super) fn wrote(&mut self, now_us: u64) {
        self.last_write_us = now_us;
    }

    /// A write without progress for this long fails: two intervals, or `None` without heartbeats.
    pub(super) fn write_timeout_us(&self) -> Option<u64> {
        (self.interval_us != 0).then_some(2 * self.interval_us)
    }

    /// The time of the next heartbeat or timeout.
    pub(super) fn due_us(&self) -> u64 {
        if self.interval_us == 0 {
            return u64::MAX;
        }
        self.beat_us().min(self.silent_us())
    }

    /// Whether to send a heartbeat, because nothing was written for half an interval.
    #[inline]
    pub(super) fn is_beat_due(&self, now_us: u64) -> bool {
        self.interval_us != 0 && now_us >= self.beat_us()
    }

    /// Whether the client is considered dead, because nothing was received for two intervals.
    #[inline]
    pub(super) fn is_silent(&self, now_us: u64) -> bool {
        self.interval_us != 0 && now_us >= self.silent_us()
    }

    fn beat_us(&self) -> u64 {
        self.last_write_us + self.interval_us / 2
    }

    fn silent_us(&self) -> u64 {
        self.last_read_us + 2 * self.interval_us
    }
}
