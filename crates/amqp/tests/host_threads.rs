//! A virtual host as in production: sessions on several threads, the broker's threads, the
//! router's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::host_common::{Random, to_queue};
use cloverleaf_access::Operation;
use cloverleaf_amqp::host::{Queue, VirtualHost};
use cloverleaf_amqp::message::Message;
use cloverleaf_amqp::routing::{Destination, RoutedMessage};
use cloverleaf_amqp::wire::{Table, Value, method, table_bytes};
use cloverleaf_broker::{
    Broker, BrokerOptions, Consumer, ConsumerOptions, Delivery, Realm, SystemClock,
};
use cloverleaf_log::{BatchBuilder, Durability, Log, LogOptions, SimDisk};

/// A timeout that only a fault reaches.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(disk: &SimDisk) -> (Log, Broker, Arc<VirtualHost>) {
    let log_options = LogOptions {
        disk_free_bytes_min: 0,
        ..LogOptions::default()
    };
    let (log, recovery) = Log::open(disk.mount(), log_options).unwrap();
    let clock = Arc::new(SystemClock::default());
    let broker = Broker::open(log.clone(), recovery, BrokerOptions::default(), clock).unwrap();
    let host = VirtualHost::open(Realm::unrestricted(broker.clone())).unwrap();
    (log, broker, host)
}

/// Runs `work` while the broker's and the router's threads run.
fn running(disk: &SimDisk, work: impl FnOnce(&Arc<VirtualHost>)) {
    let (log, broker, host) = open(disk);
    thread::scope(|scope| {
        scope.spawn(|| broker.run_housekeeping());
        let router = scope.spawn(|| host.run_router());
        work(&host);
        host.close();
        router.join().unwrap();
        broker.close();
    });
    log.close();
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for `count` messages.
fn receive(consumer: &Consumer, count: u32) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut deliveries: Vec<Delivery> = Vec::new();
    let start = Instant::now();
    while deliveries
        .iter()
        .map(|delivery| delivery.count)
        .sum::<u32>()
        < count
    {
        match consumer.poll_deliveries(&mut context, &mut deliveries) {
            Poll::Ready(Some(())) => {}
            Poll::Ready(None) => panic!("the queue is gone"),
            Poll::Pending => {
                assert!(start.elapsed() < PATIENCE, "no message arrived");
                thread::park_timeout(PATIENCE);
            }
        }
    }
}

fn declare(host: &VirtualHost, name: &str, fields: &[(&str, Value<'_>)]) -> Option<Arc<Queue>> {
    let arguments = table_bytes(fields);
    let declare = method::QueueDeclare {
        queue: name,
        durable: true,
        arguments: Table::check(&arguments).unwrap(),
        ..method::QueueDeclare::default()
    };
    host.declare_queue(host.owner(), &declare).ok()
}

#[test]
fn the_router_wakes_for_the_dead_the_delayed_and_the_expired() {
    running(&SimDisk::new(), |host| {
        let dead = declare(host, "dead", &[]).unwrap();
        let fields = to_queue("dead", &[("x-message-ttl", Value::I32(20))]);
        let source = declare(host, "source", &fields).unwrap();
        let owner = host.owner();
        let options = ConsumerOptions::default();
        let consumer = host.consume(owner, &dead, options).unwrap();
        consumer.set_window(u32::MAX);
        let message = Message {
            exchange: "",
            routing_key: "source",
            properties: &[0, 0],
            bcc: &[],
            body: b"body"[..].into(),
        };
        let now_ms = i64::try_from(host.realm().now_ms()).unwrap();
        let mut builder = BatchBuilder::with_capacity(256, now_ms);
        for _ in 0..300 {
            message.push(&mut builder, None);
        }
        let batch = builder.finish();
        drop(source.topic.publish(batch, Durability::Disk).unwrap());
        receive(&consumer, 300);

        let arguments = table_bytes(&[("x-delayed-type", Value::String(b"fanout"))]);
        host.declare_exchange(&method::ExchangeDeclare {
            exchange: "later",
            kind: "x-delayed-message",
            arguments: Table::check(&arguments).unwrap(),
            ..method::ExchangeDeclare::default()
        })
        .unwrap();
        host.bind_queue(owner, "dead", "later", "", Table::default())
            .unwrap();
        for delay_ms in [30, 5] {
            let delayed = host.delay("later", &message, delay_ms, now_ms, Durability::Disk);
            drop(delayed.unwrap());
        }
        receive(&consumer, 2);

        // The consumer is notified when its queue is deleted, here because it expires.
        let short = declare(host, "short", &[("x-expires", Value::I32(20))]).unwrap();
        let start = Instant::now();
        while !short.is_deleted() {
            assert!(start.elapsed() < PATIENCE, "it does not expire");
            thread::yield_now();
        }
    });
}

#[test]
fn changes_from_many_threads_leave_a_whole_virtual_host() {
    let disk = SimDisk::new();
    let mut before = Vec::new();
    running(&disk, |host| {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let changing: Vec<_> = (0..3)
                .map(|seed| scope.spawn(move || change(host, seed)))
                .collect();
            scope.spawn(|| {
                let key = |key| RoutedMessage {
                    key,
                    ..RoutedMessage::default()
                };
                while !over.load(Ordering::Relaxed) {
                    // Routing works in every intermediate state.
                    for name in ["x0", "x1", ""] {
                        let _ = host.route(name, &key("q1"));
                    }
                    let generation = host.generation();
                    assert!(host.generation() >= generation);
                }
            });
            for thread in changing {
                thread.join().unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        before = host.bindings();
        check(host);
    });
    let (_log, _broker, host) = open(&disk);
    check(&host);
    assert_eq!(host.bindings(), before);
}

/// Checks that both ends of all bindings exist.
fn check(host: &VirtualHost) {
    let exchanges = host.exchanges();
    let queues = host.queues();
    for binding in host.bindings() {
        assert!(
            exchanges
                .iter()
                .any(|exchange| exchange.name == binding.source)
        );
        match &binding.destination {
            Destination::Queue(name) => assert!(queues.iter().any(|queue| queue.name == *name)),
            Destination::Exchange(name) => {
                assert!(exchanges.iter().any(|exchange| exchange.name == *name));
            }
        }
    }
    for queue in queues {
        let topic = host.realm().topic(Operation::Describe, &queue.name);
        assert!(topic.is_ok());
    }
}

fn change(host: &VirtualHost, seed: u64) {
    let mut random = Random(seed);
    let owner = host.owner();
    let none = Table::default();
    for _ in 0..1_500 {
        let (a, b) = (random.below(3), random.below(3));
        let (queue, exchange) = (format!("q{a}"), format!("x{b}"));
        // Each change may be refused, because another thread was first.
        match random.below(12) {
            0..=2 => drop(declare(host, &queue, &[])),
            3 => drop(host.delete_queue(owner, &queue, false, false)),
            4 | 5 => drop(host.declare_exchange(&method::ExchangeDeclare {
                exchange: &exchange,
                kind: "fanout",
                durable: true,
                auto_delete: b == 0,
                ..method::ExchangeDeclare::default()
            })),
            6 => drop(host.delete_exchange(&exchange, a == 0)),
            7..=9 => drop(host.bind_queue(owner, &queue, &exchange, &queue, none)),
            10 => drop(host.unbind_queue(owner, &queue, &exchange, &queue, none)),
            _ => {
                let own = host.owner();
                let declared = host.declare_queue(
                    own,
                    &method::QueueDeclare {
                        exclusive: true,
                        auto_delete: true,
                        ..method::QueueDeclare::default()
                    },
                );
                let queue = declared.unwrap();
                let consumer = host.consume(own, &queue, ConsumerOptions::default());
                drop(consumer.unwrap());
                host.consumer_left(&queue);
                assert!(queue.is_deleted());
                host.connection_closed(own);
            }
        }
    }
}
