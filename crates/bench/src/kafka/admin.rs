//! Work before and after a measurement: creates and deletes the topic, and reads the configuration
//! of the broker.

use std::collections::HashMap;
use std::future::Future;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::Client;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::Metadata;
use rdkafka::types::RDKafkaErrorCode;

use crate::driver::{DriverError, Promise};
use crate::plan::{Acks, Plan};
use crate::wait::block_on;

use super::native::Quiet;
use super::{ANSWER, Kafka, Prepared, TOPIC_OPTION};

/// Time limit for a topic to appear or disappear after its creation or deletion.
const SETTLE: Duration = Duration::from_secs(20);
/// Interval between two requests for metadata while that is awaited.
const LOOK: Duration = Duration::from_millis(50);
/// Kafka's value of `flush.messages` and `flush.ms` for "no bound".
const NEVER: &str = "9223372036854775807";

/// The broker's product and version, and its settings that concern durability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Broker {
    pub(super) product: String,
    /// Its version, or the words that it does not report one.
    pub(super) version: String,
    is_cloverleaf: bool,
    /// Durability that Cloverleaf reports for answers to `acks=1` and to `acks=all`.
    classes: [Option<Promise>; 2],
    /// `flush.messages` of the topic.
    flush_messages: Option<String>,
    /// `flush.ms` of the topic.
    flush_ms: Option<String>,
}

/// Cloverleaf syncs each message of a topic before it answers, if the topic's `flush.ms` is shorter
/// than this.
const FLUSH_MS: u64 = 1_000;

impl Broker {
    fn new(
        broker: &HashMap<String, Option<String>>,
        topic: &HashMap<String, Option<String>>,
    ) -> Broker {
        let version = broker.get("cloverleaf.version").cloned().flatten();
        Broker {
            product: match &version {
                Some(_) => "Cloverleaf".to_owned(),
                None => "Kafka broker".to_owned(),
            },
            is_cloverleaf: version.is_some(),
            version: version.unwrap_or_else(|| "(it does not tell its version)".to_owned()),
            classes: ["1", "all"].map(|acks| {
                let name = broker.get(&format!("cloverleaf.durability.acks.{acks}"));
                Promise::named(name?.as_deref()?)
            }),
            flush_messages: topic.get("flush.messages").cloned().flatten(),
            flush_ms: topic.get("flush.ms").cloned().flatten(),
        }
    }

    pub(super) fn promise(&self, acks: Acks) -> Promise {
        let [one, all] = self.classes;
        match (acks, self.flush_messages.as_deref()) {
            (Acks::None, _) => Promise::None,
            _ if self.is_cloverleaf && self.syncs_each() => Promise::Disk,
            (Acks::One, _) if self.is_cloverleaf => one.unwrap_or(Promise::Configured),
            (Acks::All, _) if self.is_cloverleaf => all.unwrap_or(Promise::Configured),
            (_, Some("1")) => Promise::Disk,
            (_, Some(NEVER)) => Promise::Kernel,
            _ => Promise::Configured,
        }
    }

    /// Whether Cloverleaf syncs each message of the topic. Any `flush.messages` but [`NEVER`] has
    /// this effect, and so has a `flush.ms` below [`FLUSH_MS`].
    fn syncs_each(&self) -> bool {
        let is_short = |ms: &str| ms.parse().is_ok_and(|ms: u64| ms < FLUSH_MS);
        self.flush_messages.as_deref().is_some_and(|it| it != NEVER)
            || self.flush_ms.as_deref().is_some_and(is_short)
    }
}

type Admin = AdminClient<Quiet>;

impl Kafka {
    /// Creates the topic, or uses an existing one as it is.
    pub(super) fn make(&self, plan: &Plan) -> Result<Prepared, DriverError> {
        let admin = self.admin()?;
        let there = self.partitions(admin.inner(), plan)?;
        let is_ours = there == 0 && self.create(&admin, plan)?;
        if !is_ours {
            let there = self.settled(admin.inner(), plan, |count| count > 0)?;
            if there != plan.partitions.max(1) {
                return Err(self.url.refused(format!(
                    "the topic \"{}\" is there already with {there} partitions, and {} are wanted",
                    plan.topic, plan.partitions
                )));
            }
        }
        let starts = if is_ours {
            vec![0; plan.partitions.max(1) as usize]
        } else {
            self.ends_by(admin.inner(), plan)?
        };
        Ok(Prepared {
            is_ours,
            starts,
            broker: Some(self.look(&admin, plan)),
        })
    }

    /// The current end offset of each partition.
    pub(super) fn ends(&self, plan: &Plan) -> Result<Vec<i64>, DriverError> {
        let admin = self.admin()?;
        self.ends_by(admin.inner(), plan)
    }

    /// Metadata of all topics and brokers.
    pub(super) fn metadata(&self) -> Result<Metadata, DriverError> {
        let metadata = self.admin()?.inner().fetch_metadata(None, ANSWER);
        metadata.map_err(|error| self.silent(&error))
    }

    fn ends_by(&self, client: &Client<Quiet>, plan: &Plan) -> Result<Vec<i64>, DriverError> {
        let each = (0..plan.partitions.max(1)).map(|partition| {
            let partition = i32::try_from(partition).unwrap_or(i32::MAX);
            client.fetch_watermarks(&plan.topic, partition, ANSWER)
        });
        let ends = each.map(|ends| ends.map(|(_, end)| end));
        let ends: KafkaResult<Vec<i64>> = ends.collect();
        ends.map_err(|error| self.url.refused(error))
    }

    /// Deletes the topic, and waits until it is gone, so that it can be created again.
    pub(super) fn remove(&self, plan: &Plan) -> Result<(), DriverError> {
        self.reach()?;
        let admin = self.admin()?;
        let options = AdminOptions::new().operation_timeout(Some(ANSWER));
        let results = self.wait(admin.delete_topics(&[&plan.topic], &options))?;
        for result in results {
            match result {
                Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
                Err((topic, code)) => {
                    let words = format!("the topic \"{topic}\" cannot be deleted: {code}");
                    return Err(self.url.refused(words));
                }
            }
        }
        self.settled(admin.inner(), plan, |count| count == 0)?;
        Ok(())
    }

    fn admin(&self) -> Result<Admin, DriverError> {
        let admin = self.config().create_with_context(Quiet);
        admin.map_err(|error| self.unsupported(&error))
    }

    /// Creates the topic. Returns `false` if another client has created it in the meantime.
    fn create(&self, admin: &Admin, plan: &Plan) -> Result<bool, DriverError> {
        let replicas = self.url.option("replication").map(str::parse).transpose();
        let replicas = replicas.map_err(|_| DriverError::Unsupported {
            what: "?replication= is the number of a topic's replicas".to_owned(),
        })?;
        let partitions = i32::try_from(plan.partitions.max(1)).unwrap_or(i32::MAX);
        // -1: the broker's default.
        let replication = TopicReplication::Fixed(replicas.unwrap_or(-1));
        let mut topic = NewTopic::new(&plan.topic, partitions, replication);
        for name in self.url.option_names() {
            if let Some((key, value)) = name.strip_prefix(TOPIC_OPTION).zip(self.url.option(name)) {
                topic = topic.set(key, value);
            }
        }
        let options = AdminOptions::new().operation_timeout(Some(ANSWER));
        let end = Instant::now() + SETTLE;
        loop {
            let results = self.wait(admin.create_topics([&topic], &options))?;
            match results.into_iter().next() {
                None | Some(Ok(_)) => {
                    let wanted = plan.partitions.max(1);
                    self.settled(admin.inner(), plan, |count| count == wanted)?;
                    return Ok(true);
                }
                Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => {
                    if self.partitions(admin.inner(), plan)? > 0 {
                        return Ok(false);
                    }
                    // The existing topic has no partition with a leader: it is being deleted.
                    if Instant::now() > end {
                        let words = format!("the topic \"{}\" is being deleted", plan.topic);
                        return Err(self.url.refused(words));
                    }
                    thread::sleep(LOOK);
                }
                Some(Err((topic, code))) => {
                    let words = format!("the topic \"{topic}\" cannot be made: {code}");
                    return Err(self.url.refused(words));
                }
            }
        }
    }

    /// The number of partitions of the topic that have a leader; 0: the topic does not exist. The
    /// request is for all topics, because a request by name may create the topic.
    fn partitions(&self, client: &Client<Quiet>, plan: &Plan) -> Result<u32, DriverError> {
        let metadata = client.fetch_metadata(None, ANSWER);
        let metadata = metadata.map_err(|error| self.silent(&error))?;
        let mut topics = metadata.topics().iter();
        let found = topics.find(|topic| topic.name() == plan.topic && topic.error().is_none());
        let count = found.map_or(0, |topic| {
            let led = topic.partitions().iter().filter(|it| it.leader() >= 0);
            led.count()
        });
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Waits until the topic's number of partitions is an expected one, and returns the number.
    fn settled(
        &self,
        client: &Client<Quiet>,
        plan: &Plan,
        is_it: impl Fn(u32) -> bool,
    ) -> Result<u32, DriverError> {
        let end = Instant::now() + SETTLE;
        loop {
            let count = self.partitions(client, plan)?;
            if is_it(count) {
                return Ok(count);
            }
            if Instant::now() > end {
                return Err(self.url.refused(format!(
                    "the topic \"{}\" still has {count} partitions with a leader after {} s",
                    plan.topic,
                    SETTLE.as_secs()
                )));
            }
            thread::sleep(LOOK);
        }
    }

    /// Reads the configurations of the broker and of the topic. A broker that does not answer the
    /// request is measured all the same.
    fn look(&self, admin: &Admin, plan: &Plan) -> Broker {
        let options = AdminOptions::new();
        let describe = |resource: ResourceSpecifier<'_>| {
            let asked = admin.describe_configs([&resource], &options);
            let answer = self.wait(asked).ok()?;
            Some(entries(answer.into_iter().next()?.ok()?))
        };
        let topic = describe(ResourceSpecifier::Topic(&plan.topic)).unwrap_or_default();
        let metadata = admin.inner().fetch_metadata(None, ANSWER).ok();
        let number = metadata.and_then(|metadata| Some(metadata.brokers().first()?.id()));
        let broker = number.and_then(|number| describe(ResourceSpecifier::Broker(number)));
        Broker::new(&broker.unwrap_or_default(), &topic)
    }

    fn wait<T>(&self, asked: impl Future<Output = KafkaResult<T>>) -> Result<T, DriverError> {
        match block_on(asked, 2 * ANSWER) {
            Some(answer) => answer.map_err(|error| self.silent(&error)),
            None => Err(self.url.unreachable("no answer")),
        }
    }

    /// The error of a broker that accepts connections but does not answer as expected.
    fn silent(&self, error: &KafkaError) -> DriverError {
        use RDKafkaErrorCode as Code;
        let words = match error.rdkafka_error_code() {
            Some(Code::BrokerTransportFailure | Code::OperationTimedOut | Code::AllBrokersDown)
                if self.url.user.is_some() =>
            {
                "it does not answer as a Kafka broker with SASL and this password would"
            }
            Some(Code::BrokerTransportFailure | Code::OperationTimedOut | Code::AllBrokersDown) => {
                "something listens there, but it does not answer as a Kafka broker would"
            }
            _ => return self.url.refused(error),
        };
        self.url.unreachable(words)
    }
}

fn entries(resource: ConfigResource) -> HashMap<String, Option<String>> {
    let entries = resource.entries.into_iter();
    entries.map(|entry| (entry.name, entry.value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(each: &[(&str, &str)]) -> HashMap<String, Option<String>> {
        let each = each.iter();
        each.map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned())))
            .collect()
    }

    /// A Cloverleaf that reports these durabilities for `acks=1` and `acks=all`.
    fn cloverleaf(one: &str, all: &str, topic: &[(&str, &str)]) -> Broker {
        let broker = settings(&[
            ("cloverleaf.version", "0.1.0"),
            ("cloverleaf.durability.acks.1", one),
            ("cloverleaf.durability.acks.all", all),
        ]);
        Broker::new(&broker, &settings(topic))
    }

    #[test]
    fn a_promise_is_what_the_broker_says() {
        let never = [("flush.messages", NEVER), ("flush.ms", NEVER)];
        let each_ms = [("flush.messages", NEVER), ("flush.ms", "5")];
        let (one, all) = (Acks::One, Acks::All);
        use Promise::{Configured, Disk, Kernel};
        for (broker, acks, expected) in [
            (cloverleaf("kernel", "disk", &never), all, Disk),
            (cloverleaf("kernel", "disk", &never), one, Kernel),
            (
                cloverleaf("kernel", "disk", &never),
                Acks::None,
                Promise::None,
            ),
            (cloverleaf("kernel", "kernel", &never), all, Kernel),
            (cloverleaf("disk", "disk", &never), one, Disk),
            // The topic's own settings override the broker's.
            (cloverleaf("kernel", "kernel", &each_ms), one, Disk),
            (
                cloverleaf("kernel", "kernel", &[("flush.messages", "9")]),
                one,
                Disk,
            ),
            // The name of a durability that this version does not know.
            (cloverleaf("kernel", "moon", &never), all, Configured),
        ] {
            assert_eq!(broker.promise(acks), expected, "{broker:?} {acks:?}");
        }
        let another = |topic: &[(&str, &str)]| Broker::new(&HashMap::new(), &settings(topic));
        assert_eq!(another(&never).promise(all), Kernel);
        assert_eq!(another(&[("flush.messages", "1")]).promise(one), Disk);
        assert_eq!(another(&[("flush.messages", "9")]).promise(all), Configured);
        assert_eq!(another(&[]).promise(all), Configured);
    }
}
