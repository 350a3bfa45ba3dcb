//! churn: a client opens a connection, or a channel, for each message. Most round trips are then
//! spent on opening and closing.

use std::collections::{BTreeMap, VecDeque};

use cloverleaf_telemetry::{Protocol, Snapshot};

use crate::Client;
use crate::advice::Side;
use crate::finding::{Confidence, Measure, Prediction};
use crate::rules::given_up::{GivenUpTotals, GivenUps, RoundTrips};
use crate::rules::rounds::RTT_SLACK;
use crate::rules::{ConnectionView, EVENTS_MIN, GAIN_MIN, LONG_US, Sign, WAIT_US_MIN};
use crate::templates::TEMPLATES;

/// The window of closed connections, in microseconds.
const WINDOW_US: u64 = 16_000_000;

/// Minimum connections of one client that were closed within the window.
const CLOSED_MIN: u64 = 20;

/// Maximum mean of messages per connection.
const MESSAGES_MAX: f64 = 3.0;

/// An HTTP client may be a script that runs once per message and does other work. It has to spend
/// at least this share of the time on connections.
const HTTP_SHARE_MIN: f64 = 0.25;

/// Maximum clients whose closed connections are kept: those that closed one last.
const CLIENTS_MAX: usize = 2048;

/// Maximum connections kept that were given up, of all clients together: half a megabyte.
const GIVEN_UP_MAX: usize = 1024;

/// Before the broker sees a connection, TCP's handshake has taken one and a half round trips, and
/// its end is seen half a round trip later than it was sent.
const UNSEEN_ROUND_TRIPS: f64 = 2.0;

/// Maximum round trips of a TLS handshake, whose end the broker sees.
const TLS_ROUND_TRIPS: f64 = 2.0;

/// Upper limit for each figure of a connection, so that sums cannot overflow.
pub(super) const SANE_MAX: u64 = 1 << 40;

/// Sums over closed connections of a client.
#[derive(Debug, Clone, Copy, Default)]
struct ClosedConnectionSums {
    at_us: u64,
    count: u64,
    requests: u64,
    publishes: u64,
    messages: u64,
    lived_us: u64,
    abandoned: u64,
}

impl ClosedConnectionSums {
    fn add(&mut self, other: &ClosedConnectionSums) {
        self.count += other.count;
        self.requests += other.requests;
        self.publishes += other.publishes;
        self.messages += other.messages;
        self.lived_us += other.lived_us;
        self.abandoned += other.abandoned;
    }
}

/// Recently closed connections, by client.
#[derive(Debug, Default)]
pub(crate) struct ClosedConnections {
    seen_to: u64,
    clients: BTreeMap<Client, ClosedByClient>,
}

/// A client's closed connections.
#[derive(Debug, Default)]
struct ClosedByClient {
    closed: VecDeque<ClosedConnectionSums>,
    /// The closed connections that the client gave up.
    given_up: GivenUps,
    /// The minimum round trip of its connections, in microseconds, from observations while they
    /// were open or from right after accept; 0 if unknown.
    rtt_us: u32,
}

impl ClosedByClient {
    fn note_rtt(&mut self, rtt_us: u32) {
        self.rtt_us = match (self.rtt_us, rtt_us) {
            (0, rtt_us) => rtt_us,
            (known, 0) => known,
            (known, rtt_us) => known.min(rtt_us),
        };
    }
}

impl ClosedConnections {
    /// Adds the connections that were closed since the last observation; `way` returns the round
    /// trips of one.
    pub(crate) fn observe(&mut self, snapshot: &Snapshot, way: impl Fn(u64) -> RoundTrips) {
        let now_us = snapshot.taken_us;
        // They are listed in the order in which they were closed, so those up to the last one of
        // the observation before are known. In the first observation all are old.
        let is_first = self.seen_to == 0;
        let known = snapshot.closed.iter().rposition(|it| it.id == self.seen_to);
        let new = known.map_or(0, |known| known + 1);
        self.seen_to = snapshot.closed.last().map_or(u64::MAX, |last| last.id);
        if is_first {
            return;
        }
        for closed in &snapshot.closed[new..] {
            let counters = &closed.counters;
            let client = Client::of(closed.protocol, closed.peer, &closed.identity);
            let answered = counters.responses.saturating_add(counters.requests_silent);
            // A consumer that disconnects leaves a fetch open, which is no abandoned request.
            let abandoned = match counters.publishes {
                0 => 0,
                _ => counters.requests.saturating_sub(answered),
            };
            let messages = counters.messages_in.saturating_add(counters.messages_out);
            let lived_us = closed.last_active_us.saturating_sub(closed.opened_us);
            let abandoned = abandoned.min(SANE_MAX);
            let one = match messages {
                // A port scanner or a health check, without requests.
                0 => ClosedConnectionSums {
                    at_us: now_us,
                    abandoned,
                    ..ClosedConnectionSums::default()
                },
                _ => ClosedConnectionSums {
                    at_us: now_us,
                    count: 1,
                    requests: counters.requests.min(SANE_MAX),
                    publishes: counters.publishes.min(SANE_MAX),
                    messages: messages.min(SANE_MAX),
                    lived_us: lived_us.min(SANE_MAX),
                    abandoned,
                },
            };
            let of_client = self.clients.entry(client).or_default();
            of_client.note_rtt(closed.young_rtt_us);
            of_client
                .given_up
                .observe(closed, abandoned, way(closed.id), now_us);
            match of_client.closed.back_mut() {
                Some(last) if now_us < last.at_us + 1_000_000 => last.add(&one),
                _ => of_client.closed.push_back(one),
            }
        }
        let oldest_us = now_us.saturating_sub(LONG_US);
        self.clients.retain(|_, of_client| {
            of_client.closed.retain(|it| it.at_us >= oldest_us);
            of_client.closed.shrink_to(2 * of_client.closed.len());
            of_client.given_up.forget_older(oldest_us);
            !of_client.closed.is_empty()
        });
        while self.clients.len() > CLIENTS_MAX {
            let of_last = |(_, of_client): &(&Client, &ClosedByClient)| {
                of_client.closed.back().map_or(0, |last| last.at_us)
            };
            let oldest = self.clients.iter().min_by_key(of_last);
            let Some(oldest) = oldest.map(|(client, _)| client.clone()) else {
                break;
            };
            self.clients.remove(&oldest);
        }
        let given_up = self.clients.values().map(|it| it.given_up.len());
        for _ in GIVEN_UP_MAX..given_up.sum() {
            let oldest_us = |it: &&mut ClosedByClient| it.given_up.oldest_us().unwrap_or(u64::MAX);
            if let Some(of_client) = self.clients.values_mut().min_by_key(oldest_us) {
                of_client.given_up.forget_oldest();
            }
        }
    }

    /// A connection of this client is open, and has this round trip, in microseconds.
    pub(crate) fn note_rtt(&mut self, client: &Client, rtt_us: u32) {
        if rtt_us > 0
            && !self.clients.is_empty()
            && let Some(of_client) = self.clients.get_mut(client)
        {
            of_client.note_rtt(rtt_us);
        }
    }

    /// Requests of this client that it abandoned before the answer, within the window.
    pub(crate) fn abandoned(&self, client: &Client) -> u64 {
        let closed = self.clients.get(client).map(|it| it.closed.iter());
        closed.map_or(0, |closed| closed.map(|it| it.abandoned).sum())
    }

    /// Clients that gave up connections within the last minute, each with its round trip in
    /// microseconds; 0 if unknown.
    pub(crate) fn given_up(
        &self,
        now_us: u64,
    ) -> impl Iterator<Item = (&Client, GivenUpTotals, u32)> {
        self.clients.iter().filter_map(move |(client, of_client)| {
            let wait_us = RTT_SLACK * f64::from(of_client.rtt_us);
            let sum = of_client.given_up.sum(now_us, wait_us as u64)?;
            Some((client, sum, of_client.rtt_us))
        })
    }

    #[cfg(test)]
    fn len_bytes(&self) -> usize {
        let of_clients = self.clients.iter().map(|(client, of_client)| {
            let texts = [&client.library, &client.version, &client.client_id];
            let texts = texts.iter().map(|text| text.len()).sum::<usize>() + client.platform.len();
            let closed = of_client.closed.capacity() * size_of::<ClosedConnectionSums>();
            // A tree's nodes are at least half full.
            let node = 2 * size_of::<(Client, ClosedByClient)>();
            node + texts + closed + of_client.given_up.len_bytes()
        });
        of_clients.sum()
    }

    fn of_window(&self, now_us: u64) -> impl Iterator<Item = (&Client, ClosedConnectionSums, u32)> {
        let oldest_us = now_us.saturating_sub(WINDOW_US);
        self.clients.iter().map(move |(client, of_client)| {
            let mut sum = ClosedConnectionSums::default();
            let closed = of_client.closed.iter();
            closed
                .filter(|it| it.at_us >= oldest_us)
                .for_each(|it| sum.add(it));
            (client, sum, of_client.rtt_us)
        })
    }
}

/// Clients that open a connection for every message or few.
pub(crate) fn connections(closed: &ClosedConnections, now_us: u64) -> Vec<(Client, Sign)> {
    let seen = closed.of_window(now_us);
    let seen = seen.filter_map(|(client, sum, rtt_us)| {
        let sign = connection_sign(client.protocol, &sum, f64::from(rtt_us))?;
        Some((client.clone(), sign))
    });
    seen.collect()
}

fn connection_sign(protocol: Protocol, sum: &ClosedConnectionSums, rtt_us: f64) -> Option<Sign> {
    let count = sum.count as f64;
    let messages = sum.messages as f64 / count.max(1.0);
    let lived_us = sum.lived_us as f64 / count.max(1.0);
    if sum.count < CLOSED_MIN || messages > MESSAGES_MAX {
        return None;
    }
    // The last request is seen on arrival, so it adds no round trip.
    let round_trips =
        sum.requests as f64 / count - 1.0 + f64::from(protocol.traits().greeting_round_trips);
    let is_rtt_known = rtt_us > 0.0;
    let rtt_us = if is_rtt_known {
        rtt_us
    } else {
        lived_us / round_trips.max(1.0)
    };
    // Several messages of a connection take a round trip each, or come in one request.
    let is_begun = protocol.traits().begins_with_request;
    let work = if is_begun {
        // Requests count here, because each may have many messages.

        (sum.publishes as f64 / count.max(1.0)).max(1.0)
    } else {
        messages.max(1.0)
    };
    let seen_us = if is_begun {
        // Only a TLS handshake can be saved. The rest of the connection's life may be idle.

        lived_us.min(TLS_ROUND_TRIPS * rtt_us)
    } else {
        lived_us
    };
    let now_us = (seen_us + UNSEEN_ROUND_TRIPS * rtt_us) / work;
    let after_us = rtt_us;
    let gain = now_us / after_us.max(1.0);
    // The first bytes are the message: the cost of opening a connection is not seen but computed.
    let lost_us = if is_begun {
        now_us - after_us
    } else {
        lived_us
    };
    if gain < GAIN_MIN || lost_us < WAIT_US_MIN {
        return None;
    }
    let share = count * work * now_us / WINDOW_US as f64;
    if is_begun && (!is_rtt_known || sum.publishes == 0 || share < HTTP_SHARE_MIN) {
        return None;
    }
    let prediction = Prediction::new(Measure::LatencyUs, now_us, after_us);
    let numbers = [
        ("closed", count),
        ("messages_per_connection", messages),
        ("lived_us", seen_us),
        ("connection_us", now_us * work),
        ("rtt_us", rtt_us),
    ];
    let template = &TEMPLATES.churn_of_connections;
    let sign = Sign::new(template, prediction, WINDOW_US, numbers);
    let sign = Sign {
        side: side_of(sum.publishes),
        ..sign
    };
    if !is_begun {
        return Some(sign);
    }
    let sign = sign.with("connecting_share", share);
    Some(Sign {
        // Medium, because the cost is computed and a proxy looks the same.
        confidence: Confidence::Medium,
        ..sign.with("shown_share", share.min(1.0))
    })
}

/// A connection that opens channels all the time.
pub(crate) fn channels(view: &ConnectionView<'_>) -> Option<Sign> {
    let counters = &view.short.flow.counters;
    let channels = counters.channels_opened;
    let messages = counters.messages_in + counters.messages_out;
    let work = counters.publishes.max(counters.messages_out);
    let rtt_us = view.rtt_us()?;
    if !view.protocol.traits().has_channels
        || channels < EVENTS_MIN
        || messages == 0
        || messages as f64 > MESSAGES_MAX * channels as f64
    {
        return None;
    }
    let round_trips = counters.requests as f64 / channels as f64;
    let gain = counters.requests as f64 / work.max(1) as f64;
    let rate = view.short.per_second(messages);
    if gain < GAIN_MIN || rtt_us * (gain - 1.0) < WAIT_US_MIN {
        return None;
    }
    let measure = Measure::ConnectionMessagesPerSecond;
    let prediction = Prediction::new(measure, rate, rate * gain);
    let numbers = [
        ("channels_opened", channels as f64),
        ("messages_per_channel", messages as f64 / channels as f64),
        ("rtt_us", rtt_us),
        ("requests", round_trips),
        ("left", round_trips / gain),
    ];
    let template = &TEMPLATES.churn_of_channels;
    Some(Sign {
        side: side_of(counters.publishes),
        ..Sign::new(template, prediction, view.short.span_us, numbers)
    })
}

/// The side of a client with this many publishes.
fn side_of(publishes: u64) -> Side {
    if publishes == 0 {
        Side::Consumer
    } else {
        Side::Producer
    }
}

#[cfg(test)]
mod tests {
    use cloverleaf_telemetry::{ClosedConnection, Counters, HistogramSnapshot, Identity};

    use super::*;

    const S: u64 = 1_000_000;

    /// A connection that the client of this number gave up.
    fn given_up(id: u64, client: u64, now_us: u64) -> ClosedConnection {
        ClosedConnection {
            id,
            protocol: Protocol::Kafka,
            peer: ([10, 0, 0, 1], 1).into(),
            identity: Identity {
                library: "l".repeat(128),
                version: "v".repeat(128),
                client_id: format!("{client:0>128}"),
                platform: "p".repeat(128),
            },
            opened_us: now_us - S,
            last_active_us: now_us,
            counters: Counters {
                bytes_in: 1 << 20,
                published_bytes: 1 << 20,
                messages_in: 1,
                ..Counters::default()
            },
            is_inside_request: true,
            young_rtt_us: 0,
            request_gap_us: HistogramSnapshot::default(),
            receiving_us: S,
            record_ages: 1,
            record_ages_us: S,
        }
    }

    #[test]
    fn strangers_do_not_choose_how_much_is_remembered() {
        // Each observation has as many connections as the registry keeps, of this many clients in
        // turn.
        for (clients, looks) in [(1, 64), (256, 64), (u64::MAX, 16)] {
            let mut closed = ClosedConnections::default();
            let mut bytes_max = 0;
            for look in 1..=looks {
                let taken_us = 100 * S + look * S;
                let ids = look * 256..(look + 1) * 256;
                let snapshot = Snapshot {
                    taken_us,
                    closed: ids.map(|id| given_up(id, id % clients, taken_us)).collect(),
                    ..Snapshot::default()
                };
                closed.observe(&snapshot, |_| RoundTrips::default());
                bytes_max = bytes_max.max(closed.len_bytes());
            }
            let given_up = closed.clients.values().map(|it| it.given_up.len());
            let (given_up, most): (usize, _) = (given_up.clone().sum(), given_up.max());
            assert!(given_up <= 1024, "{given_up}");
            assert!(most <= Some(16));
            assert!(bytes_max < 8 << 20, "{clients} clients: {bytes_max}");
            // The latest ones are kept.
            let oldest_us = closed.clients.values().map(|it| it.given_up.oldest_us());
            let oldest_us = oldest_us.flatten().min();
            assert!(
                oldest_us >= Some((97 + looks) * S),
                "{clients} clients: {oldest_us:?}"
            );
        }
    }
}
