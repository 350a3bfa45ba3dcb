//! Publishes: from the client into the queues' topics, and their confirms.
//!
//! The route of a message is looked up first (`route_cache.rs`). Then the message joins the open
//! batch of each of its queues (`batches.rs`). If it has very many queues, its copies are spread
//! over several polls (`fan_out.rs`); in a transaction it waits for the commit (`transaction.rs`).
//! All batches of one read are one flush, for which its confirms wait (`confirms.rs`).

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
use self::confirms::{ConfirmGroup, Confirms, OwedAnswer};
pub(super) use self::confirms::{PendingCommit, ReadyAnswer};
use self::fan_out::FanOut;
use self::properties::StorageProperties;
use self::route_cache::{FoundRoute, RouteCache};
use self::storage_alarm::StorageAlarm;
use self::transaction::RoutedPublish;
use super::channel::{Channel, ChannelMode};
use super::channel_input::cannot_decode;
use super::connection::Connection;
use super::deliveries::Deliveries;
use crate::body::Body;
use crate::content_memory::{ContentReservation, ContentShare};
use crate::exception::{Exception, ReplyCode};
use crate::host::{Queue, Route};
use crate::message::Message;
use crate::queue_arguments::Overflow;
use crate::routing::RoutedMessage;
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
    /// This connection's share of the memory budget for partly received contents and open
    /// transactions.
    contents: Arc<ContentShare>,
    /// A publish waits until the disk has caught up with earlier ones.
    waits_for_room: bool,
}

/// The arguments of `basic.publish` that routing needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PublishTarget<'a> {
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

    /// Whether the client's next frame may be handled.
    #[inline]
    pub(super) fn may_read_on(&self) -> bool {
        !self.waits_for_room && self.fan_out.is_empty() && !self.confirms.is_full()
    }

    /// Whether copies remain to be made, and may be made now.
    #[inline]
    pub(super) fn wants_turn(&self) -> bool {
        !self.fan_out.is_empty() && !self.waits_for_room
    }

    /// Whether no publish waits for the log.
    #[inline]
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirms.is_empty()
    }

    /// Whether everything that was published is stored and confirmed.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.confirms.is_empty() && self.fan_out.is_empty()
    }

    /// Whether a publish has to wait because the disk is behind (backpressure).
    #[inline]
    pub(super) fn must_wait(&mut self, connection: &Connection) -> bool {
        self.waits_for_room = !connection.realm.write_budget().is_free();
        self.waits_for_room
    }

    /// The time by which [`Publisher::poll_alarm`] and [`Publisher::must_check_contents`] have to
    /// be called.
    pub(super) fn due_us(&self) -> u64 {
        self.alarm.due_us().min(self.contents.due_us())
    }

    /// Sets the number of unparsed bytes of the current read: a hint for the size of the batches.
    #[inline]
    pub(super) fn set_input_bytes(&mut self, input_bytes: usize) {
        self.batches.set_input_bytes(input_bytes);
    }

    /// An empty reservation for the memory of a content or a transaction.
    pub(super) fn new_reservation(&self) -> ContentReservation {
        ContentReservation::empty(&self.contents)
    }

    /// Whether memory is tight and it is time to look for contents and transactions that this
    /// connection has held for too long.
    #[inline]
    pub(super) fn must_check_contents(&self, now_us: u64) -> bool {
        self.contents.is_due(now_us)
    }

    /// Ends the wait for the disk once it has caught up.
    #[inline]
    pub(super) fn poll_room(&mut self, connection: &Connection, cx: &mut Context<'_>) {
        if self.waits_for_room && connection.realm.write_budget().poll_free(cx).is_ready() {
            self.waits_for_room = false;
        }
    }

    /// Checks again whether the disk is full, if it is time.
    #[inline]
    pub(super) fn poll_alarm(&mut self, connection: &mut Connection) {
        self.alarm.poll(connection);
    }

    /// Drops cached routes that may be outdated, even if no publish follows: they would keep
    /// deleted queues in memory.
    #[inline]
    pub(super) fn forget_old_routes(&mut self, connection: &Connection) {
        self.routes.refresh(connection.host.generation());
    }

    /// The publishes and commits whose outcome is known now, in order. The caller returns the
    /// vector with [`Publisher::answered`].
    #[inline]
    pub(super) fn poll_confirms(
        &mut self,
        connection: &mut Connection,
        cx: &mut Context<'_>,
    ) -> Vec<ReadyAnswer> {
        let alarm = &mut self.alarm;
        self.confirms
            .poll(cx, |error| alarm.not_stored(connection, error))
    }

    /// Takes back the vector of [`Publisher::poll_confirms`], to reuse its allocation.
    pub(super) fn answered(&mut self, answers: Vec<ReadyAnswer>) {
        self.confirms.reuse(answers);
    }

    /// Publishes a complete message on a channel.
    pub(super) fn publish(
        &mut self,
        connection: &mut Connection,
        channel: &mut Channel,
        deliveries: &Deliveries,
        target: PublishTarget<'_>,
        header: &[u8],
        body: Body<'_>,
    ) -> Result<(), Exception> {
        let read = ContentHeader::read(header);
        let (header, mut properties) = read.map_err(|_| cannot_decode(header))?;
        properties::check_cc(properties.headers.unwrap_or_default())?;
        let routed = RoutedMessage {
            key: target.routing_key,
            headers: properties.headers.unwrap_or_default(),
        };
        let FoundRoute { route, may_refuse } = self.routes.find(
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
            ChannelMode::Transaction(transaction) => {
                published.silent += 1;
                return transaction.publish(
                    RoutedPublish::of(&route, &message, target.mandatory),
                    connection.options.transaction_bytes_max,
                    connection.now.us,
                );
            }
            ChannelMode::Plain => {
                published.silent += 1;
                None
            }
            ChannelMode::Confirm(next) => {
                let number_of_publish = *next;
                *next += 1;
                Some(ConfirmGroup {
                    channel: channel.number,
                    incarnation: channel.incarnation,
                    first: number_of_publish,
                    last: number_of_publish,
                })
            }
        };
        if may_refuse {
            // This message gets a flush of its own, so that a full queue's refusal causes no nack
            // for others.
            self.flush(connection);
        }
        let wants_confirm = group.is_some();
        if let Some(group) = group {
            self.batches.add_group(group);
        }
        let storage = StorageProperties::of(&properties, expires_at_ms, wants_confirm);
        let (number, mandatory) = (channel.number, target.mandatory);
        if !self.delay_or_return(connection, number, &route, &message, mandatory, &storage) {
            self.begin_copies(connection, number, &route, &message, &storage);
        }
        if may_refuse {
            self.flush(connection);
        }
        Ok(())
    }

    /// Delays the message if its exchange and its `x-delay` say so, or returns it if it is
    /// mandatory and has no queue. `true`: nothing remains to be stored in queues.
    #[inline]
    fn delay_or_return(
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
                .record_outcome(connection, alarm, delayed, storage.wants_confirm);
            return true;
        }
        let is_nowhere = route.queues.is_empty();
        if is_nowhere && mandatory {
            return_message(connection, number, message);
        }
        is_nowhere
    }

    /// Stores a message in the given part of the queues of its route.
    fn copy_to_queues(
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

    /// Publishes to a queue that dead-letters what it refuses (`reject-publish-dlx`).
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
        let (alarm, wants_confirm) = (&mut self.alarm, storage.wants_confirm);
        if let Err(PublishError::QueueFull { .. }) = &published {
            let durability = storage.durability(queue.durable);
            let letter =
                connection
                    .host
                    .dead_letter(queue, "maxlen", message, timestamp_ms, durability);
            if let Some(letter) = letter.transpose() {
                self.batches
                    .record_outcome(connection, alarm, letter, wants_confirm);
            }
        }
        self.batches
            .record_outcome(connection, alarm, published, wants_confirm);
    }

    /// Publishes all open batches: at the end of a read, and before anything that must come after
    /// them.
    pub(super) fn flush(&mut self, connection: &mut Connection) {
        // No flush during a fan-out: its confirm would cover only the copies made so far.
        // `make_copies` flushes after the last copy.
        if self.batches.is_idle() || !self.fan_out.is_empty() {
            return;
        }
        let owed = self.batches.take_groups();
        self.flush_for(connection, owed);
    }

    /// Publishes all open batches; `owed` is answered once they are stored.
    fn flush_for(&mut self, connection: &mut Connection, owed: Option<OwedAnswer>) {
        self.batches.publish(connection, &mut self.alarm);
        if let Some(flush) = self.batches.end_flush(owed) {
            self.confirms.push(flush);
        }
    }
}

/// Returns an unroutable message to its publisher.
fn return_message(connection: &mut Connection, number: u16, message: &Message<'_>) {
    let method = Method::BasicReturn(method::BasicReturn {
        reply_code: ReplyCode::NoRoute as u16,
        reply_text: ReplyCode::NoRoute.word(),
        exchange: message.exchange,
        routing_key: message.routing_key,
    });
    connection.reply_with_content(number, &method, message.properties, message.body, None);
}
