//! The client for Kafka: librdkafka, on which most Kafka clients outside the Java world are built.
//!
//! A plan in Kafka's terms: the batch size is `batch.num.messages`, and `linger.ms` is the
//! library's default of 5 ms. It is 0 if waiting cannot fill a batch, because a batch has one
//! message or because a batch is as large as the maximum in flight. The maximum in flight bounds
//! the messages in the library's queue. Options of the URL override the plan, by the library's
//! names: `kafka://host?linger.ms=0&compression.type=lz4`. Kafka's consumers acknowledge nothing,
//! so the maximum in flight does not bound them. They share the partitions, and commit nothing.
//!
//! Options of the URL in addition to the library's own:
//!
//! | option | what | default |
//! |---|---|---|
//! | `client` | `librdkafka`, or `raw`: our own, to see what librdkafka costs | `librdkafka` |
//! | `replication` | replicas of the topic | the broker's |
//! | `topic.NAME` | a setting of the topic, such as `topic.flush.messages=1` | the broker's |
//! | `durability` | durability that an answer promises, if the broker does not report it | |
//!
//! A user and password in the URL are for SASL PLAIN. There is no TLS.

mod admin;
mod consumer;
mod ends;
mod native;
mod producer;
mod raw;

use std::net::TcpStream;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;

use crate::driver::{Connect, Consume, DriverError, Produce, Promise};
use crate::plan::{Acks, Plan};
use crate::pump::{Consumer, Producer};
use crate::url::Url;

use admin::Broker;
use consumer::KafkaReceiver;
use producer::KafkaPublisher;
use raw::{RawPublisher, RawReceiver};

/// Time limit for an answer before and after the measurement.
const ANSWER: Duration = Duration::from_secs(10);
/// Time limit for opening a TCP connection.
const REACH: Duration = Duration::from_secs(5);
/// The library's own default of `message.max.bytes`.
const MESSAGE_BYTES_MAX: usize = 1_000_000;
/// Upper bound of the bytes of a message in addition to its value.
const MESSAGE_EXTRA_BYTES: usize = 1_000;
/// The library's own default of `queue.buffering.max.messages`.
const HELD_MESSAGES: u32 = 100_000;
/// `message.timeout.ms`: the library gives up on a message that has no answer after this time.
const GIVE_UP_MS: u32 = 30_000;
/// `fetch.queue.backoff.ms`: when the fetch queue is full, the library checks after this time
/// whether it can fetch from the partition again.
const FETCH_AGAIN_MS: u32 = 10;
/// Options of a URL that are not passed to the library.
const OWN_OPTIONS: [&str; 4] = ["client", "durability", "pid", "replication"];
/// Prefix of the options that are settings of the topic.
const TOPIC_OPTION: &str = "topic.";

/// Makes connections to a Kafka broker, or to a cluster.
pub(crate) struct Kafka {
    url: Url,
    is_raw: bool,
    prepared: Mutex<Prepared>,
}

/// Facts about a topic, known once it is prepared.
#[derive(Default)]
struct Prepared {
    /// This program created the topic, so it deletes it.
    is_ours: bool,
    /// The end offset of each partition before the measurement's first message.
    starts: Vec<i64>,
    broker: Option<Broker>,
}

impl Kafka {
    /// A client for the broker at this URL.
    ///
    /// # Errors The library does not know an option of the URL.
    pub(crate) fn new(url: &Url) -> Result<Kafka, DriverError> {
        let is_raw = match url.option("client") {
            None | Some("librdkafka") => false,
            Some("raw") => true,
            Some(other) => {
                let what = format!("a client is librdkafka or raw, not \"{other}\"");
                return Err(DriverError::Unsupported { what });
            }
        };
        if is_raw {
            raw::check(url)?;
        }
        let kafka = Kafka {
            url: url.clone(),
            is_raw,
            prepared: Mutex::default(),
        };
        let config = kafka.config();
        let made = config.create_native_config();
        made.map_err(|error| kafka.unsupported(&error))?;
        Ok(kafka)
    }

    /// Settings that producers, consumers and admin clients have in common.
    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.url.host_list());
        config.set("client.id", "cloverleaf-bench");
        if let Some(user) = &self.url.user {
            config.set("security.protocol", "sasl_plaintext");
            config.set("sasl.mechanism", "PLAIN");
            config.set("sasl.username", user);
            config.set("sasl.password", self.url.password.as_deref().unwrap_or(""));
        }
        for name in self.url.option_names() {
            let is_own = OWN_OPTIONS.contains(&name) || name.starts_with(TOPIC_OPTION);
            if let Some(value) = self.url.option(name).filter(|_| !is_own) {
                config.set(name, value);
            }
        }
        config
    }

    /// Sets an option by the plan, unless the URL has the option.
    fn set(&self, config: &mut ClientConfig, name: &str, value: impl ToString) {
        if self.url.option(name).is_none() {
            config.set(name, value.to_string());
        }
    }

    fn producer_config(&self, plan: &Plan) -> ClientConfig {
        let mut config = self.config();
        let acks = match plan.acks {
            Acks::None => "0",
            Acks::One => "1",
            Acks::All => "all",
        };
        self.set(&mut config, "acks", acks);
        self.set(&mut config, "message.timeout.ms", GIVE_UP_MS);
        self.set(
            &mut config,
            "batch.num.messages",
            plan.batch_messages.max(1),
        );
        if plan.in_flight > HELD_MESSAGES {
            self.set(&mut config, "queue.buffering.max.messages", plan.in_flight);
        }
        let is_filled = plan.in_flight == 0 || plan.in_flight > plan.batch_messages;
        if plan.batch_messages <= 1 || !is_filled {
            self.set(&mut config, "linger.ms", 0);
        }
        if plan.size_bytes + MESSAGE_EXTRA_BYTES > MESSAGE_BYTES_MAX {
            let bytes = plan.size_bytes + MESSAGE_EXTRA_BYTES;
            self.set(&mut config, "message.max.bytes", bytes);
            self.set(&mut config, "batch.size", bytes);
        }
        config
    }

    fn consumer_config(&self, plan: &Plan) -> ClientConfig {
        let mut config = self.config();
        // Without a group id the library assigns no partitions. No group is joined.
        self.set(&mut config, "group.id", "cloverleaf-bench");
        self.set(&mut config, "enable.auto.commit", false);
        self.set(&mut config, "enable.auto.offset.store", false);
        self.set(&mut config, "auto.offset.reset", "error");
        // By default the library stops fetching for a second once it holds more than
        // `queued.min.messages`, and its queue may be empty for most of that second. The doctor
        // advises users with this problem to set this option too (docs/doctor/fetch-rhythm.md).
        self.set(&mut config, "fetch.queue.backoff.ms", FETCH_AGAIN_MS);
        if plan.size_bytes + MESSAGE_EXTRA_BYTES > MESSAGE_BYTES_MAX {
            let bytes = plan.size_bytes + MESSAGE_EXTRA_BYTES;
            self.set(&mut config, "message.max.bytes", bytes);
            self.set(&mut config, "fetch.message.max.bytes", 2 * bytes);
        }
        config
    }

    /// Checks that an address accepts connections. The library itself would retry forever, and
    /// would not report the reason.
    fn reach(&self) -> Result<(), DriverError> {
        let mut reason = "no address".to_owned();
        for address in self.url.addresses()? {
            match TcpStream::connect_timeout(&address, REACH) {
                Ok(_) => return Ok(()),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(self.url.unreachable(reason))
    }

    fn unsupported(&self, error: &KafkaError) -> DriverError {
        DriverError::Unsupported {
            what: self.url.hidden(format!(
                "librdkafka does not take what {} says: {error}",
                self.url
            )),
        }
    }
}

/// The partitions of consumer number `number`, each with its start offset. As in a consumer group,
/// consumers share the partitions, and surplus consumers get none and stay idle.
fn shared(plan: &Plan, number: u32, starts: &[i64]) -> Vec<(i32, i64)> {
    let own = (0u32..).zip((0..).zip(starts.iter().copied()));
    let own = own.filter(|(place, _)| place % plan.consumers.max(1) == number);
    own.map(|(_, partition)| partition).collect()
}

impl Connect for Kafka {
    fn prepare(&self, plan: &Plan) -> Result<(), DriverError> {
        self.reach()?;
        let prepared = self.make(plan)?;
        *self.prepared.lock() = prepared;
        Ok(())
    }

    fn producer(&self, plan: &Plan, number: u32) -> Result<Box<dyn Produce>, DriverError> {
        if self.is_raw {
            let metadata = self.metadata()?;
            let port = RawPublisher::open(&self.url, plan, number, &metadata)?;
            return Ok(Box::new(Producer(port)));
        }
        let config = self.producer_config(plan);
        let port = KafkaPublisher::new(&self.url, &config, plan)?;
        Ok(Box::new(Producer(port)))
    }

    fn consumer(&self, plan: &Plan, number: u32) -> Result<Box<dyn Consume>, DriverError> {
        let config = self.consumer_config(plan);
        let mut starts = self.prepared.lock().starts.clone();
        if starts.is_empty() {
            // Another process has prepared the topic: read from the current end.
            starts = self.ends(plan)?;
        }
        let partitions = shared(plan, number, &starts);
        if self.is_raw {
            let metadata = self.metadata()?;
            let port = RawReceiver::open(&self.url, plan, partitions, &metadata)?;
            return Ok(Box::new(Consumer(port)));
        }
        let port = KafkaReceiver::new(&self.url, &config, plan, partitions)?;
        Ok(Box::new(Consumer(port)))
    }

    fn starts(&self) -> Vec<i64> {
        self.prepared.lock().starts.clone()
    }

    fn begin_at(&self, starts: Vec<i64>) {
        self.prepared.lock().starts = starts;
    }

    fn clean_up(&self, plan: &Plan) -> Result<(), DriverError> {
        match std::mem::take(&mut *self.prepared.lock()).is_ours {
            true => self.remove(plan),
            false => Ok(()),
        }
    }

    fn versions(&self) -> Vec<(String, String)> {
        let (_, library) = rdkafka::util::get_rdkafka_version();
        let mut versions = vec![if self.is_raw {
            (
                "raw Kafka client".to_owned(),
                env!("CARGO_PKG_VERSION").to_owned(),
            )
        } else {
            ("librdkafka".to_owned(), library)
        }];
        if let Some(broker) = &self.prepared.lock().broker {
            versions.push((broker.product.clone(), broker.version.clone()));
        }
        versions
    }

    /// By default, librdkafka's producer is not idempotent and has several requests in flight. A
    /// request that is retried, after a change of leader for instance, then reaches the broker
    /// after its successor. The raw client retries nothing.
    fn may_reorder(&self, plan: &Plan) -> Option<String> {
        let config = self.producer_config(plan);
        let is = |name, value| config.get(name) == Some(value);
        let keeps_order = self.is_raw
            || is("enable.idempotence", "true")
            || is("max.in.flight", "1")
            || is("max.in.flight.requests.per.connection", "1")
            || is("retries", "0")
            || is("message.send.max.retries", "0");
        let why = "librdkafka changes the order when it sends a request again, unless the URL has \
                   enable.idempotence=true";
        (!keeps_order).then(|| why.to_owned())
    }

    /// Cloverleaf itself reports the durability that an answer promises, which depends on its
    /// option `durability`. Apache Kafka answers after it has written the message to its files, for
    /// `acks=1` and `acks=all` alike. It leaves the sync to the kernel unless `flush.messages` of
    /// the topic is 1 (its documentation: "we recommend using the default flush settings which
    /// disable application fsync entirely"). With `acks=all` the in-sync replicas have written the
    /// message too. Brokers that do not report `flush.messages` are [`Promise::Configured`].
    fn promise(&self, plan: &Plan) -> Promise {
        let acks = self
            .url
            .option("acks")
            .or(self.url.option("request.required.acks"));
        // The raw client ignores the URL's `acks`.
        let acks = match acks.filter(|_| !self.is_raw) {
            Some("0") => Acks::None,
            Some("all" | "-1") => Acks::All,
            Some(_) => Acks::One,
            None => plan.acks,
        };
        match (&self.prepared.lock().broker, acks) {
            (_, Acks::None) => Promise::None,
            (Some(broker), acks) => broker.promise(acks),
            (None, _) => Promise::Configured,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::payload::PayloadKind;
    use crate::plan::Amount;
    use crate::schedule::Arrivals;

    fn plan() -> Plan {
        Plan {
            run: 1,
            topic: "t".to_owned(),
            producers: 1,
            consumers: 1,
            size_bytes: 100,
            payload: PayloadKind::Random,
            amount: Amount::Messages(5),
            warm_up_s: 0.0,
            arrivals: Arrivals::Closed,
            batch_messages: 1,
            in_flight: 1,
            acks: Acks::All,
            partitions: 1,
            keys: 0,
            seed: 1,
        }
    }

    #[test]
    fn order_is_the_brokers_only_where_the_client_keeps_it() {
        for (url, keeps_order) in [
            ("kafka://a", false),
            ("kafka://a?linger.ms=0&enable.idempotence=false", false),
            ("kafka://a?enable.idempotence=true", true),
            ("kafka://a?max.in.flight=1", true),
            ("kafka://a?retries=0", true),
            ("kafka://a?client=raw", true),
        ] {
            let kafka = Kafka::new(&url.parse().unwrap()).unwrap();
            assert_eq!(kafka.may_reorder(&plan()).is_none(), keeps_order, "{url}");
        }
    }

    #[test]
    fn the_raw_client_refuses_what_it_does_not_do() {
        for (url, part) in [
            ("kafka://a?client=raw&acks=0", "does not do what acks= says"),
            ("kafka://a?client=raw&linger.ms=5", "linger.ms"),
            ("kafka://me:secret@a?client=raw", "does not log in"),
        ] {
            let error = Kafka::new(&url.parse().unwrap()).err().unwrap().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
        let own = "kafka://a?client=raw&topic.flush.messages=1&replication=1&durability=disk";
        assert!(Kafka::new(&own.parse().unwrap()).is_ok());
    }
}
