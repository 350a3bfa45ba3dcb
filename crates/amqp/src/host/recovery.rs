//! The start of a virtual host: restores the definitions, and completes what a crash interrupted.

use std::sync::Arc;

use super::exchanges::STANDARD;
use super::names::{DEAD_TOPIC, DELAYED_TOPIC};
use super::queue::{Queue, QueueDeclaration, subscription_options};
use super::queue_deletion::release_topic;
use super::router::ROUTER;
use super::stored::{self, BINDINGS, DELETING, EXCHANGES, StoredQueue};
use super::{DEFINITION_BYTES, Definitions, ExchangeEntry, SUBSCRIPTION, VirtualHost};
use crate::queue_arguments::QueueArguments;
use crate::routing::ExchangeOptions;
use crate::wire::Table;
use cloverleaf_access::Operation;
use cloverleaf_broker::{CatalogError, Realm, SubscriptionOptions, Topic, TopicOptions};

/// Opens the hidden topic of dead-lettered messages that were never stored in a queue.
pub(super) fn dead(realm: &Realm) -> Result<Arc<Topic>, CatalogError> {
    open_hidden_topic(realm, DEAD_TOPIC)
}

/// Opens the hidden topic in which delayed messages appear.
pub(super) fn delayed(realm: &Realm) -> Result<Arc<Topic>, CatalogError> {
    open_hidden_topic(realm, DELAYED_TOPIC)
}

fn open_hidden_topic(realm: &Realm, name: &str) -> Result<Arc<Topic>, CatalogError> {
    let topic = realm.topic_or_create(Operation::Declare, name, || TopicOptions {
        hidden: true,
        ..TopicOptions::default()
    })?;
    topic.subscription_or_create(ROUTER, SubscriptionOptions::default)?;
    Ok(topic)
}

impl VirtualHost {
    pub(super) fn restore(&self) -> Result<(), CatalogError> {
        let mut definitions = self.definitions.lock();
        self.restore_exchanges(&mut definitions);
        for topic in self.realm.all_topics() {
            let setting = topic.options().settings.get(stored::QUEUE).cloned();
            if let Some(setting) = setting {
                self.restore_queue(&mut definitions, &topic, &setting)?;
            }
        }
        self.restore_bindings(&mut definitions);
        Ok(())
    }

    fn restore_exchanges(&self, definitions: &mut Definitions) {
        let mut state = self.state.write();
        for (name, kind) in STANDARD {
            let options = ExchangeOptions {
                kind: *kind,
                delays: false,
                durable: true,
                auto_delete: false,
                internal: false,
                alternate: None,
                arguments: Vec::new(),
            };
            state.topology.declare(name, options);
        }
        for (key, value) in self.realm.kept_under(EXCHANGES) {
            let name = key.strip_prefix(EXCHANGES).unwrap_or_default();
            let Some((options, id)) = stored::decode_exchange(&value) else {
                tracing::warn!(name, "an exchange was stored in a way that is unknown here");
                continue;
            };
            let bytes = stored::exchange_bytes(name, &options);
            let entry = ExchangeEntry {
                id: Some(id),
                bytes,
            };
            definitions.bytes += DEFINITION_BYTES + bytes;
            definitions.exchanges.insert(name.into(), entry);
            state.topology.declare(name, options);
        }
    }

    fn restore_queue(
        &self,
        definitions: &mut Definitions,
        topic: &Arc<Topic>,
        setting: &str,
    ) -> Result<(), CatalogError> {
        if setting == DELETING {
            return release_topic(topic, topic.subscription(SUBSCRIPTION).as_ref());
        }
        let unknown = || {
            let name = topic.name();
            tracing::warn!(name, "a queue was stored in a way that is unknown here");
        };
        let Some(stored) = StoredQueue::decode(setting) else {
            unknown();
            return Ok(());
        };
        // The queue was not durable, but its adopted topic is: only the queue ends.
        if !stored.durable {
            return release_topic(topic, topic.subscription(SUBSCRIPTION).as_ref());
        }
        let table = Table::check(&stored.arguments).unwrap_or_default();
        let Ok(arguments) = QueueArguments::read(topic.name(), table) else {
            unknown();
            return Ok(());
        };
        // Missing if a crash came right after the topic was created.
        let options = || subscription_options(&arguments);
        let subscription = topic.subscription_or_create(SUBSCRIPTION, options)?;
        let declared = QueueDeclaration {
            arguments,
            raw: stored.arguments.into(),
            durable: true,
            auto_delete: stored.auto_delete,
            exclusive: None,
            adopted: stored.adopted,
        };
        let now_ms = self.realm.now_ms();
        let name: Arc<str> = topic.name().into();
        let queue = Queue::new(name, topic.clone(), subscription, declared, now_ms);
        definitions.bytes +=
            DEFINITION_BYTES + stored::queue_bytes(&queue.name, &queue.raw, queue.levels);
        self.add_queue(definitions, &Arc::new(queue));
        Ok(())
    }

    /// Restores the bindings between the very exchanges and queues that they were made for. Others
    /// are left over from a deletion, and are dropped.
    fn restore_bindings(&self, definitions: &mut Definitions) {
        let mut left_over = Vec::new();
        for (key, value) in self.realm.kept_under(BINDINGS) {
            let text = key.strip_prefix(BINDINGS).unwrap_or_default();
            let read = stored::decode_binding_key(text).zip(stored::decode_ends(&value));
            let Some(((source, binding), ends)) = read else {
                tracing::warn!(key, "a binding was stored in a way that is unknown here");
                continue;
            };
            // Checks the source first: dropping a deleted exchange's binding must not auto-delete a
            // new exchange with its name.
            let is_source = self.exchange_id(definitions, &source) == Some(ends.0);
            let mut state = self.state.write();
            if !is_source || state.topology.bind(&source, binding.clone()).is_err() {
                drop(state);
                self.remove_kept(&key);
                continue;
            }
            drop(state);
            definitions.bytes += DEFINITION_BYTES + stored::binding_bytes(&source, &binding);
            if self.destination_id(definitions, &binding.destination) != Some(ends.1) {
                left_over.push((source, binding));
            }
        }
        // Only after all are restored: an auto-delete exchange must not seem to lose its last
        // binding.
        for (source, binding) in left_over {
            let removed = self.state.write().topology.unbind(&source, &binding);
            self.forget_definitions(definitions, &removed.unwrap_or_default());
        }
    }
}
