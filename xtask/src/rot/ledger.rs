//! Messages stored and acknowledged before the damage, and those that are there after it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use super::wire::{Amqp, Kafka, Producer, batch, batches};
use crate::broker::Broker;
use crate::nsq;

/// The topics: one per protocol.
pub(super) const TAGS: [&str; 3] = ["nsq", "kafka", "amqp"];
const KAFKA_PARTITIONS: u32 = 2;
const CHANNEL: &str = "channel";
/// Bytes of a body: some forty messages fill a segment of the smallest size.
const BODY_BYTES: usize = 1_500;
/// Messages in a batch of NSQ and Kafka.
const BATCH: u64 = 5;

/// A message that is owed: topic, partition, offset. In NSQ's and AMQP's topics, with their one
/// partition, the offset is the message's number.
pub(super) type Kept = (String, u32, u64);

/// The messages that the broker owes.
#[derive(Clone, Default)]
pub(super) struct Ledger {
    pub(super) owed: BTreeSet<Kept>,
    /// How many were published to each partition.
    published: u64,
    producer: i64,
}

impl Ledger {
    /// Declares all there is.
    pub(super) fn declare(&mut self, broker: &Broker) -> Result<()> {
        broker.create("nsq", CHANNEL)?;
        let mut kafka = Kafka::open(broker.kafka())?;
        kafka.create_topic("kafka", KAFKA_PARTITIONS as i32)?;
        self.producer = kafka.producer()?.id;
        Amqp::open(broker.amqp())?.declare("amqp")
    }

    /// Publishes so many messages to each partition; all of them are acknowledged.
    pub(super) fn publish(&mut self, broker: &Broker, count: u64) -> Result<()> {
        let numbers = self.published..self.published + count;
        let firsts = numbers.clone().step_by(BATCH as usize);
        let batched = firsts.map(|first| first..numbers.end.min(first + BATCH));
        let mut nsq = nsq::Connection::open(broker.tcp())?;
        let mut kafka = Kafka::open(broker.kafka())?;
        let producer = Producer { id: self.producer };
        for batched in batched {
            let bodies = |tag| batched.clone().map(|number| body(tag, number)).collect();
            let bodies_of_nsq: Vec<Vec<u8>> = bodies("nsq");
            nsq.ask(&nsq::multi_publish_command("nsq", &bodies_of_nsq))?;
            let bodies: Vec<Vec<u8>> = bodies("kafka");
            let sequence = i32::try_from(batched.start)?;
            for partition in 0..KAFKA_PARTITIONS {
                let batch = batch(&producer, sequence, &bodies);
                kafka.produce("kafka", partition as i32, &batch)?;
            }
        }
        let mut amqp = Amqp::open(broker.amqp())?;
        for number in numbers.clone() {
            amqp.publish("amqp", &body("amqp", number))?;
        }
        self.published = numbers.end;
        for number in numbers {
            let partitions = [("nsq", 0), ("amqp", 0), ("kafka", 0), ("kafka", 1)];
            let kept = partitions.map(|(tag, partition)| (tag.to_owned(), partition, number));
            self.owed.extend(kept);
        }
        Ok(())
    }

    /// Consumes so many messages of the queues.
    pub(super) fn consume(&mut self, broker: &Broker, count: u64) -> Result<()> {
        let mut nsq = nsq::Connection::consumer(broker.tcp(), "nsq", CHANNEL, 1)?;
        let mut amqp = Amqp::open(broker.amqp())?;
        for _ in 0..count {
            let message = nsq.message()?;
            nsq.finish(&message.id)?;
            self.owed
                .remove(&("nsq".to_owned(), 0, number("nsq", &message.body)?));
            let message = amqp.get("amqp")?.context("the queue is empty")?;
            self.owed
                .remove(&("amqp".to_owned(), 0, number("amqp", &message)?));
        }
        // Its answer comes once what was finished before it is.
        nsq.send(b"CLS\n")?;
        while !matches!(nsq.frame()?, nsq::Frame::Response(data) if data == b"CLOSE_WAIT") {}
        Ok(())
    }

    /// The owed messages that are not there. Each protocol publishes a new message first, which
    /// comes behind all others and ends the reading; one that was never published is an error.
    pub(super) fn missing(&self, broker: &Broker) -> Result<BTreeSet<Kept>> {
        let mut found = BTreeSet::new();
        self.nsq(broker, &mut found).context("NSQ")?;
        self.amqp(broker, &mut found).context("AMQP")?;
        self.kafka(broker, &mut found).context("Kafka")?;
        Ok(self.owed.difference(&found).cloned().collect())
    }

    fn nsq(&self, broker: &Broker, found: &mut BTreeSet<Kept>) -> Result<()> {
        let mut publisher = nsq::Connection::open(broker.tcp())?;
        publisher.publish("nsq", &body("nsq", u64::MAX))?;
        let mut consumer = nsq::Connection::consumer(broker.tcp(), "nsq", CHANNEL, 100)?;
        loop {
            let message = consumer.message()?;
            consumer.finish(&message.id)?;
            match number("nsq", &message.body)? {
                u64::MAX => return Ok(()),
                number => self.note(("nsq", 0, number), found)?,
            }
        }
    }

    fn amqp(&self, broker: &Broker, found: &mut BTreeSet<Kept>) -> Result<()> {
        let mut amqp = Amqp::open(broker.amqp())?;
        amqp.publish("amqp", &body("amqp", u64::MAX))?;
        loop {
            let message = amqp.get("amqp")?.context("the newest message is gone")?;
            match number("amqp", &message)? {
                u64::MAX => return Ok(()),
                number => self.note(("amqp", 0, number), found)?,
            }
        }
    }

    fn kafka(&self, broker: &Broker, found: &mut BTreeSet<Kept>) -> Result<()> {
        let mut kafka = Kafka::open(broker.kafka())?;
        for partition in 0..KAFKA_PARTITIONS {
            let producer = kafka.producer()?;
            let newest = batch(&producer, 0, &[body("kafka", u64::MAX)]);
            let newest = kafka.produce("kafka", partition as i32, &newest)?;
            ensure!(
                newest >= self.published,
                "offset {newest} was given away again"
            );
            let all = kafka.fetch_all("kafka", partition as i32)?;
            let (mut next, mut last) = (0, None);
            for batch in batches(&all) {
                ensure!(batch.base >= next, "offset {} comes again", batch.base);
                next = batch.end;
                last = Some(batch.base);
                for offset in (batch.base..batch.end).filter(|offset| *offset != newest) {
                    self.note(("kafka", partition, offset), found)?;
                }
            }
            ensure!(
                last == Some(newest),
                "the newest message is not the last one"
            );
        }
        Ok(())
    }

    fn note(
        &self,
        (tag, partition, number): (&str, u32, u64),
        into: &mut BTreeSet<Kept>,
    ) -> Result<()> {
        ensure!(
            number < self.published,
            "message {number} of {tag} was invented"
        );
        into.insert((tag.to_owned(), partition, number));
        Ok(())
    }
}

fn body(tag: &str, number: u64) -> Vec<u8> {
    let mut body = format!("{tag} message {number} ").into_bytes();
    body.resize(BODY_BYTES, b'.');
    body
}

fn number(tag: &str, body: &[u8]) -> Result<u64> {
    let text = String::from_utf8_lossy(body);
    let number = text.strip_prefix(&format!("{tag} message "));
    let number = number.and_then(|rest| rest.split(' ').next()?.parse().ok());
    number.with_context(|| format!("a message of {tag} that was never published: {text}"))
}
