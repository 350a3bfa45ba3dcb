//! Lists of all exchanges, queues and bindings, for the admin pages.

use std::sync::Arc;

use super::VirtualHost;
use super::exchanges::kind_name;
use super::queue::Queue;
use crate::routing::Destination;

/// An exchange as it was declared.
#[derive(Debug, Clone, PartialEq)]
pub struct ExchangeFacts {
    /// The name; empty: the default exchange.
    pub name: Arc<str>,
    /// The exchange type, as clients name it.
    pub kind: &'static str,
    /// It survives a restart.
    pub durable: bool,
    /// It is deleted with its last binding.
    pub auto_delete: bool,
    /// Clients cannot publish to it.
    pub internal: bool,
    /// The arguments, an encoded field table.
    pub arguments: Vec<u8>,
}

/// A binding with both of its ends.
#[derive(Debug, Clone, PartialEq)]
pub struct BindingFacts {
    /// The source exchange.
    pub source: Arc<str>,
    /// The destination.
    pub destination: Destination,
    /// The routing key or pattern.
    pub key: Arc<str>,
    /// The arguments, an encoded field table.
    pub arguments: Arc<[u8]>,
}

impl VirtualHost {
    /// All exchanges by name, the default one first.
    pub fn exchanges(&self) -> Vec<ExchangeFacts> {
        let default = ExchangeFacts {
            name: "".into(),
            kind: "direct",
            durable: true,
            auto_delete: false,
            internal: false,
            arguments: Vec::new(),
        };
        let state = self.state.read();
        let declared = state.topology.exchanges().map(|(name, exchange)| {
            let options = &exchange.options;
            ExchangeFacts {
                name: name.clone(),
                kind: kind_name(options),
                durable: options.durable,
                auto_delete: options.auto_delete,
                internal: options.internal,
                arguments: options.arguments.clone(),
            }
        });
        std::iter::once(default).chain(declared).collect()
    }

    /// All queues by name.
    pub fn queues(&self) -> Vec<Arc<Queue>> {
        let state = self.state.read();
        let queues = state.queues.values().map(|slot| slot.queue.clone());
        let mut queues: Vec<Arc<Queue>> = queues.filter(|queue| !queue.is_deleted()).collect();
        drop(state);
        queues.sort_by(|a, b| a.name.cmp(&b.name));
        queues
    }

    /// All bindings, by source; without the implicit ones of the default exchange.
    pub fn bindings(&self) -> Vec<BindingFacts> {
        let state = self.state.read();
        let of = |(source, exchange): (&Arc<str>, &'_ crate::routing::Exchange)| {
            let facts = |binding: &crate::routing::Binding| BindingFacts {
                source: source.clone(),
                destination: binding.destination.clone(),
                key: binding.key.clone(),
                arguments: binding.arguments.clone(),
            };
            exchange
                .bindings()
                .map(facts)
                .collect::<Vec<BindingFacts>>()
        };
        state.topology.exchanges().flat_map(of).collect()
    }
}
