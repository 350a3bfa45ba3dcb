//! Runs the timers of Kafka's consumer groups: a member that has been silent for too long, a
//! rebalance that has to end without the members that did not join.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::KafkaFront;
use crate::context::ServerContext;

/// Runs until the broker drains, then ends all waits of group members. Sleeps until something is
/// due, and is woken if something becomes due earlier.
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
        // The groups' clock counts whole milliseconds, so a wake-up before the next one would do
        // nothing.
        let wait = Duration::from_micros(due_us.saturating_sub(context.now_us()).saturating_add(1));
        tokio::select! {
            () = sleep(wait) => {}
            () = earlier.notified() => {}
            () = context.drained() => return groups.end_waits(),
        }
    }
}
