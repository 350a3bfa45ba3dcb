//! The messages that are being routed, and their pending publishes.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use cloverleaf_broker::{DeadMessage, MessageId, PublishError, Published, Subscription};
use uuid::Uuid;

use super::{HiddenTopic, is_worth_retry, log_retry};

/// The source of a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum MessageOrigin {
    /// A hidden topic.
    HiddenTopic(HiddenTopic),
    /// The queue in which it died.
    Queue(DeadMessage),
}

/// A message of which not all publishes are durable yet.
#[derive(Debug)]
pub(super) struct PendingMessage {
    /// The subscription that has the message until then, and that is notified of the outcome.
    pub(super) subscription: Arc<Subscription>,
    pub(super) id: MessageId,
    pub(super) origin: MessageOrigin,
    /// Pending publishes, plus one while the message is being routed.
    incomplete: u32,
    /// Those of `incomplete` that are not written yet.
    unwritten: u32,
    /// A publish failed: the message has to be routed again.
    pub(super) has_failed: bool,
    /// The topics of the queues that have a copy, which must not get a second one.
    pub(super) copied_to: Vec<Uuid>,
}

/// A pending publish, and the messages in it.
struct PendingPublish {
    published: Published,
    numbers: Vec<u64>,
    /// The topic of the destination queue; `None` for a delayed message.
    queue: Option<Uuid>,
    is_written: bool,
}

/// The messages that are being routed, and their pending publishes.
#[derive(Default)]
pub(in super::super) struct PendingMessages {
    messages: HashMap<u64, PendingMessage>,
    last_number: u64,
    /// Messages of the current round.
    current_round: Vec<u64>,
    publishes: Vec<PendingPublish>,
    /// Messages that became completely written since [`Self::note_moved`] last ran.
    moved: Vec<u64>,
    done: Vec<PendingMessage>,
}

impl PendingMessages {
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Begins to route a message; its publishes are complete with [`Self::end_round`].
    pub(super) fn add(
        &mut self,
        subscription: &Arc<Subscription>,
        id: MessageId,
        origin: MessageOrigin,
        reached: Vec<Uuid>,
    ) -> u64 {
        self.last_number += 1;
        let message = PendingMessage {
            subscription: subscription.clone(),
            id,
            origin,
            incomplete: 1,
            unwritten: 1,
            has_failed: false,
            copied_to: reached,
        };
        self.messages.insert(self.last_number, message);
        self.current_round.push(self.last_number);
        self.last_number
    }

    /// Removes a message that was just added, because it cannot be routed now.
    pub(super) fn remove(&mut self, number: u64) {
        self.messages.remove(&number);
        self.current_round.retain(|other| *other != number);
    }

    /// Ends a round: all publishes of its messages are made.
    pub(super) fn end_round(&mut self) {
        for number in std::mem::take(&mut self.current_round) {
            self.count_written(number);
            self.count_completed(number, Ok(None));
        }
    }

    /// Whether a queue has a copy of the message from an earlier attempt.
    pub(super) fn has_reached(&self, number: u64, queue: Uuid) -> bool {
        let message = self.messages.get(&number);
        message.is_some_and(|message| message.copied_to.contains(&queue))
    }

    /// Adds a pending publish with these messages.
    pub(super) fn push(&mut self, published: Published, numbers: Vec<u64>, queue: Option<Uuid>) {
        for number in &numbers {
            if let Some(message) = self.messages.get_mut(number) {
                message.incomplete += 1;
                message.unwritten += 1;
            }
        }
        self.publishes.push(PendingPublish {
            published,
            numbers,
            queue,
            is_written: false,
        });
    }

    /// Whether a publish is not written yet. There is no wake-up for that.
    pub(super) fn has_unwritten(&self) -> bool {
        self.publishes.iter().any(|publish| !publish.is_written)
    }

    /// Handles a refused publish: its messages are retried if that can help.
    pub(super) fn refuse(&mut self, error: &PublishError, numbers: &[u64], now_ms: u64) {
        if !is_worth_retry(error) {
            tracing::debug!(%error, "a queue does not take a dead or delayed message");
            return;
        }
        log_retry(error, now_ms);
        for number in numbers {
            if let Some(message) = self.messages.get_mut(number) {
                message.has_failed = true;
            }
        }
    }

    /// Checks which publishes are written and which are decided. Returns the messages of which all
    /// publishes are decided.
    pub(super) fn finish(&mut self, context: &mut Context<'_>, now_ms: u64) -> Vec<PendingMessage> {
        for mut publish in std::mem::take(&mut self.publishes) {
            let polled = Pin::new(&mut publish.published).poll(context);
            if !publish.is_written && (polled.is_ready() || publish.published.is_written()) {
                publish.is_written = true;
                for number in &publish.numbers {
                    self.count_written(*number);
                }
            }
            match polled {
                Poll::Pending => self.publishes.push(publish),
                Poll::Ready(result) => {
                    if let Err(error) = &result {
                        log_retry(error, now_ms);
                    }
                    let outcome = result.map(|()| publish.queue).map_err(drop);
                    for number in publish.numbers {
                        self.count_completed(number, outcome);
                    }
                }
            }
        }
        self.note_moved();
        std::mem::take(&mut self.done)
    }

    /// Counts one publish of a message as written, or its round as ended.
    fn count_written(&mut self, number: u64) {
        if let Some(message) = self.messages.get_mut(&number) {
            message.unwritten = message.unwritten.saturating_sub(1);
            if message.unwritten == 0 {
                self.moved.push(number);
            }
        }
    }

    /// Reports messages that are completely written, but not all durable yet, to their
    /// subscriptions.
    fn note_moved(&mut self) {
        let moved = std::mem::take(&mut self.moved).into_iter();
        let messages = moved.filter_map(|number| self.messages.get(&number));
        let messages = messages.filter(|message| !message.has_failed);
        let moved = messages.map(|message| (message.subscription.clone(), message.id));
        for_each_subscription(&moved.collect::<Vec<_>>(), |subscription, ids| {
            subscription.note_moved(ids, true);
        });
    }

    /// Counts one publish of a message as decided: stored in a queue, or failed.
    fn count_completed(&mut self, number: u64, outcome: Result<Option<Uuid>, ()>) {
        let Some(message) = self.messages.get_mut(&number) else {
            return;
        };
        match outcome {
            Ok(queue) => message.copied_to.extend(queue),
            Err(()) => message.has_failed = true,
        }
        message.incomplete = message.incomplete.saturating_sub(1);
        if message.incomplete == 0 {
            self.done.extend(self.messages.remove(&number));
        }
    }
}

/// Calls `report` once for each run of messages of the same subscription.
pub(super) fn for_each_subscription(
    all: &[(Arc<Subscription>, MessageId)],
    mut report: impl FnMut(&Arc<Subscription>, &[MessageId]),
) {
    for of_one in all.chunk_by(|a, b| Arc::ptr_eq(&a.0, &b.0)) {
        if let Some((subscription, _)) = of_one.first() {
            let ids: Vec<MessageId> = of_one.iter().map(|(_, id)| *id).collect();
            report(subscription, &ids);
        }
    }
}
