//! The queues that consumers read, for the doctor: subscriptions with their consumers, and Kafka's
//! groups.

use std::collections::{HashMap, HashSet};

use cloverleaf_broker::{ConsumerLoad, Subscription, SubscriptionLoad};
use cloverleaf_doctor::{Consumer, Queue};
use cloverleaf_telemetry::{ConnectionSnapshot, Protocol};

use crate::context::ServerContext;

/// All subscriptions that have consumers, and Kafka's groups. A subscription is locked only while
/// its consumers are copied.
pub(crate) fn queues(context: &ServerContext, connections: &[ConnectionSnapshot]) -> Vec<Queue> {
    let protocols: HashMap<u64, Protocol> =
        connections.iter().map(|it| (it.id, it.protocol)).collect();
    let mut queues = Vec::new();
    for topic in context.broker.topics() {
        for subscription in topic.subscriptions().iter() {
            queues.extend(queue(topic.name(), subscription, &protocols));
        }
    }
    // Exclusive queues, and queues whose name the broker made, are in hidden topics, whose names
    // mean nothing to people.
    for front in &context.fronts {
        for (name, subscription) in front.hidden_queues() {
            queues.extend(queue(&name, &subscription, &protocols));
        }
    }
    // A consumer group and an NSQ channel of one topic may have the same name. The doctor would
    // take them for one queue, so the group is left out.
    let known: HashSet<(String, String)> = queues.iter().map(place).collect();
    for front in &context.fronts {
        let groups = front.group_queues(context, connections).into_iter();
        queues.extend(groups.filter(|it| !known.contains(&place(it))));
    }
    queues
}

fn place(queue: &Queue) -> (String, String) {
    (queue.topic.clone(), queue.name.clone())
}

fn queue(
    topic: &str,
    subscription: &Subscription,
    protocols: &HashMap<u64, Protocol>,
) -> Option<Queue> {
    let SubscriptionLoad { depth, consumers } = subscription.load();
    let mut protocol = None;
    let mut ack_wait_max_ms = None;
    let mut seen = Vec::with_capacity(consumers.len());
    for look in consumers {
        // A consumer without a connection belongs to the broker itself.
        let Some(known) = protocols.get(&look.connection) else {
            continue;
        };
        protocol.get_or_insert(*known);
        ack_wait_max_ms = least(ack_wait_max_ms, look.ack_wait_max_ms);
        seen.push(consumer(look));
    }
    Some(Queue {
        topic: topic.to_owned(),
        name: subscription.name().to_owned(),
        protocol: protocol?,
        backlog: depth,
        deadline_us_max: ack_wait_max_ms.map(|ms| ms.saturating_mul(1000)),
        consumers: seen,
        partitions: Vec::new(),
    })
}

/// The shorter of two times, where `None` is no limit.
fn least(one_ms: Option<u64>, other_ms: Option<u64>) -> Option<u64> {
    one_ms.into_iter().chain(other_ms).min()
}

fn consumer(look: ConsumerLoad) -> Consumer {
    Consumer {
        connection: look.connection,
        credit: match look.credit {
            u32::MAX => u64::MAX,
            credit => u64::from(credit),
        },
        in_flight: u64::from(look.in_flight),
        deadline_us: look.ack_wait_ms.map(|ms| ms.saturating_mul(1000)),
    }
}
