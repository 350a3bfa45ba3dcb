//! Authentication mechanisms (SASL).

use crate::login::LoginError;
use crate::scram::ScramHash;

/// Maximum bytes of one response: more than any mechanism needs, and at least the frame size of an
/// AMQP client that has not logged in.
pub const RESPONSE_BYTES_MAX: usize = 8 << 10;

/// The response of a mechanism that sends the password in clear.
#[derive(Clone, Copy)]
pub struct ClearCredentials<'a> {
    /// The authorization identity; empty: the user itself.
    pub authorization_id: &'a [u8],
    /// The user's name.
    pub user: &'a [u8],
    /// The password.
    pub password: &'a [u8],
}

/// Parses name and password from a response; `None`: it is malformed.
pub(crate) type ReadInClear = for<'a> fn(&'a [u8]) -> Option<ClearCredentials<'a>>;

/// An authentication mechanism. Each protocol has a list of those that it offers.
#[derive(Clone, Copy)]
pub struct Mechanism {
    name: &'static str,
    pub(crate) kind: MechanismKind,
}

#[derive(Clone, Copy)]
pub(crate) enum MechanismKind {
    InClear(ReadInClear),
    Anonymous {
        user: &'static str,
        password: &'static str,
    },
    Scram(ScramHash),
}

impl Mechanism {
    /// PLAIN: name and password in one response (RFC 4616).
    pub const PLAIN: Mechanism = Mechanism::in_clear("PLAIN", ClearCredentials::plain);
    /// SCRAM-SHA-256 (RFC 7677).
    pub const SCRAM_SHA_256: Mechanism = Mechanism::scram(ScramHash::Sha256);
    /// SCRAM-SHA-512.
    pub const SCRAM_SHA_512: Mechanism = Mechanism::scram(ScramHash::Sha512);

    /// A protocol's own mechanism with name and password in one response.
    pub const fn in_clear(name: &'static str, read: ReadInClear) -> Mechanism {
        let kind = MechanismKind::InClear(read);
        Mechanism { name, kind }
    }

    /// ANONYMOUS: a client without a name logs in as this user, if the user has this password (RFC
    /// 4505, with RabbitMQ's `anonymous_login_user` and `anonymous_login_pass`).
    pub const fn anonymous(user: &'static str, password: &'static str) -> Mechanism {
        Mechanism {
            name: "ANONYMOUS",
            kind: MechanismKind::Anonymous { user, password },
        }
    }

    const fn scram(hash: ScramHash) -> Mechanism {
        Mechanism {
            name: hash.mechanism(),
            kind: MechanismKind::Scram(hash),
        }
    }

    /// Its SASL name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The offered mechanism of this name.
    ///
    /// # Errors
    /// No offered mechanism has this name.
    pub fn find(offered: &[Mechanism], name: &str) -> Result<Mechanism, LoginError> {
        let found = offered.iter().find(|mechanism| mechanism.name == name);
        found.copied().ok_or_else(|| LoginError::Mechanism {
            mechanism: name.to_owned(),
        })
    }
}

impl ClearCredentials<'_> {
    /// Parses a response of PLAIN: authorization identity, user and password, separated by zero
    /// bytes.
    pub fn plain(response: &[u8]) -> Option<ClearCredentials<'_>> {
        let mut parts = response.splitn(3, |byte| *byte == 0);
        Some(ClearCredentials {
            authorization_id: parts.next()?,
            user: parts.next()?,
            password: parts.next()?,
        })
    }
}
