//! The content of `/stats`, as plain data in nsqd's shape.
//!
//! Field names, order and the difference between an empty list and `null` are nsqd's
//! (`nsqd/stats.go`, `client_v2.go`): nsqadmin, nsq_stat and many a monitoring script read them.
//! [`gather`] fills these structs from the broker,
//! [`text`] writes the text form.

pub mod clients;
pub mod gather;
pub mod text;

use serde::Serialize;

use crate::options::COMPATIBLE_VERSION;
use crate::stats::clients::ClientEntry;

/// The whole answer of `/stats?format=json`.
#[derive(Clone, Debug, Serialize)]
pub struct StatsDocument {
    /// NSQ version.
    pub version: &'static str,
    /// `OK`, or `NOK - ` and the reason.
    pub health: String,
    /// When the broker started, Unix seconds.
    pub start_time: i64,
    /// Topics by name; `null` if the topic that was asked for does not exist.
    pub topics: Option<Vec<TopicStats>>,
    /// Left out with `include_mem=false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    /// Connections that have published; `null` if there are none or none were asked for.
    pub producers: Option<Vec<ClientStats>>,
}

/// One topic.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TopicStats {
    /// Name.
    pub topic_name: String,
    /// Its channels by name.
    pub channels: Vec<ChannelStats>,
    /// Messages that no channel has received yet.
    pub depth: u64,
    /// Those of them that are on disk: here always all of them.
    pub backend_depth: u64,
    /// Messages published since the topic was created or loaded.
    pub message_count: u64,
    /// Bytes of these messages' bodies.
    pub message_bytes: u64,
    /// Whether it is paused.
    pub paused: bool,
    /// Latency over all channels of the topic.
    pub e2e_processing_latency: Latency,
}

/// One channel.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChannelStats {
    /// Name.
    pub channel_name: String,
    /// Messages that wait: neither in flight nor deferred.
    pub depth: u64,
    /// Those of them that are on disk: here always all of them.
    pub backend_depth: u64,
    /// Messages sent and not settled yet.
    pub in_flight_count: u64,
    /// Messages whose delay has not passed yet (REQ with a delay, DPUB).
    pub deferred_count: u64,
    /// Messages that the channel has received.
    pub message_count: u64,
    /// REQs.
    pub requeue_count: u64,
    /// Messages that timed out.
    pub timeout_count: u64,
    /// Consumers.
    pub client_count: usize,
    /// The consumers; `null` with `include_clients=false`.
    pub clients: Option<Vec<ClientStats>>,
    /// Whether it is paused.
    pub paused: bool,
    /// Latency from publish to FIN.
    pub e2e_processing_latency: Latency,
}

/// Quantiles of the time from publish to FIN. nsqd keeps them only for configured percentiles, by
/// default for none. This is the object that it prints for none, which nsqadmin needs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Latency {
    /// Number of samples.
    pub count: u64,
    /// One entry per configured percentile.
    pub percentiles: Option<Vec<Quantile>>,
}

/// One quantile.
#[derive(Clone, Debug, Serialize)]
pub struct Quantile {
    /// Between 0 and 1.
    pub quantile: f64,
    /// Nanoseconds.
    pub value: f64,
}

/// One connection.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClientStats {
    /// From IDENTIFY.
    pub client_id: String,
    /// From IDENTIFY.
    pub hostname: String,
    /// Protocol version: `V2`.
    pub version: &'static str,
    /// `host:port`.
    pub remote_address: String,
    /// nsqd's number of the state.
    pub state: u8,
    /// RDY.
    pub ready_count: u64,
    /// Messages in flight.
    pub in_flight_count: u64,
    /// Messages sent.
    pub message_count: u64,
    /// FINs.
    pub finish_count: u64,
    /// REQs.
    pub requeue_count: u64,
    /// When it connected, Unix seconds.
    pub connect_ts: i64,
    /// Percentage of messages it gets, 0 for all.
    pub sample_rate: u8,
    /// Deflate is on.
    pub deflate: bool,
    /// Snappy is on.
    pub snappy: bool,
    /// Client library and version.
    pub user_agent: String,
    /// AUTH succeeded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub authed: bool,
    /// From the auth service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub auth_identity: String,
    /// From the auth service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub auth_identity_url: String,
    /// From IDENTIFY.
    pub topology_zone: String,
    /// From IDENTIFY.
    pub topology_region: String,
    /// Messages published per topic.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pub_counts: Vec<PubCount>,
    /// The connection is encrypted.
    pub tls: bool,
    /// Name of the cipher suite.
    pub tls_cipher_suite: String,
    /// For example `TLS1.3`.
    pub tls_version: String,
    /// ALPN protocol.
    pub tls_negotiated_protocol: String,
    /// Obsolete in Go, where it is always true with TLS.
    pub tls_negotiated_protocol_is_mutual: bool,
}

/// How often one client published to one topic.
#[derive(Clone, Debug, Serialize)]
pub struct PubCount {
    /// Name of the topic.
    pub topic: String,
    /// Messages.
    pub count: u64,
}

impl ClientStats {
    /// The statistics of a connection; its publishes only for `topic` unless that is empty.
    pub fn of(client: &ClientEntry, topic: &str) -> ClientStats {
        let identity = client.identity();
        let tls = identity.tls;
        let authed = identity.auth.is_some();
        let auth = identity.auth.unwrap_or_default();
        let pub_counts = client
            .publish_counts()
            .into_iter()
            .filter(|(name, _)| topic.is_empty() || name == topic)
            .map(|(topic, count)| PubCount { topic, count })
            .collect();
        ClientStats {
            client_id: identity.client_id,
            hostname: identity.hostname,
            version: "V2",
            remote_address: client.remote_address().to_owned(),
            state: client.state(),
            ready_count: client.ready_count.get(),
            in_flight_count: client.in_flight_count.get(),
            message_count: client.message_count.get(),
            finish_count: client.finish_count.get(),
            requeue_count: client.requeue_count.get(),
            connect_ts: client.connect_ts_s(),
            sample_rate: identity.sample_rate,
            deflate: identity.deflate,
            snappy: identity.snappy,
            user_agent: identity.user_agent,
            authed,
            auth_identity: auth.identity,
            auth_identity_url: auth.identity_url,
            topology_zone: identity.topology_zone,
            topology_region: identity.topology_region,
            pub_counts,
            tls: tls.is_some(),
            tls_negotiated_protocol_is_mutual: tls.is_some(),
            tls_cipher_suite: tls
                .as_ref()
                .map(|t| t.cipher_suite.clone())
                .unwrap_or_default(),
            tls_version: tls.as_ref().map(|t| t.version.clone()).unwrap_or_default(),
            tls_negotiated_protocol: tls.map(|t| t.negotiated_protocol).unwrap_or_default(),
        }
    }
}

/// Memory of the process under the names of the Go runtime. Garbage collection figures stay 0:
/// there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryStats {
    /// Not known: 0.
    pub heap_objects: u64,
    /// Not known: 0.
    pub heap_idle_bytes: u64,
    /// Anonymous resident memory of the process, in bytes.
    pub heap_in_use_bytes: u64,
    /// Not known: 0.
    pub heap_released_bytes: u64,
    /// 0.
    pub gc_pause_usec_100: u64,
    /// 0.
    pub gc_pause_usec_99: u64,
    /// 0.
    pub gc_pause_usec_95: u64,
    /// 0.
    pub next_gc_bytes: u64,
    /// 0.
    pub gc_total_runs: u32,
}

impl StatsDocument {
    /// A document without topics, memory and producers, which the caller adds.
    pub fn new(health: String, start_time: i64) -> StatsDocument {
        StatsDocument {
            version: COMPATIBLE_VERSION,
            health,
            start_time,
            topics: None,
            memory: None,
            producers: None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::stats::clients::{ClientAuth, ClientTls, Clients};

    fn json(value: &impl Serialize) -> String {
        serde_json::to_string(value).unwrap()
    }

    #[test]
    fn an_empty_broker_looks_as_nsqds_own_test_wants_it() {
        let mut document = StatsDocument::new("OK".into(), 17);
        document.topics = Some(Vec::new());
        document.memory = Some(MemoryStats::default());
        let expected = r#"{"version":"1.3.0","health":"OK","start_time":17,"topics":[],"memory":{"#;
        assert!(json(&document).starts_with(expected));
        assert!(json(&document).ends_with(r#","producers":null}"#));
        document.memory = None;
        assert!(!json(&document).contains("memory"));
    }

    #[test]
    fn topics_and_channels_have_nsqds_fields() {
        let topic = TopicStats {
            topic_name: "t".into(),
            channels: vec![ChannelStats {
                channel_name: "c".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        assert_eq!(
            json(&topic),
            concat!(
                r#"{"topic_name":"t","channels":[{"channel_name":"c","depth":0,"#,
                r#""backend_depth":0,"in_flight_count":0,"deferred_count":0,"message_count":0,"#,
                r#""requeue_count":0,"timeout_count":0,"client_count":0,"clients":null,"#,
                r#""paused":false,"e2e_processing_latency":{"count":0,"percentiles":null}}],"#,
                r#""depth":0,"backend_depth":0,"message_count":0,"message_bytes":0,"#,
                r#""paused":false,"e2e_processing_latency":{"count":0,"percentiles":null}}"#,
            )
        );
    }

    #[test]
    fn a_plain_client_has_nsqds_fields() {
        let clients = Clients::new();
        let client = clients.connect("10.0.0.1:99".into(), 5);
        client.subscribe("t", "c");
        assert_eq!(
            json(&ClientStats::of(&client, "")),
            concat!(
                r#"{"client_id":"10.0.0.1","hostname":"10.0.0.1","version":"V2","#,
                r#""remote_address":"10.0.0.1:99","state":3,"ready_count":0,"#,
                r#""in_flight_count":0,"message_count":0,"finish_count":0,"requeue_count":0,"#,
                r#""connect_ts":5,"sample_rate":0,"deflate":false,"snappy":false,"#,
                r#""user_agent":"","topology_zone":"","topology_region":"","tls":false,"#,
                r#""tls_cipher_suite":"","tls_version":"","tls_negotiated_protocol":"","#,
                r#""tls_negotiated_protocol_is_mutual":false}"#,
            )
        );
    }

    #[test]
    fn auth_tls_and_publishes_appear_when_there_are_any() {
        let clients = Clients::new();
        let client = clients.connect("10.0.0.1:99".into(), 5);
        client.publish_counter("a").add(2);
        client.publish_counter("b").add(3);
        client.update_identity(|identity| {
            let identity_of_user = "me".into();
            identity.auth = Some(ClientAuth {
                identity: identity_of_user,
                identity_url: "url".into(),
            });
            identity.tls = Some(ClientTls {
                version: "TLS1.3".into(),
                ..ClientTls::default()
            });
        });
        let all = json(&ClientStats::of(&client, ""));
        assert!(all.contains(r#""authed":true,"auth_identity":"me","auth_identity_url":"url""#));
        assert!(all.contains(r#""tls":true"#) && all.contains(r#""tls_version":"TLS1.3""#));
        let counts = r#""pub_counts":[{"topic":"a","count":2},{"topic":"b","count":3}]"#;
        assert!(all.contains(counts));
        let one = json(&ClientStats::of(&client, "b"));
        assert!(one.contains(r#""pub_counts":[{"topic":"b","count":3}]"#));
    }
}
