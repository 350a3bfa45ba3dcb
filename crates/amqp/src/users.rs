//! Who may connect: names and passwords, and where `guest` may come from.
//!
//! Source: <https://www.rabbitmq.com/docs/access-control>: without configuration there is the user
//! `guest` with the password `guest`, who may connect from the same machine only.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::wire::{Table, Value};

/// The user that there is without configuration, and its password.
pub const GUEST: &str = "guest";

/// The mechanisms that a client may choose from, the best one first: some take the first that they
/// know. ANONYMOUS is, as in RabbitMQ, `guest` with the password `guest`, and may do what that may.
pub(crate) const MECHANISMS: &str = "PLAIN AMQPLAIN ANONYMOUS";

/// Names and passwords.
#[derive(Clone)]
pub struct Users {
    passwords: BTreeMap<String, String>,
    /// `guest` is who it is without configuration: for the same machine only.
    guest_is_local: bool,
}

impl Default for Users {
    fn default() -> Self {
        Self {
            passwords: BTreeMap::from([(GUEST.to_owned(), GUEST.to_owned())]),
            guest_is_local: true,
        }
    }
}

impl std::fmt::Debug for Users {
    /// Without passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.passwords.keys()).finish()
    }
}

/// Why somebody may not connect: for our own log, never for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// No such user, or another password.
    #[error("user '{user}' - invalid credentials")]
    Credentials {
        /// The name that was given.
        user: String,
    },
    /// `guest` from another machine.
    #[error("user '{user}' can only connect via localhost")]
    NotLocal {
        /// The name.
        user: String,
    },
    /// The response is not what its mechanism prescribes.
    #[error("malformed response")]
    Malformed,
    /// A mechanism that was not offered.
    #[error("unknown authentication mechanism '{mechanism}'")]
    Mechanism {
        /// Its name.
        mechanism: String,
    },
}

impl Users {
    /// These users with their passwords, and nobody else.
    pub fn new(users: impl IntoIterator<Item = (String, String)>) -> Self {
        Self {
            passwords: users.into_iter().collect(),
            guest_is_local: false,
        }
    }

    /// Says who a client is that answers `connection.start`.
    ///
    /// # Errors
    /// It may not connect.
    pub(crate) fn authenticate(
        &self,
        mechanism: &str,
        response: &[u8],
        peer: IpAddr,
    ) -> Result<String, Refused> {
        let (user, password) = match mechanism {
            "PLAIN" => plain(response),
            "AMQPLAIN" => amqplain(response),
            // Whatever trace of itself a client may send.
            "ANONYMOUS" => Some((GUEST.as_bytes(), GUEST.as_bytes())),
            mechanism => {
                let mechanism = mechanism.to_owned();
                return Err(Refused::Mechanism { mechanism });
            }
        }
        .ok_or(Refused::Malformed)?;
        let (user, password) = match (std::str::from_utf8(user), std::str::from_utf8(password)) {
            (Ok(user), Ok(password)) => (user, password),
            _ => return Err(Refused::Malformed),
        };
        let known = self.passwords.get(user);
        // A comparison also for a name that nobody has, so that both take the same time.
        let expected = known.map_or(password, String::as_str);
        let matches = is_same(expected, password) && known.is_some();
        let user = user.to_owned();
        if !matches {
            return Err(Refused::Credentials { user });
        }
        if self.guest_is_local && !peer.to_canonical().is_loopback() {
            return Err(Refused::NotLocal { user });
        }
        Ok(user)
    }
}

/// Compares all of it, so that the time does not tell how much is right.
fn is_same(a: &str, b: &str) -> bool {
    let differ = |(a, b): (u8, u8)| u8::from(a != b);
    let same_length = a.len() == b.len();
    let different: u8 = a.bytes().zip(b.bytes()).map(differ).fold(0, |x, y| x | y);
    same_length && different == 0
}

/// SASL's PLAIN: an identity to act for, which nobody has here, user and password, each behind a 0.
///
/// Source: RFC 4616.
fn plain(response: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = response.splitn(3, |byte| *byte == 0);
    let (_acts_for, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    Some((user, password))
}

/// RabbitMQ's AMQPLAIN: a field table without its length, with `LOGIN` and `PASSWORD`.
fn amqplain(response: &[u8]) -> Option<(&[u8], &[u8])> {
    let table = Table::check(response).ok()?;
    let text = |name| match table.get(name)? {
        Value::String(bytes) => Some(bytes),
        _ => None,
    };
    Some((text("LOGIN")?, text("PASSWORD")?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::wire::table_bytes;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    #[test]
    fn guest_comes_from_this_machine_only() {
        let users = Users::default();
        let response = b"\0guest\0guest";
        assert_eq!(
            users.authenticate("PLAIN", response, HERE).unwrap(),
            "guest"
        );
        let mapped = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        assert!(users.authenticate("PLAIN", response, mapped).is_ok());
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert!(users.authenticate("PLAIN", response, v6).is_ok());
        let refused = users.authenticate("PLAIN", response, ELSEWHERE);
        let user = "guest".to_owned();
        assert_eq!(refused, Err(Refused::NotLocal { user }));
    }

    #[test]
    fn nobody_in_particular_is_guest() {
        let users = Users::default();
        for trace in [&b""[..], b"sigorney", b"\0"] {
            let user = users.authenticate("ANONYMOUS", trace, HERE);
            assert_eq!(user.unwrap(), "guest");
        }
        let user = "guest".to_owned();
        let refused = users.authenticate("ANONYMOUS", b"", ELSEWHERE);
        assert_eq!(refused, Err(Refused::NotLocal { user: user.clone() }));
        let users = Users::new([("guest".to_owned(), "secret".to_owned())]);
        let refused = users.authenticate("ANONYMOUS", b"", HERE);
        assert_eq!(refused, Err(Refused::Credentials { user }));
    }

    #[test]
    fn a_password_must_be_right() {
        let users = Users::new([("ann".to_owned(), "secret".to_owned())]);
        let plain = |response: &[u8]| users.authenticate("PLAIN", response, ELSEWHERE);
        assert_eq!(plain(b"\0ann\0secret").unwrap(), "ann");
        assert_eq!(plain(b"other\0ann\0secret").unwrap(), "ann");
        for wrong in [
            &b"\0ann\0secre"[..],
            b"\0ann\0secret2",
            b"\0ann\0",
            b"\0bob\0",
            b"\0guest\0guest",
        ] {
            assert!(matches!(plain(wrong), Err(Refused::Credentials { .. })));
        }
        for malformed in [&b"ann"[..], b"\0ann", b"", b"\0\xff\0secret"] {
            assert_eq!(plain(malformed), Err(Refused::Malformed));
        }
        let table = table_bytes(&[
            ("LOGIN", Value::String(b"ann")),
            ("PASSWORD", Value::String(b"secret")),
        ]);
        let by_table = users.authenticate("AMQPLAIN", &table, HERE);
        assert_eq!(by_table.unwrap(), "ann");
        let cut = users.authenticate("AMQPLAIN", &table[1..], HERE);
        assert_eq!(cut, Err(Refused::Malformed));
        let unknown = users.authenticate("EXTERNAL", b"", HERE);
        assert!(matches!(unknown, Err(Refused::Mechanism { .. })));
    }
}
