//! Dead letters: dead messages are copied to their dead-letter topic, with the reason.
//!
//! Dead letters of one tick to the same topic form one batch.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use cloverleaf_log::{AppendError, BatchBuilder, Durability, Record};

use crate::broker::Shared;
use crate::housekeeping::MOVING_POLL_MS;
use crate::housekeeping::lookup::{Fetched, Lookup, LookupError, LookupReads};
use crate::housekeeping::moving::MovingPublishes;
use crate::message::{DeadReason, MessageId, headers};
use crate::namespace::Name;
use crate::options::{Retention, TopicOptions};
use crate::subscription::Subscription;
use crate::topic::Topic;
use crate::topic::published::PublishError;

/// Upper limit of dead letters being written at once; further ones wait in their subscriptions.
const LETTERS_MAX: usize = 4096;

/// A batch is published once it has this many bytes.
const BATCH_BYTES: usize = 512 << 10;

/// A dead message.
struct PendingDeadLetter {
    subscription: Arc<Subscription>,
    id: MessageId,
    reason: DeadReason,
    attempts: u16,
    /// The batch that contained it was too large, so it gets a batch of its own.
    needs_own_batch: bool,
    /// After a failure: no retry before this time, in milliseconds since the epoch.
    retry_ms: u64,
    /// The pause after the next failure, in milliseconds.
    pause_ms: u64,
    fetched: Fetched,
}

/// First and longest pause after a failed write.
const PAUSE_MS_MIN: u64 = 1_000;
const PAUSE_MS_MAX: u64 = 60_000;

/// Upper limit of dead letters started in one tick, because progress and timeouts wait meanwhile.
const LETTERS_PER_TICK: usize = 1024;

/// Why a dead letter is not written now.
enum LetterError {
    /// The message is being read from the disk.
    Reading,
    /// The message, its topic or the dead-letter topic is gone: no dead letter is needed.
    NotNeeded,
    /// It will be tried again.
    Later(String),
    /// It can never be written.
    Never(String),
}

/// A batch of dead letters to one topic.
struct LetterBatch {
    to: Arc<Topic>,
    builder: BatchBuilder,
    dead: Vec<PendingDeadLetter>,
}

/// Dead letters to write, and those being written.
pub(crate) struct DeadLetters {
    waiting: VecDeque<PendingDeadLetter>,
    /// Dead letters whose messages are being read from the disk, and later ones of the same
    /// subscription. The end of a read resumes them, not a timer.
    reading: VecDeque<PendingDeadLetter>,
    /// The subscriptions with letters in `reading`. Further ones of the same subscription join them
    /// without a read, which keeps their order.
    reading_of: HashSet<u64>,
    reads: LookupReads,
    waker: Waker,
    moving: MovingPublishes<Vec<PendingDeadLetter>>,
    /// The number of dead letters in `moving`.
    moving_count: usize,
}

impl DeadLetters {
    /// `waker` must wake the thread that calls [`Self::advance`].
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            waiting: VecDeque::new(),
            reading: VecDeque::new(),
            reading_of: HashSet::new(),
            reads: LookupReads::default(),
            waker,
            moving: MovingPublishes::default(),
            moving_count: 0,
        }
    }

    /// Takes over the messages that died since the last call.
    pub(crate) fn collect_dead(&mut self, shared: &Arc<Shared>) {
        for subscription in shared.work.take_dead() {
            for died in subscription.take_dead() {
                self.waiting.push_back(PendingDeadLetter {
                    subscription: subscription.clone(),
                    id: died.id,
                    reason: died.reason,
                    attempts: died.attempts,
                    needs_own_batch: false,
                    retry_ms: 0,
                    pause_ms: PAUSE_MS_MIN,
                    fetched: Fetched::default(),
                });
            }
        }
    }

    /// Writes dead letters. Returns when to call again, in milliseconds since the epoch.
    pub(crate) fn advance(&mut self, shared: &Arc<Shared>, now_ms: u64) -> Option<u64> {
        self.write_some(shared, now_ms);
        let moving = self.take_moved(now_ms);
        let retry_ms = self
            .waiting
            .iter()
            .map(|dead| dead.retry_ms.max(now_ms))
            .min();
        if moving {
            Some(now_ms + MOVING_POLL_MS)
        } else {
            retry_ms
        }
    }

    /// Settles the dead letters whose publish has finished, and records as moved those that are
    /// written but not synced yet. Returns `true` if a publish is still under way.
    pub(crate) fn take_moved(&mut self, now_ms: u64) -> bool {
        let mut failed = Vec::new();
        let mut done = 0;
        let written = |dead: &Vec<PendingDeadLetter>| letters_unsynced(dead, true);
        let moving = self.moving.advance(written, |dead, result| {
            done += dead.len();
            match result {
                Ok(()) => letters_stored(&dead),
                Err(error) => failed.push((dead, error)),
            }
        });
        self.moving_count -= done;
        for (dead, error) in failed {
            letters_unsynced(&dead, false);
            self.wait_all(dead, now_ms, &error.to_string());
        }
        moving
    }

    fn write_some(&mut self, shared: &Arc<Shared>, now_ms: u64) {
        if self.reads.take_arrived() {
            self.reading.append(&mut self.waiting);
            std::mem::swap(&mut self.reading, &mut self.waiting);
            self.reading_of.clear();
        }
        let mut open: Vec<LetterBatch> = Vec::new();
        let mut lookup = self.reads.lookup(&self.waker);
        let room = LETTERS_MAX.saturating_sub(self.moving_count);
        for _ in 0..self.waiting.len().min(LETTERS_PER_TICK).min(room) {
            let Some(mut dead) = self.waiting.pop_front() else {
                break;
            };
            if dead.retry_ms > now_ms {
                self.waiting.push_back(dead);
                continue;
            }
            let of = dead.subscription.id();
            if self.reading_of.contains(&of) {
                self.reading.push_back(dead);
                continue;
            }
            match add_letter(shared, &mut lookup, &mut open, &mut dead) {
                Ok(at) => {
                    let is_last = dead.needs_own_batch || open[at].builder.len() >= BATCH_BYTES;
                    open[at].dead.push(dead);
                    if is_last {
                        let letters = open.swap_remove(at);
                        self.publish(letters, now_ms);
                    }
                }
                Err(LetterError::Reading) => {
                    self.reading_of.insert(of);
                    self.reading.push_back(dead);
                }
                Err(LetterError::NotNeeded) => letters_stored(&[dead]),
                Err(LetterError::Later(reason)) => self.wait_all(vec![dead], now_ms, &reason),
                Err(LetterError::Never(reason)) => drop_letter(&dead, &reason),
            }
        }
        for letters in open {
            self.publish(letters, now_ms);
        }
    }

    fn publish(&mut self, letters: LetterBatch, now_ms: u64) {
        let LetterBatch { to, builder, dead } = letters;
        if dead.is_empty() {
            return;
        }
        match to.publish_moved(builder.finish(), Durability::Disk) {
            Ok(published) => {
                self.moving_count += dead.len();
                self.moving.push(published, dead);
            }
            Err(PublishError::Log(error @ AppendError::TooLarge { .. })) => match &dead[..] {
                [dead] => drop_letter(dead, &error.to_string()),
                _ => {
                    for mut dead in dead.into_iter().rev() {
                        dead.needs_own_batch = true;
                        self.waiting.push_front(dead);
                    }
                }
            },
            Err(error) => self.wait_all(dead, now_ms, &error.to_string()),
        }
    }

    fn wait_all(&mut self, all: Vec<PendingDeadLetter>, now_ms: u64, reason: &str) {
        if let Some(dead) = all.first() {
            tracing::warn!(subscription = ?dead.subscription, id = ?dead.id, %reason,
                letters = all.len(), wait_ms = dead.pause_ms, "cannot write dead letters yet");
        }
        for mut dead in all {
            dead.retry_ms = now_ms + dead.pause_ms;
            dead.pause_ms = (dead.pause_ms * 2).min(PAUSE_MS_MAX);
            self.waiting.push_back(dead);
        }
    }
}

fn drop_letter(dead: &PendingDeadLetter, reason: &str) {
    tracing::error!(subscription = ?dead.subscription, id = ?dead.id, %reason,
        "a dead letter can never be written: the message is dropped");
    letters_stored(std::slice::from_ref(dead));
}

/// Notifies the subscriptions that the publish of these dead letters has finished (in the class
/// *disk*: they are synced), or that none are needed: the originals can be acknowledged.
fn letters_stored(all: &[PendingDeadLetter]) {
    for (subscription, ids) in by_subscription(all) {
        subscription.settle_dead(&ids);
    }
}

/// Notifies the subscriptions that these dead letters are written but not synced yet, so that they
/// survive `kill -9` but no power loss; with `has_moved` false, that their publish has failed.
fn letters_unsynced(all: &[PendingDeadLetter], has_moved: bool) {
    for (subscription, ids) in by_subscription(all) {
        subscription.note_moved(&ids, has_moved);
    }
}

fn by_subscription(
    all: &[PendingDeadLetter],
) -> impl Iterator<Item = (&Arc<Subscription>, Vec<MessageId>)> {
    let chunks = all.chunk_by(|a, b| Arc::ptr_eq(&a.subscription, &b.subscription));
    chunks.filter_map(|dead| {
        let ids = dead.iter().map(|dead| dead.id).collect();
        Some((&dead.first()?.subscription, ids))
    })
}

/// Adds a dead letter to the open batch of its topic. Returns the index of that batch.
fn add_letter(
    shared: &Arc<Shared>,
    lookup: &mut Lookup,
    open: &mut Vec<LetterBatch>,
    dead: &mut PendingDeadLetter,
) -> Result<usize, LetterError> {
    let to = dead.subscription.options().dead_letter.as_ref();
    let to = to.ok_or(LetterError::NotNeeded)?;
    let source = dead.subscription.topic();
    let source = source.filter(|topic| !topic.is_deleted());
    let source = source.ok_or(LetterError::NotNeeded)?;
    let to = source.full_name().namespace.name(to);
    let at = match open
        .iter()
        .position(|l| l.to.full_name() == to && !dead.needs_own_batch)
    {
        Some(at) => at,
        None => {
            let to = destination(shared, to)?;
            let now_ms = i64::try_from(shared.clock.now_ms()).unwrap_or(i64::MAX);
            open.push(LetterBatch {
                to,
                builder: BatchBuilder::with_capacity(512, now_ms),
                dead: Vec::new(),
            });
            open.len() - 1
        }
    };
    let builder = &mut open[at].builder;
    let mut fetched = std::mem::take(&mut dead.fetched);
    let written = lookup.with_message(&source, dead.id, &mut fetched, |record| {
        write_letter(builder, &source, dead, record);
    });
    dead.fetched = fetched;
    match written {
        Ok(Some(())) => Ok(at),
        // Retention has removed the message meanwhile.
        Ok(None) => Err(LetterError::NotNeeded),
        Err(LookupError::Slow) => Err(LetterError::Reading),
        Err(LookupError::Read(error)) => Err(LetterError::Later(error.to_string())),
        Err(LookupError::Batch(error)) => Err(LetterError::Never(error.to_string())),
    }
}

/// The dead-letter topic, created if there is none.
fn destination(shared: &Arc<Shared>, name: Name<'_>) -> Result<Arc<Topic>, LetterError> {
    // Dead letters are kept until they are consumed.
    let options = || TopicOptions {
        retention: Retention {
            consumed: true,
            ..Retention::default()
        },
        ..TopicOptions::default()
    };
    shared
        .topic_or_create(name, options)
        .map_err(|error| LetterError::Later(error.to_string()))
}

fn write_letter(
    builder: &mut BatchBuilder,
    source: &Topic,
    dead: &PendingDeadLetter,
    record: &Record<'_>,
) {
    let attempts = dead.attempts.to_string();
    let origin = format!("{}/{}", dead.id.partition, dead.id.offset);
    let mut all: Vec<(&[u8], Option<&[u8]>)> = record.headers.clone().collect();
    all.extend([
        (headers::DEAD_TOPIC, Some(source.name().as_bytes())),
        (
            headers::DEAD_SUBSCRIPTION,
            Some(dead.subscription.name().as_bytes()),
        ),
        (headers::DEAD_REASON, Some(dead.reason.as_str().as_bytes())),
        (headers::DEAD_ATTEMPTS, Some(attempts.as_bytes())),
        (headers::DEAD_ORIGIN, Some(origin.as_bytes())),
    ]);
    builder.push(record.key, record.value, &all);
}
