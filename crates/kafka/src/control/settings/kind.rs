//! The types of settings and their valid values, as in Kafka's `ConfigDef`.

/// The type of a setting and its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettingType {
    /// `true` or `false`.
    Bool,
    /// A 32-bit number within bounds.
    Int(i32, i32),
    /// A 64-bit number, at least this one.
    Long(i64),
    /// A number from 0 to 1.
    Ratio,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A comma-separated list of some of these words.
    Words(&'static [&'static str]),
    /// `*`, `none`, or pairs of partition and broker.
    Replicas,
    /// Any text; for broker settings that are only read.
    Text,
}

impl SettingType {
    /// The type on the wire (DescribeConfigs since version 3).
    pub(crate) fn code(self) -> i8 {
        match self {
            Self::Bool => 1,
            Self::Word(_) | Self::Text => 2,
            Self::Int(..) => 3,
            Self::Long(_) => 5,
            Self::Ratio => 6,
            Self::Words(_) | Self::Replicas => 7,
        }
    }

    /// Whether it is a list, which IncrementalAlterConfigs can append to and subtract from.
    pub(crate) fn is_list(self) -> bool {
        matches!(self, Self::Words(_) | Self::Replicas)
    }

    /// Validates a value. Returns it in the form in which it is stored, or an error message.
    pub(crate) fn check(self, value: &str) -> Result<String, String> {
        let value = value.trim();
        let kept = match self {
            Self::Bool if value.eq_ignore_ascii_case("true") => "true".to_owned(),
            Self::Bool if value.eq_ignore_ascii_case("false") => "false".to_owned(),
            Self::Bool => return Err("it is either true or false".to_owned()),
            Self::Int(min, max) => {
                let number: i32 = value.parse().map_err(|_| "it is no 32-bit number")?;
                if !(min..=max).contains(&number) {
                    return Err(format!("it must be from {min} to {max}"));
                }
                number.to_string()
            }
            Self::Long(min) => {
                let number: i64 = value.parse().map_err(|_| "it is no 64-bit number")?;
                if number < min {
                    return Err(format!("it must be at least {min}"));
                }
                number.to_string()
            }
            Self::Ratio => {
                let number: f64 = value.parse().map_err(|_| "it is no number")?;
                if !(0.0..=1.0).contains(&number) {
                    return Err("it must be from 0 to 1".to_owned());
                }
                value.to_owned()
            }
            Self::Word(words) => match words.iter().find(|word| **word == value) {
                Some(word) => (*word).to_owned(),
                None => return Err(format!("it must be one of: {}", words.join(", "))),
            },
            Self::Words(words) => {
                let given: Vec<&str> = value.split(',').map(str::trim).collect();
                if !given.iter().all(|word| words.contains(word)) {
                    return Err(format!("it must be some of: {}", words.join(", ")));
                }
                given.join(",")
            }
            Self::Replicas if is_replicas(value) => value.to_owned(),
            Self::Replicas => return Err("it is *, none, or partition:broker pairs".to_owned()),
            Self::Text => value.to_owned(),
        };
        Ok(kept)
    }
}

/// Whether a value has the form `[partition]:[broker],...`, as in Kafka's
/// `ThrottledReplicaListValidator`.
fn is_replicas(value: &str) -> bool {
    let is_number = |text: &str| text.trim().parse::<u32>().is_ok();
    let is_pair = |pair: &str| {
        pair.split_once(':')
            .is_some_and(|(partition, broker)| is_number(partition) && is_number(broker))
    };
    matches!(value, "" | "*" | "none") || value.split(',').all(is_pair)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn values_are_checked_as_kafka_does() {
        let policy = SettingType::Words(&["compact", "delete"]);
        for (kind, good, kept) in [
            (SettingType::Bool, "TRUE", "true"),
            (SettingType::Int(0, i32::MAX), " 5 ", "5"),
            (SettingType::Long(-1), "-1", "-1"),
            (SettingType::Ratio, "0.5", "0.5"),
            (policy, "compact, delete", "compact,delete"),
            (SettingType::Replicas, "0:1,1:1", "0:1,1:1"),
            (SettingType::Replicas, "*", "*"),
            (SettingType::Word(&["producer"]), "producer", "producer"),
        ] {
            assert_eq!(kind.check(good).unwrap(), kept);
        }
        for (kind, bad) in [
            (SettingType::Bool, "yes"),
            (SettingType::Int(0, i32::MAX), "-1"),
            (SettingType::Int(0, i32::MAX), "2147483648"),
            (SettingType::Long(-1), "-2"),
            (SettingType::Long(-1), "1e3"),
            (SettingType::Long(-1), ""),
            (SettingType::Ratio, "1.5"),
            (SettingType::Ratio, "NaN"),
            (policy, "keep"),
            (policy, ""),
            (SettingType::Replicas, "0"),
            (SettingType::Word(&["producer"]), "zstd"),
        ] {
            assert!(kind.check(bad).is_err(), "{kind:?} {bad}");
        }
    }
}
