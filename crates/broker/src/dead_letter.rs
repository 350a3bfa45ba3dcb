//! Dead letters: messages that are not delivered again go to a topic of their own, with the reason.

use std::sync::Arc;

use cloverleaf_log::{AppendError, BatchBuilder, Durability};

use crate::broker::{CatalogError, Shared};
use crate::housekeeping::MOVING_MS;
use crate::lookup::LookupError;
use crate::message::{DeadReason, MessageId, headers};
use crate::moving::Moving;
use crate::options::{Retention, TopicOptions};
use crate::publish::{PublishError, Published};
use crate::subscription::Subscription;

/// Most letters being written at once; more wait in their subscriptions.
const LETTERS_MAX: usize = 4096;

/// A message that died.
struct Dead {
    subscription: Arc<Subscription>,
    id: MessageId,
    reason: DeadReason,
    attempts: u16,
    /// After a failure: not before this time.
    retry_ms: u64,
    /// How long to wait after the next failure.
    pause_ms: u64,
}

/// First and longest pause after a letter could not be written.
const PAUSE_MS_MIN: u64 = 1_000;
const PAUSE_MS_MAX: u64 = 60_000;

/// Most letters begun in one go: progress and timeouts wait for it.
const LETTERS_PER_TICK: usize = 256;

/// Why a letter was not written.
enum LetterError {
    /// It will be written later.
    Later(String),
    /// It never will.
    Never(String),
}

/// Letters to write and letters being written.
#[derive(Default)]
pub(crate) struct DeadLetters {
    waiting: std::collections::VecDeque<Dead>,
    moving: Moving<Dead>,
}

impl DeadLetters {
    /// Takes over what died since the last time.
    pub(crate) fn take_up(&mut self, shared: &Arc<Shared>) {
        for subscription in shared.work.take_dead() {
            for (id, reason, attempts) in subscription.take_died() {
                let subscription = subscription.clone();
                self.waiting.push_back(Dead {
                    subscription,
                    id,
                    reason,
                    attempts,
                    retry_ms: 0,
                    pause_ms: PAUSE_MS_MIN,
                });
            }
        }
    }

    /// Writes letters. Returns when to go on, milliseconds since the epoch.
    pub(crate) fn advance(&mut self, shared: &Arc<Shared>, now_ms: u64) -> Option<u64> {
        for _ in 0..self.waiting.len().min(LETTERS_PER_TICK) {
            if self.moving.len() >= LETTERS_MAX {
                break;
            }
            let Some(dead) = self.waiting.pop_front() else {
                break;
            };
            if dead.retry_ms > now_ms {
                self.waiting.push_back(dead);
                continue;
            }
            match write_letter(shared, &dead) {
                Ok(Some(published)) => self.moving.push(published, dead),
                Ok(None) => dead.subscription.letters_written(&[dead.id]),
                Err(LetterError::Later(reason)) => self.wait(dead, now_ms, &reason),
                Err(LetterError::Never(reason)) => {
                    tracing::error!(subscription = ?dead.subscription, id = ?dead.id, %reason,
                        "a dead letter can never be written: the message is dropped");
                    dead.subscription.letters_written(&[dead.id]);
                }
            }
        }
        let mut failed = Vec::new();
        let moving = self.moving.advance(|dead, result| match result {
            Ok(()) => dead.subscription.letters_written(&[dead.id]),
            Err(error) => failed.push((dead, error)),
        });
        for (dead, error) in failed {
            self.wait(dead, now_ms, &error.to_string());
        }
        let retry_ms = self
            .waiting
            .iter()
            .map(|dead| dead.retry_ms.max(now_ms))
            .min();
        if moving {
            Some(now_ms + MOVING_MS)
        } else {
            retry_ms
        }
    }

    fn wait(&mut self, mut dead: Dead, now_ms: u64, reason: &str) {
        tracing::warn!(subscription = ?dead.subscription, id = ?dead.id, %reason,
            wait_ms = dead.pause_ms, "cannot write a dead letter yet");
        dead.retry_ms = now_ms + dead.pause_ms;
        dead.pause_ms = (dead.pause_ms * 2).min(PAUSE_MS_MAX);
        self.waiting.push_back(dead);
    }
}

/// Publishes the letter; `None` if there is nothing or nobody to write to.
fn write_letter(shared: &Arc<Shared>, dead: &Dead) -> Result<Option<Published>, LetterError> {
    let Some(to) = &dead.subscription.options().dead_letter else {
        return Ok(None);
    };
    let Some(source) = dead
        .subscription
        .topic()
        .filter(|topic| !topic.is_deleted())
    else {
        return Ok(None);
    };
    // Letters are kept until someone consumes them.
    let options = || TopicOptions {
        retention: Retention {
            consumed: true,
            ..Retention::default()
        },
        ..TopicOptions::default()
    };
    let later = |error: CatalogError| LetterError::Later(error.to_string());
    let to = shared.topic_or_create(to, options).map_err(later)?;
    let now_ms = i64::try_from(shared.clock.now_ms()).unwrap_or(i64::MAX);
    let letter = crate::lookup::with_message(&source, dead.id, |record| {
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
        let mut builder = BatchBuilder::with_capacity(512, now_ms);
        builder.push(record.key, record.value, &all);
        builder.finish()
    })
    .map_err(|error| match error {
        LookupError::Read(error) => LetterError::Later(error.to_string()),
        LookupError::Batch(error) => LetterError::Never(error.to_string()),
    })?;
    match letter {
        Some(letter) => match to.publish_moved(letter, Durability::Disk) {
            Ok(published) => Ok(Some(published)),
            Err(PublishError::Log(error @ AppendError::TooLarge { .. })) => {
                Err(LetterError::Never(error.to_string()))
            }
            Err(error) => Err(LetterError::Later(error.to_string())),
        },
        // Retention took it meanwhile.
        None => Ok(None),
    }
}
