//! nsqlookupd's HTTP interface (port 4161) for this one broker, so that no nsqlookupd is needed.
//!
//! This broker is the only producer. Creating a topic or channel here creates it in the broker;
//! deleting only withdraws its registration (see [`lookup::nodes`](crate::lookup::nodes)).
//! nsqlookupd's TCP side (port 4160), where other brokers register, is not offered. Source: nsqd
//! 1.3 `nsqlookupd/http.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{Realm, Subscription, Topic};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;

use crate::definitions::{ChannelPolicy, topic_options};
use crate::http::nsqd::{Node, RequestHead, catalog_error, topic_and_channel};
use crate::http::query::Query;
use crate::http::{HttpError, Response};
use crate::lookup::nodes::LookupNotes;
use crate::names::valid_name;
use crate::options::COMPATIBLE_VERSION;
use crate::stats::gather::{channels_by_name, topic_by_name, topics_by_name};

/// Go's zero time in nanoseconds since 1970, which `/debug` shows for "never".
const GO_ZERO_TIME_NS: i64 = -6_795_364_578_871_345_152;

/// nsqlookupd's HTTP interface, shared by all connections.
pub struct LookupHttp {
    realm: Realm,
    channel_policy: Arc<ChannelPolicy>,
    node: Node,
    remote_address: String,
    notes: Mutex<LookupNotes<Topic, Subscription>>,
}

/// A producer in the answer of `/lookup`, or of `/nodes`, which has the optional fields too.
#[derive(Serialize)]
struct Producer<'a> {
    remote_address: &'a str,
    hostname: &'a str,
    broadcast_address: &'a str,
    tcp_port: u16,
    http_port: u16,
    version: &'a str,
    topology_zone: &'a str,
    topology_region: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tombstones: Option<Vec<bool>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topics: Option<Vec<String>>,
}

impl LookupHttp {
    /// Creates the interface. `remote_address` (`host:port`) is the address from which the broker
    /// would connect to an nsqlookupd.
    pub fn new(
        realm: Realm,
        channel_policy: Arc<ChannelPolicy>,
        node: Node,
        remote_address: String,
    ) -> LookupHttp {
        let notes = Mutex::default();
        LookupHttp {
            realm,
            channel_policy,
            node,
            remote_address,
            notes,
        }
    }

    /// Answers a request. A body is ignored. `now_ns` is in nanoseconds since the Unix epoch.
    pub fn answer(&self, head: RequestHead<'_>, now_ns: u64) -> Response {
        self.try_answer(head, now_ns).unwrap_or_else(Response::from)
    }

    fn try_answer(&self, head: RequestHead<'_>, now_ns: u64) -> Result<Response, HttpError> {
        let allowed = match head.path {
            "/ping" | "/info" | "/debug" | "/lookup" | "/topics" | "/channels" | "/nodes" => "GET",
            "/topic/create" | "/topic/delete" | "/topic/tombstone" | "/channel/create"
            | "/channel/delete" => "POST",
            _ => return Err(HttpError::NotFound),
        };
        if head.method != allowed {
            return Err(HttpError::MethodNotAllowed(allowed));
        }
        let query = || Query::parse(head.query);
        match head.path {
            "/ping" => Ok(Response::plain(200, "OK")),
            "/info" => Ok(Response::json(&json!({ "version": COMPATIBLE_VERSION }))),
            "/topics" => Ok(self.topics()),
            "/nodes" => Ok(self.nodes(now_ns)),
            "/debug" => Ok(self.debug(now_ns)),
            "/lookup" => self.lookup(&query()?, now_ns),
            "/channels" => self.channels(&query()?),
            "/topic/create" => self.create_topic(&query()?),
            "/topic/delete" => self.delete_topic(&query()?),
            "/topic/tombstone" => self.tombstone(&query()?, now_ns),
            "/channel/create" => self.create_channel(&query()?),
            _ => self.delete_channel(&query()?),
        }
    }

    /// The registered topics, sorted by name.
    fn registered_topics(&self) -> Vec<Arc<Topic>> {
        let mut topics = topics_by_name(&self.realm);
        topics.retain(|topic| self.is_registered(topic));
        topics
    }

    fn is_registered(&self, topic: &Arc<Topic>) -> bool {
        let channels: BTreeSet<String> = channels_by_name(topic)
            .iter()
            .map(|c| c.name().to_owned())
            .collect();
        self.notes
            .lock()
            .is_topic_registered(topic.name(), topic, &channels)
    }

    fn registered_channels(&self, topic: &Topic) -> Vec<Arc<Subscription>> {
        let mut channels = channels_by_name(topic);
        let notes = self.notes.lock();
        channels.retain(|c| notes.is_channel_registered(topic.name(), c.name(), c));
        channels
    }

    fn channel_names(&self, topic: &Topic) -> Vec<String> {
        self.registered_channels(topic)
            .iter()
            .map(|c| c.name().to_owned())
            .collect()
    }

    fn own_producer(&self) -> Producer<'_> {
        Producer {
            remote_address: &self.remote_address,
            hostname: &self.node.hostname,
            broadcast_address: &self.node.broadcast_address,
            tcp_port: self.node.tcp_port,
            http_port: self.node.http_port,
            version: COMPATIBLE_VERSION,
            topology_zone: &self.node.topology_zone,
            topology_region: &self.node.topology_region,
            tombstones: None,
            topics: None,
        }
    }

    fn topics(&self) -> Response {
        let topics = self.registered_topics();
        let names: Vec<&str> = topics.iter().map(|topic| topic.name()).collect();
        Response::json(&json!({ "topics": names }))
    }

    fn channels(&self, query: &Query) -> Result<Response, HttpError> {
        let name = query.get("topic").ok_or(HttpError::MissingTopic)?;
        let channels = topic_by_name(&self.realm, name)
            .map(|topic| self.channel_names(&topic))
            .unwrap_or_default();
        Ok(Response::json(&json!({ "channels": channels })))
    }

    fn lookup(&self, query: &Query, now_ns: u64) -> Result<Response, HttpError> {
        let name = query.get("topic").ok_or(HttpError::MissingTopic)?;
        let topic = topic_by_name(&self.realm, name)
            .filter(|topic| self.is_registered(topic))
            .ok_or(HttpError::TopicNotFound)?;
        let tombstoned = self.notes.lock().is_tombstoned(name, &topic, now_ns);
        let producers = if tombstoned {
            Vec::new()
        } else {
            vec![self.own_producer()]
        };
        Ok(Response::json(&json!({
            "channels": self.channel_names(&topic),
            "producers": producers,
        })))
    }

    fn nodes(&self, now_ns: u64) -> Response {
        let topics = self.registered_topics();
        let notes = self.notes.lock();
        let tombstones = topics
            .iter()
            .map(|topic| notes.is_tombstoned(topic.name(), topic, now_ns))
            .collect();
        let node = Producer {
            tombstones: Some(tombstones),
            topics: Some(topics.iter().map(|topic| topic.name().to_owned()).collect()),
            ..self.own_producer()
        };
        Response::json(&json!({ "producers": [node] }))
    }

    fn debug(&self, now_ns: u64) -> Response {
        let mut entries = BTreeMap::new();
        entries.insert("client::".to_owned(), [self.debug_entry(None, now_ns)]);
        for topic in self.registered_topics() {
            let name = topic.name();
            let tombstoned_ns = self.notes.lock().tombstoned_ns(name, &topic);
            entries.insert(
                format!("topic:{name}:"),
                [self.debug_entry(tombstoned_ns, now_ns)],
            );
            for channel in self.channel_names(&topic) {
                let key = format!("channel:{name}:{channel}");
                entries.insert(key, [self.debug_entry(None, now_ns)]);
            }
        }
        Response::json(&entries)
    }

    fn debug_entry(&self, tombstoned_ns: Option<u64>, now_ns: u64) -> serde_json::Value {
        json!({
            "id": self.remote_address,
            "hostname": self.node.hostname,
            "broadcast_address": self.node.broadcast_address,
            "tcp_port": self.node.tcp_port,
            "http_port": self.node.http_port,
            "version": COMPATIBLE_VERSION,
            "topology_zone": self.node.topology_zone,
            "topology_region": self.node.topology_region,
            "last_update": now_ns,
            "tombstoned": tombstoned_ns.is_some(),
            "tombstoned_at": tombstoned_ns.map_or(GO_ZERO_TIME_NS, |ns| ns as i64),
        })
    }

    fn register_topic(&self, name: &str) -> Result<Arc<Topic>, HttpError> {
        let topic = self
            .realm
            .topic_or_create(Operation::Declare, name, || topic_options(name));
        let topic = topic.map_err(catalog_error)?;
        self.notes.lock().register_topic(name, &topic);
        Ok(topic)
    }

    fn create_topic(&self, query: &Query) -> Result<Response, HttpError> {
        let name = query.get("topic").ok_or(HttpError::MissingTopic)?;
        let name = valid_name(name.as_bytes()).ok_or(HttpError::InvalidArgTopic)?;
        self.register_topic(name)?;
        Ok(Response::empty())
    }

    fn create_channel(&self, query: &Query) -> Result<Response, HttpError> {
        let (topic_name, channel) = topic_and_channel(query)?;
        let topic = self.register_topic(topic_name)?;
        let options = || (self.channel_policy)(topic_name, channel);
        topic
            .subscription_or_create(channel, options)
            .map_err(catalog_error)?;
        self.notes.lock().register_channel(topic_name, channel);
        Ok(Response::empty())
    }

    fn delete_topic(&self, query: &Query) -> Result<Response, HttpError> {
        let name = query.get("topic").ok_or(HttpError::MissingTopic)?;
        if let Some(topic) = topic_by_name(&self.realm, name) {
            let channels = channels_by_name(&topic);
            let mut notes = self.notes.lock();
            for channel in &channels {
                notes.withdraw_channel(name, channel.name(), channel);
            }
            let names = channels
                .iter()
                .map(|channel| channel.name().to_owned())
                .collect();
            notes.withdraw_topic(name, &topic, names);
        }
        Ok(Response::empty())
    }

    fn delete_channel(&self, query: &Query) -> Result<Response, HttpError> {
        let (topic_name, name) = topic_and_channel(query)?;
        let registered = topic_by_name(&self.realm, topic_name)
            .map(|topic| self.registered_channels(&topic))
            .unwrap_or_default();
        let channel = registered.iter().find(|channel| channel.name() == name);
        let channel = channel.ok_or(HttpError::ChannelNotFound)?;
        self.notes
            .lock()
            .withdraw_channel(topic_name, name, channel);
        Ok(Response::empty())
    }

    fn tombstone(&self, query: &Query, now_ns: u64) -> Result<Response, HttpError> {
        let name = query.get("topic").ok_or(HttpError::MissingTopic)?;
        let node = query.get("node").ok_or(HttpError::MissingNode)?;
        let ours = format!("{}:{}", self.node.broadcast_address, self.node.http_port);
        if let Some(topic) = topic_by_name(&self.realm, name).filter(|_| node == ours) {
            self.notes.lock().tombstone(name, &topic, now_ns);
        }
        Ok(Response::empty())
    }
}
