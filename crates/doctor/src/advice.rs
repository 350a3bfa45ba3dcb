//! Advice: which setting to change, in the client's own library and version.
//!
//! The advice is data: a file for each family of client libraries, in this crate's folder
//! `advice/`, built into the binary; `advice/README.md` describes the format. A rule finds the
//! fault and its numbers; this module finds the settings for it.

mod file;
mod fill;

use std::sync::{Arc, OnceLock};

use cloverleaf_telemetry::Protocol;
use serde::{Deserialize, Serialize};

use crate::rules::Variables;
use crate::version::Version;
use crate::{Client, Rule};
use file::{ClientEntry, Entry, Family};
use fill::Filled;

pub use file::AdviceError;

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/advice_files.rs"));
}

/// The value of a setting that limits a consumer's messages in flight. The broker sees the present
/// limit.
const CREDIT: &str = "{credit}";

/// Whether a client sends or receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// It publishes.
    Producer,
    /// It consumes.
    Consumer,
}

/// The sort of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A configuration value.
    Setting,
    /// How the program calls the library.
    Call,
    /// The number of connections, consumers or similar parts.
    Design,
    /// A property of the topic or queue.
    Broker,
}

/// How a change relates to the one before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// It is the change.
    #[default]
    Do,
    /// It is needed in addition.
    With,
    /// It may be done instead.
    Or,
}

/// The form in which a rule's fault was seen, if that form needs another change than usual.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Picture {
    /// The usual form of the rule.
    #[default]
    Usual,
    /// Hoarding: consumers of one client pass their messages to workers that they share, each with
    /// a queue of its own.
    Waves,
    /// Hoarding: one worker has the messages of all consumers of a client.
    OneWorker,
    /// One-connection: one request is in flight, and each is a full batch.
    FullBatch,
}

impl Picture {
    /// All pictures.
    pub(crate) const ALL: [Picture; 4] = [
        Picture::Usual,
        Picture::Waves,
        Picture::OneWorker,
        Picture::FullBatch,
    ];

    /// Whether it is the usual one.
    pub(crate) fn is_usual(&self) -> bool {
        *self == Picture::Usual
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The client that it is written for.
    pub client: String,
    /// The setting or call, as the library names it.
    pub setting: String,
    /// The sort of change.
    pub kind: Kind,
    /// How it relates to the change before it.
    pub how: How,
    /// The value to set.
    pub value: Option<String>,
    /// The value's unit.
    pub unit: Option<String>,
    /// The default in the client's version, if known.
    pub default: Option<String>,
    /// Whether the value to set is the default, so that the program has set another one.
    pub is_default: bool,
    /// The present value, if the broker sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<String>,
    /// The change in words.
    pub say: String,
    /// The change as lines of code, each for one library.
    pub code: Vec<String>,
    /// Its cost, in words.
    pub cost: String,
    /// URLs or documents as evidence.
    pub sources: Vec<String>,
}

/// The advice that a client would get with a finding of this rule, independent of measured numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleAdvice {
    /// The rule.
    pub rule: Rule,
    /// Whether it concerns the client as a producer or as a consumer.
    pub side: Side,
    /// The form of the rule's fault.
    #[serde(default, skip_serializing_if = "Picture::is_usual")]
    pub picture: Picture,
    /// The changes, best first.
    pub changes: Vec<Change>,
    /// Why this library cannot have it.
    pub immune: Option<String>,
}

/// The advice about a rule for a client.
#[derive(Debug, Default)]
pub(crate) struct Advised {
    pub(crate) changes: Vec<Change>,
    /// Why this library cannot have it.
    pub(crate) immune: Option<String>,
}

/// All advice.
#[derive(Debug, Clone, Default)]
pub struct Advice {
    has_built_in: bool,
    own: Vec<(String, Family)>,
    /// All families, in the order of their files' names; clones share them. The built-in ones are
    /// parsed at first use, because a broker without clients needs none of them.
    families: Arc<OnceLock<Vec<(String, Family)>>>,
}

impl Advice {
    /// The advice that is built in.
    pub fn embedded() -> Advice {
        Advice {
            has_built_in: true,
            ..Advice::default()
        }
    }

    fn families(&self) -> &[(String, Family)] {
        self.families.get_or_init(|| {
            let built_in = if self.has_built_in {
                embedded::FILES
            } else {
                &[]
            };
            // A test parses each built-in file.
            let read = |(name, text): &(&str, &str)| {
                let family = Family::read(name, text).ok()?;
                Some(((*name).to_owned(), family))
            };
            let mut all: Vec<_> = built_in.iter().filter_map(read).collect();
            all.retain(|(_, it)| self.own.iter().all(|(_, own)| own.family != it.family));
            all.extend(self.own.iter().cloned());
            all.sort_by(|a, b| a.0.cmp(&b.0));
            all
        })
    }

    /// Adds a file of the operator, or replaces the built-in one of the same family.
    ///
    /// # Errors
    /// The fault of the file. Nothing is changed then.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), AdviceError> {
        let family = Family::read(name, text)?;
        self.own.retain(|(_, it)| it.family != family.family);
        self.own.push((name.to_owned(), family));
        self.families = Arc::default();
        Ok(())
    }

    /// The name of the client's library, as its authors write it, if the advice knows it.
    pub fn library_name(&self, client: &Client) -> Option<&str> {
        let (_, entry) = self.recognise(client)?;
        Some(&entry.name)
    }

    /// Library and version as a finding shows them, if the advice defines that.
    pub(crate) fn library_shown(&self, client: &Client) -> Option<String> {
        let (_, entry) = self.recognise(client)?;
        entry.shown_with(&client.version)
    }

    /// Whether this library declares its name on its first connection only.
    pub(crate) fn tells_once(&self, protocol: Protocol, library: &str) -> bool {
        let families = self.families().iter().map(|(_, family)| family);
        let mut entries = families
            .filter(|family| family.protocol == protocol)
            .flat_map(|family| &family.client);
        entries.any(|it| it.tells_once && it.library.as_deref() == Some(library))
    }

    /// The family and the client entry that match best.
    fn recognise(&self, client: &Client) -> Option<(&Family, &ClientEntry)> {
        let mut best: Option<(usize, &Family, &ClientEntry)> = None;
        for (_, family) in self.families() {
            if family.protocol != client.protocol {
                continue;
            }
            for entry in &family.client {
                let Some(keys) = entry.matches(client) else {
                    continue;
                };
                if best.is_none_or(|(most, ..)| keys > most) {
                    best = Some((keys, family, entry));
                }
            }
        }
        best.map(|(_, family, entry)| (family, entry))
    }

    /// All advice for a client of this library and version, in the order of [`Rule::ALL`]: it
    /// depends only on the client. Names in capitals replace the numbers of a finding.
    pub fn for_client(&self, client: &Client) -> Vec<RuleAdvice> {
        let sides = [Side::Producer, Side::Consumer];
        let cases = Rule::ALL
            .iter()
            .flat_map(|rule| sides.map(|side| (*rule, side)))
            .flat_map(|(rule, side)| Picture::ALL.map(|picture| (rule, side, picture)));
        cases
            .map(|(rule, side, picture)| {
                let none = Variables::new();
                let advised = self.of((rule, picture), side, client, &none, &None);
                RuleAdvice {
                    rule,
                    side,
                    picture,
                    changes: advised.changes,
                    immune: advised.immune,
                }
            })
            .filter(|it| {
                let is_immune = it.immune.is_some() && it.picture.is_usual();
                !it.changes.is_empty() || is_immune
            })
            .collect()
    }

    /// The advice about a rule in this form for a client.
    pub(crate) fn of(
        &self,
        (rule, picture): (Rule, Picture),
        side: Side,
        client: &Client,
        variables: &Variables,
        place: &Option<(String, String)>,
    ) -> Advised {
        let fill = Filled::new(variables, place.as_ref());
        let mut advised = Advised::default();
        if let Some((family, entry)) = self.recognise(client) {
            let version = entry.version_of(client);
            let case = AdviceCriteria {
                rule,
                picture,
                side,
                entry: Some(entry),
                version: version.as_ref(),
            };
            let immune = family.immune.iter().find(|immune| case.fits_immune(immune));
            advised.immune = immune.map(|immune| immune.why.clone());
            let fitting = family.advice.iter().filter(|it| case.fits(it));
            advised.changes = fitting
                .map(|it| case.change(it, &entry.name, &fill))
                .collect();
        }
        if advised.changes.is_empty() {
            let case = AdviceCriteria {
                rule,
                picture,
                side,
                entry: None,
                version: None,
            };
            let mut general = self.families().iter().map(|(_, family)| family);
            let general = general.find(|it| it.general && it.protocol == client.protocol);
            if let Some(family) = general {
                let fitting = family.advice.iter().filter(|it| case.fits(it));
                advised.changes = fitting
                    .map(|it| case.change(it, &family.name, &fill))
                    .collect();
            }
        }
        advised
    }
}

/// The criteria by which advice is selected.
struct AdviceCriteria<'a> {
    rule: Rule,
    picture: Picture,
    side: Side,
    entry: Option<&'a ClientEntry>,
    version: Option<&'a Version>,
}

impl AdviceCriteria<'_> {
    fn is_for(&self, clients: &[String]) -> bool {
        clients.is_empty() || self.entry.is_some_and(|entry| clients.contains(&entry.id))
    }

    fn fits(&self, advice: &Entry) -> bool {
        advice.rule == self.rule
            && advice.pictures.contains(&self.picture)
            && advice.side.is_none_or(|side| side == self.side)
            && self.is_for(&advice.clients)
            && advice.range().is_none_or(|range| range.has(self.version))
    }

    fn fits_immune(&self, immune: &file::Immune) -> bool {
        immune.rule == self.rule
            && immune.side.is_none_or(|side| side == self.side)
            && self.is_for(&immune.clients)
            && immune.range().is_none_or(|range| range.has(self.version))
    }

    fn change(&self, advice: &Entry, client: &str, fill: &Filled<'_>) -> Change {
        let value = advice.value.as_ref().map(|value| {
            let value = fill.fill(value, None);
            advice.bounded(value)
        });
        let default = advice.default_of(self.version);
        let is_default = value.is_some() && value == default;
        let ids = self.entry.iter().flat_map(|entry| entry.ids());
        let code = ids.filter_map(|id| advice.code.get(id));
        let mut code: Vec<String> = code.map(|it| fill.fill(it, value.as_deref())).collect();
        code.dedup();
        Change {
            client: client.to_owned(),
            setting: fill.fill(&advice.setting, None),
            kind: advice.kind,
            how: advice.how,
            unit: advice.unit.clone(),
            default,
            is_default,
            now: match &advice.value {
                Some(value) if value == CREDIT => fill.prefetch(),
                _ => None,
            },
            say: fill.fill(&advice.say, value.as_deref()),
            code,
            cost: fill.fill(&advice.cost, value.as_deref()),
            sources: advice.sources.clone(),
            value,
        }
    }
}

#[cfg(test)]
mod tests;
