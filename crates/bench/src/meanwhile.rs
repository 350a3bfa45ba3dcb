//! The consumers' progress while producers send, and the backlog when these end.

use serde::{Deserialize, Serialize};

use crate::sides::Standing;

/// Seconds for which producers have to send. In less time the rate of consumers is not significant.
const SENT_MIN_S: f64 = 0.1;

/// The consumers' work while producers sent, apart from their work afterwards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Meanwhile {
    /// Messages that were received from the end of the warm-up until producers were done, including
    /// those that were sent within the warm-up.
    pub messages: u64,
    /// Seconds from the end of the warm-up until producers were done.
    pub seconds: f64,
    /// Messages that had not been received then.
    pub backlog: u64,
    /// Seconds from then until the last message, in which producers were idle.
    pub drain_s: f64,
}

impl Meanwhile {
    /// Messages per second.
    pub fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }
}

/// The numbers of messages at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) at_ns: u64,
    pub(crate) stored: u64,
    pub(crate) came: u64,
}

/// Follows both sides until producers are done.
#[derive(Debug, Default)]
pub(crate) struct Overlap {
    measured_from_ns: u64,
    begun: Option<Mark>,
    ended: Option<Mark>,
}

impl Overlap {
    /// For a measurement whose warm-up ends at `measured_from_ns`. Without a warm-up no message is
    /// received before that.
    pub(crate) fn new(measured_from_ns: u64, has_warm_up: bool) -> Overlap {
        let begin = Mark {
            at_ns: measured_from_ns,
            ..Mark::default()
        };
        Overlap {
            measured_from_ns,
            begun: (!has_warm_up).then_some(begin),
            ended: None,
        }
    }

    /// Records the progress.
    pub(crate) fn look(&mut self, standing: &Standing) {
        let now = Mark {
            at_ns: standing.now_ns,
            stored: standing.stored,
            came: standing.came,
        };
        if now.at_ns >= self.measured_from_ns {
            self.begun.get_or_insert(now);
        }
        if standing.producers_are_done {
            self.ended.get_or_insert(standing.sent.unwrap_or(now));
        }
    }

    /// The result, if the last message was received at `last_ns`. `None`: producers were done too
    /// soon, or no message was received until then.
    pub(crate) fn end(&self, last_ns: u64) -> Option<Meanwhile> {
        let (begun, ended) = (self.begun?, self.ended?);
        let seconds = ended.at_ns.saturating_sub(begun.at_ns) as f64 / 1e9;
        let found = Meanwhile {
            messages: ended.came.saturating_sub(begun.came),
            seconds,
            backlog: ended.stored.saturating_sub(ended.came),
            drain_s: last_ns.saturating_sub(ended.at_ns) as f64 / 1e9,
        };
        // Without messages in that time there is no rate.
        (seconds >= SENT_MIN_S && found.messages > 0).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn standing(now_ns: u64, stored: u64, came: u64) -> Standing {
        Standing {
            now_ns,
            stored,
            came,
            ..Standing::default()
        }
    }

    #[test]
    fn what_comes_afterwards_is_apart() {
        let mut overlap = Overlap::new(SECOND, true);
        overlap.look(&standing(SECOND / 2, 900, 300));
        overlap.look(&standing(SECOND, 2_000, 800));
        overlap.look(&standing(5 * SECOND, 10_000, 4_000));
        // They were done when nobody looked.
        overlap.look(&Standing {
            producers_are_done: true,
            sent: Some(Mark {
                at_ns: 11 * SECOND,
                stored: 22_000,
                came: 8_800,
            }),
            ..standing(11 * SECOND + 7, 22_000, 8_810)
        });
        overlap.look(&standing(20 * SECOND, 22_000, 16_000));
        let found = overlap.end(27 * SECOND).unwrap_or_default();
        let expected = Meanwhile {
            messages: 8_000,
            seconds: 10.0,
            backlog: 13_200,
            drain_s: 16.0,
        };
        assert_eq!((found, found.rate()), (expected, 800.0));
    }

    #[test]
    fn nothing_is_said_of_a_moment() {
        let mut overlap = Overlap::new(SECOND, false);
        let done = |now_ns| Standing {
            producers_are_done: true,
            ..standing(now_ns, 10, 5)
        };
        overlap.look(&done(SECOND + SECOND / 50));
        assert_eq!(overlap.end(2 * SECOND), None);
    }
}
