//! AMQP's part of the configuration in the form that its sessions use.

use cloverleaf_amqp::host::HostOptions;
use cloverleaf_amqp::{ContentMemory, GUEST, SessionOptions, Users};

use crate::config::Config;
use crate::config_value::bytes;

/// The limits and defaults of the protocol under this configuration. Numbers have been checked with
/// the configuration.
pub(crate) fn session_options(config: &Config) -> SessionOptions {
    let amqp = &config.amqp;
    SessionOptions {
        frame_bytes_max: u32::try_from(amqp.frame_bytes_max.0).unwrap_or(u32::MAX),
        channels_max: amqp.channels_max,
        heartbeat_s: u16::try_from(amqp.heartbeat.as_secs()).unwrap_or(u16::MAX),
        message_bytes_max: amqp.message_bytes_max.0,
        consumers_max: amqp.consumers_max as usize,
        transaction_bytes_max: bytes(amqp.transaction_bytes_max),
        contents: ContentMemory::new(amqp.contents_bytes_max.0),
        users: users(config),
    }
}

/// Who may connect.
fn users(config: &Config) -> Users {
    let users = &config.amqp.user.0;
    if !users.is_empty() {
        let pairs = users.iter();
        return Users::new(pairs.map(|user| (user.name.clone(), user.password.clone())));
    }
    if config.general.allow_anonymous_remote {
        // All who can reach it are trusted: in a container no client comes from the same machine.
        return Users::new([(GUEST.to_owned(), GUEST.to_owned())]);
    }
    Users::default()
}

/// The bounds of the virtual host.
pub(crate) fn host_options(config: &Config) -> HostOptions {
    HostOptions {
        definition_bytes_max: bytes(config.amqp.definition_bytes_max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_protocol_crate() {
        let (ours, theirs) = (
            session_options(&Config::default()),
            SessionOptions::default(),
        );
        // One is made for each; the rest is compared as it is shown.
        let shown = |options: &SessionOptions| {
            let contents = ContentMemory::new(0);
            let options = SessionOptions {
                contents,
                ..options.clone()
            };
            format!("{options:?}")
        };
        assert_eq!(shown(&ours), shown(&theirs));
        let host = host_options(&Config::default());
        let theirs = HostOptions::default();
        assert_eq!(host.definition_bytes_max, theirs.definition_bytes_max);
    }
}
