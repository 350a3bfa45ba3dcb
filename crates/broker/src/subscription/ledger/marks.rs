//! The delivery mark of one partition: after a restart, messages below it may have been delivered
//! before and are flagged as redelivered.
//!
//! The journal must have the mark before a consumer gets the message, or a kill would hide the
//! delivery. To avoid an entry per message, the mark in the journal (the *journal mark*) runs ahead
//! of delivery, like a sequence that allocates numbers in blocks. Delivery that reaches the journal
//! mark renews it, further ahead the faster delivery goes. When delivery pauses, the journal mark
//! is lowered to the exact offset.

use cloverleaf_log::Offset;

/// How many messages the journal mark runs ahead of delivery: minimum and maximum.
const AHEAD_MIN: u64 = 64;
const AHEAD_MAX: u64 = 1 << 16;

/// A journal mark that is used up sooner than `SHORT_MS` was too short; one that lasts longer than
/// `LONG_MS` was too long.
const SHORT_MS: u64 = 100;
const LONG_MS: u64 = 1_000;

/// The delivery mark of one partition.
#[derive(Debug, Default, Clone)]
pub(crate) struct DeliveryMark {
    /// Messages below this offset may have been delivered by an earlier process.
    redelivered_below: Offset,
    /// One above the highest offset that was ever delivered.
    delivered_end: Offset,
    /// The mark in the journal: messages below it may have been delivered.
    journaled_end: Offset,
    journaled_ms: u64,
    ahead: u64,
    /// The value of `delivered_end` at the last call of [`DeliveryMark::lower_if_idle`].
    end_at_last_check: Offset,
}

impl DeliveryMark {
    /// Messages below this offset may have been delivered before the broker was started.
    pub(crate) fn redelivered_below(&self) -> Offset {
        self.redelivered_below
    }

    /// The mark in the journal; 0 if it has none.
    pub(crate) fn journaled_end(&self) -> Offset {
        self.journaled_end
    }

    /// Applies a journal mark that an earlier process wrote. The last one counts.
    pub(crate) fn restore(&mut self, journaled_end: Offset) {
        self.journaled_end = journaled_end;
    }

    /// Ends the restore. `end` is above every offset that was ever stored. After a power loss the
    /// journal mark may be older than the last deliveries, so every stored message counts as
    /// delivered. Returns the journal mark if it changed and must be written.
    pub(crate) fn finish_restore(&mut self, end: Offset, lost_power: bool) -> Option<Offset> {
        let before = self.journaled_end;
        self.journaled_end = if lost_power { end } else { before.min(end) };
        (self.redelivered_below, self.delivered_end) = (self.journaled_end, self.journaled_end);
        (self.journaled_end != before).then_some(self.journaled_end)
    }

    /// Messages below `end` are about to be delivered. Returns the journal mark if it changed and
    /// must be written first.
    pub(crate) fn raise_to(&mut self, end: Offset, now_ms: u64) -> Option<Offset> {
        self.delivered_end = self.delivered_end.max(end);
        if end <= self.journaled_end {
            return None;
        }
        let lasted_ms = now_ms.saturating_sub(self.journaled_ms);
        self.ahead = match lasted_ms {
            0..SHORT_MS => (self.ahead * 2).min(AHEAD_MAX),
            LONG_MS.. => self.ahead / 2,
            _ => self.ahead,
        };
        self.ahead = self.ahead.max(AHEAD_MIN);
        self.journaled_ms = now_ms;
        self.journaled_end = end.saturating_add(self.ahead);
        Some(self.journaled_end)
    }

    /// Lowers the journal mark to the exact offset, because delivery pauses. Returns it if it
    /// changed and must be written.
    pub(crate) fn lower_to_exact(&mut self) -> Option<Offset> {
        self.ahead = 0;
        let differs = self.journaled_end != self.delivered_end;
        self.journaled_end = self.delivered_end;
        differs.then_some(self.journaled_end)
    }

    /// Does [`DeliveryMark::lower_to_exact`] if nothing was delivered since the last call. Call it
    /// from time to time while [`DeliveryMark::is_ahead`].
    pub(crate) fn lower_if_idle(&mut self) -> Option<Offset> {
        if std::mem::replace(&mut self.end_at_last_check, self.delivered_end) != self.delivered_end
        {
            return None;
        }
        self.lower_to_exact()
    }

    /// Whether the journal mark is above the exact offset.
    pub(crate) fn is_ahead(&self) -> bool {
        self.journaled_end != self.delivered_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_mark_is_always_ahead_and_seldom_renewed() {
        let mut mark = DeliveryMark::default();
        let (mut written, mut renewals) = (0, 0);
        for offset in 0..100_000 {
            if let Some(mark_to_write) = mark.raise_to(offset + 1, offset / 100) {
                (written, renewals) = (mark_to_write, renewals + 1);
            }
            assert!(written > offset);
        }
        assert!(renewals < 40, "{renewals}");
        assert_eq!(mark.lower_if_idle(), None);
        assert_eq!(mark.lower_if_idle(), Some(100_000));
        assert!(!mark.is_ahead());
        assert_eq!(mark.lower_if_idle(), None);
        assert_eq!(mark.raise_to(100_001, 9_000), Some(100_001 + AHEAD_MIN));
    }

    #[test]
    fn a_slow_consumer_has_a_mark_shortly_ahead() {
        let mut mark = DeliveryMark::default();
        for offset in 0..10_000u64 {
            let mark_to_write = mark.raise_to(offset + 1, offset * 100);
            assert!(mark_to_write.unwrap_or_default() <= offset + 1 + AHEAD_MIN);
        }
    }

    #[test]
    fn a_restart_uses_the_last_journal_mark_up_to_the_end() {
        let mut mark = DeliveryMark::default();
        mark.restore(300);
        mark.restore(200);
        assert_eq!(mark.clone().finish_restore(1_000, false), None);
        assert_eq!(mark.clone().finish_restore(1_000, true), Some(1_000));
        assert_eq!(mark.finish_restore(150, false), Some(150));
        assert_eq!(mark.redelivered_below(), 150);
        assert_eq!(mark.raise_to(150, 5), None);
        assert!(mark.raise_to(151, 5).is_some());
    }
}
