//! The table of NSQ connections, as `/stats` shows them.
//!
//! A session makes one [`ClientHandle`] when its connection is accepted and drops it when the
//! connection ends. The counters have one writer, the session, which adds with a plain load and
//! store: no locked instruction per message. `/stats` reads them at any time and may see a figure
//! that is a few messages old.
//!
//! This is not the telemetry of a connection (crate `telemetry`), which the doctor reads. Here are
//! only the facts that nsqd publishes about its clients, under nsqd's names.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};

/// Maximum topics for which one connection counts its publishes by name. Publishes to further
/// topics are counted together under [`OTHER_TOPICS`], so that no connection can grow this table
/// without bound.
pub const PUB_COUNT_TOPICS_MAX: usize = 1024;

/// Name under which the publishes beyond [`PUB_COUNT_TOPICS_MAX`] are counted. It is no valid
/// topic name, so it cannot be mistaken for one.
pub const OTHER_TOPICS: &str = "(other topics)";

/// State of a connection, with the numbers that nsqd prints (`client_v2.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ClientState {
    /// Connected and not subscribed: a producer stays in this state.
    Init = 0,
    /// After SUB.
    Subscribed = 3,
    /// After CLS: no new message is sent.
    Closing = 4,
}

/// A counter with a single writer and any number of readers.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the session that owns the counter may call this.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Replaces the value, for gauges.
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// The value as of now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The TLS parameters that were negotiated, in the words that `/stats` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// IANA name of the cipher suite, for example `TLS13_AES_128_GCM_SHA256`.
    pub cipher_suite: String,
    /// `TLS1.2` or `TLS1.3`.
    pub version: String,
    /// ALPN protocol, empty if none was negotiated (NSQ clients negotiate none).
    pub negotiated_protocol: String,
}

/// The client's name and page at the auth service, kept for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAuth {
    /// Name of the client.
    pub identity: String,
    /// Page about it, may be empty.
    pub identity_url: String,
}

/// The client's description of itself in IDENTIFY and AUTH, and the negotiated settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientIdentity {
    /// `client_id`; the peer's host until IDENTIFY.
    pub client_id: String,
    /// `hostname`; the peer's host until IDENTIFY.
    pub hostname: String,
    /// `user_agent`, for example `go-nsq/1.1.0`.
    pub user_agent: String,
    /// `topology_region`.
    pub topology_region: String,
    /// `topology_zone`.
    pub topology_zone: String,
    /// Percentage of messages delivered, 0 for all.
    pub sample_rate: u8,
    /// Negotiated message timeout in milliseconds.
    pub msg_timeout_ms: u64,
    /// The stream is Snappy framed.
    pub snappy: bool,
    /// The stream is Deflate compressed.
    pub deflate: bool,
    /// Set once the connection is encrypted.
    pub tls: Option<ClientTls>,
    /// Set once AUTH succeeded with at least one authorization.
    pub auth: Option<ClientAuth>,
}

/// One connection. Written by its session, read by `/stats`.
#[derive(Debug)]
pub struct ClientEntry {
    id: u64,
    remote_address: String,
    connect_ts_s: i64,
    state: AtomicU8,
    /// RDY: how many messages the client is ready to have in flight.
    pub ready_count: Counter,
    /// Messages in flight on this connection.
    pub in_flight_count: Counter,
    /// Messages sent to the client.
    pub message_count: Counter,
    /// FINs that were accepted.
    pub finish_count: Counter,
    /// REQs that were accepted.
    pub requeue_count: Counter,
    identity: RwLock<ClientIdentity>,
    subscribed_to: RwLock<Option<(String, String)>>,
    pub_counts: Mutex<BTreeMap<String, Arc<Counter>>>,
}

impl ClientEntry {
    fn new(id: u64, remote_address: String, connect_ts_s: i64) -> ClientEntry {
        let host = host_of(&remote_address).to_owned();
        ClientEntry {
            id,
            remote_address,
            connect_ts_s,
            state: AtomicU8::new(ClientState::Init as u8),
            ready_count: Counter::default(),
            in_flight_count: Counter::default(),
            message_count: Counter::default(),
            finish_count: Counter::default(),
            requeue_count: Counter::default(),
            identity: RwLock::new(ClientIdentity {
                client_id: host.clone(),
                hostname: host,
                ..ClientIdentity::default()
            }),
            subscribed_to: RwLock::new(None),
            pub_counts: Mutex::new(BTreeMap::new()),
        }
    }

    /// Number of this connection, unique in the life of the process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Peer address, `host:port`.
    pub fn remote_address(&self) -> &str {
        &self.remote_address
    }

    /// When the connection was accepted, Unix seconds.
    pub fn connect_ts_s(&self) -> i64 {
        self.connect_ts_s
    }

    /// State as nsqd numbers it.
    pub fn state(&self) -> u8 {
        self.state.load(Relaxed)
    }

    /// A copy of the client's identity.
    pub fn identity(&self) -> ClientIdentity {
        self.identity.read().clone()
    }

    /// Changes the client's identity: after IDENTIFY, after each upgrade, after AUTH.
    pub fn update_identity(&self, change: impl FnOnce(&mut ClientIdentity)) {
        change(&mut self.identity.write());
    }

    /// Topic and channel of the SUB, if there was one.
    pub fn subscribed_to(&self) -> Option<(String, String)> {
        self.subscribed_to.read().clone()
    }

    /// Whether the client is subscribed to this channel, without copying the names.
    pub fn is_subscribed_to(&self, topic: &str, channel: &str) -> bool {
        let subscribed = self.subscribed_to.read();
        matches!(&*subscribed, Some((t, c)) if t == topic && c == channel)
    }

    /// Records a successful SUB.
    pub fn subscribe(&self, topic: &str, channel: &str) {
        *self.subscribed_to.write() = Some((topic.to_owned(), channel.to_owned()));
        self.state.store(ClientState::Subscribed as u8, Relaxed);
    }

    /// Records a CLS.
    pub fn start_close(&self) {
        self.state.store(ClientState::Closing as u8, Relaxed);
    }

    /// The counter of messages published to `topic` on this connection. The session keeps it
    /// beside its handle of the topic, so that a publish costs no look-up here.
    pub fn publish_counter(&self, topic: &str) -> Arc<Counter> {
        let mut counts = self.pub_counts.lock();
        let name = if counts.contains_key(topic) || counts.len() < PUB_COUNT_TOPICS_MAX {
            topic
        } else {
            OTHER_TOPICS
        };
        Arc::clone(counts.entry(name.to_owned()).or_default())
    }

    /// Messages published per topic, by name; empty for a client that never published.
    pub fn publish_counts(&self) -> Vec<(String, u64)> {
        let counts = self.pub_counts.lock();
        counts
            .iter()
            .map(|(topic, n)| (topic.clone(), n.get()))
            .collect()
    }

    /// Whether the client has published: nsqd calls such a connection a producer.
    pub fn is_producer(&self) -> bool {
        !self.pub_counts.lock().is_empty()
    }
}

/// The host of `host:port`, without the brackets of an IPv6 address; all of it if there is no
/// port.
pub(crate) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .unwrap_or(host)
}

/// All NSQ connections of the broker.
#[derive(Debug, Default)]
pub struct Clients {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next_id: u64,
    entries: BTreeMap<u64, Arc<ClientEntry>>,
}

impl Clients {
    /// An empty table.
    pub fn new() -> Arc<Clients> {
        Arc::new(Clients::default())
    }

    /// Adds an entry for a new connection, which is removed when the handle is dropped.
    ///
    /// `remote_address` is `host:port`, `connect_ts_s` is Unix seconds.
    pub fn connect(self: &Arc<Self>, remote_address: String, connect_ts_s: i64) -> ClientHandle {
        let mut table = self.table.lock();
        table.next_id += 1;
        let entry = Arc::new(ClientEntry::new(
            table.next_id,
            remote_address,
            connect_ts_s,
        ));
        table.entries.insert(entry.id, Arc::clone(&entry));
        ClientHandle {
            clients: Arc::clone(self),
            entry,
        }
    }

    /// All connections, oldest first.
    pub fn list(&self) -> Vec<Arc<ClientEntry>> {
        self.table.lock().entries.values().cloned().collect()
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.table.lock().entries.len()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A session's own entry: dereferences to it, and takes it out of the table when dropped.
#[derive(Debug)]
pub struct ClientHandle {
    clients: Arc<Clients>,
    entry: Arc<ClientEntry>,
}

impl Deref for ClientHandle {
    type Target = ClientEntry;

    fn deref(&self) -> &ClientEntry {
        &self.entry
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        self.clients.table.lock().entries.remove(&self.entry.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_lives_as_long_as_its_handle() {
        let clients = Clients::new();
        let first = clients.connect("127.0.0.1:1000".into(), 5);
        let second = clients.connect("[::1]:1001".into(), 6);
        let ids: Vec<u64> = clients.list().iter().map(|c| c.id()).collect();
        assert_eq!(ids, [first.id(), second.id()]);
        drop(first);
        assert_eq!(clients.len(), 1);
        drop(second);
        assert!(clients.is_empty());
    }

    #[test]
    fn before_identify_the_peer_host_stands_for_the_names() {
        let clients = Clients::new();
        let client = clients.connect("[::1]:1001".into(), 6);
        assert_eq!(client.identity().client_id, "::1");
        assert_eq!(client.identity().hostname, "::1");
        client.update_identity(|i| i.client_id = "worker".into());
        assert_eq!(client.identity().client_id, "worker");
    }

    #[test]
    fn a_client_that_publishes_is_a_producer() {
        let clients = Clients::new();
        let client = clients.connect("127.0.0.1:1".into(), 0);
        assert!(!client.is_producer());
        client.publish_counter("orders").add(3);
        client.publish_counter("orders").add(4);
        assert!(client.is_producer());
        assert_eq!(client.publish_counts(), [("orders".to_owned(), 7)]);
    }

    #[test]
    fn the_publish_table_is_bounded() {
        let clients = Clients::new();
        let client = clients.connect("127.0.0.1:1".into(), 0);
        for n in 0..PUB_COUNT_TOPICS_MAX + 10 {
            client.publish_counter(&format!("t{n}")).add(1);
        }
        let counts = client.publish_counts();
        assert_eq!(counts.len(), PUB_COUNT_TOPICS_MAX + 1);
        assert_eq!(
            counts.iter().map(|(_, n)| n).sum::<u64>(),
            PUB_COUNT_TOPICS_MAX as u64 + 10
        );
        assert!(counts.contains(&(OTHER_TOPICS.to_owned(), 10)));
    }

    #[test]
    fn states_carry_the_numbers_of_nsqd() {
        let clients = Clients::new();
        let client = clients.connect("127.0.0.1:1".into(), 0);
        assert_eq!(client.state(), 0);
        client.subscribe("t", "c");
        assert!(client.is_subscribed_to("t", "c"));
        assert!(!client.is_subscribed_to("t", "d"));
        assert_eq!(client.state(), 3);
        client.start_close();
        assert_eq!(client.state(), 4);
    }
}
