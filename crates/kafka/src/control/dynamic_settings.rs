//! Dynamic settings of the broker and of groups, which AlterConfigs has changed. They are stored in
//! the state journal and override the configuration.

use std::collections::BTreeMap;

use cloverleaf_broker::{CatalogError, Realm, TopicOptionChanges};
use parking_lot::RwLock;

/// Prefix of the keys in the state journal. Stable: the keys are stored.
const PREFIX: &str = "kafka-settings/";

/// The resource that has the settings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SettingOwner {
    /// The broker, named by its node id. Its settings override those of `Brokers`.
    Broker,
    /// The cluster-wide default for all brokers.
    Brokers,
    Group(String),
}

/// Values by name.
pub(crate) type SettingValues = BTreeMap<String, String>;

/// All dynamic settings, in memory. The state journal has them, too.
#[derive(Debug, Default)]
pub(crate) struct DynamicSettings {
    values: RwLock<BTreeMap<SettingOwner, SettingValues>>,
}

impl SettingOwner {
    /// The key in the state journal. Stable: it is stored.
    fn key(&self) -> String {
        match self {
            Self::Broker => format!("{PREFIX}broker"),
            Self::Brokers => format!("{PREFIX}brokers"),
            Self::Group(name) => format!("{PREFIX}group/{name}"),
        }
    }

    fn of_key(key: &str) -> Option<Self> {
        match key.strip_prefix(PREFIX)? {
            "broker" => Some(Self::Broker),
            "brokers" => Some(Self::Brokers),
            other => other
                .strip_prefix("group/")
                .map(|name| Self::Group(name.to_owned())),
        }
    }
}

/// Encodes settings as lines of `NAME=VALUE`. Valid names and values have no line breaks. Stable:
/// the text is stored.
fn encode(values: &SettingValues) -> Vec<u8> {
    let line = |(name, value): (&String, &String)| format!("{name}={value}\n");
    values.iter().map(line).collect::<String>().into_bytes()
}

fn decode(bytes: &[u8]) -> SettingValues {
    let text = String::from_utf8_lossy(bytes);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pairs.collect()
}

impl DynamicSettings {
    /// Loads the settings from the state journal.
    pub(crate) fn load(realm: &Realm) -> Self {
        let kept = realm.kept_under(PREFIX).into_iter();
        let values =
            kept.filter_map(|(key, bytes)| Some((SettingOwner::of_key(&key)?, decode(&bytes))));
        Self {
            values: RwLock::new(values.collect()),
        }
    }

    /// The settings of this owner.
    pub(crate) fn of(&self, owner: &SettingOwner) -> SettingValues {
        self.values.read().get(owner).cloned().unwrap_or_default()
    }

    /// The dynamic values of a broker setting, in order of precedence.
    pub(crate) fn of_broker(&self, name: &str) -> Vec<(SettingOwner, String)> {
        let values = self.values.read();
        if values.is_empty() {
            return Vec::new();
        }
        let value = |owner: SettingOwner| {
            let value = values.get(&owner)?.get(name)?.clone();
            Some((owner, value))
        };
        let owners = [SettingOwner::Broker, SettingOwner::Brokers];
        owners.into_iter().filter_map(value).collect()
    }

    /// The groups that have settings.
    pub(crate) fn groups(&self) -> Vec<String> {
        let values = self.values.read();
        let name = |owner: &SettingOwner| match owner {
            SettingOwner::Group(name) => Some(name.clone()),
            SettingOwner::Broker | SettingOwner::Brokers => None,
        };
        values.keys().filter_map(name).collect()
    }

    /// Replaces the settings of this owner. The topic options that follow from them change in the
    /// same journal entry: `before` sees the old settings; `after` sees the new ones and returns
    /// the new topic options.
    ///
    /// # Errors
    /// The journal cannot be written. Nothing has changed then.
    pub(crate) fn set<T>(
        &self,
        realm: &Realm,
        owner: SettingOwner,
        values: SettingValues,
        before: impl FnOnce() -> T,
        after: impl FnOnce(T) -> TopicOptionChanges,
    ) -> Result<(), CatalogError> {
        let kept = (!values.is_empty()).then(|| encode(&values));
        let mut replaced = None;
        let set = realm.put_value_with(&owner.key(), kept, || {
            let seen = before();
            replaced = Some(self.put(owner.clone(), values));
            after(seen)
        });
        if let (Err(_), Some(replaced)) = (&set, replaced) {
            self.put(owner, replaced);
        }
        set
    }

    /// Replaces an owner's settings in memory; returns the old ones.
    fn put(&self, owner: SettingOwner, values: SettingValues) -> SettingValues {
        let mut all = self.values.write();
        let replaced = if values.is_empty() {
            all.remove(&owner)
        } else {
            all.insert(owner, values)
        };
        replaced.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_decoded_as_they_were_encoded() {
        let values: SettingValues = [("a.b", "1"), ("list", "x=y,z"), ("none", "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        assert_eq!(decode(&encode(&values)), values);
        let group = SettingOwner::Group("a/b".to_owned());
        for owner in [SettingOwner::Broker, SettingOwner::Brokers, group] {
            assert_eq!(SettingOwner::of_key(&owner.key()), Some(owner));
        }
        assert_eq!(SettingOwner::of_key("kafka-settings/topic/t"), None);
    }
}
