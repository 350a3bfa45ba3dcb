//! The copies of a message that goes to many queues: no more than some in one turn, so that other
//! connections of the core have theirs.
//!
//! The copies that are left are made by the next polls. Until then nothing further is read, and no
//! confirm goes out.

use std::collections::VecDeque;

use super::batches::Facts;
use super::confirms::{Commit, Waiting};
use super::transaction::Publish;
use crate::content_memory::Held;
use crate::host::Route;
use crate::message::Message;
use crate::session::Session;
use crate::session::deliveries::settlement::Settled;

/// Most copies of one turn: about a millisecond.
const COPIES_MAX: usize = 128;

/// Messages whose copies are not all made.
#[derive(Default)]
pub(in crate::session) struct Unfinished {
    messages: VecDeque<Unmade>,
    /// The end of a transaction that comes behind them, and what it has settled.
    commit: Option<(Commit, Settled)>,
}

/// A message, and which copy is next.
struct Unmade {
    channel: u16,
    publish: Publish,
    facts: Facts,
    next: usize,
    /// Pays for the message.
    _held: Option<Held>,
}

impl Unfinished {
    pub(in crate::session) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.commit.is_none()
    }
}

impl Session {
    /// Makes the first copies of a message, and sees to the others.
    pub(in crate::session) fn begin_copies(
        &mut self,
        channel: u16,
        route: &Route,
        message: &Message<'_>,
        facts: &Facts,
    ) {
        let count = route.queues.len();
        if count <= COPIES_MAX {
            return self.copy(route, message, facts, 0..count);
        }
        let publish = Publish::of(route, message, false);
        let mut held = Held::none(&self.contents);
        if !held.grow(publish.bytes(), self.now.us) {
            // Without memory for it there is no other turn: all copies are made now.
            return self.copy(route, message, facts, 0..count);
        }
        self.copy(route, message, facts, 0..COPIES_MAX);
        self.unfinished.messages.push_back(Unmade {
            channel,
            publish,
            facts: *facts,
            next: COPIES_MAX,
            _held: Some(held),
        });
    }

    /// Stores the messages of a transaction, and what it has settled behind them.
    pub(in crate::session) fn begin_commit(
        &mut self,
        publishes: Vec<Publish>,
        commit: Commit,
        settled: Settled,
    ) {
        let messages = publishes.into_iter().map(|publish| Unmade {
            channel: commit.channel,
            facts: self.facts_of(&publish.message(), true),
            publish,
            next: 0,
            _held: None,
        });
        self.unfinished.messages = messages.collect();
        self.unfinished.commit = Some((commit, settled));
        self.make_copies();
    }

    /// Makes as many copies as one turn may.
    pub(in crate::session) fn make_copies(&mut self) {
        let mut left = COPIES_MAX;
        while left > 0 {
            if !self.realm.room().is_free() {
                self.waits_for_room = true;
                return;
            }
            let Some(unmade) = self.unfinished.messages.pop_front() else {
                break;
            };
            left = self.make_some(unmade, left);
        }
        if self.unfinished.messages.is_empty() {
            self.copies_made();
        }
    }

    /// Makes up to `left` copies of a message. Returns how many may still be made.
    fn make_some(&mut self, mut unmade: Unmade, left: usize) -> usize {
        let Unmade {
            channel,
            publish,
            facts,
            next,
            ..
        } = &mut unmade;
        let message = publish.message();
        if self.is_stored_elsewhere(*channel, &publish.route, &message, publish.mandatory, facts) {
            return left - 1;
        }
        let count = publish.route.queues.len();
        let end = count.min(next.saturating_add(left));
        let made = end - *next;
        self.copy(&publish.route, &message, facts, *next..end);
        if end < count {
            *next = end;
            self.unfinished.messages.push_front(unmade);
        }
        left - made
    }

    /// Makes all that are left, because the connection ends.
    pub(in crate::session) fn make_all_copies(&mut self) {
        while let Some(unmade) = self.unfinished.messages.pop_front() {
            self.make_some(unmade, usize::MAX);
        }
        self.copies_made();
    }

    fn copies_made(&mut self) {
        match self.unfinished.commit.take() {
            None => self.flush(),
            Some((commit, settled)) => {
                self.flush_for(Some(Waiting::Commit(commit)));
                for (settle, runs) in settled {
                    self.settle_runs(settle, &runs);
                }
                self.settle_acks();
            }
        }
    }
}
