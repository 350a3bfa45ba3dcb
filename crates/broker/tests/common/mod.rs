//! A broker on a simulated disk with a clock that the test advances: no threads, sockets or sleeps.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cloverleaf_broker::{
    Broker, BrokerOptions, Clock, Consumer, ConsumerOptions, Delivery, ManualClock, MessageId,
    MessageRange, Partition, PublishError, Published, Subscription, SubscriptionOptions, Topic,
    TopicOptions,
};
use cloverleaf_log::{
    Batch, BatchBuilder, Disk, Durability, FaultyDisk, Log, LogOptions, Offset, Read, RecordCursor,
    SimDisk,
};

/// A broker that can be killed and restarted.
pub struct World {
    pub disk: SimDisk,
    pub clock: Arc<ManualClock>,
    pub options: BrokerOptions,
    pub log_options: LogOptions,
    pub log: Log,
    pub broker: Broker,
}

/// The offset after the last message that a reader can read.
pub fn reached(log: &Partition) -> Offset {
    let mut at = log.start_offset();
    loop {
        let batches = match log.read(at, 1 << 20) {
            Read::Batches(batches) => batches,
            Read::End => return at,
            Read::Cold(read) => read.run().unwrap(),
        };
        match batches.last() {
            Some(batch) => at = batch.end_offset(),
            None => return at,
        }
    }
}

/// SplitMix64: small, seeded, the same on every machine.
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

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A message that a consumer has received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMessage {
    pub id: MessageId,
    pub body: String,
    pub attempts: u16,
    pub redelivered: bool,
    pub headers: Vec<(String, String)>,
}

impl World {
    pub fn new() -> Self {
        Self::with(BrokerOptions::default())
    }

    pub fn with(options: BrokerOptions) -> Self {
        Self::with_log(options, log_options())
    }

    /// As [`Self::with`]. The test steps the log by hand, and its disk is never full, whatever
    /// `log_options` says.
    pub fn with_log(options: BrokerOptions, log_options: LogOptions) -> Self {
        let disk = SimDisk::new();
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let (log, broker) = open_on(disk.mount(), &clock, &options, &log_options).unwrap();
        Self {
            disk,
            clock,
            options,
            log_options,
            log,
            broker,
        }
    }

    /// Opens a broker on the disk as it is. `Err`: the error's text.
    pub fn reopen(&mut self) -> Result<(), String> {
        let disk = self.disk.mount();
        (self.log, self.broker) = open_on(disk, &self.clock, &self.options, &self.log_options)?;
        Ok(())
    }

    /// Simulates `kill -9`: the kernel keeps everything that was written.
    pub fn kill_and_restart(&mut self) {
        self.disk.kill();
        self.reopen().unwrap();
    }

    /// Shuts the broker down in order and starts it again.
    pub fn restart(&mut self) {
        self.broker.close();
        self.log.close();
        self.disk.kill();
        self.reopen().unwrap();
    }

    /// As [`Self::kill_and_restart`], with an empty page cache: each read of older messages must
    /// wait for the disk.
    pub fn restart_uncached(&mut self) -> Arc<FaultyDisk> {
        self.disk.kill();
        let faulty = FaultyDisk::new(self.disk.mount());
        faulty.set(|faults| faults.uncached = true);
        let opened = open_on(
            faulty.clone(),
            &self.clock,
            &self.options,
            &self.log_options,
        );
        (self.log, self.broker) = opened.unwrap();
        faulty
    }

    /// Simulates a power loss: any part of what was not synced may be lost.
    pub fn lose_power_and_restart(&mut self, seed: u64) {
        self.disk.power_loss(seed);
        self.reopen().unwrap();
    }

    /// Lets the log and the housekeeping do everything that is due.
    pub fn settle(&self) {
        for _ in 0..4 {
            self.log.step();
            self.broker.tick();
        }
    }

    pub fn advance(&self, ms: u64) {
        self.clock.advance(ms);
        self.settle();
    }

    pub fn topic(&self, name: &str) -> Arc<Topic> {
        self.broker
            .topic_or_create(name, TopicOptions::default)
            .unwrap()
    }

    pub fn subscription(&self, topic: &str, name: &str) -> Arc<Subscription> {
        self.subscription_with(topic, name, SubscriptionOptions::default())
    }

    pub fn subscription_with(
        &self,
        topic: &str,
        name: &str,
        options: SubscriptionOptions,
    ) -> Arc<Subscription> {
        self.topic(topic)
            .subscription_or_create(name, || options)
            .unwrap()
    }

    pub fn publish(&self, topic: &str, bodies: &[&str]) {
        let published = self
            .topic(topic)
            .publish(self.batch(bodies), Durability::Kernel)
            .unwrap();
        self.log.step();
        assert!(matches!(poll(published), Some(Ok(()))));
    }

    pub fn batch(&self, bodies: &[&str]) -> Batch {
        let now_ms = i64::try_from(self.clock.now_ms()).unwrap();
        let mut builder = BatchBuilder::with_capacity(1024, now_ms);
        for body in bodies {
            builder.push(None, Some(body.as_bytes()), &[]);
        }
        builder.finish()
    }

    pub fn publish_with_header(&self, topic: &str, body: &str, name: &[u8], value: &[u8]) {
        let now_ms = i64::try_from(self.clock.now_ms()).unwrap();
        let mut builder = BatchBuilder::with_capacity(1024, now_ms);
        builder.push(None, Some(body.as_bytes()), &[(name, Some(value))]);
        self.topic(topic)
            .publish(builder.finish(), Durability::Kernel)
            .unwrap();
        self.log.step();
    }
}

/// Opens a broker on the disk as it is. `Err`: the error's text.
pub fn try_open(
    disk: &SimDisk,
    clock: &Arc<ManualClock>,
    options: &BrokerOptions,
) -> Result<(Log, Broker), String> {
    open_on(disk.mount(), clock, options, &log_options())
}

fn log_options() -> LogOptions {
    LogOptions {
        journal_bytes: 64 << 10,
        ..LogOptions::default()
    }
}

fn open_on(
    disk: Arc<dyn Disk>,
    clock: &Arc<ManualClock>,
    options: &BrokerOptions,
    log_options: &LogOptions,
) -> Result<(Log, Broker), String> {
    let log_options = LogOptions {
        manual: true,
        disk_free_bytes_min: 0,
        repair: options.repair,
        ..log_options.clone()
    };
    let (log, recovery) = Log::open(disk, log_options).map_err(|error| error.to_string())?;
    let broker = Broker::open(log.clone(), recovery, options.clone(), clock.clone());
    let broker = broker.map_err(|error| {
        log.close();
        error.to_string()
    })?;
    Ok((log, broker))
}

/// Polls once. `None`: pending.
pub fn poll(mut published: Published) -> Option<Result<(), PublishError>> {
    match Pin::new(&mut published).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Attaches a consumer with a window.
pub fn consumer(subscription: &Arc<Subscription>, window: u32) -> Consumer {
    consumer_with(subscription, window, ConsumerOptions::default())
}

pub fn consumer_with(
    subscription: &Arc<Subscription>,
    window: u32,
    options: ConsumerOptions,
) -> Consumer {
    let consumer = subscription.attach(options).unwrap();
    consumer.set_window(window);
    consumer
}

/// Everything that was delivered to a consumer. `None`: the subscription was deleted.
pub fn receive(consumer: &Consumer) -> Option<Vec<ReceivedMessage>> {
    let mut deliveries: Vec<Delivery> = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match consumer.poll_deliveries(&mut context, &mut deliveries) {
            Poll::Ready(Some(())) => {}
            Poll::Ready(None) => return None,
            Poll::Pending => break,
        }
    }
    Some(deliveries.iter().flat_map(unpack).collect())
}

fn unpack(delivery: &Delivery) -> Vec<ReceivedMessage> {
    let mut records = RecordCursor::at(&delivery.batch, delivery.position);
    let mut got = Vec::new();
    for _ in 0..delivery.count {
        let (offset, record) = records.next_record().unwrap().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        got.push(ReceivedMessage {
            id: MessageId {
                partition: delivery.partition,
                offset,
            },
            body: text(record.value.unwrap()),
            attempts: delivery.attempts,
            redelivered: delivery.redelivered,
            headers: record
                .headers
                .clone()
                .map(|(name, value)| (text(name), text(value.unwrap_or_default())))
                .collect(),
        });
    }
    assert_eq!(got[0].id.offset, delivery.first);
    got
}

pub fn bodies(consumer: &Consumer) -> Vec<String> {
    receive(consumer)
        .unwrap()
        .into_iter()
        .map(|got| got.body)
        .collect()
}

/// The result of one `poll_take`; `None` if pending.
pub fn take(consumer: &Consumer) -> Option<Option<ReceivedMessage>> {
    match consumer.poll_take(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(delivery)) => {
            let mut got = unpack(&delivery);
            assert_eq!(got.len(), 1);
            Some(got.pop())
        }
        Poll::Ready(None) => Some(None),
        Poll::Pending => None,
    }
}

/// The body of one pulled message, if one was ready.
pub fn take_body(consumer: &Consumer) -> Option<String> {
    let taken = take(consumer).expect("it should not have to wait");
    taken.map(|got| got.body)
}

pub fn range(first: u64, count: u32) -> MessageRange {
    MessageRange {
        partition: 0,
        first,
        count,
    }
}

pub fn ack_all(consumer: &Consumer, got: &[ReceivedMessage]) {
    let ids: Vec<MessageId> = got.iter().map(|got| got.id).collect();
    consumer.ack_many(&ids, |_, result, _| assert!(result.is_ok()));
}
