//! The rules: each looks at a connection or a queue and says what it sees, with numbers.
//!
//! A rule is silent unless the cost is real: a wait of [`WAIT_US_MIN`] per request, and a gain of
//! [`GAIN_MIN`] to expect. It says nothing of a client that is idle, steady, bursty, or bound by
//! its own work. Rules know nothing of each other; which of them hides which stands in `causes`.

mod ack_deadline;
mod churn;
mod fetch_rhythm;
mod follows;
mod full_batch;
mod given_up;
mod hoarding;
mod job_groups;
mod linger;
mod link_queue;
mod nagle;
mod no_compression;
mod one_connection;
mod partitions;
mod rounds;
mod sync_produce;
mod tiny_batches;
mod too_many_in_flight;
mod window_too_small;

use std::collections::BTreeMap;
use std::fmt;

use cloverleaf_telemetry::{Counters, Gauges, Protocol};
use serde::{Deserialize, Serialize};

use crate::Client;
use crate::advice::{Picture, Side};
use crate::finding::{Confidence, Measure, Prediction};
use crate::queues::QueueHistory;
use crate::templates::{Numbers, Template};
use crate::window::{History, Window};

pub(crate) use churn::{ClosedConnections, channels, connections};
pub(crate) use given_up::RoundTrips;
pub(crate) use hoarding::ClientConsumers;

/// Below this wait per request nothing is said, in microseconds.
pub(crate) const WAIT_US_MIN: f64 = 1_000.0;

/// Below this gain nothing is said.
pub(crate) const GAIN_MIN: f64 = 1.3;

/// The window of rules about what clients do many times a second.
pub(crate) const SHORT_US: u64 = 6_000_000;

/// The window of rules about what happens now and then.
pub(crate) const LONG_US: u64 = 60_000_000;

/// Events in a window that make a rule believe what it sees.
pub(crate) const EVENTS_MIN: u64 = 10;

/// A pathology. The names are stable: they stand in scripts, pages and advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A producer that waits for each answer before it sends the next request.
    SyncProduce,
    /// Messages lie in one consumer's hands while others could work on them.
    Hoarding,
    /// Consumers may have so few messages that they wait for the network.
    WindowTooSmall,
    /// A producer that waits for company that never comes.
    Linger,
    /// Nagle's algorithm holds the end of each request back.
    Nagle,
    /// Work takes longer than a message may be held.
    AckDeadline,
    /// Fewer partitions than consumers, or one that has most of the messages.
    Partitions,
    /// One connection's requests in flight are at their limit.
    OneConnection,
    /// So many requests in flight that they time out in the queue.
    TooManyInFlight,
    /// Many requests with next to nothing in them.
    TinyBatches,
    /// A connection or a channel for every message.
    Churn,
    /// Messages are fetched by the clock, not when they come.
    FetchRhythm,
    /// A full link carries bytes that compress well.
    NoCompression,
}

impl Rule {
    /// All rules, most valuable first.
    pub const ALL: [Rule; 13] = [
        Rule::SyncProduce,
        Rule::Hoarding,
        Rule::WindowTooSmall,
        Rule::Linger,
        Rule::Nagle,
        Rule::AckDeadline,
        Rule::Partitions,
        Rule::OneConnection,
        Rule::TooManyInFlight,
        Rule::TinyBatches,
        Rule::NoCompression,
        Rule::Churn,
        Rule::FetchRhythm,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Rule::SyncProduce => "sync-produce",
            Rule::Hoarding => "hoarding",
            Rule::WindowTooSmall => "window-too-small",
            Rule::Linger => "linger",
            Rule::Nagle => "nagle",
            Rule::AckDeadline => "ack-deadline",
            Rule::Partitions => "partitions",
            Rule::OneConnection => "one-connection",
            Rule::TooManyInFlight => "too-many-in-flight",
            Rule::TinyBatches => "tiny-batches",
            Rule::Churn => "churn",
            Rule::FetchRhythm => "fetch-rhythm",
            Rule::NoCompression => "no-compression",
        }
    }

    /// The rule of that name.
    pub fn named(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Numbers that advice may name, by the names in `advice/README.md`.
pub(crate) type Variables = BTreeMap<&'static str, f64>;

/// The sign of a fault that a rule sees in one place, at one step: numbers, for which `template`
/// has the sentences.
#[derive(Debug, Clone)]
pub(crate) struct Sign {
    pub(crate) template: &'static Template,
    pub(crate) side: Side,
    pub(crate) picture: Picture,
    pub(crate) confidence: Confidence,
    pub(crate) numbers: Numbers,
    pub(crate) window_us: u64,
    pub(crate) prediction: Prediction,
    pub(crate) variables: Variables,
    /// Topic and subscription, where it is about one.
    pub(crate) place: Option<(String, String)>,
}

impl Sign {
    /// Measured within `window_us`. The prediction's numbers are `now` and `after`.
    pub(crate) fn new(
        template: &'static Template,
        prediction: Prediction,
        window_us: u64,
        numbers: impl Into<Numbers>,
    ) -> Sign {
        let mut numbers = numbers.into();
        numbers.extend([("now", prediction.now), ("after", prediction.after)]);
        Sign {
            template,
            side: template.side,
            picture: template.picture,
            confidence: template.confidence,
            numbers,
            window_us,
            prediction,
            variables: Variables::new(),
            place: None,
        }
    }

    /// The same with a number that not every such sign has.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Option<f64>>) -> Sign {
        self.numbers.extend(value.into().map(|value| (name, value)));
        self
    }

    /// The same with a fact: a number that is 1, or is not there.
    pub(crate) fn when(self, name: &'static str, is_so: bool) -> Sign {
        self.with(name, is_so.then_some(1.0))
    }

    /// The same with numbers for the advice.
    pub(crate) fn advise(mut self, variables: impl Into<Variables>) -> Sign {
        self.variables.append(&mut variables.into());
        self
    }

    /// The same about a topic and a subscription.
    pub(crate) fn at(self, place: Option<(String, String)>) -> Sign {
        Sign { place, ..self }
    }
}

/// The prediction of a change, if it is worth anybody's while.
pub(crate) fn worthwhile(measure: Measure, now: f64, after: f64) -> Option<Prediction> {
    let prediction = Prediction::new(measure, now, after);
    (prediction.gain >= GAIN_MIN).then_some(prediction)
}

/// A connection that rules look at.
pub(crate) struct ConnectionView<'a> {
    /// Its number.
    pub(crate) connection: u64,
    pub(crate) protocol: Protocol,
    pub(crate) history: &'a History,
    pub(crate) gauges: &'a Gauges,
    /// Since it was opened.
    pub(crate) totals: &'a Counters,
    pub(crate) now_us: u64,
    /// The last seconds.
    pub(crate) short: Window,
    /// Its consumers, of all queues together.
    pub(crate) consumers: u64,
    /// Connections of its client that publish, where this one does.
    pub(crate) publishers: u64,
    /// The queue that it consumes from, if that is one only.
    pub(crate) queue: Option<&'a QueueHistory>,
}

impl ConnectionView<'_> {
    pub(crate) fn client(&self) -> &Client {
        &self.history.client
    }

    /// Whether it has published in the last seconds.
    pub(crate) fn publishes(&self) -> bool {
        self.short.flow.counters.publishes > 0
    }

    /// The round trip to the client, in microseconds, if the kernel told one.
    pub(crate) fn rtt_us(&self) -> Option<f64> {
        (self.history.rtt_us > 0).then_some(f64::from(self.history.rtt_us))
    }

    /// Topic and subscription, if it consumes from one.
    pub(crate) fn place(&self) -> Option<(String, String)> {
        self.queue.map(QueueHistory::place)
    }

    /// The signs that the rules about single connections see.
    pub(crate) fn signs(&self) -> Vec<Sign> {
        let mut signs = Vec::new();
        let counters = &self.short.flow.counters;
        if self.publishes() {
            let rounds = rounds::Rounds::of(self);
            signs.extend(rounds.as_ref().and_then(|it| sync_produce::see(self, it)));
            let linger = rounds.as_ref().and_then(|it| linger::see(self, it));
            let other = linger.as_ref().map(|sign| sign.prediction.gain);
            signs.extend(linger);
            let nagle = |it| nagle::see_produce(self, it, other);
            signs.extend(rounds.as_ref().and_then(nagle));
            signs.extend(one_connection::see(self, rounds.as_ref()));
            signs.extend(tiny_batches::see(self));
            signs.extend(no_compression::see(self, rounds.as_ref()));
        }
        if counters.acks > 0 {
            signs.extend(window_too_small::see(self));
            signs.extend(nagle::see_consume(self));
        }
        if counters.deliveries > 0 || counters.timeouts > 0 || counters.acks_late > 0 {
            signs.extend(ack_deadline::see(self));
        }
        if counters.messages_out > 0 && counters.requests > counters.publishes {
            signs.extend(fetch_rhythm::see(self));
        }
        if counters.channels_opened > 0 {
            signs.extend(channels(self));
        }
        signs
    }
}

/// The least and the most of some numbers; `None` if there are none.
pub(crate) fn extremes(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().fold(None, |known, value| {
        let (least, most) = known.unwrap_or((value, value));
        Some((f64::min(least, value), f64::max(most, value)))
    })
}

pub(crate) use partitions::see as see_partitions;
pub(crate) use too_many_in_flight::{
    see as see_too_many_in_flight, see_given_up as see_too_many_given_up,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_ones_that_are_written() {
        for rule in Rule::ALL {
            assert_eq!(Rule::named(rule.name()), Some(rule));
            let json = serde_json::to_value(rule).ok();
            assert_eq!(json, Some(rule.name().into()));
        }
        assert_eq!(Rule::named("hope"), None);
    }
}
