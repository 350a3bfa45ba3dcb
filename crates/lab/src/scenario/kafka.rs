//! Programs with librdkafka: producers, and a consumer group that reads what they send.

use std::future;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer, PurgeConfig};
use tokio::runtime::Builder;

use super::{AppliedChange, ClientContext};
use crate::broker::BrokerListener;

/// The name that librdkafka gives itself, whatever library is built on it.
pub(super) const LIBRARY: &str = "librdkafka";

/// How long the broker may take to create a topic.
const ANSWER: Duration = Duration::from_secs(30);

/// How often an idle producer checks whether the scenario is over.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Settings of librdkafka.
pub(super) type Settings = &'static [(&'static str, &'static str)];

/// A program, and its mistake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KafkaProgram {
    /// Settings of the producers, or of the consumers where there are some.
    pub(super) settings: Settings,
    /// Settings that the change removes.
    pub(super) mistaken: Settings,
    /// The part of the program that the change alters.
    pub(super) change: AlteredPart,
    pub(super) pace: Pace,
    pub(super) payload: Payload,
    pub(super) partitions: usize,
    /// Members of the consumer group. If there are any, the meter counts what they consume;
    /// otherwise it counts what is sent.
    pub(super) members: usize,
    /// The time of a member's work on a message, in milliseconds.
    pub(super) job_ms: u64,
}

/// The part of a program that a change alters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum AlteredPart {
    /// The setting of librdkafka that the change names.
    Setting,
    /// How many messages are awaited at a time.
    Awaited,
    /// How many producers share the messages.
    Producers,
    /// How many partitions the topic has.
    Partitions,
}

/// When messages are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Pace {
    /// This many are in flight, and the next one follows an answer.
    Awaited(usize),
    /// This many at once, and milliseconds until the next ones; no answer is awaited.
    Every(usize, u64),
    /// As many as the library's queue takes. A message that times out is no error.
    AsTaken,
}

/// The bytes of a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Payload {
    /// This many equal bytes.
    Same(usize),
    /// About 2,000 bytes of JSON, with the same field names in each message and other values.
    Text,
    /// 1,000 random bytes, which do not compress.
    Random,
}

impl KafkaProgram {
    /// A producer that sends this and makes no mistake.
    pub(super) const fn sending(pace: Pace, payload: Payload) -> KafkaProgram {
        KafkaProgram {
            settings: &[],
            mistaken: &[],
            change: AlteredPart::Setting,
            pace,
            payload,
            partitions: 1,
            members: 0,
            job_ms: 0,
        }
    }

    /// Runs until the scenario is over or something fails.
    pub(super) fn run(
        &self,
        context: &ClientContext,
        change: Option<&AppliedChange>,
    ) -> Result<(), String> {
        let (mut program, mut producers) = (*self, 1);
        if let Some(change) = change {
            match self.change {
                AlteredPart::Setting => {}
                AlteredPart::Awaited => program.pace = Pace::Awaited(change.number()?),
                AlteredPart::Producers => producers = change.number()?,
                AlteredPart::Partitions => program.partitions = change.number()?,
            }
        }
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.map_err(text)?.block_on(async {
            create_topic(context, program.partitions).await?;
            let config = self.producer_config(context, change);
            let producers = (0..producers).map(|_| config.create().map_err(text));
            let producers = producers.collect::<Result<Vec<FutureProducer>, _>>()?;
            let members: FuturesUnordered<_> =
                (0..self.members).map(|_| self.consume(context)).collect();
            let members = async {
                if members.is_empty() {
                    future::pending::<()>().await;
                }
                let ended: Vec<Result<(), String>> = members.collect().await;
                ended.into_iter().collect()
            };
            tokio::select! {
                outcome = program.send(context, &producers) => outcome,
                outcome = members => outcome,
            }
        })
    }

    fn producer_config(
        &self,
        context: &ClientContext,
        change: Option<&AppliedChange>,
    ) -> ClientConfig {
        let mut config = config(context);
        if self.members == 0 {
            set(&mut config, self.settings);
        }
        match change {
            None => set(&mut config, self.mistaken),
            Some(AppliedChange {
                setting,
                value: Some(value),
            }) if self.change == AlteredPart::Setting => {
                config.set(setting, value);
            }
            Some(_) => {}
        }
        config
    }

    /// Sends messages at the program's pace, and handles answers meanwhile.
    async fn send(
        &self,
        context: &ClientContext,
        producers: &[FutureProducer],
    ) -> Result<(), String> {
        // Messages that are handed over before answers are handled, and messages in flight.
        let (count, window) = match self.pace {
            Pace::Every(count, _) => (count, usize::MAX),
            Pace::AsTaken => (100, usize::MAX),
            Pace::Awaited(count) => (count, count),
        };
        let mut ticks = match self.pace {
            Pace::Every(_, ms) => Some(tokio::time::interval(Duration::from_millis(ms))),
            Pace::AsTaken | Pace::Awaited(_) => None,
        };
        let mut answers = FuturesUnordered::new();
        let mut numbers = 0_usize..;
        let mut is_full = false;
        'all: loop {
            // Answers that are there are handled before the next messages are sent. The end of the
            // scenario is noticed with each answer, and after `POLL_INTERVAL` at the latest.
            loop {
                let has_no_room = is_full || answers.len() >= window;
                let due = async {
                    match &mut ticks {
                        Some(ticks) => drop(ticks.tick().await),
                        None if has_no_room => future::pending().await,
                        None => {}
                    }
                };
                tokio::select! {
                    biased;
                    Some((begun, answer)) = answers.next(), if !answers.is_empty() => {
                        is_full = false;
                        self.answered(context, begun, answer)?;
                    }
                    () = due => break,
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
                if !context.is_running() {
                    break 'all;
                }
            }
            if !context.is_running() {
                break;
            }
            for number in numbers.by_ref().take(count.min(window - answers.len())) {
                let payload = self.payload.bytes(number);
                // Keys spread the messages over the partitions that the members share.
                let key = (self.members > 0).then(|| number.to_string());
                let mut record = FutureRecord::to(&context.name).payload(&payload);
                record.key = key.as_ref();
                match producers[number % producers.len()].send_result(record) {
                    Ok(sent) => {
                        let begun = Instant::now();
                        answers.push(sent.map(move |answer| (begun, answer)));
                    }
                    Err((error, _)) if self.pace == Pace::AsTaken && is(&error, QUEUE_FULL) => {
                        is_full = true;
                        break;
                    }
                    Err((error, _)) => return Err(text(error)),
                }
            }
        }
        // The producers do not send at their end what is still queued.
        let all = || PurgeConfig::default().queue().inflight();
        producers.iter().for_each(|it| it.purge(all()));
        Ok(())
    }

    fn answered(
        &self,
        context: &ClientContext,
        begun: Instant,
        answer: Result<rdkafka::producer::future_producer::OwnedDeliveryResult, impl Sized>,
    ) -> Result<(), String> {
        match answer.map_err(|_| "the producer has ended".to_owned())? {
            Ok(_) if self.members > 0 => Ok(()),
            Ok(_) => {
                context.meter.done(begun.elapsed());
                Ok(())
            }
            Err((error, _)) if self.pace == Pace::AsTaken && is(&error, TIMED_OUT) => Ok(()),
            Err((error, _)) => Err(text(error)),
        }
    }

    /// A member of the group.
    async fn consume(&self, context: &ClientContext) -> Result<(), String> {
        let mut config = config(context);
        config
            .set("group.id", &context.name)
            .set("auto.offset.reset", "earliest");
        set(&mut config, self.settings);
        let consumer: StreamConsumer = config.create().map_err(text)?;
        consumer.subscribe(&[&context.name]).map_err(text)?;
        let mut messages = consumer.stream();
        while let Some(message) = messages.next().await {
            let begun = Instant::now();
            message.map_err(text)?;
            if self.job_ms > 0 {
                tokio::time::sleep(Duration::from_millis(self.job_ms)).await;
            }
            context.meter.done(begun.elapsed());
        }
        Ok(())
    }
}

impl Payload {
    /// The bytes of the message with this number.
    fn bytes(self, number: usize) -> Vec<u8> {
        let mut random = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        match self {
            Payload::Same(count) => vec![b'x'; count],
            Payload::Random => (0..1_000).map(|_| next() as u8).collect(),
            Payload::Text => {
                let mut text = String::with_capacity(2_200);
                while text.len() < 2_000 {
                    let value = next();
                    text.push_str(&format!(
                        "{{\"order\":{number},\"customer\":\"c-{:06}\",\"item\":\"{:08x}\",\
                         \"amount\":{}.{:02},\"currency\":\"EUR\",\"state\":\"{}\",\
                         \"warehouse\":\"north-{}\"}}\n",
                        value % 1_000_000,
                        (value >> 20) as u32,
                        value % 500,
                        (value >> 8) % 100,
                        ["new", "paid", "packed", "shipped"][(value >> 30) as usize % 4],
                        (value >> 40) % 12,
                    ));
                }
                text.into_bytes()
            }
        }
    }
}

const QUEUE_FULL: RDKafkaErrorCode = RDKafkaErrorCode::QueueFull;
const TIMED_OUT: RDKafkaErrorCode = RDKafkaErrorCode::MessageTimedOut;

fn is(error: &KafkaError, code: RDKafkaErrorCode) -> bool {
    matches!(error, KafkaError::MessageProduction(it) if *it == code)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

fn set(config: &mut ClientConfig, settings: Settings) {
    for (name, value) in settings {
        config.set(*name, *value);
    }
}

/// A configuration with the broker's address and the client's name.
fn config(context: &ClientContext) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set(
            "bootstrap.servers",
            context.addresses.text(BrokerListener::Kafka),
        )
        .set("client.id", format!("lab-{}", context.name));
    config
}

/// Makes the client's topic.
async fn create_topic(context: &ClientContext, partitions: usize) -> Result<(), String> {
    let admin: AdminClient<DefaultClientContext> = config(context).create().map_err(text)?;
    let partitions = i32::try_from(partitions).map_err(text)?;
    let topic = NewTopic::new(&context.name, partitions, TopicReplication::Fixed(1));
    let options = AdminOptions::new().operation_timeout(Some(ANSWER));
    let created = admin.create_topics([&topic], &options).await;
    for one in created.map_err(text)? {
        one.map_err(|(name, error)| format!("{name}: {error}"))?;
    }
    Ok(())
}
