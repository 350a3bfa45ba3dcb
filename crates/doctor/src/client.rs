//! Who a finding is about: connections that belong to one program.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use cloverleaf_telemetry::{Identity, Protocol};
use serde::{Deserialize, Serialize};

/// Connections with the same address (without the port), protocol, library and name: mostly one
/// process, or several alike on one machine. What a client says of itself proves nothing, but
/// whoever lies about it is told about a client of that name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Client {
    /// Its address.
    pub address: IpAddr,
    /// What it speaks.
    pub protocol: Protocol,
    /// Its library; empty when it did not say.
    pub library: String,
    /// The library's version; empty when it did not say.
    pub version: String,
    /// The name that it gave itself; empty when none.
    pub client_id: String,
    /// What it says that it runs on; empty when nothing.
    pub platform: String,
}

impl Client {
    /// Of a connection.
    pub(crate) fn of(protocol: Protocol, peer: SocketAddr, identity: &Identity) -> Client {
        Client {
            // The same address, however the socket writes it.
            address: peer.ip().to_canonical(),
            protocol,
            library: identity.library.clone(),
            version: identity.version.clone(),
            client_id: identity.client_id.clone(),
            platform: identity.platform.clone(),
        }
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

/// `confluent-kafka 2.3.0 "billing" at 10.0.0.7`. Nothing in it moves the cursor of a terminal.
impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text: &str| printable(text, SHOWN_CHARS_MAX);
        match self.library.as_str() {
            "" => write!(f, "unknown {} client", self.protocol.name())?,
            library => write!(f, "{}", shown(library))?,
        }
        if !self.version.is_empty() {
            write!(f, " {}", shown(&self.version))?;
        }
        if !self.client_id.is_empty() {
            write!(f, " \"{}\"", shown(&self.client_id))?;
        }
        write!(f, " at {}", self.address)
    }
}

/// Most characters of each of a client's texts in a line that is printed.
const SHOWN_CHARS_MAX: usize = 40;

/// A letter for a terminal: control characters, and those that turn the direction of a text, are
/// question marks.
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

/// A text of a stranger's for a terminal: shortened, and without control characters.
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
