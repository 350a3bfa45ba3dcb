//! Access checks per method, as in RabbitMQ: its `configure` is [`Operation::Declare`], `write` is
//! [`Operation::Publish`], `read` is [`Operation::Consume`].
//!
//! Source: <https://www.rabbitmq.com/docs/access-control#authorisation>.

use std::borrow::Cow;

use cloverleaf_access::{Operation, ResourceKind};
use cloverleaf_broker::Realm;

use super::channel::Channels;
use crate::exception::{Exception, ReplyCode, Resource};
use crate::host::{is_reply_queue, name_prefix, strip_newlines};
use crate::wire::{Method, Table, Value, method};

/// The default exchange's name in access rules.
const DEFAULT_EXCHANGE: &str = "amq.default";

/// Stands for the random part of a server-named queue's name, which is generated later: access
/// rules see a name of the same form.
const SAMPLE_TOKEN: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// The connection's user, for access checks.
pub(super) struct User<'a> {
    pub(super) realm: &'a Realm,
    pub(super) name: &'a str,
}

impl User<'_> {
    /// Checks the right to an operation on a queue.
    fn queue(&self, operation: Operation, name: &str) -> Result<(), Exception> {
        let name = strip_newlines(name);
        if is_reply_queue(&name) || self.realm.may(operation, ResourceKind::Topic, "", &name) {
            Ok(())
        } else {
            Err(self.refused(&Resource::queue(&name)))
        }
    }

    /// Checks the right to an operation on an exchange.
    pub(super) fn exchange(&self, operation: Operation, name: &str) -> Result<(), Exception> {
        let name = match name {
            "" => Cow::Borrowed(DEFAULT_EXCHANGE),
            name => strip_newlines(name),
        };
        if self.realm.may(operation, ResourceKind::Exchange, "", &name) {
            Ok(())
        } else {
            Err(self.refused(&Resource::exchange(&name)))
        }
    }

    /// Checks the rights for a method that names queues or exchanges. `basic.publish` is checked
    /// when its route is looked up.
    ///
    /// # Errors
    /// `ACCESS_REFUSED`, with RabbitMQ's text.
    pub(super) fn check(
        &self,
        channels: &Channels,
        number: u16,
        method: &Method<'_>,
    ) -> Result<(), Exception> {
        use Operation::{Consume, Declare, Publish};
        if self.realm.is_unrestricted() {
            return Ok(());
        }
        let queue = |operation, name: &str| match channels.queue_name(number, name) {
            Ok(name) => self.queue(operation, &name),
            // The method itself reports that there is no such queue.
            Err(_) => Ok(()),
        };
        match method {
            Method::QueueDeclare(declare) if declare.passive => Ok(()),
            Method::QueueDeclare(declare) => {
                let name = match strip_newlines(declare.queue) {
                    name if name.is_empty() => {
                        format!("{}-{SAMPLE_TOKEN}", name_prefix(declare.arguments))
                    }
                    name => name.into_owned(),
                };
                self.queue(Declare, &name)?;
                match exchange_in(declare.arguments, "x-dead-letter-exchange") {
                    Some(letters) => {
                        self.queue(Consume, &name)?;
                        self.exchange(Publish, letters)
                    }
                    None => Ok(()),
                }
            }
            Method::QueueDelete(delete) => queue(Declare, delete.queue),
            Method::QueuePurge(purge) => queue(Consume, purge.queue),
            Method::QueueBind(bind) => {
                queue(Publish, bind.queue)?;
                self.exchange(Consume, bind.exchange)
            }
            Method::QueueUnbind(unbind) => {
                queue(Publish, unbind.queue)?;
                self.exchange(Consume, unbind.exchange)
            }
            Method::BasicGet(get) => queue(Consume, get.queue),
            Method::BasicConsume(consume) => queue(Consume, consume.queue),
            Method::ExchangeDeclare(declare) if declare.passive => Ok(()),
            Method::ExchangeDeclare(declare) => {
                self.exchange(Declare, declare.exchange)?;
                match exchange_in(declare.arguments, "alternate-exchange") {
                    Some(alternate) => {
                        self.exchange(Consume, declare.exchange)?;
                        self.exchange(Publish, alternate)
                    }
                    None => Ok(()),
                }
            }
            Method::ExchangeDelete(delete) => self.exchange(Declare, delete.exchange),
            Method::ExchangeBind(method::ExchangeBind {
                destination,
                source,
                ..
            })
            | Method::ExchangeUnbind(method::ExchangeUnbind {
                destination,
                source,
                ..
            }) => {
                self.exchange(Publish, destination)?;
                self.exchange(Consume, source)
            }
            _ => Ok(()),
        }
    }

    fn refused(&self, what: &Resource<'_>) -> Exception {
        let text = format!("access to {what} refused for user '{}'", self.name);
        Exception::new(ReplyCode::AccessRefused, text)
    }
}

fn exchange_in<'a>(arguments: Table<'a>, name: &str) -> Option<&'a str> {
    match arguments.get(name) {
        Some(Value::String(exchange)) => std::str::from_utf8(exchange).ok(),
        _ => None,
    }
}
