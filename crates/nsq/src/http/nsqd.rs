//! nsqd's HTTP interface (port 4151): requests in, responses out.
//!
//! A request is answered in two steps, so that its body is bounded before it is read:
//! [`NsqdHttp::begin`] checks the head and returns how many bytes of the body may be read,
//! [`NsqdHttp::finish`] executes the request. The checks have nsqd's order, because it decides
//! which error a client sees if a request has several faults.

use std::sync::Arc;

use bytes::Bytes;
use cloverleaf_access::Operation;
use cloverleaf_broker::{CatalogError, Realm, Topic};
use serde::Serialize;
use serde_json::Value;

use crate::definitions::{ChannelPolicy, topic_options};
use crate::http::config::RuntimeOptions;
use crate::http::query::Query;
use crate::http::routes::{Change, Route};
use crate::http::{HttpError, Response};
use crate::names::valid_name;
use crate::options::{COMPATIBLE_VERSION, SessionOptions};
use crate::stats::clients::Clients;
use crate::stats::{self, MemoryStats, StatsDocument};

/// This broker's identity, as reported to clients and nsqlookupd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Address under which clients reach it.
    pub broadcast_address: String,
    /// Name of the machine.
    pub hostname: String,
    /// Port of the TCP protocol.
    pub tcp_port: u16,
    /// Port of the HTTP interface.
    pub http_port: u16,
    /// Zone, empty if not configured.
    pub topology_zone: String,
    /// Region, empty if not configured.
    pub topology_region: String,
    /// When the broker started, nanoseconds since the Unix epoch.
    pub start_ns: u64,
}

/// The services that the HTTP interface needs from the process around it.
pub trait ProcessServices: Send + Sync {
    /// Nanoseconds since the Unix epoch.
    fn now_ns(&self) -> u64;
    /// `Err` with the reason if messages cannot be stored.
    fn health(&self) -> Result<(), String>;
    /// Whether the broker is shutting down and takes no more messages.
    fn is_exiting(&self) -> bool;
    /// Memory of the process.
    fn memory(&self) -> MemoryStats;
}

/// The first lines of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// `GET`, `POST`, ...
    pub method: &'a str,
    /// Path without the query.
    pub path: &'a str,
    /// The query string: the part after the `?`, if there is one.
    pub query: &'a str,
    /// `Content-Length` in bytes, if it was sent.
    pub content_length: Option<u64>,
}

/// Why the body could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// It is longer than [`PendingRequest::body_bytes_max`].
    TooLong,
    /// The connection broke, or the encoding is wrong.
    Broken,
}

/// A request whose head was accepted.
#[derive(Clone, Debug)]
pub struct PendingRequest {
    route: Route,
    query: String,
    /// How many bytes of body are to be read at most. A longer body is [`BodyError::TooLong`].
    pub body_bytes_max: usize,
}

/// nsqd's HTTP interface, shared by all connections.
pub struct NsqdHttp {
    /// Topics and channels.
    pub realm: Realm,
    /// The connections that `/stats` shows.
    pub clients: Arc<Clients>,
    /// The limits.
    pub options: Arc<SessionOptions>,
    /// Options of a channel that a request creates.
    pub channel_policy: Arc<ChannelPolicy>,
    /// This broker's identity.
    pub node: Node,
    /// The options that `/config/` can change.
    pub runtime: Arc<RuntimeOptions>,
    /// The options that `/config/` only shows, under nsqd's names.
    pub fixed_options: Vec<(&'static str, Value)>,
    /// The process around it.
    pub services: Arc<dyn ProcessServices>,
}

#[derive(Serialize)]
struct Info<'a> {
    version: &'a str,
    broadcast_address: &'a str,
    hostname: &'a str,
    http_port: u16,
    tcp_port: u16,
    start_time: u64,
    /// Nanoseconds, as Go writes a duration.
    max_heartbeat_interval: u64,
    max_output_buffer_size: u32,
    /// Nanoseconds.
    max_output_buffer_timeout: u64,
    max_deflate_level: u32,
    topology_zone: &'a str,
    topology_region: &'a str,
}

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

impl NsqdHttp {
    /// Checks the head of a request.
    ///
    /// # Errors
    /// The answer, if the request need not be read any further.
    pub fn begin(&self, head: RequestHead<'_>) -> Result<PendingRequest, Response> {
        let route = Route::find(head.method, head.path)?;
        let body_bytes_max = match route {
            Route::Publish | Route::WriteConfig(_) => self.options.msg_bytes_max as usize,
            _ => self.options.body_bytes_max as usize,
        };
        let too_long = head
            .content_length
            .is_some_and(|length| length > body_bytes_max as u64);
        if too_long {
            return Err(route.body_too_long().response());
        }
        if route == Route::PublishMany {
            // nsqd checks query and topic name before it reads the body.
            writable_topic_name(&Query::parse(head.query)?)?;
        }
        Ok(PendingRequest {
            route,
            query: head.query.to_owned(),
            body_bytes_max,
        })
    }

    /// Answers a request.
    pub async fn finish(
        &self,
        request: PendingRequest,
        body: Result<Bytes, BodyError>,
    ) -> Response {
        let body = match body {
            Ok(body) => body,
            Err(BodyError::TooLong) => return request.route.body_too_long().response(),
            Err(BodyError::Broken) => return request.route.body_broken().response(),
        };
        let query = request.query.as_str();
        let done = match request.route {
            Route::Ping => return self.ping(),
            Route::Info => Ok(self.info()),
            Route::Stats => self.stats(query),
            Route::Publish => self.publish(query, body).await,
            Route::PublishMany => self.publish_many(query, body).await,
            Route::Topic(change) => self.change_topic(change, query),
            Route::Channel(change) => self.change_channel(change, query),
            Route::ReadConfig(name) => self.runtime.read(&name, &self.fixed_options),
            Route::WriteConfig(name) => self
                .runtime
                .write(&name, &body)
                .and_then(|()| self.runtime.read(&name, &self.fixed_options)),
        };
        done.unwrap_or_else(Response::from)
    }

    fn health(&self) -> Result<String, String> {
        match self.services.health() {
            Ok(()) => Ok("OK".to_owned()),
            Err(reason) => Err(format!("NOK - {reason}")),
        }
    }

    fn ping(&self) -> Response {
        match self.health() {
            Ok(ok) => Response::plain(200, ok),
            Err(not_ok) => Response::plain(500, not_ok),
        }
    }

    fn info(&self) -> Response {
        Response::json(&Info {
            version: COMPATIBLE_VERSION,
            broadcast_address: &self.node.broadcast_address,
            hostname: &self.node.hostname,
            http_port: self.node.http_port,
            tcp_port: self.node.tcp_port,
            start_time: self.node.start_ns / NS_PER_S,
            max_heartbeat_interval: self.options.heartbeat_interval_ms_max * NS_PER_MS,
            max_output_buffer_size: self.options.output_buffer_bytes_max,
            max_output_buffer_timeout: self.options.output_buffer_timeout_ms_max * NS_PER_MS,
            max_deflate_level: self.options.deflate_level_max,
            topology_zone: &self.node.topology_zone,
            topology_region: &self.node.topology_region,
        })
    }

    fn stats(&self, query: &str) -> Result<Response, HttpError> {
        let query = Query::parse(query)?;
        let topic = query.get("topic").unwrap_or_default();
        let channel = query.get("channel").unwrap_or_default();
        let include_clients = query.get_bool("include_clients").unwrap_or(true);
        let include_mem = query.get_bool("include_mem").unwrap_or(true);
        let health = self.health().unwrap_or_else(|not_ok| not_ok);
        let mut document = StatsDocument::new(health, (self.node.start_ns / NS_PER_S) as i64);
        document.memory = include_mem.then(|| self.services.memory());
        let filter = stats::gather::Filter {
            topic,
            channel,
            include_clients,
        };
        stats::gather::gather(&self.realm, &self.clients, filter, &mut document);
        if query.get("format") == Some("json") {
            return Ok(Response::json(&document));
        }
        let now_ns = self.services.now_ns();
        Ok(Response::text(stats::text::render(
            &document,
            self.node.start_ns,
            now_ns,
        )))
    }

    /// The topic of a publish or create request, created if it does not exist.
    pub(crate) fn topic_to_write(
        &self,
        operation: Operation,
        query: &Query,
    ) -> Result<Arc<Topic>, HttpError> {
        let name = writable_topic_name(query)?;
        self.realm
            .topic_or_create(operation, name, || topic_options(name))
            .map_err(catalog_error)
    }

    /// The topic of a request that changes it or one of its channels.
    fn existing_topic(&self, name: &str) -> Result<Arc<Topic>, HttpError> {
        // Other protocols allow topic names that are not valid in NSQ. For NSQ's clients such a
        // topic does not exist.
        let name = valid_name(name.as_bytes()).ok_or(HttpError::TopicNotFound)?;
        let topic = self.realm.topic(Operation::Declare, name);
        topic.map_err(|_| HttpError::TopicNotFound)
    }

    fn change_topic(&self, change: Change, query: &str) -> Result<Response, HttpError> {
        let query = Query::parse(query)?;
        if change == Change::Create {
            self.topic_to_write(Operation::Declare, &query)?;
            return Ok(Response::empty());
        }
        let name = query.get("topic").ok_or(HttpError::MissingTopic)?;
        if change == Change::Empty && valid_name(name.as_bytes()).is_none() {
            return Err(HttpError::InvalidTopic);
        }
        let topic = self.existing_topic(name)?;
        match change {
            Change::Create => {}
            Change::Delete => {
                return deletion_response(self.realm.delete_topic(name), HttpError::TopicNotFound);
            }
            Change::Empty => topic.discard_unoffered().map_err(catalog_error)?,
            Change::Pause => topic.pause().map_err(catalog_error)?,
            Change::Unpause => topic.unpause().map_err(catalog_error)?,
        }
        Ok(Response::empty())
    }

    fn change_channel(&self, change: Change, query: &str) -> Result<Response, HttpError> {
        let query = Query::parse(query)?;
        let (topic_name, channel) = topic_and_channel(&query)?;
        let topic = self.existing_topic(topic_name)?;
        if change == Change::Create {
            let options = || (self.channel_policy)(topic_name, channel);
            topic
                .subscription_or_create(channel, options)
                .map_err(catalog_error)?;
            return Ok(Response::empty());
        }
        let subscription = topic
            .subscription(channel)
            .ok_or(HttpError::ChannelNotFound)?;
        match change {
            Change::Create => {}
            Change::Delete => {
                return deletion_response(
                    topic.delete_subscription(channel),
                    HttpError::ChannelNotFound,
                );
            }
            Change::Empty => subscription.discard_all(),
            Change::Pause => subscription.pause().map_err(catalog_error)?,
            Change::Unpause => subscription.unpause().map_err(catalog_error)?,
        }
        Ok(Response::empty())
    }
}

/// The answer to a deletion; `missing` if another client has deleted it meanwhile.
fn deletion_response(
    deleted: Result<bool, CatalogError>,
    missing: HttpError,
) -> Result<Response, HttpError> {
    if deleted.map_err(catalog_error)? {
        Ok(Response::empty())
    } else {
        Err(missing)
    }
}

/// The HTTP error for a change of the definitions that failed.
pub(crate) fn catalog_error(error: CatalogError) -> HttpError {
    match error {
        CatalogError::TopicDeleted { .. } => HttpError::TopicNotFound,
        CatalogError::SubscriptionDeleted { .. } => HttpError::ChannelNotFound,
        CatalogError::Name => HttpError::InvalidTopic,
        CatalogError::Log { .. }
        | CatalogError::Partitions { .. }
        | CatalogError::PartitionsOnlyGrow { .. }
        | CatalogError::PartitionsFull { .. }
        | CatalogError::NoSuchPartition { .. }
        | CatalogError::OffsetAboveEnd { .. }
        | CatalogError::Denied { .. }
        | CatalogError::Closed => {
            tracing::warn!(%error, "a definition cannot be changed");
            HttpError::Internal
        }
    }
}

/// The topic name of a query, if it is valid.
fn writable_topic_name(query: &Query) -> Result<&str, HttpError> {
    let name = query.get("topic").ok_or(HttpError::MissingTopic)?;
    valid_name(name.as_bytes()).ok_or(HttpError::InvalidTopic)
}

/// The names of a channel and its topic, as nsqd's channel commands and nsqlookupd check them.
///
/// # Errors
/// The first fault, in the order topic, channel.
pub(crate) fn topic_and_channel(query: &Query) -> Result<(&str, &str), HttpError> {
    let topic = query.get("topic").ok_or(HttpError::MissingTopic)?;
    let topic = valid_name(topic.as_bytes()).ok_or(HttpError::InvalidArgTopic)?;
    let channel = query.get("channel").ok_or(HttpError::MissingChannel)?;
    let channel = valid_name(channel.as_bytes()).ok_or(HttpError::InvalidArgChannel)?;
    Ok((topic, channel))
}
