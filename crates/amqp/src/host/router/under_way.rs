//! The messages that are being routed, and their pending publishes.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use cloverleaf_broker::{Died, MessageId, PublishError, Published, Subscription};
use uuid::Uuid;

use super::{Lane, is_passing, warn};

/// The source of a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    /// A hidden topic.
    Lane(Lane),
    /// The queue in which it died.
    Queue(Died),
}

/// A message of which not all publishes are durable yet.
#[derive(Debug)]
pub(super) struct Letter {
    /// The subscription that has the message until then, and that is told of the outcome.
    pub(super) subscription: Arc<Subscription>,
    pub(super) id: MessageId,
    pub(super) origin: Origin,
    /// Pending publishes, plus one while the message is being routed.
    open: u32,
    /// Those of `open` that are not written yet.
    unwritten: u32,
    /// A publish failed: the message has to be routed again.
    pub(super) failed: bool,
    /// The topics of the queues that have a copy, which must not get a second one.
    pub(super) reached: Vec<Uuid>,
}

/// A pending publish, and the messages in it.
struct Moving {
    published: Published,
    letters: Vec<u64>,
    /// The topic of the destination queue; `None` for a delayed message.
    queue: Option<Uuid>,
    is_written: bool,
}

/// The messages that are being routed, and their pending publishes.
#[derive(Default)]
pub(in super::super) struct UnderWay {
    letters: HashMap<u64, Letter>,
    last_letter: u64,
    /// Messages of the current round.
    fresh: Vec<u64>,
    moving: Vec<Moving>,
    /// Messages that became completely written since [`Self::note_moved`] last ran.
    moved: Vec<u64>,
    done: Vec<Letter>,
}

impl UnderWay {
    pub(super) fn len(&self) -> usize {
        self.letters.len()
    }

    /// Begins to route a message; its publishes are complete with [`Self::end_round`].
    pub(super) fn add(
        &mut self,
        subscription: &Arc<Subscription>,
        id: MessageId,
        origin: Origin,
        reached: Vec<Uuid>,
    ) -> u64 {
        self.last_letter += 1;
        let letter = Letter {
            subscription: subscription.clone(),
            id,
            origin,
            open: 1,
            unwritten: 1,
            failed: false,
            reached,
        };
        self.letters.insert(self.last_letter, letter);
        self.fresh.push(self.last_letter);
        self.last_letter
    }

    /// Removes a message that was just added, because it cannot be routed now.
    pub(super) fn forget(&mut self, letter: u64) {
        self.letters.remove(&letter);
        self.fresh.retain(|fresh| *fresh != letter);
    }

    /// Ends a round: all publishes of its messages are made.
    pub(super) fn end_round(&mut self) {
        for letter in std::mem::take(&mut self.fresh) {
            self.written_one(letter);
            self.close_one(letter, Ok(None));
        }
    }

    /// Whether a queue has a copy of the message from an earlier attempt.
    pub(super) fn has_reached(&self, letter: u64, queue: Uuid) -> bool {
        let letter = self.letters.get(&letter);
        letter.is_some_and(|letter| letter.reached.contains(&queue))
    }

    /// Adds a pending publish with these messages.
    pub(super) fn push(&mut self, published: Published, letters: Vec<u64>, queue: Option<Uuid>) {
        for letter in &letters {
            if let Some(letter) = self.letters.get_mut(letter) {
                letter.open += 1;
                letter.unwritten += 1;
            }
        }
        self.moving.push(Moving {
            published,
            letters,
            queue,
            is_written: false,
        });
    }

    /// Whether a publish is not written yet. There is no wake-up for that.
    pub(super) fn has_unwritten(&self) -> bool {
        self.moving.iter().any(|moving| !moving.is_written)
    }

    /// Handles a refused publish: its messages are retried if that can help.
    pub(super) fn refuse(&mut self, error: &PublishError, letters: &[u64], now_ms: u64) {
        if !is_passing(error) {
            tracing::debug!(%error, "a queue does not take a dead or delayed message");
            return;
        }
        warn(error, now_ms);
        for letter in letters {
            if let Some(letter) = self.letters.get_mut(letter) {
                letter.failed = true;
            }
        }
    }

    /// Checks which publishes are written and which are decided. Returns the messages of which all
    /// publishes are decided.
    pub(super) fn finish(&mut self, context: &mut Context<'_>, now_ms: u64) -> Vec<Letter> {
        for mut moving in std::mem::take(&mut self.moving) {
            let polled = Pin::new(&mut moving.published).poll(context);
            if !moving.is_written && (polled.is_ready() || moving.published.is_written()) {
                moving.is_written = true;
                for letter in &moving.letters {
                    self.written_one(*letter);
                }
            }
            match polled {
                Poll::Pending => self.moving.push(moving),
                Poll::Ready(result) => {
                    if let Err(error) = &result {
                        warn(error, now_ms);
                    }
                    let came = result.map(|()| moving.queue).map_err(drop);
                    for letter in moving.letters {
                        self.close_one(letter, came);
                    }
                }
            }
        }
        self.note_moved();
        std::mem::take(&mut self.done)
    }

    /// Counts one publish of a message as written, or its round as ended.
    fn written_one(&mut self, number: u64) {
        if let Some(letter) = self.letters.get_mut(&number) {
            letter.unwritten = letter.unwritten.saturating_sub(1);
            if letter.unwritten == 0 {
                self.moved.push(number);
            }
        }
    }

    /// Reports messages that are completely written, but not all durable yet, to their
    /// subscriptions.
    fn note_moved(&mut self) {
        let moved = std::mem::take(&mut self.moved).into_iter();
        let letters = moved.filter_map(|number| self.letters.get(&number));
        let letters = letters.filter(|letter| !letter.failed);
        let moved = letters.map(|letter| (letter.subscription.clone(), letter.id));
        tell(&moved.collect::<Vec<_>>(), |subscription, ids| {
            subscription.note_moved(ids, true);
        });
    }

    /// Counts one publish of a message as decided: stored in a queue, or failed.
    fn close_one(&mut self, number: u64, came: Result<Option<Uuid>, ()>) {
        let Some(letter) = self.letters.get_mut(&number) else {
            return;
        };
        match came {
            Ok(queue) => letter.reached.extend(queue),
            Err(()) => letter.failed = true,
        }
        letter.open = letter.open.saturating_sub(1);
        if letter.open == 0 {
            self.done.extend(self.letters.remove(&number));
        }
    }
}

/// Calls `told` once for each run of messages of the same subscription.
pub(super) fn tell(
    all: &[(Arc<Subscription>, MessageId)],
    mut told: impl FnMut(&Arc<Subscription>, &[MessageId]),
) {
    for of_one in all.chunk_by(|a, b| Arc::ptr_eq(&a.0, &b.0)) {
        if let Some((subscription, _)) = of_one.first() {
            let ids: Vec<MessageId> = of_one.iter().map(|(_, id)| *id).collect();
            told(subscription, &ids);
        }
    }
}
