//! The identity of a client whose library declares it on its first connection only.
//!
//! franz-go asks a broker once for its versions, and declares its name in that request. Later
//! connections, over which it publishes, declare only the `client.id`. So the name is remembered
//! for connections from the same address with the same `client.id`. The files of advice list the
//! libraries that do this (`tells_once`); for any other library a missing name means that it is
//! unknown.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cloverleaf_telemetry::{ConnectionSnapshot, Identity, Protocol, Snapshot};

use crate::Client;
use crate::advice::Advice;
use crate::rules::LONG_US;

/// How long a name is remembered after its last connection was seen.
const REMEMBERED_US: u64 = 3_600_000_000;

/// Names that are remembered.
const NAMES_MAX: usize = 2048;

/// The key of connections that belong together: address, protocol and `client.id`.
type OriginKey = (IpAddr, Protocol, String);

/// Names that were declared once.
#[derive(Debug, Default)]
pub(crate) struct Names {
    declared: BTreeMap<OriginKey, BTreeMap<(String, String), u64>>,
}

impl Names {
    /// Remembers the names that connections declare.
    pub(crate) fn observe(&mut self, snapshot: &Snapshot, advice: &Advice) {
        let now_us = snapshot.taken_us;
        let open = snapshot.connections.iter();
        let open = open.map(|it| (it.protocol, it.peer, &it.identity, now_us));
        let closed = snapshot.closed.iter();
        let closed = closed.map(|it| (it.protocol, it.peer, &it.identity, it.last_active_us));
        for (protocol, peer, identity, seen_us) in open.chain(closed) {
            let has_both = !identity.library.is_empty() && !identity.client_id.is_empty();
            if has_both && advice.tells_once(protocol, &identity.library) {
                self.tell(Client::of(protocol, peer, identity), seen_us);
            }
        }
        let oldest_us = now_us.saturating_sub(REMEMBERED_US);
        self.declared.retain(|_, names| {
            names.retain(|_, seen_us| *seen_us >= oldest_us);
            !names.is_empty()
        });
    }

    fn tell(&mut self, client: Client, seen_us: u64) {
        let place = (client.address, client.protocol, client.client_id);
        if self.declared.len() >= NAMES_MAX && !self.declared.contains_key(&place) {
            return;
        }
        let names = self.declared.entry(place).or_default();
        let last_us = names.entry((client.library, client.version)).or_default();
        *last_us = seen_us.max(*last_us);
        // Keeps two names at most: if several versions run on a host, none can be attributed.
        while names.len() > 2 {
            let oldest = names.iter().min_by_key(|(_, seen_us)| **seen_us);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else {
                break;
            };
            names.remove(&oldest);
        }
    }

    /// The client that this connection belongs to.
    pub(crate) fn client(&self, connection: &ConnectionSnapshot) -> Client {
        let identity: &Identity = &connection.identity;
        let mut client = Client::of(connection.protocol, connection.peer, identity);
        if client.library.is_empty()
            && !client.client_id.is_empty()
            && let Some((library, version)) = self.name_of(&client)
        {
            client.library = library;
            client.version = version;
        }
        client
    }

    fn name_of(&self, client: &Client) -> Option<(String, String)> {
        let place = (client.address, client.protocol, client.client_id.clone());
        let names = self.declared.get(&place)?;
        let (newest, newest_us) = names.iter().max_by_key(|(_, seen_us)| **seen_us)?;
        let is_other = |(name, seen_us): (&(String, String), &u64)| {
            name != newest && *seen_us + LONG_US > *newest_us
        };
        (!names.iter().any(is_other)).then(|| newest.clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use cloverleaf_telemetry::Registry;

    use super::*;

    const S: u64 = 1_000_000;

    struct Host {
        registry: Registry,
        names: Names,
        advice: Advice,
    }

    impl Host {
        fn new() -> Host {
            Host {
                registry: Registry::new(),
                names: Names::default(),
                advice: Advice::embedded(),
            }
        }

        fn connect(&self, library: &str, version: &str, name: &str) -> cloverleaf_telemetry::Probe {
            let peer = std::net::SocketAddr::from(([10, 0, 0, 1], 1));
            let probe = self.registry.open(Protocol::Kafka, peer, S);
            probe.identify(Identity {
                library: library.to_owned(),
                version: version.to_owned(),
                client_id: name.to_owned(),
                ..Identity::default()
            });
            probe
        }

        /// Library and version of each connection.
        fn seen(&mut self, now_us: u64) -> Vec<String> {
            let snapshot = self.registry.snapshot(now_us, |_| None);
            self.names.observe(&snapshot, &self.advice);
            let clients = snapshot.connections.iter().map(|it| self.names.client(it));
            clients.map(|it| it.library + " " + &it.version).collect()
        }
    }

    #[test]
    fn what_was_told_once_holds_for_connections_of_that_name() {
        let mut host = Host::new();
        let declared = host.connect("kgo", "1.20.6", "orders");
        let _silent = host.connect("", "", "orders");
        let _other = host.connect("", "", "others");
        let _nameless = host.connect("", "", "");
        assert_eq!(host.seen(2 * S), ["kgo 1.20.6", "kgo 1.20.6", " ", " "]);
        // The name is remembered after the connection has closed, but it expires.
        drop(declared);
        assert_eq!(host.seen(100 * S), ["kgo 1.20.6", " ", " "]);
        assert_eq!(host.seen(3 * S + REMEMBERED_US), [" ", " ", " "]);
    }

    #[test]
    fn libraries_that_tell_each_time_lend_their_name_to_nobody() {
        let mut host = Host::new();
        let _told = host.connect("confluent-kafka-python", "2.3.0-rdkafka-2.3.0", "rdkafka");
        let _old = host.connect("", "", "rdkafka");
        assert_eq!(host.seen(2 * S)[1], " ");
    }

    #[test]
    fn two_versions_at_once_are_nobody_and_a_newer_one_takes_over() {
        let mut host = Host::new();
        let old = host.connect("kgo", "1.20.6", "orders");
        let _new = host.connect("kgo", "1.21.0", "orders");
        let _silent = host.connect("", "", "orders");
        assert_eq!(host.seen(2 * S)[2], " ");
        drop(old);
        assert_eq!(host.seen(100 * S)[1], "kgo 1.21.0");
    }

    #[test]
    fn names_are_bounded() {
        let mut host = Host::new();
        let many: Vec<_> = (0..NAMES_MAX + 50)
            .map(|number| host.connect("kgo", "1.20.6", &format!("name-{number}")))
            .collect();
        host.seen(2 * S);
        assert_eq!(host.names.declared.len(), NAMES_MAX);
        drop(many);
        let _versions: Vec<_> = (0..50)
            .map(|number| host.connect("kgo", &format!("1.{number}"), "name-1"))
            .collect();
        host.seen(3 * S);
        assert!(host.names.declared.values().all(|names| names.len() <= 2));
    }
}
