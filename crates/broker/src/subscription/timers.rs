//! The times at which the housekeeping thread must call a subscription.

use crate::subscription::ledger::leases::NEVER_MS;

/// Times in milliseconds since the epoch; [`NEVER_MS`]: not set.
#[derive(Debug)]
pub(crate) struct Timers {
    /// The earliest call that the housekeeping thread has been asked for.
    call_ms: u64,
    /// A failed read is retried, or a dispatch that reached its limit continues.
    retry_ms: u64,
    /// The earliest expiry among the messages at the heads of the partitions.
    expiry_ms: u64,
    /// The delivery marks are checked.
    marks_check_ms: u64,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            call_ms: NEVER_MS,
            retry_ms: NEVER_MS,
            expiry_ms: NEVER_MS,
            marks_check_ms: NEVER_MS,
        }
    }
}

impl Timers {
    /// The next call that is needed, considering also the first lease to expire. `None` if the
    /// housekeeping thread has been asked for an equal or earlier one.
    #[inline]
    pub(crate) fn next_call(&mut self, lease_due_ms: Option<u64>) -> Option<u64> {
        let due_ms = lease_due_ms
            .unwrap_or(NEVER_MS)
            .min(self.retry_ms)
            .min(self.expiry_ms)
            .min(self.marks_check_ms);
        let is_sooner = due_ms < self.call_ms;
        if is_sooner {
            self.call_ms = due_ms;
        }
        is_sooner.then_some(due_ms)
    }

    /// The housekeeping thread has called.
    pub(crate) fn called(&mut self, now_ms: u64) {
        // The dispatch that follows sets the expiry timer again.
        (self.call_ms, self.expiry_ms) = (NEVER_MS, NEVER_MS);
        if self.retry_ms <= now_ms {
            self.retry_ms = NEVER_MS;
        }
    }

    /// The subscription is closed: only leases still expire.
    pub(crate) fn close(&mut self) {
        (self.expiry_ms, self.marks_check_ms) = (NEVER_MS, NEVER_MS);
    }

    /// Dispatch continues at this time.
    pub(crate) fn retry_at(&mut self, retry_ms: u64) {
        self.retry_ms = retry_ms;
    }

    /// The first message at the head of a partition expires at this time.
    pub(crate) fn expire_at(&mut self, expiry_ms: u64) {
        self.expiry_ms = expiry_ms;
    }

    /// The delivery marks are checked at this time, unless an earlier check is set.
    pub(crate) fn check_marks_by(&mut self, marks_check_ms: u64) {
        if self.marks_check_ms == NEVER_MS {
            self.marks_check_ms = marks_check_ms;
        }
    }

    /// Whether the delivery marks must be checked now. Clears the timer if so.
    pub(crate) fn take_marks_due(&mut self, now_ms: u64) -> bool {
        let is_due = self.marks_check_ms <= now_ms;
        if is_due {
            self.marks_check_ms = NEVER_MS;
        }
        is_due
    }
}
