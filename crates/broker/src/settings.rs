//! A topic's options: how they are looked up and changed while it is in use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cloverleaf_log::Durability;

use crate::broker::CatalogError;
use crate::entries::Entry;
use crate::options::TopicOptions;
use crate::partitions::Shape;
use crate::topic::Topic;

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
        let old = self.shape();
        let mut options = (*old.options).clone();
        change(&mut options);
        options.partitions = old.options.partitions;
        options.ephemeral = old.options.ephemeral;
        if options == *old.options {
            return Ok(());
        }
        let mut definition = self.next_definition();
        definition.options = options.clone();
        let revision = definition.revision;
        self.shared().write(&[Entry::Topic(definition)])?;
        let shape = Shape::open(self.shared(), self.id(), options, Some(&old))?;
        *self.shape.write() = Arc::new(shape);
        self.redefined(revision);
        drop(definitions);
        self.shared().changed();
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

impl Shape {
    pub(crate) fn durability(
        &self,
        shared: &crate::broker::Shared,
        asked: Durability,
    ) -> Durability {
        self.options
            .durability
            .unwrap_or(shared.options.durability)
            .class(asked)
    }
}
