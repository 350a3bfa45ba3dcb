//! AMQP's part of the configuration in the form that its sessions use.

use std::sync::Arc;

use cloverleaf_access::{User, Users};
use cloverleaf_amqp::host::HostOptions;
use cloverleaf_amqp::{ContentMemory, SessionOptions, guest};

use crate::config::Config;
use crate::config::value::Setting as _;

/// The limits and defaults of the protocol under this configuration. All numbers are already
/// checked.
pub(crate) fn session_options(config: &Config) -> SessionOptions {
    let amqp = &config.amqp;
    let mut options = SessionOptions {
        heartbeat_s: u16::try_from(amqp.heartbeat.as_secs()).unwrap_or(u16::MAX),
        contents: ContentMemory::new(amqp.contents_bytes_max.0),
        users: Arc::new(users(config)),
        ..SessionOptions::default()
    };
    amqp.fill(&mut options);
    options
}

/// The users that may connect.
fn users(config: &Config) -> Users {
    let users = &config.amqp.user.0;
    if !users.is_empty() {
        let users = users.iter();
        let users = users.map(|login| User::new(&*login.name).with_configured(&login.password));
        return users.collect();
    }
    if config.general.allow_anonymous_remote {
        // All clients that can reach the broker are trusted: in a container, no client is local.
        return Users::from_iter([guest()]);
    }
    Users::from_iter([guest().local()])
}

/// Clears the passwords; from now on only their verifiers are in memory.
pub(crate) fn forget_passwords(config: &mut Config) {
    let users = config.amqp.user.0.iter_mut();
    users.for_each(|login| login.password = String::new());
}

/// The limits of the virtual host.
pub(crate) fn host_options(config: &Config) -> HostOptions {
    HostOptions {
        definition_bytes_max: config.amqp.definition_bytes_max.setting(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::login::Logins;
    use crate::config::value::OptionValue as _;

    #[test]
    fn passwords_become_verifiers_and_are_forgotten() {
        let mut config = Config::default();
        config.amqp.user = Logins::parse_all(&["ann:secret".into()]).unwrap();
        let options = session_options(&config);
        assert_eq!(format!("{:?}", options.users), r#"{"ann"}"#);
        forget_passwords(&mut config);
        assert_eq!(config.amqp.user.text(), "ann");
        assert!(config.amqp.user.0.iter().all(|it| it.password.is_empty()));
    }

    #[test]
    fn the_defaults_are_those_of_the_protocol_crate() {
        let (ours, theirs) = (
            session_options(&Config::default()),
            SessionOptions::default(),
        );
        // Each has a `ContentMemory` of its own, so that is replaced; the rest is compared by its
        // debug text.
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
