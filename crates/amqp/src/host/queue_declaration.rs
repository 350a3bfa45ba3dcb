//! Declaring queues.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cloverleaf_access::Operation;
use cloverleaf_broker::{CatalogError, Subscription};
use cloverleaf_broker::{SubscriptionOptions, Topic, TopicOptions};

use super::exchanges::{check_flag, check_text};
use super::names::{self, PRIVATE_PREFIX, check_private, check_reserved, strip_newlines};
use super::queue::{Queue, QueueDeclaration, levels, subscription_options};
use super::stored::{self, StoredQueue};
use super::{Definitions, Owner, QueueSlot, SUBSCRIPTION, VirtualHost, refused};
use crate::exception::{Exception, ReplyCode, Resource};
use crate::queue_arguments::{QueueArguments, QueueKind, check_equivalence};
use crate::wire::{Table, Value, method, table_bytes};

/// The argument with a prefix for the name of a server-named queue.
const NAME_PREFIX: &str = "x-name-prefix";
/// Maximum length of that prefix, in bytes.
const NAME_PREFIX_BYTES_MAX: usize = 64;
const QUEUE_TYPE: &str = "x-queue-type";

/// A queue to be created.
struct NewQueue<'a> {
    name: Cow<'a, str>,
    /// Other protocols must not see it.
    hidden: bool,
    durable: bool,
    auto_delete: bool,
    exclusive: Option<Owner>,
    arguments: QueueArguments,
    raw: &'a [u8],
}

impl VirtualHost {
    /// Creates a queue, or checks that it exists with these properties. For an empty name the
    /// server generates one.
    ///
    /// # Errors
    /// As in RabbitMQ: a reserved name (403), no such queue (404, passive), a queue that another
    /// connection uses exclusively (405), other properties than the existing queue's or invalid
    /// ones (406).
    pub fn declare_queue(
        &self,
        owner: Owner,
        declare: &method::QueueDeclare<'_>,
    ) -> Result<Arc<Queue>, Exception> {
        let name = strip_newlines(declare.queue);
        if names::is_reply_queue(&name) {
            // Every client that knows the name may check whether the requester is still there.
            return self.find(&name);
        }
        if declare.passive {
            let queue = self.queue(owner, &name)?;
            self.touch(&queue);
            return Ok(queue);
        }
        let stripped = without_argument(declare.arguments, NAME_PREFIX);
        let arguments = Table::check(&stripped).unwrap_or_default();
        let name = if name.is_empty() {
            Cow::Owned(generate_name(declare.arguments)?)
        } else {
            check_reserved("queue", &name)?;
            name
        };
        let exclusive = declare.exclusive.then_some(owner);
        let durable = declare.durable && !declare.exclusive;
        if let Ok(queue) = self.find(&name) {
            check_same_queue(&queue, exclusive, durable, declare.auto_delete, arguments)?;
            self.touch(&queue);
            return Ok(queue);
        }
        let resource = Resource::queue(&name);
        let dead_letter = "x-dead-letter-exchange";
        check_text(dead_letter, &resource, arguments.get(dead_letter))?;
        let read = QueueArguments::read(&name, arguments)?;
        check_quorum(&resource, &read, durable, declare)?;
        self.create_queue(&NewQueue {
            hidden: declare.exclusive || declare.queue.is_empty(),
            durable,
            auto_delete: declare.auto_delete,
            exclusive,
            arguments: read,
            raw: arguments.bytes(),
            name,
        })
    }

    /// Creates a direct reply-to queue: exclusive, hidden, with an unguessable name. It is reached
    /// through the default exchange, and is deleted with its consumer.
    ///
    /// # Errors
    /// The catalog refuses it.
    pub fn reply_queue(&self, owner: Owner) -> Result<Arc<Queue>, Exception> {
        self.create_queue(&NewQueue {
            name: Cow::Owned(names::reply_queue()),
            hidden: true,
            durable: false,
            auto_delete: true,
            exclusive: Some(owner),
            arguments: QueueArguments::default(),
            raw: &[],
        })
    }

    fn create_queue(&self, new: &NewQueue<'_>) -> Result<Arc<Queue>, Exception> {
        let resource = Resource::queue(&new.name);
        let mut definitions = self.definitions.lock();
        if let Ok(queue) = self.find(&new.name) {
            let arguments = Table::check(new.raw).unwrap_or_default();
            let (exclusive, durable) = (new.exclusive, new.durable);
            check_same_queue(&queue, exclusive, durable, new.auto_delete, arguments)?;
            return Ok(queue);
        }
        // The table may still have a queue whose topic was deleted through another protocol.
        self.remove_if_lost(&mut definitions, &new.name);
        check_private(&new.name)?;
        let bytes = stored::queue_bytes(&new.name, new.raw, levels(&new.arguments));
        self.charge(&mut definitions, &resource, bytes)?;
        match self.open_topic(new, &resource) {
            Ok((topic, subscription, adopted)) => {
                let declared = QueueDeclaration {
                    arguments: new.arguments.clone(),
                    raw: new.raw.into(),
                    durable: new.durable,
                    auto_delete: new.auto_delete,
                    exclusive: new.exclusive,
                    adopted,
                };
                let name: Arc<str> = new.name.as_ref().into();
                let now_ms = self.realm.now_ms();
                let queue = Arc::new(Queue::new(name, topic, subscription, declared, now_ms));
                self.add_queue(&mut definitions, &queue);
                Ok(queue)
            }
            Err(exception) => {
                definitions.discharge(bytes);
                Err(exception)
            }
        }
    }

    /// Adds a queue to the table.
    pub(super) fn add_queue(&self, definitions: &mut Definitions, queue: &Arc<Queue>) {
        let name = queue.name.clone();
        if let Some(owner) = queue.exclusive {
            definitions
                .owned
                .entry(owner)
                .or_default()
                .insert(name.clone());
        }
        let slot = QueueSlot {
            queue: queue.clone(),
            single_route: Arc::new([queue.clone()]),
        };
        let mut state = self.state.write();
        if queue.topic.name() != name.as_ref() {
            state
                .by_topic
                .insert(queue.topic.name().into(), name.clone());
        }
        state.queues.insert(name, slot);
        drop(state);
        self.changed();
        self.schedule_expiry(queue);
    }

    /// Opens the topic of a new queue, created or adopted, and its subscription. The last value
    /// tells whether the topic was adopted.
    fn open_topic(
        &self,
        new: &NewQueue<'_>,
        resource: &Resource<'_>,
    ) -> Result<(Arc<Topic>, Arc<Subscription>, bool), Exception> {
        let refused = |error: CatalogError| refused(resource, &error);
        let partitions = levels(&new.arguments);
        let hidden_name;
        let topic_name = if new.hidden && !new.durable {
            // Checked here, because the broker does not count partitions of hidden topics.
            self.realm.check_partitions(partitions).map_err(refused)?;
            // A number is never used again, not even after a restart: dead letters refer to the
            // topic.
            let number = self.last_hidden.fetch_add(1, Ordering::Relaxed) + 1;
            hidden_name = format!("{PRIVATE_PREFIX}q/{}-{number}", self.realm.starts());
            hidden_name.as_str()
        } else {
            new.name.as_ref()
        };
        let stored = |adopted| StoredQueue {
            durable: new.durable,
            auto_delete: new.auto_delete,
            adopted,
            arguments: new.raw.to_vec(),
        };
        let mut is_new = false;
        let topic = self
            .realm
            .topic_or_create(Operation::Declare, topic_name, || {
                is_new = true;
                let setting = (stored::QUEUE.to_owned(), stored(false).encode());
                TopicOptions {
                    partitions,
                    ephemeral: !new.durable,
                    hidden: new.hidden,
                    settings: [setting].into(),
                    ..TopicOptions::default()
                }
            });
        let topic = topic.map_err(refused)?;
        let options = subscription_options(&new.arguments);
        if !is_new {
            self.check_adoption(&topic, new, resource, &options)?;
            if topic.partition_count() < partitions {
                topic.add_partitions(partitions).map_err(refused)?;
            }
            let text = stored(true).encode();
            let changed = topic.set_options(|options| {
                options.settings.insert(stored::QUEUE.to_owned(), text);
            });
            changed.map_err(refused)?;
        }
        match topic.subscription_or_create(SUBSCRIPTION, || options) {
            Ok(subscription) => Ok((topic, subscription, !is_new)),
            Err(error) => {
                self.undo_creation(&topic, is_new);
                Err(refused(error))
            }
        }
    }

    /// Checks that a topic created through another protocol can become the declared queue.
    fn check_adoption(
        &self,
        topic: &Arc<Topic>,
        new: &NewQueue<'_>,
        resource: &Resource<'_>,
        options: &SubscriptionOptions,
    ) -> Result<(), Exception> {
        if topic.options().hidden {
            let text = format!("{resource} is the broker's own");
            return Err(Exception::new(ReplyCode::AccessRefused, text));
        }
        if topic.is_ephemeral() && new.durable {
            return Err(Exception::precondition(format!(
                "cannot declare durable {resource}: its topic ends with this process"
            )));
        }
        // The subscription may exist already; its options cannot be changed.
        if let Some(subscription) = topic.subscription(SUBSCRIPTION) {
            let same = SubscriptionOptions {
                start: options.start,
                expires: options.expires,
                dispatch: options.dispatch,
                ..subscription.options().clone()
            };
            if same != *options {
                return Err(Exception::precondition(format!(
                    "cannot declare {resource}: its topic has a subscription '{SUBSCRIPTION}' \
                     with other options"
                )));
            }
        }
        Ok(())
    }

    /// Undoes a partly created queue.
    fn undo_creation(&self, topic: &Arc<Topic>, is_new: bool) {
        let is_unused = || is_new && topic.subscriptions().is_empty();
        let undone = self.realm.delete_topic_if(topic, is_unused);
        let undone = undone.and_then(|is_gone| {
            if is_gone || topic.is_deleted() {
                Ok(())
            } else {
                topic.set_options(|options| {
                    options.settings.remove(stored::QUEUE);
                })
            }
        });
        if let Err(error) = undone {
            tracing::warn!(topic = topic.name(), %error, "a queue was made in part");
        }
    }

    /// The queue with this name, without a check of its owner.
    pub(super) fn find(&self, name: &str) -> Result<Arc<Queue>, Exception> {
        let state = self.state.read();
        match state.queues.get(name) {
            Some(slot) if !slot.queue.is_deleted() => Ok(slot.queue.clone()),
            _ => Err(Exception::not_found(&Resource::queue(name))),
        }
    }

    /// The queue with this name.
    ///
    /// # Errors
    /// There is no such queue (404), or another connection uses it exclusively (405).
    pub fn queue(&self, owner: Owner, name: &str) -> Result<Arc<Queue>, Exception> {
        let queue = self.find(&strip_newlines(name))?;
        queue.check_access(owner)?;
        Ok(queue)
    }
}

/// Checks that an existing queue is declared again with the same properties.
fn check_same_queue(
    queue: &Queue,
    exclusive: Option<Owner>,
    durable: bool,
    auto_delete: bool,
    arguments: Table<'_>,
) -> Result<(), Exception> {
    if queue.exclusive != exclusive {
        return Err(Exception::exclusive_to_other(&queue.name));
    }
    let resource = queue.resource();
    check_flag("durable", &resource, durable, queue.durable)?;
    check_flag("auto_delete", &resource, auto_delete, queue.auto_delete)?;
    let (received, current) = (with_queue_type(arguments), with_queue_type(queue.table()));
    check_equivalence(
        &resource,
        Table::check(&received).unwrap_or_default(),
        Table::check(&current).unwrap_or_default(),
    )
}

/// Refuses properties that a quorum queue cannot have, with RabbitMQ's texts.
fn check_quorum(
    resource: &Resource<'_>,
    arguments: &QueueArguments,
    durable: bool,
    declare: &method::QueueDeclare<'_>,
) -> Result<(), Exception> {
    let property = match arguments.kind {
        QueueKind::Classic => return Ok(()),
        QueueKind::Quorum if declare.auto_delete => "auto-delete",
        QueueKind::Quorum if declare.exclusive => "exclusive-owner",
        QueueKind::Quorum if !durable => "non-durable",
        QueueKind::Quorum => return Ok(()),
    };
    let text = format!("invalid property '{property}' for {resource}");
    Err(Exception::precondition(text))
}

/// The arguments with the queue type, which is classic by default.
fn with_queue_type(arguments: Table<'_>) -> Cow<'_, [u8]> {
    if arguments.get(QUEUE_TYPE).is_some() {
        return Cow::Borrowed(arguments.bytes());
    }
    let mut fields: Vec<(&str, Value<'_>)> = arguments.fields().collect();
    fields.push((QUEUE_TYPE, Value::String(b"classic")));
    Cow::Owned(table_bytes(&fields))
}

/// The arguments without the one with this name.
fn without_argument<'a>(arguments: Table<'a>, name: &str) -> Cow<'a, [u8]> {
    if arguments.get(name).is_none() {
        return Cow::Borrowed(arguments.bytes());
    }
    let others = arguments.fields().filter(|(found, _)| *found != name);
    let others: Vec<(&str, Value<'_>)> = others.collect();
    Cow::Owned(table_bytes(&others))
}

/// The prefix for the name of a server-named queue, without the dash that follows it.
pub(crate) fn name_prefix(arguments: Table<'_>) -> Cow<'_, str> {
    let prefix = arguments.get(NAME_PREFIX);
    match prefix.and_then(|prefix| prefix.as_text()) {
        Some(prefix) if !prefix.is_empty() => strip_newlines(prefix),
        _ => Cow::Borrowed("amq.gen"),
    }
}

/// Generates the name of a server-named queue.
fn generate_name(arguments: Table<'_>) -> Result<String, Exception> {
    let prefix = name_prefix(arguments);
    if prefix.len() > NAME_PREFIX_BYTES_MAX {
        return Err(Exception::precondition(format!(
            "Queue name prefix '{prefix}' exceeds the {NAME_PREFIX_BYTES_MAX}-byte limit"
        )));
    }
    Ok(names::server_named(&prefix))
}
