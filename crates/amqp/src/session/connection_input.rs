//! The input of channel 0: the connection's own methods, and its close.

use super::Session;
use super::channel_input::{NO_METHOD, unreadable};
use super::connection::Connection;
use super::handshake::apply_tune_ok;
use super::heartbeats::Heartbeats;
use super::lifecycle::Phase;
use crate::exception::{Exception, ReplyCode};
use crate::wire::{Frame, FrameType, Method, MethodId, method};

/// The only virtual host.
const VIRTUAL_HOST: &str = "/";

impl Session {
    /// Handles a frame of channel 0.
    pub(super) fn connection_frame(
        &mut self,
        frame: &Frame<'_>,
    ) -> Result<(), (Exception, MethodId)> {
        if frame.kind == FrameType::Heartbeat {
            return Ok(());
        }
        if frame.kind != FrameType::Method {
            let text = "content on channel 0";
            return Err((Exception::unexpected_frame(text), NO_METHOD));
        }
        let id = MethodId::peek(frame.payload);
        let Ok(Some(method)) = Method::read(frame.payload) else {
            return Err((unreadable(frame.payload), id));
        };
        self.connection_method(&method).map_err(|error| (error, id))
    }

    fn connection_method(&mut self, method: &Method<'_>) -> Result<(), Exception> {
        let (connection, lifecycle) = (&mut self.connection, &mut self.lifecycle);
        match (lifecycle.phase(), method) {
            (Phase::Starting, Method::ConnectionStartOk(start)) => {
                self.handshake.authenticate(connection, lifecycle, start);
            }
            (Phase::Tuning, Method::ConnectionTuneOk(tune)) => {
                let heartbeat_us = apply_tune_ok(connection, tune)?;
                self.heartbeats = Heartbeats::of_interval(heartbeat_us, connection.now.us);
                lifecycle.enter(Phase::Opening);
            }
            (Phase::Opening, Method::ConnectionOpen(open)) => {
                if open.virtual_host != VIRTUAL_HOST {
                    let text = format!("vhost {} not found", open.virtual_host);
                    return Err(Exception::new(ReplyCode::NotAllowed, text));
                }
                let ok = Method::ConnectionOpenOk(method::ConnectionOpenOk::default());
                connection.reply(0, &ok);
                lifecycle.enter(Phase::Open);
            }
            (Phase::Open, Method::ConnectionUpdateSecret(_)) => {
                // Credentials do not expire here, so the new secret is not needed.
                let ok = method::ConnectionUpdateSecretOk {};
                connection.reply(0, &Method::ConnectionUpdateSecretOk(ok));
            }
            (Phase::Closing, Method::ConnectionCloseOk(_)) => lifecycle.close_ok(),
            (_, Method::ConnectionClose(_)) => {
                for number in self.channels.numbers() {
                    self.deliveries.write_pending_of_channel(connection, number);
                }
                self.release_all();
                let ok = Method::ConnectionCloseOk(method::ConnectionCloseOk {});
                self.connection.reply(0, &ok);
                self.lifecycle.close_ok();
            }
            // The client sent this before it knew of the close.
            (Phase::Closing | Phase::Draining | Phase::Ended, _) => {}
            (phase, _) => return Err(phase.unexpected_method()),
        }
        Ok(())
    }

    /// Closes a channel or the connection because of an error.
    pub(super) fn fail(&mut self, number: u16, error: &Exception, id: MethodId) {
        let connection = &mut self.connection;
        connection.meter.probe.error();
        if number != 0 && !error.code.is_hard() {
            let peer = connection.peer;
            tracing::debug!(%peer, channel = number, %error, "a channel is closed");
            self.release_channel(number);
            let text = error.to_string();
            let close = Method::ChannelClose(method::ChannelClose {
                reply_code: error.code as u16,
                reply_text: &text,
                class_id: id.class,
                method_id: id.method,
            });
            return self.connection.reply(number, &close);
        }
        if self.lifecycle.phase() == Phase::Closing {
            // `connection.close` was sent already; its timeout goes on.
            return;
        }
        self.lifecycle.record_failure(error.to_string());
        self.release_all();
        self.connection.push_close(error, id);
        self.lifecycle.close(self.connection.now.us);
    }

    /// Closes the connection because the broker shuts down.
    pub(super) fn stop(&mut self) {
        let text = "broker forced connection closure with reason 'shutdown'";
        let error = Exception::new(ReplyCode::ConnectionForced, text);
        self.fail(0, &error, NO_METHOD);
        self.lifecycle.clear_failure();
    }
}

impl Connection {
    /// Sends `connection.close`.
    pub(super) fn push_close(&mut self, error: &Exception, id: MethodId) {
        let text = error.to_string();
        let close = Method::ConnectionClose(method::ConnectionClose {
            reply_code: error.code as u16,
            reply_text: &text,
            class_id: id.class,
            method_id: id.method,
        });
        self.reply(0, &close);
    }
}
