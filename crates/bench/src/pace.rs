//! Backpressure and patience, the same for all clients: when a full window keeps a producer from
//! sending, and how long it waits for a broker that says nothing.

use std::collections::VecDeque;

use crate::driver::{DriverError, Stop};
use crate::url::Url;

/// How often a connection that has nothing to do looks whether it is stopped.
pub(crate) const LOOK_NS: u64 = 50_000_000;
/// A broker that has answered nothing for so long, though something waits for it, answers no more.
/// Brokers pause for seconds when they sync or collect garbage.
const PATIENCE_NS: u64 = 30_000_000_000;
/// The same after the user has said that it is enough.
const STOPPED_PATIENCE_NS: u64 = 2_000_000_000;
/// And no longer than this after it, though answers come.
const STOPPED_MAX_NS: u64 = 5_000_000_000;
/// Most of the time between two looks that counts: who does not look gets no answers, and that is
/// not the broker's fault.
const STEP_MAX_NS: u64 = 2 * LOOK_NS;
/// A generator that sends what has piled up looks at the clock more often than this, whatever the
/// size of a request; if it does not, it has paused itself.
const PAUSE_NS: u64 = 5_000_000;
/// The error text of a message that is waited for no more.
pub(crate) const UNANSWERED: &str = "no answer came";
/// The error text of a broker that is waited for no more.
const SILENT: &str = "it has answered nothing for 30 seconds";

/// The end of a producer. Messages without an answer are the broker's fault, unless the producer
/// was told to stop.
pub(crate) fn answered(has_all: bool, url: &Url, stop: &Stop) -> Result<(), DriverError> {
    if has_all || stop.is_set() {
        Ok(())
    } else {
        Err(url.gone(SILENT))
    }
}

/// How long nothing has come though something was waited for.
#[derive(Debug)]
pub(crate) struct Patience {
    looked_ns: u64,
    silent_ns: u64,
    stopped_ns: Option<u64>,
}

impl Patience {
    /// One that begins now.
    pub(crate) fn new(now_ns: u64) -> Patience {
        Patience {
            looked_ns: now_ns,
            silent_ns: 0,
            stopped_ns: None,
        }
    }

    /// An answer came, or the broker took bytes that it had no room for before.
    #[inline]
    pub(crate) fn moved(&mut self) {
        self.silent_ns = 0;
    }

    /// Whether nothing more is to be waited for. It is asked at least every [`LOOK_NS`], right
    /// after it was looked for answers.
    pub(crate) fn is_over(&mut self, now_ns: u64, is_waiting: bool, stop: &Stop) -> bool {
        let step_ns = now_ns.saturating_sub(self.looked_ns).min(STEP_MAX_NS);
        self.looked_ns = now_ns;
        self.silent_ns = if is_waiting {
            self.silent_ns + step_ns
        } else {
            0
        };
        if stop.is_set() {
            let stopped_ns = *self.stopped_ns.get_or_insert(now_ns);
            let since_ns = now_ns.saturating_sub(stopped_ns);
            return self.silent_ns > STOPPED_PATIENCE_NS || since_ns > STOPPED_MAX_NS;
        }
        self.silent_ns > PATIENCE_NS.min(stop.silence_ns())
    }
}

/// Backpressure on a producer with a schedule: when its window, or a buffer behind it, was full. A
/// message that was due then has waited for the broker; one that was due at another time and is
/// late was kept by the generator itself.
#[derive(Debug, Default)]
pub(crate) struct Backpressure {
    /// There is a schedule; without one nothing is late.
    is_open: bool,
    is_full: bool,
    /// When it became full first, if what was due since then is not all sent.
    since_ns: Option<u64>,
    /// Such times that were ended by a pause of the generator. Some of what was due in them may
    /// still be to be sent.
    before: VecDeque<(u64, u64)>,
    looked_ns: u64,
}

impl Backpressure {
    /// No backpressure so far.
    pub(crate) fn new(is_open: bool) -> Backpressure {
        Backpressure {
            is_open,
            ..Backpressure::default()
        }
    }

    /// Messages can be sent.
    #[inline]
    pub(crate) fn look(&mut self, now_ns: u64) {
        if self.is_open {
            self.look_closely(now_ns);
            self.is_full = false;
        }
    }

    /// Messages cannot be sent: there is backpressure.
    pub(crate) fn full(&mut self, now_ns: u64) {
        if self.is_open {
            self.look_closely(now_ns);
            self.is_full = true;
            self.since_ns.get_or_insert(now_ns);
        }
    }

    /// Nothing is due: all that has waited is sent.
    #[inline]
    pub(crate) fn caught_up(&mut self) {
        self.is_full = false;
        self.since_ns = None;
        self.before.clear();
    }

    /// Whether messages that became due under backpressure are still being sent.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.since_ns.is_some()
    }

    /// Whether there was backpressure when a message was due. Messages come in the order in which
    /// they are due.
    #[inline]
    pub(crate) fn waited(&mut self, intended_ns: u64) -> bool {
        match self.since_ns {
            None if self.before.is_empty() => false,
            Some(since_ns) if intended_ns >= since_ns => true,
            _ => self.waited_before(intended_ns),
        }
    }

    fn waited_before(&mut self, intended_ns: u64) -> bool {
        while let Some((_, end_ns)) = self.before.front()
            && *end_ns <= intended_ns
        {
            self.before.pop_front();
        }
        let first = self.before.front();
        first.is_some_and(|(since_ns, _)| *since_ns <= intended_ns)
    }

    /// Ends the time of backpressure if the generator has paused since messages can be sent again.
    #[inline]
    fn look_closely(&mut self, now_ns: u64) {
        let paused = now_ns.saturating_sub(self.looked_ns) > PAUSE_NS;
        if paused
            && !self.is_full
            && let Some(since_ns) = self.since_ns.take()
        {
            self.before.push_back((since_ns, self.looked_ns));
        }
        self.looked_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1_000 * MS;

    #[test]
    fn only_silence_that_was_listened_to_counts() {
        let mut patience = Patience::new(0);
        let mut now_ns = 0;
        let (goes_on, stopped) = (Stop::default(), Stop::default());
        stopped.set();
        let mut quiet = |patience: &mut Patience, for_ns: u64, stop: &Stop| {
            let end_ns = now_ns + for_ns;
            while now_ns < end_ns {
                now_ns += LOOK_NS;
                if patience.is_over(now_ns, true, stop) {
                    return true;
                }
            }
            false
        };
        assert!(!quiet(&mut patience, 29 * SECOND, &goes_on));
        patience.moved();
        assert!(!quiet(&mut patience, 29 * SECOND, &goes_on));
        assert!(quiet(&mut patience, 2 * SECOND, &goes_on), "nothing moves");
        patience.moved();
        assert!(!quiet(&mut patience, SECOND, &stopped));
        assert!(quiet(&mut patience, 2 * SECOND, &stopped), "it was stopped");
        patience.moved();
        assert!(!quiet(&mut patience, 3 * SECOND, &goes_on));
        goes_on.give_up_after(Duration::from_secs(3));
        assert!(
            quiet(&mut patience, SECOND, &goes_on),
            "nobody waits longer"
        );
        let goes_on = Stop::default();
        // Nothing is waited for.
        let mut patience = Patience::new(0);
        for second in 0..100 {
            assert!(!patience.is_over(second * SECOND, false, &goes_on));
        }
        // The generator itself was asleep for a minute.
        assert!(!patience.is_over(200 * SECOND, true, &goes_on));
    }

    #[test]
    fn a_broker_that_leaves_something_unanswered_is_told_of() {
        let url: Url = "nsq://there:4150".parse().unwrap();
        let stop = Stop::default();
        assert!(answered(true, &url, &stop).is_ok());
        let error = answered(false, &url, &stop).unwrap_err().to_string();
        assert!(error.ends_with("it has answered nothing for 30 seconds"));
        stop.set();
        assert!(answered(false, &url, &stop).is_ok());
    }

    #[test]
    fn who_stops_does_not_wait_for_all_answers() {
        let mut patience = Patience::new(0);
        let stop = Stop::default();
        stop.set();
        let over = (0..1_000).find(|look| {
            patience.moved();
            patience.is_over(look * LOOK_NS, true, &stop)
        });
        assert_eq!(over, Some(101));
    }

    #[test]
    fn a_pause_of_the_generator_is_not_the_brokers() {
        // Sent without a pause until 10 ms; then the generator sleeps until 110 ms, and finds the
        // window full after the first messages.
        let mut backpressure = Backpressure::new(true);
        backpressure.look(10 * MS);
        backpressure.caught_up();
        backpressure.look(110 * MS);
        assert!(!backpressure.waited(11 * MS), "there was room");
        backpressure.full(110 * MS);
        backpressure.look(112 * MS);
        assert!(
            !backpressure.waited(50 * MS),
            "there was room when it was due"
        );
        assert!(backpressure.waited(111 * MS), "there was none");
        backpressure.full(112 * MS + 1);
        backpressure.look(113 * MS);
        assert!(!backpressure.waited(109 * MS));
        assert!(
            backpressure.waited(112 * MS),
            "what has piled up was not sent"
        );
        backpressure.caught_up();
        assert!(!backpressure.waited(114 * MS));
    }

    #[test]
    fn a_pause_while_it_catches_up_is_told_apart() {
        let mut backpressure = Backpressure::new(true);
        backpressure.full(10 * MS);
        backpressure.look(100 * MS);
        assert!(backpressure.waited(10 * MS));
        // It sleeps before it has sent what has piled up.
        backpressure.look(150 * MS);
        assert!(backpressure.waited(99 * MS), "the broker's");
        assert!(!backpressure.waited(101 * MS), "the generator's");
        backpressure.full(151 * MS);
        backpressure.look(160 * MS);
        assert!(!backpressure.waited(149 * MS));
        assert!(backpressure.waited(155 * MS));
    }

    #[test]
    fn without_a_schedule_nothing_waits() {
        let mut backpressure = Backpressure::new(false);
        backpressure.full(5);
        assert!(!backpressure.waited(7));
    }
}
