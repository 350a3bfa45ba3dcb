//! Many consumers are ranked, few are compared one by one: both ways choose the same consumers.

use std::sync::Arc;

use crate::common::{Random, World, ack_all, consumer_with, range, receive};
use cloverleaf_broker::{
    Consumer, ConsumerOptions, Dispatch, SharedWindow, Subscription, SubscriptionOptions,
};

const CONSUMERS: u64 = 7;

/// A subscription whose first consumers only pull: enough of them switch the ranking on.
struct BrokerWithConsumers {
    world: World,
    subscription: Arc<Subscription>,
    consumers: Vec<Option<Consumer>>,
    _pulling: Vec<Consumer>,
}

impl BrokerWithConsumers {
    fn new(pulling: usize, dispatch: Dispatch) -> Self {
        let world = World::new();
        let options = SubscriptionOptions {
            dispatch,
            ..SubscriptionOptions::default()
        };
        let subscription = world.subscription_with("t", "s", options);
        let pull = || ConsumerOptions {
            pull: true,
            ..ConsumerOptions::default()
        };
        let pulling = (0..pulling).map(|_| subscription.attach(pull()).unwrap());
        Self {
            _pulling: pulling.collect(),
            world,
            subscription,
            consumers: (0..CONSUMERS).map(|_| None).collect(),
        }
    }

    /// Runs one random step, the same for equal random numbers. Returns the deliveries of each
    /// consumer.
    fn step(&mut self, random: &mut Random, policies: bool) -> Vec<Option<Vec<String>>> {
        let which = usize::try_from(random.below(CONSUMERS)).unwrap();
        let (what, number) = (random.below(10), random.below(6));
        let small = u32::try_from(number).unwrap();
        let consumer = &mut self.consumers[which];
        match (what, &consumer) {
            (0, Some(there)) if number < 3 => there.retire(),
            (0, Some(_)) => *consumer = None,
            (0..3, None) => {
                let options = ConsumerOptions {
                    priority: i32::try_from(number % 3).unwrap(),
                    ..ConsumerOptions::default()
                };
                *consumer = Some(consumer_with(&self.subscription, 1 + small, options));
            }
            (1, Some(there)) => there.set_window(small),
            (2, Some(there)) => there.nack_ranges(&[range(number, 1_000)]),
            (3, Some(there)) => there.ack_ranges(&[range(0, 10_000)], |_, _| {}),
            (4 | 5, Some(there)) => {
                let got = receive(there).unwrap();
                ack_all(there, &got[..got.len() / 2]);
            }
            (6, _) if policies && number == 0 => {
                let policy = match self.subscription.dispatch_policy() {
                    Dispatch::LeastLoaded => Dispatch::FillFirst,
                    Dispatch::FillFirst => Dispatch::LeastLoaded,
                };
                self.subscription.set_dispatch(policy).unwrap();
            }
            _ => self.world.publish("t", &vec!["m"; 1 + small as usize]),
        }
        let of = |consumer: &Option<Consumer>| {
            let got = receive(consumer.as_ref()?).unwrap();
            Some(got.iter().map(|got| got.id.offset.to_string()).collect())
        };
        self.consumers.iter().map(of).collect()
    }
}

#[test]
fn a_ranking_chooses_the_same_consumers_as_a_comparison() {
    for seed in 0..120 {
        let dispatch = match seed % 2 {
            0 => Dispatch::LeastLoaded,
            _ => Dispatch::FillFirst,
        };
        let (mut few, mut many) = (
            BrokerWithConsumers::new(1, dispatch),
            BrokerWithConsumers::new(40, dispatch),
        );
        let (mut ours, mut theirs) = (Random(seed), Random(seed));
        for step in 0..150 {
            let expected = few.step(&mut ours, seed % 3 == 0);
            let got = many.step(&mut theirs, seed % 3 == 0);
            assert_eq!(got, expected, "seed {seed}, step {step}");
            assert_eq!(
                many.subscription.stats().depth,
                few.subscription.stats().depth
            );
        }
    }
}

#[test]
fn no_consumer_with_free_slots_waits_while_there_are_messages() {
    for seed in 0..100 {
        let random = &mut Random(seed);
        let world = World::new();
        let names = ["a", "b"];
        let subscriptions = names.map(|name| world.subscription(name, "s"));
        let mut sizes = [3, 5, 9];
        let windows = sizes.map(SharedWindow::new);
        let mut consumers: Vec<(usize, usize, u32, Consumer)> = Vec::new();
        for _ in 0..300 {
            let which = usize::try_from(random.below(consumers.len().max(1) as u64)).unwrap();
            let number = usize::try_from(random.below(6)).unwrap();
            match random.below(12) {
                0..4 if consumers.len() < 60 => {
                    let window = number % 4;
                    let options = ConsumerOptions {
                        shared_window: windows.get(window).cloned(),
                        priority: i32::try_from(number / 3).unwrap(),
                        ..ConsumerOptions::default()
                    };
                    let subscription = &subscriptions[number % 2];
                    let consumer = consumer_with(subscription, 2, options);
                    consumers.push((number % 2, window, 2, consumer));
                }
                4 if number == 0 && !consumers.is_empty() => drop(consumers.swap_remove(which)),
                5 if number == 0 => {
                    sizes[which % 3] = u32::try_from(random.below(8)).unwrap();
                    windows[which % 3].set(sizes[which % 3]);
                }
                6 if !consumers.is_empty() => {
                    let moved = &mut consumers[which];
                    moved.1 = number % 4;
                    moved.3.set_shared_window(windows.get(moved.1).cloned());
                }
                7 if number == 1 && !consumers.is_empty() => {
                    consumers[which].2 = 1;
                    consumers[which].3.set_window(1);
                }
                8..11 if !consumers.is_empty() => {
                    let acked = [range(0, 1_000_000)];
                    consumers[which].3.ack_ranges(&acked, |_, _| {});
                }
                _ => world.publish(names[number % 2], &vec!["m"; 1 + number]),
            }
            for (_, _, _, consumer) in &consumers {
                receive(consumer).unwrap();
            }
            for (of, window, own, consumer) in &consumers {
                let has_room = consumer.in_flight() < *own;
                let shared = windows
                    .get(*window)
                    .map(|shared| shared.in_flight() < sizes[*window]);
                let depth = subscriptions[*of].counts().depth;
                assert!(
                    depth == 0 || !has_room || shared == Some(false),
                    "seed {seed}: {depth} wait for nothing"
                );
            }
        }
    }
}
