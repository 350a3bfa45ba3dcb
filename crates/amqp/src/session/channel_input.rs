//! The input of a channel: methods, and contents received frame by frame.

use super::Session;
use super::channel::{ChannelMode, ChannelState};
use super::content::Content;
use super::deliveries::{SettleAction, TransactionSettlements};
use super::publishes::PendingCommit;
use crate::exception::{Exception, ReplyCode};
use crate::wire::{Frame, FrameType, Method, MethodId, method};

/// Maximum bytes of a payload that an error text shows.
const SHOWN_BYTES_MAX: usize = 32;
/// `basic.publish`: the method that errors in a content are attributed to.
pub(super) const PUBLISH_METHOD: MethodId = method::BasicPublish::ID;
/// For errors that are not attributed to a method.
pub(super) const NO_METHOD: MethodId = MethodId {
    class: 0,
    method: 0,
};

impl Session {
    /// Handles a frame of a channel other than 0.
    pub(super) fn channel_frame(&mut self, frame: &Frame<'_>) -> Result<(), (Exception, MethodId)> {
        let id = MethodId::peek(frame.payload);
        let Some(channel) = self.channels.get(frame.channel) else {
            return self.frame_before_open(frame);
        };
        if channel.state == ChannelState::Closing {
            return self.frame_while_closing(frame, id);
        }
        if channel.content.is_some() {
            return self
                .content_frame(frame)
                .map_err(|error| (error, PUBLISH_METHOD));
        }
        if frame.kind != FrameType::Method {
            let text = "expected method frame, got non method frame instead";
            return Err((Exception::unexpected_frame(text), NO_METHOD));
        }
        let is_committing = channel.is_committing();
        let Ok(Some(method)) = Method::read(frame.payload) else {
            return Err((unreadable(frame.payload), id));
        };
        self.channel_method(frame.channel, is_committing, &method)
            .map_err(|error| (error, id))
    }

    /// Handles a frame of a channel that is not open.
    fn frame_before_open(&mut self, frame: &Frame<'_>) -> Result<(), (Exception, MethodId)> {
        let id = MethodId::peek(frame.payload);
        let number = frame.channel;
        match (frame.kind, Method::read(frame.payload)) {
            (FrameType::Method, Ok(Some(Method::ChannelOpen(_)))) => {
                let channels_max = usize::from(self.connection.limits.channels_max);
                let count = self.channels.len();
                // Like RabbitMQ, which limits how many channels are open, but not their numbers.
                if count >= channels_max {
                    let text = format!(
                        "number of channels opened ({count}) has reached the negotiated \
                         channel_max ({channels_max})"
                    );
                    return Err((Exception::new(ReplyCode::NotAllowed, text), id));
                }
                self.connection.meter.probe.channel_opened();
                self.channels.open(number);
                self.deliveries.open_channel(number);
                let ok = Method::ChannelOpenOk(method::ChannelOpenOk::default());
                self.connection.reply(number, &ok);
                Ok(())
            }
            // Both sides have closed the channel at the same time.
            (FrameType::Method, Ok(Some(Method::ChannelCloseOk(_)))) => Ok(()),
            (FrameType::Method, Ok(Some(Method::ChannelClose(_)))) => {
                self.connection
                    .reply(number, &Method::ChannelCloseOk(method::ChannelCloseOk {}));
                Ok(())
            }
            _ => {
                let text = "expected 'channel.open'";
                Err((Exception::new(ReplyCode::ChannelError, text), id))
            }
        }
    }

    /// Handles a frame of a channel that the broker has closed; the client may not know it yet.
    fn frame_while_closing(
        &mut self,
        frame: &Frame<'_>,
        id: MethodId,
    ) -> Result<(), (Exception, MethodId)> {
        if frame.kind != FrameType::Method {
            return Ok(());
        }
        if id == method::ChannelCloseOk::ID {
            self.channels.remove(frame.channel);
        } else if id == method::ChannelClose::ID {
            let ok = Method::ChannelCloseOk(method::ChannelCloseOk {});
            self.connection.reply(frame.channel, &ok);
        }
        Ok(())
    }

    /// Starts a content that does not directly follow its `basic.publish` in one piece.
    pub(super) fn begin_content(
        &mut self,
        number: u16,
        publish: &method::BasicPublish<'_>,
    ) -> Result<(), Exception> {
        check_publish(publish)?;
        let reservation = self.publisher.new_reservation();
        if let Some(channel) = self.channels.get_mut(number) {
            channel.content = Some(Content::of(publish, reservation));
        }
        Ok(())
    }

    /// Handles a frame while a content is incomplete.
    fn content_frame(&mut self, frame: &Frame<'_>) -> Result<(), Exception> {
        let message_bytes_max = self.connection.options.message_bytes_max;
        let now_us = self.connection.now.us;
        let Some(channel) = self.channels.get_mut(frame.channel) else {
            return Ok(());
        };
        let Some(content) = &mut channel.content else {
            return Ok(());
        };
        if !content.take(frame, message_bytes_max, now_us)? {
            return Ok(());
        }
        let Some(mut content) = channel.content.take() else {
            return Ok(());
        };
        content.release();
        let (target, header, body) = (content.target(), content.header(), content.body());
        self.publish(frame.channel, target, header, body)
    }

    /// Handles a method on an open channel.
    fn channel_method(
        &mut self,
        number: u16,
        is_committing: bool,
        method: &Method<'_>,
    ) -> Result<(), Exception> {
        if !matches!(method, Method::BasicAck(_) | Method::BasicPublish(_)) {
            // A method sees the effect of everything that the client sent before it.
            self.flush();
            self.settle_acks();
            let connection = &mut self.connection;
            connection.meter.others += 1;
            connection.user().check(&self.channels, number, method)?;
        }
        if is_committing && !matches!(method, Method::ChannelClose(_)) {
            let text = "unexpected command while processing 'tx.commit'";
            return Err(Exception::new(ReplyCode::ChannelError, text));
        }
        let (connection, channels) = (&mut self.connection, &mut self.channels);
        match method {
            Method::BasicPublish(publish) => self.begin_content(number, publish),
            Method::BasicAck(ack) => {
                self.settle(number, (ack.delivery_tag, ack.multiple), SettleAction::Ack)
            }
            Method::BasicNack(nack) => {
                let deliveries = (nack.delivery_tag, nack.multiple);
                self.settle(number, deliveries, rejection(nack.requeue))
            }
            Method::BasicReject(reject) => {
                let delivery = (reject.delivery_tag, false);
                self.settle(number, delivery, rejection(reject.requeue))
            }
            Method::BasicGet(get) => self.deliveries.get(connection, channels, number, get),
            Method::BasicConsume(consume) => self
                .deliveries
                .consume(connection, channels, number, consume),
            Method::BasicCancel(cancel) => {
                self.deliveries
                    .cancel(connection, number, cancel.consumer_tag);
                let ok = method::BasicCancelOk {
                    consumer_tag: cancel.consumer_tag,
                };
                connection.reply_unless(cancel.no_wait, number, &Method::BasicCancelOk(ok));
                Ok(())
            }
            // The client's answer to a `basic.cancel` that the broker has sent.
            Method::BasicCancelOk(_) => Ok(()),
            Method::BasicQos(qos) => {
                self.deliveries.set_prefetch(number, qos)?;
                connection.reply(number, &Method::BasicQosOk(method::BasicQosOk {}));
                Ok(())
            }
            Method::BasicRecover(recover) => {
                check_recover(recover.requeue)?;
                self.deliveries.recover(connection, number);
                connection.reply(number, &Method::BasicRecoverOk(method::BasicRecoverOk {}));
                Ok(())
            }
            Method::BasicRecoverAsync(recover) => {
                check_recover(recover.requeue)?;
                self.deliveries.recover(connection, number);
                Ok(())
            }
            Method::QueueDeclare(declare) => {
                connection.declare_queue(channels, &self.deliveries, number, declare)
            }
            Method::QueueBind(bind) => connection.bind_queue(channels, number, bind),
            Method::QueueUnbind(unbind) => connection.unbind_queue(channels, number, unbind),
            Method::QueuePurge(purge) => connection.purge_queue(channels, number, purge),
            Method::QueueDelete(delete) => connection.delete_queue(channels, number, delete),
            Method::ExchangeDeclare(declare) => connection.declare_exchange(number, declare),
            Method::ExchangeDelete(delete) => connection.delete_exchange(number, delete),
            Method::ExchangeBind(bind) => connection.bind_exchange(number, bind),
            Method::ExchangeUnbind(unbind) => connection.unbind_exchange(number, unbind),
            Method::ConfirmSelect(select) => {
                channels.select_confirms(number)?;
                let ok = Method::ConfirmSelectOk(method::ConfirmSelectOk {});
                connection.reply_unless(select.no_wait, number, &ok);
                Ok(())
            }
            Method::TxSelect(_) => {
                channels.select_transactions(number, self.publisher.new_reservation())?;
                connection.reply(number, &Method::TxSelectOk(method::TxSelectOk {}));
                Ok(())
            }
            Method::TxCommit(_) => self.commit(number),
            Method::TxRollback(_) => {
                self.roll_back(number)?;
                self.connection
                    .reply(number, &Method::TxRollbackOk(method::TxRollbackOk {}));
                Ok(())
            }
            Method::ChannelFlow(flow) if flow.active => {
                let ok = method::ChannelFlowOk { active: true };
                connection.reply(number, &Method::ChannelFlowOk(ok));
                Ok(())
            }
            Method::ChannelFlow(_) => {
                Err(Exception::new(ReplyCode::NotImplemented, "active=false"))
            }
            Method::ChannelOpen(_) => Err(Exception::new(
                ReplyCode::ChannelError,
                "second 'channel.open' seen",
            )),
            Method::ChannelClose(_) => {
                self.release_channel(number);
                self.channels.remove(number);
                self.connection
                    .reply(number, &Method::ChannelCloseOk(method::ChannelCloseOk {}));
                Ok(())
            }
            Method::AccessRequest(_) => {
                let ok = method::AccessRequestOk { ticket: 1 };
                connection.reply(number, &Method::AccessRequestOk(ok));
                Ok(())
            }
            _ => Err(Exception::new(
                ReplyCode::CommandInvalid,
                "unimplemented method",
            )),
        }
    }

    /// `basic.ack`, `basic.nack`, `basic.reject`: settles one delivery, or all up to a tag.
    fn settle(
        &mut self,
        number: u16,
        (tag, multiple): (u64, bool),
        action: SettleAction,
    ) -> Result<(), Exception> {
        let runs = self.deliveries.take(number, tag, multiple)?;
        if runs.is_empty() {
            return Ok(());
        }
        match self.channels.get_mut(number).map(|it| &mut it.mode) {
            Some(ChannelMode::Transaction(transaction)) => transaction.settle(action, runs),
            _ => self.deliveries.settle(&mut self.connection, action, &runs),
        }
        Ok(())
    }

    /// `tx.commit`: answered once all messages are as durable as their class demands.
    fn commit(&mut self, number: u16) -> Result<(), Exception> {
        let transaction = self.channels.transaction(number)?;
        let (publishes, settled) = transaction.begin_commit();
        // Publishes collected on other channels belong to a flush of their own.
        self.flush();
        let incarnation = self.channels.get(number).map_or(0, |it| it.incarnation);
        let commit = PendingCommit {
            channel: number,
            incarnation,
        };
        let connection = &mut self.connection;
        let settled = self
            .publisher
            .commit(connection, publishes, commit, settled);
        self.settle_committed(settled);
        Ok(())
    }

    /// Settles the deliveries of a transaction whose publishes are stored.
    pub(super) fn settle_committed(&mut self, settled: Option<TransactionSettlements>) {
        let Some(settled) = settled else {
            return;
        };
        let connection = &mut self.connection;
        for (action, runs) in settled {
            self.deliveries.settle(connection, action, &runs);
        }
        self.deliveries.settle_acks(connection);
    }

    /// `tx.rollback`: drops the publishes; deliveries settled in the transaction are unacknowledged
    /// again.
    fn roll_back(&mut self, number: u16) -> Result<(), Exception> {
        let (_, settled) = self.channels.transaction(number)?.take();
        self.deliveries.restore(number, settled);
        Ok(())
    }
}

/// Refuses `immediate`, as RabbitMQ does.
#[inline]
pub(super) fn check_publish(publish: &method::BasicPublish<'_>) -> Result<(), Exception> {
    if publish.immediate {
        Err(Exception::new(ReplyCode::NotImplemented, "immediate=true"))
    } else {
        Ok(())
    }
}

fn check_recover(requeue: bool) -> Result<(), Exception> {
    if requeue {
        Ok(())
    } else {
        Err(Exception::new(ReplyCode::NotImplemented, "requeue=false"))
    }
}

fn rejection(requeue: bool) -> SettleAction {
    if requeue {
        SettleAction::Requeue
    } else {
        SettleAction::Discard
    }
}

/// The error of malformed arguments or properties.
pub(super) fn cannot_decode(payload: &[u8]) -> Exception {
    let shown = &payload[..payload.len().min(SHOWN_BYTES_MAX)];
    Exception::new(ReplyCode::FrameError, format!("cannot decode {shown:?}"))
}

/// The error of a method frame that cannot be parsed, or whose method is unknown.
#[cold]
pub(super) fn unreadable(payload: &[u8]) -> Exception {
    if Method::read(payload).is_err() {
        return cannot_decode(payload);
    }
    let id = MethodId::peek(payload);
    let text = format!("unknown method {}.{}", id.class, id.method);
    Exception::new(ReplyCode::CommandInvalid, text)
}
