//! Names: reserved ones, and those that the server generates.

use std::borrow::Cow;

use uuid::Uuid;

use crate::exception::{Exception, ReplyCode, Resource};

/// The pseudo-queue from which a client consumes direct replies; followed by a dot and a token, the
/// queue that it gets.
pub const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Prefix of the broker's own topics, and of the topics of queues that other protocols must not
/// see.
pub(super) const PRIVATE_PREFIX: &str = "$amqp/";
/// The hidden topic of dead-lettered messages that were never stored in a queue. It is also the
/// dead-letter topic in the options of queues' subscriptions, whose dead messages are routed from
/// the queue itself.
pub(super) const DEAD_TOPIC: &str = "$amqp/dead";
/// The hidden topic in which delayed messages appear once their delay is over.
pub(super) const DELAYED_TOPIC: &str = "$amqp/delayed";
/// The broker's own topic of delayed messages.
const SCHEDULE_TOPIC: &str = "$schedule";

/// Removes carriage returns and line feeds from a name, as RabbitMQ does.
pub(crate) fn strip_newlines(name: &str) -> Cow<'_, str> {
    if name.contains(['\r', '\n']) {
        Cow::Owned(name.replace(['\r', '\n'], ""))
    } else {
        Cow::Borrowed(name)
    }
}

/// Refuses names that begin with `amq.`: only the server may use them.
pub(super) fn check_reserved(kind: &str, name: &str) -> Result<(), Exception> {
    if name.starts_with("amq.") {
        return Err(reserved(kind, name, "amq.*"));
    }
    Ok(())
}

/// Refuses names of the broker's own topics.
pub(super) fn check_private(name: &str) -> Result<(), Exception> {
    if name.starts_with(PRIVATE_PREFIX) || name == SCHEDULE_TOPIC {
        return Err(reserved("queue", name, "$"));
    }
    Ok(())
}

fn reserved(kind: &str, name: &str, prefix: &str) -> Exception {
    let text = format!("{kind} name '{name}' contains reserved prefix '{prefix}'");
    Exception::new(ReplyCode::AccessRefused, text)
}

/// Refuses the default exchange, which cannot be declared, deleted, bound or unbound.
pub(super) fn check_not_default(name: &str) -> Result<(), Exception> {
    if name.is_empty() {
        return Err(Exception::new(
            ReplyCode::AccessRefused,
            "operation not permitted on the default exchange",
        ));
    }
    Ok(())
}

/// Refuses direct reply-to queues: they get their messages through the default exchange only.
pub(super) fn check_no_reply_queue(name: &str) -> Result<(), Exception> {
    if is_reply_queue(name) {
        return Err(Exception::new(
            ReplyCode::AccessRefused,
            "cannot bind or unbind to a volatile (direct reply-to) queue",
        ));
    }
    Ok(())
}

pub(crate) fn is_reply_queue(name: &str) -> bool {
    name.starts_with(DIRECT_REPLY_TO)
}

/// An unguessable name such as `amq.gen-…`.
pub(super) fn server_named(prefix: &str) -> String {
    format!("{prefix}-{}", token())
}

/// The name of a direct reply-to queue.
pub(super) fn reply_queue() -> String {
    format!("{DIRECT_REPLY_TO}.{}", token())
}

/// 122 random bits in 22 characters of the URL-safe Base64 alphabet.
fn token() -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bits = Uuid::new_v4().as_u128();
    let mut text = String::with_capacity(22);
    for _ in 0..22 {
        text.push(char::from(ALPHABET[(bits & 63) as usize]));
        bits >>= 6;
    }
    text
}

/// 406: the resource is in use.
pub(super) fn in_use(resource: &Resource<'_>) -> Exception {
    Exception::precondition(format!("{resource} in use"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_server_differ_and_can_be_spelled() {
        let (one, other) = (server_named("amq.gen"), server_named("amq.gen"));
        assert_ne!(one, other);
        assert_eq!(one.len(), "amq.gen-".len() + 22);
        assert!(is_reply_queue(&reply_queue()));
        assert_eq!(strip_newlines("a\r\nb"), "ab");
        assert!(check_reserved("queue", "amq.mine").is_err());
        assert!(check_private("$amqp/dead").is_err() && check_private("$schedule").is_err());
        assert!(check_private("$mine").is_ok());
    }
}
