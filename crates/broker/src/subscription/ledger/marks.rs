//! How far delivery has got in one partition: after a restart this tells which messages may have
//! been delivered before.
//!
//! The journal has to know before a consumer does, or a kill would hide a delivery. So it is told
//! ahead: everything below the promise may have been delivered. The promise is renewed when
//! delivery comes up to it, further ahead the faster it goes; when delivery rests, it is taken back
//! to the exact place.

use cloverleaf_log::Offset;

/// The promise goes so many messages ahead at least, and at most.
const AHEAD_MIN: u64 = 64;
const AHEAD_MAX: u64 = 1 << 16;

/// A promise that is used up sooner than this was too short, one that lasts longer too long.
const SHORT_MS: u64 = 100;
const LONG_MS: u64 = 1_000;

/// How far delivery has got in one partition.
#[derive(Debug, Default, Clone)]
pub(crate) struct Mark {
    /// Below this anything may have been delivered by an earlier process.
    earlier: Offset,
    /// Behind the last message that was ever delivered.
    delivered: Offset,
    /// The promise in the journal.
    promised: Offset,
    promised_ms: u64,
    ahead: u64,
    /// `delivered` when [`Mark::rest`] was asked last.
    seen: Offset,
}

impl Mark {
    /// Messages below this may have been delivered before the broker was started.
    pub(crate) fn earlier(&self) -> Offset {
        self.earlier
    }

    /// The promise in the journal; 0 if it has none.
    pub(crate) fn promised(&self) -> Offset {
        self.promised
    }

    /// Takes the promise that an earlier process wrote. The last one counts.
    pub(crate) fn restore(&mut self, promised: Offset) {
        self.promised = promised;
    }

    /// All that was restored is there, and nothing at or above `end` was ever stored. After a power
    /// loss the promise may be older than the messages: then all of them count. Returns what has to
    /// be written down.
    pub(crate) fn finish_restore(&mut self, end: Offset, lost_power: bool) -> Option<Offset> {
        let before = self.promised;
        self.promised = if lost_power { end } else { before.min(end) };
        (self.earlier, self.delivered) = (self.promised, self.promised);
        (self.promised != before).then_some(self.promised)
    }

    /// Messages below `end` are about to be delivered. Returns what has to be written down before.
    pub(crate) fn reach(&mut self, end: Offset, now_ms: u64) -> Option<Offset> {
        self.delivered = self.delivered.max(end);
        if end <= self.promised {
            return None;
        }
        let lasted_ms = now_ms.saturating_sub(self.promised_ms);
        self.ahead = match lasted_ms {
            0..SHORT_MS => (self.ahead * 2).min(AHEAD_MAX),
            LONG_MS.. => self.ahead / 2,
            _ => self.ahead,
        };
        self.ahead = self.ahead.max(AHEAD_MIN);
        self.promised_ms = now_ms;
        self.promised = end.saturating_add(self.ahead);
        Some(self.promised)
    }

    /// Nothing more is delivered for now: the exact place, if it has to be written down.
    pub(crate) fn take_back(&mut self) -> Option<Offset> {
        self.ahead = 0;
        let differs = self.promised != self.delivered;
        self.promised = self.delivered;
        differs.then_some(self.promised)
    }

    /// Asked from time to time while there is a promise. As [`Mark::take_back`] if nothing was
    /// delivered since the last time.
    pub(crate) fn rest(&mut self) -> Option<Offset> {
        if std::mem::replace(&mut self.seen, self.delivered) != self.delivered {
            return None;
        }
        self.take_back()
    }

    /// Whether [`Mark::rest`] wants to be asked.
    pub(crate) fn is_ahead(&self) -> bool {
        self.promised != self.delivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_promise_is_always_ahead_and_seldom_renewed() {
        let mut mark = Mark::default();
        let (mut written, mut renewals) = (0, 0);
        for offset in 0..100_000 {
            if let Some(promise) = mark.reach(offset + 1, offset / 100) {
                (written, renewals) = (promise, renewals + 1);
            }
            assert!(written > offset);
        }
        assert!(renewals < 40, "{renewals}");
        assert_eq!(mark.rest(), None);
        assert_eq!(mark.rest(), Some(100_000));
        assert!(!mark.is_ahead());
        assert_eq!(mark.rest(), None);
        assert_eq!(mark.reach(100_001, 9_000), Some(100_001 + AHEAD_MIN));
    }

    #[test]
    fn a_slow_consumer_has_a_short_promise() {
        let mut mark = Mark::default();
        for offset in 0..10_000u64 {
            let promise = mark.reach(offset + 1, offset * 100);
            assert!(promise.unwrap_or_default() <= offset + 1 + AHEAD_MIN);
        }
    }

    #[test]
    fn a_restart_believes_the_last_promise_but_nothing_behind_the_end() {
        let mut mark = Mark::default();
        mark.restore(300);
        mark.restore(200);
        assert_eq!(mark.clone().finish_restore(1_000, false), None);
        assert_eq!(mark.clone().finish_restore(1_000, true), Some(1_000));
        assert_eq!(mark.finish_restore(150, false), Some(150));
        assert_eq!(mark.earlier(), 150);
        assert_eq!(mark.reach(150, 5), None);
        assert!(mark.reach(151, 5).is_some());
    }
}
