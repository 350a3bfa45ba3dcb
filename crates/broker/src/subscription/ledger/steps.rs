//! Random events for the test that compares the ledger with a model (`tests.rs`).

use proptest::prelude::*;

/// How a range is settled.
#[derive(Debug, Clone, Copy)]
pub(super) enum RangeAction {
    Ack,
    Nack,
    Reject,
    Undeliver,
}

/// An action of a consumer, of the clock, or a crash.
#[derive(Debug, Clone)]
pub(super) enum LedgerStep {
    Append(u64),
    TakeNew {
        consumer: u32,
        count: u64,
        wait_ms: u64,
    },
    TakeReady {
        consumer: u32,
        wait_ms: u64,
    },
    SkipNew(u64),
    Forget {
        above: u64,
        count: u64,
    },
    DelayNew(u64),
    Ack {
        consumer: u32,
        pick: usize,
    },
    Nack {
        consumer: u32,
        pick: usize,
        delay_ms: u64,
    },
    Extend {
        consumer: u32,
        pick: usize,
        wait_ms: u64,
    },
    Reject {
        consumer: u32,
        pick: usize,
    },
    Range {
        consumer: u32,
        pick: usize,
        count: u32,
        action: RangeAction,
    },
    Advance(u64),
    Release(u32),
    AckDead,
    Purge,
    Journal,
    Restart,
    RestartFromSnapshot,
}

/// A random step; frequent ones have a higher weight.
pub(super) fn step() -> impl Strategy<Value = LedgerStep> {
    let consumer = 0u32..3;
    let pick = 0usize..400;
    prop_oneof![
        4 => (1u64..150).prop_map(LedgerStep::Append),
        6 => (consumer.clone(), 1u64..100, 1u64..300).prop_map(|(consumer, count, wait_ms)| {
            LedgerStep::TakeNew { consumer, count, wait_ms }
        }),
        4 => (consumer.clone(), 1u64..300)
            .prop_map(|(consumer, wait_ms)| LedgerStep::TakeReady { consumer, wait_ms }),
        1 => (1u64..90).prop_map(LedgerStep::SkipNew),
        1 => (0u64..200, 1u64..200).prop_map(|(above, count)| LedgerStep::Forget { above, count }),
        1 => (1u64..300).prop_map(LedgerStep::DelayNew),
        12 => (consumer.clone(), pick.clone())
            .prop_map(|(consumer, pick)| LedgerStep::Ack { consumer, pick }),
        4 => (consumer.clone(), pick.clone(), prop_oneof![Just(0u64), 1u64..300])
            .prop_map(|(consumer, pick, delay_ms)| LedgerStep::Nack { consumer, pick, delay_ms }),
        2 => (consumer.clone(), pick.clone(), 1u64..300)
            .prop_map(|(consumer, pick, wait_ms)| LedgerStep::Extend { consumer, pick, wait_ms }),
        1 => (consumer.clone(), pick.clone())
            .prop_map(|(consumer, pick)| LedgerStep::Reject { consumer, pick }),
        6 => (consumer.clone(), pick, 1u32..200, 0usize..7).prop_map(
            |(consumer, pick, count, action)| {
                let action = match action.saturating_sub(3) {
                    0 => RangeAction::Ack,
                    1 => RangeAction::Nack,
                    2 => RangeAction::Reject,
                    _ => RangeAction::Undeliver,
                };
                LedgerStep::Range { consumer, pick, count, action }
            }
        ),
        3 => (1u64..120).prop_map(LedgerStep::Advance),
        1 => consumer.prop_map(LedgerStep::Release),
        1 => Just(LedgerStep::AckDead),
        1 => Just(LedgerStep::Journal),
        1 => Just(LedgerStep::Restart),
        1 => Just(LedgerStep::RestartFromSnapshot),
        1 => Just(LedgerStep::Purge),
    ]
}
