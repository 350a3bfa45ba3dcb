//! Letters (messages on their way through the router): which of their publishes are not decided.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use cloverleaf_broker::{Died, MessageId, PublishError, Published, Subscription};
use uuid::Uuid;

use super::{Lane, is_passing, warn};

/// How a letter came here.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    /// It waited in a hidden topic.
    Lane(Lane),
    /// It died in its queue.
    Queue(Died),
}

/// A message whose publishes do not all hold yet.
#[derive(Debug)]
pub(super) struct Letter {
    /// Where it is until then, and who hears that it has arrived.
    pub(super) subscription: Arc<Subscription>,
    pub(super) id: MessageId,
    pub(super) origin: Origin,
    /// Publishes that are not decided; one more while it is being routed.
    open: u32,
    /// Of these, the ones that the kernel does not have yet.
    unwritten: u32,
    /// One of them failed: the message is routed once more.
    pub(super) failed: bool,
    /// The topics of the queues that have it. Not to be routed to these again.
    pub(super) reached: Vec<Uuid>,
}

/// A publish under way, with the letters in it.
struct Moving {
    published: Published,
    letters: Vec<u64>,
    /// For which queue: its topic.
    queue: Option<Uuid>,
    is_written: bool,
}

/// Letters, and their publishes.
#[derive(Default)]
pub(in super::super) struct UnderWay {
    letters: HashMap<u64, Letter>,
    last_letter: u64,
    /// Those that are being routed.
    fresh: Vec<u64>,
    moving: Vec<Moving>,
    /// Letters of which the kernel has all publishes since it was last noted.
    moved: Vec<u64>,
    done: Vec<Letter>,
}

impl UnderWay {
    pub(super) fn len(&self) -> usize {
        self.letters.len()
    }

    /// A letter is being routed from now on, until [`Self::end_round`].
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

    /// A letter that was just added cannot be routed now.
    pub(super) fn forget(&mut self, letter: u64) {
        self.letters.remove(&letter);
        self.fresh.retain(|fresh| *fresh != letter);
    }

    /// All publishes of the letters that were added are made.
    pub(super) fn end_round(&mut self) {
        for letter in std::mem::take(&mut self.fresh) {
            self.written_one(letter);
            self.close_one(letter, Ok(None));
        }
    }

    /// Whether a letter is in a queue since an earlier try.
    pub(super) fn has_reached(&self, letter: u64, queue: Uuid) -> bool {
        let letter = self.letters.get(&letter);
        letter.is_some_and(|letter| letter.reached.contains(&queue))
    }

    /// Letters are part of one more publish.
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

    /// Whether a publish waits for its write, of which nobody is told.
    pub(super) fn has_unwritten(&self) -> bool {
        self.moving.iter().any(|moving| !moving.is_written)
    }

    /// A publish was refused: tried again later if that can help.
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

    /// Looks which publishes are written, which is noted, and which are decided. Returns the
    /// letters of which all are.
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

    /// The kernel has one publish of a letter, or it is routed, or it failed.
    fn written_one(&mut self, number: u64) {
        if let Some(letter) = self.letters.get_mut(&number) {
            letter.unwritten = letter.unwritten.saturating_sub(1);
            if letter.unwritten == 0 {
                self.moved.push(number);
            }
        }
    }

    /// Tells the subscriptions what has moved and is still waited for.
    fn note_moved(&mut self) {
        let moved = std::mem::take(&mut self.moved).into_iter();
        let letters = moved.filter_map(|number| self.letters.get(&number));
        let letters = letters.filter(|letter| !letter.failed);
        let moved = letters.map(|letter| (letter.subscription.clone(), letter.id));
        tell(&moved.collect::<Vec<_>>(), |subscription, ids| {
            subscription.note_moved(ids, true);
        });
    }

    /// One publish of a letter is decided: it is in that queue, or it failed.
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

/// Tells the subscriptions of their messages.
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
