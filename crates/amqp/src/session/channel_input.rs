//! The input of a channel: methods, and contents frame by frame.

use super::Session;
use super::channel::{Channel, Content, Mode, State, Verdict};
use super::deliveries::settlement::Settle;
use super::frames::BASIC;
use super::publishes::batches::Target;
use crate::body::Collected;
use crate::content_memory::Held;
use crate::exception::{Exception, ReplyCode};
use crate::wire::{Frame, FrameType, Method, MethodId, method};

impl Session {
    /// A frame of a channel.
    pub(super) fn channel_frame(&mut self, frame: &Frame<'_>) -> Result<(), (Exception, MethodId)> {
        let id = MethodId::peek(frame.payload);
        let Some(channel) = self.channels.get_mut(&frame.channel) else {
            return self.first_frame(frame);
        };
        if channel.state == State::Closing {
            return self.frame_while_closing(frame, id);
        }
        if channel.content.is_some() {
            return self.content_frame(frame).map_err(|error| (error, PUBLISH));
        }
        if frame.kind != FrameType::Method {
            return Err((
                unexpected("expected method frame, got non method frame instead"),
                NONE,
            ));
        }
        let method = match Method::read(frame.payload) {
            Ok(Some(method)) => method,
            Ok(None) => return Err((unknown(id), id)),
            Err(_) => return Err((cannot_decode(frame.payload), id)),
        };
        self.channel_method(frame.channel, &method)
            .map_err(|error| (error, id))
    }

    /// A frame of a channel that is not open.
    fn first_frame(&mut self, frame: &Frame<'_>) -> Result<(), (Exception, MethodId)> {
        let id = MethodId::peek(frame.payload);
        let number = frame.channel;
        match (frame.kind, Method::read(frame.payload)) {
            (FrameType::Method, Ok(Some(Method::ChannelOpen(_)))) => {
                let channels_max = usize::from(self.negotiated.channels_max);
                let count = self.channels.len();
                // As RabbitMQ, which counts channels and takes any number.
                if count >= channels_max {
                    let text = format!(
                        "number of channels opened ({count}) has reached the negotiated \
                         channel_max ({channels_max})"
                    );
                    return Err((Exception::new(ReplyCode::NotAllowed, text), id));
                }
                self.incarnations += 1;
                self.meter.probe.channel_opened();
                self.channels
                    .insert(number, Channel::new(self.incarnations));
                let ok = Method::ChannelOpenOk(method::ChannelOpenOk::default());
                self.reply(number, &ok);
                Ok(())
            }
            // Both sides have closed it at the same time.
            (FrameType::Method, Ok(Some(Method::ChannelCloseOk(_)))) => Ok(()),
            (FrameType::Method, Ok(Some(Method::ChannelClose(_)))) => {
                self.reply(number, &Method::ChannelCloseOk(method::ChannelCloseOk {}));
                Ok(())
            }
            _ => {
                let text = "expected 'channel.open'";
                Err((Exception::new(ReplyCode::ChannelError, text), id))
            }
        }
    }

    /// A frame of a channel that we have closed: the client may not have known.
    fn frame_while_closing(
        &mut self,
        frame: &Frame<'_>,
        id: MethodId,
    ) -> Result<(), (Exception, MethodId)> {
        if frame.kind != FrameType::Method {
            return Ok(());
        }
        if id == method::ChannelCloseOk::ID {
            self.channels.remove(&frame.channel);
        } else if id == method::ChannelClose::ID {
            let ok = Method::ChannelCloseOk(method::ChannelCloseOk {});
            self.reply(frame.channel, &ok);
        }
        Ok(())
    }

    /// A `basic.publish` whose content does not lie behind it in one piece.
    pub(super) fn begin_content(
        &mut self,
        number: u16,
        publish: &method::BasicPublish<'_>,
    ) -> Result<(), Exception> {
        check_publish(publish)?;
        let held = Held::none(&self.contents);
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.content = Some(Content {
                exchange: publish.exchange.to_owned(),
                routing_key: publish.routing_key.to_owned(),
                mandatory: publish.mandatory,
                header: None,
                body: Collected::default(),
                left: 0,
                held,
            });
        }
        Ok(())
    }

    /// A frame where a content goes on.
    fn content_frame(&mut self, frame: &Frame<'_>) -> Result<(), Exception> {
        let message_bytes_max = self.options.message_bytes_max;
        let now_us = self.now.us;
        let Some(channel) = self.channels.get_mut(&frame.channel) else {
            return Ok(());
        };
        let Some(content) = &mut channel.content else {
            return Ok(());
        };
        match (&content.header, frame.kind) {
            (None, FrameType::Header) => {
                check_class(frame.payload)?;
                let header = crate::wire::ContentHeader::read(frame.payload);
                let (header, _) = header.map_err(|_| cannot_decode(frame.payload))?;
                check_size(header.body_bytes, message_bytes_max)?;
                if !content.held.grow(frame.payload.len(), now_us) {
                    return Err(no_room());
                }
                content.left = header.body_bytes;
                content.header = Some(frame.payload.to_vec());
            }
            (None, _) => {
                return Err(unexpected(&format!(
                    "expected content header for class {BASIC}, got non content header frame \
                     instead"
                )));
            }
            (Some(_), FrameType::Body) => {
                let bytes = frame.payload.len() as u64;
                if bytes > content.left {
                    return Err(Exception::new(
                        ReplyCode::FrameError,
                        "content body frame exceeds remaining content size",
                    ));
                }
                // No more than has come: a length is only a claim.
                if !content.held.grow(frame.payload.len(), now_us) {
                    return Err(no_room());
                }
                content.left -= bytes;
                content.body.push(frame.payload);
            }
            (Some(_), _) => {
                let text = "expected content body, got non content body frame instead";
                return Err(unexpected(text));
            }
        }
        if content.left > 0 {
            return Ok(());
        }
        let Some(mut content) = channel.content.take() else {
            return Ok(());
        };
        // A transaction that takes it holds it from here on.
        content.held.release();
        let Content {
            exchange,
            routing_key,
            mandatory,
            header,
            body,
            ..
        } = &content;
        let target = Target {
            exchange,
            routing_key,
            mandatory: *mandatory,
        };
        let header = header.as_deref().unwrap_or_default();
        self.publish(frame.channel, target, header, body.body())
    }

    /// A method on an open channel.
    fn channel_method(&mut self, number: u16, method: &Method<'_>) -> Result<(), Exception> {
        if !matches!(method, Method::BasicAck(_) | Method::BasicPublish(_)) {
            // A method sees the effect of all that came before it.
            self.flush();
            self.settle_acks();
            self.meter.others += 1;
            self.check_rights(number, method)?;
        }
        if self
            .channels
            .get(&number)
            .is_some_and(Channel::is_committing)
            && !matches!(method, Method::ChannelClose(_))
        {
            let text = "unexpected command while processing 'tx.commit'";
            return Err(Exception::new(ReplyCode::ChannelError, text));
        }
        match method {
            Method::BasicPublish(publish) => self.begin_content(number, publish),
            Method::BasicAck(ack) => self.settle(
                number,
                Verdict {
                    tag: ack.delivery_tag,
                    multiple: ack.multiple,
                    settle: Settle::Ack,
                },
            ),
            Method::BasicNack(nack) => self.settle(
                number,
                Verdict {
                    tag: nack.delivery_tag,
                    multiple: nack.multiple,
                    settle: requeue(nack.requeue),
                },
            ),
            Method::BasicReject(reject) => self.settle(
                number,
                Verdict {
                    tag: reject.delivery_tag,
                    multiple: false,
                    settle: requeue(reject.requeue),
                },
            ),
            Method::BasicGet(get) => self.get(number, get),
            Method::BasicConsume(consume) => self.consume(number, consume),
            Method::BasicCancel(cancel) => {
                self.cancel(number, cancel.consumer_tag);
                let ok = method::BasicCancelOk {
                    consumer_tag: cancel.consumer_tag,
                };
                self.reply_unless(cancel.no_wait, number, &Method::BasicCancelOk(ok));
                Ok(())
            }
            // The answer to ours.
            Method::BasicCancelOk(_) => Ok(()),
            Method::BasicQos(qos) => {
                self.set_prefetch(number, qos)?;
                self.reply(number, &Method::BasicQosOk(method::BasicQosOk {}));
                Ok(())
            }
            Method::BasicRecover(recover) => {
                check_recover(recover.requeue)?;
                self.recover(number);
                self.reply(number, &Method::BasicRecoverOk(method::BasicRecoverOk {}));
                Ok(())
            }
            Method::BasicRecoverAsync(recover) => {
                check_recover(recover.requeue)?;
                self.recover(number);
                Ok(())
            }
            Method::QueueDeclare(declare) => self.declare_queue(number, declare),
            Method::QueueBind(bind) => self.bind_queue(number, bind),
            Method::QueueUnbind(unbind) => self.unbind_queue(number, unbind),
            Method::QueuePurge(purge) => self.purge_queue(number, purge),
            Method::QueueDelete(delete) => self.delete_queue(number, delete),
            Method::ExchangeDeclare(declare) => self.declare_exchange(number, declare),
            Method::ExchangeDelete(delete) => self.delete_exchange(number, delete),
            Method::ExchangeBind(bind) => self.bind_exchange(number, bind),
            Method::ExchangeUnbind(unbind) => self.unbind_exchange(number, unbind),
            Method::ConfirmSelect(select) => {
                self.select_confirms(number)?;
                let ok = Method::ConfirmSelectOk(method::ConfirmSelectOk {});
                self.reply_unless(select.no_wait, number, &ok);
                Ok(())
            }
            Method::TxSelect(_) => {
                self.select_transactions(number)?;
                self.reply(number, &Method::TxSelectOk(method::TxSelectOk {}));
                Ok(())
            }
            Method::TxCommit(_) => self.commit(number),
            Method::TxRollback(_) => {
                self.roll_back(number)?;
                self.reply(number, &Method::TxRollbackOk(method::TxRollbackOk {}));
                Ok(())
            }
            Method::ChannelFlow(flow) if flow.active => {
                let ok = method::ChannelFlowOk { active: true };
                self.reply(number, &Method::ChannelFlowOk(ok));
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
                self.channels.remove(&number);
                self.reply(number, &Method::ChannelCloseOk(method::ChannelCloseOk {}));
                Ok(())
            }
            Method::AccessRequest(_) => {
                let ok = method::AccessRequestOk { ticket: 1 };
                self.reply(number, &Method::AccessRequestOk(ok));
                Ok(())
            }
            _ => Err(Exception::new(
                ReplyCode::CommandInvalid,
                "unimplemented method",
            )),
        }
    }

    fn select_confirms(&mut self, number: u16) -> Result<(), Exception> {
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(());
        };
        match channel.mode {
            Mode::Transaction(_) => Err(Exception::precondition(
                "cannot switch from tx to confirm mode",
            )),
            Mode::Confirm(_) => Ok(()),
            Mode::Plain => {
                channel.mode = Mode::Confirm(1);
                Ok(())
            }
        }
    }
}

/// Most bytes of a payload that an error shows.
const SHOWN_BYTES_MAX: usize = 32;
/// `basic.publish`, for faults within its content.
pub(super) const PUBLISH: MethodId = method::BasicPublish::ID;
/// No method is to blame.
pub(super) const NONE: MethodId = MethodId {
    class: 0,
    method: 0,
};

/// Whether a publish asks for something that RabbitMQ does not do either.
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

fn check_class(header: &[u8]) -> Result<(), Exception> {
    let class = MethodId::peek(header).class;
    match class {
        BASIC => Ok(()),
        class => Err(unexpected(&format!(
            "expected content header for class {BASIC}, got one for class {class} instead"
        ))),
    }
}

fn check_size(bytes: u64, bytes_max: u64) -> Result<(), Exception> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Exception::precondition(format!(
        "message size {bytes} is larger than configured max size {bytes_max}"
    )))
}

fn requeue(requeue: bool) -> Settle {
    if requeue {
        Settle::Requeue
    } else {
        Settle::Reject
    }
}

fn unexpected(explanation: &str) -> Exception {
    Exception::new(ReplyCode::UnexpectedFrame, explanation)
}

/// Arguments or properties that are not as they should be.
pub(super) fn cannot_decode(payload: &[u8]) -> Exception {
    let shown = &payload[..payload.len().min(SHOWN_BYTES_MAX)];
    Exception::new(ReplyCode::FrameError, format!("cannot decode {shown:?}"))
}

fn unknown(id: MethodId) -> Exception {
    let text = format!("unknown method {}.{}", id.class, id.method);
    Exception::new(ReplyCode::CommandInvalid, text)
}

fn no_room() -> Exception {
    let text = "no room for contents whose frames are mixed with those of other channels";
    Exception::new(ReplyCode::ResourceError, text)
}
