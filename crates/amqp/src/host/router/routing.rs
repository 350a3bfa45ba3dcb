//! Determines the queues of one message.

use std::borrow::Cow;
use std::sync::Arc;

use cloverleaf_broker::headers;
use cloverleaf_log::{Durability, Record};

use super::super::deaths::{self, Deaths, REJECTED};
use super::super::queue::Queue;
use super::super::queue_deletion::DeadLetterRule;
use super::super::router_input::{DELAY, DeathMark, delay_ms};
use super::super::{Route, VirtualHost};
use super::HiddenTopic;
use super::outgoing::{MessageToStore, OutgoingBatches};
use super::pending::PendingMessages;
use crate::message::{self, Message};
use crate::routing::RoutedMessage;
use crate::wire::{Array, Properties, Table, Value, Writer, table_bytes};

/// Maximum number of queues whose cycles are logged.
const CYCLES_LOGGED_MAX: usize = 1024;

/// The facts of a death that are not part of the message.
pub(super) struct DeathFacts<'g> {
    rule: &'g DeadLetterRule,
    reason: &'static str,
    time_s: u64,
}

impl<'g> DeathFacts<'g> {
    /// `reason` is the broker's name of the reason.
    pub(super) fn of(rule: &'g DeadLetterRule, reason: &[u8], time_ms: u64) -> Self {
        Self {
            rule,
            reason: deaths::reason(reason),
            time_s: time_ms / 1000,
        }
    }
}

impl PendingMessages {
    /// Routes a message that was taken from a hidden topic.
    pub(super) fn route(
        &mut self,
        host: &VirtualHost,
        hidden: HiddenTopic,
        number: u64,
        record: &Record<'_>,
        outgoing: &mut OutgoingBatches,
    ) {
        match hidden {
            HiddenTopic::Dead => self.route_from_dead_topic(host, number, record, outgoing),
            HiddenTopic::Delayed => self.route_delayed(host, number, record, outgoing),
        }
    }

    /// Routes a dead message whose record headers say in which queue and why it died.
    fn route_from_dead_topic(
        &mut self,
        host: &VirtualHost,
        number: u64,
        record: &Record<'_>,
        outgoing: &mut OutgoingBatches,
    ) {
        let topic = last_header(record, headers::DEAD_TOPIC);
        let topic = topic.and_then(|name| std::str::from_utf8(name).ok());
        // The queue was deleted too long ago, or has no dead-letter exchange: the message is
        // dropped.
        let Some(rule) = topic.and_then(|topic| host.dead_letter_rule(topic)) else {
            return;
        };
        let reason = last_header(record, headers::DEAD_REASON).unwrap_or_default();
        let time_ms = u64::try_from(record.timestamp_ms).unwrap_or(0);
        let death = DeathFacts::of(&rule, reason, time_ms);
        self.route_dead(host, number, record, &death, outgoing);
    }

    /// Routes a message that has died.
    pub(super) fn route_dead(
        &mut self,
        host: &VirtualHost,
        number: u64,
        record: &Record<'_>,
        death: &DeathFacts<'_>,
        outgoing: &mut OutgoingBatches,
    ) {
        outgoing.count_message();
        let DeathFacts {
            rule,
            reason,
            time_s,
        } = *death;
        let mut scratch = Vec::new();
        let message = Message::read(record, &rule.queue, &mut scratch);
        let properties = Properties::read(message.properties).unwrap_or_default();
        let before = properties.headers.unwrap_or_default();
        let mark = DeathMark::read(record);
        let mut history = match mark {
            DeathMark::Published => Deaths::default(),
            DeathMark::Died | DeathMark::DiedWithOtherKey => Deaths::read(before),
        };
        history.add(deaths::Death {
            queue: &rule.queue,
            reason,
            count: 1,
            time_s,
            exchange: message.exchange,
            keys: if mark.follows_headers() {
                deaths::death_keys(message.routing_key, before)
            } else {
                vec![message.routing_key]
            },
            expiration: properties.expiration,
        });
        let key = rule.dead_letter.key.as_deref();
        let bytes = history.write(&properties);
        let mark = if key.is_none() && mark.follows_headers() {
            DeathMark::Died
        } else {
            DeathMark::DiedWithOtherKey
        };
        let dead_message = Message {
            exchange: &rule.dead_letter.exchange,
            routing_key: key.unwrap_or(message.routing_key),
            properties: &bytes,
            bcc: if mark.follows_headers() {
                message::bcc_of(record)
            } else {
                &[]
            },
            body: message.body,
        };
        let properties = Properties::read(&bytes).unwrap_or_default();
        let Some(mut route) = route(host, &dead_message, &properties, mark) else {
            tracing::debug!(queue = %rule.queue, exchange = %rule.dead_letter.exchange,
                "a message died, and its dead-letter exchange is not there");
            return;
        };
        if reason != REJECTED {
            let queues = route.queues.iter();
            let queues: Vec<Arc<Queue>> = queues
                .filter(|queue| !cuts_cycle(host, &history, queue))
                .cloned()
                .collect();
            if queues.len() < route.queues.len() {
                route.queues = queues.into();
            }
        }
        let stored = MessageToStore {
            message: dead_message,
            durability: durability(record, &properties),
            priority: properties.priority,
            expires_at_ms: None,
            mark,
        };
        let delay_ms = delay_of(&route, &properties);
        self.publish_copies(host, number, &route, delay_ms, &stored, outgoing);
    }

    fn route_delayed(
        &mut self,
        host: &VirtualHost,
        number: u64,
        record: &Record<'_>,
        outgoing: &mut OutgoingBatches,
    ) {
        let mut scratch = Vec::new();
        let message = Message::read(record, "", &mut scratch);
        let bytes = after_delay(message.properties);
        let message = Message {
            properties: &bytes,
            bcc: message::bcc_of(record),
            ..message
        };
        let properties = Properties::read(&bytes).unwrap_or_default();
        let mark = DeathMark::read(record);
        let Some(route) = route(host, &message, &properties, mark) else {
            return;
        };
        let expiration: Option<u64> = properties.expiration.and_then(|ms| ms.parse().ok());
        let stored = MessageToStore {
            message,
            durability: durability(record, &properties),
            priority: properties.priority,
            expires_at_ms: expiration.map(|ms| outgoing.now_ms().saturating_add(ms)),
            mark,
        };
        self.publish_copies(host, number, &route, None, &stored, outgoing);
    }

    fn publish_copies(
        &mut self,
        host: &VirtualHost,
        number: u64,
        route: &Route,
        delay_ms: Option<u64>,
        stored: &MessageToStore<'_>,
        outgoing: &mut OutgoingBatches,
    ) {
        let Some(delay_ms) = delay_ms else {
            if !outgoing.allows_copies(route.queues.len()) {
                return;
            }
            for queue in route.queues.iter() {
                outgoing.add(self, host, number, queue, stored);
            }
            return;
        };
        let now_ms = i64::try_from(outgoing.now_ms()).unwrap_or(i64::MAX);
        let (message, durability) = (&stored.message, stored.durability);
        match host.delay_marked(message, delay_ms, now_ms, durability, stored.mark) {
            Ok(published) => self.push(published, vec![number], None),
            Err(error) => self.refuse(&error, &[number], outgoing.now_ms()),
        }
    }
}

/// Whether a message must not come back to `queue`, because it would cycle forever.
fn cuts_cycle(host: &VirtualHost, history: &Deaths<'_>, queue: &Queue) -> bool {
    if !history.is_cycle(&queue.name) {
        return false;
    }
    let mut logged = host.cycles_logged.lock();
    if logged.len() < CYCLES_LOGGED_MAX && logged.insert(queue.name.clone()) {
        tracing::warn!(queue = %queue.name,
            "a message was dropped: it came back to this queue without any consumer having \
             rejected it, so it would go round for ever; told once for a queue");
    }
    true
}

fn route(
    host: &VirtualHost,
    message: &Message<'_>,
    properties: &Properties<'_>,
    mark: DeathMark,
) -> Option<Route> {
    let headers = properties.headers.unwrap_or_default();
    let mut routed = RoutedMessage {
        key: message.routing_key,
        headers,
    };
    let bcc = Array::check(message.bcc).unwrap_or_default();
    if message.bcc.is_empty() && (mark.follows_headers() || !routed.has_more_keys()) {
        return host.route_inside(message.exchange, &routed);
    }
    let mut fields: Vec<(&str, Value<'_>)> = headers.fields().collect();
    if mark.follows_headers() {
        fields.push(("BCC", Value::Array(bcc)))
    } else {
        fields.retain(|(name, _)| !matches!(*name, "CC" | "BCC"))
    }
    let fields = table_bytes(&fields);
    routed.headers = Table::check(&fields).unwrap_or_default();
    host.route_inside(message.exchange, &routed)
}

fn delay_of(route: &Route, properties: &Properties<'_>) -> Option<u64> {
    if route.delays {
        delay_ms(properties.headers.unwrap_or_default())
    } else {
        None
    }
}

/// The durability of a message: messages of other protocols are persistent.
fn durability(record: &Record<'_>, properties: &Properties<'_>) -> Durability {
    let is_amqp = record.headers.value_of(message::PROPERTIES).is_some();
    if is_amqp && properties.delivery_mode != Some(2) {
        Durability::Kernel
    } else {
        Durability::Disk
    }
}

/// The last header with this name: the broker appends its own after those of the message.
fn last_header<'a>(record: &Record<'a>, name: &[u8]) -> Option<&'a [u8]> {
    let named = record.headers.clone().filter(|(found, _)| *found == name);
    named.last().and_then(|(_, value)| value)
}

/// The properties of a message after its delay: `x-delay` is negated, as in RabbitMQ's plugin, so
/// that the message is not delayed again and its consumer sees the delay.
fn after_delay(raw: &[u8]) -> Cow<'_, [u8]> {
    let properties = Properties::read(raw).unwrap_or_default();
    let headers = properties.headers.unwrap_or_default();
    let Some(delay_ms) = delay_ms(headers) else {
        return Cow::Borrowed(raw);
    };
    let delay_ms = i64::try_from(delay_ms).unwrap_or(i64::MAX);
    let delay = match i32::try_from(-delay_ms) {
        Ok(delay) => Value::I32(delay),
        Err(_) => Value::I64(-delay_ms),
    };
    with_headers(&properties, |name, value| match name {
        DELAY => Some(delay),
        _ => Some(value),
    })
}

/// The properties with some header values changed or removed.
fn with_headers<'h>(
    properties: &Properties<'h>,
    change: impl Fn(&str, Value<'h>) -> Option<Value<'h>>,
) -> Cow<'static, [u8]> {
    let fields = properties.headers.unwrap_or_default().fields();
    let fields = fields.filter_map(|(name, value)| Some((name, change(name, value)?)));
    let fields = table_bytes(&fields.collect::<Vec<(&str, Value<'_>)>>());
    let properties = Properties {
        headers: Table::check(&fields).ok(),
        ..*properties
    };
    let mut bytes = Vec::new();
    properties.write(&mut Writer::new(&mut bytes));
    Cow::Owned(bytes)
}
