//! The subject of a finding: connections that belong to one program.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use cloverleaf_telemetry::{Identity, Protocol};
use serde::{Deserialize, Serialize};

/// Connections with the same address (without the port), protocol, library and name: usually one
/// process, or several instances of it on one machine. The identity is what the client declares; it
/// is not verified.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Client {
    /// Its address.
    pub address: IpAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its library; empty if not declared.
    pub library: String,
    /// The library's version; empty if not declared.
    pub version: String,
    /// The name that it declared; empty if none. AMQP clients name their connections, and many
    /// number them: `*` replaces the part that differs between connections.
    pub client_id: String,
    /// The platform that it declared; empty if none.
    pub platform: String,
}

impl Client {
    /// The client of a connection.
    pub fn of(protocol: Protocol, peer: SocketAddr, identity: &Identity) -> Client {
        Client {
            // An IPv4 address that the socket reports as mapped to IPv6 is the same address.
            address: peer.ip().to_canonical(),
            protocol,
            library: identity.library.clone(),
            version: identity.version.clone(),
            client_id: if protocol.traits().has_channels {
                shared_name(&identity.client_id)
            } else {
                identity.client_id.clone()
            },
            platform: identity.platform.clone(),
        }
    }

    /// Its name and address, with this text for library and version.
    pub(crate) fn shown_as(&self, library: &str) -> String {
        let name = match self.client_id.as_str() {
            "" => String::new(),
            name => format!(" \"{}\"", printable(name, SHOWN_CHARS_MAX)),
        };
        let library = printable(library, 2 * SHOWN_CHARS_MAX + 1);
        format!("{library}{name} at {}", self.address)
    }

    /// Whether a part of its address, library or name is this text, in any case.
    pub fn matches(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let has = |part: &str| part.to_lowercase().contains(&text);
        has(&self.address.to_string())
            || has(&self.client_id)
            || has(&format!("{} {}", self.library, self.version))
            || has(self.protocol.name())
    }
}

/// The common part of the names of a client's connections: without UUIDs, without numbers after a
/// colon, and without (hexadecimal) ones after a number sign.
fn shared_name(name: &str) -> String {
    let mut shared = String::with_capacity(name.len());
    let whole = without_uuids(name);
    let mut sign = ' ';
    for part in whole.split_inclusive([':', '#']) {
        let (text, end) = match part.strip_suffix([':', '#']) {
            Some(text) => (text, part.chars().next_back()),
            None => (part, None),
        };
        let is_number = match sign {
            ':' => text.bytes().all(|byte| byte.is_ascii_digit()),
            '#' => text.bytes().all(|byte| byte.is_ascii_hexdigit()),
            _ => false,
        };
        if is_number && !text.is_empty() {
            shared.push('*')
        } else {
            shared.push_str(text)
        }
        shared.extend(end);
        sign = end.unwrap_or(' ');
    }
    shared
}

fn without_uuids(name: &str) -> String {
    let mut without = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(letter) = rest.chars().next() {
        let is_uuid = rest.get(..UUID_LEN).is_some_and(is_uuid);
        let taken = if is_uuid { UUID_LEN } else { letter.len_utf8() };
        without.push(if is_uuid { '*' } else { letter });
        rest = rest.get(taken..).unwrap_or_default();
    }
    without
}

/// Letters of a UUID as it is written.
const UUID_LEN: usize = 36;

fn is_uuid(text: &str) -> bool {
    text.bytes().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    })
}

/// `confluent-kafka 2.3.0 "billing" at 10.0.0.7`. Nothing in it moves the cursor of a terminal.
impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text: &str| printable(text, SHOWN_CHARS_MAX);
        let mut library = match self.library.as_str() {
            "" => format!("unknown {} client", self.protocol.name()),
            library => shown(library),
        };
        if !self.version.is_empty() {
            library.push_str(&format!(" {}", shown(&self.version)));
        }
        f.write_str(&self.shown_as(&library))
    }
}

/// Maximum characters of each of a client's texts in a printed line.
const SHOWN_CHARS_MAX: usize = 40;

/// A character for a terminal: control characters, and those that change the direction of a text,
/// become question marks.
pub(crate) fn harmless(letter: char) -> char {
    let turns = matches!(
        letter,
        '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    if letter.is_control() || turns {
        '?'
    } else {
        letter
    }
}

/// A text chosen by a client, for a terminal: shortened, and without control characters.
pub(crate) fn printable(text: &str, chars_max: usize) -> String {
    let mut shown: String = text.chars().take(chars_max).map(harmless).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn client(library: &str, client_id: &str) -> Client {
        let identity = Identity {
            library: library.to_owned(),
            version: "1.2".to_owned(),
            client_id: client_id.to_owned(),
            ..Identity::default()
        };
        Client::of(
            Protocol::Nsq,
            "[::ffff:10.0.0.7]:81".parse().unwrap(),
            &identity,
        )
    }

    #[test]
    fn connections_that_are_numbered_belong_to_one_client() {
        let of = |protocol, name: &str| {
            let identity = Identity {
                client_id: name.to_owned(),
                ..Identity::default()
            };
            Client::of(protocol, "10.0.0.7:81".parse().unwrap(), &identity)
        };
        let same = [
            ["billing#1", "billing#2", "billing#*"],
            ["factory#5c7bfdc1:0", "factory#9a01:12", "factory#*:*"],
            ["app:17", "app:18", "app:*"],
            [
                "é-6f1c2b3a-0d4e-4f5a-8b6c-7d8e9f0a1b2c/a",
                "é-00000000-1111-2222-3333-444444444444/a",
                "é-*/a",
            ],
        ];
        for [one, other, shown] in same {
            let client = of(Protocol::Amqp, one);
            assert_eq!(client, of(Protocol::Amqp, other));
            assert_eq!(client.client_id, shown);
            assert_ne!(of(Protocol::Kafka, one), of(Protocol::Kafka, other));
        }
        for name in [
            "", "billing", "worker-1", "a:b", "c#", "tag#next", "::", "7:",
        ] {
            assert_eq!(of(Protocol::Amqp, name).client_id, name);
        }
    }

    #[test]
    fn it_is_found_by_parts_of_what_it_is() {
        let client = client("go-nsq", "Billing");
        for text in ["10.0.0", "go-nsq 1.2", "billing", "nsq"] {
            assert!(client.matches(text), "{text}");
        }
        assert!(!client.matches("pika"));
        assert_eq!(client.to_string(), "go-nsq 1.2 \"Billing\" at 10.0.0.7");
    }

    #[test]
    fn what_it_says_does_not_reach_the_terminal_as_a_command() {
        let shown = client("\u{1b}[2Jx\u{202e}", &"y".repeat(100)).to_string();
        assert!(shown.starts_with("?[2Jx? 1.2 \"yyyy"), "{shown}");
        assert!(
            shown.contains("y…\"") && shown.chars().count() < 80,
            "{shown}"
        );
    }
}
