//! The current clients, each with the advice for its library and version.

use std::collections::BTreeMap;

use cloverleaf_telemetry::Snapshot;
use serde::{Deserialize, Serialize};

use crate::{Advice, Client, RuleAdvice};

/// Maximum clients in one answer.
const CLIENTS_MAX: usize = 200;

/// The clients that are connected or were recently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownClients {
    /// The clients, by address, protocol, library, version and name.
    pub clients: Vec<KnownClient>,
    /// How many clients were left out.
    pub more: usize,
}

/// A client, and the advice for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownClient {
    /// The client, as findings name it.
    pub client: Client,
    /// The name of its library, as its authors write it; `None` if the advice does not know the
    /// library, so that it gets general advice.
    pub library_name: Option<String>,
    /// Number of its connections, including recently closed ones.
    pub connections: usize,
    /// The advice that it would get with a finding of each rule.
    pub advice: Vec<RuleAdvice>,
}

impl KnownClients {
    /// The clients of a snapshot whose address, library or name contains `text`, if given.
    pub fn of(snapshot: &Snapshot, advice: &Advice, text: Option<&str>) -> KnownClients {
        let open = snapshot.connections.iter();
        let open = open.map(|it| Client::of(it.protocol, it.peer, &it.identity));
        let closed = snapshot.closed.iter();
        let closed = closed.map(|it| Client::of(it.protocol, it.peer, &it.identity));
        let mut counts: BTreeMap<Client, usize> = BTreeMap::new();
        for client in open.chain(closed) {
            if text.is_none_or(|text| client.matches(text)) {
                *counts.entry(client).or_default() += 1;
            }
        }
        let more = counts.len().saturating_sub(CLIENTS_MAX);
        let clients = counts.into_iter().take(CLIENTS_MAX);
        let clients = clients.map(|(client, connections)| KnownClient {
            library_name: advice.library_name(&client).map(str::to_owned),
            connections,
            advice: advice.for_client(&client),
            client,
        });
        KnownClients {
            clients: clients.collect(),
            more,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::SocketAddr;

    use cloverleaf_telemetry::{Identity, Protocol, Registry};

    use super::*;
    use crate::Rule;

    fn identity(library: &str, version: &str, client_id: &str) -> Identity {
        Identity {
            library: library.to_owned(),
            version: version.to_owned(),
            client_id: client_id.to_owned(),
            ..Identity::default()
        }
    }

    #[test]
    fn connections_of_a_program_are_one_client_with_its_own_advice() {
        let registry = Registry::new();
        let open = |protocol, port, identity| {
            let probe = registry.open(protocol, SocketAddr::from(([10, 0, 0, 1], port)), 1);
            probe.identify(identity);
            probe
        };
        let _one = open(Protocol::Nsq, 1, identity("go-nsq", "1.1.0", "billing"));
        let other = open(Protocol::Nsq, 2, identity("go-nsq", "1.1.0", "billing"));
        let _stranger = open(Protocol::Kafka, 3, identity("", "", "x"));
        drop(other);
        let advice = Advice::embedded();
        let known = KnownClients::of(&registry.snapshot(2, |_| None), &advice, None);
        assert_eq!((known.clients.len(), known.more), (2, 0));
        let of = |text| KnownClients::of(&registry.snapshot(2, |_| None), &advice, Some(text));
        let nsq = &of("billing").clients[0];
        assert_eq!(nsq.connections, 2);
        assert_eq!(nsq.library_name.as_deref(), Some("go-nsq"));
        let sync = |client: &KnownClient| {
            let advice = client.advice.iter().find(|it| it.rule == Rule::SyncProduce);
            advice.unwrap().changes[0].setting.clone()
        };
        assert_eq!(sync(nsq), "PublishAsync");
        let stranger = &of("kafka").clients[0];
        assert_eq!(stranger.library_name, None);
        assert_eq!(sync(stranger), "asynchronous sends");
    }

    #[test]
    fn an_answer_is_bounded_and_says_what_it_leaves_out() {
        let registry = Registry::new();
        let probes: Vec<_> = (0..CLIENTS_MAX + 7)
            .map(|at| {
                let probe = registry.open(Protocol::Nsq, SocketAddr::from(([10, 0, 0, 1], 1)), 1);
                probe.identify(identity("go-nsq", "1.1.0", &format!("{at:04}")));
                probe
            })
            .collect();
        let snapshot = registry.snapshot(2, |_| None);
        let known = KnownClients::of(&snapshot, &Advice::embedded(), None);
        assert_eq!((known.clients.len(), known.more), (CLIENTS_MAX, 7));
        drop(probes);
    }
}
