//! Kafka's part of the configuration in the form that its sessions use.

use cloverleaf_kafka::KafkaOptions;

use crate::config::Config;

/// The limits and defaults of the protocol under this configuration.
pub(crate) fn kafka_options(config: &Config) -> KafkaOptions {
    let mut options = KafkaOptions {
        log_dir: log_dir(config),
        ..KafkaOptions::default()
    };
    config.kafka.fill(&mut options);
    options
}

/// An absolute path, which Kafka's tools and disk monitors expect.
fn log_dir(config: &Config) -> String {
    let folder = &config.general.data_dir;
    // It fails if the working directory is gone.
    let absolute = std::path::absolute(folder);
    absolute.as_ref().unwrap_or(folder).display().to_string()
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
    fn the_log_dir_is_an_absolute_path() {
        let mut config = Config::default();
        let folder = std::path::PathBuf::from(kafka_options(&config).log_dir);
        assert!(folder.is_absolute() && folder.ends_with("cloverleaf-data"));
        config.general.data_dir = "/var/lib/cloverleaf".into();
        assert_eq!(kafka_options(&config).log_dir, "/var/lib/cloverleaf");
    }
}
