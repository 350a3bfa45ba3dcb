//! The options, and settings that follow from several of them together.

pub(crate) mod check;
pub(crate) mod docs;
pub(crate) mod load;
pub mod login;
pub(crate) mod options;
pub mod value;

use std::net::{SocketAddr, ToSocketAddrs};

use thiserror::Error;

pub(crate) use crate::config::options::Config;
use crate::config::options::OPTIONS;
use crate::config::value::{ListenAddress, OptionValue};
use crate::fronts::Registrations;
use crate::listener::admin_door;

/// Maximum length of a topic name for NSQ clients.
const NSQ_NAME_BYTES_MAX: usize = 64;

/// An exception from `nsq.attempts_max`: `[nsq.dead_letter."topic"]` or `."topic/channel"`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterRule {
    /// The topic that it is about.
    pub topic: String,
    /// The channel that it is about; `None` for all channels of the topic.
    pub channel: Option<String>,
    /// Attempts before a message is dead-lettered; 0: never. `None`: the value of
    /// `nsq.attempts_max`.
    pub attempts_max: Option<u32>,
    /// Name or pattern of the dead-letter topic. `None`: the value of `nsq.dead_letter_topic`.
    pub dead_letter_topic: Option<String>,
}

/// The dead-letter policy of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Attempts before a message is dead-lettered; at least 1.
    pub attempts_max: u32,
    /// Name of the dead-letter topic.
    pub topic: String,
}

/// An address that other machines can reach, without authentication of clients.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "refusing to listen on {address} ({option}): whoever reaches that address could read, write \
     and delete everything. Listen on 127.0.0.1, or {remedy}say --allow-anonymous-remote if all \
     who can reach it are trusted (in a container, say)"
)]
pub struct AnonymousRemote {
    /// The address.
    pub address: String,
    /// Name of the option with the address.
    pub option: &'static str,
    /// Other ways to make it safe; empty, or ends with ", or ".
    remedy: &'static str,
}

impl Config {
    /// Every option with its value, in the order of the documentation.
    pub fn entries(&self) -> impl Iterator<Item = (String, String)> + '_ {
        OPTIONS
            .iter()
            .map(|option| (option.name(), (option.get)(self)))
    }

    /// The default configuration with changes, each given as `name=text`.
    #[cfg(test)]
    #[allow(clippy::expect_used)]
    pub(crate) fn with(changes: &str) -> Config {
        let mut config = Config::default();
        for change in changes.split_whitespace() {
            let (name, text) = change.split_once('=').expect("name=text");
            let option = OPTIONS.iter().find(|option| option.name() == name);
            let set = option.expect("an option").set;
            set(&mut config, &[text.to_owned()]).expect("a value of the option");
        }
        config
    }

    /// The dead-letter policy of an NSQ channel; `None` if failing messages are retried for ever.
    pub fn dead_letter(&self, topic: &str, channel: &str) -> Option<DeadLetter> {
        let rule = |channel: Option<&str>| {
            let mut rules = self.nsq_dead_letters.iter();
            rules.find(|rule| rule.topic == topic && rule.channel.as_deref() == channel)
        };
        let rule = rule(Some(channel)).or_else(|| rule(None));
        let attempts_max = rule
            .and_then(|rule| rule.attempts_max)
            .unwrap_or(self.nsq.attempts_max);
        let pattern = rule.and_then(|rule| rule.dead_letter_topic.as_deref());
        let pattern = pattern.unwrap_or(&self.nsq.dead_letter_topic);
        let plain = |name: &str| name.trim_end_matches("#ephemeral").to_owned();
        let mut name = pattern
            .replace("{topic}", &plain(topic))
            .replace("{channel}", &plain(channel));
        if name.len() > NSQ_NAME_BYTES_MAX {
            // NSQ accepts only ASCII names; a boundary is searched because the configuration may
            // have others.
            let end = (0..=NSQ_NAME_BYTES_MAX)
                .rev()
                .find(|end| name.is_char_boundary(*end));
            name.truncate(end.unwrap_or(0));
        }
        (attempts_max > 0).then_some(DeadLetter {
            attempts_max,
            topic: name,
        })
    }

    /// Checks that every address that other machines can reach has authentication, unless the
    /// operator allows it without.
    ///
    /// # Errors
    /// The first address that is open to any machine.
    pub(crate) fn check_listen_addresses(
        &self,
        registrations: &Registrations,
    ) -> Result<(), AnonymousRemote> {
        if self.general.allow_anonymous_remote {
            return Ok(());
        }
        let fronts = registrations.iter().flat_map(|it| (it.doors)(self));
        for door in std::iter::once(admin_door(self)).chain(fronts) {
            if !door.is_guarded && !is_loopback(door.address) {
                return Err(AnonymousRemote {
                    address: door.address.to_string(),
                    option: door.option,
                    remedy: door.remedy,
                });
            }
        }
        Ok(())
    }
}

/// Whether only programs on this machine can reach the address. A name that does not resolve counts
/// as loopback: binding to it fails with an error of its own.
fn is_loopback(address: &ListenAddress) -> bool {
    if address.is_off() {
        return true;
    }
    match address.0.to_socket_addrs() {
        Ok(mut addresses) => addresses.all(|address: SocketAddr| address.ip().is_loopback()),
        Err(_) => true,
    }
}

impl DeadLetterRule {
    /// Sets one key of the rule.
    ///
    /// # Errors
    /// A sentence about the value. The caller has checked that the key is known.
    pub(crate) fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        match key {
            "attempts_max" => self.attempts_max = Some(u32::parse(text)?),
            _ => self.dead_letter_topic = Some(text.to_owned()),
        }
        Ok(())
    }

    /// The keys of the table.
    pub(crate) const KEYS: [&'static str; 2] = ["attempts_max", "topic"];
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::fronts::REGISTRATIONS;

    #[test]
    fn dead_letters_are_off_by_default() {
        assert_eq!(Config::default().dead_letter("orders", "billing"), None);
    }

    #[test]
    fn a_channels_rule_takes_precedence_over_the_topics() {
        let mut config = Config::default();
        config.nsq.attempts_max = 9;
        let rule = |channel: Option<&str>, attempts| DeadLetterRule {
            topic: "orders".into(),
            channel: channel.map(str::to_owned),
            attempts_max: Some(attempts),
            dead_letter_topic: None,
        };
        config.nsq_dead_letters = vec![rule(None, 5), rule(Some("billing"), 2)];
        config.nsq_dead_letters[1].dead_letter_topic = Some("lost.{channel}".into());
        let of = |topic, channel| {
            config
                .dead_letter(topic, channel)
                .map(|dead| (dead.attempts_max, dead.topic))
        };
        assert_eq!(of("orders", "billing"), Some((2, "lost.billing".into())));
        assert_eq!(of("orders", "audit"), Some((5, "orders.audit.dead".into())));
        assert_eq!(of("other", "x#ephemeral"), Some((9, "other.x.dead".into())));
        let long = "l".repeat(64);
        assert_eq!(config.dead_letter(&long, "c").unwrap().topic.len(), 64);
    }

    #[test]
    fn remote_addresses_are_refused_without_a_reason_to_trust_them() {
        // The changes of the configuration, and parts of the error text; empty where there is no
        // error.
        let cases = "\
             |
            nsq.tcp_address=0.0.0.0:4150 | 0.0.0.0:4150 (nsq.tcp_address) & --allow-anonymous-remote
            admin_address=[::]:8080 | (admin_address)
            nsq.http_address=10.1.2.3:4151 | (nsq.http_address)
            nsq.tcp_address=[::1]:4150 |
            kafka.address=0.0.0.0:9092 | 0.0.0.0:9092 (kafka.address) & kafka.tls_client_auth_policy
            kafka.tls_address=0.0.0.0:9093 | (kafka.tls_address)
            kafka.tls_address=0.0.0.0:9093 kafka.tls_client_auth_policy=require-verify |
            amqp.address=0.0.0.0:5672 | 0.0.0.0:5672 (amqp.address) & amqp.user
            amqp.address=0.0.0.0:5672 amqp.user=ann:secret |
            nsq.https_address=0.0.0.0:1 |
            nsq.tcp_address=0.0.0.0:4150 allow_anonymous_remote=true |
            nsq.tcp_address=0.0.0.0:4150 nsq.auth_http_address=127.0.0.1:9000 |
            nsq.tcp_address=0.0.0.0:4150 nsq.tls_cert=c.pem nsq.tls_required=tcp-https \
            nsq.tls_client_auth_policy=require-verify |";
        for (changes, words) in cases.lines().filter_map(|case| case.split_once('|')) {
            let verdict = Config::with(changes).check_listen_addresses(REGISTRATIONS);
            let error = verdict.map_err(|error| error.to_string()).err();
            assert_eq!(error.is_none(), words.is_empty(), "{changes}: {error:?}");
            let error = error.unwrap_or_default();
            let mut words = words.split('&').map(str::trim);
            assert!(words.all(|word| error.contains(word)), "{changes}: {error}");
        }
    }
}
