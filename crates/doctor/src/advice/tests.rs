#![allow(clippy::unwrap_used)]

use cloverleaf_telemetry::{Identity, Protocol};

use super::*;

const OURS: &str = r#"
family = "ours"
name = "Ours"
protocol = "kafka"
[[client]]
id = "ours-c"
name = "ours for C"
library = "ours"
source = "https://example.org/c"
[[client]]
id = "ours-python"
name = "ours for Python"
library_prefix = "ours-"
version_after = "-core-"
also = ["ours-wrapper"]
source = "https://example.org/python"
[[client]]
id = "ours-named"
name = "ours, named"
library = "ours"
client_id_prefix = "special"
version = "0.9"
source = "https://example.org/named"
[[advice]]
rule = "sync-produce"
setting = "window"
kind = "setting"
versions = ">=1.0"
value = "{in_flight}"
at_most = 5
unit = "requests"
defaults = [{ versions = "<2", value = "1" }, { versions = ">=2", value = "5" }]
say = "Have {value} in flight on {topic}, not {in_flight}; {credit}."
cost = "Memory."
sources = ["https://example.org/window"]
[advice.code]
ours-c = "set({value});"
ours-python = "set(window={value})"
ours-wrapper = "wrap({'w': {value}})"
[[advice]]
rule = "sync-produce"
setting = "old_window"
kind = "setting"
versions = "<1.0"
clients = ["ours-named"]
value = "3"
say = "Set it."
cost = "None."
sources = ["https://example.org/old"]
[[immune]]
rule = "nagle"
versions = ">=2"
why = "It sets TCP_NODELAY."
sources = ["https://example.org/nagle"]
"#;

const GENERAL: &str = r#"
family = "general"
name = "a Kafka client"
protocol = "kafka"
general = true
[[advice]]
rule = "nagle"
setting = "TCP_NODELAY"
kind = "setting"
value = "on"
say = "Turn it off."
cost = "None."
sources = ["https://example.org/general"]
"#;

fn advice() -> Advice {
    let mut advice = Advice::default();
    advice.add("ours.toml", OURS).unwrap();
    advice.add("general.toml", GENERAL).unwrap();
    advice
}

fn client(library: &str, version: &str, client_id: &str) -> Client {
    let identity = Identity {
        library: library.to_owned(),
        version: version.to_owned(),
        client_id: client_id.to_owned(),
        platform: String::new(),
    };
    Client::of(Protocol::Kafka, ([10, 0, 0, 1], 1).into(), &identity)
}

fn of(rule: Rule, client: &Client) -> Advised {
    let variables = Variables::from([("in_flight", 10.0)]);
    let place = Some(("orders".to_owned(), "billing".to_owned()));
    advice().of(
        (rule, Picture::Usual),
        Side::Producer,
        client,
        &variables,
        &place,
    )
}

#[test]
fn a_change_is_written_for_the_client_that_asks() {
    let advised = of(Rule::SyncProduce, &client("ours-py", "7.0-core-1.4.2", ""));
    let [change] = &advised.changes[..] else {
        panic!("{advised:?}");
    };
    assert_eq!(change.client, "ours for Python");
    assert_eq!(change.value.as_deref(), Some("5"), "at most");
    assert_eq!(change.default.as_deref(), Some("1"));
    assert!(!change.is_default);
    assert_eq!(change.say, "Have 5 in flight on orders, not 10; CREDIT.");
    assert_eq!(change.code, ["set(window=5)", "wrap({'w': 5})"]);
    // In a later version this value is the default.
    let advised = of(Rule::SyncProduce, &client("ours", "2.1", ""));
    assert!(advised.changes[0].is_default);
    assert_eq!(advised.changes[0].code, ["set(5);"]);
}

#[test]
fn the_client_with_more_keys_wins() {
    let advised = of(Rule::SyncProduce, &client("ours", "5.0", "special one"));
    assert_eq!(advised.changes[0].client, "ours, named");
    assert_eq!(advised.changes[0].setting, "old_window");
}

#[test]
fn unknown_clients_and_versions_get_what_fits_them() {
    assert_eq!(
        of(Rule::Nagle, &client("theirs", "1", "")).changes[0].setting,
        "TCP_NODELAY"
    );
    assert!(
        of(Rule::SyncProduce, &client("theirs", "1", ""))
            .changes
            .is_empty()
    );
    let unknown = of(Rule::SyncProduce, &client("ours", "", ""));
    assert_eq!(unknown.changes[0].setting, "window");
    assert_eq!(unknown.changes[0].default, None, "of which version?");
    let amqp = Client {
        protocol: Protocol::Amqp,
        ..client("ours", "2", "")
    };
    assert!(of(Rule::Nagle, &amqp).changes.is_empty());
}

#[test]
fn an_immune_client_is_said_to_be() {
    let advised = of(Rule::Nagle, &client("ours", "2.0", ""));
    assert_eq!(advised.immune.as_deref(), Some("It sets TCP_NODELAY."));
    assert_eq!(advised.changes[0].client, "a Kafka client");
    assert_eq!(of(Rule::Nagle, &client("ours", "1.9", "")).immune, None);
}

#[test]
fn a_file_of_the_same_family_replaces_ours() {
    let mut advice = advice();
    let other = OURS.replace("ours for C", "mine");
    advice.add("ours.toml", &other).unwrap();
    assert_eq!(advice.families().len(), 2);
    assert_eq!(advice.library_name(&client("ours", "1", "")), Some("mine"));
}

#[test]
fn what_is_wrong_is_refused_with_words() {
    let wrong = [
        ("rule = \"nagle\"", "rule = \"nagles\"", "unknown variant"),
        ("kind = \"setting\"", "kind = \"hope\"", "unknown variant"),
        (
            "unit = \"requests\"",
            "unit = \"cows\"",
            "the unit is one of",
        ),
        ("\">=1.0\"", "\"about 1\"", "no range of versions"),
        (
            "{in_flight};",
            "{in_flights};",
            "{in_flights} is no variable",
        ),
        (
            "clients = [\"ours-named\"]",
            "clients = [\"x\"]",
            "no client has the id",
        ),
        ("ours-wrapper = ", "x = ", "code for \"x\""),
        ("id = \"ours-c\"", "id = \"ours-python\"", "two clients"),
        (
            "family = \"ours\"",
            "family = \"hours\"",
            "not the file's name",
        ),
        ("cost = \"None.\"", "cost = \"\"", "must not be empty"),
        (
            "\"https://example.org/old\"",
            "\"a friend\"",
            "sources are addresses",
        ),
        (
            "at_most = 5",
            "at_least = 9\nat_most = 5",
            "at_least is more",
        ),
        ("[[immune]]", "[[immune]]\nhope = 1", "unknown field"),
    ];
    for (old, new, what) in wrong {
        assert!(OURS.contains(old), "{old}");
        let error = Advice::default().add("ours.toml", &OURS.replacen(old, new, 1));
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("advice file ours.toml: "), "{error}");
        assert!(error.contains(what), "{new}: {error}");
    }
}

#[test]
fn all_files_that_are_built_in_are_right() {
    let advice = Advice::embedded();
    assert!(!advice.families().is_empty());
    for (name, text) in super::embedded::FILES {
        Family::read(name, text).unwrap();
    }
    for (name, family) in advice.families() {
        for entry in &family.client {
            let client = Client {
                protocol: family.protocol,
                ..entry.example()
            };
            let (found, client) = advice.recognise(&client).unwrap();
            let is_itself = found.family == family.family && client.id == entry.id;
            assert!(is_itself, "{name}: {} is taken for {}", entry.id, client.id);
        }
    }
    for protocol in [
        Protocol::Kafka,
        Protocol::Amqp,
        Protocol::Nsq,
        Protocol::Http,
    ] {
        let general = advice.families().iter().map(|(_, family)| family);
        let mut general = general.filter(|it| it.general && it.protocol == protocol);
        assert!(
            general.next().is_some(),
            "no general advice for {}",
            protocol.name()
        );
        assert!(
            general.next().is_none(),
            "two of them for {}",
            protocol.name()
        );
    }
}

/// The clients that a rule's finding can be about: their sides, and their protocols.
fn reach(rule: Rule) -> (&'static [Side], &'static [Protocol]) {
    use Protocol::{Amqp, Http, Kafka, Nsq};
    const BOTH: &[Side] = &[Side::Producer, Side::Consumer];
    const PRODUCER: &[Side] = &[Side::Producer];
    const CONSUMER: &[Side] = &[Side::Consumer];
    match rule {
        Rule::Churn | Rule::Nagle => (BOTH, &[Kafka, Amqp, Nsq, Http]),
        Rule::SyncProduce => (PRODUCER, &[Kafka, Amqp, Nsq, Http]),
        Rule::TooManyInFlight | Rule::OneConnection => (PRODUCER, &[Kafka, Amqp, Nsq]),
        Rule::TinyBatches => (PRODUCER, &[Kafka, Nsq]),
        // AMQP has no compression.
        Rule::NoCompression => (PRODUCER, &[Kafka, Nsq]),
        // Only Kafka's records have timestamps.
        Rule::Linger => (PRODUCER, &[Kafka]),
        // Kafka's consumers fetch, and acknowledge nothing.
        Rule::Hoarding | Rule::WindowTooSmall => (CONSUMER, &[Amqp, Nsq]),
        Rule::AckDeadline => (CONSUMER, &[Nsq]),
        Rule::Partitions | Rule::FetchRhythm => (CONSUMER, &[Kafka]),
    }
}

/// Versions within every range of a family, and at its ends.
fn versions(family: &Family) -> Vec<String> {
    let ranges = family.advice.iter().flat_map(|entry| {
        let defaults = entry.defaults.iter().map(|it| &it.versions);
        defaults.chain([&entry.versions]).flatten()
    });
    let immune = family.immune.iter().filter_map(|it| it.versions.as_ref());
    let mut all = vec!["0.0.1".to_owned(), "999".to_owned()];
    for range in ranges.chain(immune) {
        for part in range.split(',') {
            let number = part.trim_start_matches([' ', '<', '>', '=']).to_owned();
            all.push(format!("{number}.0.0.1"));
            all.push(number);
        }
    }
    all
}

/// Every client of the family, in every version that it may declare.
fn comers(family: &Family) -> Vec<Client> {
    let unknown = Client {
        protocol: family.protocol,
        library: "nobody knows it".to_owned(),
        ..client("", "", "")
    };
    let clients = family.client.iter().flat_map(|entry| {
        let known = Client {
            protocol: family.protocol,
            ..entry.example()
        };
        let tells = versions(family).into_iter().map(move |version| {
            let before = entry.version_after.as_deref();
            before.map_or(version.clone(), |before| format!("1{before}{version}"))
        });
        let texts = tells.chain([String::new()]);
        texts.map(move |version| Client {
            version,
            ..known.clone()
        })
    });
    let general = family.general.then_some(unknown);
    clients.chain(general).collect()
}

#[test]
fn each_entry_is_the_advice_of_some_finding() {
    let advice = Advice::embedded();
    let mut dead = Vec::new();
    for (name, family) in advice.families() {
        let comers = comers(family);
        let said = |rule: Rule| {
            let (sides, protocols) = reach(rule);
            let sides = sides
                .iter()
                .filter(|_| protocols.contains(&family.protocol));
            let cases = sides.flat_map(|side| Picture::ALL.map(|picture| (*side, picture)));
            let all = cases.flat_map(|(side, picture)| {
                let none = Variables::new();
                let of = |client| advice.of((rule, picture), side, client, &none, &None);
                comers.iter().map(of).collect::<Vec<Advised>>()
            });
            all.collect::<Vec<Advised>>()
        };
        for entry in &family.advice {
            let said = said(entry.rule);
            let changes = || said.iter().flat_map(|it| &it.changes);
            let none = Variables::new();
            let setting = Filled::new(&none, None).fill(&entry.setting, None);
            let is_it = |it: &&Change| it.setting == setting && it.sources == entry.sources;
            let at = format!("{name}: {}, {:?}", entry.rule, entry.setting);
            let sides = reach(entry.rule).0;
            if entry.side.is_some_and(|side| !sides.contains(&side))
                || !changes().any(|it| is_it(&it))
            {
                dead.push(at.clone());
            }
            for default in &entry.defaults {
                let is_told = |it: &Change| it.default.as_ref() == Some(&default.value);
                if !changes().any(|it| is_it(&it) && is_told(it)) {
                    dead.push(format!("{at}, default {:?}", default.value));
                }
            }
            for id in entry.code.keys() {
                let is_theirs = family.client.iter().any(|it| it.ids().any(|it| it == id));
                assert!(is_theirs, "{at}: code for {id}");
            }
        }
        for immune in &family.immune {
            let said = said(immune.rule);
            if !said
                .iter()
                .any(|it| it.immune.as_ref() == Some(&immune.why))
            {
                dead.push(format!("{name}: immune to {}", immune.rule));
            }
        }
    }
    assert!(dead.is_empty(), "never chosen: {dead:#?}");
}
