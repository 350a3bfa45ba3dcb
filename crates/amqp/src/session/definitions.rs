//! Methods that declare, bind and delete exchanges and queues.

use std::sync::Arc;

use super::channel::Channels;
use super::connection::Connection;
use super::deliveries::Deliveries;
use super::publishes::REPLY_TO;
use crate::exception::Exception;
use crate::wire::{Method, method};

impl Connection {
    /// `queue.declare`.
    pub(super) fn declare_queue(
        &mut self,
        channels: &mut Channels,
        deliveries: &Deliveries,
        number: u16,
        declare: &method::QueueDeclare<'_>,
    ) -> Result<(), Exception> {
        let declared;
        let (name, message_count, consumer_count) = if declare.queue == REPLY_TO {
            let is_consumed = deliveries.reply_queue(number).is_some();
            (REPLY_TO, 0, is_consumed.into())
        } else {
            declared = match (declare.passive, declare.queue) {
                (true, "") => {
                    let name = channels.queue_name(number, "")?;
                    let declare = method::QueueDeclare {
                        queue: &name,
                        ..*declare
                    };
                    self.host.declare_queue(self.owner, &declare)?
                }
                _ => self.host.declare_queue(self.owner, declare)?,
            };
            let (ready, consumers) = if declared.name.starts_with(REPLY_TO) {
                // As in RabbitMQ: a direct reply-to queue stores nothing and has one consumer.
                (0, 1)
            } else {
                declared.counts()
            };
            if let Some(channel) = channels.get_mut(number) {
                channel.last_queue = Arc::clone(&declared.name);
            }
            (&*declared.name, ready, consumers)
        };
        if !declare.no_wait {
            self.reply(
                number,
                &Method::QueueDeclareOk(method::QueueDeclareOk {
                    queue: name,
                    message_count,
                    consumer_count,
                }),
            );
        }
        Ok(())
    }

    /// `queue.bind`.
    pub(super) fn bind_queue(
        &mut self,
        channels: &Channels,
        number: u16,
        bind: &method::QueueBind<'_>,
    ) -> Result<(), Exception> {
        let queue = channels.queue_name(number, bind.queue)?;
        let key = binding_key(&queue, bind.queue, bind.routing_key);
        self.host
            .bind_queue(self.owner, &queue, bind.exchange, &key, bind.arguments)?;
        self.reply_unless(
            bind.no_wait,
            number,
            &Method::QueueBindOk(method::QueueBindOk {}),
        );
        Ok(())
    }

    /// `queue.unbind`.
    pub(super) fn unbind_queue(
        &mut self,
        channels: &Channels,
        number: u16,
        unbind: &method::QueueUnbind<'_>,
    ) -> Result<(), Exception> {
        let queue = channels.queue_name(number, unbind.queue)?;
        let key = binding_key(&queue, unbind.queue, unbind.routing_key);
        self.host
            .unbind_queue(self.owner, &queue, unbind.exchange, &key, unbind.arguments)?;
        self.reply(number, &Method::QueueUnbindOk(method::QueueUnbindOk {}));
        Ok(())
    }

    /// `queue.purge`.
    pub(super) fn purge_queue(
        &mut self,
        channels: &Channels,
        number: u16,
        purge: &method::QueuePurge<'_>,
    ) -> Result<(), Exception> {
        let queue = channels.queue_name(number, purge.queue)?;
        let message_count = self.host.purge_queue(self.owner, &queue)?;
        let ok = Method::QueuePurgeOk(method::QueuePurgeOk { message_count });
        self.reply_unless(purge.no_wait, number, &ok);
        Ok(())
    }

    /// `queue.delete`.
    pub(super) fn delete_queue(
        &mut self,
        channels: &Channels,
        number: u16,
        delete: &method::QueueDelete<'_>,
    ) -> Result<(), Exception> {
        let queue = channels.queue_name(number, delete.queue)?;
        let message_count =
            self.host
                .delete_queue(self.owner, &queue, delete.if_unused, delete.if_empty)?;
        let ok = Method::QueueDeleteOk(method::QueueDeleteOk { message_count });
        self.reply_unless(delete.no_wait, number, &ok);
        Ok(())
    }

    /// `exchange.declare`.
    pub(super) fn declare_exchange(
        &mut self,
        number: u16,
        declare: &method::ExchangeDeclare<'_>,
    ) -> Result<(), Exception> {
        self.host.declare_exchange(declare)?;
        let ok = Method::ExchangeDeclareOk(method::ExchangeDeclareOk {});
        self.reply_unless(declare.no_wait, number, &ok);
        Ok(())
    }

    /// `exchange.delete`.
    pub(super) fn delete_exchange(
        &mut self,
        number: u16,
        delete: &method::ExchangeDelete<'_>,
    ) -> Result<(), Exception> {
        self.host
            .delete_exchange(delete.exchange, delete.if_unused)?;
        let ok = Method::ExchangeDeleteOk(method::ExchangeDeleteOk {});
        self.reply_unless(delete.no_wait, number, &ok);
        Ok(())
    }

    /// `exchange.bind`.
    pub(super) fn bind_exchange(
        &mut self,
        number: u16,
        bind: &method::ExchangeBind<'_>,
    ) -> Result<(), Exception> {
        self.host.bind_exchange(
            bind.destination,
            bind.source,
            bind.routing_key,
            bind.arguments,
        )?;
        let ok = Method::ExchangeBindOk(method::ExchangeBindOk {});
        self.reply_unless(bind.no_wait, number, &ok);
        Ok(())
    }

    /// `exchange.unbind`.
    pub(super) fn unbind_exchange(
        &mut self,
        number: u16,
        unbind: &method::ExchangeUnbind<'_>,
    ) -> Result<(), Exception> {
        self.host.unbind_exchange(
            unbind.destination,
            unbind.source,
            unbind.routing_key,
            unbind.arguments,
        )?;
        let ok = Method::ExchangeUnbindOk(method::ExchangeUnbindOk {});
        self.reply_unless(unbind.no_wait, number, &ok);
        Ok(())
    }
}

/// The routing key of a binding: if both queue and key are empty, the key is the last declared
/// queue's name.
fn binding_key(queue: &Arc<str>, name: &str, key: &str) -> Arc<str> {
    match (name, key) {
        ("", "") => Arc::clone(queue),
        (_, key) => key.into(),
    }
}
