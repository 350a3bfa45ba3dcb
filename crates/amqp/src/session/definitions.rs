//! Methods that make, bind and remove exchanges and queues.

use std::sync::Arc;

use super::Session;
use super::publishes::batches::REPLY_TO;
use crate::exception::{Exception, ReplyCode};
use crate::wire::{Method, method};

impl Session {
    /// The queue that a name means on this channel: an empty one is the last that was declared.
    pub(super) fn queue_name(&self, number: u16, name: &str) -> Result<Arc<str>, Exception> {
        let channel = self.channels.get(&number);
        match (name, channel.map(|channel| &channel.last_queue)) {
            ("", Some(last)) if !last.is_empty() => Ok(Arc::clone(last)),
            ("", _) => Err(Exception::new(
                ReplyCode::NotFound,
                "no previously declared queue",
            )),
            (name, _) => Ok(name.into()),
        }
    }

    /// The routing key of a binding: with an empty queue an empty key is that queue's name.
    fn binding_key(&self, number: u16, queue: &str, key: &str) -> Result<Arc<str>, Exception> {
        match (queue, key) {
            ("", "") => self.queue_name(number, queue),
            (_, key) => Ok(key.into()),
        }
    }

    /// `queue.declare`.
    pub(super) fn declare_queue(
        &mut self,
        number: u16,
        declare: &method::QueueDeclare<'_>,
    ) -> Result<(), Exception> {
        let declared;
        let (name, message_count, consumer_count) = if declare.queue == REPLY_TO {
            let channel = self.channels.get(&number);
            let is_consumed = channel.is_some_and(|channel| channel.reply_queue.is_some());
            (REPLY_TO, 0, is_consumed.into())
        } else {
            declared = match (declare.passive, declare.queue) {
                (true, "") => {
                    let name = self.queue_name(number, "")?;
                    let declare = method::QueueDeclare {
                        queue: &name,
                        ..*declare
                    };
                    self.host.declare_queue(self.owner, &declare)?
                }
                _ => self.host.declare_queue(self.owner, declare)?,
            };
            let (ready, consumers) = if declared.name.starts_with(REPLY_TO) {
                // As RabbitMQ, where nothing waits on the way to who asked.

                (0, 1)
            } else {
                declared.counts()
            };
            if let Some(channel) = self.channels.get_mut(&number) {
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
        number: u16,
        bind: &method::QueueBind<'_>,
    ) -> Result<(), Exception> {
        let queue = self.queue_name(number, bind.queue)?;
        let key = self.binding_key(number, bind.queue, bind.routing_key)?;
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
        number: u16,
        unbind: &method::QueueUnbind<'_>,
    ) -> Result<(), Exception> {
        let queue = self.queue_name(number, unbind.queue)?;
        let key = self.binding_key(number, unbind.queue, unbind.routing_key)?;
        self.host
            .unbind_queue(self.owner, &queue, unbind.exchange, &key, unbind.arguments)?;
        self.reply(number, &Method::QueueUnbindOk(method::QueueUnbindOk {}));
        Ok(())
    }

    /// `queue.purge`.
    pub(super) fn purge_queue(
        &mut self,
        number: u16,
        purge: &method::QueuePurge<'_>,
    ) -> Result<(), Exception> {
        let queue = self.queue_name(number, purge.queue)?;
        let message_count = self.host.purge_queue(self.owner, &queue)?;
        let ok = Method::QueuePurgeOk(method::QueuePurgeOk { message_count });
        self.reply_unless(purge.no_wait, number, &ok);
        Ok(())
    }

    /// `queue.delete`.
    pub(super) fn delete_queue(
        &mut self,
        number: u16,
        delete: &method::QueueDelete<'_>,
    ) -> Result<(), Exception> {
        let queue = self.queue_name(number, delete.queue)?;
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
