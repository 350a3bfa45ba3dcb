//! The sources of the configuration: flags take precedence over the environment, the environment
//! over the file, the file over the defaults.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::config::options::{OPTIONS, OptionDef};
use crate::config::{Config, DeadLetterRule};

/// The values given for options, by source.
#[derive(Debug, Clone, Default)]
pub struct ConfigSources {
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// The environment. Variables without the prefix are ignored, and so are unknown ones with it:
    /// container platforms set variables such as `CLOVERLEAF_PORT` for a service of that name.
    pub variables: BTreeMap<String, String>,
    /// Flags by name without dashes, each with all of its values.
    pub flags: BTreeMap<String, Vec<String>>,
}

/// Why the configuration cannot be loaded.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{} is not valid TOML: {error}", path.display())]
    NotToml {
        /// The file.
        path: PathBuf,
        /// The position and the reason.
        error: toml::de::Error,
    },
    /// A key or flag that does not exist.
    #[error("{place}: unknown option `{name}`; did you mean `{nearest}`?")]
    Unknown {
        /// The file, or the command line.
        place: String,
        /// The unknown name.
        name: String,
        /// The known name with the smallest edit distance.
        nearest: String,
    },
    /// A value that the option does not accept.
    #[error("{place}: {name}: {reason}")]
    Invalid {
        /// The file, the variable or the flag.
        place: String,
        /// Name of the option.
        name: String,
        /// The error in the value.
        reason: String,
    },
}

impl Config {
    /// Reads all sources.
    ///
    /// # Errors
    /// The first mistake, with its place, as a text for people.
    pub fn load(sources: &ConfigSources) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        if let Some(path) = &sources.file {
            let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
                path: path.clone(),
                error,
            })?;
            config.apply_file(&text, path)?;
        }
        for option in OPTIONS {
            let variable = option.variable();
            if let Some(text) = sources.variables.get(&variable) {
                config.apply(option, std::slice::from_ref(text), &variable)?;
            }
        }
        for (flag, texts) in &sources.flags {
            let option = OPTIONS.iter().find(|option| option.flag() == *flag);
            let option = option.ok_or_else(|| ConfigError::Unknown {
                place: "command line".to_owned(),
                name: format!("--{flag}"),
                nearest: format!("--{}", nearest(flag, OPTIONS.iter().map(OptionDef::flag))),
            })?;
            config.apply(option, texts, &format!("--{flag}"))?;
        }
        Ok(config)
    }

    fn apply(
        &mut self,
        option: &OptionDef,
        texts: &[String],
        place: &str,
    ) -> Result<(), ConfigError> {
        (option.set)(self, texts).map_err(|reason| ConfigError::Invalid {
            place: place.to_owned(),
            name: option.name(),
            reason,
        })
    }

    fn apply_file(&mut self, text: &str, path: &Path) -> Result<(), ConfigError> {
        let table: toml::Table = text.parse().map_err(|error| ConfigError::NotToml {
            path: path.to_owned(),
            error,
        })?;
        let place = path.display().to_string();
        for (key, value) in &table {
            match (key.as_str(), value) {
                (section, toml::Value::Table(entries)) if is_section(section) => {
                    for (key, value) in entries {
                        match (key.as_str(), value) {
                            ("dead_letter", toml::Value::Table(rules)) if section == "nsq" => {
                                self.apply_dead_letters(rules, &place)?;
                            }
                            _ => self.apply_entry(section, key, value, &place)?,
                        }
                    }
                }
                _ => self.apply_entry("", key, value, &place)?,
            }
        }
        Ok(())
    }

    fn apply_entry(
        &mut self,
        section: &str,
        key: &str,
        value: &toml::Value,
        place: &str,
    ) -> Result<(), ConfigError> {
        let option = OPTIONS
            .iter()
            .find(|option| option.section == section && option.key == key);
        let name = if section.is_empty() {
            key.to_owned()
        } else {
            format!("{section}.{key}")
        };
        let Some(option) = option else {
            let names = OPTIONS.iter().map(OptionDef::name);
            let nearest = nearest(&name, names.chain(sections().map(str::to_owned)));
            return Err(ConfigError::Unknown {
                place: place.to_owned(),
                name,
                nearest,
            });
        };
        let texts = texts_of(value, option.list).map_err(|reason| ConfigError::Invalid {
            place: place.to_owned(),
            name,
            reason,
        })?;
        self.apply(option, &texts, place)
    }

    fn apply_dead_letters(&mut self, rules: &toml::Table, place: &str) -> Result<(), ConfigError> {
        for (target, value) in rules {
            let name = format!("nsq.dead_letter.\"{target}\"");
            let invalid = |name: String, reason: String| ConfigError::Invalid {
                place: place.to_owned(),
                name,
                reason,
            };
            let toml::Value::Table(entries) = value else {
                return Err(invalid(name, "a table is expected".to_owned()));
            };
            let (topic, channel) = match target.split_once('/') {
                Some((topic, channel)) => (topic, Some(channel.to_owned())),
                None => (target.as_str(), None),
            };
            let mut rule = DeadLetterRule {
                topic: topic.to_owned(),
                channel,
                ..DeadLetterRule::default()
            };
            for (key, value) in entries {
                let name = format!("{name}.{key}");
                if !DeadLetterRule::KEYS.contains(&key.as_str()) {
                    let nearest = nearest(key, DeadLetterRule::KEYS.map(str::to_owned).into_iter());
                    return Err(ConfigError::Unknown {
                        place: place.to_owned(),
                        name,
                        nearest,
                    });
                }
                texts_of(value, false)
                    .and_then(|texts| rule.set(key, &texts.concat()))
                    .map_err(|reason| invalid(name, reason))?;
            }
            self.nsq_dead_letters.push(rule);
        }
        Ok(())
    }
}

/// The sections of the configuration file, each repeated for every option in it.
fn sections() -> impl Iterator<Item = &'static str> {
    let sections = OPTIONS.iter().map(|option| option.section);
    sections.filter(|section| !section.is_empty())
}

fn is_section(name: &str) -> bool {
    sections().any(|section| section == name)
}

/// The texts that a TOML value stands for.
fn texts_of(value: &toml::Value, list: bool) -> Result<Vec<String>, String> {
    match value {
        toml::Value::String(text) => Ok(vec![text.clone()]),
        toml::Value::Integer(number) => Ok(vec![number.to_string()]),
        toml::Value::Boolean(value) => Ok(vec![value.to_string()]),
        toml::Value::Array(values) if list => values
            .iter()
            .map(|value| Ok(texts_of(value, false)?.concat()))
            .collect(),
        other => Err(format!(
            "a value of type {} does not fit here",
            other.type_str()
        )),
    }
}

/// The known name with the smallest edit distance.
fn nearest(name: &str, known: impl Iterator<Item = String>) -> String {
    known
        .min_by_key(|known| strsim::levenshtein(name, known))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;
    use std::time::Duration;

    use super::*;
    use crate::config::value::{ByteSize, DurabilityMode};

    struct Written(tempfile::NamedTempFile);

    fn file(text: &str) -> Written {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Written(file)
    }

    fn load(text: &str) -> Result<Config, ConfigError> {
        let file = file(text);
        Config::load(&ConfigSources {
            file: Some(file.0.path().to_owned()),
            ..ConfigSources::default()
        })
    }

    fn error(text: &str) -> String {
        load(text).unwrap_err().to_string()
    }

    #[test]
    fn flags_take_precedence_over_environment_file_and_default() {
        let file = file("[nsq]\nmax_rdy_count = 10\nmsg_timeout = \"10s\"\nmax_msg_size = 10\n");
        let mut sources = ConfigSources::default();
        let rdy = |sources: &ConfigSources| Config::load(sources).unwrap().nsq.max_rdy_count;
        assert_eq!(rdy(&sources), 2500);
        sources.file = Some(file.0.path().to_owned());
        assert_eq!(rdy(&sources), 10);
        sources
            .variables
            .insert("CLOVERLEAF_NSQ_MAX_RDY_COUNT".into(), "20".into());
        sources
            .variables
            .insert("CLOVERLEAF_NSQ_MSG_TIMEOUT".into(), "20s".into());
        sources
            .variables
            .insert("CLOVERLEAF_PORT".into(), "tcp://10.0.0.1:4150".into());
        assert_eq!(rdy(&sources), 20);
        sources
            .flags
            .insert("nsq-max-rdy-count".into(), vec!["30".into()]);
        assert_eq!(rdy(&sources), 30);
        let config = Config::load(&sources).unwrap();
        assert_eq!(config.nsq.msg_timeout, Duration::from_secs(20));
        assert_eq!(config.nsq.max_msg_size, ByteSize(10));
    }

    #[test]
    fn a_file_can_set_everything() {
        let config = load(
            "durability = \"disk\"\nsegment_bytes = \"8MiB\"\nallow_anonymous_remote = true\n\
             [nsq]\nlookupd_tcp_address = [\"a:4160\", \"b:4160\"]\n\
             [nsq.dead_letter.\"orders/billing\"]\nattempts_max = 5\ntopic = \"lost\"\n",
        )
        .unwrap();
        assert_eq!(config.general.durability, DurabilityMode::Disk);
        assert_eq!(config.general.segment_bytes, ByteSize(8 << 20));
        assert!(config.general.allow_anonymous_remote);
        assert_eq!(config.nsq.lookupd_tcp_address, ["a:4160", "b:4160"]);
        let dead = config.dead_letter("orders", "billing").unwrap();
        assert_eq!((dead.attempts_max, dead.topic.as_str()), (5, "lost"));
        assert_eq!(config.dead_letter("orders", "other"), None);
    }

    #[test]
    fn unknown_keys_name_the_nearest_known_one() {
        let check = |text: &str, name: &str, nearest: &str| {
            let error = error(text);
            let expected = format!("unknown option `{name}`; did you mean `{nearest}`?");
            assert!(error.ends_with(&expected), "{error}");
        };
        check("durabilty = \"disk\"", "durabilty", "durability");
        check(
            "[nsq]\nmax_msg_sise = 1",
            "nsq.max_msg_sise",
            "nsq.max_msg_size",
        );
        check("[nsqq]\nx = 1", "nsqq", "nsq");
        check(
            "[nsq.dead_letter.t]\nattempts = 1",
            "nsq.dead_letter.\"t\".attempts",
            "attempts_max",
        );
        let mut sources = ConfigSources::default();
        sources
            .flags
            .insert("nsq-tcp-adress".into(), vec![String::new()]);
        let error = Config::load(&sources).unwrap_err().to_string();
        assert!(
            error.ends_with("did you mean `--nsq-tcp-address`?"),
            "{error}"
        );
    }

    #[test]
    fn wrong_values_say_where_and_why() {
        assert!(
            error("[nsq]\nmsg_timeout = 60").contains("nsq.msg_timeout: `60` is not a duration")
        );
        assert!(error("cores = -1").contains("cores: `-1` is not a whole number"));
        assert!(error("cores = [1]").contains("cores: a value of type array does not fit"));
        assert!(error("cores = ").contains("is not valid TOML"));
        assert!(error("[nsq]\ntcp_address = \"here\"").contains("is not an address"));
        assert!(error("[nsq.dead_letter]\nt = 1").contains("a table is expected"));
        let missing = ConfigSources {
            file: Some("/nonexistent".into()),
            ..ConfigSources::default()
        };
        let error = Config::load(&missing).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot read the configuration file /nonexistent"),
            "{error}"
        );
        let mut sources = ConfigSources::default();
        sources
            .variables
            .insert("CLOVERLEAF_DURABILITY".into(), "yes".into());
        let error = Config::load(&sources).unwrap_err().to_string();
        assert!(
            error.starts_with("CLOVERLEAF_DURABILITY: durability: `yes`"),
            "{error}"
        );
    }
}
