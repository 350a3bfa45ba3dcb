//! Dead letters: messages that are not delivered again go to a topic of their own, with the reason.

use std::sync::Arc;

use cloverleaf_log::{BatchBuilder, Durability};

use crate::broker::Shared;
use crate::message::{DeadReason, MessageId, headers};
use crate::moving::Moving;
use crate::options::{Retention, TopicOptions};
use crate::publish::Published;
use crate::subscription::Subscription;

/// Most letters being written at once; more wait in their subscriptions.
const LETTERS_MAX: usize = 4096;

/// A message that died.
struct Dead {
    subscription: Arc<Subscription>,
    id: MessageId,
    reason: DeadReason,
    attempts: u16,
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
                });
            }
        }
    }

    /// Writes letters. `true`: some are under way or have to wait.
    pub(crate) fn advance(&mut self, shared: &Arc<Shared>) -> bool {
        while self.moving.len() < LETTERS_MAX {
            let Some(dead) = self.waiting.pop_front() else {
                break;
            };
            match write_letter(shared, &dead) {
                Ok(Some(published)) => self.moving.push(published, dead),
                Ok(None) => dead.subscription.bury(&[dead.id]),
                Err(reason) => {
                    tracing::warn!(subscription = ?dead.subscription, %reason,
                        "cannot write a dead letter yet");
                    self.waiting.push_front(dead);
                    break;
                }
            }
        }
        let waiting = &mut self.waiting;
        let moving = self.moving.advance(|dead, result| match result {
            Ok(()) => dead.subscription.bury(&[dead.id]),
            Err(_) => waiting.push_back(dead),
        });
        moving || !self.waiting.is_empty()
    }
}

/// Publishes the letter; `None` if there is nothing or nobody to write to.
fn write_letter(shared: &Arc<Shared>, dead: &Dead) -> Result<Option<Published>, String> {
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
    let to = shared
        .topic_or_create(to, options)
        .map_err(|error| error.to_string())?;
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
    .map_err(|error| error.to_string())?;
    match letter {
        Some(letter) => to
            .publish_moved(letter, Durability::Disk)
            .map(Some)
            .map_err(|error| error.to_string()),
        // Retention took it meanwhile.
        None => Ok(None),
    }
}
