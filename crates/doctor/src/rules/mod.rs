//! The rules: each examines a connection or a queue and returns a sign, with numbers.
//!
//! A rule returns a sign only if the cost is real: a wait of [`WAIT_US_MIN`] per request, and an
//! expected gain of [`GAIN_MIN`]. It returns none for a client that is idle, steady, bursty, or
//! limited by its own work. Rules know nothing of each other; `causes` lists which rule hides
//! which.

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

/// Minimum wait per request for a sign, in microseconds.
pub(crate) const WAIT_US_MIN: f64 = 1_000.0;

/// Minimum gain for a sign.
pub(crate) const GAIN_MIN: f64 = 1.3;

/// Window in microseconds of rules about events that happen many times a second.
pub(crate) const SHORT_US: u64 = 6_000_000;

/// Window in microseconds of rules about rare events.
pub(crate) const LONG_US: u64 = 60_000_000;

/// Minimum events in a window, fewer of which may be chance.
pub(crate) const EVENTS_MIN: u64 = 10;

/// A kind of fault. The names are stable: scripts, documents and advice use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A producer that waits for each answer before it sends the next request.
    SyncProduce,
    /// One consumer has messages that others could process.
    Hoarding,
    /// Consumers have so small a window that they wait for the network.
    WindowTooSmall,
    /// A producer that holds messages back to batch them, although no others come.
    Linger,
    /// Nagle's algorithm delays the end of each request.
    Nagle,
    /// Work takes longer than the acknowledgement deadline.
    AckDeadline,
    /// Fewer partitions than consumers, or one that has most of the messages.
    Partitions,
    /// One connection is limited by its requests in flight.
    OneConnection,
    /// So many requests in flight that they time out in the queue.
    TooManyInFlight,
    /// Many requests with very few bytes each.
    TinyBatches,
    /// A connection or a channel for every message.
    Churn,
    /// Messages are fetched by a timer, not when they come.
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

    /// The rule with this name.
    pub fn named(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Values of variables in advice, by the names in `advice/README.md`.
pub(crate) type Variables = BTreeMap<&'static str, f64>;

/// A fault that a rule sees at one place in one step: numbers, and the template with the sentences
/// for them.
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
    /// Topic and subscription, if it concerns one.
    pub(crate) place: Option<(String, String)>,
}

impl Sign {
    /// A sign with numbers measured within `window_us`. The prediction adds the numbers `now` and
    /// `after`.
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

    /// Adds a number that not every sign of this template has.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Option<f64>>) -> Sign {
        self.numbers.extend(value.into().map(|value| (name, value)));
        self
    }

    /// Adds a condition: the number 1 if it holds, otherwise none.
    pub(crate) fn when(self, name: &'static str, is_so: bool) -> Sign {
        self.with(name, is_so.then_some(1.0))
    }

    /// Adds values for the advice.
    pub(crate) fn advise(mut self, variables: impl Into<Variables>) -> Sign {
        self.variables.append(&mut variables.into());
        self
    }

    /// Sets topic and subscription.
    pub(crate) fn at(self, place: Option<(String, String)>) -> Sign {
        Sign { place, ..self }
    }
}

/// The prediction of a change, if its gain is at least [`GAIN_MIN`].
pub(crate) fn worthwhile(measure: Measure, now: f64, after: f64) -> Option<Prediction> {
    let prediction = Prediction::new(measure, now, after);
    (prediction.gain >= GAIN_MIN).then_some(prediction)
}

/// A connection as the rules see it.
pub(crate) struct ConnectionView<'a> {
    /// Number of the connection.
    pub(crate) connection: u64,
    pub(crate) protocol: Protocol,
    pub(crate) history: &'a History,
    pub(crate) gauges: &'a Gauges,
    /// Counters since the connection was opened.
    pub(crate) totals: &'a Counters,
    pub(crate) now_us: u64,
    /// The window of the last [`SHORT_US`].
    pub(crate) short: Window,
    /// Number of its consumers, of all queues.
    pub(crate) consumers: u64,
    /// Number of its client's connections that publish, if this one does.
    pub(crate) publishers: u64,
    /// The queue that it consumes from, if it consumes from exactly one.
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

    /// The minimum round trip to the client, in microseconds, if the kernel reported one.
    pub(crate) fn rtt_us(&self) -> Option<f64> {
        (self.history.rtt_us > 0).then_some(f64::from(self.history.rtt_us))
    }

    /// Topic and subscription, if it consumes from one.
    pub(crate) fn place(&self) -> Option<(String, String)> {
        self.queue.map(QueueHistory::place)
    }

    /// The signs of all rules about single connections.
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

/// Minimum and maximum of some numbers; `None` if there are none.
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
