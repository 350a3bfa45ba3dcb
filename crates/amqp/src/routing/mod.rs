//! Exchanges and their bindings: to which queues a message goes.
//!
//! This is the pure part: names and tables, no queue, no broker. A message is routed once; each
//! queue gets it once, however many bindings lead there.
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
    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Self::Queue(name) | Self::Exchange(name) => name,
        }
    }
}

/// How an exchange chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The key is the binding's key.
    Direct,
    /// All bindings.
    Fanout,
    /// The key matches the binding's pattern.
    Topic,
    /// The headers match the binding's arguments.
    Headers,
}

impl Kind {
    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "direct" => Some(Self::Direct),
            "fanout" => Some(Self::Fanout),
            "topic" => Some(Self::Topic),
            "headers" => Some(Self::Headers),
            _ => None,
        }
    }

    /// Its name.
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
    /// How it chooses.
    pub kind: Kind,
    /// Messages wait for the milliseconds in their header `x-delay` first (`x-delayed-message`).
    pub delays: bool,
    /// Still there after a restart.
    pub durable: bool,
    /// Goes with its last binding.
    pub auto_delete: bool,
    /// Clients do not publish to it; other exchanges lead here.
    pub internal: bool,
    /// Where messages go that find no queue (`alternate-exchange`).
    pub alternate: Option<Arc<str>>,
    /// All arguments, a field table's bytes.
    pub arguments: Vec<u8>,
}

/// A binding of an exchange, apart from the exchange.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Binding {
    /// Where it leads.
    pub destination: Destination,
    /// The routing key or pattern.
    pub key: Arc<str>,
    /// A field table's bytes.
    pub arguments: Arc<[u8]>,
}

/// An exchange with its bindings.
#[derive(Debug)]
pub struct Exchange {
    /// The options with which it was declared.
    pub options: ExchangeOptions,
    bindings: BTreeSet<Binding>,
    /// Of a direct exchange.
    keys: HashMap<Arc<str>, Vec<Destination>>,
    /// Of a topic exchange.
    patterns: Patterns,
    /// Of a headers exchange.
    headers: HeaderIndex,
}

impl Exchange {
    fn new(options: ExchangeOptions) -> Self {
        Self {
            options,
            bindings: BTreeSet::new(),
            keys: HashMap::new(),
            patterns: Patterns::default(),
            headers: HeaderIndex::default(),
        }
    }

    /// Its bindings, in order.
    pub fn bindings(&self) -> impl Iterator<Item = &Binding> {
        self.bindings.iter()
    }

    /// Whether it has this very binding.
    pub fn has_binding(&self, binding: &Binding) -> bool {
        self.bindings.contains(binding)
    }

    fn bind(&mut self, binding: Binding) -> bool {
        if self.bindings.contains(&binding) {
            return false;
        }
        let destination = binding.destination.clone();
        match self.options.kind {
            Kind::Direct => {
                let destinations = self.keys.entry(binding.key.clone()).or_default();
                destinations.push(destination);
            }
            Kind::Topic => self.patterns.insert(&binding.key, destination),
            Kind::Headers => self.headers.insert(&binding),
            Kind::Fanout => {}
        }
        self.bindings.insert(binding)
    }

    fn unbind(&mut self, binding: &Binding) -> bool {
        if !self.bindings.remove(binding) {
            return false;
        }
        match self.options.kind {
            Kind::Direct => {
                if let Some(destinations) = self.keys.get_mut(&binding.key) {
                    let is_it = |found: &Destination| *found == binding.destination;
                    if let Some(place) = destinations.iter().position(is_it) {
                        destinations.remove(place);
                    }
                    if destinations.is_empty() {
                        self.keys.remove(&binding.key);
                    }
                }
            }
            Kind::Topic => self.patterns.remove(&binding.key, &binding.destination),
            Kind::Headers => self.headers.remove(binding),
            Kind::Fanout => {}
        }
        true
    }

    fn matches<'a, 'm>(
        &'a self,
        message: &Routed<'m>,
        headers: &OnceCell<SortedHeaders<'m>>,
        mut found: impl FnMut(&'a Destination),
    ) {
        match self.options.kind {
            Kind::Fanout => self.bindings.iter().for_each(|b| found(&b.destination)),
            Kind::Direct => {
                for key in message.keys() {
                    self.keys
                        .get(key)
                        .into_iter()
                        .flatten()
                        .for_each(&mut found);
                }
            }
            Kind::Topic => {
                for key in message.keys() {
                    self.patterns.matches(key, &mut found);
                }
            }
            Kind::Headers => {
                let headers = headers.get_or_init(|| SortedHeaders::new(message.headers));
                self.headers
                    .matches(headers, |binding| found(&binding.destination));
            }
        }
    }
}

/// The parts of a message that routing looks at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Routed<'a> {
    /// The routing key.
    pub key: &'a str,
    /// The user's headers. `CC` and `BCC` hold further routing keys.
    pub headers: Table<'a>,
}

impl<'a> Routed<'a> {
    /// Whether it has further routing keys, or could have: the fields are there.
    pub fn has_more_keys(&self) -> bool {
        !self.headers.is_empty()
            && self
                .headers
                .fields()
                .any(|(name, _)| name == "CC" || name == "BCC")
    }

    /// All its routing keys, none twice unless it was sent twice.
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

/// Where a message goes, and what that depended on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    /// The queues, each once, in no particular order.
    pub queues: Vec<Arc<str>>,
    /// A headers exchange was asked: exchange and key alone do not say it.
    pub by_headers: bool,
}

/// Why an exchange cannot be unbound, deleted or bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopologyError {
    /// There is no such exchange.
    NoExchange,
    /// It has bindings, and was to be deleted only if it has none.
    InUse,
}

/// All exchanges of a virtual host but the default one, which is the queues' own names.
#[derive(Debug, Default)]
pub struct Topology {
    exchanges: BTreeMap<Arc<str>, Exchange>,
    /// For each destination the exchanges that lead there, with the number of bindings.
    sources: HashMap<Destination, BTreeMap<Arc<str>, usize>>,
}

/// The exchanges and bindings that a removal takes away.
#[derive(Debug, Default, PartialEq)]
pub struct Removed {
    /// Exchanges, the one asked for first.
    pub exchanges: Vec<Arc<str>>,
    /// Bindings, each with its exchange.
    pub bindings: Vec<(Arc<str>, Binding)>,
}

impl Topology {
    /// The exchange of that name.
    pub fn exchange(&self, name: &str) -> Option<&Exchange> {
        self.exchanges.get(name)
    }

    /// All exchanges, by name.
    pub fn exchanges(&self) -> impl Iterator<Item = (&Arc<str>, &Exchange)> {
        self.exchanges.iter()
    }

    /// Adds an exchange; one of that name stays as it is.
    pub fn declare(&mut self, name: &str, options: ExchangeOptions) {
        if !self.exchanges.contains_key(name) {
            self.exchanges.insert(name.into(), Exchange::new(options));
        }
    }

    /// Whether the bindings of a headers exchange may look like this.
    ///
    /// # Errors
    /// They may not; in RabbitMQ's words.
    pub fn check_arguments(kind: Kind, arguments: Table<'_>) -> Result<(), String> {
        match kind {
            Kind::Headers => headers::check(arguments),
            Kind::Direct | Kind::Fanout | Kind::Topic => Ok(()),
        }
    }

    /// Adds a binding; says whether it was new.
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

    /// Removes a binding, if it is there, and the exchange with it if that was its last one and it
    /// is to go then.
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
        let goes = exchange.options.auto_delete && exchange.bindings.is_empty();
        self.forget_source(&name, &binding.destination);
        removed.bindings.push((name.clone(), binding.clone()));
        if goes {
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

    /// Removes an exchange, all its bindings, and all that lead to it.
    ///
    /// # Errors
    /// It is not there, or has bindings although `if_unused`.
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

    /// Removes all bindings that lead to a queue that is no more.
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
            // Bindings are ordered by their destinations first: there may be many others.
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

    /// Where a message goes that is published to the exchange `name`; `None`: there is no such
    /// exchange.
    pub fn route(&self, name: &str, message: &Routed<'_>) -> Option<Routing> {
        let (name, exchange) = self.exchanges.get_key_value(name)?;
        let mut routing = Routing::default();
        let mut seen_queues: HashSet<&Arc<str>> = HashSet::new();
        let mut seen: HashSet<&Arc<str>> = HashSet::from([name]);
        let mut work = vec![exchange];
        // Sorted once for all exchanges, if one asks.
        let headers = OnceCell::new();
        while let Some(exchange) = work.pop() {
            let mut further: Vec<&Arc<str>> = Vec::new();
            let mut found_any = false;
            routing.by_headers |= exchange.options.kind == Kind::Headers;
            exchange.matches(message, &headers, |destination| {
                found_any = true;
                match destination {
                    Destination::Queue(queue) => {
                        if seen_queues.insert(queue) {
                            routing.queues.push(queue.clone());
                        }
                    }
                    Destination::Exchange(name) => further.push(name),
                }
            });
            if !found_any {
                further.extend(&exchange.options.alternate);
            }
            for name in further {
                if let Some((name, exchange)) = self.exchanges.get_key_value(name)
                    && seen.insert(name)
                {
                    work.push(exchange);
                }
            }
        }
        Some(routing)
    }
}

#[cfg(test)]
mod tests;
