//! Small values that protocols keep in the journal, opaque to the broker; and the broker's
//! identity.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use uuid::Uuid;

use crate::broker::{Broker, CatalogError, Shared};
use crate::journal::entries::Entry;
use crate::namespace::{Name, OwnedName};

/// Identifies one start of one broker uniquely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Created when the data folder was first used.
    pub(crate) cluster: Uuid,
    /// How often a broker was started in this data folder.
    pub(crate) starts: u64,
}

/// All protocol values, in memory. The journal has them too.
#[derive(Debug, Default)]
pub(crate) struct ProtocolValues {
    /// The lock also orders the journal's entries: it is held while an entry is written.
    values: Mutex<BTreeMap<OwnedName, Vec<u8>>>,
}

impl ProtocolValues {
    pub(crate) fn apply(&self, key: OwnedName, value: Option<Vec<u8>>) {
        put(&mut self.values.lock(), key, value);
    }

    /// Changes a value after `write` has written its entry. Writes nothing if the value is
    /// unchanged.
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
    /// The broker's identity, created if the journal has none.
    pub(crate) fn identity(&self) -> &Identity {
        self.identity.get_or_init(|| Identity {
            cluster: Uuid::new_v4(),
            starts: 1,
        })
    }
}

impl Broker {
    /// Stores a small value of a protocol under `key`, or removes it (`None`). Written to the
    /// journal, not synced, when this returns: a kill does not lose it, a power loss may.
    ///
    /// # Errors
    /// The journal cannot be written; then the old value stays.
    pub fn put_value<'a>(
        &self,
        key: impl Into<Name<'a>>,
        value: Option<Vec<u8>>,
    ) -> Result<(), CatalogError> {
        let write = |entry| self.shared.write_entries(&[entry]);
        self.shared
            .protocol_values
            .set(key.into().owned(), value, write)
    }

    /// The value stored under `key`.
    pub fn value<'a>(&self, key: impl Into<Name<'a>>) -> Option<Vec<u8>> {
        let key = key.into().owned();
        self.shared.protocol_values.values.lock().get(&key).cloned()
    }

    /// All values of a namespace whose keys begin with `prefix`, sorted by key.
    pub fn kept_under<'a>(&self, prefix: impl Into<Name<'a>>) -> Vec<(String, Vec<u8>)> {
        let prefix = prefix.into().owned();
        let is_under = |key: &OwnedName| {
            key.namespace == prefix.namespace && key.text.starts_with(&prefix.text)
        };
        let values = self.shared.protocol_values.values.lock();
        values
            .range(prefix.clone()..)
            .take_while(|(key, _)| is_under(key))
            .map(|(key, value)| (key.text.clone(), value.clone()))
            .collect()
    }

    /// How often a broker was started in this data folder. The number increases with each start and
    /// is synced before the start serves clients, so it is never used twice.
    pub fn starts(&self) -> u64 {
        self.shared.identity().starts
    }

    /// The id of this data folder, created with it.
    pub fn cluster_id(&self) -> Uuid {
        self.shared.identity().cluster
    }
}
