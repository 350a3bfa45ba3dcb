//! Exchanges and their bindings: the queues to which a message goes.
//!
//! This is pure computation on names and tables, without queues and broker. A message reaches each
//! queue once, however many bindings lead there.
//!
//! Source: AMQP 0-9-1 specification, section 3.1.3; RabbitMQ's documentation of exchange to
//! exchange bindings, alternate exchanges and sender-selected distribution.

mod header_index;
mod headers;
mod topic;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use self::header_index::HeaderIndex;
use self::headers::SortedHeaders;
use self::topic::Patterns;
use crate::wire::{Table, Value};

/// A queue or an exchange to which a message can be routed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// A queue, by name.
    Queue(Arc<str>),
    /// A further exchange, by name.
    Exchange(Arc<str>),
}

impl Destination {
    /// The name.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Self::Queue(name) | Self::Exchange(name) => name,
        }
    }
}

/// The type of an exchange: how it matches messages with bindings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeType {
    /// The routing key equals the binding's key.
    Direct,
    /// Every message matches every binding.
    Fanout,
    /// The routing key matches the binding's pattern.
    Topic,
    /// The headers match the binding's arguments.
    Headers,
}

impl ExchangeType {
    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "direct" => Some(Self::Direct),
            "fanout" => Some(Self::Fanout),
            "topic" => Some(Self::Topic),
            "headers" => Some(Self::Headers),
            _ => None,
        }
    }

    /// The type's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
        }
    }
}

/// The options with which an exchange was declared.
#[derive(Debug, Clone, PartialEq)]
pub struct ExchangeOptions {
    /// The exchange type.
    pub kind: ExchangeType,
    /// Messages are delayed by the milliseconds in their header `x-delay` (`x-delayed-message`).
    pub delays: bool,
    /// The exchange survives a restart.
    pub durable: bool,
    /// The exchange is deleted with its last binding.
    pub auto_delete: bool,
    /// Clients cannot publish to it; only other exchanges route to it.
    pub internal: bool,
    /// The exchange for messages that match no binding (`alternate-exchange`).
    pub alternate: Option<Arc<str>>,
    /// All arguments, an encoded field table.
    pub arguments: Vec<u8>,
}

/// A binding of an exchange, without its source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Binding {
    /// The destination.
    pub destination: Destination,
    /// The routing key or pattern.
    pub key: Arc<str>,
    /// The arguments, an encoded field table.
    pub arguments: Arc<[u8]>,
}

/// An exchange with its bindings.
#[derive(Debug)]
pub struct Exchange {
    /// The options with which it was declared.
    pub options: ExchangeOptions,
    bindings: BTreeSet<Binding>,
    /// Destinations by key, if this is a direct exchange.
    by_key: HashMap<Arc<str>, Vec<Destination>>,
    /// The patterns, if this is a topic exchange.
    patterns: Patterns,
    /// The bindings' arguments, if this is a headers exchange.
    headers: HeaderIndex,
}

impl Exchange {
    fn new(options: ExchangeOptions) -> Self {
        Self {
            options,
            bindings: BTreeSet::new(),
            by_key: HashMap::new(),
            patterns: Patterns::default(),
            headers: HeaderIndex::default(),
        }
    }

    /// The bindings, in order.
    pub fn bindings(&self) -> impl Iterator<Item = &Binding> {
        self.bindings.iter()
    }

    /// Whether the exchange has exactly this binding.
    pub fn has_binding(&self, binding: &Binding) -> bool {
        self.bindings.contains(binding)
    }

    fn bind(&mut self, binding: Binding) -> bool {
        if self.bindings.contains(&binding) {
            return false;
        }
        let destination = binding.destination.clone();
        match self.options.kind {
            ExchangeType::Direct => {
                let destinations = self.by_key.entry(binding.key.clone()).or_default();
                destinations.push(destination);
            }
            ExchangeType::Topic => self.patterns.insert(&binding.key, destination),
            ExchangeType::Headers => self.headers.insert(&binding),
            ExchangeType::Fanout => {}
        }
        self.bindings.insert(binding)
    }

    fn unbind(&mut self, binding: &Binding) -> bool {
        if !self.bindings.remove(binding) {
            return false;
        }
        match self.options.kind {
            ExchangeType::Direct => {
                if let Some(destinations) = self.by_key.get_mut(&binding.key) {
                    let is_it = |found: &Destination| *found == binding.destination;
                    if let Some(place) = destinations.iter().position(is_it) {
                        destinations.remove(place);
                    }
                    if destinations.is_empty() {
                        self.by_key.remove(&binding.key);
                    }
                }
            }
            ExchangeType::Topic => self.patterns.remove(&binding.key, &binding.destination),
            ExchangeType::Headers => self.headers.remove(binding),
            ExchangeType::Fanout => {}
        }
        true
    }

    fn matches<'a, 'm>(
        &'a self,
        message: &RoutedMessage<'m>,
        headers: &OnceCell<SortedHeaders<'m>>,
        mut found: impl FnMut(&'a Destination),
    ) {
        match self.options.kind {
            ExchangeType::Fanout => self.bindings.iter().for_each(|b| found(&b.destination)),
            ExchangeType::Direct => {
                for key in message.keys() {
                    self.by_key
                        .get(key)
                        .into_iter()
                        .flatten()
                        .for_each(&mut found);
                }
            }
            ExchangeType::Topic => {
                for key in message.keys() {
                    self.patterns.matches(key, &mut found);
                }
            }
            ExchangeType::Headers => {
                let headers = headers.get_or_init(|| SortedHeaders::new(message.headers));
                self.headers
                    .matches(headers, |binding| found(&binding.destination));
            }
        }
    }
}

/// The parts of a message that routing needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoutedMessage<'a> {
    /// The routing key.
    pub key: &'a str,
    /// The user's headers. `CC` and `BCC` have further routing keys.
    pub headers: Table<'a>,
}

impl<'a> RoutedMessage<'a> {
    /// Whether the message has a header `CC` or `BCC`.
    pub fn has_more_keys(&self) -> bool {
        !self.headers.is_empty()
            && self
                .headers
                .fields()
                .any(|(name, _)| name == "CC" || name == "BCC")
    }

    /// The routing keys of the message, those in `CC` and `BCC` included.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let more = |name| match self.headers.get(name) {
            Some(Value::Array(keys)) => Some(keys),
            _ => None,
        };
        let more = [more("CC"), more("BCC")].into_iter().flatten();
        let more = more.flat_map(|keys| keys.values());
        std::iter::once(self.key).chain(more.filter_map(|key| match key {
            Value::String(key) => std::str::from_utf8(key).ok(),
            _ => None,
        }))
    }
}

/// The result of routing a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingResult {
    /// The queues, without duplicates, in no particular order.
    pub queues: Vec<Arc<str>>,
    /// A headers exchange was involved, so exchange and routing key alone do not determine the
    /// result.
    pub by_headers: bool,
}

/// Why an exchange cannot be bound, unbound or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopologyError {
    /// There is no such exchange.
    NoExchange,
    /// The exchange has bindings, and was to be deleted only without any.
    InUse,
}

/// All exchanges of a virtual host except the default one, whose bindings are the queues' names.
#[derive(Debug, Default)]
pub struct Topology {
    exchanges: BTreeMap<Arc<str>, Exchange>,
    /// For each destination the exchanges it is bound to (the sources), with the number of
    /// bindings.
    sources: HashMap<Destination, BTreeMap<Arc<str>, usize>>,
}

/// Exchanges and bindings that were removed.
#[derive(Debug, Default, PartialEq)]
pub struct Removed {
    /// The exchanges, the requested one first.
    pub exchanges: Vec<Arc<str>>,
    /// The bindings, each with its source.
    pub bindings: Vec<(Arc<str>, Binding)>,
}

impl Topology {
    /// The exchange with this name.
    pub fn exchange(&self, name: &str) -> Option<&Exchange> {
        self.exchanges.get(name)
    }

    /// All exchanges, by name.
    pub fn exchanges(&self) -> impl Iterator<Item = (&Arc<str>, &Exchange)> {
        self.exchanges.iter()
    }

    /// Adds an exchange; an existing one with this name is kept.
    pub fn declare(&mut self, name: &str, options: ExchangeOptions) {
        if !self.exchanges.contains_key(name) {
            self.exchanges.insert(name.into(), Exchange::new(options));
        }
    }

    /// Checks the arguments of a binding of an exchange of this type.
    ///
    /// # Errors
    /// They are invalid; with RabbitMQ's text.
    pub fn check_arguments(kind: ExchangeType, arguments: Table<'_>) -> Result<(), String> {
        match kind {
            ExchangeType::Headers => headers::check(arguments),
            ExchangeType::Direct | ExchangeType::Fanout | ExchangeType::Topic => Ok(()),
        }
    }

    /// Adds a binding; returns whether it is new.
    ///
    /// # Errors
    /// There is no such exchange.
    pub fn bind(&mut self, source: &str, binding: Binding) -> Result<bool, TopologyError> {
        let exchange = self.exchanges.get_mut(source);
        let exchange = exchange.ok_or(TopologyError::NoExchange)?;
        let destination = binding.destination.clone();
        let is_new = exchange.bind(binding);
        if is_new {
            let sources = self.sources.entry(destination).or_default();
            *sources.entry(source.into()).or_default() += 1;
        }
        Ok(is_new)
    }

    /// Removes a binding, if it exists, and an auto-delete exchange with its last binding.
    ///
    /// # Errors
    /// There is no such exchange.
    pub fn unbind(&mut self, source: &str, binding: &Binding) -> Result<Removed, TopologyError> {
        if !self.exchanges.contains_key(source) {
            return Err(TopologyError::NoExchange);
        }
        let mut removed = Removed::default();
        self.unbind_one(source, binding, &mut removed);
        Ok(removed)
    }

    fn unbind_one(&mut self, source: &str, binding: &Binding, removed: &mut Removed) {
        let Some((name, _)) = self.exchanges.get_key_value(source) else {
            return;
        };
        let name = name.clone();
        let Some(exchange) = self.exchanges.get_mut(source) else {
            return;
        };
        if !exchange.unbind(binding) {
            return;
        }
        let is_last = exchange.options.auto_delete && exchange.bindings.is_empty();
        self.forget_source(&name, &binding.destination);
        removed.bindings.push((name.clone(), binding.clone()));
        if is_last {
            self.remove_exchange(&name, removed);
        }
    }

    fn forget_source(&mut self, source: &Arc<str>, destination: &Destination) {
        let Some(sources) = self.sources.get_mut(destination) else {
            return;
        };
        if let Some(count) = sources.get_mut(source) {
            *count -= 1;
            if *count == 0 {
                sources.remove(source);
            }
        }
        if sources.is_empty() {
            self.sources.remove(destination);
        }
    }

    /// Removes an exchange with all its bindings, as source and as destination.
    ///
    /// # Errors
    /// There is no such exchange, or it has bindings and `if_unused` is set.
    pub fn delete(&mut self, name: &str, if_unused: bool) -> Result<Removed, TopologyError> {
        let exchange = self.exchanges.get(name).ok_or(TopologyError::NoExchange)?;
        if if_unused && !exchange.bindings.is_empty() {
            return Err(TopologyError::InUse);
        }
        let mut removed = Removed::default();
        self.remove_exchange(name, &mut removed);
        Ok(removed)
    }

    fn remove_exchange(&mut self, name: &str, removed: &mut Removed) {
        let Some((name, exchange)) = self.exchanges.remove_entry(name) else {
            return;
        };
        removed.exchanges.push(name.clone());
        for binding in exchange.bindings {
            self.forget_source(&name, &binding.destination);
            removed.bindings.push((name.clone(), binding));
        }
        self.unbind_all(&Destination::Exchange(name), removed);
    }

    /// Removes all bindings of a queue that was deleted.
    pub fn forget_queue(&mut self, name: &str) -> Removed {
        let mut removed = Removed::default();
        self.unbind_all(&Destination::Queue(name.into()), &mut removed);
        removed
    }

    fn unbind_all(&mut self, destination: &Destination, removed: &mut Removed) {
        let sources = self.sources.get(destination).cloned().unwrap_or_default();
        for source in sources.into_keys() {
            let Some(exchange) = self.exchanges.get(&source) else {
                continue;
            };
            // Bindings are sorted by destination first, so the others of the source are not
            // visited.
            let first = Binding {
                destination: destination.clone(),
                key: "".into(),
                arguments: Arc::new([]),
            };
            let leads_there = |binding: &&Binding| binding.destination == *destination;
            let bindings = exchange.bindings.range(first..).take_while(leads_there);
            let bindings: Vec<Binding> = bindings.cloned().collect();
            for binding in bindings {
                self.unbind_one(&source, &binding, removed);
            }
        }
    }

    /// Routes a message that is published to the exchange `name`; `None`: there is no such
    /// exchange.
    pub fn route(&self, name: &str, message: &RoutedMessage<'_>) -> Option<RoutingResult> {
        let (name, exchange) = self.exchanges.get_key_value(name)?;
        let mut routing = RoutingResult::default();
        let mut seen_queues: HashSet<&Arc<str>> = HashSet::new();
        let mut seen: HashSet<&Arc<str>> = HashSet::from([name]);
        let mut pending = vec![exchange];
        // Sorted once for all headers exchanges, if there are any.
        let headers = OnceCell::new();
        while let Some(exchange) = pending.pop() {
            let mut next_exchanges: Vec<&Arc<str>> = Vec::new();
            let mut found_any = false;
            routing.by_headers |= exchange.options.kind == ExchangeType::Headers;
            exchange.matches(message, &headers, |destination| {
                found_any = true;
                match destination {
                    Destination::Queue(queue) => {
                        if seen_queues.insert(queue) {
                            routing.queues.push(queue.clone());
                        }
                    }
                    Destination::Exchange(name) => next_exchanges.push(name),
                }
            });
            if !found_any {
                next_exchanges.extend(&exchange.options.alternate);
            }
            for name in next_exchanges {
                if let Some((name, exchange)) = self.exchanges.get_key_value(name)
                    && seen.insert(name)
                {
                    pending.push(exchange);
                }
            }
        }
        Some(routing)
    }
}

#[cfg(test)]
mod tests;
