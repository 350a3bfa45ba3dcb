//! Heartbeats: how each side hears that the other is there although nothing happens.

/// When something came and went, and the interval that both sides have agreed upon.
pub(super) struct Heartbeats {
    /// 0: none.
    interval_us: u64,
    last_read_us: u64,
    last_write_us: u64,
}

impl Heartbeats {
    /// Heartbeats with this interval from now on; 0: none.
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

    /// Something came, or nothing is read: a client that is not listened to is not silent.
    #[inline]
    pub(super) fn read(&mut self, now_us: u64) {
        self.last_read_us = now_us;
    }

    #[inline]
    pub(super) fn wrote(&mut self, now_us: u64) {
        self.last_write_us = now_us;
    }

    /// After how long without progress a write is given up: two intervals, if there are any.
    pub(super) fn write_timeout_us(&self) -> Option<u64> {
        (self.interval_us != 0).then_some(2 * self.interval_us)
    }

    /// When something is to be done at the latest.
    pub(super) fn due_us(&self) -> u64 {
        if self.interval_us == 0 {
            return u64::MAX;
        }
        self.beat_us().min(self.silent_us())
    }

    /// Whether a heartbeat is to be sent, because nothing else was for half an interval.
    #[inline]
    pub(super) fn is_beat_due(&self, now_us: u64) -> bool {
        self.interval_us != 0 && now_us >= self.beat_us()
    }

    /// Whether the client is to be left, because nothing came for two intervals.
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
