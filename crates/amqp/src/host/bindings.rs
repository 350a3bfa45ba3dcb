//! Binding and unbinding queues and exchanges.

use std::sync::Arc;

use super::names::{check_no_reply_queue, check_not_default, strip_newlines};
use super::{Owner, VirtualHost, refused, stored};
use crate::exception::{Exception, Resource};
use crate::routing::{Binding, Destination, Topology, TopologyError};
use crate::wire::{Table, Value, table_bytes};

impl VirtualHost {
    /// Binds a queue to an exchange; does nothing if the same binding exists.
    ///
    /// # Errors
    /// No such exchange or queue (404), a queue that another connection uses exclusively (405), the
    /// default exchange (403), arguments that a headers exchange does not accept (406).
    pub fn bind_queue(
        &self,
        owner: Owner,
        queue: &str,
        exchange: &str,
        key: &str,
        arguments: Table<'_>,
    ) -> Result<(), Exception> {
        let queue = strip_newlines(queue);
        check_no_reply_queue(&queue)?;
        let destination = Destination::Queue(queue.as_ref().into());
        self.bind(Some(owner), exchange, binding(destination, key, arguments))
    }

    /// Unbinds a queue from an exchange; does nothing if there is no such binding.
    ///
    /// # Errors
    /// A queue that another connection uses exclusively (405), the default exchange (403).
    pub fn unbind_queue(
        &self,
        owner: Owner,
        queue: &str,
        exchange: &str,
        key: &str,
        arguments: Table<'_>,
    ) -> Result<(), Exception> {
        let queue = strip_newlines(queue);
        check_no_reply_queue(&queue)?;
        let destination = Destination::Queue(queue.as_ref().into());
        self.unbind(Some(owner), exchange, &binding(destination, key, arguments))
    }

    /// Binds the exchange `destination` to the exchange `source`, so that messages of `source` also
    /// go to `destination`.
    ///
    /// # Errors
    /// As [`VirtualHost::bind_queue`].
    pub fn bind_exchange(
        &self,
        destination: &str,
        source: &str,
        key: &str,
        arguments: Table<'_>,
    ) -> Result<(), Exception> {
        let destination = strip_newlines(destination);
        check_not_default(&destination)?;
        let destination = Destination::Exchange(destination.as_ref().into());
        self.bind(None, source, binding(destination, key, arguments))
    }

    /// Removes a binding between exchanges; does nothing if there is no such binding.
    ///
    /// # Errors
    /// The default exchange (403).
    pub fn unbind_exchange(
        &self,
        destination: &str,
        source: &str,
        key: &str,
        arguments: Table<'_>,
    ) -> Result<(), Exception> {
        let destination = strip_newlines(destination);
        check_not_default(&destination)?;
        let destination = Destination::Exchange(destination.as_ref().into());
        self.unbind(None, source, &binding(destination, key, arguments))
    }

    fn bind(&self, owner: Option<Owner>, source: &str, binding: Binding) -> Result<(), Exception> {
        let source = strip_newlines(source);
        let resource = Resource::exchange(&source);
        check_not_default(&source)?;
        let mut definitions = self.definitions.lock();
        if self.check_bind(owner, &source, &binding)? {
            return Ok(());
        }
        let bytes = stored::binding_bytes(&source, &binding);
        self.charge(&mut definitions, &resource, bytes)?;
        // Persisted only if both ends are durable.
        let ends = (
            self.exchange_id(&definitions, &source),
            self.destination_id(&definitions, &binding.destination),
        );
        if let (Some(from), Some(to)) = ends {
            let key = stored::binding_key(&source, &binding);
            let value = stored::encode_ends(from, to);
            if let Err(error) = self.realm.put_value(&key, Some(value)) {
                definitions.discharge(bytes);
                return Err(refused(&resource, &error));
            }
        }
        let bound = self.state.write().topology.bind(&source, binding);
        self.changed();
        match bound {
            Ok(_) => Ok(()),
            // Cannot happen: the exchange existed above, and `definitions` has been locked since.
            Err(TopologyError::NoExchange | TopologyError::InUse) => {
                Err(Exception::not_found(&resource))
            }
        }
    }

    /// Whether the binding exists already. Both ends must exist and allow it.
    fn check_bind(
        &self,
        owner: Option<Owner>,
        source: &str,
        binding: &Binding,
    ) -> Result<bool, Exception> {
        let state = self.state.read();
        let Some(exchange) = state.topology.exchange(source) else {
            return Err(Exception::not_found(&Resource::exchange(source)));
        };
        let queue = match &binding.destination {
            Destination::Queue(name) => match state.queues.get(name) {
                Some(slot) if !slot.queue.is_deleted() => Some(&slot.queue),
                _ => return Err(Exception::not_found(&Resource::queue(name))),
            },
            Destination::Exchange(name) => match state.topology.exchange(name) {
                Some(_) => None,
                None => return Err(Exception::not_found(&Resource::exchange(name))),
            },
        };
        let arguments = Table::check(&binding.arguments).unwrap_or_default();
        Topology::check_arguments(exchange.options.kind, arguments)
            .map_err(Exception::precondition)?;
        if let (Some(queue), Some(owner)) = (queue, owner) {
            queue.check_access(owner)?;
        }
        Ok(exchange.has_binding(binding))
    }

    fn unbind(
        &self,
        owner: Option<Owner>,
        source: &str,
        binding: &Binding,
    ) -> Result<(), Exception> {
        let source = strip_newlines(source);
        check_not_default(&source)?;
        let mut definitions = self.definitions.lock();
        let key = {
            let state = self.state.read();
            let Some(exchange) = state.topology.exchange(&source) else {
                return Ok(());
            };
            if !exchange.has_binding(binding) {
                return Ok(());
            }
            if let (Destination::Queue(name), Some(owner)) = (&binding.destination, owner)
                && let Some(slot) = state.queues.get(name)
            {
                slot.queue.check_access(owner)?;
            }
            // If an auto-delete exchange loses its last binding, its own entry is removed instead:
            // without the exchange the binding's entry has no effect at the next start.
            if exchange.options.auto_delete && exchange.bindings().nth(1).is_none() {
                stored::exchange_key(&source)
            } else {
                stored::binding_key(&source, binding)
            }
        };
        if self.realm.value(&key).is_some() {
            let gone = self.realm.put_value(&key, None);
            gone.map_err(|error| refused(&Resource::exchange(&source), &error))?;
        }
        let removed = self.state.write().topology.unbind(&source, binding);
        self.changed();
        if let Ok(removed) = removed {
            self.forget_definitions(&mut definitions, &removed);
        }
        Ok(())
    }
}

/// A binding with its arguments sorted, so that their order makes no difference.
fn binding(destination: Destination, key: &str, arguments: Table<'_>) -> Binding {
    Binding {
        destination,
        key: key.into(),
        arguments: sorted(arguments),
    }
}

fn sorted(arguments: Table<'_>) -> Arc<[u8]> {
    let mut fields: Vec<(&str, Value<'_>)> = arguments.fields().collect();
    if fields.is_sorted_by_key(|(name, _)| *name) {
        return arguments.bytes().into();
    }
    fields.sort_by_key(|(name, _)| *name);
    table_bytes(&fields).into()
}
