//! Rights: rules, and the decision by them.

use crate::login::Principal;
use crate::pattern::{Pattern, PatternError};

/// An operation for which a client needs a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Publish messages.
    Publish,
    /// Consume messages.
    Consume,
    /// Create, change or delete the resource.
    Declare,
    /// See that the resource exists, and its properties. A right to any other operation includes
    /// this one.
    Describe,
    /// Administrate the broker.
    Administrate,
}

/// A type of resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ResourceKind {
    /// A topic of Kafka or NSQ, or a queue of AMQP. NSQ's SUB needs a right to a channel instead,
    /// and AMQP's publish one to an exchange.
    Topic,
    /// An exchange of AMQP.
    Exchange,
    /// A channel of NSQ: a topic's subscription with a name.
    Channel,
    /// A consumer group of Kafka, which may read several topics.
    Group,
    /// The broker, or a whole namespace.
    Broker,
}

/// Defines a set of `$of` as a bit mask, by the number of each value.
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
set!(ResourceKinds of ResourceKind, "Kinds of resources that a rule is about.");

/// A resource on which an operation is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a> {
    /// Its namespace, for example a virtual host or an account.
    pub namespace: &'a str,
    /// Its kind.
    pub kind: ResourceKind,
    /// Of a channel, its topic; empty for other resources.
    pub topic: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// Whether a rule allows or denies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleEffect {
    /// Allows the operations, unless another rule denies them.
    Allow,
    /// Denies the operations, whatever other rules allow.
    Deny,
}

/// A rule. It applies to an operation if all its conditions do.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Whether it allows or denies.
    pub effect: RuleEffect,
    /// The names of the principals.
    pub principals: Pattern,
    /// The operations.
    pub operations: Operations,
    /// The namespaces of the resources.
    pub namespaces: Pattern,
    /// The types of the resources.
    pub kinds: ResourceKinds,
    /// The topics of channels. For other resources the pattern has to match the empty name.
    pub topics: Pattern,
    /// The names of the resources: at least one of these patterns has to match.
    pub names: Vec<Pattern>,
}

impl Rule {
    /// RabbitMQ's permissions of a user in a virtual host: one expression each for the names that
    /// the user may configure, write and read. An empty expression matches only the empty name.
    ///
    /// Source: <https://www.rabbitmq.com/docs/access-control#authorisation>. Unlike in RabbitMQ,
    /// the expressions have no look-ahead and no look-behind.
    ///
    /// # Errors
    /// One of the expressions is invalid.
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
                effect: RuleEffect::Allow,
                principals: Pattern::Is(user.to_owned()),
                operations: [operation].into_iter().collect(),
                namespaces: Pattern::Is(virtual_host.to_owned()),
                kinds: [ResourceKind::Topic, ResourceKind::Exchange]
                    .into_iter()
                    .collect(),
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

    /// Whether the rule applies to this operation on `it`.
    fn applies_to(&self, principal: &Principal, operation: Operation, it: &Resource<'_>) -> bool {
        // A rule that allows any operation also allows Describe. A rule that denies another
        // operation does not deny Describe.
        let shows = operation == Operation::Describe
            && self.effect == RuleEffect::Allow
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
    /// Number of rules.
    pub fn count(&self) -> usize {
        self.rules.len()
    }

    /// Whether the principal may do `operation` on the resource: a rule allows it, and none denies
    /// it.
    pub fn may(&self, who: &Principal, operation: Operation, resource: &Resource<'_>) -> bool {
        let about = |rule: &&Rule| rule.applies_to(who, operation, resource);
        let mut about = self.rules.iter().filter(about).peekable();
        about.peek().is_some() && about.all(|rule| rule.effect == RuleEffect::Allow)
    }
}

impl FromIterator<Rule> for Grants {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        let rules = rules.into_iter().collect();
        Self { rules }
    }
}
