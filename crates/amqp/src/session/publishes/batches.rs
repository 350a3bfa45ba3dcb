//! `basic.publish`: from the read buffer into batches, from the batches into the queues' topics.
//!
//! Consecutive publishes to one queue within one socket read become one batch and one append,
//! whatever their channels.

use std::ops::Range;
use std::sync::Arc;

use cloverleaf_broker::{PublishError, Published};
use cloverleaf_log::{AppendError, BatchBuilder, Durability};

use super::confirms::{Flush, Group, Waiting};
use super::route_cache::{Found, RouteCache};
use super::transaction::Publish;
use crate::body::Body;
use crate::exception::{Exception, ReplyCode};
use crate::host::{Queue, Route, delay_ms};
use crate::message::Message;
use crate::queue_arguments::{Overflow, type_name};
use crate::repeats::Repeats;
use crate::routing::Routed;
use crate::session::Session;
use crate::session::channel::Mode;
use crate::session::channel_input::cannot_decode;
use crate::session::frames::{push_content, push_method};
use crate::session::rights::User;
use crate::wire::{ContentHeader, Method, Properties, Table, Value, Writer, method, table_bytes};

/// A batch with so many bytes of messages is published at once.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Most batches that are open at once; a message that goes to more queues has more of them.
const BATCHES_MAX: usize = 64;
/// Most bytes of a record beside its texts and its content.
const RECORD_OVERHEAD_BYTES: usize = 128;
/// The longest time to live that a message may have, in milliseconds (RabbitMQ's limit).
const EXPIRATION_MAX_MS: u64 = 0xffff_ffff;
/// The pseudo-queue of direct reply-to.
pub(in crate::session) const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Publishes that failed, of all connections: they share one log.
static FAILURES: Repeats = Repeats::new();

/// The publishing half of a connection.
#[derive(Default)]
pub(in crate::session) struct Publishing {
    routes: RouteCache,
    open: Vec<OpenBatch>,
    open_bytes: usize,
    /// Published since the last flush.
    published: Vec<Published>,
    /// Something since the last flush was not stored.
    failed: bool,
    groups: Vec<Group>,
}

struct OpenBatch {
    queue: Arc<Queue>,
    partition: u32,
    durability: Durability,
    builder: BatchBuilder,
    bytes: usize,
    /// Somebody is owed a confirm for one of its messages.
    wants_promise: bool,
}

impl OpenBatch {
    fn publish(self) -> Result<Published, PublishError> {
        let batch = self.builder.finish();
        match self.queue.levels {
            1 => self.queue.topic.publish(batch, self.durability),
            _ => {
                let topic = &self.queue.topic;
                topic.publish_in(self.partition, batch, self.durability)
            }
        }
    }
}

/// The arguments of `basic.publish`.
#[derive(Clone, Copy, Debug)]
pub(in crate::session) struct Target<'a> {
    pub(in crate::session) exchange: &'a str,
    pub(in crate::session) routing_key: &'a str,
    pub(in crate::session) mandatory: bool,
}

impl Session {
    /// A whole message was published on a channel.
    pub(in crate::session) fn publish(
        &mut self,
        number: u16,
        target: Target<'_>,
        header: &[u8],
        body: Body<'_>,
    ) -> Result<(), Exception> {
        let read = ContentHeader::read(header);
        let (header, mut properties) = read.map_err(|_| cannot_decode(header))?;
        check_copies(properties.headers.unwrap_or_default())?;
        let routed = Routed {
            key: target.routing_key,
            headers: properties.headers.unwrap_or_default(),
        };
        let user = User {
            realm: &self.realm,
            name: &self.user,
        };
        let Found { route, may_refuse } =
            self.publishing
                .routes
                .find(&self.host, &user, target.exchange, &routed)?;
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(());
        };
        let (mut rewritten, mut table) = (Vec::new(), Vec::new());
        let reply_queue;
        let mut raw = header.raw;
        if properties.reply_to == Some(REPLY_TO) {
            reply_queue = channel.reply_queue.clone().ok_or_else(no_reply_queue)?;
            properties.reply_to = Some(&reply_queue);
            raw = rewrite(&properties, &mut rewritten);
        }
        let blind = properties.headers.and_then(|headers| headers.get("BCC"));
        let mut bcc: &[u8] = &[];
        if let Some(Value::Array(keys)) = blind {
            bcc = keys.bytes();
            properties.headers = without_bcc(properties.headers, &mut table);
            raw = rewrite(&properties, &mut rewritten);
        }
        let expiration_ms = properties.expiration.map(expiration_ms).transpose()?;
        if let Some(user) = properties.user_id
            && user != self.user
        {
            return Err(Exception::precondition(format!(
                "user_id property set to '{user}' but authenticated user was '{}'",
                self.user
            )));
        }
        let published = &mut self.meter.published;
        published.add(1, body.len());
        let message = Message {
            exchange: target.exchange,
            routing_key: target.routing_key,
            properties: raw,
            bcc,
            body,
        };
        let group = match &mut channel.mode {
            Mode::Transaction(transaction) => {
                published.silent += 1;
                return transaction.publish(
                    Publish::of(&route, &message, target.mandatory),
                    self.options.transaction_bytes_max,
                    self.now.us,
                );
            }
            Mode::Plain => {
                published.silent += 1;
                None
            }
            Mode::Confirm(next) => {
                let number_of_publish = *next;
                *next += 1;
                Some(Group {
                    channel: number,
                    incarnation: channel.incarnation,
                    first: number_of_publish,
                    last: number_of_publish,
                })
            }
        };
        if may_refuse {
            // A refusal by one queue must not be held against other messages.
            self.flush();
        }
        let wants_promise = group.is_some();
        if let Some(group) = group {
            self.publishing.add_group(group);
        }
        let expires_at_ms = expiration_ms.map(|ms| self.broker_ms.saturating_add(ms));
        let facts = Facts::of(&properties, expires_at_ms, wants_promise);
        if !self.is_stored_elsewhere(number, &route, &message, target.mandatory, &facts) {
            self.begin_copies(number, &route, &message, &facts);
        }
        if may_refuse {
            self.flush();
        }
        Ok(())
    }

    /// The facts about a message that say how it is stored.
    pub(in crate::session) fn facts_of(&self, message: &Message<'_>, wants_promise: bool) -> Facts {
        // They were read before.
        let properties = Properties::read(message.properties).unwrap_or_default();
        let expiration_ms = properties.expiration.and_then(|it| expiration_ms(it).ok());
        let expires_at_ms = expiration_ms.map(|ms| self.broker_ms.saturating_add(ms));
        Facts::of(&properties, expires_at_ms, wants_promise)
    }

    fn timestamp_ms(&self) -> i64 {
        i64::try_from(self.broker_ms).unwrap_or(i64::MAX)
    }

    /// Holds a message back, if its exchange does so, or returns it if there is no queue for it.
    /// `false`: it belongs into the queues of its route.
    pub(in crate::session) fn is_stored_elsewhere(
        &mut self,
        number: u16,
        route: &Route,
        message: &Message<'_>,
        mandatory: bool,
        facts: &Facts,
    ) -> bool {
        if route.delays
            && let Some(delay_ms) = facts.delay_ms
        {
            self.meter.called(1);
            let durability = facts.durability(true);
            let delayed = self.host.delay(
                message.exchange,
                message,
                delay_ms,
                self.timestamp_ms(),
                durability,
            );
            self.keep(delayed, facts.wants_promise);
            return true;
        }
        let is_nowhere = route.queues.is_empty();
        if is_nowhere && mandatory {
            self.return_message(number, message);
        }
        is_nowhere
    }

    /// Stores a message in some of the queues of its route.
    pub(in crate::session) fn copy(
        &mut self,
        route: &Route,
        message: &Message<'_>,
        facts: &Facts,
        which: Range<usize>,
    ) {
        let timestamp_ms = self.timestamp_ms();
        for queue in &route.queues[which] {
            let durability = facts.durability(queue.durable);
            let expires_at_ms = facts.expires_at_ms;
            if queue.arguments.overflow == Overflow::RejectPublishDeadLetter {
                self.store_or_dead_letter(queue, message, facts, timestamp_ms);
                continue;
            }
            let partition = queue.partition(facts.priority);
            let publishing = &mut self.publishing;
            let capacity = if publishing.open.is_empty() {
                self.input_bytes.min(BATCH_BYTES_MAX)
            } else {
                0
            };
            let batch = publishing.batch(queue, partition, durability, || {
                let bytes = message_bytes(message).max(capacity);
                BatchBuilder::with_capacity(bytes, timestamp_ms)
            });
            message.push(&mut batch.builder, expires_at_ms);
            batch.wants_promise |= facts.wants_promise;
            let bytes = message_bytes(message);
            batch.bytes += bytes;
            let is_full = batch.bytes >= BATCH_BYTES_MAX;
            publishing.open_bytes += bytes;
            if is_full || publishing.open.len() >= BATCHES_MAX {
                self.publish_open();
            }
        }
    }

    /// For a queue that dead-letters what it refuses.
    fn store_or_dead_letter(
        &mut self,
        queue: &Arc<Queue>,
        message: &Message<'_>,
        facts: &Facts,
        timestamp_ms: i64,
    ) {
        self.meter.called(1);
        let durability = facts.durability(queue.durable);
        let mut builder = BatchBuilder::with_capacity(message_bytes(message), timestamp_ms);
        message.push(&mut builder, facts.expires_at_ms);
        let batch = OpenBatch {
            queue: Arc::clone(queue),
            partition: queue.partition(facts.priority),
            durability,
            builder,
            bytes: 0,
            wants_promise: facts.wants_promise,
        };
        self.meter.published.topics.add(queue.topic.number());
        let published = batch.publish();
        if let Err(PublishError::QueueFull { .. }) = &published {
            let letter = self
                .host
                .dead_letter(queue, "maxlen", message, timestamp_ms, durability);
            match letter {
                Ok(None) => {}
                Ok(Some(letter)) => self.keep(Ok(letter), facts.wants_promise),
                Err(error) => self.keep(Err(error), facts.wants_promise),
            }
        }
        self.keep(published, facts.wants_promise);
    }

    /// Sends a message back for which there is no queue.
    fn return_message(&mut self, number: u16, message: &Message<'_>) {
        let method = Method::BasicReturn(method::BasicReturn {
            reply_code: ReplyCode::NoRoute as u16,
            reply_text: ReplyCode::NoRoute.word(),
            exchange: message.exchange,
            routing_key: message.routing_key,
        });
        let frame_bytes_max = self.negotiated.frame_bytes_max;
        push_method(&mut self.replies.bytes, number, &method);
        push_content(
            &mut self.replies,
            number,
            message.properties,
            message.body,
            frame_bytes_max,
            None,
        );
    }

    /// Publishes all open batches. To be called at the end of a read, and before anything is done
    /// that must come after them.
    pub(in crate::session) fn flush(&mut self) {
        // Copies that are not made yet have no promise: the flush comes once they are made.
        if self.publishing.is_idle() || !self.unfinished.is_empty() {
            return;
        }
        let groups = std::mem::take(&mut self.publishing.groups);
        self.flush_for((!groups.is_empty()).then_some(Waiting::Confirms(groups)));
    }

    /// Publishes all open batches, for the confirms or the commit that wait for them.
    pub(in crate::session) fn flush_for(&mut self, waiting: Option<Waiting>) {
        self.publish_open();
        let publishing = &mut self.publishing;
        let published = std::mem::take(&mut publishing.published);
        let failed = std::mem::take(&mut publishing.failed);
        let bytes = std::mem::take(&mut publishing.open_bytes);
        if let Some(waiting) = waiting {
            self.confirms.push(Flush {
                published,
                failed,
                bytes,
                waiting,
            });
        }
    }

    fn publish_open(&mut self) {
        let mut open = std::mem::take(&mut self.publishing.open);
        self.meter.called(open.len());
        for batch in open.drain(..) {
            let topic = batch.queue.topic.number();
            self.meter.published.topics.add(topic);
            let wants_promise = batch.wants_promise;
            let published = batch.publish();
            self.keep(published, wants_promise);
        }
        // Its room is used again.
        self.publishing.open = open;
    }

    /// Remembers the outcome of a batch until the next flush, if a client is owed a confirm for it.
    fn keep(&mut self, published: Result<Published, PublishError>, wants_promise: bool) {
        match published {
            Ok(published) if wants_promise => self.publishing.published.push(published),
            Ok(_) => {}
            // The queue was deleted meanwhile: no consumer can want the message any more.
            Err(PublishError::TopicDeleted { .. }) => {}
            Err(error) => {
                self.publishing.failed |= wants_promise;
                self.publish_failed(&error);
            }
        }
    }

    /// A batch was not stored.
    pub(in crate::session) fn publish_failed(&mut self, error: &PublishError) {
        self.meter.probe.error();
        match error {
            PublishError::QueueFull { .. } => {}
            PublishError::Log(AppendError::StorageFull { .. }) => self.block(),
            error => {
                let (peer, due) = (self.peer, FAILURES.count(self.now.us));
                if let Some(times) = due {
                    tracing::warn!(%peer, %error, times, "messages were not stored");
                }
            }
        }
    }
}

impl Publishing {
    /// Lets go of routes that may have changed: a publisher may rest for long.
    pub(in crate::session) fn forget_old_routes(&mut self, generation: u64) {
        self.routes.refresh(generation);
    }

    fn is_idle(&self) -> bool {
        self.open.is_empty()
            && self.groups.is_empty()
            && self.published.is_empty()
            && !self.failed
            && self.open_bytes == 0
    }

    fn add_group(&mut self, group: Group) {
        let mut groups = self.groups.iter_mut().rev();
        let same =
            |it: &&mut Group| it.channel == group.channel && it.incarnation == group.incarnation;
        match groups.find(same) {
            Some(before) => before.last = group.last,
            None => self.groups.push(group),
        }
    }

    /// The open batch for that place, made if there is none. Messages of both classes share it, so
    /// that they keep their order; the confirms of a read go out together anyway.
    fn batch(
        &mut self,
        queue: &Arc<Queue>,
        partition: u32,
        durability: Durability,
        make: impl FnOnce() -> BatchBuilder,
    ) -> &mut OpenBatch {
        let is_it =
            |batch: &OpenBatch| Arc::ptr_eq(&batch.queue, queue) && batch.partition == partition;
        let place = match self.open.iter().position(is_it) {
            Some(place) => {
                if durability == Durability::Disk {
                    self.open[place].durability = durability;
                }
                place
            }
            None => {
                self.open.push(OpenBatch {
                    queue: Arc::clone(queue),
                    partition,
                    durability,
                    builder: make(),
                    bytes: 0,
                    wants_promise: false,
                });
                self.open.len() - 1
            }
        };
        &mut self.open[place]
    }
}

/// The facts in a message's properties that say how it is stored.
#[derive(Clone, Copy, Debug)]
pub(in crate::session) struct Facts {
    is_persistent: bool,
    wants_promise: bool,
    priority: Option<u8>,
    expires_at_ms: Option<u64>,
    delay_ms: Option<u64>,
}

impl Facts {
    fn of(properties: &Properties<'_>, expires_at_ms: Option<u64>, wants_promise: bool) -> Facts {
        Facts {
            is_persistent: properties.delivery_mode == Some(2),
            wants_promise,
            priority: properties.priority,
            expires_at_ms,
            delay_ms: properties.headers.and_then(delay_ms),
        }
    }

    /// Only the confirm of a persistent message in a durable queue waits for the disk.
    fn durability(&self, is_durable: bool) -> Durability {
        if self.is_persistent && self.wants_promise && is_durable {
            Durability::Disk
        } else {
            Durability::Kernel
        }
    }
}

/// Bytes that a message takes in a batch, and not many more.
fn message_bytes(message: &Message<'_>) -> usize {
    let texts = message.exchange.len() + message.routing_key.len();
    // The user's headers are there twice.
    let properties = 2 * message.properties.len();
    message.body.len() + texts + properties + RECORD_OVERHEAD_BYTES
}

fn no_reply_queue() -> Exception {
    Exception::precondition("fast reply consumer does not exist")
}

fn rewrite<'o>(properties: &Properties<'_>, out: &'o mut Vec<u8>) -> &'o [u8] {
    out.clear();
    properties.write(&mut Writer::new(out));
    out
}

/// The headers without those that only the broker may see.
fn without_bcc<'t>(headers: Option<Table<'_>>, table: &'t mut Vec<u8>) -> Option<Table<'t>> {
    let fields = headers.unwrap_or_default();
    let kept: Vec<_> = fields.fields().filter(|(name, _)| *name != "BCC").collect();
    *table = table_bytes(&kept);
    Table::check(table).ok()
}

/// Whether further routing keys are where they may be.
fn check_copies(headers: Table<'_>) -> Result<(), Exception> {
    for (name, value) in headers.fields() {
        let is_array = matches!(value, Value::Array(_));
        if (name == "CC" || name == "BCC") && !is_array {
            let kind = type_name(value);
            return Err(Exception::precondition(format!(
                "invalid message: {{unacceptable_type_in_header,\"{name}\",{kind}}}"
            )));
        }
    }
    Ok(())
}

/// Reads the property `expiration`.
fn expiration_ms(text: &str) -> Result<u64, Exception> {
    let invalid =
        |why: &str| Exception::precondition(format!("invalid expiration '{text}': {why}"));
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    if number.is_empty() {
        return Err(invalid(if text.starts_with('-') {
            "value_negative"
        } else {
            "no_integer"
        }));
    }
    if !rest.is_empty() {
        return Err(invalid(&format!("{{leftover_string,{rest:?}}}")));
    }
    match number.parse() {
        Ok(ms) if ms <= EXPIRATION_MAX_MS => Ok(ms),
        _ => Err(invalid(&format!("{{value_too_big,{number}}}"))),
    }
}
