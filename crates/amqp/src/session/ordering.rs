//! Methods that reveal a queue's content take effect after this connection's earlier publishes.
//!
//! A publish is visible once it is written, and a client without confirms cannot tell when that is.
//! The log usually writes at once. While the disk is slow, another thread writes, and these methods
//! wait for it: in RabbitMQ a queue process handles everything from one channel in order. A
//! RabbitMQ queue has also dead-lettered its messages before it handles its deletion, so
//! `queue.delete` waits for that, too.

use std::sync::Arc;
use std::task::Context;

use cloverleaf_broker::Unwritten;

use super::channel::Channels;
use super::connection::Connection;
use crate::host::{DeadLetterWait, Queue};
use crate::wire::{Frame, FrameType, Method, MethodId, method};

/// Methods that reveal how many messages a queue has, or that remove messages.
const REVEALING_METHODS: [MethodId; 4] = [
    method::BasicGet::ID,
    method::QueueDeclare::ID,
    method::QueuePurge::ID,
    method::QueueDelete::ID,
];

/// The conditions that the next method waits for.
#[derive(Default)]
pub(super) struct MethodOrdering {
    unwritten: Option<Unwritten>,
    /// Dead-lettering that is in progress.
    dead_letter_waits: Vec<DeadLetterWait>,
    /// The next method is waiting, or has waited, for the conditions above.
    has_waited: bool,
}

impl MethodOrdering {
    /// Whether no method is waiting.
    #[inline]
    pub(super) fn may_read_on(&self) -> bool {
        self.unwritten.is_none() && self.dead_letter_waits.is_empty()
    }

    /// Whether this frame may have to wait. A method that has waited once does not wait again, or
    /// other connections' publishes could delay it forever.
    #[inline]
    pub(super) fn may_wait(&mut self, frame: &Frame<'_>) -> bool {
        let is_revealing = frame.kind == FrameType::Method
            && REVEALING_METHODS.contains(&MethodId::peek(frame.payload));
        is_revealing && !std::mem::take(&mut self.has_waited)
    }

    /// Whether this frame has to wait for earlier publishes or dead-lettering. Then it must be
    /// passed in again.
    pub(super) fn must_wait_for_earlier(
        &mut self,
        connection: &Connection,
        channels: &Channels,
        frame: &Frame<'_>,
    ) -> bool {
        let Some(queue) = named_queue(connection, channels, frame) else {
            return false;
        };
        self.unwritten = queue.topic.unwritten();
        if MethodId::peek(frame.payload) == method::QueueDelete::ID {
            self.dead_letter_waits
                .extend(connection.host.route_all_dead(&queue));
        }
        self.has_waited = !self.may_read_on();
        self.has_waited
    }

    /// Drops the conditions that are met.
    #[inline]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        if !self.dead_letter_waits.is_empty() {
            self.dead_letter_waits
                .retain(|wait| wait.poll(cx).is_pending());
        }
        if let Some(unwritten) = &mut self.unwritten
            && unwritten.poll_written(cx).is_ready()
        {
            self.unwritten = None;
        }
    }

    /// Drops all conditions, because the connection ends.
    pub(super) fn clear(&mut self) {
        self.dead_letter_waits.clear();
        self.unwritten = None;
    }
}

/// The queue that one of the [`REVEALING_METHODS`] methods names, if it exists.
fn named_queue(
    connection: &Connection,
    channels: &Channels,
    frame: &Frame<'_>,
) -> Option<Arc<Queue>> {
    let name = match Method::read(frame.payload) {
        Ok(Some(Method::BasicGet(get))) => get.queue,
        Ok(Some(Method::QueueDeclare(declare))) => declare.queue,
        Ok(Some(Method::QueuePurge(purge))) => purge.queue,
        Ok(Some(Method::QueueDelete(delete))) => delete.queue,
        _ => return None,
    };
    let name = channels.queue_name(frame.channel, name).ok()?;
    connection.host.queue(connection.owner, &name).ok()
}
