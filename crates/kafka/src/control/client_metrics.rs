//! The metrics that clients push (KIP-714): the latest values of each client.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

pub use super::otlp::MetricValue;

/// Maximum number of clients that are remembered. The client with the oldest push is evicted first.
const CLIENTS_MAX: usize = 1_000;

/// Maximum length of a client id in bytes; a longer one is dropped.
const CLIENT_ID_BYTES_MAX: usize = 256;

/// The metrics that one client has pushed.
#[derive(Debug, Clone, PartialEq)]
pub struct PushedMetrics {
    /// The client instance id, the same on all connections of a client.
    pub instance: Uuid,
    /// The client's `client.id`.
    pub client_id: Option<String>,
    /// Name and version of its library.
    pub software: Option<(String, String)>,
    /// The address that the push came from.
    pub remote: SocketAddr,
    /// Time of the push, in microseconds of the telemetry's clock.
    pub received_us: u64,
    /// Whether this was the client's terminating push, its last one.
    pub is_last: bool,
    /// The values.
    pub figures: Vec<MetricValue>,
}

/// The latest metrics of each client, for a bounded number of clients.
#[derive(Debug, Default)]
pub struct ClientMetrics {
    clients: Mutex<HashMap<Uuid, Arc<PushedMetrics>>>,
}

impl ClientMetrics {
    /// The metrics of all clients, the most recent push first.
    pub fn list(&self) -> Vec<Arc<PushedMetrics>> {
        let mut list: Vec<_> = self.clients.lock().values().cloned().collect();
        list.sort_by_key(|client| std::cmp::Reverse(client.received_us));
        list
    }

    /// Time of the client's last push, in microseconds, and whether it was the terminating one.
    pub(super) fn last(&self, instance: Uuid) -> Option<(u64, bool)> {
        let clients = self.clients.lock();
        let client = clients.get(&instance)?;
        Some((client.received_us, client.is_last))
    }

    /// Stores a push of a client. An empty push, which clients send when they close, keeps the
    /// values of the push before.
    pub(super) fn put(&self, mut client: PushedMetrics) {
        client.client_id = client
            .client_id
            .filter(|id| id.len() <= CLIENT_ID_BYTES_MAX);
        let mut clients = self.clients.lock();
        match clients.get(&client.instance) {
            Some(known) if client.figures.is_empty() => {
                client.figures.clone_from(&known.figures);
            }
            Some(_) => {}
            None if clients.len() >= CLIENTS_MAX => {
                let oldest = clients.values().min_by_key(|known| known.received_us);
                if let Some(oldest) = oldest.map(|known| known.instance) {
                    clients.remove(&oldest);
                }
            }
            None => {}
        }
        clients.insert(client.instance, Arc::new(client));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u128, received_us: u64) -> PushedMetrics {
        PushedMetrics {
            instance: Uuid::from_u128(number),
            client_id: None,
            software: None,
            remote: SocketAddr::from(([127, 0, 0, 1], 9)),
            received_us,
            is_last: false,
            figures: vec![MetricValue {
                name: "producer.request.latency.avg".to_owned(),
                node: None,
                value: 1.0,
            }],
        }
    }

    #[test]
    fn the_table_is_bounded_and_the_oldest_goes_first() {
        let metrics = ClientMetrics::default();
        for number in 0..CLIENTS_MAX as u64 + 5 {
            metrics.put(client(u128::from(number), number));
        }
        assert_eq!(metrics.list().len(), CLIENTS_MAX);
        assert_eq!(metrics.last(Uuid::from_u128(4)), None);
        assert_eq!(metrics.last(Uuid::from_u128(5)), Some((5, false)));
    }

    #[test]
    fn a_last_push_without_figures_leaves_those_that_are_known() {
        let metrics = ClientMetrics::default();
        metrics.put(client(1, 1));
        metrics.put(PushedMetrics {
            figures: Vec::new(),
            is_last: true,
            ..client(1, 2)
        });
        let list = metrics.list();
        assert_eq!(list.len(), 1);
        assert!(list[0].is_last && list[0].figures.len() == 1);
    }
}
