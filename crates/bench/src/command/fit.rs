//! Options that only some protocols have. Where they would change nothing they are refused, so that
//! nobody takes equal figures for the result of different settings.

use cloverleaf_telemetry::{Protocol, Traits};

use super::BenchError;
use super::args::LoadArgs;
use crate::plan::Plan;
use crate::url::Url;

/// An option that somebody has given.
struct Given {
    /// The option as it was written.
    words: String,
    /// The feature that it is about.
    what: &'static str,
    /// Whether a protocol has that feature.
    has: fn(&Traits) -> bool,
}

impl LoadArgs {
    fn given(&self) -> Vec<Given> {
        let partitions = self.target.partitions.map(|number| Given {
            words: format!("--partitions {number}"),
            what: "partitions",
            has: |it| it.has_partitions,
        });
        let keys = self.messages.keys.map(|number| Given {
            words: format!("--keys {number}"),
            what: "keys",
            has: |it| it.has_keys,
        });
        partitions.into_iter().chain(keys).collect()
    }

    /// A sentence about the size of batches for each broker to which messages go one by one.
    fn without_batches(&self, urls: &[Url]) -> Vec<String> {
        let Some(number) = self.clients.batch_size.filter(|number| *number > 1) else {
            return Vec::new();
        };
        let without = urls.iter().filter(|url| !url.protocol.traits().has_batches);
        let sentence = |url: &Url| {
            let (name, protocol) = (url.name(), url.protocol.traits().title);
            format!(
                "{name}: {protocol} publishes one message at a time, so --batch-size {number} does \
                 not concern it."
            )
        };
        without.map(sentence).collect()
    }

    /// Sentences about options that do not concern some of these brokers.
    ///
    /// # Errors
    /// An option concerns none of them.
    pub(super) fn strangers(&self, urls: &[Url]) -> Result<Vec<String>, BenchError> {
        let mut notes = self.without_batches(urls);
        for given in self.given() {
            let without = urls
                .iter()
                .filter(|url| !(given.has)(url.protocol.traits()));
            let without: Vec<&Url> = without.collect();
            if without.len() == urls.len() {
                return Err(nobody_has(&given.words, given.what, urls));
            }
            notes.extend(without.iter().map(|url| {
                let protocol = url.protocol.traits().title;
                let Given { words, what, .. } = &given;
                let name = url.name();
                format!("{name}: {protocol} has no {what}, so {words} does not concern it.")
            }));
        }
        Ok(notes)
    }
}

/// Partitions are to grow, and one of these brokers has none.
pub(super) fn all_have_partitions(urls: &[Url]) -> Result<(), BenchError> {
    match urls
        .iter()
        .find(|url| !url.protocol.traits().has_partitions)
    {
        None => Ok(()),
        Some(url) => {
            let only = std::slice::from_ref(url);
            Err(nobody_has("--over partitions", "partitions", only))
        }
    }
}

fn nobody_has(words: &str, what: &str, urls: &[Url]) -> BenchError {
    let mut names: Vec<&str> = urls.iter().map(|url| url.protocol.traits().title).collect();
    names.sort_unstable();
    names.dedup();
    let (names, has) = (
        names.join(" and "),
        if names.len() > 1 { "have" } else { "has" },
    );
    BenchError::Settings(format!(
        "{names} {has} no {what}, so {words} would change nothing: leave it out, or measure by \
         kafka://"
    ))
}

/// The plan without what this protocol does not have.
pub(super) fn fitting(plan: Plan, protocol: Protocol) -> Plan {
    Plan {
        partitions: if protocol.traits().has_partitions {
            plan.partitions
        } else {
            1
        },
        keys: if protocol.traits().has_keys {
            plan.keys
        } else {
            0
        },
        batch_messages: if protocol.traits().has_batches {
            plan.batch_messages
        } else {
            1
        },
        ..plan
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;
    use crate::command::THROUGHPUT;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn load(line: &str) -> LoadArgs {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().load
    }

    fn strangers(line: &str) -> Result<String, String> {
        let load = load(line);
        let notes = load.strangers(&load.target.urls());
        notes
            .map(|notes| notes.join("\n"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn what_concerns_nobody_is_refused() {
        for (line, expected) in [
            (
                "--partitions 1",
                "NSQ has no partitions, so --partitions 1 would change nothing: leave it out, or \
                 measure by kafka://",
            ),
            (
                "--keys 5 --url amqp://a --url amqp://b",
                "AMQP has no keys, so --keys 5 would change nothing: leave it out, or measure by \
                 kafka://",
            ),
            (
                "--partitions 4 --url nsq://a --url amqp://b",
                "AMQP and NSQ have no partitions, so --partitions 4 would change nothing: leave it \
                 out, or measure by kafka://",
            ),
        ] {
            assert_eq!(strangers(line).unwrap_err(), expected, "{line}");
        }
    }

    #[test]
    fn what_concerns_others_is_noted() {
        let line = "--partitions 4 --keys 9 --url a=nsq://a --url kafka://b";
        let expected = "a: NSQ has no partitions, so --partitions 4 does not concern it.\n\
                        a: NSQ has no keys, so --keys 9 does not concern it.";
        assert_eq!(strangers(line).unwrap(), expected);
        assert_eq!(strangers("--partitions 4 --url kafka://b").unwrap(), "");
        let batches = "--batch-size 5 --url nsq://a --url b=amqp://b";
        let expected = "b: AMQP publishes one message at a time, so --batch-size 5 does not \
                        concern it.";
        assert_eq!(strangers(batches).unwrap(), expected);
        assert_eq!(strangers("--batch-size 1 --url amqp://b").unwrap(), "");
        assert_eq!(strangers("--url nsq://b").unwrap(), "");
        let plan = load(line).plan(&THROUGHPUT).unwrap();
        assert_eq!((plan.partitions, plan.keys), (4, 9));
        let kafka = fitting(plan.clone(), Protocol::Kafka);
        assert_eq!(kafka, plan);
        let nsq = fitting(plan, Protocol::Nsq);
        assert_eq!((nsq.partitions, nsq.keys), (1, 0));
        assert!(nsq.batch_messages > 1);
        let amqp = fitting(kafka, Protocol::Amqp);
        assert_eq!(amqp.batch_messages, 1);
    }

    #[test]
    fn partitions_grow_where_there_are_some() {
        let both = load("--url kafka://a --url nsq://b").target.urls();
        assert!(all_have_partitions(&both[..1]).is_ok());
        let error = all_have_partitions(&both).unwrap_err().to_string();
        assert!(
            error.starts_with("NSQ has no partitions, so --over"),
            "{error}"
        );
    }
}
