//! Declaring and deleting exchanges.

use std::sync::Arc;

use uuid::Uuid;

use super::names::{check_not_default, check_reserved, in_use, strip_newlines};
use super::{Definitions, ExchangeEntry, VirtualHost, refused, stored};
use crate::exception::{Exception, ReplyCode, Resource};
use crate::queue_arguments::{check_same, type_name};
use crate::routing::{Destination, ExchangeOptions, ExchangeType, Removed, TopologyError};
use crate::wire::{Table, Value, method};

/// The argument with the exchange for messages that match no binding.
const ALTERNATE: &str = "alternate-exchange";
/// The exchange type that delays messages, and the argument with the type by which it routes.
pub(super) const DELAYED_MESSAGE: &str = "x-delayed-message";
const DELAYED_KIND: &str = "x-delayed-type";

/// The predeclared exchanges, besides the default one.
pub(super) const STANDARD: &[(&str, ExchangeType)] = &[
    ("amq.direct", ExchangeType::Direct),
    ("amq.fanout", ExchangeType::Fanout),
    ("amq.headers", ExchangeType::Headers),
    ("amq.match", ExchangeType::Headers),
    ("amq.topic", ExchangeType::Topic),
];

impl VirtualHost {
    /// Creates an exchange, or checks that it exists with these properties.
    ///
    /// # Errors
    /// As in RabbitMQ: a reserved name (403), an unknown type or other properties than the existing
    /// exchange's (406), no such exchange (404, passive).
    pub fn declare_exchange(&self, declare: &method::ExchangeDeclare<'_>) -> Result<(), Exception> {
        let name = strip_newlines(declare.exchange);
        let resource = Resource::exchange(&name);
        if declare.passive {
            check_not_default(&name)?;
            return match self.state.read().topology.exchange(&name) {
                Some(_) => Ok(()),
                None => Err(Exception::not_found(&resource)),
            };
        }
        let delays = declare.kind == DELAYED_MESSAGE;
        let kind = match (ExchangeType::from_name(declare.kind), delays) {
            (Some(kind), _) => Some(kind),
            (None, true) => None,
            (None, false) => return Err(unknown_kind(declare.kind)),
        };
        check_not_default(&name)?;
        if self.check_exchange(&resource, &name, declare)? {
            return Ok(());
        }
        check_reserved("exchange", &name)?;
        check_alternate(&resource, declare.arguments)?;
        let kind = match kind {
            Some(kind) => kind,
            None => delayed_kind(declare.arguments)?,
        };
        let options = ExchangeOptions {
            kind,
            delays,
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            internal: declare.internal,
            alternate: alternate(declare.arguments),
            arguments: declare.arguments.bytes().to_vec(),
        };
        let mut definitions = self.definitions.lock();
        if self.check_exchange(&resource, &name, declare)? {
            return Ok(());
        }
        let bytes = stored::exchange_bytes(&name, &options);
        self.charge(&mut definitions, &resource, bytes)?;
        let id = options.durable.then(Uuid::new_v4);
        if let Some(id) = id {
            let value = stored::encode_exchange(&options, id);
            if let Err(error) = self
                .realm
                .put_value(&stored::exchange_key(&name), Some(value))
            {
                definitions.discharge(bytes);
                return Err(refused(&resource, &error));
            }
        }
        let entry = ExchangeEntry { id, bytes };
        definitions.exchanges.insert(name.as_ref().into(), entry);
        self.state.write().topology.declare(&name, options);
        self.changed();
        Ok(())
    }

    /// Whether the exchange exists; if so, its properties must be those declared.
    fn check_exchange(
        &self,
        resource: &Resource<'_>,
        name: &str,
        declare: &method::ExchangeDeclare<'_>,
    ) -> Result<bool, Exception> {
        let state = self.state.read();
        let Some(exchange) = state.topology.exchange(name) else {
            return Ok(false);
        };
        let options = &exchange.options;
        let current = kind_name(options);
        if declare.kind != current {
            let (received, current) = (atom(declare.kind), atom(current));
            return Err(Exception::inequivalent(
                "type", resource, &received, &current,
            ));
        }
        let flags = [
            ("durable", declare.durable, options.durable),
            ("auto_delete", declare.auto_delete, options.auto_delete),
            ("internal", declare.internal, options.internal),
        ];
        for (argument, received, current) in flags {
            check_flag(argument, resource, received, current)?;
        }
        let current = Table::check(&options.arguments).unwrap_or_default();
        check_same(
            ALTERNATE,
            resource,
            declare.arguments.get(ALTERNATE),
            current.get(ALTERNATE),
        )?;
        Ok(true)
    }

    /// Deletes an exchange with its bindings; does nothing if it does not exist.
    ///
    /// # Errors
    /// A predeclared exchange (403); it has bindings and `if_unused` is set (406).
    pub fn delete_exchange(&self, name: &str, if_unused: bool) -> Result<(), Exception> {
        let name = strip_newlines(name);
        let resource = Resource::exchange(&name);
        check_not_default(&name)?;
        if name.starts_with("amq.") {
            let text = format!("deletion of system {resource} not allowed");
            return Err(Exception::new(ReplyCode::AccessRefused, text));
        }
        let mut definitions = self.definitions.lock();
        match self.state.read().topology.exchange(&name) {
            None => return Ok(()),
            Some(exchange) if if_unused && exchange.bindings().next().is_some() => {
                return Err(in_use(&resource));
            }
            Some(_) => {}
        }
        // Removes the exchange's entry first: without it the entries of its bindings have no
        // effect.
        let entry = definitions.exchanges.get(name.as_ref());
        if entry.is_some_and(|entry| entry.id.is_some()) {
            let gone = self.realm.put_value(&stored::exchange_key(&name), None);
            gone.map_err(|error| refused(&resource, &error))?;
        }
        let removed = self.state.write().topology.delete(&name, if_unused);
        self.changed();
        match removed {
            Ok(removed) => self.forget_definitions(&mut definitions, &removed),
            // Cannot happen: the exchange existed above, and `definitions` has been locked since.
            Err(TopologyError::NoExchange | TopologyError::InUse) => {}
        }
        Ok(())
    }

    /// Removes the entries of deleted exchanges and bindings from the journal. If that fails, the
    /// next start drops them: a binding because one of its ends is missing, and an auto-delete
    /// exchange because its last binding's entry is kept with it, and dropping that one deletes the
    /// exchange.
    pub(super) fn forget_definitions(&self, definitions: &mut Definitions, removed: &Removed) {
        let mut left: Vec<&Arc<str>> = Vec::new();
        for name in &removed.exchanges {
            if let Some(entry) = definitions.exchanges.remove(name) {
                definitions.discharge(entry.bytes);
                if entry.id.is_some() && !self.remove_kept(&stored::exchange_key(name)) {
                    left.push(name);
                }
            }
        }
        for (source, binding) in &removed.bindings {
            definitions.discharge(stored::binding_bytes(source, binding));
            let key = stored::binding_key(source, binding);
            // For a binding that was not persisted this costs one look-up.
            if !left.contains(&source) && self.realm.value(&key).is_some() {
                self.remove_kept(&key);
            }
        }
    }

    /// Removes an entry from the journal; returns whether it succeeded.
    pub(super) fn remove_kept(&self, key: &str) -> bool {
        match self.realm.put_value(key, None) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(key, %error, "cannot be taken out of the journal yet");
                false
            }
        }
    }

    /// The identity of an exchange, if it is durable.
    pub(super) fn exchange_id(&self, definitions: &Definitions, name: &str) -> Option<Uuid> {
        match definitions.exchanges.get(name) {
            Some(entry) => entry.id,
            None => STANDARD.iter().any(|(own, _)| *own == name).then(Uuid::nil),
        }
    }

    /// The identity of a binding's destination, if it is durable.
    pub(super) fn destination_id(
        &self,
        definitions: &Definitions,
        destination: &Destination,
    ) -> Option<Uuid> {
        match destination {
            Destination::Exchange(name) => self.exchange_id(definitions, name),
            Destination::Queue(name) => {
                let state = self.state.read();
                let queue = &state.queues.get(name)?.queue;
                queue.durable.then(|| queue.topic.id())
            }
        }
    }
}

/// The exchange type as clients name it.
pub(super) fn kind_name(options: &ExchangeOptions) -> &'static str {
    if options.delays {
        DELAYED_MESSAGE
    } else {
        options.kind.name()
    }
}

/// The exchange for messages that match no binding, from an exchange's arguments.
pub(super) fn alternate(arguments: Table<'_>) -> Option<Arc<str>> {
    arguments.get(ALTERNATE)?.as_text().map(Arc::from)
}

/// An exchange type as RabbitMQ prints it in error texts: an Erlang atom, with quotes of its own if
/// it needs them.
fn atom(kind: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '@';
    if kind.chars().all(is_plain) {
        format!("'{kind}'")
    } else {
        format!("''{kind}''")
    }
}

/// Checks that a flag is equal in two declarations (406).
pub(super) fn check_flag(
    argument: &str,
    resource: &Resource<'_>,
    received: bool,
    current: bool,
) -> Result<(), Exception> {
    if received == current {
        return Ok(());
    }
    let (received, current) = (format!("'{received}'"), format!("'{current}'"));
    Err(Exception::inequivalent(
        argument, resource, &received, &current,
    ))
}

fn unknown_kind(kind: &str) -> Exception {
    Exception::precondition(format!("unknown exchange type '{kind}'"))
}

fn check_alternate(resource: &Resource<'_>, arguments: Table<'_>) -> Result<(), Exception> {
    check_text(ALTERNATE, resource, arguments.get(ALTERNATE))
}

/// Checks that an argument that names an exchange is a string (406).
pub(super) fn check_text(
    argument: &str,
    resource: &Resource<'_>,
    value: Option<Value<'_>>,
) -> Result<(), Exception> {
    match value {
        None => Ok(()),
        Some(value) if value.as_text().is_some() => Ok(()),
        Some(value) => Err(Exception::precondition(format!(
            "invalid type '{}' for arg '{argument}' in {resource}",
            type_name(value)
        ))),
    }
}

fn delayed_kind(arguments: Table<'_>) -> Result<ExchangeType, Exception> {
    let name = arguments.get(DELAYED_KIND).and_then(|kind| kind.as_text());
    let Some(name) = name else {
        return Err(Exception::precondition(
            "Invalid argument, 'x-delayed-type' must be an existing exchange type",
        ));
    };
    ExchangeType::from_name(name).ok_or_else(|| unknown_kind(name))
}
