//! The login mechanisms, and the user that exists without configuration.
//!
//! Source: <https://www.rabbitmq.com/docs/access-control>.

use cloverleaf_access::{ClearCredentials, Mechanism, User};

use crate::wire::{Table, Value};

/// Name and password of the user that exists without configuration.
const GUEST: &str = "guest";

/// The mechanisms offered to clients, best first: some clients take the first one that they know.
/// As in RabbitMQ, ANONYMOUS logs in as `guest` with the password `guest`.
pub(crate) const MECHANISMS: [Mechanism; 3] = [
    Mechanism::in_clear("PLAIN", plain),
    Mechanism::in_clear("AMQPLAIN", amqplain),
    Mechanism::anonymous(GUEST, GUEST),
];

/// The user that exists without configuration.
pub fn guest() -> User {
    User::new(GUEST).with_configured(GUEST)
}

/// PLAIN as RabbitMQ reads it: the authorization identity (whom to act for) is ignored.
fn plain(response: &[u8]) -> Option<ClearCredentials<'_>> {
    Some(ClearCredentials {
        authorization_id: b"",
        ..ClearCredentials::plain(response)?
    })
}

/// RabbitMQ's AMQPLAIN: a field table without its length, with `LOGIN` and `PASSWORD`.
fn amqplain(response: &[u8]) -> Option<ClearCredentials<'_>> {
    let table = Table::check(response).ok()?;
    let text = |name| match table.get(name)? {
        Value::String(bytes) => Some(bytes),
        _ => None,
    };
    Some(ClearCredentials {
        authorization_id: b"",
        user: text("LOGIN")?,
        password: text("PASSWORD")?,
    })
}
