//! Publishes: from the client into the queues' topics, and their confirms.
//!
//! A message's route is looked up once (`route_cache.rs`). Then the message joins the open batch of
//! each of its queues (`batches.rs`), unless it goes to so many queues that its copies are spread
//! over several polls (`fan_out.rs`), or it belongs to a transaction (`transaction.rs`). All
//! batches of one read are one flush, for which its confirms wait (`confirms.rs`).

mod batches;
mod confirms;
mod fan_out;
mod properties;
mod route_cache;
mod storage_alarm;
pub(super) mod transaction;

use std::ops::Range;
use std::sync::Arc;
use std::task::Context;

use cloverleaf_broker::PublishError;

use self::batches::{Batches, OpenBatch};
pub(super) use self::confirms::{Commit, Decision};
use self::confirms::{Confirms, Group, Waiting};
use self::fan_out::FanOut;
use self::properties::StorageProperties;
use self::route_cache::{Found, RouteCache};
use self::storage_alarm::StorageAlarm;
use self::transaction::Publish;
use super::channel::{Channel, Mode};
use super::channel_input::cannot_decode;
use super::connection::Connection;
use super::deliveries::Deliveries;
use crate::body::Body;
use crate::content_memory::{ContentShare, Held};
use crate::exception::{Exception, ReplyCode};
use crate::host::{Queue, Route};
use crate::message::Message;
use crate::queue_arguments::Overflow;
use crate::routing::Routed;
use crate::wire::{ContentHeader, Method, Value, method};

/// The pseudo-queue of direct reply-to.
pub(super) const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// The publishes of a connection.
pub(super) struct Publisher {
    routes: RouteCache,
    batches: Batches,
    confirms: Confirms,
    fan_out: FanOut,
    alarm: StorageAlarm,
    /// This connection's share of the memory budget for contents half received and open
    /// transactions.
    contents: Arc<ContentShare>,
    /// A publish waits until the disk has taken some of what was accepted before.
    waits_for_room: bool,
}

/// The arguments of `basic.publish`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) exchange: &'a str,
    pub(super) routing_key: &'a str,
    pub(super) mandatory: bool,
}

impl Publisher {
    pub(super) fn new(contents: Arc<ContentShare>) -> Self {
        Self {
            routes: RouteCache::default(),
            batches: Batches::default(),
            confirms: Confirms::default(),
            fan_out: FanOut::default(),
            alarm: StorageAlarm::default(),
            contents,
            waits_for_room: false,
        }
    }

    /// Whether the client's next frame may be looked at.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        !self.waits_for_room && self.fan_out.is_empty() && !self.confirms.is_full()
    }

    /// Whether it has left work for its next turn.
    #[inline]
    pub(super) fn wants_turn(&self) -> bool {
        !self.fan_out.is_empty() && !self.waits_for_room
    }

    /// Whether nothing waits for the log to confirm it.
    #[inline]
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirms.is_empty()
    }

    /// Whether all that was published is stored and confirmed.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.confirms.is_empty() && self.fan_out.is_empty()
    }

    /// Whether a publish has to wait because the disk is behind.
    #[inline]
    pub(super) fn must_wait(&mut self, connection: &Connection) -> bool {
        self.waits_for_room = !connection.realm.room().is_free();
        self.waits_for_room
    }

    /// When [`Publisher::poll_alarm`] or [`Publisher::holds_much`] has to be asked at the latest.
    pub(super) fn due_us(&self) -> u64 {
        self.alarm.due_us().min(self.contents.due_us())
    }

    /// Tells the batches how many bytes of this read are still to be parsed: a hint for their size.
    #[inline]
    pub(super) fn expect(&mut self, input_bytes: usize) {
        self.batches.expect(input_bytes);
    }

    /// Memory for a content or a transaction: none yet.
    pub(super) fn hold(&self) -> Held {
        Held::none(&self.contents)
    }

    /// Whether memory is short and it is time to look for contents that this connection has held
    /// for too long.
    #[inline]
    pub(super) fn holds_much(&self, now_us: u64) -> bool {
        self.contents.is_due(now_us)
    }

    /// Goes on once the disk has taken enough.
    #[inline]
    pub(super) fn poll_room(&mut self, connection: &Connection, cx: &mut Context<'_>) {
        if self.waits_for_room && connection.realm.room().poll_free(cx).is_ready() {
            self.waits_for_room = false;
        }
    }

    /// Looks at a full disk again, if it is time.
    #[inline]
    pub(super) fn poll_alarm(&mut self, connection: &mut Connection) {
        self.alarm.poll(connection);
    }

    /// Lets go of routes that may have changed: a publisher may rest for long.
    #[inline]
    pub(super) fn forget_old_routes(&mut self, connection: &Connection) {
        self.routes.refresh(connection.host.generation());
    }

    /// The publishes and commits whose outcome is known now, in the order in which they came. To be
    /// given back with [`Publisher::answered`].
    #[inline]
    pub(super) fn poll_confirms(
        &mut self,
        connection: &mut Connection,
        cx: &mut Context<'_>,
    ) -> Vec<Decision> {
        let alarm = &mut self.alarm;
        self.confirms
            .poll(cx, |error| alarm.not_stored(connection, error))
    }

    /// Takes the memory of decisions back, after they were answered.
    pub(super) fn answered(&mut self, decisions: Vec<Decision>) {
        self.confirms.reuse(decisions);
    }

    /// A whole message was published on a channel.
    pub(super) fn publish(
        &mut self,
        connection: &mut Connection,
        channel: &mut Channel,
        deliveries: &Deliveries,
        target: Target<'_>,
        header: &[u8],
        body: Body<'_>,
    ) -> Result<(), Exception> {
        let read = ContentHeader::read(header);
        let (header, mut properties) = read.map_err(|_| cannot_decode(header))?;
        properties::check_copies(properties.headers.unwrap_or_default())?;
        let routed = Routed {
            key: target.routing_key,
            headers: properties.headers.unwrap_or_default(),
        };
        let Found { route, may_refuse } = self.routes.find(
            &connection.host,
            &connection.user(),
            target.exchange,
            &routed,
        )?;
        let (mut rewritten, mut table) = (Vec::new(), Vec::new());
        let mut raw = header.raw;
        if properties.reply_to == Some(REPLY_TO) {
            let queue = deliveries.reply_queue(channel.number);
            let queue = queue.ok_or_else(properties::no_reply_queue)?;
            properties.reply_to = Some(queue);
            raw = properties::rewrite(&properties, &mut rewritten);
        }
        let blind = properties.headers.and_then(|headers| headers.get("BCC"));
        let mut bcc: &[u8] = &[];
        if let Some(Value::Array(keys)) = blind {
            bcc = keys.bytes();
            properties.headers = properties::without_bcc(properties.headers, &mut table);
            raw = properties::rewrite(&properties, &mut rewritten);
        }
        let expires_at_ms = properties::expires_at_ms(&properties, connection.broker_ms)?;
        properties::check_user(&properties, &connection.user)?;
        let published = &mut connection.meter.published;
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
                    connection.options.transaction_bytes_max,
                    connection.now.us,
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
                    channel: channel.number,
                    incarnation: channel.incarnation,
                    first: number_of_publish,
                    last: number_of_publish,
                })
            }
        };
        if may_refuse {
            // A refusal by one queue must not be held against other messages.
            self.flush(connection);
        }
        let wants_promise = group.is_some();
        if let Some(group) = group {
            self.batches.add_group(group);
        }
        let storage = StorageProperties::of(&properties, expires_at_ms, wants_promise);
        let (number, mandatory) = (channel.number, target.mandatory);
        if !self.is_stored_elsewhere(connection, number, &route, &message, mandatory, &storage) {
            self.begin_copies(connection, number, &route, &message, &storage);
        }
        if may_refuse {
            self.flush(connection);
        }
        Ok(())
    }

    /// Holds a message back, if its exchange does so, or returns it if there is no queue for it.
    /// `false`: it belongs into the queues of its route.
    #[inline]
    fn is_stored_elsewhere(
        &mut self,
        connection: &mut Connection,
        number: u16,
        route: &Route,
        message: &Message<'_>,
        mandatory: bool,
        storage: &StorageProperties,
    ) -> bool {
        if route.delays
            && let Some(delay_ms) = storage.delay_ms
        {
            connection.meter.called(1);
            let durability = storage.durability(true);
            let delayed = connection.host.delay(
                message.exchange,
                message,
                delay_ms,
                connection.timestamp_ms(),
                durability,
            );
            let alarm = &mut self.alarm;
            self.batches
                .keep(connection, alarm, delayed, storage.wants_promise);
            return true;
        }
        let is_nowhere = route.queues.is_empty();
        if is_nowhere && mandatory {
            return_message(connection, number, message);
        }
        is_nowhere
    }

    /// Stores a message in some of the queues of its route.
    fn copy(
        &mut self,
        connection: &mut Connection,
        route: &Route,
        message: &Message<'_>,
        storage: &StorageProperties,
        which: Range<usize>,
    ) {
        let timestamp_ms = connection.timestamp_ms();
        for queue in &route.queues[which] {
            if queue.arguments.overflow == Overflow::RejectPublishDeadLetter {
                self.store_or_dead_letter(connection, queue, message, storage);
            } else if self.batches.add(queue, message, storage, timestamp_ms) {
                self.batches.publish(connection, &mut self.alarm);
            }
        }
    }

    /// For a queue that dead-letters what it refuses.
    fn store_or_dead_letter(
        &mut self,
        connection: &mut Connection,
        queue: &Arc<Queue>,
        message: &Message<'_>,
        storage: &StorageProperties,
    ) {
        connection.meter.called(1);
        let timestamp_ms = connection.timestamp_ms();
        let batch = OpenBatch::of_one(queue, message, storage, timestamp_ms);
        let published = batch.publish(connection);
        let (alarm, wants_promise) = (&mut self.alarm, storage.wants_promise);
        if let Err(PublishError::QueueFull { .. }) = &published {
            let durability = storage.durability(queue.durable);
            let letter =
                connection
                    .host
                    .dead_letter(queue, "maxlen", message, timestamp_ms, durability);
            if let Some(letter) = letter.transpose() {
                self.batches.keep(connection, alarm, letter, wants_promise);
            }
        }
        self.batches
            .keep(connection, alarm, published, wants_promise);
    }

    /// Publishes all open batches. To be called at the end of a read, and before anything is done
    /// that must come after them.
    pub(super) fn flush(&mut self, connection: &mut Connection) {
        // While a fan-out is under way, its later copies have no future yet for the confirm to wait
        // for: `make_copies` flushes after the last one.
        if self.batches.is_idle() || !self.fan_out.is_empty() {
            return;
        }
        let waiting = self.batches.take_groups();
        self.flush_for(connection, waiting);
    }

    /// Publishes all open batches, for the confirms or the commit that wait for them.
    fn flush_for(&mut self, connection: &mut Connection, waiting: Option<Waiting>) {
        self.batches.publish(connection, &mut self.alarm);
        if let Some(flush) = self.batches.end_flush(waiting) {
            self.confirms.push(flush);
        }
    }
}

/// Sends a message back for which there is no queue.
fn return_message(connection: &mut Connection, number: u16, message: &Message<'_>) {
    let method = Method::BasicReturn(method::BasicReturn {
        reply_code: ReplyCode::NoRoute as u16,
        reply_text: ReplyCode::NoRoute.word(),
        exchange: message.exchange,
        routing_key: message.routing_key,
    });
    connection.reply_with_content(number, &method, message.properties, message.body, None);
}
