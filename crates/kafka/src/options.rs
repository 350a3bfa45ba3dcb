//! Limits and defaults of the protocol; the server's configuration fills them in.

/// Settings of the Kafka protocol. Each mirrors the broker setting of Kafka named beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaOptions {
    /// The id of the only broker (`node.id`).
    pub node_id: i32,
    /// Host and port that clients are told to connect to (`advertised.listeners`). `None`: the
    /// address that the client has connected to, which is right unless a port forward or a proxy is
    /// between.
    pub advertised: Option<(String, u16)>,
    /// Host and port for clients that are connected over TLS; `None`: the address that the client
    /// has connected to.
    pub advertised_tls: Option<(String, u16)>,
    /// The folder of the log, as DescribeLogDirs and DescribeConfigs report it (`log.dirs`).
    pub log_dir: String,
    /// Largest request in bytes (`socket.request.max.bytes`).
    pub request_bytes_max: usize,
    /// Largest request in bytes, Produce excepted: the contents of other requests are decoded into
    /// memory.
    pub control_request_bytes_max: usize,
    /// Largest record batch in bytes, for topics without a limit of their own
    /// (`message.max.bytes`).
    pub batch_bytes_max: u64,
    /// Whether a Metadata request creates topics that do not exist (`auto.create.topics.enable`).
    pub auto_create_topics: bool,
    /// Number of partitions of topics that are created without one (`num.partitions`).
    pub partitions_default: u32,
    /// Retention time of topics that are created through Kafka, in milliseconds
    /// (`log.retention.ms`); `None`: unlimited.
    pub retention_ms: Option<u64>,
    /// Retention size per partition of topics that are created through Kafka, in bytes
    /// (`log.retention.bytes`); `None`: unlimited.
    pub retention_bytes: Option<u64>,
    /// Maximum bytes of one Fetch answer (`fetch.max.bytes`).
    pub fetch_bytes_max: usize,
    /// Maximum bytes of one Fetch answer that are read from files into memory of the connection.
    /// Batches that are shared with the log's memory or sent from the page cache do not count.
    pub fetch_cold_bytes_max: usize,
    /// Maximum number of fetch sessions (`max.incremental.fetch.session.cache.slots`). The session
    /// that was idle for longest is evicted first.
    pub fetch_sessions_max: usize,
    /// Maximum number of answers that a connection may owe. At the limit no more requests are read
    /// from it.
    pub answers_max: usize,
    /// Shortest session timeout of a group member, in milliseconds
    /// (`group.min.session.timeout.ms`).
    pub session_timeout_ms_min: u64,
    /// Longest session timeout of a group member, in milliseconds (`group.max.session.timeout.ms`).
    pub session_timeout_ms_max: u64,
    /// How long the first rebalance of an empty group waits for more members, in milliseconds
    /// (`group.initial.rebalance.delay.ms`).
    pub initial_rebalance_delay_ms: u64,
    /// Maximum number of members of a group (`group.max.size`).
    pub group_members_max: usize,
    /// Maximum number of groups, with members or with committed offsets only.
    pub groups_max: usize,
    /// Time after which the committed offsets of a group without members expire, in milliseconds
    /// (`offsets.retention.minutes`).
    pub offsets_retention_ms: u64,
    /// Maximum size of the metadata of a committed offset, in bytes (`offset.metadata.max.bytes`).
    pub offset_metadata_bytes_max: usize,
    /// Interval at which clients push their metrics, in milliseconds (KIP-714); 0: no metrics are
    /// requested.
    pub client_metrics_interval_ms: u32,
    /// Maximum size of a push of client metrics, in bytes (`telemetry.max.bytes`).
    pub client_metrics_bytes_max: usize,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        Self {
            node_id: 1,
            advertised: None,
            advertised_tls: None,
            log_dir: "cloverleaf-data".to_owned(),
            request_bytes_max: 100 << 20,
            control_request_bytes_max: 8 << 20,
            batch_bytes_max: 1_048_588,
            auto_create_topics: true,
            partitions_default: 1,
            retention_ms: Some(7 * 24 * 3_600_000),
            retention_bytes: None,
            fetch_bytes_max: 55 << 20,
            fetch_cold_bytes_max: 4 << 20,
            fetch_sessions_max: 1_000,
            answers_max: 1_000,
            session_timeout_ms_min: 6_000,
            session_timeout_ms_max: 1_800_000,
            // Kafka waits 3 s, which delays every start of a consumer that is alone in its group:
            // `docs/decisions/015` has numbers.
            initial_rebalance_delay_ms: 250,
            group_members_max: 10_000,
            groups_max: 100_000,
            offsets_retention_ms: 7 * 24 * 3_600_000,
            offset_metadata_bytes_max: 4_096,
            client_metrics_interval_ms: 30_000,
            client_metrics_bytes_max: 1 << 20,
        }
    }
}
