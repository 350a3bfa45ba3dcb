//! too-many-in-flight, on the link: a publisher's requests wait for each other in the queue before
//! its uplink, and the kernel tells how long.
//!
//! ```text
//! client ──┤ request request request ack-of-our-answer ├── uplink ──► broker
//!          └──────────── round trip of our answers ───────────────┘
//! ```
//!
//! The acknowledgement of our answers stands behind the client's own data, so the round trip that
//! the kernel measures with our answers is the time that a request takes through the queue, and the
//! least round trip is what it takes when there is none. This holds for every protocol; Kafka's
//! records bear times, which tell more.
//!
//! A program may want a deep pipeline. So it takes either clients that give connections up, or a
//! whole minute in which there was never a short round trip, and then it is told with low severity.

use cloverleaf_telemetry::Protocol;

use crate::advice::{Picture, Side};
use crate::finding::{Bound, Confidence, Fact, Prediction};
use crate::rules::given_up::{GaveUp, Way};
use crate::rules::{GAIN_MIN, LONG_US, Patient, Rule, Sign, Variables};
use crate::units::{number, percent, time};

/// Requests on the link on the mean, where connections are given up, and where they are not.
const IN_FLIGHT_MIN: f64 = 50.0;
const IN_FLIGHT_CALM_MIN: f64 = 100.0;

/// How many times more there are than the rate needs.
const EXCESS_MIN: f64 = 4.0;

/// The factor above rate x round trip, and what sending takes beside: turns of threads, of Wi-Fi.
const ROOM: f64 = 2.0;
const SENDING_US: f64 = 10_000.0;

/// A round trip that jitter and late acknowledgements do not explain: so many times the least one,
/// and so long.
const GIVEN_UP_TIMES: f64 = 5.0;
const GIVEN_UP_US: f64 = 100_000.0;
const CALM_TIMES: f64 = 10.0;
const CALM_US: f64 = 250_000.0;

/// Of connections that are given up so many have to have been slow.
const SLOW_SHARE_MIN: f64 = 0.75;

/// Connections given up of which the round trip is known.
const WAYS_MIN: usize = 3;

/// Share of the time in which a request is coming in: a client that sends less has not made the
/// queue. The greetings of connections that are given up count against them.
const RECEIVING_SHARE_MIN: f64 = 0.8;
const RECEIVING_SHARE_GIVEN_UP_MIN: f64 = 0.5;

/// Whether requests are what waits: of Kafka's clients there are few, with many messages each.
pub(super) fn knows(protocol: Protocol) -> bool {
    protocol.traits().has_many_requests
}

/// A publisher that keeps its link's queue long for a minute.
pub(super) fn see(patient: &Patient<'_>) -> Option<Sign> {
    let least_us = patient.rtt_us()?;
    let rtt_us = f64::from(patient.history.rtt_of_a_minute_us()?);
    if !knows(patient.protocol) || rtt_us < CALM_US || rtt_us < CALM_TIMES * least_us {
        return None;
    }
    let window = patient.history.window(patient.now_us, LONG_US);
    let counters = &window.flow.counters;
    let receiving_us = window.flow.histograms.request_receive_us.sum() as f64;
    let share = receiving_us / window.span_us as f64;
    // A client that wants no confirms knows nothing of what is on its way. Where more goes to the
    // client than comes, the queue may be on that way.
    if share < RECEIVING_SHARE_MIN
        || counters.requests_silent > 0
        || counters.bytes_out > counters.bytes_in
    {
        return None;
    }
    let queue = LinkQueue {
        rate: window.per_second(counters.publishes),
        messages: counters.messages_in as f64 / counters.publishes.max(1) as f64,
        rtt_us,
        least_us,
    };
    if queue.in_flight() < IN_FLIGHT_CALM_MIN {
        return None;
    }
    let fact = Fact::new(
        "receiving_share",
        share,
        format!(
            "for {} of the last minute a request was on its way in, and no round trip was short",
            percent(share)
        ),
    );
    let cause = "The producer has so many requests on their way that each waits for the others \
                 before the link.";
    let mut sign = queue.sign(cause, window.span_us, fact)?;
    sign.prediction.may_be_meant = true;
    sign.unseen.push(
        "whether anybody waits for the answers: a bulk load may well take its time".to_owned(),
    );
    Some(sign)
}

/// Clients that give up connections while their requests wait before the link.
pub(super) fn see_given_up(gave_up: &GaveUp) -> Option<Sign> {
    let ways = &gave_up.ways;
    let is_slow = |way: &&Way| {
        let longest_us = f64::from(way.longest_us);
        longest_us >= GIVEN_UP_US && longest_us >= GIVEN_UP_TIMES * f64::from(way.least_us)
    };
    let slow = ways.iter().filter(is_slow).count() as f64;
    // A queue that is there when a connection begins is another's.
    if ways.len() < WAYS_MIN
        || slow < SLOW_SHARE_MIN * ways.len() as f64
        || gave_up.receiving_share < RECEIVING_SHARE_GIVEN_UP_MIN
    {
        return None;
    }
    let mean_us = |of: fn(&Way) -> u32| {
        ways.iter().map(|way| f64::from(of(way))).sum::<f64>() / ways.len() as f64
    };
    let messages = gave_up.messages as f64 / gave_up.publishes.max(1) as f64;
    let queue = LinkQueue {
        rate: gave_up.rate / messages.max(1.0),
        messages,
        rtt_us: mean_us(|way| way.longest_us),
        least_us: mean_us(|way| way.least_us),
    };
    let connections = gave_up.connections as f64;
    let fact = Fact::new(
        "given_up",
        connections,
        format!(
            "{} connections were closed with a request half sent or without an answer, one every \
             {}",
            number(connections),
            time(gave_up.every_us)
        ),
    );
    let cause = "The producer has so many requests on their way that each waits for the others \
                 before the link, and gives up connections before all are sent and answered.";
    let mut sign = queue.sign(cause, LONG_US, fact)?;
    sign.unseen.push(
        "after how long the client gives up; whether it was killed, or the link failed, again and \
         again instead, or it never waits for the last answers"
            .to_owned(),
    );
    Some(sign)
}

/// A queue before a link. Times in microseconds, requests per second.
struct LinkQueue {
    rate: f64,
    /// In a request.
    messages: f64,
    rtt_us: f64,
    least_us: f64,
}

impl LinkQueue {
    /// Requests on their way, by Little's law.
    fn in_flight(&self) -> f64 {
        self.rate * self.rtt_us / 1e6
    }

    fn sign(&self, cause: &str, window_us: u64, fact: Fact) -> Option<Sign> {
        let in_flight = self.in_flight();
        let alone_us = self.least_us + SENDING_US;
        let needed = (self.rate * alone_us / 1e6 * ROOM).ceil().max(1.0);
        if in_flight < IN_FLIGHT_MIN || in_flight < EXCESS_MIN * needed {
            return None;
        }
        let after_us = (needed * 1e6 / self.rate).max(alone_us);
        let arithmetic = format!(
            "now {} on the link at {}/s = {} for each; with {} at the same rate {}",
            number(in_flight),
            number(self.rate),
            time(self.rtt_us),
            number(needed),
            time(after_us)
        );
        let prediction = Prediction::of_time(self.rtt_us, after_us, arithmetic);
        // The queue may be another's, who shares the link.
        let prediction = prediction.bounded(Bound::AtMost);
        if prediction.gain < GAIN_MIN {
            return None;
        }
        let evidence = vec![
            Fact::new(
                "rtt_us",
                self.rtt_us,
                format!(
                    "a round trip takes {}; {} when nothing is before it",
                    time(self.rtt_us),
                    time(self.least_us)
                ),
            ),
            Fact::new(
                "in_flight",
                in_flight,
                format!(
                    "{} requests/s came, so {} were on the link at a time",
                    number(self.rate),
                    number(in_flight)
                ),
            ),
            fact,
        ];
        Some(Sign {
            picture: Picture::Usual,
            rule: Rule::TooManyInFlight,
            side: Side::Producer,
            confidence: Confidence::Medium,
            cause: cause.to_owned(),
            evidence,
            window_us,
            prediction,
            unseen: vec![
                "how many more wait in the client; whether others fill the same link, or what \
                 other connections get fills the way back, or the way has become longer"
                    .to_owned(),
            ],
            variables: Variables::from([
                ("in_flight", needed),
                ("messages", (needed * self.messages).ceil()),
            ]),
            place: None,
        })
    }
}
