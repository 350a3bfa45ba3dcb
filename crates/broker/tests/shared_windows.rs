//! One window over two subscriptions that deliver concurrently on two threads: never more messages
//! in flight than it allows, and no consumer waits forever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use cloverleaf_broker::{
    Broker, BrokerOptions, Consumer, ConsumerOptions, SharedWindow, Subscription,
    SubscriptionOptions, SystemClock, TopicOptions,
};
use cloverleaf_log::{BatchBuilder, Durability, Log, LogOptions, SimDisk};

const MESSAGES: u64 = 4_000;
const WINDOW: u32 = 3;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn consumer(subscription: &Arc<Subscription>, shared: &Arc<SharedWindow>) -> Consumer {
    let options = ConsumerOptions {
        shared_window: Some(shared.clone()),
        ..ConsumerOptions::default()
    };
    let consumer = subscription.attach(options).unwrap();
    consumer.set_window(u32::MAX);
    consumer
}

/// Consumes until `MESSAGES` have been acknowledged. `held` counts the messages in flight on both
/// threads.
fn consume(consumer: &Consumer, held: &AtomicU64) {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut count, mut turns) = (0, 0);
    let mut deliveries = Vec::new();
    while count < MESSAGES {
        assert!(Instant::now() < deadline, "{count} messages, and no more");
        match consumer.poll_deliveries(&mut context, &mut deliveries) {
            Poll::Ready(Some(())) => {}
            Poll::Ready(None) => panic!("closed"),
            Poll::Pending => {
                std::thread::park_timeout(Duration::from_secs(10));
                continue;
            }
        }
        for delivery in deliveries.drain(..) {
            let taken = u64::from(delivery.count);
            let now_held = held.fetch_add(taken, Ordering::SeqCst) + taken;
            assert!(now_held <= u64::from(WINDOW), "{now_held} in flight");
            held.fetch_sub(taken, Ordering::SeqCst);
            turns += 1;
            if turns % 7 == 0 {
                // The messages come again.
                consumer.nack_ranges(&[delivery.range()]);
            } else {
                let mut acked = 0;
                consumer.ack_ranges(&[delivery.range()], |range, settled| {
                    assert!(settled.is_some());
                    acked += u64::from(range.count);
                });
                assert_eq!(acked, taken);
                count += taken;
            }
        }
    }
}

#[test]
fn two_subscriptions_race_for_one_window() {
    let options = LogOptions {
        disk_free_bytes_min: 0,
        ..LogOptions::default()
    };
    let (log, recovery) = Log::open(SimDisk::new().mount(), options).unwrap();
    let clock = Arc::new(SystemClock::default());
    let broker = Broker::open(log.clone(), recovery, BrokerOptions::default(), clock).unwrap();
    let shared = SharedWindow::new(WINDOW);
    let held = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let topic = broker.topic_or_create(name, TopicOptions::default).unwrap();
            let subscription = topic
                .subscription_or_create("s", SubscriptionOptions::default)
                .unwrap();
            let consumer = consumer(&subscription, &shared);
            let held = &held;
            scope.spawn(move || consume(&consumer, held));
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    let mut builder = BatchBuilder::with_capacity(64, 0);
                    builder.push(None, Some(&number.to_be_bytes()), &[]);
                    drop(topic.publish(builder.finish(), Durability::Kernel).unwrap());
                }
            });
        }
    });
    assert_eq!(shared.in_flight(), 0);
    broker.close();
    log.close();
}
