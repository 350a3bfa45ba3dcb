//! Fills the document of `/stats` from the broker and the table of connections.

use std::collections::HashMap;
use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{ConsumerStats, Realm, Subscription, SubscriptionStats, Topic};

use crate::names::valid_name;
use crate::stats::clients::{ClientEntry, Clients};
use crate::stats::{ChannelStats, ClientStats, Latency, StatsDocument, TopicStats};

/// The part of the statistics that a request asks for.
#[derive(Clone, Copy, Debug)]
pub struct Filter<'a> {
    /// Only this topic; empty for all.
    pub topic: &'a str,
    /// Only this channel; empty for all. Topics without it are left out.
    pub channel: &'a str,
    /// Whether to list clients and producers.
    pub include_clients: bool,
}

/// Clients by the topic and channel that they are subscribed to.
type Subscribers = HashMap<(String, String), Vec<Arc<ClientEntry>>>;

/// Puts topics and producers into `document`.
pub fn gather(realm: &Realm, clients: &Clients, filter: Filter<'_>, document: &mut StatsDocument) {
    let topics = match filter.topic {
        "" => topics_by_name(realm),
        name => match topic_by_name(realm, name) {
            Some(topic) => vec![topic],
            // nsqd leaves out everything in this case, even the producers.
            None => return,
        },
    };
    let connected = clients.list();
    let subscribers = subscribers(&connected);
    let topics = topics
        .iter()
        .filter_map(|topic| topic_stats(topic, &subscribers, filter));
    document.topics = Some(topics.collect());
    if filter.include_clients {
        let producers = connected.iter().filter(|client| client.is_producer());
        let producers: Vec<_> = producers
            .map(|p| ClientStats::of(p, filter.topic))
            .collect();
        document.producers = (!producers.is_empty()).then_some(producers);
    }
}

/// The topics whose names are valid in NSQ, sorted by name: others do not exist for its clients.
pub(crate) fn topics_by_name(realm: &Realm) -> Vec<Arc<Topic>> {
    let mut topics = realm.topics();
    topics.retain(|topic| valid_name(topic.name().as_bytes()).is_some());
    topics
}

/// The topic of this name, if the name is valid in NSQ.
pub(crate) fn topic_by_name(realm: &Realm, name: &str) -> Option<Arc<Topic>> {
    let name = valid_name(name.as_bytes())?;
    realm.topic(Operation::Describe, name).ok()
}

/// A topic's channels whose names are valid in NSQ, sorted by name.
pub(crate) fn channels_by_name(topic: &Topic) -> Vec<Arc<Subscription>> {
    let mut channels = topic.subscriptions().to_vec();
    channels.retain(|channel| valid_name(channel.name().as_bytes()).is_some());
    channels
}

fn subscribers(connected: &[Arc<ClientEntry>]) -> Subscribers {
    let mut subscribers = Subscribers::new();
    for client in connected {
        if let Some(channel) = client.subscribed_to() {
            subscribers
                .entry(channel)
                .or_default()
                .push(Arc::clone(client));
        }
    }
    subscribers
}

fn topic_stats(topic: &Topic, subscribers: &Subscribers, filter: Filter<'_>) -> Option<TopicStats> {
    let mut channels = channels_by_name(topic);
    if !filter.channel.is_empty() {
        channels.retain(|channel| channel.name() == filter.channel);
        if channels.is_empty() {
            return None;
        }
    }
    let scheduled = topic.scheduled();
    // In nsqd a deferred message counts for the topic while the topic has no channel.
    let depth = if topic.subscriptions().is_empty() {
        topic.depth() + scheduled
    } else {
        topic.depth()
    };
    Some(TopicStats {
        topic_name: topic.name().to_owned(),
        channels: channels
            .iter()
            .map(|c| channel_stats(c, scheduled, subscribers, filter))
            .collect(),
        depth,
        backend_depth: depth,
        message_count: topic.message_count(),
        message_bytes: topic.body_bytes_count(),
        paused: topic.is_paused(),
        e2e_processing_latency: Latency::default(),
    })
}

/// `scheduled`: messages of the topic that were published with a delay and are not due yet. Each
/// channel counts them as deferred.
fn channel_stats(
    channel: &Subscription,
    scheduled: u64,
    subscribers: &Subscribers,
    filter: Filter<'_>,
) -> ChannelStats {
    let stats = channel.stats();
    // Messages that were settled, and those still in the channel. So emptying a channel lowers the
    // figure. In nsqd it does not, because nsqd counts messages when they enter the channel.
    let deferred_count = stats.delayed + scheduled;
    let message_count =
        stats.acknowledged + stats.dead_lettered + stats.depth + stats.in_flight + deferred_count;
    let clients = filter.include_clients.then(|| {
        let key = (channel.topic_name().to_owned(), channel.name().to_owned());
        let clients = subscribers.get(&key).map(Vec::as_slice).unwrap_or_default();
        let in_flight = in_flight_by_client(&stats);
        let stats_of = |client: &Arc<ClientEntry>| {
            let mut stats = ClientStats::of(client, filter.topic);
            if let Some(in_flight) = in_flight.get(&client.id()) {
                stats.in_flight_count = u64::from(*in_flight);
            }
            stats
        };
        clients.iter().map(stats_of).collect()
    });
    ChannelStats {
        channel_name: channel.name().to_owned(),
        depth: stats.depth,
        backend_depth: stats.depth,
        in_flight_count: stats.in_flight,
        deferred_count,
        message_count,
        requeue_count: stats.requeued,
        timeout_count: stats.timed_out,
        client_count: stats.consumers.len(),
        clients,
        paused: channel.is_paused(),
        e2e_processing_latency: Latency::default(),
    }
}

/// Messages in flight by connection: sessions label their consumers with the connection's id. The
/// broker's figure is more current than the session's, which notices a timeout only with its next
/// message.
fn in_flight_by_client(stats: &SubscriptionStats) -> HashMap<u64, u32> {
    let by_id = |consumer: &ConsumerStats| Some((consumer.label.parse().ok()?, consumer.in_flight));
    stats.consumers.iter().filter_map(by_id).collect()
}
