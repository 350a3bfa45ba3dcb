//! Small state that protocols keep in the journal, opaque to the broker, and the broker's identity.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use uuid::Uuid;

use crate::broker::{Broker, CatalogError, Shared};
use crate::journal::entries::Entry;
use crate::namespace::{Name, OwnedName};

/// The identity of a broker and its start: no two brokers and no two starts of one have it in
/// common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Made when the data folder was first used.
    pub(crate) cluster: Uuid,
    /// How often a broker began to work in this data folder.
    pub(crate) starts: u64,
}

/// All kept values, in memory; the journal has them too.
#[derive(Debug, Default)]
pub(crate) struct ProtocolValues {
    /// Also orders the journal's entries: held while one is written.
    values: Mutex<BTreeMap<OwnedName, Vec<u8>>>,
}

impl ProtocolValues {
    pub(crate) fn apply(&self, key: OwnedName, value: Option<Vec<u8>>) {
        put(&mut self.values.lock(), key, value);
    }

    /// Has `write` write a value's entry, and keeps it then. One that is kept already is not
    /// written again.
    pub(crate) fn set(
        &self,
        key: OwnedName,
        value: Option<Vec<u8>>,
        write: impl FnOnce(Entry) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        let mut values = self.values.lock();
        if values.get(&key) == value.as_ref() {
            return Ok(());
        }
        write(Entry::Kept {
            key: key.clone(),
            value: value.clone(),
        })?;
        put(&mut values, key, value);
        Ok(())
    }

    pub(crate) fn all(&self) -> Vec<(OwnedName, Vec<u8>)> {
        let values = self.values.lock();
        let pair = |(key, value): (&OwnedName, &Vec<u8>)| (key.clone(), value.clone());
        values.iter().map(pair).collect()
    }

    pub(crate) fn snapshot(&self) -> Vec<Entry> {
        let entry = |(key, value)| Entry::Kept {
            key,
            value: Some(value),
        };
        self.all().into_iter().map(entry).collect()
    }
}

fn put(values: &mut BTreeMap<OwnedName, Vec<u8>>, key: OwnedName, value: Option<Vec<u8>>) {
    match value {
        Some(value) => drop(values.insert(key, value)),
        None => drop(values.remove(&key)),
    }
}

impl Shared {
    /// The broker's identity; a new one where the journal has none.
    pub(crate) fn identity(&self) -> &Identity {
        self.identity.get_or_init(|| Identity {
            cluster: Uuid::new_v4(),
            starts: 1,
        })
    }
}

impl Broker {
    /// Keeps a small value of a protocol's own under `key`, or forgets it (`None`). In the kernel
    /// when this returns: a kill does not take it back, a power loss may.
    ///
    /// # Errors
    /// The journal does not take it; the old value is kept.
    pub fn keep<'a>(
        &self,
        key: impl Into<Name<'a>>,
        value: Option<Vec<u8>>,
    ) -> Result<(), CatalogError> {
        let write = |entry| self.shared.write(&[entry]);
        self.shared.kept.set(key.into().owned(), value, write)
    }

    /// The value kept under `key`.
    pub fn kept<'a>(&self, key: impl Into<Name<'a>>) -> Option<Vec<u8>> {
        let key = key.into().owned();
        self.shared.kept.values.lock().get(&key).cloned()
    }

    /// All values of a namespace whose keys begin with `prefix`, by key.
    pub fn kept_under<'a>(&self, prefix: impl Into<Name<'a>>) -> Vec<(String, Vec<u8>)> {
        let prefix = prefix.into().owned();
        let is_under = |key: &OwnedName| {
            key.namespace == prefix.namespace && key.text.starts_with(&prefix.text)
        };
        let values = self.shared.kept.values.lock();
        values
            .range(prefix.clone()..)
            .take_while(|(key, _)| is_under(key))
            .map(|(key, value)| (key.text.clone(), value.clone()))
            .collect()
    }

    /// How often a broker began to work in this data folder: it rises with each start, and is
    /// synced before this one serves anybody, so that no number is used twice.
    pub fn starts(&self) -> u64 {
        self.shared.identity().starts
    }

    /// The name of this data folder, made with it.
    pub fn cluster_id(&self) -> Uuid {
        self.shared.identity().cluster
    }
}
