//! Compares the ledger with a plain model, over random steps of consumers, clock and crashes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::cursor::{CursorDelta, bits_between};
use super::steps::{LedgerStep, RangeAction, step};
use super::*;
use crate::message::DeadReason;

const ATTEMPTS_MAX: u16 = 4;

/// Bytes of each message's body.
const BODY_BYTES: u32 = 7;

/// The state of one message in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ModelMessage {
    New,
    InFlight {
        consumer: u32,
        attempts: u16,
        due_ms: u64,
    },
    Ready {
        attempts: u16,
    },
    Delayed {
        attempts: u16,
        due_ms: u64,
    },
    Dead {
        attempts: u16,
    },
    Acked,
}

fn grant(consumer: u32, due_ms: u64, now_us: u64) -> LeaseGrant {
    LeaseGrant {
        consumer,
        due_ms,
        now_us,
        waited_ms: 0,
    }
}

struct LedgerAndModel {
    ledger: Ledger,
    model: BTreeMap<u64, ModelMessage>,
    end: u64,
    now_ms: u64,
    /// The entries that the journal would have.
    journal: Vec<PartitionDelta>,
}

impl LedgerAndModel {
    fn new() -> Self {
        Self {
            ledger: Ledger::new(&[0], ATTEMPTS_MAX),
            model: BTreeMap::new(),
            end: 0,
            now_ms: 1_000,
            journal: Vec::new(),
        }
    }

    fn held_by(&self, consumer: u32, pick: usize) -> Option<(u64, u16)> {
        let held: Vec<(u64, u16)> = self
            .model
            .iter()
            .filter_map(|(offset, message)| match message {
                ModelMessage::InFlight {
                    consumer: by,
                    attempts,
                    ..
                } if *by == consumer => Some((*offset, *attempts)),
                _ => None,
            })
            .collect();
        (!held.is_empty()).then(|| held[pick % held.len()])
    }

    fn back(attempts: u16, due_ms: Option<u64>) -> ModelMessage {
        match due_ms {
            _ if attempts >= ATTEMPTS_MAX => ModelMessage::Dead { attempts },
            Some(due_ms) => ModelMessage::Delayed { attempts, due_ms },
            None => ModelMessage::Ready { attempts },
        }
    }

    /// Steps to the next message that was never delivered, and returns how many follow it.
    fn step_to_free(&mut self) -> Option<u64> {
        loop {
            let next = self.ledger.next(0);
            if next >= self.end {
                return None;
            }
            match self.ledger.next_span(0, self.end - next) {
                NextSpan::Taken(count) => {
                    for offset in next..next + count {
                        let message = self.model.get(&offset).copied();
                        assert_ne!(
                            message,
                            Some(ModelMessage::New),
                            "offset {offset} is not taken"
                        );
                    }
                    self.ledger.step_over(0, count);
                }
                NextSpan::Free(count) => return Some(count),
            }
        }
    }

    fn run(&mut self, step: LedgerStep) {
        let now_ms = self.now_ms;
        match step {
            LedgerStep::Append(count) => {
                for offset in self.end..self.end + count {
                    self.model.insert(offset, ModelMessage::New);
                }
                self.end += count;
            }
            LedgerStep::TakeNew {
                consumer,
                count,
                wait_ms,
            } => {
                let Some(free) = self.step_to_free() else {
                    return;
                };
                let (count, next) = (count.min(free), self.ledger.next(0));
                let due_ms = now_ms + wait_ms;
                let bytes = u32::try_from(count).unwrap() * BODY_BYTES;
                let to = grant(consumer, due_ms, now_ms);
                self.ledger.lease_next(0, count, to, bytes);
                for offset in next..next + count {
                    let before = self.model.insert(
                        offset,
                        ModelMessage::InFlight {
                            consumer,
                            attempts: 1,
                            due_ms,
                        },
                    );
                    assert_eq!(before, Some(ModelMessage::New));
                }
            }
            LedgerStep::TakeReady { consumer, wait_ms } => {
                let Some(run) = self.ledger.first_ready(0) else {
                    return;
                };
                let due_ms = now_ms + wait_ms;
                let to = grant(consumer, due_ms, now_ms);
                self.ledger.lease_ready(0, run.count, to);
                for offset in run.first..run.first + u64::from(run.count) {
                    let attempts = run.attempts + 1;
                    let before = self.model.insert(
                        offset,
                        ModelMessage::InFlight {
                            consumer,
                            attempts,
                            due_ms,
                        },
                    );
                    assert_eq!(
                        before,
                        Some(ModelMessage::Ready {
                            attempts: run.attempts
                        })
                    );
                }
            }
            LedgerStep::SkipNew(count) => {
                let to = (self.ledger.next(0) + count).min(self.end);
                self.ledger.skip_to(0, to);
                for (_, message) in self.model.range_mut(..to) {
                    if *message == ModelMessage::New {
                        *message = ModelMessage::Acked;
                    }
                }
            }
            LedgerStep::Forget { above, count } => {
                let start = (self.ledger.next(0) + above).min(self.end);
                let range = start..(start + count).min(self.end);
                let holds_none = |message: &ModelMessage| {
                    matches!(message, ModelMessage::New | ModelMessage::Acked)
                };
                if self.model.range(range.clone()).all(|(_, m)| holds_none(m)) {
                    self.ledger.forget_range(0, range.start, range.end);
                    for (_, message) in self.model.range_mut(range) {
                        *message = ModelMessage::Acked;
                    }
                }
            }
            LedgerStep::DelayNew(wait_ms) => {
                if self.step_to_free().is_some() {
                    let (next, due_ms) = (self.ledger.next(0), now_ms + wait_ms);
                    self.ledger.delay_new(0, due_ms, BODY_BYTES);
                    self.model.insert(
                        next,
                        ModelMessage::Delayed {
                            attempts: 0,
                            due_ms,
                        },
                    );
                }
            }
            LedgerStep::Ack { consumer, pick } => {
                let Some((offset, attempts)) = self.held_by(consumer, pick) else {
                    return;
                };
                let id = MessageId {
                    partition: 0,
                    offset,
                };
                assert_eq!(self.ledger.ack(id, consumer + 1), Err(NotInFlight));
                assert_eq!(self.ledger.ack(id, consumer).unwrap().attempts, attempts);
                assert_eq!(self.ledger.ack(id, consumer), Err(NotInFlight));
                self.model.insert(offset, ModelMessage::Acked);
            }
            LedgerStep::Nack {
                consumer,
                pick,
                delay_ms,
            } => {
                let Some((offset, attempts)) = self.held_by(consumer, pick) else {
                    return;
                };
                let due_ms = (delay_ms > 0).then_some(now_ms + delay_ms);
                self.ledger
                    .nack(
                        MessageId {
                            partition: 0,
                            offset,
                        },
                        consumer,
                        due_ms,
                    )
                    .unwrap();
                self.model.insert(offset, Self::back(attempts, due_ms));
            }
            LedgerStep::Extend {
                consumer,
                pick,
                wait_ms,
            } => {
                let Some((offset, attempts)) = self.held_by(consumer, pick) else {
                    return;
                };
                let (id, due_ms) = (
                    MessageId {
                        partition: 0,
                        offset,
                    },
                    now_ms + wait_ms,
                );
                self.ledger.extend(id, consumer, |_| due_ms).unwrap();
                self.model.insert(
                    offset,
                    ModelMessage::InFlight {
                        consumer,
                        attempts,
                        due_ms,
                    },
                );
            }
            LedgerStep::Reject { consumer, pick } => {
                let Some((offset, attempts)) = self.held_by(consumer, pick) else {
                    return;
                };
                self.ledger
                    .reject(
                        MessageId {
                            partition: 0,
                            offset,
                        },
                        consumer,
                    )
                    .unwrap();
                self.model.insert(offset, ModelMessage::Dead { attempts });
            }
            LedgerStep::Range {
                consumer,
                pick,
                count,
                action,
            } => self.settle_range(consumer, pick as u64, count, action),
            LedgerStep::Advance(ms) => {
                self.now_ms += ms;
                while self.ledger.expire(self.now_ms).is_some() {}
                for message in self.model.values_mut() {
                    *message = match *message {
                        ModelMessage::InFlight {
                            attempts, due_ms, ..
                        } if due_ms <= self.now_ms => Self::back(attempts, None),
                        ModelMessage::Delayed { attempts, due_ms } if due_ms <= self.now_ms => {
                            ModelMessage::Ready { attempts }
                        }
                        other => other,
                    };
                }
            }
            LedgerStep::Release(consumer) => {
                self.ledger.release(consumer);
                for message in self.model.values_mut() {
                    if let ModelMessage::InFlight {
                        consumer: by,
                        attempts,
                        ..
                    } = *message
                        && by == consumer
                    {
                        *message = Self::back(attempts, None);
                    }
                }
            }
            LedgerStep::AckDead => {
                for (id, reason) in self.ledger.take_dead() {
                    assert!(matches!(
                        reason,
                        DeadReason::Attempts | DeadReason::Rejected
                    ));
                    self.ledger.ack_dead(id);
                    let before = self.model.insert(id.offset, ModelMessage::Acked);
                    assert!(
                        matches!(before, Some(ModelMessage::Dead { .. })),
                        "{before:?}"
                    );
                }
            }
            LedgerStep::Purge => {
                self.ledger.discard_all(&[self.end]);
                self.model
                    .values_mut()
                    .for_each(|message| *message = ModelMessage::Acked);
            }
            LedgerStep::Journal => self.write(),
            LedgerStep::Restart => {
                self.write();
                let journal = self.journal.clone();
                self.restart(&journal, false);
            }
            LedgerStep::RestartFromSnapshot => {
                self.ledger.take_delta();
                self.journal = self.ledger.whole();
                let journal = self.journal.clone();
                self.restart(&journal, true);
            }
        }
    }

    fn settle_range(&mut self, consumer: u32, first: u64, count: u32, action: RangeAction) {
        let end = first + u64::from(count);
        let held = |message: Option<&ModelMessage>| match message {
            Some(ModelMessage::InFlight {
                consumer: by,
                attempts,
                ..
            }) if *by == consumer => Some(*attempts),
            _ => None,
        };
        let expected: Vec<(u64, Option<u16>)> = (first..end)
            .map(|offset| (offset, held(self.model.get(&offset))))
            .collect();
        let holds = expected.iter().filter(|(_, held)| held.is_some()).count() as u64;
        let (ledger, range) = (&mut self.ledger, (first, end));
        let taken = match action {
            RangeAction::Ack => {
                let mut told = Vec::new();
                let tell = |first, count, settled: Option<SettledDelivery>| {
                    let attempts = settled.map(|settled| settled.attempts);
                    told.extend((first..first + count).map(|offset| (offset, attempts)));
                };
                let taken = ledger.settle_between(SettleAction::Ack, 0, range, consumer, tell);
                assert_eq!(told, expected);
                taken
            }
            RangeAction::Nack => {
                ledger.settle_between(SettleAction::Nack, 0, range, consumer, |_, _, _| {})
            }
            RangeAction::Reject => {
                ledger.settle_between(SettleAction::Reject, 0, range, consumer, |_, _, _| {})
            }
            RangeAction::Undeliver => ledger.undeliver_between(0, range, consumer),
        };
        assert_eq!(taken, holds);
        for (offset, attempts) in expected {
            let Some(attempts) = attempts else { continue };
            let message = match action {
                RangeAction::Ack => ModelMessage::Acked,
                RangeAction::Nack => Self::back(attempts, None),
                RangeAction::Reject => ModelMessage::Dead { attempts },
                RangeAction::Undeliver => ModelMessage::Ready {
                    attempts: attempts - 1,
                },
            };
            self.model.insert(offset, message);
        }
    }

    fn write(&mut self) {
        self.journal.extend(self.ledger.take_delta());
    }

    /// Simulates a restart: acknowledgements are kept; messages in flight or dead are delivered
    /// again.
    fn restart(&mut self, journal: &[PartitionDelta], from_snapshot: bool) {
        self.ledger = Ledger::new(&[0], ATTEMPTS_MAX);
        let mut retries = RestoredRetries::new();
        for delta in journal {
            self.ledger.restore(delta, &mut retries);
        }
        self.ledger.finish_restore(retries, &[self.end], &[]);
        for offset in 0..self.end {
            let is_new = self.ledger.record_body_bytes(0, offset, BODY_BYTES);
            let acked = self.ledger.covers(0, offset, offset + 1);
            let id = MessageId {
                partition: 0,
                offset,
            };
            assert_eq!(is_new, !acked && self.ledger.find(id).is_none());
        }
        while self.ledger.expire(self.now_ms).is_some() {}
        for (offset, message) in &mut self.model {
            let acked = self.ledger.covers(0, *offset, *offset + 1);
            assert_eq!(
                acked,
                *message == ModelMessage::Acked,
                "offset {offset}: {message:?}"
            );
            if acked {
                continue;
            }
            // The ledger may have lost the last delivery of a message, but no earlier one.
            let found = self.ledger.find(MessageId {
                partition: 0,
                offset: *offset,
            });
            let lease = found
                .and_then(|index| self.ledger.leases.get(index))
                .cloned();
            let before = *message;
            *message = match &lease {
                None => ModelMessage::New,
                Some(lease) => match lease.terms.state {
                    LeaseState::Ready => ModelMessage::Ready {
                        attempts: lease.terms.attempts,
                    },
                    LeaseState::Delayed => ModelMessage::Delayed {
                        attempts: lease.terms.attempts,
                        due_ms: lease.terms.due_ms,
                    },
                    LeaseState::Dead => ModelMessage::Dead {
                        attempts: lease.terms.attempts,
                    },
                    LeaseState::InFlight(_) => unreachable!("nothing is in flight after a restart"),
                },
            };
            match (before, *message) {
                // A delay that a message header asks for is read from the header again.
                (ModelMessage::Delayed { attempts: 0, .. }, ModelMessage::New) => {}
                (ModelMessage::Ready { attempts: 0 }, ModelMessage::New) => assert!(!from_snapshot),
                (ModelMessage::New, after) => assert_eq!(after, ModelMessage::New),
                (ModelMessage::Ready { .. } | ModelMessage::Delayed { .. }, after) => {
                    assert_eq!(after, before);
                }
                (ModelMessage::InFlight { .. } | ModelMessage::Dead { .. }, after) => {
                    assert!(!matches!(after, ModelMessage::Acked));
                }
                (ModelMessage::Acked, _) => unreachable!(),
            }
        }
    }

    fn compare(&self) {
        let count = |wanted: fn(&ModelMessage) -> bool| {
            self.model
                .values()
                .filter(|message| wanted(message))
                .count() as u64
        };
        let ledger = &self.ledger;
        assert_eq!(
            ledger.in_flight(),
            count(|m| matches!(m, ModelMessage::InFlight { .. }))
        );
        assert_eq!(
            ledger.ready(),
            count(|m| matches!(m, ModelMessage::Ready { .. }))
        );
        assert_eq!(ledger.ready_bytes(), ledger.ready() * u64::from(BODY_BYTES));
        assert_eq!(
            ledger.delayed(),
            count(|m| matches!(m, ModelMessage::Delayed { .. }))
        );
        assert_eq!(
            ledger.dead(),
            count(|m| matches!(m, ModelMessage::Dead { .. }))
        );
        assert_eq!(
            ledger.undelivered(0, self.end),
            count(|m| *m == ModelMessage::New)
        );
        let floor = self
            .model
            .iter()
            .find(|(_, m)| **m != ModelMessage::Acked)
            .map(|(o, _)| *o);
        assert_eq!(ledger.floor(0), floor.unwrap_or(self.end));
        let first = self
            .model
            .iter()
            .find(|(_, m)| matches!(m, ModelMessage::Ready { .. }))
            .map(|(o, _)| *o);
        assert_eq!(ledger.first_ready(0).map(|run| run.first), first);
        assert!(ledger.known_end(0) <= self.end);
    }
}

/// Damage made a hole. Requeued messages lie before, in and after it.
#[test]
fn requeued_messages_that_are_gone_are_not_offered_again() {
    let cursor = CursorDelta {
        floor: 100,
        words: vec![(15, bits_between(15, 960, 990))],
        ranges: Vec::new(),
    };
    let retry = |word, mask| Retry {
        word,
        mask,
        attempts: 1,
        due_ms: 0,
    };
    let delta = PartitionDelta {
        partition: 0,
        cursor,
        retries: vec![retry(15, 1 << 40), retry(16, 1), retry(18, 1)],
    };
    let (mut ledger, mut retries) = (Ledger::new(&[0], ATTEMPTS_MAX), RestoredRetries::new());
    ledger.restore(&delta, &mut retries);
    ledger.finish_restore(retries, &[2_000], &[vec![990..1_030, 1_030..1_100]]);
    assert_eq!(ledger.ready(), 1);
    ledger.forget_range(0, 990, 1_100);
    assert_eq!(ledger.ready(), 1);
    assert!(ledger.covers(0, 960, 1_100));
    assert!(!ledger.covers(0, 1_152, 1_153));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn agrees_with_the_model(steps in prop::collection::vec(step(), 1..150)) {
        let mut pair = LedgerAndModel::new();
        for step in steps {
            pair.run(step);
            pair.compare();
        }
    }
}
