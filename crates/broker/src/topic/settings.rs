//! A topic's options: reading and changing them while it is in use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cloverleaf_log::Durability;

use crate::broker::{Broker, CatalogError, Shared};
use crate::journal::entries::Entry;
use crate::namespace::Name;
use crate::options::TopicOptions;
use crate::topic::Topic;
use crate::topic::layout::TopicLayout;

impl Topic {
    /// Its options.
    pub fn options(&self) -> Arc<TopicOptions> {
        self.layout.read().options.clone()
    }

    /// The durability of a publish for which the protocol asks `asked`.
    pub fn durability(&self, asked: Durability) -> Durability {
        self.layout().durability(self.shared(), asked)
    }

    /// Changes options. They are written to the journal, not synced, when this returns, and take
    /// effect at once.
    ///
    /// `change` cannot change whether the topic is ephemeral, nor the number of partitions
    /// ([`Topic::add_partitions`] does that).
    ///
    /// # Errors
    /// The topic was deleted, or the journal cannot be written; then nothing has changed.
    pub fn set_options(
        self: &Arc<Self>,
        change: impl FnOnce(&mut TopicOptions),
    ) -> Result<(), CatalogError> {
        let definitions = self.lock_definitions()?;
        let mut options = (*self.options()).clone();
        change(&mut options);
        let is_changed = self
            .shared()
            .redefine(None, vec![(self.clone(), options)])?;
        drop(definitions);
        if is_changed {
            self.shared().notify_changed();
        }
        Ok(())
    }

    /// Notes that the topic has a reader by offset: from now on, messages that subscriptions have
    /// consumed are kept for a while (`reader_retention_ms` in the broker's options). Cheap after
    /// the first call.
    pub fn note_reader(self: &Arc<Self>) {
        if self.has_reader.load(Ordering::Relaxed) {
            return;
        }
        let min_ms = self.shared().options.reader_retention_ms;
        let options = self.options();
        if options.retention.consumed && options.retention.min_ms.is_none() {
            let changed = self.set_options(|options| {
                options.retention.min_ms.get_or_insert(min_ms);
            });
            if let Err(error) = changed {
                tracing::warn!(topic = self.name(), %error,
                    "cannot keep consumed messages for a reader yet");
                return;
            }
        }
        self.has_reader.store(true, Ordering::Relaxed);
    }
}

/// Topics with their new options.
pub type TopicOptionChanges = Vec<(Arc<Topic>, TopicOptions)>;

impl Broker {
    /// As [`Broker::put_value`], and changes topics' options as [`Topic::set_options`] does. A
    /// crash leaves both changes or neither. `options` is called only if `value` differs from the
    /// kept one, while no definition can change; it must not change a definition itself.
    ///
    /// # Errors
    /// The journal cannot be written; then nothing has changed.
    pub fn put_value_with<'a>(
        &self,
        key: impl Into<Name<'a>>,
        value: Option<Vec<u8>>,
        options: impl FnOnce() -> TopicOptionChanges,
    ) -> Result<(), CatalogError> {
        let shared = &self.shared;
        let definitions = shared.definitions.lock();
        let keep = |entry| shared.redefine(Some(entry), options()).map(drop);
        shared
            .protocol_values
            .set(key.into().owned(), value, keep)?;
        drop(definitions);
        shared.notify_changed();
        Ok(())
    }
}

impl Shared {
    /// Gives topics new options and writes the entry `extra_entry` with them. After an error or a
    /// crash all of it has changed or nothing. Returns `false` if nothing changed. The caller holds
    /// the lock `definitions`.
    fn redefine(
        &self,
        extra_entry: Option<Entry>,
        all: TopicOptionChanges,
    ) -> Result<bool, CatalogError> {
        let mut entries: Vec<Entry> = extra_entry.into_iter().collect();
        let mut changed = Vec::new();
        for (topic, mut options) in all {
            let old = topic.layout();
            options.partitions = old.options.partitions;
            options.ephemeral = old.options.ephemeral;
            if options == *old.options {
                continue;
            }
            let mut definition = topic.next_definition();
            definition.options = options;
            entries.push(Entry::Topic(definition.clone()));
            changed.push((topic, old, definition));
        }
        self.write_together(&entries)?;
        for (topic, old, definition) in changed {
            let layout = TopicLayout::open(self, topic.id(), definition.options, Some(&old))?;
            *topic.layout.write() = Arc::new(layout);
            topic.definition_changed(definition.revision);
        }
        Ok(!entries.is_empty())
    }
}

impl TopicLayout {
    pub(crate) fn durability(&self, shared: &Shared, asked: Durability) -> Durability {
        self.options
            .durability
            .unwrap_or(shared.options.durability)
            .class(asked)
    }
}
