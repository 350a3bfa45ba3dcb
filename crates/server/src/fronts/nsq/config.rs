//! NSQ's part of the configuration in the form that its sessions use.

use std::sync::Arc;

use cloverleaf_broker::SubscriptionOptions;
use cloverleaf_nsq::definitions::{ChannelPolicy, channel_options};
use cloverleaf_nsq::names::is_ephemeral;
use cloverleaf_nsq::options::SessionOptions;

use crate::config::Config;
use crate::config::value::{LogLevel, TlsRequired};

/// The limits and defaults of NSQ sessions under this configuration.
pub(crate) fn session_options(config: &Config) -> SessionOptions {
    let nsq = &config.nsq;
    let mut options = SessionOptions {
        tls: nsq.tls_cert.is_some(),
        tls_required: nsq.tls_required != TlsRequired::No,
        auth_required: !nsq.auth_http_address.is_empty(),
        ..SessionOptions::default()
    };
    nsq.fill(&mut options);
    options
}

/// The options of new channels: the configured dead letters and limits.
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

/// NSQ's name of the level.
pub(crate) fn log_level(level: LogLevel) -> cloverleaf_nsq::http::config::LogLevel {
    match level {
        LogLevel::Error => cloverleaf_nsq::http::config::LogLevel::Error,
        LogLevel::Warn => cloverleaf_nsq::http::config::LogLevel::Warn,
        LogLevel::Info => cloverleaf_nsq::http::config::LogLevel::Info,
        LogLevel::Debug => cloverleaf_nsq::http::config::LogLevel::Debug,
    }
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
