//! Tells Kafka's consumer groups the time: when a member has been silent for too long, when a
//! rebalance has to end without those who did not come.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::KafkaFront;
use crate::context::ServerContext;

/// Runs until the broker drains; then nobody waits in a group any more. Sleeps until something is
/// due, and is woken when something becomes due earlier.
pub(super) async fn run(front: Arc<KafkaFront>, context: Arc<ServerContext>) {
    let earlier = Arc::new(Notify::new());
    let hook = Arc::clone(&earlier);
    let groups = &front.kafka.groups;
    groups.on_due(Box::new(move || hook.notify_one()));
    let hook = Arc::clone(&earlier);
    context.clock.on_move(Box::new(move || hook.notify_one()));
    loop {
        let due_ms = groups.tick(context.now_us() / 1000);
        let due_us = due_ms.saturating_mul(1000);
        // The groups see whole milliseconds, so one too early would be for nothing.
        let wait = Duration::from_micros(due_us.saturating_sub(context.now_us()).saturating_add(1));
        tokio::select! {
            () = sleep(wait) => {}
            () = earlier.notified() => {}
            () = context.drained() => return groups.end_waits(),
        }
    }
}
