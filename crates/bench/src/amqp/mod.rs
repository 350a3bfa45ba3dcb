//! The client for AMQP 0-9-1: lapin, the one that most programs in Rust use.
//!
//! A plan in AMQP's terms: the topic is a durable queue, published to through the default exchange.
//! Messages are persistent with `--acks all`, transient otherwise, and confirmed unless it is
//! `--acks none`. In flight is the number of unconfirmed messages of a producer, and a consumer's
//! prefetch; without a bound a producer has [`HELD_MESSAGES`], because lapin looks at all of them
//! with each confirm of many. AMQP has no batches of messages; a consumer acknowledges many at a
//! time. Partitions and keys mean nothing.
//!
//! Options of the URL:
//!
//! | option | what | default |
//! |---|---|---|
//! | `client` | `lapin`, or `raw`: a client of our own, to tell lapin's cost apart | `lapin` |
//! | `queue` | `classic` or `quorum` | the virtual host's |
//! | `prefetch` | unacknowledged messages of a consumer; 0: no bound | those in flight |
//! | `durability` | what a confirm promises, if the broker does not tell | |
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

/// lapin does not tell its version. A test compares this with the lock file.
const LAPIN_VERSION: &str = "4.12.3";
/// Unconfirmed messages of a producer that has no bound.
const HELD_MESSAGES: u32 = 2_000;
/// Options of a URL.
const OPTIONS: [&str; 5] = ["client", "durability", "pid", "prefetch", "queue"];

/// The error text of a message that the broker has refused.
const NACKED: &str = "the broker has not taken it (basic.nack)";

/// The delivery mode of AMQP 0-9-1 for messages that are acknowledged so: transient or persistent.
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

/// Kinds of queues.
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
    /// The queue was made by us.
    is_ours: bool,
    /// The queue is durable and of the kind that the URL names, if it names one.
    is_as_asked: bool,
    greeting: Greeting,
}

impl Amqp {
    /// A client for the broker there.
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

    /// Asks who is there.
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

    /// Makes the queue, or takes one that is there as it is. Says whether it has made it, and
    /// whether it is durable and of the kind that is wanted.
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
                // A broker takes a declaration of what is there only if it is the same.
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

    /// Declares a durable queue of the kind that is wanted. On a channel of its own: the broker
    /// closes that on which it refuses something.
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

    /// Cloverleaf says itself what a confirm promises: it depends on its option `durability`.
    ///
    /// RabbitMQ 4 confirms a persistent message of a classic queue when it is written to the file,
    /// and does not sync it (`sync/1` of `rabbit_classic_queue_store_v2.erl` flushes its buffer
    /// with a sync function that does nothing); a transient one when it is in memory. In a quorum
    /// queue everything is in the write-ahead log of a majority of its members, synced, before it
    /// is confirmed (<https://www.rabbitmq.com/docs/quorum-queues>, "Data safety"). A queue whose
    /// kind nobody has named is classic, unless its virtual host says something else; so it is
    /// taken as [`Promise::Configured`]. So are other products and versions.
    ///
    /// Of a queue that was there, and is not what would have been made, nothing is known.
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
        // It is the same, whatever the queue is.
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
            // It may not be durable.
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
