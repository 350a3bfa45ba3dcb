//! The place of a broker: `nsq://host:port`, `kafka://user:password@host`, `embedded:amqp` …
//!
//! ```text
//! [label=]protocol://[user[:password]@]host[:port][,host[:port]…][/path][?option=value&option…]
//! [label=]embedded:protocol[?option…]
//! ```
//!
//! The label is the broker's name in tables; it has no colon. Options are the client's; what each
//! client understands stands in its own module. `%41` in users, passwords, paths and options is
//! `A`: an `@` of a path or an option is written `%40`, a `/` or `?` of a password `%2F` and `%3F`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use cloverleaf_telemetry::Protocol;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::clients::client_of;
use crate::driver::{Connect, DriverError};
use cloverleaf_page::secrets::{self, HIDDEN, is_secret};

/// The protocols that a URL may name.
fn named() -> impl Iterator<Item = Protocol> {
    let all = Protocol::ALL.into_iter();
    // Where a client asks HTTP beside, that is an option of its URL.
    all.filter(|protocol| *protocol != Protocol::Http)
}

/// The protocols for the command line, by their names.
pub(crate) fn protocol_values() -> impl TypedValueParser<Value = Protocol> {
    let values = named().map(|it| PossibleValue::new(it.name()).help(it.traits().about));
    PossibleValuesParser::new(values).try_map(|name| parse_protocol(&name))
}

/// The address of a broker, and how to connect to it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Url {
    /// The protocol that is spoken there.
    pub protocol: Protocol,
    /// The broker's name in tables, if the user gave one.
    pub label: Option<String>,
    /// Hosts and ports; empty: a broker that this program starts itself.
    pub hosts: Vec<(String, u16)>,
    /// The name of the user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The part after the host, without its slash; `None`: there is no slash.
    pub path: Option<String>,
    options: BTreeMap<String, String>,
    /// Where sockets connect to in place of the hosts, if a proxy is between. It is never shown.
    #[serde(skip)]
    via: Option<Vec<(String, u16)>>,
}

/// Errors in a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// There is no protocol.
    #[error(
        "\"{0}\" does not say what is spoken there: write nsq://host:4150, kafka://host:9092, \
         amqp://host:5672, or embedded:nsq for a broker in this program"
    )]
    NoProtocol(String),
    /// The protocol is unknown.
    #[error("\"{0}\" is none of nsq, kafka, amqp, nats")]
    Protocol(String),
    /// There is no such host.
    #[error("\"{0}\" is no host or host:port")]
    Host(String),
    /// The port is no number. It may be a password to which no host was added.
    #[error("the port of \"{0}\" is no number up to 65535: write host:port or user:password@host")]
    Port(String),
    /// The end of the password is ambiguous.
    #[error(
        "there is an @ behind the host: write %40 for it, and in a password %2F for / and %3F for ?"
    )]
    At,
}

impl Url {
    /// A broker that this program starts itself.
    pub fn embedded(protocol: Protocol) -> Url {
        Url {
            protocol,
            label: None,
            hosts: Vec::new(),
            user: None,
            password: None,
            path: None,
            options: BTreeMap::new(),
            via: None,
        }
    }

    /// Has connections go to these hosts and ports, one for each host. Errors still name the hosts.
    pub(crate) fn pass_through(&mut self, places: Vec<(String, u16)>) {
        self.via = Some(places);
    }

    /// The hosts and ports to which sockets connect.
    pub(crate) fn places(&self) -> &[(String, u16)] {
        self.via.as_ref().unwrap_or(&self.hosts)
    }

    /// Whether this program starts the broker itself.
    pub fn is_embedded(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The value of `?name=value`; empty for `?name`.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// Names of all options.
    pub fn option_names(&self) -> impl Iterator<Item = &str> {
        self.options.keys().map(String::as_str)
    }

    /// Sets an option if it is not set.
    pub fn set_default(&mut self, name: &str, value: String) {
        self.options.entry(name.to_owned()).or_insert(value);
    }

    /// Removes an option.
    pub fn remove(&mut self, name: &str) {
        self.options.remove(name);
    }

    /// The broker's name in tables: the user's, or else the URL with all options that affect the
    /// measurement.
    pub fn name(&self) -> String {
        match &self.label {
            Some(label) => label.clone(),
            None => {
                let is_told = |name: &str| !["http", "pid"].contains(&name);
                format!("{self}{}", self.options_text(is_told))
            }
        }
    }

    /// With all options, but without a secret: a condition of each measurement.
    pub fn shown(&self) -> String {
        format!("{self}{}", self.options_text(|_| true))
    }

    /// The URL in the form in which users write it, without a secret.
    pub(crate) fn written(&self) -> String {
        let label = self.label.as_ref().map(|label| format!("{label}="));
        let place = match (&self.user, &self.password) {
            (Some(user), Some(_)) => {
                let login = format!("//{user}@");
                self.to_string()
                    .replacen(&login, &format!("//{user}:{HIDDEN}@"), 1)
            }
            _ => self.to_string(),
        };
        let options = self.options_text(|_| true);
        format!("{}{place}{options}", label.unwrap_or_default())
    }

    /// Options with these names as `?a=b&c`; empty without any.
    fn options_text(&self, is_told: impl Fn(&str) -> bool) -> String {
        let told = self.options.iter().filter(|(name, _)| is_told(name));
        let each = told.map(|(name, value)| match value.as_str() {
            "" => encoded(name),
            _ if is_secret(name) => format!("{}={HIDDEN}", encoded(name)),
            value => format!("{}={}", encoded(name), encoded(value)),
        });
        let each: Vec<String> = each.collect();
        match each.is_empty() {
            true => String::new(),
            false => format!("?{}", each.join("&")),
        }
    }

    /// A text without this URL's secrets.
    pub(crate) fn hidden(&self, text: impl fmt::Display) -> String {
        let options = self.options.iter().filter(|(name, _)| is_secret(name));
        let values = options.map(|(_, value)| value.as_str());
        // A password that is also the user's name may be shown.
        let password = self.password.as_deref();
        let password = password.filter(|it| Some(*it) != self.user.as_deref());
        secrets::without_secrets(&text.to_string(), values.chain(password))
    }

    /// The first host with its port, as `host:port`.
    pub fn host(&self) -> String {
        let first = self.hosts.first();
        first.map_or_else(String::new, |(host, port)| format!("{host}:{port}"))
    }

    /// All hosts and ports to which sockets connect, separated by commas.
    pub fn host_list(&self) -> String {
        list(self.places())
    }

    /// The addresses of all hosts.
    ///
    /// # Errors
    /// A name is not known.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, DriverError> {
        let mut all = Vec::new();
        for (host, port) in self.places() {
            // The brackets of IPv6 belong to the URL.
            let name = host.trim_start_matches('[').trim_end_matches(']');
            let found = (name, *port).to_socket_addrs();
            all.extend(found.map_err(|error| self.unreachable(error))?);
        }
        Ok(all)
    }

    /// The broker cannot be reached.
    pub fn unreachable(&self, reason: impl fmt::Display) -> DriverError {
        DriverError::Connect {
            url: self.to_string(),
            reason: self.hidden(reason),
        }
    }

    /// The broker refuses a request.
    pub fn refused(&self, reason: impl fmt::Display) -> DriverError {
        DriverError::Refused {
            url: self.to_string(),
            reason: self.hidden(reason),
        }
    }

    /// The connection ended.
    pub fn gone(&self, reason: impl fmt::Display) -> DriverError {
        DriverError::Gone {
            url: self.to_string(),
            reason: self.hidden(reason),
        }
    }
}

/// A client for the broker at this URL.
///
/// # Errors
/// There is no client for this protocol, or it does not understand an option.
pub fn connect(url: &Url) -> Result<Box<dyn Connect>, DriverError> {
    (client_of(url.protocol)?.new)(url)
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        let no_protocol = || UrlError::NoProtocol(secrets::mask(text));
        let (before, after) = text.split_once(':').ok_or_else(no_protocol)?;
        let (label, before) = match before.rsplit_once('=') {
            Some((label, protocol)) => (Some(label.to_owned()), protocol),
            None => (None, before),
        };
        let (rest, options) = match after.split_once('?') {
            Some((rest, options)) => (rest, parse_options(options)),
            None => (after, BTreeMap::new()),
        };
        if before == "embedded" {
            let protocol = parse_protocol(rest)?;
            let embedded = Url::embedded(protocol);
            return Ok(Url {
                label,
                options,
                ..embedded
            });
        }
        let rest = rest.strip_prefix("//").ok_or_else(no_protocol)?;
        let protocol = parse_protocol(before)?;
        let behind = after.trim_start_matches('/').find(['/', '?']);
        let behind = behind.and_then(|at| after.trim_start_matches('/').get(at..));
        if behind.is_some_and(|behind| behind.contains('@')) {
            return Err(UrlError::At);
        }
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(decoded(path))),
            None => (rest, None),
        };
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (user, password) = match login.map(|login| login.split_once(':').ok_or(login)) {
            Some(Ok((user, password))) => (Some(decoded(user)), Some(decoded(password))),
            Some(Err(user)) => (Some(decoded(user)), None),
            None => (None, None),
        };
        let hosts = hosts.split(',').map(|host| parse_host(host, protocol));
        Ok(Url {
            protocol,
            label,
            hosts: hosts.collect::<Result<_, _>>()?,
            user,
            password,
            path,
            options,
            via: None,
        })
    }
}

fn list(hosts: &[(String, u16)]) -> String {
    let each = hosts.iter().map(|(host, port)| format!("{host}:{port}"));
    each.collect::<Vec<_>>().join(",")
}

/// Without a secret.
impl fmt::Debug for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.written())
    }
}

/// Without password and options, as in errors.
impl fmt::Display for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.name();
        if self.is_embedded() {
            return write!(out, "embedded:{protocol}");
        }
        write!(out, "{protocol}://")?;
        if let Some(user) = &self.user {
            write!(out, "{user}@")?;
        }
        write!(out, "{}", list(&self.hosts))?;
        if let Some(path) = &self.path {
            write!(out, "/{path}")?;
        }
        Ok(())
    }
}

fn parse_protocol(text: &str) -> Result<Protocol, UrlError> {
    let found = named().find(|it| it.name() == text);
    found.ok_or_else(|| UrlError::Protocol(text.to_owned()))
}

fn parse_host(text: &str, protocol: Protocol) -> Result<(String, u16), UrlError> {
    let wrong = || UrlError::Host(text.to_owned());
    // A colon within brackets is one of IPv6.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => match port.parse() {
            Ok(port) => (host, port),
            Err(_) => return Err(UrlError::Port(host.to_owned())),
        },
        _ => (text, protocol.traits().port),
    };
    let is_plain = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
    match !host.is_empty() && is_plain {
        true => Ok((host.to_owned(), port)),
        false => Err(wrong()),
    }
}

fn parse_options(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}

/// An option's name or value, with `%26` for what would end it.
fn encoded(text: &str) -> String {
    let each = text.split_inclusive(|_: char| true).map(|letter| {
        let ends = |it: char| "%&@#".contains(it) || it.is_whitespace() || it.is_control();
        match letter.contains(ends) {
            true => utf8_percent_encode(letter, NON_ALPHANUMERIC).to_string(),
            false => letter.to_owned(),
        }
    });
    each.collect()
}

/// Decodes `%41` as `A`. Other text is unchanged.
fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_part_is_found() {
        let url: Url = "mq=amqp://me:a%3ab@one:1,two/%2Fprod?raw&pid=7"
            .parse()
            .unwrap();
        assert_eq!(url.protocol, Protocol::Amqp);
        assert_eq!(url.name(), "mq");
        assert_eq!(url.host_list(), "one:1,two:5672");
        assert_eq!(url.user.as_deref(), Some("me"));
        assert_eq!(url.password.as_deref(), Some("a:b"));
        assert_eq!(url.path.as_deref(), Some("/prod"));
        assert_eq!((url.option("raw"), url.option("other")), (Some(""), None));
        assert_eq!(url.option("pid"), Some("7"));
        assert_eq!(url.to_string(), "amqp://me@one:1,two:5672//prod");
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        for (text, host) in [
            ("nsq://a", "a:4150"),
            ("kafka://[::1]", "[::1]:9092"),
            ("nats://[::1]:9/", "[::1]:9"),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(url.host(), host);
            assert_eq!((url.user, url.label), (None, None));
        }
        let url: Url = "ours, durability=disk=embedded:nsq".parse().unwrap();
        assert_eq!(url.name(), "ours, durability=disk");
        let url: Url = "ours=embedded:kafka?x".parse().unwrap();
        assert!(url.is_embedded());
        assert_eq!(url.name(), "ours");
        assert_eq!(url.to_string(), "embedded:kafka");
        assert_eq!(url.shown(), "embedded:kafka?x");
        let address = "nsq://127.0.0.1:1,[::1]:2"
            .parse::<Url>()
            .unwrap()
            .addresses();
        assert_eq!(address.unwrap().len(), 2);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, part) in [
            ("127.0.0.1:4150", "does not say what is spoken"),
            ("nsq", "does not say what is spoken"),
            ("http://a", "\"http\" is none of nsq"),
            ("embedded:mqtt", "\"mqtt\" is none of nsq"),
            ("nsq://a:b", "the port of \"a\" is no number"),
            ("nsq://", "\"\" is no host"),
            ("nsq://::1", "is no host"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let nats: Url = "nats://a".parse().unwrap();
        let error = connect(&nats).err().unwrap().to_string();
        assert!(error.contains("NATS cannot be measured yet"), "{error}");
    }

    #[test]
    fn options_are_shown_and_secrets_are_not() {
        let text = "kafka://me:t0ps@h:1?linger.ms=0&sasl.password=t0p2&pid=7&client.id=a%26b%40c";
        let url: Url = text.parse().unwrap();
        let options = "client.id=a%26b%40c&linger.ms=0";
        let password = "sasl.password=***";
        assert_eq!(url.name(), format!("kafka://me@h:1?{options}&{password}"));
        let shown = format!("kafka://me@h:1?{options}&pid=7&{password}");
        assert_eq!(url.shown(), shown);
        let written = shown.replace("me@", "me:***@");
        assert_eq!(
            (url.written(), format!("{url:?}")),
            (written.clone(), written)
        );
        let again: Url = url.shown().parse().unwrap();
        assert_eq!(again.option("client.id"), Some("a&b@c"));
        let error = url.refused("no t0p2 and no t0ps for me").to_string();
        assert_eq!(error, "kafka://me@h:1 refuses: no *** and no *** for me");
        let guest: Url = "amqp://guest:guest@h".parse().unwrap();
        let error = guest.refused("user 'guest' may not").to_string();
        assert!(error.ends_with("user 'guest' may not"), "{error}");
    }

    #[test]
    fn a_place_between_is_not_named() {
        let mut url: Url = "nsq://far:4150".parse().unwrap();
        url.pass_through(vec![("127.0.0.1".to_owned(), 1)]);
        let told = url.gone("it was closed").to_string();
        assert_eq!(told, "nsq://far:4150 went away: it was closed");
        assert_eq!(url.host_list(), "127.0.0.1:1");
        assert_eq!(url.addresses().unwrap(), [([127, 0, 0, 1], 1).into()]);
    }

    #[test]
    fn errors_show_no_password() {
        for text in [
            "amqp:me:t0ps3cret@h",
            "me:t0ps3cret@h",
            "amqp://me:t0p/s3cret@h",
            "amqp://me:12/t0ps3cret@h",
            "amqp://me:12?t0ps3cret@h",
            "amqp://me:12?t0ps3cret=1@h",
            "amqp://me:t0ps3cret",
            "amqp://me:t0ps3cret@",
            "amqp://me:t0ps3cret@h:port",
            "http://me:t0ps3cret@h",
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_looked_at(text: String) {
            if let Ok(url) = text.parse::<Url>() {
                let _ = (url.name(), url.shown(), url.written());
            }
            let _ = (decoded(&text), encoded(&text), secrets::mask(&text));
        }

        #[test]
        fn what_is_encoded_can_be_decoded(text: String) {
            prop_assert_eq!(decoded(&encoded(&text)), text);
        }
    }
}
