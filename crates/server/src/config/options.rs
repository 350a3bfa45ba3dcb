//! Every option of the broker, each defined once.
//!
//! Flag, environment variable, key in the configuration file, default, documentation, check and the
//! field of [`Config`] all come from one row here. The row also names the field of the protocol's
//! or the broker's own options that it sets:
//!
//! ```text
//! key           type       default  option of the original   sets           check
//! max_msg_size: ByteSize = "1MiB",  "nsqd --max-msg-size" => msg_bytes_max, not_zero("…");
//!
//! section "nsq", key max_msg_size   flag      --nsq-max-msg-size
//!                                   variable  CLOVERLEAF_NSQ_MAX_MSG_SIZE
//!                                   file      [nsq] max_msg_size
//!                                   field     config.nsq.max_msg_size
//! ```

use std::path::PathBuf;
use std::time::Duration;

use cloverleaf_amqp::SessionOptions as AmqpOptions;
use cloverleaf_broker::BrokerOptions;
use cloverleaf_kafka::KafkaOptions;
use cloverleaf_nsq::options::SessionOptions as NsqOptions;

use crate::config::DeadLetterRule;
use crate::config::check::{
    CheckResult, OutOfRange, at_most, between, ensure, kafka_length, not_zero, nsq_frame_length,
    positive, whole_seconds,
};
use crate::config::login::Logins;
use crate::config::value::{
    AuthMethod, ByteSize, ClientAuthPolicy, DurabilityMode, HostPort, ListenAddress, LogLevel,
    OptionValue, Setting, TlsRequired, TlsVersion,
};

/// One option.
pub struct OptionDef {
    /// Table of the configuration file; empty for the top level.
    pub section: &'static str,
    /// Name within the section.
    pub key: &'static str,
    /// The name of its value's type, for the documentation.
    pub kind: &'static str,
    /// The default, as an operator would write it.
    pub default: &'static str,
    /// Its description.
    pub doc: &'static str,
    /// The option of the original system that it mirrors; empty if there is none.
    pub mirrors: &'static str,
    /// Whether the flag may be given without a value, which means true.
    pub switch: bool,
    /// Whether it may be given several times.
    pub list: bool,
    /// Sets the field from texts.
    pub(crate) set: fn(&mut Config, &[String]) -> Result<(), String>,
    /// The field as text.
    pub(crate) get: fn(&Config) -> String,
    /// Checks the value.
    pub(crate) check: fn(&Config) -> CheckResult,
    /// Checks the value against the option that is its upper bound, if there is one.
    pub(crate) check_bound: fn(&Config) -> CheckResult,
}

impl OptionDef {
    /// Name of the flag without the dashes, e.g. `nsq-max-msg-size`.
    pub fn flag(&self) -> String {
        self.joined("-").replace('_', "-")
    }

    /// Name of the environment variable, e.g. `CLOVERLEAF_NSQ_MAX_MSG_SIZE`.
    pub fn variable(&self) -> String {
        format!("CLOVERLEAF_{}", self.joined("_").to_uppercase())
    }

    /// Name in the configuration file and in messages, e.g. `nsq.max_msg_size`.
    pub fn name(&self) -> String {
        self.joined(".")
    }

    /// The title of its section; none for the whole broker.
    pub fn heading(&self) -> Option<&'static str> {
        crate::config::docs::heading(self.section)
    }

    fn joined(&self, separator: &str) -> String {
        match self.section {
            "" => self.key.to_owned(),
            section => format!("{section}{separator}{}", self.key),
        }
    }
}

/// Parses a default. It cannot fail in a released program, because a test parses all of them.
fn default_of<T: OptionValue>(text: &str) -> T {
    match T::parse(text) {
        Ok(value) => value,
        Err(error) => panic!("the default of an option is wrong: {error}"),
    }
}

macro_rules! options {
    (@check $value:expr) => { OptionValue::check($value) };
    (@check $value:expr, $check:expr) => { ($check)($value) };
    ($(
        $(#[doc = $section_doc:literal])+
        $struct:ident, $field:ident, $section:literal
        => $options:path { $($other:tt)* }
        {
            $($(#[doc = $doc:literal])+
            $key:ident: $type:ty = $default:literal $(<= $bound:ident)?, $mirrors:literal
                $(=> $target:ident)? $(, $check:expr)?;)+
        }
    )+) => {
        $(
            $(#[doc = $section_doc])+
            #[derive(Debug, Clone, PartialEq)]
            pub struct $struct { $($(#[doc = $doc])+ pub $key: $type,)+ }

            impl Default for $struct {
                fn default() -> Self {
                    Self { $($key: default_of($default),)+ }
                }
            }

            impl $struct {
                /// Sets the fields that the rows name. Every other field must be listed in the
                /// section's head, or this does not compile.
                pub(crate) fn fill(&self, options: &mut $options) {
                    let $options { $($($target,)?)+ $($other)* } = options;
                    $($(*$target = self.$key.setting();)?)+
                }
            }
        )+

        /// All settings.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct Config {
            $($(#[doc = $section_doc])+ pub $field: $struct,)+
            /// Dead-letter settings of single NSQ topics and channels; the first that matches
            /// applies.
            pub nsq_dead_letters: Vec<DeadLetterRule>,
            /// Opens a damaged data folder even if the damage lost data, and accepts that loss. It
            /// applies to a single start and is not an option, so that it cannot be left in a file.
            pub repair: bool,
        }

        /// All options, in the order of the documentation.
        pub static OPTIONS: &[OptionDef] = &[$($(OptionDef {
            section: $section,
            key: stringify!($key),
            kind: <$type as OptionValue>::KIND,
            default: $default,
            doc: concat!($($doc),+),
            mirrors: $mirrors,
            switch: <$type as OptionValue>::SWITCH,
            list: <$type as OptionValue>::LIST,
            set: |config, texts| {
                config.$field.$key = <$type as OptionValue>::parse_all(texts)?;
                Ok(())
            },
            get: |config| config.$field.$key.text(),
            check: |config| options!(@check &config.$field.$key $(, $check)?),
            check_bound: |_config| {
                $(ensure(
                    _config.$field.$key <= _config.$field.$bound,
                    concat!("it cannot be longer than ", $section, ".", stringify!($bound)),
                )?;)?
                Ok(())
            },
        },)+)+];
    };
}

options! {
    /// The options of the whole broker.
    GeneralConfig, general, ""
    => BrokerOptions { .. }
    {
        /// Folder of all data. It is created when missing, and locked: one broker per folder.
        data_dir: PathBuf = "./cloverleaf-data", "nsqd --data-path";
        /// What is safe before a producer is answered. `protocol`: as each protocol promises (NSQ:
        /// handed to the kernel, survives kill -9). `disk`: everything is synced first. `kernel`:
        /// nothing waits for more than the kernel.
        durability: DurabilityMode = "protocol", "nsqd --sync-every";
        /// A segment file is closed and a new one begun at this size: 64KiB to 1GiB.
        // Positions within a segment are 32-bit numbers; in much smaller segments nearly every
        // batch would be a file of its own.
        segment_bytes: ByteSize = "64MiB", "nsqd --max-bytes-per-file"
            => segment_bytes, between("64KiB", "1GiB");
        /// Memory for the newest messages of all topics together, from which consumers that keep
        /// up are served. What does not fit is read from files.
        tail_bytes_max: ByteSize = "32MiB", "nsqd --mem-queue-size";
        /// New messages are refused while the disk has less free room than this; consumers are
        /// served on.
        disk_free_bytes_min: ByteSize = "64MiB", "";
        /// Most bytes accepted from producers and not yet written; beyond it publishing waits.
        unwritten_bytes_max: ByteSize = "32MiB", ""
            => unwritten_bytes_max, not_zero("nothing could be published");
        /// Memory for requests and commands beyond 32KiB of which only a part has come, of all
        /// connections together. Where there is no room, a connection is not read from until there
        /// is. One request at a time may go beyond it, so that the largest one fits. An eighth is
        /// each protocol's own for those of up to 1MiB.
        half_received_bytes_max: ByteSize = "128MiB", "";
        /// How much of it the connections from one address may have together; 0 for all of it,
        /// because there may be many clients behind one.
        half_received_address_bytes_max: ByteSize = "0", "";
        /// A connection that is silent for this long within such a request is closed. While others
        /// wait for room, those are closed that have been silent longest, for a second at least,
        /// and those whose whole request takes longer than this and one second for each MiB.
        half_received_timeout: Duration = "30s", "", positive;
        /// Most partitions of all topics together. A topic beyond it is refused; NSQ's topics have
        /// one partition each.
        partitions_max: u32 = "100000", "" => partitions_max, not_zero("there could be no topic");
        /// How often topics that are compacted are looked at.
        compaction_interval: Duration = "15s", "kafka log.cleaner.backoff.ms"
            => compaction_interval_ms, positive;
        /// Once somebody reads a topic by offset whose messages go when they are consumed (Kafka
        /// clients of an NSQ topic), nothing younger than this goes.
        reader_retention: Duration = "24h", "" => reader_retention_ms;
        /// Largest batch, inflated, that is inflated for subscriptions, for checks and for
        /// compaction. Subscriptions skip the messages of a larger one.
        inflated_batch_bytes_max: ByteSize = "64MiB", "" => inflated_batch_bytes_max;
        /// Memory for inflated batches that several subscriptions want, all topics together.
        inflated_cache_bytes_max: ByteSize = "16MiB", "" => inflated_cache_bytes_max;
        /// Most idempotent producers that a partition remembers, about 400 bytes each; the least
        /// recently used are forgotten.
        producers_max: u32 = "4096", "",
            not_zero("no idempotent producer could be told from another");
        /// Most of them in all partitions together; beyond it a partition with more than 64 forgets
        /// some of its own for each new one. What a forgotten one repeats is stored twice.
        producers_total_max: u32 = "100000", "";
        /// An idempotent producer that was silent for this long is forgotten.
        producer_expiry: Duration = "24h", "kafka producer.id.expiration.ms", positive;
        /// Address of /metrics, /healthz and the interface of `cloverleaf topic` and the like.
        admin_address: ListenAddress = "127.0.0.1:8080", "";
        /// Threads that serve connections; 0 for one per core.
        // No machine has more cores, and each thread costs memory.
        cores: u32 = "0", "", at_most("1024");
        /// Connections beyond this number are closed at once. Where the system allows too few open
        /// files for it (ulimit -n), it is lowered at the start, and a log line says so.
        connections_max: u32 = "20000", "", not_zero("nobody could connect");
        /// HTTP connections that each HTTP address serves at once; at this number a new one takes
        /// the place of the one that was idle for longest. It is lowered like connections_max.
        http_connections_max: u32 = "1024", "", not_zero("nobody could connect");
        /// Whether the kernel is asked to acknowledge at once when a read ends inside a request.
        /// Without it a client that leaves Nagle's algorithm on waits for a delayed acknowledgement
        /// of 40 ms with each request that it writes in pieces. Off only to show that.
        quick_ack: bool = "true", "";
        /// Allows listening on addresses other than loopback without any authentication.
        allow_anonymous_remote: bool = "false", "";
        /// How long the broker waits at shutdown for connections to finish.
        drain_timeout: Duration = "10s", "";
        /// How many connections and how many topics /metrics shows one by one, busiest first.
        metrics_series_max: u32 = "100", "";
        /// Folder with advice of your own for the doctor: a TOML file for each family of client
        /// libraries, read at the start after the ones that are built in. One with the same family
        /// takes the place of ours. crates/doctor/advice/README.md says what stands in them.
        doctor_advice_dir: Option<PathBuf> = "", "";
        /// Which log lines are written to standard error.
        log_level: LogLevel = "info", "nsqd --log-level";
    }

    /// The options of NSQ. Names, meanings and defaults are nsqd's if it has the option.
    NsqConfig, nsq, "nsq"
    => NsqOptions { output_buffer_bytes: _, tls: _, tls_required: _, auth_required: _ }
    {
        /// Address for TCP clients; empty turns NSQ's TCP protocol off.
        tcp_address: ListenAddress = "127.0.0.1:4150", "nsqd --tcp-address";
        /// Address for HTTP clients; empty turns it off.
        http_address: ListenAddress = "127.0.0.1:4151", "nsqd --http-address";
        /// Address for HTTPS clients; used when a certificate is configured.
        https_address: ListenAddress = "127.0.0.1:4152", "nsqd --https-address";
        /// Address of the lookup interface, which makes an nsqlookupd unnecessary; empty turns it
        /// off.
        lookup_http_address: ListenAddress = "127.0.0.1:4161", "nsqlookupd --http-address";
        /// Address that consumers are told to connect to; empty for the host name.
        broadcast_address: String = "", "nsqd --broadcast-address";
        /// TCP port that consumers are told; 0 for the one that is listened on.
        broadcast_tcp_port: u16 = "0", "nsqd --broadcast-tcp-port";
        /// HTTP port that consumers are told; 0 for the one that is listened on.
        broadcast_http_port: u16 = "0", "nsqd --broadcast-http-port";
        /// TCP address of an nsqlookupd to register with.
        lookupd_tcp_address: Vec<String> = "", "nsqd --lookupd-tcp-address";
        /// Address or URL of an auth service. With one, clients must send AUTH.
        auth_http_address: Vec<String> = "", "nsqd --auth-http-address";
        /// How the auth service is asked.
        auth_http_request_method: AuthMethod = "get", "nsqd --auth-http-request-method";
        /// How long connecting to an auth service may take.
        http_client_connect_timeout: Duration = "2s", "nsqd --http-client-connect-timeout",
            positive;
        /// How long an auth service may take to answer.
        http_client_request_timeout: Duration = "5s", "nsqd --http-client-request-timeout",
            positive;
        /// Region of this broker, told to nsqlookupd.
        topology_region: String = "", "nsqd --topology-region";
        /// Zone of this broker, told to nsqlookupd.
        topology_zone: String = "", "nsqd --topology-zone";
        /// Most messages waiting in an ephemeral channel, or in a channel of an ephemeral topic;
        /// the oldest beyond it are dropped. All others wait on disk, without limit.
        mem_queue_size: u64 = "10000", "nsqd --mem-queue-size";
        /// How long a consumer may hold a message before it is delivered again.
        msg_timeout: Duration = "60s" <= max_msg_timeout, "nsqd --msg-timeout"
            => msg_timeout_ms, positive;
        /// The longest such time that a client can ask for, or reach with TOUCH.
        max_msg_timeout: Duration = "15m", "nsqd --max-msg-timeout" => msg_timeout_ms_max, positive;
        /// Longest message.
        max_msg_size: ByteSize = "1MiB", "nsqd --max-msg-size"
            => msg_bytes_max, not_zero("nothing could be published");
        /// Longest body of a command, which for MPUB holds many messages.
        max_body_size: ByteSize = "5MiB", "nsqd --max-body-size"
            => body_bytes_max, nsq_frame_length;
        /// The longest delay that REQ and DPUB can ask for.
        max_req_timeout: Duration = "1h", "nsqd --max-req-timeout" => req_timeout_ms_max;
        /// A client that is silent for this long is disconnected; the default heartbeat interval
        /// is half of it.
        client_timeout: Duration = "60s", "" => client_timeout_ms, positive;
        /// The longest heartbeat interval that a client can ask for.
        max_heartbeat_interval: Duration = "60s", "nsqd --max-heartbeat-interval"
            => heartbeat_interval_ms_max, positive;
        /// The highest RDY count.
        max_rdy_count: u32 = "2500", "nsqd --max-rdy-count"
            => rdy_count_max, not_zero("no consumer could ask for messages");
        /// The largest output buffer that a client can ask for.
        max_output_buffer_size: ByteSize = "64KiB", "nsqd --max-output-buffer-size"
            => output_buffer_bytes_max;
        /// The longest output buffering that a client can ask for.
        max_output_buffer_timeout: Duration = "30s", "nsqd --max-output-buffer-timeout"
            => output_buffer_timeout_ms_max;
        /// The shortest output buffering that a client can ask for.
        min_output_buffer_timeout: Duration = "25ms" <= max_output_buffer_timeout,
            "nsqd --min-output-buffer-timeout" => output_buffer_timeout_ms_min;
        /// The output buffering of a client that asks for none.
        output_buffer_timeout: Duration = "250ms", "nsqd --output-buffer-timeout"
            => output_buffer_timeout_ms;
        /// Most consumers of one channel; 0 for no limit.
        max_channel_consumers: u32 = "0", "nsqd --max-channel-consumers" => channel_consumers_max;
        /// Whether clients may ask for Deflate compression.
        deflate: bool = "true", "nsqd --deflate" => deflate;
        /// The highest Deflate level that a client can ask for.
        max_deflate_level: u32 = "6", "nsqd --max-deflate-level"
            => deflate_level_max, between("1", "9");
        /// Whether clients may ask for Snappy compression.
        snappy: bool = "true", "nsqd --snappy" => snappy;
        /// File with the certificate chain (PEM). With it and a key, clients may ask for TLS.
        tls_cert: Option<PathBuf> = "", "nsqd --tls-cert";
        /// File with the private key of the certificate (PEM).
        tls_key: Option<PathBuf> = "", "nsqd --tls-key";
        /// Whether clients must show a certificate (X.509 version 3): `require` takes any,
        /// `require-verify` only one that an authority of nsq.tls_root_ca_file has signed. Other
        /// than `none` it implies nsq.tls_required = "true", as in nsqd.
        tls_client_auth_policy: ClientAuthPolicy = "none", "nsqd --tls-client-auth-policy";
        /// File with the authorities that sign clients' certificates (PEM).
        tls_root_ca_file: Option<PathBuf> = "", "nsqd --tls-root-ca-file";
        /// Whether clients must use TLS: `tcp-https` spares plain HTTP.
        tls_required: TlsRequired = "false", "nsqd --tls-required";
        /// The lowest TLS version that is accepted.
        tls_min_version: TlsVersion = "tls1.2", "nsqd --tls-min-version";
        /// After this many attempts a message goes to its dead-letter topic; 0 for never.
        attempts_max: u32 = "0", "";
        /// Name of the dead-letter topic; {topic} and {channel} stand for the message's own.
        dead_letter_topic: String = "{topic}.{channel}.dead", "";
    }

    /// The options of Kafka. Meanings and defaults are Kafka's if it has the option.
    KafkaConfig, kafka, "kafka"
    => KafkaOptions { log_dir: _ }
    {
        /// Address for clients; empty turns it off.
        address: ListenAddress = "127.0.0.1:9092", "kafka listeners";
        /// Address for clients over TLS (`security.protocol=SSL`); empty turns it off. It needs
        /// kafka.tls_cert and kafka.tls_key.
        tls_address: ListenAddress = "", "kafka listeners";
        /// Host and port that clients are told to connect to. Without it each client is told the
        /// address that it has connected to, which is right without a port forward or a proxy.
        advertised_address: Option<HostPort> = "", "kafka advertised.listeners" => advertised;
        /// The same for clients that came over TLS.
        advertised_tls_address: Option<HostPort> = "", "kafka advertised.listeners"
            => advertised_tls;
        /// File with the certificate chain (PEM).
        tls_cert: Option<PathBuf> = "", "kafka ssl.keystore.location";
        /// File with the private key of the certificate (PEM).
        tls_key: Option<PathBuf> = "", "kafka ssl.keystore.key";
        /// Whether clients over TLS must show a certificate (X.509 version 3): `require` takes any,
        /// `require-verify` only one that an authority of kafka.tls_root_ca_file has signed.
        tls_client_auth_policy: ClientAuthPolicy = "none", "kafka ssl.client.auth";
        /// File with the authorities that sign clients' certificates (PEM).
        tls_root_ca_file: Option<PathBuf> = "", "kafka ssl.truststore.location";
        /// The lowest TLS version that is accepted.
        tls_min_version: TlsVersion = "tls1.2", "kafka ssl.enabled.protocols";
        /// Number of the one broker that there is, as clients see it.
        node_id: u32 = "1", "kafka node.id" => node_id, at_most("2147483647");
        /// A connection without a byte in either direction for this long is closed, and so is one
        /// that does not take its answers.
        idle_timeout: Duration = "10m", "kafka connections.max.idle.ms", positive;
        /// Largest request: at least 64KiB more than `kafka.batch_bytes_max`.
        request_bytes_max: ByteSize = "100MiB", "kafka socket.request.max.bytes"
            => request_bytes_max, kafka_length;
        /// Largest request other than Produce: what it describes is kept in memory.
        control_request_bytes_max: ByteSize = "8MiB", "" => control_request_bytes_max, kafka_length;
        /// Largest record batch, where a topic says nothing else.
        batch_bytes_max: ByteSize = "1048588", "kafka message.max.bytes"
            => batch_bytes_max, kafka_length;
        /// Most requests of one connection that wait for an answer; no more are read meanwhile.
        answers_max: u32 = "1000", "" => answers_max, not_zero("nobody could use Kafka");
        /// Whether the first use of a topic's name makes the topic.
        auto_create_topics: bool = "true", "kafka auto.create.topics.enable" => auto_create_topics;
        /// Partitions of topics that are made without a number: 1 to 1024.
        partitions_default: u32 = "1", "kafka num.partitions"
            => partitions_default, between("1", "1024");
        /// How long messages stay in topics made by Kafka clients; empty for ever.
        retention: Option<Duration> = "168h", "kafka log.retention.ms" => retention_ms;
        /// Size of a partition at which its oldest segments go, in topics made by Kafka clients;
        /// empty for no limit.
        retention_bytes: Option<ByteSize> = "", "kafka log.retention.bytes" => retention_bytes;
        /// Most bytes of one Fetch answer.
        fetch_bytes_max: ByteSize = "55MiB", "kafka fetch.max.bytes"
            => fetch_bytes_max, kafka_length;
        /// Most bytes of one Fetch answer that are read from files into memory; what is sent from
        /// files, without a copy, does not count.
        fetch_cold_bytes_max: ByteSize = "4MiB", "" => fetch_cold_bytes_max, kafka_length;
        /// Most incremental fetch sessions; the one idle for longest makes room for a new one.
        fetch_sessions_max: u32 = "1000", "kafka max.incremental.fetch.session.cache.slots"
            => fetch_sessions_max;
        /// Shortest session timeout that a member of a group can ask for.
        session_timeout_min: Duration = "6s" <= session_timeout_max,
            "kafka group.min.session.timeout.ms" => session_timeout_ms_min;
        /// Longest session timeout that a member of a group can ask for.
        session_timeout_max: Duration = "30m", "kafka group.max.session.timeout.ms"
            => session_timeout_ms_max, positive;
        /// How long the first members of an empty group wait for more; each that comes meanwhile
        /// begins it anew. With 250ms members that start at once rebalance once, and a program
        /// alone waits no longer than a person notices. Kafka's default is 3s: set it where members
        /// start in the course of seconds, and 0ms where each of many short programs makes a group.
        initial_rebalance_delay: Duration = "250ms", "kafka group.initial.rebalance.delay.ms"
            => initial_rebalance_delay_ms;
        /// Most members of a group.
        group_members_max: u32 = "10000", "kafka group.max.size"
            => group_members_max, not_zero("nobody could use Kafka");
        /// Most groups with members or offsets.
        groups_max: u32 = "100000", "" => groups_max, not_zero("nobody could use Kafka");
        /// Committed offsets of a group without members go after this time.
        offsets_retention: Duration = "168h", "kafka offsets.retention.minutes"
            => offsets_retention_ms, positive;
        /// Longest note that a client may add to a committed offset.
        offset_metadata_bytes_max: ByteSize = "4KiB", "kafka offset.metadata.max.bytes"
            => offset_metadata_bytes_max;
        /// How often clients are asked for metrics of their own (KIP-714); 0s for never.
        client_metrics_interval: Duration = "30s", "" => client_metrics_interval_ms;
        /// Largest set of metrics that a client may push.
        client_metrics_bytes_max: ByteSize = "1MiB", "kafka telemetry.max.bytes"
            => client_metrics_bytes_max;
    }

    /// The options of AMQP 0-9-1. Meanings and defaults are RabbitMQ's if it has the option.
    AmqpConfig, amqp, "amqp"
    => AmqpOptions { heartbeat_s: _, contents: _, users: _, grants: _ }
    {
        /// Address for clients; empty turns it off.
        address: ListenAddress = "127.0.0.1:5672", "rabbitmq listeners.tcp";
        /// Address for clients over TLS (`amqps:`); empty turns it off. It needs amqp.tls_cert and
        /// amqp.tls_key.
        tls_address: ListenAddress = "", "rabbitmq listeners.ssl";
        /// File with the certificate chain (PEM).
        tls_cert: Option<PathBuf> = "", "rabbitmq ssl_options.certfile";
        /// File with the private key of the certificate (PEM).
        tls_key: Option<PathBuf> = "", "rabbitmq ssl_options.keyfile";
        /// Whether clients over TLS must show a certificate (X.509 version 3): `require` takes any,
        /// `require-verify` only one that an authority of amqp.tls_root_ca_file has signed. They
        /// say a name and a password all the same.
        tls_client_auth_policy: ClientAuthPolicy = "none", "rabbitmq ssl_options.verify";
        /// File with the authorities that sign clients' certificates (PEM).
        tls_root_ca_file: Option<PathBuf> = "", "rabbitmq ssl_options.cacertfile";
        /// The lowest TLS version that is accepted.
        tls_min_version: TlsVersion = "tls1.2", "rabbitmq ssl_options.versions";
        /// Who may connect, as NAME:PASSWORD; once for each user. Without any there is the user
        /// `guest` with the password `guest`, who may connect from this machine only (from
        /// everywhere with `allow_anonymous_remote`). Everybody may do everything.
        user: Logins = "", "rabbitmq default_user";
        /// Largest frame that clients are offered: 4KiB to 16MiB.
        // About RabbitMQ's own range: the methods that open a connection do not fit into smaller
        // frames.
        frame_bytes_max: ByteSize = "128KiB", "rabbitmq frame_max"
            => frame_bytes_max, between("4KiB", "16MiB");
        /// Most channels of a connection.
        channels_max: u16 = "2047", "rabbitmq channel_max"
            => channels_max, not_zero("nobody could use AMQP");
        /// The interval of heartbeats that clients are offered, in whole seconds; a client that is
        /// silent for two of those that it has agreed to is disconnected. 0s for none.
        heartbeat: Duration = "60s", "rabbitmq heartbeat", whole_seconds;
        /// Largest message: up to 512MiB.
        // RabbitMQ allows no larger message either.
        message_bytes_max: ByteSize = "16MiB", "rabbitmq max_message_size"
            => message_bytes_max, between("1", "512MiB");
        /// Most consumers of a channel.
        consumers_max: u32 = "10000", "rabbitmq consumer_max_per_channel"
            => consumers_max, not_zero("nobody could use AMQP");
        /// Most bytes that a transaction may publish.
        transaction_bytes_max: ByteSize = "32MiB", "" => transaction_bytes_max;
        /// Memory for messages that cannot be stored yet, of all connections together: those of
        /// open transactions, and those whose frames come mixed with those of other channels. A
        /// connection may have half of it. While more than half is in use, it may have a quarter,
        /// or room for one message or transaction of the largest size, and who has held some for
        /// 30 seconds is closed.
        contents_bytes_max: ByteSize = "128MiB", "";
        /// Memory that exchanges, queues and bindings may take together, about: what clients
        /// declare beyond it is refused.
        definition_bytes_max: ByteSize = "768MiB", "";
    }
}

/// The assumed maximum of a Produce request's bytes outside its batch: topic names, the client ID.
const REQUEST_BYTES_BESIDE: u64 = 64 << 10;

impl Config {
    /// Checks the only option whose lower bound depends on another option.
    pub(super) fn check_request_bytes(&self) -> Result<(), OutOfRange> {
        let (request, batch) = (self.kafka.request_bytes_max, self.kafka.batch_bytes_max);
        let reason = "it must exceed kafka.batch_bytes_max by 64KiB: \
                      else no request could hold the largest batch";
        ensure(request.0 >= batch.0 + REQUEST_BYTES_BESIDE, reason)
            .map_err(|reason| OutOfRange::of("kafka.request_bytes_max", reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid_and_reads_back() {
        let config = Config::default();
        for option in OPTIONS {
            let mut changed = config.clone();
            let text = (option.get)(&config);
            assert_eq!(
                (option.set)(&mut changed, &[text]),
                Ok(()),
                "{}",
                option.name()
            );
            assert_eq!(changed, config, "{}", option.name());
        }
    }

    #[test]
    fn names_are_unique() {
        let mut flags: Vec<String> = OPTIONS.iter().map(OptionDef::flag).collect();
        flags.sort();
        let all = flags.len();
        flags.dedup();
        assert_eq!(flags.len(), all);
    }

    #[test]
    fn names_come_from_section_and_key() {
        let option = OPTIONS.iter().find(|option| option.key == "max_msg_size");
        let names = option.map(|option| (option.flag(), option.variable(), option.name()));
        let expected = (
            "nsq-max-msg-size",
            "CLOVERLEAF_NSQ_MAX_MSG_SIZE",
            "nsq.max_msg_size",
        );
        assert_eq!(
            names,
            Some((expected.0.into(), expected.1.into(), expected.2.into()))
        );
    }
}
