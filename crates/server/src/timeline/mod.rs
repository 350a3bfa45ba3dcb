//! The timeline: combines the records that telemetry keeps of connections and the broker keeps of
//! consumers. A lane is the record of one consumer or connection.

pub mod types;

use std::collections::HashMap;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use cloverleaf_broker::{ConsumerDeliveries, DeliveryEnd, DeliverySpan, Subscription, Topic};
use cloverleaf_telemetry::{
    Exchange, ExchangeKind, ExchangesSnapshot, KnownConnection, pieces_per_second_max,
};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::admin::topics::find;
use crate::admin::{Context, QueryResult, Refused};
use crate::context::ServerContext;
use crate::fronts::GroupMember;
use crate::timeline::types::{
    ExchangeLane, ExchangePiece, HoldLane, HoldOutcome, HoldPiece, LaneOwner, SubscriptionTimeline,
    Timeline, TopicTimeline,
};

/// Older events are not shown: their memory is needed for newer ones.
const LAST_MAX: Duration = Duration::from_secs(15 * 60);
/// The time shown by default.
const LAST_DEFAULT: Duration = Duration::from_secs(30);
/// How often idle lanes free their memory.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum lanes of a kind, per topic or subscription, in one answer: those with the most events.
const LANES_MAX: usize = 200;
/// Maximum topics in one answer.
const TOPICS_MAX: usize = 32;
/// Maximum offsets whose earlier deliveries are looked up.
const EARLIER_MAX: usize = 100_000;

/// The topics, the subscriptions and the time span to show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimelineQuery {
    /// Names of topics.
    pub topics: Vec<String>,
    /// Only these subscriptions, or consumer groups; empty: all.
    pub subscriptions: Vec<String>,
    /// The time span, which ends now; `None`: 30 seconds.
    pub last: Option<Duration>,
}

/// `GET /api/timeline?topic=T&topic=U&subscription=S&last=SECONDS`
pub(crate) async fn timeline(
    State(context): Context,
    pairs: QueryResult<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Refused> {
    let Query(pairs) = pairs?;
    let mut query = TimelineQuery::default();
    for (key, value) in pairs {
        match key.as_str() {
            "topic" => query.topics.push(value),
            "subscription" => query.subscriptions.push(value),
            "last" => {
                let seconds = value.parse().ok().filter(|seconds| *seconds > 0.0);
                let last = seconds.and_then(|it| Duration::try_from_secs_f64(it).ok());
                let why = || Refused::bad_request("last is a number of seconds");
                query.last = Some(last.ok_or_else(why)?);
            }
            _ => {
                let why = format!("unknown: {key}; there are topic, subscription and last");
                return Err(Refused::bad_request(why));
            }
        }
    }
    // This takes long with many lanes, so it runs on another thread and other requests are answered
    // meanwhile.
    let answer = spawn_blocking(move || {
        let timeline = gather(&context, &query)?;
        serde_json::to_vec(&timeline).map_err(failed)
    });
    let json = answer.await.map_err(failed)??;
    Ok(([(header::CONTENT_TYPE, "application/json")], json))
}

fn failed(why: impl ToString) -> Refused {
    Refused(StatusCode::INTERNAL_SERVER_ERROR, why.to_string())
}

/// Frees the memory of idle consumers' and connections' lanes. Runs until the broker drains.
pub(crate) async fn run(context: std::sync::Arc<ServerContext>) {
    let mut ticks = interval(FORGET_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = context.drained() => return,
        }
        let kept_us = micros(LAST_MAX);
        let before_us = context.now_us().saturating_sub(kept_us);
        context.registry.forget_exchanges(before_us);
        let before_us = context.broker.now_us().saturating_sub(kept_us);
        context.broker.forget_holds(before_us);
    }
}

/// Gathers the answer to a query.
pub(crate) fn gather(context: &ServerContext, query: &TimelineQuery) -> Result<Timeline, Refused> {
    if query.topics.is_empty() || query.topics.len() > TOPICS_MAX {
        let why = format!("name 1 to {TOPICS_MAX} topics: topic=NAME");
        return Err(Refused::bad_request(why));
    }
    let mut topics = Vec::with_capacity(query.topics.len());
    for name in &query.topics {
        topics.push(find(context, name)?);
    }
    check_subscriptions(context, query, &topics)?;
    let last = query.last.unwrap_or(LAST_DEFAULT).min(LAST_MAX);
    let until_us = context.broker.now_us();
    let window = TimelineWindow {
        from_us: until_us.saturating_sub(micros(last)),
        // Telemetry has a clock of its own.
        offset_us: until_us.saturating_sub(context.now_us()),
    };
    let mut notes = Vec::new();
    if query.last.is_some_and(|last| last > LAST_MAX) {
        let minutes = LAST_MAX.as_secs() / 60;
        notes.push(format!(
            "Nothing is known from before the last {minutes} minutes."
        ));
    }
    let since_us = window.from_us.saturating_sub(window.offset_us);
    let connections = context.registry.exchanges(since_us);
    let gathering = TimelineGatherer {
        context,
        query,
        window,
        connections: &connections,
    };
    let topics: Vec<TopicTimeline> = topics
        .iter()
        .map(|topic| gathering.topic(topic, &mut notes))
        .collect();
    Ok(Timeline {
        from_us: window.from_us,
        until_us,
        topics,
        pieces_per_second_max: pieces_per_second_max(),
        notes,
    })
}

fn check_subscriptions(
    context: &ServerContext,
    query: &TimelineQuery,
    topics: &[std::sync::Arc<Topic>],
) -> Result<(), Refused> {
    for name in &query.subscriptions {
        let is_known = topics
            .iter()
            .any(|topic| topic.subscription(name).is_some())
            || group(context, name).is_some();
        if !is_known {
            let why = format!("there is no subscription and no consumer group {name} there");
            return Err(Refused::not_found(why));
        }
    }
    Ok(())
}

/// The members of a consumer group that reads by offset, without a subscription.
fn group(context: &ServerContext, name: &str) -> Option<Vec<GroupMember>> {
    context
        .fronts
        .iter()
        .find_map(|front| front.group_members(name))
}

#[derive(Clone, Copy)]
struct TimelineWindow {
    from_us: u64,
    /// Microseconds to add to a time of telemetry to get the broker's.
    offset_us: u64,
}

struct TimelineGatherer<'a> {
    context: &'a ServerContext,
    query: &'a TimelineQuery,
    window: TimelineWindow,
    connections: &'a [(KnownConnection, ExchangesSnapshot)],
}

impl TimelineGatherer<'_> {
    fn topic(&self, topic: &Topic, notes: &mut Vec<String>) -> TopicTimeline {
        let name = topic.name();
        let is_publish = |it: &Exchange| it.kind == ExchangeKind::Publish;
        let mut producers = self.lanes(topic, is_publish);
        let mut readers = self.lanes(topic, |it| !is_publish(it));
        if !self.query.subscriptions.is_empty() {
            readers.retain(|lane| self.is_of_group(lane));
        }
        let size = |lane: &ExchangeLane| lane.exchanges.len();
        keep_largest(&mut producers, size, notes, |all| {
            format!("{name}: the {LANES_MAX} busiest of {all} producers are shown.")
        });
        keep_largest(&mut readers, size, notes, |all| {
            format!("{name}: the {LANES_MAX} busiest of {all} readers are shown.")
        });
        let wanted = |subscription: &&std::sync::Arc<Subscription>| {
            let names = &self.query.subscriptions;
            names.is_empty() || names.iter().any(|name| name == subscription.name())
        };
        let subscriptions = topic.subscriptions();
        let subscriptions = subscriptions.iter().filter(wanted);
        TopicTimeline {
            topic: name.to_owned(),
            producers,
            subscriptions: subscriptions
                .map(|subscription| self.subscription(subscription, notes))
                .collect(),
            readers,
        }
    }

    fn lanes(&self, topic: &Topic, is_wanted: impl Fn(&Exchange) -> bool) -> Vec<ExchangeLane> {
        let number = topic.number();
        let lanes = self.connections.iter().map(|(connection, seen)| {
            let here = |it: &&Exchange| it.topic == number && is_wanted(it);
            let exchanges: Vec<_> = seen.exchanges.iter().filter(here).collect();
            let left_out: u64 = seen.exchanges.iter().map(|it| it.left_out).sum();
            let oldest = seen.exchanges.first().filter(|_| seen.has_forgotten);
            ExchangeLane {
                owner: LaneOwner {
                    left_out: left_out + seen.left_out,
                    complete_since_us: oldest.map(|it| it.requested_us + self.window.offset_us),
                    ..owner(connection)
                },
                group: seen.group.clone(),
                exchanges: exchanges.into_iter().map(|it| self.piece(it)).collect(),
            }
        });
        let mut lanes: Vec<_> = lanes.filter(|lane| !lane.exchanges.is_empty()).collect();
        lanes.sort_by_key(|lane| lane.owner.connection);
        lanes
    }

    fn piece(&self, exchange: &Exchange) -> ExchangePiece {
        let at = |us: u64| us + self.window.offset_us;
        ExchangePiece {
            kind: exchange.kind,
            requests: exchange.requests,
            messages: exchange.messages,
            bytes: exchange.bytes,
            topics: exchange.topics,
            partition: exchange.partition,
            offset: exchange.offset,
            requested_us: at(exchange.requested_us),
            received_us: at(exchange.received_us),
            answered_us: (exchange.answered_us > 0).then(|| at(exchange.answered_us)),
            wants_answer: exchange.wants_answer,
        }
    }

    /// Whether a reader belongs to one of the wanted groups. A Fetch names no group; then the
    /// member with the same client ID and address decides.
    fn is_of_group(&self, lane: &ExchangeLane) -> bool {
        let owner = &lane.owner;
        let ip = owner.peer.rsplit_once(':').map_or("", |(ip, _)| ip);
        self.query.subscriptions.iter().any(|name| {
            if lane.group.is_some() {
                return lane.group.as_deref() == Some(name);
            }
            group(self.context, name)
                .into_iter()
                .flatten()
                .any(|member| {
                    let host = member.host.trim_start_matches('/');
                    member.client_id == owner.client_id && host == ip.trim_matches(['[', ']'])
                })
        })
    }

    fn subscription(
        &self,
        subscription: &Subscription,
        notes: &mut Vec<String>,
    ) -> SubscriptionTimeline {
        let all = subscription.holds(self.window.from_us);
        let earlier = earlier_ends(&all);
        let mut numbers: Vec<u64> = all.iter().map(|it| it.connection).collect();
        numbers.sort_unstable();
        let known = self
            .context
            .registry
            .connections(|id| numbers.binary_search(&id).is_ok());
        let known: HashMap<u64, &KnownConnection> = known
            .iter()
            .map(|connection| (connection.id, connection))
            .collect();
        let lane = |consumer: ConsumerDeliveries| {
            let connection = known.get(&consumer.connection);
            let mut owner =
                connection.map_or_else(|| unknown_owner(consumer.connection), |it| owner(it));
            owner.is_open = consumer.is_attached;
            let left_out: u64 = consumer.holds.iter().map(|hold| hold.left_out).sum();
            owner.left_out = left_out + consumer.left_out;
            let oldest = consumer.holds.first().filter(|_| consumer.has_forgotten);
            owner.complete_since_us = oldest.map(|hold| hold.ended_us);
            HoldLane {
                owner,
                label: consumer.label,
                pulls: consumer.pulls,
                window: consumer.window,
                holds: consumer
                    .holds
                    .iter()
                    .map(|it| hold_piece(it, &earlier))
                    .collect(),
            }
        };
        let mut consumers: Vec<HoldLane> = all.into_iter().map(lane).collect();
        consumers.sort_by_key(|lane| lane.owner.connection);
        let name = subscription.name();
        keep_largest(
            &mut consumers,
            |lane| lane.holds.len(),
            notes,
            |all| format!("{name}: the {LANES_MAX} busiest of {all} consumers are shown."),
        );
        SubscriptionTimeline {
            name: name.to_owned(),
            depth: subscription.counts().depth,
            consumers,
        }
    }
}

/// By partition and offset: when earlier deliveries ended after which the message waits again.
type EarlierEnds = HashMap<(u32, u64), Vec<u64>>;

fn earlier_ends(all: &[ConsumerDeliveries]) -> EarlierEnds {
    let mut ends = EarlierEnds::new();
    let again = [
        DeliveryEnd::Nacked,
        DeliveryEnd::TimedOut,
        DeliveryEnd::Left,
    ];
    let holds = all.iter().flat_map(|consumer| &consumer.holds);
    let holds = holds.filter(|hold| again.contains(&hold.end));
    let offsets = holds.flat_map(|hold| {
        let count = u64::from(hold.count);
        (hold.first..hold.first + count).map(|offset| ((hold.partition, offset), hold.ended_us))
    });
    for (place, ended_us) in offsets.take(EARLIER_MAX) {
        ends.entry(place).or_default().push(ended_us);
    }
    ends
}

fn hold_piece(hold: &DeliverySpan, earlier: &EarlierEnds) -> HoldPiece {
    let waiting_since_us = match hold.attempts {
        0 | 1 => {
            let waited_us = u64::from(hold.waited_ms) * 1000;
            Some(hold.delivered_us.saturating_sub(waited_us))
        }
        _ => {
            let ends = earlier.get(&(hold.partition, hold.first));
            let ends = ends.into_iter().flatten().copied();
            ends.filter(|ended_us| *ended_us <= hold.delivered_us).max()
        }
    };
    HoldPiece {
        partition: hold.partition,
        first: hold.first,
        count: hold.count,
        waiting_since_us,
        delivered_us: hold.delivered_us,
        ended_us: hold.ended_us,
        attempts: hold.attempts,
        outcome: match hold.end {
            DeliveryEnd::Held => HoldOutcome::Held,
            DeliveryEnd::Acked => HoldOutcome::Acked,
            DeliveryEnd::Nacked => HoldOutcome::Nacked,
            DeliveryEnd::Rejected => HoldOutcome::Rejected,
            DeliveryEnd::TimedOut => HoldOutcome::TimedOut,
            DeliveryEnd::Left => HoldOutcome::Left,
        },
    }
}

fn owner(connection: &KnownConnection) -> LaneOwner {
    let identity = &connection.identity;
    let library = [identity.library.as_str(), identity.version.as_str()].join(" ");
    LaneOwner {
        connection: connection.id,
        protocol: Some(connection.protocol),
        library: library.trim().to_owned(),
        client_id: identity.client_id.clone(),
        peer: connection.peer.to_string(),
        is_open: connection.is_open,
        left_out: 0,
        complete_since_us: None,
    }
}

/// The owner of a lane whose connection was closed long ago.
fn unknown_owner(connection: u64) -> LaneOwner {
    LaneOwner {
        connection,
        protocol: None,
        library: String::new(),
        client_id: String::new(),
        peer: String::new(),
        is_open: false,
        left_out: 0,
        complete_since_us: None,
    }
}

/// Keeps as many lanes as fit into an answer, in their order.
fn keep_largest<T>(
    lanes: &mut Vec<T>,
    size: impl Fn(&T) -> usize,
    notes: &mut Vec<String>,
    note: impl FnOnce(usize) -> String,
) {
    let all = lanes.len();
    if all <= LANES_MAX {
        return;
    }
    let mut sizes: Vec<usize> = lanes.iter().map(&size).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let least = sizes[LANES_MAX - 1];
    let mut equals = LANES_MAX - sizes.iter().take_while(|it| **it > least).count();
    lanes.retain(|lane| match size(lane).cmp(&least) {
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => {
            let is_kept = equals > 0;
            equals = equals.saturating_sub(1);
            is_kept
        }
    });
    notes.push(note(all));
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::pin::pin;
    use std::task::{Poll, Waker};

    use super::*;
    use crate::Server;
    use crate::config::Config;
    use crate::config::value::ListenAddress;

    #[test]
    fn the_http_thread_does_not_gather_a_timeline() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.general.data_dir = folder.path().to_owned();
        let any_port = || ListenAddress("127.0.0.1:0".to_owned());
        config.general.admin_address = any_port();
        config.general.cores = 1;
        config.nsq.tcp_address = any_port();
        config.nsq.http_address = any_port();
        config.nsq.https_address = any_port();
        config.nsq.lookup_http_address = any_port();
        config.kafka.address = any_port();
        config.amqp.address = any_port();
        let server = Server::start(config).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let asked = vec![("topic".to_owned(), "none".to_owned())];
        runtime.block_on(async {
            let mut answer = pin!(timeline(State(server.context().clone()), Ok(Query(asked))));
            let mut waiting = std::task::Context::from_waker(Waker::noop());
            let first = answer.as_mut().poll(&mut waiting);
            assert!(matches!(first, Poll::Pending), "not on another thread");
            let Err(refused) = answer.await else {
                unreachable!("there is no such topic");
            };
            assert_eq!(refused.0, StatusCode::NOT_FOUND);
        });
    }
}
