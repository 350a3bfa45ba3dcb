//! A topic's options: how they are looked up and changed while it is in use.

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
    /// How it is kept.
    pub fn options(&self) -> Arc<TopicOptions> {
        self.shape.read().options.clone()
    }

    /// The class in which a publish is stored for which the protocol asks `asked`.
    pub fn durability(&self, asked: Durability) -> Durability {
        self.shape().durability(self.shared(), asked)
    }

    /// Changes options. They are in the kernel when this returns, and take effect at once.
    ///
    /// The number of partitions ([`Topic::add_partitions`]) and whether the topic is ephemeral do
    /// not change here, whatever `change` does.
    ///
    /// # Errors
    /// The topic was deleted, or the journal does not take it; nothing has changed then.
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
            self.shared().changed();
        }
        Ok(())
    }

    /// A reader by offset has come: from now on messages that others have consumed stay for some
    /// time (`reader_retention_ms` of the broker's options). Cheap after the first time.
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

/// Topics, and the options that they are to have.
pub type NewOptions = Vec<(Arc<Topic>, TopicOptions)>;

impl Broker {
    /// As [`Broker::keep`], and changes options as [`Topic::set_options`] does: both or neither,
    /// whatever crash comes. `options` is asked while no definition can change, if the value is
    /// another than the one that is kept; it must not change one itself.
    ///
    /// # Errors
    /// The journal does not take it; nothing has changed then.
    pub fn keep_with<'a>(
        &self,
        key: impl Into<Name<'a>>,
        value: Option<Vec<u8>>,
        options: impl FnOnce() -> NewOptions,
    ) -> Result<(), CatalogError> {
        let shared = &self.shared;
        let definitions = shared.definitions.lock();
        let keep = |entry| shared.redefine(Some(entry), options()).map(drop);
        shared.kept.set(key.into().owned(), value, keep)?;
        drop(definitions);
        shared.changed();
        Ok(())
    }
}

impl Shared {
    /// Gives topics these options, and writes `beside` with that: all of it or, after an error or a
    /// crash, nothing. `false`: there was nothing to be changed. The caller holds `definitions`.
    fn redefine(&self, beside: Option<Entry>, all: NewOptions) -> Result<bool, CatalogError> {
        let mut entries: Vec<Entry> = beside.into_iter().collect();
        let mut changed = Vec::new();
        for (topic, mut options) in all {
            let old = topic.shape();
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
            let shape = TopicLayout::open(self, topic.id(), definition.options, Some(&old))?;
            *topic.shape.write() = Arc::new(shape);
            topic.redefined(definition.revision);
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
