//! Kafka's part of the configuration in the form that its sessions use.

use cloverleaf_kafka::KafkaOptions;

use crate::config::Config;
use crate::config::value::{HostPort, bytes, ms};

/// The limits and defaults of the protocol under this configuration.
pub(crate) fn kafka_options(config: &Config) -> KafkaOptions {
    let kafka = &config.kafka;
    KafkaOptions {
        // Checked with the configuration.
        node_id: i32::try_from(kafka.node_id).unwrap_or(i32::MAX),
        advertised: kafka.advertised_address.as_ref().map(pair),
        advertised_tls: kafka.advertised_tls_address.as_ref().map(pair),
        log_dir: log_dir(config),
        request_bytes_max: bytes(kafka.request_bytes_max),
        control_request_bytes_max: bytes(kafka.control_request_bytes_max),
        batch_bytes_max: kafka.batch_bytes_max.0,
        auto_create_topics: kafka.auto_create_topics,
        partitions_default: kafka.partitions_default,
        retention_ms: kafka.retention.map(ms),
        retention_bytes: kafka.retention_bytes.map(|size| size.0),
        fetch_bytes_max: bytes(kafka.fetch_bytes_max),
        fetch_cold_bytes_max: bytes(kafka.fetch_cold_bytes_max),
        fetch_sessions_max: kafka.fetch_sessions_max as usize,
        answers_max: kafka.answers_max as usize,
        session_timeout_ms_min: ms(kafka.session_timeout_min),
        session_timeout_ms_max: ms(kafka.session_timeout_max),
        initial_rebalance_delay_ms: ms(kafka.initial_rebalance_delay),
        group_members_max: kafka.group_members_max as usize,
        groups_max: kafka.groups_max as usize,
        offsets_retention_ms: ms(kafka.offsets_retention),
        offset_metadata_bytes_max: bytes(kafka.offset_metadata_bytes_max),
        client_metrics_interval_ms: u32::try_from(ms(kafka.client_metrics_interval))
            .unwrap_or(u32::MAX),
        client_metrics_bytes_max: bytes(kafka.client_metrics_bytes_max),
    }
}

/// Kafka's tools and those who watch disks want a path that means the same everywhere.
fn log_dir(config: &Config) -> String {
    let folder = &config.general.data_dir;
    // It fails when the working directory is gone.
    let absolute = std::path::absolute(folder);
    absolute.as_ref().unwrap_or(folder).display().to_string()
}

fn pair(address: &HostPort) -> (String, u16) {
    (address.host.clone(), address.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_protocol_crate() {
        let options = KafkaOptions {
            log_dir: log_dir(&Config::default()),
            ..KafkaOptions::default()
        };
        assert_eq!(kafka_options(&Config::default()), options);
    }

    #[test]
    fn the_folder_is_told_as_an_absolute_path() {
        let mut config = Config::default();
        let folder = std::path::PathBuf::from(kafka_options(&config).log_dir);
        assert!(folder.is_absolute() && folder.ends_with("cloverleaf-data"));
        config.general.data_dir = "/var/lib/cloverleaf".into();
        assert_eq!(kafka_options(&config).log_dir, "/var/lib/cloverleaf");
    }
}
