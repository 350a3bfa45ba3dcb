//! A virtual host on a simulated disk with a clock that the test drives: no thread, no socket.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cloverleaf_amqp::exception::Exception;
use cloverleaf_amqp::host::{HostOptions, Owner, Queue, VirtualHost, delay_ms};
use cloverleaf_amqp::message::Message;
use cloverleaf_amqp::routing::RoutedMessage;
use cloverleaf_amqp::wire::{Properties, Table, Value, Writer, method, table_bytes};
use cloverleaf_broker::{
    Broker, BrokerOptions, Clock, Consumer, ConsumerOptions, Delivery, ManualClock, MessageId,
    Namespace, Realm,
};
use cloverleaf_log::{
    BatchBuilder, Durability, FaultyDisk, Log, LogOptions, RecordCursor, SimDisk,
};

/// A virtual host that can be killed and restarted.
pub struct World {
    pub disk: SimDisk,
    /// Makes the disk fail.
    pub faults: Arc<FaultyDisk>,
    pub clock: Arc<ManualClock>,
    pub log: Log,
    pub broker: Broker,
    pub host: Arc<VirtualHost>,
    pub owner: Owner,
}

/// A message as a consumer got it.
#[derive(Debug, Clone, PartialEq)]
pub struct Got {
    pub id: MessageId,
    pub attempts: u16,
    pub exchange: String,
    pub key: String,
    pub body: String,
    pub properties: Vec<u8>,
}

impl Got {
    pub fn properties(&self) -> Properties<'_> {
        Properties::read(&self.properties).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<Value<'_>> {
        self.properties().headers?.get(name)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.header(name).and_then(|value| value.as_text())
    }

    /// Queue, reason and count of each entry of `x-death`.
    pub fn deaths(&self) -> Vec<(String, String, i64)> {
        let Some(Value::Array(deaths)) = self.header("x-death") else {
            return Vec::new();
        };
        let read = |death: Value<'_>| {
            let Value::Table(table) = death else {
                panic!("not a table: {death:?}");
            };
            let text = |name| table.get(name).unwrap().as_text().unwrap().to_owned();
            let count = table.get("count").unwrap().as_integer().unwrap();
            (text("queue"), text("reason"), count)
        };
        deaths.values().map(read).collect()
    }
}

fn open(disk: &SimDisk, clock: &Arc<ManualClock>) -> (Arc<FaultyDisk>, Log, Broker) {
    let log_options = LogOptions {
        manual: true,
        disk_free_bytes_min: 0,
        journal_bytes: 64 << 10,
        ..LogOptions::default()
    };
    let faults = FaultyDisk::new(disk.mount());
    let (log, recovery) = Log::open(faults.clone(), log_options).unwrap();
    let options = BrokerOptions::default();
    let broker = Broker::open(log.clone(), recovery, options, clock.clone()).unwrap();
    (faults, log, broker)
}

impl World {
    pub fn new() -> Self {
        Self::with(HostOptions::default())
    }

    pub fn with(options: HostOptions) -> Self {
        let disk = SimDisk::new();
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let (faults, log, broker) = open(&disk, &clock);
        let host = VirtualHost::open_with(Realm::unrestricted(broker.clone()), options).unwrap();
        let owner = host.owner();
        Self {
            disk,
            faults,
            clock,
            log,
            broker,
            host,
            owner,
        }
    }

    /// The virtual host of another namespace of the same broker.
    pub fn beside(&self, namespace: &str) -> Self {
        let realm = Realm::new(self.broker.clone(), Namespace::new(namespace));
        let host = VirtualHost::open(realm).unwrap();
        Self {
            disk: self.disk.clone(),
            faults: self.faults.clone(),
            clock: self.clock.clone(),
            log: self.log.clone(),
            broker: self.broker.clone(),
            owner: host.owner(),
            host,
        }
    }

    /// Simulates `kill -9`: what was written to the kernel is kept.
    pub fn kill_and_restart(&mut self) {
        self.disk.kill();
        self.restart();
    }

    /// Simulates a power loss: writes that were not synced may be lost in any way.
    pub fn lose_power_and_restart(&mut self, seed: u64) {
        self.disk.power_loss(seed);
        self.restart();
    }

    fn restart(&mut self) {
        (self.faults, self.log, self.broker) = open(&self.disk, &self.clock);
        self.host = VirtualHost::open(Realm::unrestricted(self.broker.clone())).unwrap();
        self.owner = self.host.owner();
    }

    /// Lets the log, the housekeeping and the router do all their pending work.
    pub fn settle(&self) {
        for _ in 0..8 {
            self.log.step();
            self.broker.tick();
            self.host.router_tick();
        }
    }

    pub fn advance(&self, ms: u64) {
        self.clock.advance(ms);
        self.settle();
    }

    pub fn exchange(&self, name: &str, kind: &str) {
        self.declare_exchange(name, kind, |_| {}).unwrap();
    }

    pub fn declare_exchange(
        &self,
        name: &str,
        kind: &str,
        change: impl FnOnce(&mut method::ExchangeDeclare<'_>),
    ) -> Result<(), Exception> {
        let mut declare = method::ExchangeDeclare {
            exchange: name,
            kind,
            durable: true,
            ..method::ExchangeDeclare::default()
        };
        change(&mut declare);
        self.host.declare_exchange(&declare)
    }

    /// Declares an exchange with arguments.
    pub fn exchange_with(&self, name: &str, kind: &str, fields: &[(&str, Value<'_>)]) {
        let bytes = table_bytes(fields);
        let declare = method::ExchangeDeclare {
            exchange: name,
            kind,
            durable: true,
            arguments: Table::check(&bytes).unwrap(),
            ..method::ExchangeDeclare::default()
        };
        self.host.declare_exchange(&declare).unwrap();
    }

    /// Declares a durable queue.
    pub fn queue(&self, name: &str) -> Arc<Queue> {
        self.queue_with(name, &[])
    }

    /// Declares a durable queue with arguments.
    pub fn queue_with(&self, name: &str, fields: &[(&str, Value<'_>)]) -> Arc<Queue> {
        self.declare(name, fields, |_| {}).unwrap()
    }

    pub fn declare(
        &self,
        name: &str,
        fields: &[(&str, Value<'_>)],
        change: impl FnOnce(&mut method::QueueDeclare<'_>),
    ) -> Result<Arc<Queue>, Exception> {
        self.declare_as(self.owner, name, fields, change)
    }

    pub fn declare_as(
        &self,
        owner: Owner,
        name: &str,
        fields: &[(&str, Value<'_>)],
        change: impl FnOnce(&mut method::QueueDeclare<'_>),
    ) -> Result<Arc<Queue>, Exception> {
        let bytes = table_bytes(fields);
        let mut declare = method::QueueDeclare {
            queue: name,
            durable: true,
            arguments: Table::check(&bytes).unwrap(),
            ..method::QueueDeclare::default()
        };
        change(&mut declare);
        self.host.declare_queue(owner, &declare)
    }

    pub fn bind(&self, queue: &str, exchange: &str, key: &str) {
        let none = Table::default();
        self.host
            .bind_queue(self.owner, queue, exchange, key, none)
            .unwrap();
    }

    pub fn unbind(&self, queue: &str, exchange: &str, key: &str) {
        let none = Table::default();
        self.host
            .unbind_queue(self.owner, queue, exchange, key, none)
            .unwrap();
    }

    /// The names of the queues to which a message is routed.
    pub fn routed(&self, exchange: &str, key: &str) -> Vec<String> {
        let routed = RoutedMessage {
            key,
            ..RoutedMessage::default()
        };
        let route = self.host.route(exchange, &routed).unwrap();
        let mut names: Vec<String> = route.queues.iter().map(|q| q.name.to_string()).collect();
        names.sort();
        names
    }

    pub fn publish(&self, exchange: &str, key: &str, body: &str) {
        self.publish_with(exchange, key, body, &Properties::default(), &[]);
    }

    /// Publishes as a session does.
    pub fn publish_with(
        &self,
        exchange: &str,
        key: &str,
        body: &str,
        properties: &Properties<'_>,
        headers: &[(&str, Value<'_>)],
    ) {
        let all = table_bytes(headers);
        let all = Table::check(&all).unwrap();
        let bcc = all.get("BCC");
        let bcc = bcc.map_or(&[][..], |keys| match keys {
            Value::Array(keys) => keys.bytes(),
            _ => panic!("no array: {keys:?}"),
        });
        let seen = headers.iter().filter(|(name, _)| *name != "BCC").copied();
        let seen = table_bytes(&seen.collect::<Vec<_>>());
        let seen = Table::check(&seen).unwrap();
        let properties = Properties {
            headers: (!seen.is_empty()).then_some(seen),
            ..*properties
        };
        let headers = all;
        let mut raw = Vec::new();
        properties.write(&mut Writer::new(&mut raw));
        let message = Message {
            exchange,
            routing_key: key,
            properties: &raw,
            bcc,
            body: body.as_bytes().into(),
        };
        let route = self
            .host
            .route(exchange, &RoutedMessage { key, headers })
            .unwrap();
        let now_ms = self.clock.now_ms();
        let timestamp_ms = i64::try_from(now_ms).unwrap();
        if route.delays
            && let Some(delay_ms) = delay_ms(headers)
        {
            self.host
                .delay(exchange, &message, delay_ms, timestamp_ms, Durability::Disk)
                .unwrap();
            self.log.step();
            return;
        }
        let expires = properties
            .expiration
            .map(|ms| ms.parse::<u64>().unwrap() + now_ms);
        for queue in route.queues.iter() {
            let mut builder = BatchBuilder::with_capacity(256, timestamp_ms);
            message.push(&mut builder, expires);
            let partition = queue.partition(properties.priority);
            queue
                .topic
                .publish_to(partition, builder.finish(), Durability::Disk)
                .unwrap();
        }
        self.log.step();
        self.log.step();
    }

    /// A consumer with this prefetch.
    pub fn consumer(&self, queue: &Arc<Queue>, window: u32) -> Consumer {
        let options = ConsumerOptions::default();
        let consumer = self.host.consume(self.owner, queue, options).unwrap();
        consumer.set_window(window);
        consumer
    }

    /// Receives and acknowledges all messages of a queue.
    pub fn drain(&self, queue: &Arc<Queue>) -> Vec<Got> {
        let consumer = self.consumer(queue, 1_000);
        let got = receive(&consumer, &queue.name);
        let ids: Vec<MessageId> = got.iter().map(|got| got.id).collect();
        consumer.ack_many(&ids, |_, settled, _| assert!(settled.is_ok()));
        got
    }

    pub fn bodies(&self, queue: &Arc<Queue>) -> Vec<String> {
        self.drain(queue).into_iter().map(|got| got.body).collect()
    }
}

/// Everything that has been delivered to a consumer.
pub fn receive(consumer: &Consumer, queue: &str) -> Vec<Got> {
    let mut deliveries: Vec<Delivery> = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(())) = consumer.poll_deliveries(&mut context, &mut deliveries) {}
    deliveries
        .iter()
        .flat_map(|delivery| unpack(delivery, queue))
        .collect()
}

fn unpack(delivery: &Delivery, queue: &str) -> Vec<Got> {
    let mut records = RecordCursor::at(&delivery.batch, delivery.position);
    let mut got = Vec::new();
    for _ in 0..delivery.count {
        let (offset, record) = records.next_record().unwrap().unwrap();
        let mut scratch = Vec::new();
        let message = Message::read(&record, queue, &mut scratch);
        got.push(Got {
            id: MessageId {
                partition: delivery.partition,
                offset,
            },
            attempts: delivery.attempts,
            exchange: message.exchange.to_owned(),
            key: message.routing_key.to_owned(),
            body: String::from_utf8_lossy(&message.body.to_vec()).into_owned(),
            properties: message.properties.to_vec(),
        });
    }
    got
}

/// Properties of a persistent message.
pub fn persistent() -> Properties<'static> {
    Properties {
        delivery_mode: Some(2),
        ..Properties::default()
    }
}

/// Arguments of a queue that dead-letters into the queue `name`, followed by `more`.
pub fn to_queue(
    name: &'static str,
    more: &[(&'static str, Value<'static>)],
) -> Vec<(&'static str, Value<'static>)> {
    let exchange = ("x-dead-letter-exchange", Value::String(b""));
    let key = ("x-dead-letter-routing-key", Value::String(name.as_bytes()));
    [&[exchange, key][..], more].concat()
}

/// The text of an expected error.
pub fn text<T: std::fmt::Debug>(result: Result<T, Exception>) -> String {
    result.expect_err("an error was expected").to_string()
}

/// SplitMix64: a small random generator with a seed, the same on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
