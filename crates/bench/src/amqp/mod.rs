//! The client for AMQP 0-9-1: lapin, the library that most Rust programs use.
//!
//! A plan in AMQP's terms: the topic is a durable queue, published to through the default exchange.
//! Messages are persistent with `--acks all`, otherwise transient. The broker confirms them except
//! with `--acks none`. `--in-flight` bounds a producer's unconfirmed messages and is a consumer's
//! prefetch. Its default for producers is [`HELD_MESSAGES`], because lapin scans all unconfirmed
//! messages at each confirm with `multiple`. AMQP has no batches of messages; a consumer
//! acknowledges many at a time. Partitions and keys have no effect.
//!
//! Options of the URL:
//!
//! | option | what | default |
//! |---|---|---|
//! | `client` | `lapin`, or `raw`: our own client, which shows the cost of lapin | `lapin` |
//! | `queue` | `classic` or `quorum` | the virtual host's |
//! | `prefetch` | maximum of unacknowledged messages of a consumer; 0: no bound | `--in-flight` |
//! | `durability` | durability that a confirm promises, if the broker does not report it | |
//!
//! The path is the virtual host; there is no TLS.

mod connection;
mod consumer;
mod greeting;
mod pipeline;
mod producer;
mod raw;

use parking_lot::Mutex;

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};

use crate::driver::{Connect, Consume, DriverError, Produce, Promise};
use crate::plan::{Acks, Plan};
use crate::pump::{Consumer, Producer};
use crate::url::Url;

use connection::{AmqpConnection, is_absent, words};
use consumer::AmqpReceiver;
use greeting::Greeting;
pub(crate) use pipeline::Pipeline;
use raw::{RawPublisher, RawReceiver};

/// lapin does not expose its version. A test compares this with the lock file.
const LAPIN_VERSION: &str = "4.12.3";
/// Maximum of unconfirmed messages of a producer if the plan sets none.
const HELD_MESSAGES: u32 = 2_000;
/// Options that a URL may have.
const OPTIONS: [&str; 5] = ["client", "durability", "pid", "prefetch", "queue"];

/// The error text of a message that the broker rejected with `basic.nack`.
const NACKED: &str = "the broker has not taken it (basic.nack)";

/// The delivery mode of AMQP 0-9-1: 1 is transient, 2 is persistent.
fn delivery_mode(acks: Acks) -> u8 {
    match acks {
        Acks::None | Acks::One => 1,
        Acks::All => 2,
    }
}

/// Makes connections to an AMQP broker.
pub(crate) struct Amqp {
    url: Url,
    is_raw: bool,
    queue_kind: Option<QueueKind>,
    prefetch: Option<u16>,
    prepared: Mutex<Prepared>,
}

/// Queue types of RabbitMQ (`x-queue-type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueKind {
    Classic,
    Quorum,
}

impl QueueKind {
    fn name(self) -> &'static str {
        match self {
            QueueKind::Classic => "classic",
            QueueKind::Quorum => "quorum",
        }
    }
}

/// Facts about a queue, known once it is prepared.
#[derive(Default)]
struct Prepared {
    /// This program created the queue, so it deletes it.
    is_ours: bool,
    /// The queue is durable, and of the type in the URL if the URL has one.
    is_as_asked: bool,
    greeting: Greeting,
}

impl Amqp {
    /// A client for the broker at this URL.
    ///
    /// # Errors
    /// An option of the URL is unknown.
    pub(crate) fn new(url: &Url) -> Result<Amqp, DriverError> {
        let unsupported = |what: String| Err(DriverError::Unsupported { what });
        let unknown = |name: &&str| !OPTIONS.contains(name);
        if let Some(name) = url.option_names().find(unknown) {
            return unsupported(format!(
                "the client for amqp:// knows no option \"{name}\"; it knows {}",
                OPTIONS.join(", ")
            ));
        }
        let is_raw = match url.option("client") {
            None | Some("lapin") => false,
            Some("raw") => true,
            Some(other) => {
                return unsupported(format!("a client is lapin or raw, not \"{other}\""));
            }
        };
        let queue_kind = match url.option("queue") {
            None => None,
            Some("classic") => Some(QueueKind::Classic),
            Some("quorum") => Some(QueueKind::Quorum),
            Some(other) => {
                return unsupported(format!("a queue is classic or quorum, not \"{other}\""));
            }
        };
        let prefetch = url.option("prefetch").map(str::parse).transpose();
        let Ok(prefetch) = prefetch else {
            return unsupported("?prefetch= is a number up to 65535".to_owned());
        };
        Ok(Amqp {
            url: url.clone(),
            is_raw,
            queue_kind,
            prefetch,
            prepared: Mutex::default(),
        })
    }

    /// Reads the broker's greeting from the first address that answers.
    fn greet(&self) -> Result<Greeting, DriverError> {
        let mut reason = "no address".to_owned();
        for address in self.url.addresses()? {
            match Greeting::of(&address) {
                Ok(greeting) => return Ok(greeting),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(self.url.unreachable(reason))
    }

    /// Creates the queue, or uses an existing one as it is. Returns whether this call created it,
    /// and whether it is durable and of the requested type.
    fn make(&self, plan: &Plan) -> Result<(bool, bool), DriverError> {
        let connection = AmqpConnection::open(&self.url, 0)?;
        let channel = connection.channel()?;
        let there = channel.queue_declare(
            plan.topic.as_str().into(),
            QueueDeclareOptions {
                passive: true,
                ..QueueDeclareOptions::default()
            },
            FieldTable::default(),
        );
        match connection.wait(there)? {
            Ok(queue) if queue.message_count() == 0 => {
                // A broker accepts the declaration of an existing queue only if its properties are
                // the same.
                return Ok((false, self.declare(&connection, plan)?.is_ok()));
            }
            Ok(queue) => {
                return Err(self.url.refused(format!(
                    "the queue \"{}\" is there already and has {} messages, which consumers of a \
                     measurement would take",
                    plan.topic,
                    queue.message_count()
                )));
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(self.url.refused(words(&error))),
        }
        let made = self.declare(&connection, plan)?;
        made.map_err(|error| self.url.refused(words(&error)))?;
        Ok((true, true))
    }

    /// Declares a durable queue of the requested type. It opens a channel for this, because a
    /// broker closes the channel on which it refuses a declaration.
    fn declare(
        &self,
        connection: &AmqpConnection,
        plan: &Plan,
    ) -> Result<lapin::Result<lapin::Queue>, DriverError> {
        let channel = connection.channel()?;
        let mut arguments = FieldTable::default();
        if let Some(kind) = self.queue_kind {
            let name = AMQPValue::LongString(LongString::from(kind.name()));
            arguments.insert("x-queue-type".into(), name);
        }
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let name = plan.topic.as_str().into();
        connection.wait(channel.queue_declare(name, options, arguments))
    }
}

impl Connect for Amqp {
    fn prepare(&self, plan: &Plan) -> Result<(), DriverError> {
        let greeting = self.greet()?;
        let (is_ours, is_as_asked) = self.make(plan)?;
        *self.prepared.lock() = Prepared {
            is_ours,
            is_as_asked,
            greeting,
        };
        Ok(())
    }

    fn producer(&self, plan: &Plan, number: u32) -> Result<Box<dyn Produce>, DriverError> {
        Ok(if self.is_raw {
            Box::new(Producer(RawPublisher::open(&self.url, plan, number)?))
        } else {
            producer::producer(&self.url, plan, number)?
        })
    }

    fn consumer(&self, plan: &Plan, number: u32) -> Result<Box<dyn Consume>, DriverError> {
        let bound = u16::try_from(plan.in_flight).unwrap_or(u16::MAX);
        let prefetch = self.prefetch.unwrap_or(bound);
        Ok(if self.is_raw {
            let receiver = RawReceiver::open(&self.url, plan, number, prefetch)?;
            Box::new(Consumer(receiver))
        } else {
            let receiver = AmqpReceiver::new(&self.url, plan, number, prefetch)?;
            Box::new(Consumer(receiver))
        })
    }

    fn clean_up(&self, plan: &Plan) -> Result<(), DriverError> {
        if !std::mem::take(&mut self.prepared.lock().is_ours) {
            return Ok(());
        }
        let connection = AmqpConnection::open(&self.url, 0)?;
        let channel = connection.channel()?;
        let name = plan.topic.as_str().into();
        let deleted = connection.wait(channel.queue_delete(name, QueueDeleteOptions::default()))?;
        deleted.map_err(|error| self.url.refused(words(&error)))?;
        Ok(())
    }

    fn versions(&self) -> Vec<(String, String)> {
        let mut versions = vec![if self.is_raw {
            (
                "raw AMQP client".to_owned(),
                env!("CARGO_PKG_VERSION").to_owned(),
            )
        } else {
            ("lapin".to_owned(), LAPIN_VERSION.to_owned())
        }];
        let prepared = self.prepared.lock();
        if prepared.greeting != Greeting::default() {
            versions.push(prepared.greeting.product());
        }
        versions
    }

    /// Cloverleaf itself reports the durability that a confirm promises, which depends on its
    /// option `durability`.
    ///
    /// RabbitMQ 4 confirms a persistent message of a classic queue when the message is written to
    /// the file, and does not sync it: `sync/1` of `rabbit_classic_queue_store_v2.erl` flushes its
    /// buffer with a sync function that does nothing. It confirms a transient message when it is in
    /// memory. A quorum queue confirms each message after a majority of its members has written it
    /// to the write-ahead log and synced it (<https://www.rabbitmq.com/docs/quorum-queues>, "Data
    /// safety"). Without a type in the URL, the virtual host's default decides, so the promise is
    /// [`Promise::Configured`]. So is that of other products and versions.
    ///
    /// An existing queue with other properties than the requested ones is [`Promise::Configured`]
    /// too.
    fn promise(&self, plan: &Plan) -> Promise {
        promise(&self.prepared.lock(), plan.acks, self.queue_kind)
    }
}

fn promise(prepared: &Prepared, acks: Acks, queue: Option<QueueKind>) -> Promise {
    let Prepared {
        greeting,
        is_as_asked,
        ..
    } = prepared;
    let (product, version) = greeting.product();
    let is_rabbit_4 = product == "RabbitMQ" && version.starts_with("4.");
    let [persistent, transient] = [true, false].map(|is_persistent| greeting.class(is_persistent));
    let told = match acks {
        Acks::None => return Promise::None,
        Acks::One => transient,
        // If both are the same, the properties of the queue do not matter.
        Acks::All if *is_as_asked || persistent == transient => persistent,
        Acks::All => None,
    };
    match (acks, queue) {
        _ if greeting.is_cloverleaf() => told.unwrap_or(Promise::Configured),
        (_, Some(QueueKind::Quorum)) if is_rabbit_4 && *is_as_asked => Promise::Disk,
        (Acks::All, Some(QueueKind::Classic)) if is_rabbit_4 && *is_as_asked => Promise::Kernel,
        (Acks::One, Some(QueueKind::Classic)) if is_rabbit_4 && *is_as_asked => Promise::Memory,
        _ => Promise::Configured,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_version_is_that_of_the_lock_file() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
        let lock = std::fs::read_to_string(path).unwrap();
        let entry = format!("name = \"lapin\"\nversion = \"{LAPIN_VERSION}\"\n");
        assert!(lock.contains(&entry), "{entry}");
    }

    #[test]
    fn options_are_checked() {
        for (url, part) in [
            ("amqp://a?queue=stream", "classic or quorum"),
            ("amqp://a?client=pika", "lapin or raw"),
            ("amqp://a?prefetch=-1", "number"),
            ("amqp://a?linger=5", "no option \"linger\"; it knows"),
        ] {
            let error = Amqp::new(&url.parse().unwrap()).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
        let quorum = Amqp::new(&"amqp://a?queue=quorum".parse().unwrap()).unwrap();
        assert_eq!(quorum.queue_kind, Some(QueueKind::Quorum));
    }

    #[test]
    fn a_promise_is_what_the_broker_does() {
        let of = |fields: &[(&str, &str)]| Prepared {
            is_as_asked: true,
            greeting: Greeting::with(fields),
            ..Prepared::default()
        };
        let another_queue = |prepared: &Prepared| Prepared {
            is_as_asked: false,
            greeting: prepared.greeting.clone(),
            ..Prepared::default()
        };
        let ours = |persistent, transient| {
            of(&[
                ("product", "RabbitMQ"),
                ("platform", "Cloverleaf 0.1.0"),
                ("cloverleaf.durability.persistent", persistent),
                ("cloverleaf.durability.transient", transient),
            ])
        };
        let rabbit = of(&[("product", "RabbitMQ"), ("version", "4.0.5")]);
        let old = of(&[("product", "RabbitMQ"), ("version", "3.8.1")]);
        let silent = of(&[("product", "RabbitMQ"), ("platform", "Cloverleaf 0.1.0")]);
        let protocol = ours("disk", "kernel");
        let (classic, quorum) = (Some(QueueKind::Classic), Some(QueueKind::Quorum));
        let (one, all) = (Acks::One, Acks::All);
        for (prepared, acks, queue, expected) in [
            (&protocol, all, None, Promise::Disk),
            (&protocol, one, quorum, Promise::Kernel),
            (&protocol, Acks::None, None, Promise::None),
            // The existing queue may not be durable.
            (&another_queue(&protocol), all, None, Promise::Configured),
            (&another_queue(&protocol), one, None, Promise::Kernel),
            (&ours("kernel", "kernel"), all, None, Promise::Kernel),
            (
                &another_queue(&ours("disk", "disk")),
                all,
                None,
                Promise::Disk,
            ),
            (&ours("disk", "disk"), one, None, Promise::Disk),
            (&silent, all, None, Promise::Configured),
            (&rabbit, all, classic, Promise::Kernel),
            (&rabbit, one, classic, Promise::Memory),
            (&rabbit, one, quorum, Promise::Disk),
            (&another_queue(&rabbit), one, quorum, Promise::Configured),
            (&rabbit, all, None, Promise::Configured),
            (&old, all, classic, Promise::Configured),
        ] {
            let promise = promise(prepared, acks, queue);
            assert_eq!(promise, expected, "{:?} {acks:?}", prepared.greeting);
        }
    }
}
