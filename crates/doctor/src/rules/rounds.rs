//! A producer that waits for answers: what its time is made of.
//!
//! ```text
//! broker   ──answer─┐                    ┌─first byte … last byte──┐ answer
//!                   │◄────── gap ───────►│◄────── receive ────────►│◄ service ►│
//! client            └─► think, send ─────┘
//!                   gap = round trip + what the client does meanwhile (think)
//! ```
//!
//! A round begins with a publishing request that came while nothing was in flight. In-flight
//! requests as the broker counts them do not show whether a client waits: where the service is
//! short, each of a pipelining client's requests finds the one before it answered. What shows it
//! is that no request ever comes sooner after an answer than a round trip.

use crate::rules::{EVENTS_MIN, Patient};

/// How much shorter than the least round trip a gap may look: the middle of a histogram's bucket is
/// at most a sixteenth off.
const RTT_SLACK: f64 = 0.92;

/// One of so many requests may come sooner: metadata, heartbeats. Who sends by its own rhythm,
/// near to the round trip by chance, is unmasked by whatever is served late once.
const SOONER_SHARE: u64 = 200;

/// A clock's steps have the same mean period within this share, and nobody else's have.
const CLOCK_SPREAD_MAX: f64 = 5e-5;

/// Steps and rounds in each that it takes to tell.
const CLOCK_STEPS: usize = 6;
const CLOCK_STEPS_MIN: usize = 3;
const CLOCK_ROUNDS_MIN: u64 = 100;

/// Share of the publishing requests on a connection that only publishes. The others are metadata
/// and heartbeats.
const PUBLISHING_SHARE_MIN: f64 = 0.9;

/// Means over the window, times in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) count: u64,
    /// Publishing requests per round.
    pub(crate) requests: f64,
    /// Messages per publishing request.
    pub(crate) messages: f64,
    pub(crate) gap_us: f64,
    pub(crate) receive_us: f64,
    pub(crate) service_us: f64,
    pub(crate) rtt_us: f64,
    /// The largest number of requests that was ever in flight.
    pub(crate) in_flight_max: u64,
}

impl Rounds {
    /// The rounds of a connection, if every request of it waits for an answer.
    pub(crate) fn of(patient: &Patient<'_>) -> Option<Rounds> {
        let flow = &patient.short.flow;
        let (counters, histograms) = (&flow.counters, &flow.histograms);
        let gaps = &histograms.request_gap_us;
        let count = gaps.count();
        let rtt_us = patient.rtt_us()?;
        let publishes = counters.publishes as f64;
        if count < EVENTS_MIN
            || counters.requests_silent > 0
            || publishes < PUBLISHING_SHARE_MIN * counters.requests as f64
            || gaps.count_between(0, (RTT_SLACK * rtt_us) as u64) > count / SOONER_SHARE
        {
            return None;
        }
        Some(Rounds {
            count,
            requests: publishes / count as f64,
            messages: counters.messages_in as f64 / publishes,
            gap_us: gaps.mean(),
            receive_us: histograms.request_receive_us.mean(),
            service_us: histograms.service_us.mean(),
            rtt_us,
            in_flight_max: patient.gauges.requests_in_flight_max,
        })
    }

    /// Whether the requests come by a clock. What is sent by a clock is late at times, but never
    /// later and later: over a few hundred requests the period is exact, whatever the network and
    /// the broker do. Who waits for answers adds up all that happens to each of them.
    pub(crate) fn is_clockwork(patient: &Patient<'_>) -> bool {
        let mut periods = Vec::new();
        for step in patient.history.steps(CLOCK_STEPS) {
            let histograms = &step.flow.histograms;
            if histograms.request_gap_us.count() >= CLOCK_ROUNDS_MIN {
                let [gap, receive, service] = [
                    &histograms.request_gap_us,
                    &histograms.request_receive_us,
                    &histograms.service_us,
                ]
                .map(|histogram| histogram.mean());
                periods.push(gap + receive + service);
            }
        }
        let least = periods.iter().copied().fold(f64::INFINITY, f64::min);
        let most = periods.iter().copied().fold(0.0, f64::max);
        periods.len() >= CLOCK_STEPS_MIN && most - least <= CLOCK_SPREAD_MAX * least
    }

    /// Whether there is never more than one request on its way.
    pub(crate) fn is_one_by_one(&self) -> bool {
        // A few requests of other kinds come in between.
        self.requests < 1.05
    }

    /// From a request to the next.
    pub(crate) fn cycle_us(&self) -> f64 {
        self.gap_us + self.receive_us + self.service_us
    }

    /// What of it the network and the broker take.
    pub(crate) fn wait_us(&self) -> f64 {
        self.rtt_us + self.service_us
    }

    /// What of it the client takes: its own work, a timer, a library that collects.
    pub(crate) fn think_us(&self) -> f64 {
        (self.gap_us - self.rtt_us).max(0.0)
    }

    /// Messages per second.
    pub(crate) fn rate(&self) -> f64 {
        self.requests * self.messages * 1e6 / self.cycle_us().max(1.0)
    }
}
