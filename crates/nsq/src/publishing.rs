//! PUB, MPUB and DPUB: from the read buffer into a batch, from the batch into the topic.
//!
//! Consecutive publishes to one topic within one socket read become one batch and one append. A
//! message is copied once, from the read buffer into the batch, and has no allocation of its own.

use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{PublishError, Published, Realm, Topic};
use cloverleaf_log::{Batch, BatchBuilder, Durability};
use cloverleaf_session::{Cached, Meter};

use crate::answers::{Answers, PendingBatch, PublishCommand};
use crate::codec::Messages;
use crate::definitions::topic_options;
use crate::error::ProtocolError;
use crate::options::BATCH_BYTES_MAX;
use crate::stats::clients::{ClientHandle, Counter};

/// Maximum bytes that a record takes in addition to its body: lengths, deltas, attributes.
pub(crate) const RECORD_OVERHEAD_BYTES: usize = 24;

/// The durability that an OK promises: the message has been written to the kernel. nsqd's OK
/// promises less. Configuration can raise it to a sync of the disk.
pub(crate) const DURABILITY: Durability = Durability::Kernel;

/// The parts of the session that a publish needs.
pub(crate) struct PublishContext<'a> {
    pub(crate) realm: &'a Realm,
    pub(crate) client: &'a ClientHandle,
    pub(crate) answers: &'a mut Answers,
    pub(crate) meter: &'a mut Meter,
    /// Wall clock, in ms.
    pub(crate) unix_ms: i64,
    /// How many bytes the read buffer has from the current command on: an upper bound for what can
    /// still join its batch.
    pub(crate) input_bytes: usize,
}

/// The publishing half of a session.
#[derive(Default)]
pub(crate) struct Publishing {
    /// The last topic, so that further publishes to it need no look-up.
    topic: Cached<Option<CachedTopic>>,
    open: Option<OpenBatch>,
}

/// A topic, and the counter of the messages that this connection publishes to it.
#[derive(Clone)]
struct CachedTopic {
    topic: Arc<Topic>,
    published: Arc<Counter>,
}

struct OpenBatch {
    to: CachedTopic,
    builder: BatchBuilder,
    command: PublishCommand,
    oks: u32,
}

impl Publishing {
    /// PUB.
    #[inline]
    pub(crate) fn publish(&mut self, topic: &str, body: &[u8], context: &mut PublishContext<'_>) {
        match self.batch(topic, body.len(), PublishCommand::Pub, context) {
            Ok(batch) => {
                batch.builder.push(None, Some(body), &[]);
                batch.oks += 1;
                context.meter.published.add(1, body.len());
            }
            Err(error) => context.answers.error(error),
        }
    }

    /// MPUB.
    pub(crate) fn publish_many(
        &mut self,
        topic: &str,
        messages: Messages<'_>,
        context: &mut PublishContext<'_>,
    ) {
        let (count, bytes) = (messages.left(), messages.bytes());
        match self.batch(topic, bytes, PublishCommand::Mpub, context) {
            Ok(batch) => {
                for body in messages {
                    batch.builder.push(None, Some(body), &[]);
                }
                batch.oks += 1;
                context.meter.published.add(count.into(), bytes);
            }
            Err(error) => context.answers.error(error),
        }
    }

    /// DPUB: a batch of its own, which waits in the broker's schedule.
    pub(crate) fn publish_delayed(
        &mut self,
        topic: &str,
        body: &[u8],
        delay_ms: u64,
        context: &mut PublishContext<'_>,
    ) {
        self.flush(context.realm, context.answers, context.meter);
        let to = match self.topic(topic, PublishCommand::Dpub, context) {
            Ok(to) => to,
            Err(error) => return context.answers.error(error),
        };
        let room = body.len() + RECORD_OVERHEAD_BYTES;
        let mut builder = BatchBuilder::with_capacity(room, context.unix_ms);
        builder.push(None, Some(body), &[]);
        context.meter.published.add(1, body.len());
        context.meter.published.topics.add(to.topic.number());
        context.meter.called(1);
        let batch = OpenBatch {
            to,
            builder,
            command: PublishCommand::Dpub,
            oks: 1,
        };
        batch.publish(
            context.realm,
            context.answers,
            |topic, batch| match delay_ms {
                0 => topic.publish(batch, DURABILITY),
                _ => topic.publish_delayed(&batch, delay_ms, DURABILITY),
            },
        );
    }

    /// Publishes the open batch, if there is one. To be called at the end of a read, and before a
    /// later command is answered.
    #[inline]
    pub(crate) fn flush(&mut self, realm: &Realm, answers: &mut Answers, meter: &mut Meter) {
        if let Some(batch) = self.open.take() {
            meter.called(1);
            batch.publish(realm, answers, |topic, batch| {
                topic.publish(batch, DURABILITY)
            });
        }
    }

    /// The open batch for this topic with space for `bytes` more, opened if need be.
    #[inline]
    fn batch(
        &mut self,
        topic: &str,
        bytes: usize,
        command: PublishCommand,
        context: &mut PublishContext<'_>,
    ) -> Result<&mut OpenBatch, ProtocolError> {
        let fits = self.open.as_ref().is_some_and(|open| {
            open.to.topic.name() == topic && open.builder.len() + bytes <= BATCH_BYTES_MAX
        });
        if !fits {
            self.flush(context.realm, context.answers, context.meter);
        }
        // Tested once more, because the borrow checker does not let `fits` keep its borrow.
        match &mut self.open {
            Some(_) => {}
            None => {
                let to = self.topic(topic, command, context)?;
                context.meter.published.topics.add(to.topic.number());
                let input_bytes = context.input_bytes.min(BATCH_BYTES_MAX).max(bytes);
                // Assumes that records are not tiny: space for the overhead of tiny ones would
                // mostly be wasted, and the Vec grows if they come.
                let room = input_bytes + input_bytes / 8 + RECORD_OVERHEAD_BYTES;
                self.open = Some(OpenBatch {
                    to,
                    builder: BatchBuilder::with_capacity(room, context.unix_ms),
                    command,
                    oks: 0,
                });
            }
        }
        self.open
            .as_mut()
            .ok_or_else(|| command.failed_with("no batch is open"))
    }

    /// The topic of this name, created if need be.
    fn topic(
        &mut self,
        name: &str,
        command: PublishCommand,
        context: &mut PublishContext<'_>,
    ) -> Result<CachedTopic, ProtocolError> {
        let cached = self.topic.at(context.realm.generation());
        if let Some(to) = cached
            && to.topic.name() == name
        {
            return Ok(to.clone());
        }
        // Creating a topic raises the realm's generation: the next read looks the topic up once
        // more, and from then on it stays cached.
        context.meter.called(1);
        let topic = find_topic(context.realm, name, command)?;
        let published = context.client.publish_counter(name);
        Ok(cached.insert(CachedTopic { topic, published }).clone())
    }
}

fn find_topic(
    realm: &Realm,
    name: &str,
    command: PublishCommand,
) -> Result<Arc<Topic>, ProtocolError> {
    realm
        .topic_or_create(Operation::Publish, name, || topic_options(name))
        .map_err(|error| command.failed_with(&error.to_string()))
}

impl OpenBatch {
    fn publish(
        self,
        realm: &Realm,
        answers: &mut Answers,
        publish: impl Fn(&Arc<Topic>, Batch) -> Result<Published, PublishError>,
    ) {
        let OpenBatch {
            to,
            builder,
            command,
            oks,
        } = self;
        let (messages, bytes) = (builder.count(), builder.len());
        let batch = builder.finish();
        let mut result = publish(&to.topic, batch.clone());
        if let Err(PublishError::TopicDeleted { .. }) = result {
            // Deleted between look-up and publish: as in nsqd, the topic is created again.
            match find_topic(realm, to.topic.name(), command) {
                Ok(topic) => result = publish(&topic, batch),
                Err(error) => return answers.error(error),
            }
        }
        match result {
            Ok(published) => {
                to.published.add(messages.into());
                answers.batch(PendingBatch {
                    published,
                    command,
                    oks,
                    bytes,
                });
            }
            Err(error) => answers.error(command.failed(&error)),
        }
    }
}
