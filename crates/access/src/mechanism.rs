//! The ways in which a client proves who it is.

use crate::login::Refused;
use crate::scram::ScramHash;

/// Most bytes of one response: more than any mechanism needs, and no less than what fits into the
/// frames of an AMQP client that has not logged in.
pub const RESPONSE_BYTES_MAX: usize = 8 << 10;

/// A response of a mechanism in clear.
#[derive(Clone, Copy)]
pub struct InClear<'a> {
    /// The user that the client wants to act for; empty: itself.
    pub acts_for: &'a [u8],
    /// The user's name.
    pub user: &'a [u8],
    /// The password.
    pub password: &'a [u8],
}

/// Finds name and password in a response; `None` if it is malformed.
pub(crate) type ReadInClear = for<'a> fn(&'a [u8]) -> Option<InClear<'a>>;

/// A way in which a client proves who it is. A protocol has a list of those that it offers.
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
    /// Name and password behind each other (RFC 4616).
    pub const PLAIN: Mechanism = Mechanism::in_clear("PLAIN", InClear::plain);
    /// SCRAM (RFC 7677).
    pub const SCRAM_SHA_256: Mechanism = Mechanism::scram(ScramHash::Sha256);
    /// The same with another hash.
    pub const SCRAM_SHA_512: Mechanism = Mechanism::scram(ScramHash::Sha512);

    /// One of a protocol's own in which name and password come in one response.
    pub const fn in_clear(name: &'static str, read: ReadInClear) -> Mechanism {
        let kind = MechanismKind::InClear(read);
        Mechanism { name, kind }
    }

    /// A client that says no name is this user, as long as the password is this one (RFC 4505,
    /// with RabbitMQ's `anonymous_login_user` and `anonymous_login_pass`).
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

    /// Its name, as clients and servers say it.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The one of this name among those that are offered.
    ///
    /// # Errors
    /// None has it.
    pub fn find(offered: &[Mechanism], name: &str) -> Result<Mechanism, Refused> {
        let found = offered.iter().find(|mechanism| mechanism.name == name);
        found.copied().ok_or_else(|| Refused::Mechanism {
            mechanism: name.to_owned(),
        })
    }
}

impl InClear<'_> {
    /// Reads PLAIN: whom to act for, user and password, each of the latter two behind a 0.
    pub fn plain(response: &[u8]) -> Option<InClear<'_>> {
        let mut parts = response.splitn(3, |byte| *byte == 0);
        Some(InClear {
            acts_for: parts.next()?,
            user: parts.next()?,
            password: parts.next()?,
        })
    }
}
