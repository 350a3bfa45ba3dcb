//! Methods that tell what is in a queue come after what this connection has published to it before.
//!
//! A publish without confirm is visible once it is written. The log mostly writes at once; while
//! the disk is slow another thread does it, and then these methods wait for that: in RabbitMQ a
//! queue's process takes what one channel sends it in order. It has also routed what died in it
//! before it hears that it is deleted.

use std::sync::Arc;
use std::task::Context;

use super::Session;
use crate::host::Queue;
use crate::wire::{Frame, FrameType, Method, MethodId, method};

/// These tell how much is in a queue, or take from it.
const TELLING: [MethodId; 4] = [
    method::BasicGet::ID,
    method::QueueDeclare::ID,
    method::QueuePurge::ID,
    method::QueueDelete::ID,
];

impl Session {
    /// Whether this frame has to wait for what was published or has died before; it has to be shown
    /// again.
    pub(super) fn waits_for_earlier(&mut self, frame: &Frame<'_>) -> bool {
        let id = MethodId::peek(frame.payload);
        let is_telling = frame.kind == FrameType::Method && TELLING.contains(&id);
        // A method that has waited does not wait for what others publish meanwhile.
        if !is_telling || std::mem::take(&mut self.has_waited) {
            return false;
        }
        self.flush();
        let Some(queue) = self.told_queue(frame) else {
            return false;
        };
        self.unwritten = queue.topic.unwritten();
        if id == method::QueueDelete::ID {
            self.routing.extend(self.host.route_dead_of(&queue));
        }
        self.has_waited = self.unwritten.is_some() || !self.routing.is_empty();
        self.has_waited
    }

    /// The queue that a method tells of, if there is one.
    fn told_queue(&self, frame: &Frame<'_>) -> Option<Arc<Queue>> {
        let name = match Method::read(frame.payload) {
            Ok(Some(Method::BasicGet(get))) => get.queue,
            Ok(Some(Method::QueueDeclare(declare))) => declare.queue,
            Ok(Some(Method::QueuePurge(purge))) => purge.queue,
            Ok(Some(Method::QueueDelete(delete))) => delete.queue,
            _ => return None,
        };
        let name = self.queue_name(frame.channel, name).ok()?;
        self.host.queue(self.owner, &name).ok()
    }

    /// Goes on once it is written.
    pub(super) fn poll_writes(&mut self, cx: &mut Context<'_>) {
        if let Some(unwritten) = &mut self.unwritten
            && unwritten.poll_written(cx).is_ready()
        {
            self.unwritten = None;
        }
    }
}
