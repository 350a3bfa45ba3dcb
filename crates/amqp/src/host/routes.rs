//! The queues to which a message goes.

use std::sync::Arc;

use super::queue::Queue;
use super::{RoutingState, VirtualHost};
use crate::exception::{Exception, ReplyCode, Resource};
use crate::routing::RoutedMessage;

/// The route of a message.
#[derive(Debug, Clone)]
pub struct Route {
    /// The queues, without duplicates.
    pub queues: Arc<[Arc<Queue>]>,
    /// The exchange delays messages: one with a delay ([`super::delay_ms`]) goes to
    /// [`VirtualHost::delay`] and not to the queues.
    pub delays: bool,
    /// The route depends on nothing but exchange and routing key, so it may be cached for messages
    /// without `CC` and `BCC` until the generation changes.
    pub is_cacheable: bool,
}

impl VirtualHost {
    /// The route of a message published to `exchange`; it may have no queues.
    ///
    /// # Errors
    /// No such exchange (404), or an internal one (403).
    pub fn route(&self, exchange: &str, message: &RoutedMessage<'_>) -> Result<Route, Exception> {
        let state = self.state.read();
        if exchange.is_empty() {
            return Ok(state.route_to_names(message));
        }
        let resource = Resource::exchange(exchange);
        match state.topology.exchange(exchange) {
            None => Err(Exception::not_found(&resource)),
            Some(found) if found.options.internal => {
                let text = format!("cannot publish to internal {resource}");
                Err(Exception::new(ReplyCode::AccessRefused, text))
            }
            Some(_) => state
                .route(exchange, message)
                .ok_or_else(|| Exception::not_found(&resource)),
        }
    }

    /// The route of a message published by the router, which may use internal exchanges. `None`:
    /// there is no such exchange.
    pub(super) fn route_inside(
        &self,
        exchange: &str,
        message: &RoutedMessage<'_>,
    ) -> Option<Route> {
        let state = self.state.read();
        if exchange.is_empty() {
            Some(state.route_to_names(message))
        } else {
            state.route(exchange, message)
        }
    }
}

impl RoutingState {
    /// The default exchange: each routing key is the name of a queue.
    fn route_to_names(&self, message: &RoutedMessage<'_>) -> Route {
        let has_more = message.has_more_keys();
        let mut keys = message.keys();
        let only_slot = keys.next().and_then(|key| self.queues.get(key));
        let only_slot = only_slot.filter(|slot| !slot.queue.is_deleted());
        let queues = match (only_slot, has_more) {
            (None, false) => Arc::new([]),
            (Some(slot), false) => slot.single_route.clone(),
            (first, true) => {
                let mut queues: Vec<Arc<Queue>> = Vec::new();
                queues.extend(first.map(|slot| slot.queue.clone()));
                for key in keys {
                    self.push_queue(key, &mut queues);
                }
                unique(&mut queues);
                queues.into()
            }
        };
        Route {
            queues,
            delays: false,
            is_cacheable: !has_more,
        }
    }

    fn route(&self, exchange: &str, message: &RoutedMessage<'_>) -> Option<Route> {
        let delays = self.topology.exchange(exchange)?.options.delays;
        let routing = self.topology.route(exchange, message)?;
        let is_cacheable = !routing.by_headers && !message.has_more_keys();
        let queues = match routing.queues.as_slice() {
            [name] => match self.queues.get(name) {
                Some(slot) if !slot.queue.is_deleted() => slot.single_route.clone(),
                _ => Arc::new([]),
            },
            names => {
                let mut queues = Vec::with_capacity(names.len());
                for name in names {
                    self.push_queue(name, &mut queues);
                }
                queues.into()
            }
        };
        Some(Route {
            queues,
            delays,
            is_cacheable,
        })
    }

    fn push_queue(&self, name: &str, queues: &mut Vec<Arc<Queue>>) {
        if let Some(slot) = self.queues.get(name)
            && !slot.queue.is_deleted()
        {
            queues.push(slot.queue.clone());
        }
    }
}

fn unique(queues: &mut Vec<Arc<Queue>>) {
    queues.sort_by(|a, b| a.name.cmp(&b.name));
    queues.dedup_by(|a, b| Arc::ptr_eq(a, b));
}
