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
    advice().of(rule, Side::Producer, client, &variables, &place)
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
    // The same value is what it is anyway in a later version.
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
