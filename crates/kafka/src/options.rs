//! Limits and defaults of the protocol; the server's configuration fills them in.

/// Settings of the Kafka protocol. Each mirrors the broker setting of Kafka named beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaOptions {
    /// The number of the one broker that there is (`node.id`).
    pub node_id: i32,
    /// Host and port that clients are told to connect to (`advertised.listeners`). `None`: the
    /// address that the client has connected to, which is right without a port forward.
    pub advertised: Option<(String, u16)>,
    /// As [`KafkaOptions::advertised`], for clients that came over TLS.
    pub advertised_tls: Option<(String, u16)>,
    /// The folder of the log, as tools are told (`log.dirs`).
    pub log_dir: String,
    /// Largest request in bytes (`socket.request.max.bytes`).
    pub request_bytes_max: usize,
    /// Largest request in bytes that is not a Produce: what it describes is kept in memory.
    pub control_request_bytes_max: usize,
    /// Largest record batch in bytes where a topic says nothing else (`message.max.bytes`).
    pub batch_bytes_max: u64,
    /// Whether a Metadata request or a Produce makes topics (`auto.create.topics.enable`).
    pub auto_create_topics: bool,
    /// Partitions of topics that are made without a number (`num.partitions`).
    pub partitions_default: u32,
    /// How long messages stay in topics made here, in milliseconds (`log.retention.ms`); `None`:
    /// for ever.
    pub retention_ms: Option<u64>,
    /// Size at which the oldest segments of topics made here go (`log.retention.bytes`).
    pub retention_bytes: Option<u64>,
    /// Most bytes of one Fetch answer (`fetch.max.bytes`).
    pub fetch_bytes_max: usize,
    /// Most bytes of one Fetch answer that come from files and not from memory that is shared.
    pub fetch_cold_bytes_max: usize,
    /// Most fetch sessions, the oldest idle one goes first
    /// (`max.incremental.fetch.session.cache.slots`).
    pub fetch_sessions_max: usize,
    /// Most answers that a connection may owe before nothing more is read from it.
    pub answers_max: usize,
    /// Shortest session timeout of a group member, in milliseconds
    /// (`group.min.session.timeout.ms`).
    pub session_timeout_ms_min: u64,
    /// Longest session timeout of a group member, in milliseconds (`group.max.session.timeout.ms`).
    pub session_timeout_ms_max: u64,
    /// How long the first members of an empty group wait for more, in milliseconds
    /// (`group.initial.rebalance.delay.ms`).
    pub initial_rebalance_delay_ms: u64,
    /// Most members of a group (`group.max.size`).
    pub group_members_max: usize,
    /// Most groups with members or offsets.
    pub groups_max: usize,
    /// Committed offsets of a group without members go after this time, in milliseconds
    /// (`offsets.retention.minutes`).
    pub offsets_retention_ms: u64,
    /// Longest note that a client may add to a committed offset (`offset.metadata.max.bytes`).
    pub offset_metadata_bytes_max: usize,
    /// How often clients push their own metrics, in milliseconds (KIP-714); 0: they are not asked.
    pub client_metrics_interval_ms: u32,
    /// Largest set of metrics that a client may push, in bytes (`telemetry.max.bytes`).
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
            // Kafka waits 3 s, which a program alone would feel: `docs/decisions/015` has numbers.
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
