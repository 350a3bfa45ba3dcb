//! Settings of the broker and of groups that were changed through the protocol. They are kept in
//! the journal, and count more than the configuration.

use std::collections::BTreeMap;

use cloverleaf_broker::{CatalogError, NewOptions, Realm};
use parking_lot::RwLock;

/// Keys of kept values begin so. Stable.
const PREFIX: &str = "kafka-settings/";

/// Whose settings they are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// The broker by its number; what is set so counts most.
    Broker,
    /// All brokers at once.
    Brokers,
    Group(String),
}

/// Values by name.
pub(crate) type Values = BTreeMap<String, String>;

/// All of them, in memory; the journal has them too.
#[derive(Debug, Default)]
pub(crate) struct ChangedSettings {
    values: RwLock<BTreeMap<Owner, Values>>,
}

impl Owner {
    /// Stable.
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

/// `NAME=VALUE`, a line each: neither has a line break in it, which is checked when it is set.
/// Stable.
fn encode(values: &Values) -> Vec<u8> {
    let line = |(name, value): (&String, &String)| format!("{name}={value}\n");
    values.iter().map(line).collect::<String>().into_bytes()
}

fn decode(bytes: &[u8]) -> Values {
    let text = String::from_utf8_lossy(bytes);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pairs.collect()
}

impl ChangedSettings {
    /// Reads the values that the journal has.
    pub(crate) fn load(realm: &Realm) -> Self {
        let kept = realm.kept_under(PREFIX).into_iter();
        let values = kept.filter_map(|(key, bytes)| Some((Owner::of_key(&key)?, decode(&bytes))));
        Self {
            values: RwLock::new(values.collect()),
        }
    }

    /// The values that were set for this owner.
    pub(crate) fn of(&self, owner: &Owner) -> Values {
        self.values.read().get(owner).cloned().unwrap_or_default()
    }

    /// The values of a setting of the broker, the one that counts first.
    pub(crate) fn of_broker(&self, name: &str) -> Vec<(Owner, String)> {
        let values = self.values.read();
        if values.is_empty() {
            return Vec::new();
        }
        let value = |owner: Owner| {
            let value = values.get(&owner)?.get(name)?.clone();
            Some((owner, value))
        };
        let owners = [Owner::Broker, Owner::Brokers];
        owners.into_iter().filter_map(value).collect()
    }

    /// The groups for which something was set.
    pub(crate) fn groups(&self) -> Vec<String> {
        let values = self.values.read();
        let name = |owner: &Owner| match owner {
            Owner::Group(name) => Some(name.clone()),
            Owner::Broker | Owner::Brokers => None,
        };
        values.keys().filter_map(name).collect()
    }

    /// Keeps these and no others for this owner, together with the options of topics that follow
    /// from them: `before` looks at the values until then, and `after` says what topics have to
    /// have from now on.
    ///
    /// # Errors
    /// The journal does not take them; nothing has changed then.
    pub(crate) fn set<T>(
        &self,
        realm: &Realm,
        owner: Owner,
        values: Values,
        before: impl FnOnce() -> T,
        after: impl FnOnce(T) -> NewOptions,
    ) -> Result<(), CatalogError> {
        let kept = (!values.is_empty()).then(|| encode(&values));
        let mut replaced = None;
        let set = realm.keep_with(&owner.key(), kept, || {
            let seen = before();
            replaced = Some(self.put(owner.clone(), values));
            after(seen)
        });
        if let (Err(_), Some(replaced)) = (&set, replaced) {
            self.put(owner, replaced);
        }
        set
    }

    /// Sets an owner's values, in memory; returns those before.
    fn put(&self, owner: Owner, values: Values) -> Values {
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
    fn what_is_kept_is_read_again() {
        let values: Values = [("a.b", "1"), ("list", "x=y,z"), ("none", "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        assert_eq!(decode(&encode(&values)), values);
        let group = Owner::Group("a/b".to_owned());
        for owner in [Owner::Broker, Owner::Brokers, group] {
            assert_eq!(Owner::of_key(&owner.key()), Some(owner));
        }
        assert_eq!(Owner::of_key("kafka-settings/topic/t"), None);
    }
}
