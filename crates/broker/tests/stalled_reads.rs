//! A disk that does not answer a read: other work continues, and so does a shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::common::{World, bodies, consumer, receive};
use cloverleaf_broker::{
    Broker, BrokerOptions, Clock, ManualClock, Subscription, SubscriptionOptions,
};
use cloverleaf_log::{FaultyDisk, Log, LogClock, LogOptions};

/// Only a fault takes that long.
const HANG: Duration = Duration::from_secs(120);

/// Runs `work`, which may wait for the disk, on another thread.
fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (answer, told) = channel();
    thread::spawn(move || drop(answer.send(work())));
    told
}

fn now<T>(told: &Receiver<T>) -> T {
    told.recv_timeout(HANG).expect("it waits for the disk")
}

#[test]
fn a_dead_letter_whose_read_hangs_blocks_no_other() {
    let mut world = World::new();
    let names = ["hung", "fine"];
    for name in names {
        let options = SubscriptionOptions {
            dead_letter: Some("letters".to_owned()),
            ..SubscriptionOptions::default()
        };
        world.subscription_with(name, "s", options);
        world.publish(name, &[name]);
    }
    let letters = consumer(&world.subscription("letters", "l"), 10);
    world.settle();
    drop(letters);
    let faulty = world.restart_uncached();
    let letters = consumer(&world.subscription("letters", "l"), 10);
    let consumers = names.map(|name| consumer(&world.subscription(name, "s"), 1));
    world.settle();
    let got = consumers.each_ref().map(|it| receive(it).unwrap());
    let hung = world.topic("hung").id().to_string();
    faulty.set(|faults| {
        faults.only = hung.clone();
        faults.hanging_reads = Some(hung);
    });
    for (consumer, got) in consumers.iter().zip(&got) {
        consumer.reject(got[0].id).unwrap();
    }
    let broker = world.broker.clone();
    now(&beside(move || broker.tick()));
    assert_eq!(bodies(&letters), ["fine"]);
    faulty.set(|faults| faults.hanging_reads = None);
    world.settle();
    assert_eq!(bodies(&letters), ["hung"]);
}

/// Dead letters of one subscription are written in the order of their messages, from memory or from
/// disk.
#[test]
fn a_letter_whose_message_is_in_memory_overtakes_no_older_one() {
    let mut world = World::new();
    let options = SubscriptionOptions {
        dead_letter: Some("letters".to_owned()),
        ..SubscriptionOptions::default()
    };
    world.subscription_with("t", "s", options);
    world.publish("t", &["1"]);
    drop(consumer(&world.subscription("letters", "l"), 10));
    world.settle();
    world.restart_uncached();
    let letters = consumer(&world.subscription("letters", "l"), 10);
    let consumer = consumer(&world.subscription("t", "s"), 2);
    world.publish("t", &["2"]);
    let mut ids = Vec::new();
    while ids.len() < 2 {
        world.settle();
        ids.extend(receive(&consumer).unwrap().iter().map(|got| got.id));
    }
    for id in ids {
        consumer.reject(id).unwrap();
    }
    world.broker.tick();
    assert_eq!(bodies(&letters), [""; 0]);
    world.settle();
    assert_eq!(bodies(&letters), ["1", "2"]);
}

/// A broker with threads, whose disk does not answer reads of a topic with messages.
struct BrokerWithHungDisk {
    log: Log,
    broker: Broker,
    clock: Arc<ManualClock>,
    faulty: Arc<FaultyDisk>,
}

impl BrokerWithHungDisk {
    fn new() -> BrokerWithHungDisk {
        let world = World::new();
        world.publish("hung", &["a", "b"]);
        world.broker.close();
        world.log.close();
        world.disk.kill();
        let faulty = FaultyDisk::new(world.disk.mount());
        let clock = world.clock.clone();
        let told = clock.clone();
        let options = LogOptions {
            clock: LogClock::new(move || i64::try_from(told.now_ms()).unwrap()),
            ..LogOptions::default()
        };
        let (log, recovery) = Log::open(faulty.clone(), options).unwrap();
        let options = BrokerOptions::default();
        let broker = Broker::open(log.clone(), recovery, options, clock.clone()).unwrap();
        let hung = broker.topic("hung").unwrap().id().to_string();
        faulty.set(|faults| {
            faults.uncached = true;
            faults.hanging_reads = Some(hung);
        });
        BrokerWithHungDisk {
            log,
            broker,
            clock,
            faulty,
        }
    }

    /// Creates a subscription that must count messages which the disk does not return. `None`: the
    /// log was closed meanwhile.
    fn count(&self) -> Receiver<Option<Arc<Subscription>>> {
        let topic = self.broker.topic("hung").unwrap();
        let options = SubscriptionOptions {
            length_bytes_max: Some(10),
            ..SubscriptionOptions::default()
        };
        beside(move || topic.subscription_or_create("s", || options).ok())
    }

    fn close(&self) {
        let (broker, log) = (self.broker.clone(), self.log.clone());
        now(&beside(move || {
            broker.close();
            log.close();
        }));
        self.faulty.set(|faults| faults.hanging_reads = None);
    }
}

#[test]
fn a_length_count_that_hangs_is_abandoned() {
    let hung = BrokerWithHungDisk::new();
    let counting = hung.count();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                hung.clock.advance(10_000);
                drop(hung.log.stalled_reads());
                thread::yield_now();
            }
        });
        let told = counting.recv_timeout(HANG);
        is_over.store(true, SeqCst);
        let made = told.expect("the count is never abandoned");
        assert!(made.is_some());
    });
    let stalled = hung.log.stalled_reads();
    let topic = hung.broker.topic("hung").unwrap().id().to_string();
    assert!(
        stalled.len() == 1 && stalled[0].contains(&topic),
        "{stalled:?}"
    );
    hung.close();
}

#[test]
fn a_shutdown_does_not_wait_for_a_length_count() {
    let hung = BrokerWithHungDisk::new();
    let counting = hung.count();
    hung.close();
    now(&counting);
}
