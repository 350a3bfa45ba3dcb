//! Consumers: attaching, leaving, sharing windows, pulling, and settling many messages at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::common::{World, bodies, consumer, consumer_with, range, receive, take, take_body};
use cloverleaf_broker::{
    AttachError, Consumer, ConsumerOptions, Dispatch, MessageRange, SharedWindow, Subscription,
    SubscriptionOptions,
};

fn puller(subscription: &Arc<Subscription>) -> Consumer {
    let options = ConsumerOptions {
        pull: true,
        ..ConsumerOptions::default()
    };
    subscription.attach(options).unwrap()
}

fn sharing(subscription: &Arc<Subscription>, shared: &Arc<SharedWindow>) -> Consumer {
    let options = ConsumerOptions {
        shared_window: Some(shared.clone()),
        ..ConsumerOptions::default()
    };
    consumer_with(subscription, u32::MAX, options)
}

/// The body of each message, and whether it was delivered before.
fn again(consumer: &Consumer) -> Vec<(String, bool)> {
    let got = receive(consumer).unwrap().into_iter();
    got.map(|got| (got.body, got.redelivered)).collect()
}

fn pairs(expected: &[(&str, bool)]) -> Vec<(String, bool)> {
    let pair = |(body, again): &(&str, bool)| ((*body).to_owned(), *again);
    expected.iter().map(pair).collect()
}

#[test]
fn a_retired_consumer_settles_its_messages_and_gets_no_more() {
    let world = World::new();
    let subscription = world.subscription("t", "s");
    let first = consumer(&subscription, 10);
    world.publish("t", &["1", "2", "3"]);
    assert_eq!(bodies(&first).len(), 3);
    // These stay in its outbox.
    world.publish("t", &["4", "5"]);
    assert_eq!(first.in_flight(), 5);
    first.retire();
    assert_eq!(first.in_flight(), 3);
    assert_eq!(subscription.counts().consumers, 0);
    assert_eq!(subscription.stats().consumers, []);
    assert_eq!(
        (subscription.counts().depth, subscription.counts().in_flight),
        (2, 3)
    );
    world.publish("t", &["6"]);
    assert_eq!(bodies(&first), [""; 0]);

    let second = consumer(&subscription, 10);
    let fresh = receive(&second).unwrap();
    let seen: Vec<_> = fresh
        .iter()
        .map(|got| (got.body.as_str(), got.attempts, got.redelivered))
        .collect();
    assert_eq!(seen, [("4", 1, false), ("5", 1, false), ("6", 1, false)]);
    let mut settled = 0;
    first.ack_ranges(&[range(0, 2)], |range, settlement| {
        assert!(settlement.is_some());
        settled += range.count;
    });
    assert_eq!(settled, 2);
    first.retire();
    drop(first);
    assert_eq!(again(&second), pairs(&[("3", true)]));
}

#[test]
fn messages_not_sent_to_the_client_go_to_the_next_consumer_as_new() {
    let world = World::new();
    let options = SubscriptionOptions {
        single_active: true,
        attempts_max: 1,
        ..SubscriptionOptions::default()
    };
    let subscription = world.subscription_with("t", "s", options);
    let (first, next) = (consumer(&subscription, 10), consumer(&subscription, 10));
    world.publish("t", &["1", "2", "3"]);
    assert_eq!(bodies(&first).len(), 3);
    // These stay in its outbox.
    world.publish("t", &["4", "5"]);
    first.retire_unseen(&[range(1, 2), range(7, 3)]);
    let got = receive(&next).unwrap();
    let seen: Vec<_> = got
        .iter()
        .map(|got| (got.body.as_str(), got.attempts, got.redelivered))
        .collect();
    let expected = ["2", "3", "4", "5"].map(|body| (body, 1, false));
    assert_eq!(seen, expected, "in their order, and not a second time");
    assert_eq!((first.in_flight(), next.in_flight()), (1, 4));
    let mut settled = 0;
    first.ack_ranges(&[range(0, 3)], |range, settlement| {
        settled += settlement.map_or(0, |_| range.count);
    });
    assert_eq!(settled, 1, "what went back is another's");
}

#[test]
fn a_retired_consumer_leaves_its_role_to_others() {
    let world = World::new();
    let alone = || ConsumerOptions {
        exclusive: true,
        ..ConsumerOptions::default()
    };
    let exclusive = world.subscription("t", "exclusive");
    let first = exclusive.attach(alone()).unwrap();
    assert_eq!(
        exclusive.attach(alone()).map(drop),
        Err(AttachError::Exclusive)
    );
    first.retire();
    drop(exclusive.attach(alone()).unwrap());

    let options = SubscriptionOptions {
        single_active: true,
        consumers_max: 2,
        ..SubscriptionOptions::default()
    };
    let single = world.subscription_with("t", "single", options);
    let (active, next) = (consumer(&single, 1), consumer(&single, 10));
    world.publish("t", &["1", "2"]);
    assert_eq!(bodies(&active), ["1"]);
    assert_eq!(bodies(&next), [""; 0]);
    active.retire();
    assert_eq!(bodies(&next), ["2"]);
    // The limit of two consumers does not count the retired one.
    drop(single.attach(ConsumerOptions::default()).unwrap());
    drop((first, active));
    assert_eq!(again(&next), pairs(&[("1", true)]));
}

#[test]
fn a_puller_takes_one_message_at_a_time_and_blocks_no_consumer() {
    let world = World::new();
    let subscription = world.subscription("t", "s");
    let pull = puller(&subscription);
    pull.set_window(100);
    assert_eq!(take_body(&pull), None);
    world.publish("t", &["1", "2", "3", "4"]);
    assert_eq!(bodies(&pull), [""; 0], "it gets nothing by itself");
    assert_eq!(take_body(&pull).unwrap(), "1");
    let second = take(&pull).unwrap().unwrap();
    assert_eq!(
        (second.body.as_str(), second.attempts, second.redelivered),
        ("2", 1, false)
    );
    assert_eq!(
        (subscription.counts().depth, subscription.counts().in_flight),
        (2, 2)
    );
    assert_eq!(subscription.counts().consumers, 0);
    pull.nack(second.id, 0).unwrap();
    let second = take(&pull).unwrap().unwrap();
    assert_eq!((second.body.as_str(), second.redelivered), ("2", true));
    pull.ack(second.id).unwrap();

    let alone = ConsumerOptions {
        exclusive: true,
        ..ConsumerOptions::default()
    };
    let exclusive = consumer_with(&subscription, 1, alone);
    assert_eq!(bodies(&exclusive), ["3"]);
    let other = puller(&subscription);
    assert_eq!(take_body(&other).unwrap(), "4");
    assert_eq!(take_body(&other), None);
    drop(pull);
    exclusive.set_window(5);
    assert_eq!(again(&exclusive), pairs(&[("1", true)]));
    assert!(world.topic("t").delete_subscription("s").unwrap());
    assert_eq!(take_body(&other), None);
}

#[test]
fn pulling_skips_expired_messages() {
    let world = World::new();
    let options = SubscriptionOptions {
        message_ttl_ms: Some(1_000),
        ..SubscriptionOptions::default()
    };
    let subscription = world.subscription_with("t", "s", options);
    world.publish("t", &["old"]);
    // The housekeeping has not run since.
    world.clock.advance(5_000);
    world.publish("t", &["new"]);
    let pull = puller(&subscription);
    assert_eq!(take_body(&pull).unwrap(), "new");
    assert_eq!(take_body(&pull), None);
}

/// Notes whether it was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_puller_waits_for_a_cold_read_and_no_longer() {
    let mut world = World::new();
    world.subscription("t", "s");
    world.publish("t", &["1", "2"]);
    world.settle();
    world.restart_uncached();
    let subscription = world.subscription("t", "s");
    let pull = puller(&subscription);
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    let mut context = Context::from_waker(&waker);
    assert!(pull.poll_take(&mut context).is_pending());
    assert!(!flag.0.load(Ordering::SeqCst));
    // A read is under way: polling again changes nothing, and another puller waits too. Neither
    // wakes itself or the other, because nothing has arrived.
    assert!(pull.poll_take(&mut context).is_pending());
    let other = puller(&subscription);
    assert_eq!(take(&other), None);
    assert!(pull.poll_take(&mut context).is_pending());
    assert!(!flag.0.load(Ordering::SeqCst), "it was woken for nothing");
    assert_eq!(take(&other), None);
    assert!(!flag.0.load(Ordering::SeqCst), "it was woken for nothing");
    world.log.step();
    assert!(flag.0.swap(false, Ordering::SeqCst), "it was not woken");
    assert_eq!(take_body(&other).unwrap(), "1");
    let Poll::Ready(Some(delivery)) = pull.poll_take(&mut context) else {
        panic!("nothing came")
    };
    assert_eq!((delivery.first, delivery.count), (1, 1));
    assert_eq!(take_body(&pull), None);
    assert_eq!(subscription.counts().in_flight, 2);
    // A consumer that leaves while it waits has nothing in flight.
    drop((pull, other));
    assert_eq!(subscription.counts().depth, 2);
}

#[test]
fn messages_are_settled_when_an_automatic_consumer_takes_them() {
    let world = World::new();
    let subscription = world.subscription("t", "s");
    let options = || ConsumerOptions {
        auto_ack: true,
        ..ConsumerOptions::default()
    };
    let first = consumer_with(&subscription, u32::MAX, options());
    let all: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    world.publish("t", &all);
    assert_eq!(subscription.counts().in_flight, 200);
    assert_eq!(bodies(&first), all);
    let stats = subscription.stats();
    assert_eq!(
        (stats.in_flight, stats.acknowledged, stats.leases),
        (0, 200, 0)
    );
    assert_eq!(subscription.floor(0), Some(200));
    // Messages that it has not taken are requeued, and count as never delivered.
    world.publish("t", &["late"]);
    drop(first);
    let second = consumer_with(&subscription, u32::MAX, options());
    assert_eq!(again(&second), pairs(&[("late", false)]));

    let pull = ConsumerOptions {
        pull: true,
        ..options()
    };
    let pull = subscription.attach(pull).unwrap();
    drop(second);
    world.publish("t", &["pulled"]);
    assert_eq!(take_body(&pull).unwrap(), "pulled");
    assert_eq!(
        (subscription.counts().depth, subscription.counts().in_flight),
        (0, 0)
    );
}

#[test]
fn an_inactive_consumer_may_share_a_window_with_free_slots() {
    let world = World::new();
    let subscription = world.subscription_with(
        "t",
        "s",
        SubscriptionOptions {
            single_active: true,
            ..SubscriptionOptions::default()
        },
    );
    let active = consumer(&subscription, 1);
    let shared = SharedWindow::new(5);
    let other = sharing(&subscription, &shared);
    // The publish returns: dispatch does not loop over an inactive consumer that has free slots.
    world.publish("t", &["1", "2", "3"]);
    assert_eq!(bodies(&active), ["1"]);
    assert_eq!(shared.in_flight(), 0);
    drop(active);
    assert_eq!(bodies(&other), ["1", "2", "3"]);
}

/// A consumer that releases a slot does not take it again while others wait. RabbitMQ serves three
/// queues of a channel with a prefetch of 1 equally.
#[test]
fn a_shared_window_serves_subscriptions_in_turn() {
    for others_each in [0, 100] {
        let world = World::new();
        let topics = ["a", "b", "c"];
        let shared = SharedWindow::new(1);
        let consumers = topics.map(|topic| {
            let subscription = world.subscription(topic, "s");
            // With many consumers the ranking is used.
            let others = (0..others_each).map(|_| consumer(&subscription, 0));
            let others: Vec<Consumer> = others.collect();
            (sharing(&subscription, &shared), others)
        });
        let messages: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
        for topic in topics {
            world.publish(topic, &messages);
        }
        let mut counts = [0_usize; 3];
        for _ in 0..30 {
            let mut came = 0;
            for ((consumer, _), count) in consumers.iter().zip(&mut counts) {
                let got: Vec<_> = receive(consumer).unwrap();
                let ids: Vec<_> = got.iter().map(|got| got.id).collect();
                assert!(ids.len() <= 1, "a window of one message");
                (*count, came) = (*count + ids.len(), came + ids.len());
                consumer.ack_many(&ids, |_, _, _| {});
            }
            assert!(came > 0, "{counts:?}: no consumer gets a message");
        }
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(most - least <= 1, "{counts:?}");
    }
}

#[test]
fn a_shared_window_counts_the_consumers_of_all_subscriptions() {
    let world = World::new();
    let (a, b) = (world.subscription("a", "s"), world.subscription("b", "s"));
    let shared = SharedWindow::new(3);
    let (of_a, of_b) = (sharing(&a, &shared), sharing(&b, &shared));
    world.publish("a", &["1", "2"]);
    world.publish("b", &["3", "4", "5", "6"]);
    assert_eq!(bodies(&of_a), ["1", "2"]);
    assert_eq!(bodies(&of_b), ["3"]);
    assert_eq!(shared.in_flight(), 3);
    // A slot that one subscription's consumer releases goes to the other subscription.
    of_a.ack_ranges(&[range(0, 1)], |_, _| {});
    assert_eq!(bodies(&of_b), ["4"]);
    of_a.nack_ranges(&[range(1, 1)]);
    let both = [bodies(&of_a), bodies(&of_b)].concat();
    assert_eq!(both.len(), 1, "{both:?}");
    shared.set(u32::MAX);
    let both = [bodies(&of_a), bodies(&of_b)].concat();
    assert_eq!(both.len(), 2, "{both:?}");
    assert_eq!(shared.in_flight(), 5);
    // The consumer's own window counts too, and a consumer that leaves releases its slots.
    shared.set(0);
    of_b.set_window(1);
    drop(of_b);
    assert_eq!(shared.in_flight(), of_a.in_flight());
    world.publish("a", &["7"]);
    assert_eq!(bodies(&of_a), [""; 0]);
    shared.set(9);
    assert_eq!(bodies(&of_a), ["7"]);
    a.discard_all();
    assert_eq!(shared.in_flight(), 0);
    world.publish("a", &["8"]);
    assert_eq!(bodies(&of_a), ["8"]);
    world.broker.delete_topic("a").unwrap();
    assert_eq!(shared.in_flight(), 0);
}

#[test]
fn ranges_are_settled_together_and_messages_not_in_flight_are_reported() {
    let world = World::new();
    let options = SubscriptionOptions {
        dead_letter: Some("t.dead".to_owned()),
        ..SubscriptionOptions::default()
    };
    let subscription = world.subscription_with("t", "s", options);
    let (first, other) = (consumer(&subscription, 300), consumer(&subscription, 1));
    other.retire();
    let all: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    world.publish("t", &all);
    assert_eq!(receive(&first).unwrap().len(), 300);
    first.nack_ranges(&[range(100, 100)]);
    assert_eq!(receive(&first).unwrap().len(), 100);
    first.set_window(200);
    let mut told = Vec::new();
    let foreign = MessageRange {
        partition: 7,
        first: u64::MAX,
        count: u32::MAX,
    };
    other.ack_ranges(&[range(0, 5)], |_, settled| assert_eq!(settled, None));
    first.ack_ranges(&[range(90, 120), foreign], |range, settled| {
        told.push((
            range.first,
            range.count,
            settled.map(|settled| settled.attempts),
        ));
    });
    // The requeued messages came back to it at once, so these are second deliveries.
    let expected = [(90, 10, Some(1)), (100, 100, Some(2)), (200, 10, Some(1))];
    assert_eq!(told[..3], expected);
    // The range ends at the highest offset, so it has no messages.
    assert_eq!(told.len(), 3);
    assert_eq!(subscription.counts().in_flight, 180);
    first.set_window(0);
    first.nack_ranges(&[range(220, 5), range(10, 5)]);
    first.reject_ranges(&[range(0, 3), range(290, 200), range(5, 1)]);
    assert_eq!(subscription.counts().in_flight, 180 - 10 - 14);
    assert_eq!(subscription.counts().depth, 10);
    first.set_window(u32::MAX);
    let order: Vec<u64> = receive(&first)
        .unwrap()
        .iter()
        .map(|got| got.id.offset)
        .collect();
    assert_eq!(order, [10, 11, 12, 13, 14, 220, 221, 222, 223, 224]);
    world.settle();
    let dead = bodies(&consumer(&world.subscription("t.dead", "s"), 100));
    let mut expected = vec!["0", "1", "2"];
    expected.extend(&all[290..]);
    expected.push("5");
    assert_eq!(dead, expected);
    // All dead letters of one tick are one batch.
    let letters = world.topic("t.dead").partition(0).unwrap();
    let cloverleaf_log::Read::Batches(batches) = letters.read(0, 1 << 20) else {
        panic!("not there")
    };
    assert_eq!(batches.iter().map(|b| b.count()).collect::<Vec<_>>(), [14]);
}

#[test]
fn fill_first_gives_all_to_one_until_its_window_is_used_up() {
    let mut world = World::new();
    let options = SubscriptionOptions {
        dispatch: Dispatch::FillFirst,
        ..SubscriptionOptions::default()
    };
    let subscription = world.subscription_with("t", "s", options);
    let both = [consumer(&subscription, 25), consumer(&subscription, 25)];
    // The job of seed 003: 25 messages, published one by one, for two consumers.
    for n in 0..25 {
        world.publish("t", &[&n.to_string()]);
    }
    let mut counts = both.each_ref().map(|c| receive(c).unwrap().len());
    counts.sort_unstable();
    assert_eq!(counts, [0, 25]);
    world.publish("t", &["more"; 3]);
    let mut counts = both.each_ref().map(|c| receive(c).unwrap().len());
    counts.sort_unstable();
    assert_eq!(counts, [0, 3]);
    // Priority goes before the policy.
    let high = ConsumerOptions {
        priority: 1,
        ..ConsumerOptions::default()
    };
    let high = consumer_with(&subscription, 2, high);
    world.publish("t", &["a", "b", "c"]);
    assert_eq!(bodies(&high), ["a", "b"]);
    drop((both, high));
    subscription.discard_all();

    subscription.set_dispatch(Dispatch::LeastLoaded).unwrap();
    let both = [consumer(&subscription, 25), consumer(&subscription, 25)];
    world.publish("t", &["x"; 20]);
    assert_eq!(both.each_ref().map(|c| receive(c).unwrap().len()), [10, 10]);
    subscription.set_dispatch(Dispatch::FillFirst).unwrap();
    drop(both);
    world.kill_and_restart();
    let subscription = world.subscription("t", "s");
    assert_eq!(subscription.dispatch_policy(), Dispatch::FillFirst);
    world.topic("t").delete_subscription("s").unwrap();
    assert!(subscription.set_dispatch(Dispatch::LeastLoaded).is_err());
}
