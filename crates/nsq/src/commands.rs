//! The effect of each command: in which state it is legal, and which broker call it becomes.

use std::sync::Arc;

use cloverleaf_access::{Operation, ResourceKind};
use cloverleaf_broker::{AttachError, Consumer, ConsumerOptions, Subscription};
use cloverleaf_session::Now;
use cloverleaf_telemetry::Identity;

use crate::authorization::Authorizations;
use crate::codec::{Command, command_word};
use crate::consuming::{Consuming, rdy_count};
use crate::definitions::topic_options;
use crate::error::{Code, ProtocolError};
use crate::frame::CLOSE_WAIT;
use crate::identify::{Identify, Negotiated};
use crate::names::quoted;
use crate::publishing::PublishContext;
use crate::session::{AuthWait, Authorized, DriverTask, Flow, Session};
use crate::stats::clients::ClientAuth;

impl Session {
    /// Executes one command. `input_bytes`: bytes of this read from this command on.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        command: Command<'_>,
        input_bytes: usize,
        now: Now,
    ) -> Result<Flow, ProtocolError> {
        if self.lacks_tls() && !matches!(command, Command::Identify(_)) {
            return Err(tls_required(command.name().as_bytes()));
        }
        match command {
            Command::Pub { topic, body } => {
                if !self.may_publish("PUB", topic, now)? {
                    return Ok(Flow::Again);
                }
                self.settle_fins(now);
                let (publishing, mut context) = self.publish_context(input_bytes, now);
                publishing.publish(topic, body, &mut context);
            }
            Command::Mpub { topic, messages } => {
                if !self.may_publish("MPUB", topic, now)? {
                    return Ok(Flow::Again);
                }
                self.settle_fins(now);
                let (publishing, mut context) = self.publish_context(input_bytes, now);
                publishing.publish_many(topic, messages, &mut context);
            }
            Command::Dpub {
                topic,
                delay_ms,
                body,
            } => {
                if !self.may_publish("DPUB", topic, now)? {
                    return Ok(Flow::Again);
                }
                self.settle_fins(now);
                let (publishing, mut context) = self.publish_context(input_bytes, now);
                publishing.publish_delayed(topic, body, delay_ms, &mut context);
            }
            Command::Fin(id) => self.consumer("FIN")?.fin(id)?,
            Command::Req(id, delay_ms) => {
                self.meter.called(1);
                self.settle_fins(now);
                let (client, probe) = (&self.client, &self.meter.probe);
                let Some(consuming) = &mut self.consuming else {
                    return Err(wrong_state("REQ"));
                };
                consuming.requeue(id, delay_ms, now, client, probe)?;
            }
            Command::Touch(id) => {
                self.meter.called(1);
                self.settle_fins(now);
                self.consumer("TOUCH")?.touch(id)?;
            }
            Command::Rdy(count) => self.ready(count, now)?,
            Command::Nop => {}
            Command::Cls => self.start_close(now)?,
            Command::Sub { topic, channel } => return self.subscribe(topic, channel, now),
            Command::Identify(body) => self.identify(body, now)?,
            Command::Auth(secret) => self.start_auth(secret)?,
        }
        Ok(Flow::Next)
    }

    /// The state error for a command that failed to parse, if the command is illegal in this state
    /// whatever its parameters: nsqd checks the state before it parses the parameters.
    pub(crate) fn state_error(&self, input: &[u8]) -> Option<ProtocolError> {
        let word = command_word(input);
        if self.lacks_tls() && word != b"IDENTIFY" {
            return Some(tls_required(word));
        }
        let (name, legal) = match word {
            b"FIN" => ("FIN", self.consuming.is_some()),
            b"REQ" => ("REQ", self.consuming.is_some()),
            b"TOUCH" => ("TOUCH", self.consuming.is_some()),
            b"SUB" => ("SUB", self.consuming.is_none()),
            b"AUTH" => ("AUTH", self.consuming.is_none()),
            b"IDENTIFY" => ("IDENTIFY", self.consuming.is_none()),
            _ => return None,
        };
        (!legal).then(|| wrong_state(name))
    }

    fn lacks_tls(&self) -> bool {
        self.options.tls_required && !self.tls
    }

    /// Whether a publish can go on now: it is authorized, and the broker's budget of unwritten
    /// bytes has space. `false`: the command is parsed again once the authorization is renewed or
    /// bytes were written (backpressure).
    #[inline]
    fn may_publish(&mut self, command: &str, topic: &str, now: Now) -> Result<bool, ProtocolError> {
        if !self.may(command, Operation::Publish, (topic, ""), now)? {
            return Ok(false);
        }
        self.waits_for_room = !self.realm.write_budget().is_free();
        Ok(!self.waits_for_room)
    }

    fn publish_context(
        &mut self,
        input_bytes: usize,
        now: Now,
    ) -> (&mut crate::publishing::Publishing, PublishContext<'_>) {
        let context = PublishContext {
            realm: &self.realm,
            client: &self.client,
            answers: &mut self.answers,
            meter: &mut self.meter,
            unix_ms: now.unix_ms(),
            input_bytes,
        };
        (&mut self.publishing, context)
    }

    fn consumer(&mut self, command: &str) -> Result<&mut Consuming, ProtocolError> {
        self.consuming.as_mut().ok_or_else(|| wrong_state(command))
    }

    fn ready(&mut self, count: Option<&[u8]>, now: Now) -> Result<(), ProtocolError> {
        let rdy_count_max = self.options.rdy_count_max;
        if self.consumer("RDY")?.is_closing() {
            return Ok(());
        }
        let count = rdy_count(count, rdy_count_max)?;
        self.settle_fins(now);
        self.consumer("RDY")?.ready(count);
        self.client.ready_count.set(count.into());
        self.meter.probe.credit_granted(count.into());
        Ok(())
    }

    fn start_close(&mut self, now: Now) -> Result<(), ProtocolError> {
        if self.consumer("CLS")?.is_closing() {
            return Err(wrong_state("CLS"));
        }
        self.settle_fins(now);
        self.flush();
        self.consumer("CLS")?.close();
        self.client.ready_count.set(0);
        self.client.start_close();
        self.meter.probe.credit_granted(0);
        self.meter.others += 1;
        self.answers.response(CLOSE_WAIT);
        Ok(())
    }

    fn identify(&mut self, body: &[u8], now: Now) -> Result<(), ProtocolError> {
        // A second upgrade would wrap the first. nsqd breaks then, so it is refused here.
        if self.consuming.is_some() || self.upgraded {
            return Err(wrong_state("IDENTIFY"));
        }
        self.flush();
        let identify = Identify::parse(body)?;
        self.negotiated = Negotiated::of(&identify, &self.options)?;
        self.restart_heartbeat(now);
        let negotiated = &self.negotiated;
        self.client.update_identity(|identity| {
            identity.client_id.clone_from(&identify.client_id);
            identity.hostname.clone_from(&identify.hostname);
            identity.user_agent.clone_from(&identify.user_agent);
            identity.topology_zone.clone_from(&identify.topology_zone);
            identity
                .topology_region
                .clone_from(&identify.topology_region);
            identity.sample_rate = negotiated.sample_rate;
            identity.msg_timeout_ms = negotiated.msg_timeout_ms;
        });
        self.meter.probe.identify(telemetry_identity(&identify));
        self.meter.others += 1;
        if !identify.feature_negotiation {
            self.answers.response(&b"OK"[..]);
            return Ok(());
        }
        let answer = self.negotiated.answer(&identify, &self.options);
        self.answers.response(answer);
        if self.negotiated.tls {
            self.upgrades.push_back(DriverTask::Tls);
        }
        if let Some(compression) = self.negotiated.compression {
            self.upgrades.push_back(DriverTask::Compress(compression));
        }
        Ok(())
    }

    fn start_auth(&mut self, secret: &[u8]) -> Result<(), ProtocolError> {
        if self.consuming.is_some() {
            return Err(wrong_state("AUTH"));
        }
        if self.has_authorizations() {
            return Err(ProtocolError::new(Code::Invalid, "AUTH already set"));
        }
        if !self.options.auth_required {
            return Err(ProtocolError::new(Code::AuthDisabled, "AUTH disabled"));
        }
        self.flush();
        self.secret = String::from_utf8_lossy(secret).into_owned();
        self.auth_wait = Some(AuthWait::First);
        self.meter.others += 1;
        Ok(())
    }

    /// Applies the auth service's answer to AUTH or to a renewal.
    pub(crate) fn accept_authorizations(
        &mut self,
        wait: AuthWait,
        authorizations: Option<Authorizations>,
        now: Now,
    ) -> Result<(), ProtocolError> {
        let Some(authorizations) = authorizations else {
            // The client gets no reason: the failure is between the broker and the auth service.
            return Err(ProtocolError::new(Code::AuthFailed, "AUTH failed"));
        };
        if wait == AuthWait::First {
            if authorizations.count == 0 {
                let text = "AUTH no authorizations found";
                return Err(ProtocolError::new(Code::Unauthorized, text));
            }
            let answer = serde_json::json!({
                "identity": authorizations.principal.name,
                "identity_url": authorizations.identity_url,
                "permission_count": authorizations.count,
            });
            self.answers.response(answer.to_string());
        }
        let auth = ClientAuth {
            identity: authorizations.principal.name.clone(),
            identity_url: authorizations.identity_url.clone(),
        };
        self.client
            .update_identity(|identity| identity.auth = Some(auth));
        let ttl_us = authorizations.ttl_ms.saturating_mul(1000);
        let Authorizations {
            principal, grants, ..
        } = authorizations;
        self.realm.set_user(principal, grants);
        self.authorized = Some(Authorized {
            count: authorizations.count,
            expires_us: now.us.saturating_add(ttl_us),
            publish_topic: String::new(),
        });
        Ok(())
    }

    fn has_authorizations(&self) -> bool {
        let authorized = self.authorized.as_ref();
        authorized.is_some_and(|authorized| authorized.count > 0)
    }

    /// Whether the client may do this with a topic and a channel; `false` if the auth service has
    /// to be asked again first.
    #[inline]
    fn may(
        &mut self,
        command: &str,
        operation: Operation,
        names: (&str, &str),
        now: Now,
    ) -> Result<bool, ProtocolError> {
        if !self.options.auth_required {
            return Ok(true);
        }
        self.is_authorized(command, operation, names, now)
    }

    fn is_authorized(
        &mut self,
        command: &str,
        operation: Operation,
        (topic, channel): (&str, &str),
        now: Now,
    ) -> Result<bool, ProtocolError> {
        let known = self.authorized.as_mut();
        let Some(authorized) = known.filter(|it| it.count > 0) else {
            let text = format!("AUTH required before {command}");
            return Err(ProtocolError::new(Code::AuthFirst, text));
        };
        if authorized.expires_us < now.us {
            self.auth_wait = Some(AuthWait::Renewal);
            return Ok(false);
        }
        let publishes = operation == Operation::Publish;
        if publishes && authorized.publish_topic == topic {
            return Ok(true);
        }
        let may = if publishes {
            self.realm.may(operation, ResourceKind::Topic, "", topic)
        } else {
            self.realm
                .may(operation, ResourceKind::Channel, topic, channel)
        };
        if may {
            if publishes {
                topic.clone_into(&mut authorized.publish_topic);
            }
            return Ok(true);
        }
        let (topic, channel) = (quoted(topic.as_bytes()), quoted(channel.as_bytes()));
        let text = format!("AUTH failed for {command} on {topic} {channel}");
        Err(ProtocolError::new(Code::Unauthorized, text))
    }

    fn subscribe(&mut self, topic: &str, channel: &str, now: Now) -> Result<Flow, ProtocolError> {
        if self.consuming.is_some() {
            return Err(wrong_state("SUB"));
        }
        if self.negotiated.heartbeat_interval_ms.is_none() {
            let text = "cannot SUB with heartbeats disabled";
            return Err(ProtocolError::new(Code::Invalid, text));
        }
        if !self.may("SUB", Operation::Consume, (topic, channel), now)? {
            return Ok(Flow::Again);
        }
        self.flush();
        self.meter.called(1);
        let consumer = self.attach(topic, channel)?;
        let (sample_rate, seed) = (self.negotiated.sample_rate, self.client.id() ^ now.us);
        self.consuming = Some(Consuming::new(consumer, sample_rate, seed));
        self.client.subscribe(topic, channel);
        self.meter.others += 1;
        self.answers.response(&b"OK"[..]);
        Ok(Flow::Next)
    }

    fn attach(&self, topic: &str, channel: &str) -> Result<Consumer, ProtocolError> {
        // The last consumer of an ephemeral channel can leave between look-up and attach, and the
        // channel is deleted then: look it up once more.
        let mut tries = 2;
        loop {
            let subscription = self.find_channel(topic, channel)?;
            let consumers_max = self.options.channel_consumers_max;
            let full = consumers_max > 0 && subscription.counts().consumers >= consumers_max;
            if full {
                return Err(too_many_consumers(topic, channel, consumers_max));
            }
            let options = ConsumerOptions {
                ack_wait_ms: Some(self.negotiated.msg_timeout_ms),
                ack_wait_max_ms: Some(self.options.msg_timeout_ms_max),
                label: self.client.id().to_string(),
                connection: self.meter.probe.id(),
                ..ConsumerOptions::default()
            };
            tries -= 1;
            match subscription.attach(options) {
                Ok(consumer) => return Ok(consumer),
                Err(AttachError::TooMany { consumers_max }) => {
                    return Err(too_many_consumers(topic, channel, consumers_max));
                }
                Err(AttachError::Deleted) if tries > 0 => {}
                Err(AttachError::Deleted) => {
                    let text = "SUB failed to deleted topic/channel";
                    return Err(ProtocolError::new(Code::SubFailed, text));
                }
                Err(error @ AttachError::Exclusive) => return Err(sub_failed(&error)),
            }
        }
    }

    fn find_channel(&self, topic: &str, channel: &str) -> Result<Arc<Subscription>, ProtocolError> {
        let topic_options = || topic_options(topic);
        let options = || (self.channel_policy)(topic, channel);
        let channel = (self.realm).channel_or_create(topic, channel, topic_options, options);
        channel.map_err(|error| sub_failed(&error))
    }
}

fn tls_required(word: &[u8]) -> ProtocolError {
    let text = [b"cannot ", word, b" in current state (TLS required)"].concat();
    ProtocolError::new(Code::Invalid, text)
}

fn wrong_state(command: &str) -> ProtocolError {
    let text = format!("cannot {command} in current state");
    ProtocolError::new(Code::Invalid, text)
}

fn sub_failed(error: &dyn std::error::Error) -> ProtocolError {
    ProtocolError::new(Code::SubFailed, format!("SUB failed {error}"))
}

fn too_many_consumers(topic: &str, channel: &str, consumers_max: u32) -> ProtocolError {
    let text =
        format!("SUB failed consumers for {topic}:{channel} exceeds limit of {consumers_max}");
    ProtocolError::new(Code::SubFailed, text)
}

/// The library and its version from `go-nsq/1.1.0`.
fn telemetry_identity(identify: &Identify) -> Identity {
    let agent = identify.user_agent.split(' ').next().unwrap_or_default();
    let (library, version) = agent.split_once('/').unwrap_or((agent, ""));
    Identity {
        library: library.to_owned(),
        version: version.to_owned(),
        client_id: identify.client_id.clone(),
        ..Identity::default()
    }
}
