//! Rights: rules, and the verdict over them.

use crate::login::Principal;
use crate::pattern::{Pattern, PatternError};

/// One of the things that a client can want to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Add messages.
    Publish,
    /// Take messages.
    Consume,
    /// Make it, change it, delete it.
    Declare,
    /// See that it is there, and what it is. A right to do anything else with it includes this one.
    Describe,
    /// Look after the broker: for those who run it.
    Administrate,
}

/// One of the kinds of things that a client can want to do it with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A place where messages are kept, in each protocol's word: AMQP's queue is one, too. A rule
    /// about it holds for each protocol that names it so; NSQ's SUB names a channel, and AMQP's
    /// publish an exchange, which are asked for by themselves.
    Topic,
    /// AMQP's exchange.
    Exchange,
    /// A topic's subscription with a name: NSQ's channel.
    Channel,
    /// A group of consumers beyond one topic: Kafka's.
    Group,
    /// The broker itself, or all of a namespace.
    Broker,
}

/// A set of `$of`, each a bit by its number.
macro_rules! set {
    ($name:ident of $of:ty, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name(u8);

        impl $name {
            /// All there are.
            pub const ALL: Self = Self(u8::MAX);

            /// Whether it is among them.
            pub fn has(self, one: $of) -> bool {
                self.0 & (1 << one as u8) != 0
            }
        }

        impl FromIterator<$of> for $name {
            fn from_iter<I: IntoIterator<Item = $of>>(all: I) -> Self {
                Self(all.into_iter().fold(0, |set, one| set | 1 << one as u8))
            }
        }
    };
}

set!(Operations of Operation, "Operations that a rule is about.");
set!(Kinds of Kind, "Kinds of resources that a rule is about.");

/// One thing that something is to be done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a> {
    /// Where its name counts: a virtual host, an account.
    pub namespace: &'a str,
    /// Its kind.
    pub kind: Kind,
    /// The topic that it belongs to, of a channel; else empty.
    pub topic: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// Whether a rule gives or takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Allows what it is about, unless another rule denies it.
    Allow,
    /// Denies what it is about, whatever other rules say.
    Deny,
}

/// A rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Whether it gives or takes.
    pub effect: Effect,
    /// The names of those whom it is about.
    pub principals: Pattern,
    /// The operations.
    pub operations: Operations,
    /// The namespaces of what it is done with.
    pub namespaces: Pattern,
    /// The kinds of what it is done with.
    pub kinds: Kinds,
    /// The topics that channels belong to. Other kinds belong to none: the empty name.
    pub topics: Pattern,
    /// The names of what it is done with: one of these.
    pub names: Vec<Pattern>,
}

impl Rule {
    /// RabbitMQ's permissions of a user in a virtual host: what the user may configure, write to
    /// and read from, by one expression each. An empty one matches the empty name alone.
    ///
    /// Source: <https://www.rabbitmq.com/docs/access-control#authorisation>. RabbitMQ's expressions
    /// may look ahead and behind; these may not.
    ///
    /// # Errors
    /// One of them is no expression.
    pub fn permissions(
        user: &str,
        virtual_host: &str,
        [configure, write, read]: [&str; 3],
    ) -> Result<[Rule; 3], PatternError> {
        let rule = |operation, expression| {
            let expression = match expression {
                "" => "^$",
                expression => expression,
            };
            Ok(Rule {
                effect: Effect::Allow,
                principals: Pattern::Is(user.to_owned()),
                operations: [operation].into_iter().collect(),
                namespaces: Pattern::Is(virtual_host.to_owned()),
                kinds: [Kind::Topic, Kind::Exchange].into_iter().collect(),
                topics: Pattern::All,
                names: vec![Pattern::regex(expression)?],
            })
        };
        Ok([
            rule(Operation::Declare, configure)?,
            rule(Operation::Publish, write)?,
            rule(Operation::Consume, read)?,
        ])
    }

    /// Whether it is about this.
    fn is_about(&self, principal: &Principal, operation: Operation, it: &Resource<'_>) -> bool {
        // To allow anything is to allow to see it; to deny something else does not hide it.
        let shows = operation == Operation::Describe
            && self.effect == Effect::Allow
            && self.operations != Operations::default();
        (shows || self.operations.has(operation))
            && self.kinds.has(it.kind)
            && self.principals.matches(&principal.name)
            && self.namespaces.matches(it.namespace)
            && self.topics.matches(it.topic)
            && self.names.iter().any(|name| name.matches(it.name))
    }
}

/// Rules, whose order does not matter.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    rules: Vec<Rule>,
}

impl Grants {
    /// How many rules there are.
    pub fn count(&self) -> usize {
        self.rules.len()
    }

    /// Whether this principal may do this with that: a rule allows it, and none denies it.
    pub fn may(&self, who: &Principal, operation: Operation, resource: &Resource<'_>) -> bool {
        let about = |rule: &&Rule| rule.is_about(who, operation, resource);
        let mut about = self.rules.iter().filter(about).peekable();
        about.peek().is_some() && about.all(|rule| rule.effect == Effect::Allow)
    }
}

impl FromIterator<Rule> for Grants {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        let rules = rules.into_iter().collect();
        Self { rules }
    }
}
