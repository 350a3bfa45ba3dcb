//! Methods that tell what is in a queue come after what this connection has published to it before.
//!
//! A publish without confirm is visible once it is written. The log mostly writes at once; while
//! the disk is slow another thread does it, and then these methods wait for that: in RabbitMQ a
//! queue's process takes what one channel sends it in order. It has also routed what died in it
//! before it hears that it is deleted.

use std::sync::Arc;
use std::task::Context;

use cloverleaf_broker::Unwritten;

use super::channel::Channels;
use super::connection::Connection;
use crate::host::{Queue, Routing};
use crate::wire::{Frame, FrameType, Method, MethodId, method};

/// These tell how much is in a queue, or take from it.
const TELLING: [MethodId; 4] = [
    method::BasicGet::ID,
    method::QueueDeclare::ID,
    method::QueuePurge::ID,
    method::QueueDelete::ID,
];

/// What the foremost method waits for.
#[derive(Default)]
pub(super) struct Ordering {
    unwritten: Option<Unwritten>,
    /// Dead messages on the way to where they belong.
    routing: Vec<Routing>,
    /// The foremost method waits, or has waited, for what came before it.
    has_waited: bool,
}

impl Ordering {
    /// Whether no method waits.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.unwritten.is_none() && self.routing.is_empty()
    }

    /// Whether this frame tells what is in a queue. One that has waited does not wait again, for
    /// what others publish meanwhile.
    #[inline]
    pub(super) fn may_wait(&mut self, frame: &Frame<'_>) -> bool {
        let is_telling =
            frame.kind == FrameType::Method && TELLING.contains(&MethodId::peek(frame.payload));
        is_telling && !std::mem::take(&mut self.has_waited)
    }

    /// Whether this frame has to wait for what was published or has died before; it has to be shown
    /// again.
    pub(super) fn waits(
        &mut self,
        connection: &Connection,
        channels: &Channels,
        frame: &Frame<'_>,
    ) -> bool {
        let Some(queue) = told_queue(connection, channels, frame) else {
            return false;
        };
        self.unwritten = queue.topic.unwritten();
        if MethodId::peek(frame.payload) == method::QueueDelete::ID {
            self.routing.extend(connection.host.route_dead_of(&queue));
        }
        self.has_waited = !self.is_free();
        self.has_waited
    }

    /// Goes on once what came before is written, and is where it belongs.
    #[inline]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        if !self.routing.is_empty() {
            self.routing.retain(|routing| routing.poll(cx).is_pending());
        }
        if let Some(unwritten) = &mut self.unwritten
            && unwritten.poll_written(cx).is_ready()
        {
            self.unwritten = None;
        }
    }

    /// Nothing waits any more, because the connection ends.
    pub(super) fn clear(&mut self) {
        self.routing.clear();
        self.unwritten = None;
    }
}

/// The queue that a method tells of, if there is one.
fn told_queue(
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
