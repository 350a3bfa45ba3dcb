//! How clients say who they are, and the user that there is without configuration.
//!
//! Source: <https://www.rabbitmq.com/docs/access-control>.

use cloverleaf_access::{InClear, Mechanism, User};

use crate::wire::{Table, Value};

/// The user that there is without configuration, and its password.
const GUEST: &str = "guest";

/// The mechanisms that a client may choose from, the best one first: some take the first that they
/// know. ANONYMOUS is, as in RabbitMQ, `guest` with the password `guest`, and may do what that may.
pub(crate) const MECHANISMS: [Mechanism; 3] = [
    Mechanism::in_clear("PLAIN", plain),
    Mechanism::in_clear("AMQPLAIN", amqplain),
    Mechanism::anonymous(GUEST, GUEST),
];

/// The user that there is without configuration.
pub fn guest() -> User {
    User::new(GUEST).with_configured(GUEST)
}

/// As RabbitMQ reads it, which does not look at whom the client wants to act for.
fn plain(response: &[u8]) -> Option<InClear<'_>> {
    Some(InClear {
        acts_for: b"",
        ..InClear::plain(response)?
    })
}

/// RabbitMQ's AMQPLAIN: a field table without its length, with `LOGIN` and `PASSWORD`.
fn amqplain(response: &[u8]) -> Option<InClear<'_>> {
    let table = Table::check(response).ok()?;
    let text = |name| match table.get(name)? {
        Value::String(bytes) => Some(bytes),
        _ => None,
    };
    Some(InClear {
        acts_for: b"",
        user: text("LOGIN")?,
        password: text("PASSWORD")?,
    })
}
