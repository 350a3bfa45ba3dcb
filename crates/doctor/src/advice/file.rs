//! The files of advice: their format and its validation.

use std::collections::{BTreeMap, BTreeSet};

use cloverleaf_telemetry::Protocol;
use serde::Deserialize;
use thiserror::Error;

use super::fill::{NAMES, is_variable};
use super::{How, Kind, Picture, Side};
use crate::fill::fill;
use crate::version::{Range, Version};
use crate::{Client, Rule};

/// Why a file of advice is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("advice file {file}: {what}")]
pub struct AdviceError {
    /// The file's name.
    pub file: String,
    /// The fault of the file.
    pub what: String,
}

/// A family of client libraries with the same settings.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Family {
    pub(super) family: String,
    pub(super) name: String,
    pub(super) protocol: Protocol,
    #[serde(default)]
    pub(super) general: bool,
    #[serde(default)]
    pub(super) client: Vec<ClientEntry>,
    #[serde(default)]
    pub(super) advice: Vec<Entry>,
    #[serde(default)]
    pub(super) immune: Vec<Immune>,
}

/// A library, and how it is recognised.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientEntry {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) shown: Option<String>,
    pub(super) library: Option<String>,
    pub(super) library_prefix: Option<String>,
    pub(super) platform_prefix: Option<String>,
    pub(super) client_id_prefix: Option<String>,
    pub(super) client_id_suffix: Option<String>,
    pub(super) version_after: Option<String>,
    #[serde(default)]
    pub(super) also: Vec<String>,
    pub(super) version: Option<String>,
    #[serde(default)]
    pub(super) tells_once: bool,
    pub(super) source: Option<String>,
}

/// One change for one rule.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) rule: Rule,
    #[serde(default = "usual")]
    pub(super) pictures: Vec<Picture>,
    pub(super) setting: String,
    pub(super) kind: Kind,
    #[serde(default)]
    pub(super) how: How,
    pub(super) side: Option<Side>,
    #[serde(default)]
    pub(super) clients: Vec<String>,
    pub(super) versions: Option<String>,
    pub(super) value: Option<String>,
    pub(super) at_least: Option<f64>,
    pub(super) at_most: Option<f64>,
    pub(super) unit: Option<String>,
    #[serde(default)]
    pub(super) defaults: Vec<DefaultValue>,
    pub(super) say: String,
    #[serde(default)]
    pub(super) code: BTreeMap<String, String>,
    pub(super) cost: String,
    pub(super) sources: Vec<String>,
}

fn usual() -> Vec<Picture> {
    vec![Picture::Usual]
}

/// The default value of a setting.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DefaultValue {
    pub(super) versions: Option<String>,
    pub(super) value: String,
}

/// A finding that a library cannot have.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Immune {
    pub(super) rule: Rule,
    pub(super) side: Option<Side>,
    pub(super) versions: Option<String>,
    #[serde(default)]
    pub(super) clients: Vec<String>,
    pub(super) why: String,
    #[serde(default)]
    pub(super) sources: Vec<String>,
}

const UNITS: &[&str] = &["ms", "s", "bytes", "messages", "requests"];

impl Family {
    /// Reads and checks a file.
    pub(super) fn read(name: &str, text: &str) -> Result<Family, AdviceError> {
        let refuse = |what: String| AdviceError {
            file: name.to_owned(),
            what,
        };
        let family: Family = toml::from_str(text).map_err(|error| refuse(error.to_string()))?;
        family.check(name).map_err(refuse)?;
        Ok(family)
    }

    fn check(&self, name: &str) -> Result<(), String> {
        if name.strip_suffix(".toml") != Some(&self.family) {
            return Err(format!("family {:?} is not the file's name", self.family));
        }
        let mut ids = BTreeSet::new();
        for client in &self.client {
            if !ids.insert(client.id.as_str()) {
                return Err(format!("two clients have the id {:?}", client.id));
            }
            client.check()?;
        }
        let also: BTreeSet<&str> = self
            .client
            .iter()
            .flat_map(|client| client.also.iter().map(String::as_str))
            .collect();
        let is_known = |id: &String| ids.contains(id.as_str());
        for advice in &self.advice {
            let at = format!("rule {}, {:?}", advice.rule, advice.setting);
            advice.check().map_err(|what| format!("{at}: {what}"))?;
            if let Some(id) = advice.clients.iter().find(|id| !is_known(id)) {
                return Err(format!("{at}: no client has the id {id:?}"));
            }
            let mut coded = advice.code.keys();
            if let Some(id) = coded.find(|id| !is_known(id) && !also.contains(id.as_str())) {
                return Err(format!("{at}: code for {id:?}, which is no client"));
            }
        }
        for immune in &self.immune {
            check_range(immune.versions.as_deref())?;
            if immune.why.is_empty() || immune.sources.is_empty() {
                return Err(format!("immune to {}: why, by which source?", immune.rule));
            }
            if let Some(id) = immune.clients.iter().find(|id| !is_known(id)) {
                return Err(format!("immune to {}: no client {id:?}", immune.rule));
            }
        }
        Ok(())
    }
}

impl ClientEntry {
    /// How many of its keys fit this client; `None` when one does not.
    pub(super) fn matches(&self, client: &Client) -> Option<usize> {
        let starts = |text: &str, with: &String| text.starts_with(with.as_str());
        let keys = [
            self.library.as_ref().map(|it| *it == client.library),
            self.library_prefix
                .as_ref()
                .map(|it| starts(&client.library, it)),
            self.platform_prefix
                .as_ref()
                .map(|it| starts(&client.platform, it)),
            self.client_id_prefix
                .as_ref()
                .map(|it| starts(&client.client_id, it)),
            self.client_id_suffix
                .as_ref()
                .map(|it| client.client_id.ends_with(it.as_str())),
        ];
        let given = keys.iter().flatten();
        let count = given.clone().count();
        (count > 0 && given.copied().all(|fits| fits)).then_some(count)
    }

    /// The family's version, if the client's text contains it.
    pub(super) fn version_of(&self, client: &Client) -> Option<Version> {
        let text = match (&self.version, &self.version_after) {
            (Some(version), _) => version,
            (None, Some(after)) => client.version.split_once(after.as_str())?.1,
            (None, None) => &client.version,
        };
        Version::read(text)
    }

    /// How the library is printed, with the version that the client declares.
    pub(super) fn shown_with(&self, version: &str) -> Option<String> {
        let shown = self.shown.as_ref()?;
        Some(match version {
            "" => shown.replace(" {version}", ""),
            version => shown.replace("{version}", version),
        })
    }

    /// The keys of its lines of code.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.id.as_str()).chain(self.also.iter().map(String::as_str))
    }

    fn check(&self) -> Result<(), String> {
        let client = self.example();
        let id = &self.id;
        if self.name.is_empty() || self.source.as_ref().is_none_or(String::is_empty) {
            return Err(format!("client {id:?}: a name and a source are needed"));
        }
        if self.matches(&client).is_none() {
            return Err(format!("client {id:?}: nothing can fit all of its keys"));
        }
        if self
            .version
            .as_ref()
            .is_some_and(|it| Version::read(it).is_none())
        {
            return Err(format!("client {id:?}: its version is none"));
        }
        if self.tells_once && self.library.as_ref().is_none_or(String::is_empty) {
            return Err(format!("client {id:?}: what it tells once is its library"));
        }
        Ok(())
    }

    /// A client that matches its keys.
    pub(super) fn example(&self) -> Client {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Client {
            address: std::net::IpAddr::from([127, 0, 0, 1]),
            protocol: Protocol::Kafka,
            library: text(&self.library) + &text(&self.library_prefix),
            version: String::new(),
            client_id: text(&self.client_id_prefix) + &text(&self.client_id_suffix),
            platform: text(&self.platform_prefix),
        }
    }
}

impl Entry {
    /// The versions to which it applies; `None`: all.
    pub(super) fn range(&self) -> Option<Range> {
        self.versions.as_deref().and_then(Range::read)
    }

    /// A value within its bounds, if it is a number.
    pub(super) fn bounded(&self, value: String) -> String {
        let Ok(number) = value.parse::<f64>() else {
            return value;
        };
        let low = self.at_least.unwrap_or(f64::NEG_INFINITY);
        let high = self.at_most.unwrap_or(f64::INFINITY);
        match number.max(low).min(high) {
            within if within == number => value,
            within => within.to_string(),
        }
    }

    /// The default in this version.
    pub(super) fn default_of(&self, version: Option<&Version>) -> Option<String> {
        let fits = |default: &&DefaultValue| {
            let range = default.versions.as_deref().and_then(Range::read);
            range.is_none_or(|range| version.is_some() && range.has(version))
        };
        self.defaults.iter().find(fits).map(|it| it.value.clone())
    }

    fn check(&self) -> Result<(), String> {
        check_range(self.versions.as_deref())?;
        for default in &self.defaults {
            check_range(default.versions.as_deref())?;
        }
        if self.setting.is_empty() || self.say.is_empty() || self.cost.is_empty() {
            return Err("setting, say and cost must not be empty".to_owned());
        }
        // Sources are URLs, or documents of this repository for built-in files.
        let is_source = |it: &String| it.starts_with("http") || it.starts_with("docs/");
        if self.sources.is_empty() || !self.sources.iter().all(is_source) {
            return Err("sources are addresses or files of ours, and one is needed".to_owned());
        }
        if self
            .unit
            .as_ref()
            .is_some_and(|it| !UNITS.contains(&it.as_str()))
        {
            return Err(format!("the unit is one of {UNITS:?}"));
        }
        if self
            .at_least
            .zip(self.at_most)
            .is_some_and(|(low, high)| low > high)
        {
            return Err("at_least is more than at_most".to_owned());
        }
        let texts = [&self.setting, &self.say, &self.cost];
        let texts = texts
            .into_iter()
            .chain(&self.value)
            .chain(self.code.values());
        for text in texts {
            let mut wrong = None;
            fill(text, |name| {
                let is_value = name == "value" && self.value.is_some();
                if is_variable(name) && !is_value && !NAMES.contains(&name) {
                    wrong.get_or_insert(format!("{{{name}}} is no variable"));
                }
                None
            });
            if let Some(wrong) = wrong {
                return Err(wrong);
            }
        }
        Ok(())
    }
}

impl Immune {
    /// The versions that it covers; `None`: all.
    pub(super) fn range(&self) -> Option<Range> {
        self.versions.as_deref().and_then(Range::read)
    }
}

fn check_range(range: Option<&str>) -> Result<(), String> {
    match range.map(Range::read) {
        Some(None) => Err(format!(
            "{:?} is no range of versions",
            range.unwrap_or_default()
        )),
        _ => Ok(()),
    }
}
