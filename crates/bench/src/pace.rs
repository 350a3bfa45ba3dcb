//! Backpressure and patience, the same for all clients: when a full window keeps a producer from
//! sending, and how long it waits for a broker that says nothing.

use std::collections::VecDeque;

use crate::driver::{DriverError, Stop};
use crate::url::Url;

/// How often an idle connection checks whether it is stopped.
pub(crate) const LOOK_NS: u64 = 50_000_000;
/// A broker that has not answered for this long, though messages are in flight, is given up.
/// Brokers pause for seconds when they sync or collect garbage.
const PATIENCE_NS: u64 = 30_000_000_000;
/// The same after the user has stopped the measurement.
const STOPPED_PATIENCE_NS: u64 = 2_000_000_000;
/// The maximum after the stop, even if answers come.
const STOPPED_MAX_NS: u64 = 5_000_000_000;
/// Maximum of the time between two checks that counts as silence of the broker: a generator that
/// does not run reads no answers.
const STEP_MAX_NS: u64 = 2 * LOOK_NS;
/// A generator with a backlog reads the clock more often than this, whatever the size of a request.
/// If it does not, it has paused itself.
const PAUSE_NS: u64 = 5_000_000;
/// The error text of a message whose answer is no longer waited for.
pub(crate) const UNANSWERED: &str = "no answer came";
/// The error text of a broker that is given up.
const SILENT: &str = "it has answered nothing for 30 seconds";

/// The result of a producer. Messages without an answer are an error of the broker, unless the
/// producer was stopped.
pub(crate) fn answered(has_all: bool, url: &Url, stop: &Stop) -> Result<(), DriverError> {
    if has_all || stop.is_set() {
        Ok(())
    } else {
        Err(url.gone(SILENT))
    }
}

/// How long a broker has not answered although messages were in flight.
#[derive(Debug)]
pub(crate) struct Patience {
    looked_ns: u64,
    silent_ns: u64,
    stopped_ns: Option<u64>,
}

impl Patience {
    pub(crate) fn new(now_ns: u64) -> Patience {
        Patience {
            looked_ns: now_ns,
            silent_ns: 0,
            stopped_ns: None,
        }
    }

    /// An answer came, or the broker accepted bytes after it accepted none.
    #[inline]
    pub(crate) fn moved(&mut self) {
        self.silent_ns = 0;
    }

    /// Whether the broker is to be given up. To be called at least every [`LOOK_NS`], right after
    /// answers were read.
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

/// Backpressure on a producer with a schedule: the times in which its window, or the buffer of its
/// client library, was full. A message that was due then waited for the broker. The lateness of all
/// other messages is the generator's own.
#[derive(Debug, Default)]
pub(crate) struct Backpressure {
    /// Whether there is a schedule. Without one, no message is late.
    is_open: bool,
    is_full: bool,
    /// When the window became full, until all messages that were due since then are sent.
    since_ns: Option<u64>,
    /// Earlier times of backpressure that a pause of the generator ended. Messages that were due in
    /// them may remain to be sent.
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

    /// Records that messages can be sent.
    #[inline]
    pub(crate) fn look(&mut self, now_ns: u64) {
        if self.is_open {
            self.look_closely(now_ns);
            self.is_full = false;
        }
    }

    /// Records that messages cannot be sent.
    pub(crate) fn full(&mut self, now_ns: u64) {
        if self.is_open {
            self.look_closely(now_ns);
            self.is_full = true;
            self.since_ns.get_or_insert(now_ns);
        }
    }

    /// Records that no message is due: all that waited are sent.
    #[inline]
    pub(crate) fn caught_up(&mut self) {
        self.is_full = false;
        self.since_ns = None;
        self.before.clear();
    }

    /// Whether messages that became due under backpressure remain to be sent.
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

    /// Ends the current time of backpressure if the generator has paused after messages could be
    /// sent again.
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
