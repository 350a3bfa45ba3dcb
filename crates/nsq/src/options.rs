//! The limits and defaults that an NSQ session needs, each named after the nsqd flag it mirrors.
//!
//! This is not the configuration file: the server maps its own configuration to this struct once
//! at start, and every session shares it.

/// Longest command line, in bytes, including its line feed. nsqd reads lines through a buffered
/// reader of 16 KiB and gives up on a longer one.
pub const LINE_BYTES_MAX: usize = 16 * 1024;

/// Maximum bytes of an AUTH's secret. The connection keeps the secret, to ask the auth service
/// again when its answer expires. nsqd has only the limit for all bodies.
pub const AUTH_SECRET_BYTES_MAX: u32 = 64 * 1024;

/// Maximum bytes kept of each text of an IDENTIFY. Statistics, telemetry and logs show these texts,
/// and this many bytes are enough to recognise a client.
pub const IDENTIFY_TEXT_BYTES_MAX: usize = 256;

/// Maximum bytes of records in a batch of consecutive publishes. A single MPUB may exceed it,
/// because an MPUB is never split.
pub const BATCH_BYTES_MAX: usize = 1024 * 1024;

/// Maximum batches of one connection whose answers are pending. At the limit the session stops
/// parsing.
pub const PENDING_BATCHES_MAX: usize = 64;

/// Maximum bytes of such batches.
pub const PENDING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Maximum answers queued for one connection. At the limit the session stops parsing.
pub const ANSWERS_MAX: usize = 1024;

/// The nsqd version whose behaviour this crate has, sent in the IDENTIFY response. Client libraries
/// compare it to decide which features they may use.
pub const COMPATIBLE_VERSION: &str = "1.3.0";

/// The limits of a session, and the defaults for settings that the client does not ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Maximum bytes of one message body (`--max-msg-size`).
    pub msg_bytes_max: u32,
    /// Maximum bytes of one command body (`--max-body-size`).
    pub body_bytes_max: u32,
    /// How long a consumer may hold a message before it is requeued (`--msg-timeout`), in ms.
    pub msg_timeout_ms: u64,
    /// The longest time that IDENTIFY and TOUCH can ask for (`--max-msg-timeout`), in ms.
    pub msg_timeout_ms_max: u64,
    /// The longest delay of REQ and DPUB (`--max-req-timeout`), in ms.
    pub req_timeout_ms_max: u64,
    /// A silent client is closed after this time (nsqd's `ClientTimeout`), in ms. The default
    /// heartbeat interval is half of it.
    pub client_timeout_ms: u64,
    /// The longest heartbeat interval a client can ask for (`--max-heartbeat-interval`), in ms.
    pub heartbeat_interval_ms_max: u64,
    /// The highest RDY count (`--max-rdy-count`), in messages.
    pub rdy_count_max: u32,
    /// The output buffer of a client that asks for none, in bytes. nsqd's is 16 KiB.
    pub output_buffer_bytes: u32,
    /// The largest output buffer a client can ask for (`--max-output-buffer-size`), in bytes.
    pub output_buffer_bytes_max: u32,
    /// How long nsqd may buffer messages (`--output-buffer-timeout`), in ms. It is only sent to the
    /// client: deliveries are coalesced for 1 ms whatever its value, unless the client turns
    /// buffering off (-1).
    pub output_buffer_timeout_ms: u64,
    /// The shortest buffering a client can ask for (`--min-output-buffer-timeout`), in ms.
    pub output_buffer_timeout_ms_min: u64,
    /// The longest buffering a client can ask for (`--max-output-buffer-timeout`), in ms.
    pub output_buffer_timeout_ms_max: u64,
    /// Maximum consumers of one channel (`--max-channel-consumers`); 0 is no limit.
    pub channel_consumers_max: u32,
    /// Whether clients may negotiate Deflate (`--deflate`).
    pub deflate: bool,
    /// The highest Deflate level (`--max-deflate-level`).
    pub deflate_level_max: u32,
    /// Whether clients may negotiate Snappy (`--snappy`).
    pub snappy: bool,
    /// Whether a certificate is configured, so that clients may negotiate TLS (`--tls-cert`).
    pub tls: bool,
    /// Whether clients must upgrade to TLS before anything but IDENTIFY (`--tls-required`).
    pub tls_required: bool,
    /// Whether an auth service is configured (`--auth-http-address`): clients must AUTH then.
    pub auth_required: bool,
}

impl Default for SessionOptions {
    /// nsqd's own defaults.
    fn default() -> SessionOptions {
        SessionOptions {
            msg_bytes_max: 1024 * 1024,
            body_bytes_max: 5 * 1024 * 1024,
            msg_timeout_ms: 60_000,
            msg_timeout_ms_max: 15 * 60_000,
            req_timeout_ms_max: 60 * 60_000,
            client_timeout_ms: 60_000,
            heartbeat_interval_ms_max: 60_000,
            rdy_count_max: 2_500,
            output_buffer_bytes: 16 * 1024,
            output_buffer_bytes_max: 64 * 1024,
            output_buffer_timeout_ms: 250,
            output_buffer_timeout_ms_min: 25,
            output_buffer_timeout_ms_max: 30_000,
            channel_consumers_max: 0,
            deflate: true,
            deflate_level_max: 6,
            snappy: true,
            tls: false,
            tls_required: false,
            auth_required: false,
        }
    }
}
