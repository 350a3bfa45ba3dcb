//! The times at which the housekeeping is to call a subscription.

use crate::subscription::ledger::leases::NEVER_MS;

/// The times, in milliseconds since the epoch; [`NEVER_MS`]: there is nothing to call for.
#[derive(Debug)]
pub(crate) struct Timers {
    /// The call that the housekeeping knows of.
    call_ms: u64,
    /// A failed read is tried again, or a dispatch that was long enough goes on.
    retry_ms: u64,
    /// The first of the foremost messages expires.
    expiry_ms: u64,
    /// The marks of delivery are looked at.
    marks_ms: u64,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            call_ms: NEVER_MS,
            retry_ms: NEVER_MS,
            expiry_ms: NEVER_MS,
            marks_ms: NEVER_MS,
        }
    }
}

impl Timers {
    /// The next call, beside these times for the first lease that ends by itself, if it is sooner
    /// than the one that the housekeeping knows of.
    #[inline]
    pub(crate) fn next_call(&mut self, lease_due_ms: Option<u64>) -> Option<u64> {
        let due_ms = lease_due_ms
            .unwrap_or(NEVER_MS)
            .min(self.retry_ms)
            .min(self.expiry_ms)
            .min(self.marks_ms);
        let is_sooner = due_ms < self.call_ms;
        if is_sooner {
            self.call_ms = due_ms;
        }
        is_sooner.then_some(due_ms)
    }

    /// The housekeeping has called.
    pub(crate) fn called(&mut self, now_ms: u64) {
        // Those that are still to come are found again by the dispatch that follows.
        (self.call_ms, self.expiry_ms) = (NEVER_MS, NEVER_MS);
        if self.retry_ms <= now_ms {
            self.retry_ms = NEVER_MS;
        }
    }

    /// The subscription is closed: its leases alone still end.
    pub(crate) fn close(&mut self) {
        (self.expiry_ms, self.marks_ms) = (NEVER_MS, NEVER_MS);
    }

    /// Dispatch goes on at this time.
    pub(crate) fn retry_at(&mut self, retry_ms: u64) {
        self.retry_ms = retry_ms;
    }

    /// The first of the foremost messages expires at this time.
    pub(crate) fn expire_at(&mut self, expiry_ms: u64) {
        self.expiry_ms = expiry_ms;
    }

    /// The marks of delivery are looked at at this time, unless a time is set.
    pub(crate) fn look_at_marks_by(&mut self, marks_ms: u64) {
        if self.marks_ms == NEVER_MS {
            self.marks_ms = marks_ms;
        }
    }

    /// Whether the marks of delivery are to be looked at. They are not, from now on, until a time
    /// is set.
    pub(crate) fn take_marks_due(&mut self, now_ms: u64) -> bool {
        let is_due = self.marks_ms <= now_ms;
        if is_due {
            self.marks_ms = NEVER_MS;
        }
        is_due
    }
}
