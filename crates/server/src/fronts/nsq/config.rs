//! NSQ's part of the configuration in the form that its sessions use.

use std::sync::Arc;

use cloverleaf_broker::SubscriptionOptions;
use cloverleaf_nsq::definitions::{ChannelPolicy, channel_options};
use cloverleaf_nsq::names::is_ephemeral;
use cloverleaf_nsq::options::SessionOptions;

use crate::config::Config;
use crate::config::value::{ByteSize, LogLevel, TlsRequired, ms};

/// The limits and defaults of NSQ sessions under this configuration.
pub(crate) fn session_options(config: &Config) -> SessionOptions {
    let nsq = &config.nsq;
    SessionOptions {
        msg_bytes_max: bytes(nsq.max_msg_size),
        body_bytes_max: bytes(nsq.max_body_size),
        msg_timeout_ms: ms(nsq.msg_timeout),
        msg_timeout_ms_max: ms(nsq.max_msg_timeout),
        req_timeout_ms_max: ms(nsq.max_req_timeout),
        client_timeout_ms: ms(nsq.client_timeout),
        heartbeat_interval_ms_max: ms(nsq.max_heartbeat_interval),
        rdy_count_max: nsq.max_rdy_count,
        output_buffer_bytes_max: bytes(nsq.max_output_buffer_size),
        output_buffer_timeout_ms: ms(nsq.output_buffer_timeout),
        output_buffer_timeout_ms_min: ms(nsq.min_output_buffer_timeout),
        output_buffer_timeout_ms_max: ms(nsq.max_output_buffer_timeout),
        channel_consumers_max: nsq.max_channel_consumers,
        deflate: nsq.deflate,
        deflate_level_max: nsq.max_deflate_level,
        snappy: nsq.snappy,
        tls: nsq.tls_cert.is_some(),
        tls_required: nsq.tls_required != TlsRequired::No,
        auth_required: !nsq.auth_http_address.is_empty(),
        ..SessionOptions::default()
    }
}

/// How new channels are made: with the dead letters and limits of the configuration.
pub(crate) fn channel_policy(config: &Config) -> Arc<ChannelPolicy> {
    let config = config.clone();
    Arc::new(move |topic, channel| {
        let options = channel_options(channel);
        let dead_letter = config.dead_letter(topic, channel);
        // A message counts its attempts in 16 bits, as NSQ shows them.
        let attempts_max = dead_letter
            .as_ref()
            .map_or(0, |dead| dead.attempts_max.min(0xffff));
        let ephemeral = is_ephemeral(topic) || is_ephemeral(channel);
        SubscriptionOptions {
            attempts_max: attempts_max as u16,
            dead_letter: dead_letter.map(|dead| dead.topic),
            length_max: ephemeral.then_some(config.nsq.mem_queue_size.max(1)),
            ..options
        }
    })
}

/// NSQ's name for the level.
pub(crate) fn log_level(level: LogLevel) -> cloverleaf_nsq::http_config::LogLevel {
    match level {
        LogLevel::Error => cloverleaf_nsq::http_config::LogLevel::Error,
        LogLevel::Warn => cloverleaf_nsq::http_config::LogLevel::Warn,
        LogLevel::Info => cloverleaf_nsq::http_config::LogLevel::Info,
        LogLevel::Debug => cloverleaf_nsq::http_config::LogLevel::Debug,
    }
}

/// Sizes above the range are as good as no limit: a frame cannot be longer than its length field.
fn bytes(size: ByteSize) -> u32 {
    u32::try_from(size.0).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_nsqd() {
        assert_eq!(
            session_options(&Config::default()),
            SessionOptions::default()
        );
    }
}
