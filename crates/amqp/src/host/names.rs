//! Names: which are reserved, and those that the server chooses.

use std::borrow::Cow;

use uuid::Uuid;

use crate::exception::{Exception, ReplyCode, Resource};

/// The name under which a client asks for direct replies; with a dot and more behind it, the queue
/// that it gets.
pub const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Our own topics, and those of queues that no other protocol may see.
pub(super) const PRIVATE: &str = "$amqp/";
/// The topic of messages that died before they were stored in a queue; what died in one is routed
/// from there.
pub(super) const DEAD: &str = "$amqp/dead";
/// Where delayed messages arrive when their time has come.
pub(super) const DELAYED: &str = "$amqp/delayed";
/// The engine's own topic for what waits.
const SCHEDULE: &str = "$schedule";

/// As RabbitMQ does with names: without carriage returns and line feeds.
pub(crate) fn strip(name: &str) -> Cow<'_, str> {
    if name.contains(['\r', '\n']) {
        Cow::Owned(name.replace(['\r', '\n'], ""))
    } else {
        Cow::Borrowed(name)
    }
}

/// Names that begin with `amq.` are the server's to give.
pub(super) fn check_reserved(kind: &str, name: &str) -> Result<(), Exception> {
    if name.starts_with("amq.") {
        return Err(reserved(kind, name, "amq.*"));
    }
    Ok(())
}

/// Names of topics that are not for users.
pub(super) fn check_private(name: &str) -> Result<(), Exception> {
    if name.starts_with(PRIVATE) || name == SCHEDULE {
        return Err(reserved("queue", name, "$"));
    }
    Ok(())
}

fn reserved(kind: &str, name: &str, prefix: &str) -> Exception {
    let text = format!("{kind} name '{name}' contains reserved prefix '{prefix}'");
    Exception::new(ReplyCode::AccessRefused, text)
}

/// Nothing is bound to, declared as or deleted from the default exchange.
pub(super) fn check_not_default(name: &str) -> Result<(), Exception> {
    if name.is_empty() {
        return Err(Exception::new(
            ReplyCode::AccessRefused,
            "operation not permitted on the default exchange",
        ));
    }
    Ok(())
}

/// Replies go to their queue through the default exchange alone.
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

/// `amq.gen-…`: a name that nobody guesses.
pub(super) fn server_named(prefix: &str) -> String {
    format!("{prefix}-{}", token())
}

/// The name of a queue for direct replies.
pub(super) fn reply_queue() -> String {
    format!("{DIRECT_REPLY_TO}.{}", token())
}

/// 122 random bits in 22 characters of the alphabet for URLs.
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

/// 405, 404 and the like name their resource: "queue 'q' in vhost '/' in use".
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
        assert_eq!(strip("a\r\nb"), "ab");
        assert!(check_reserved("queue", "amq.mine").is_err());
        assert!(check_private("$amqp/dead").is_err() && check_private("$schedule").is_err());
        assert!(check_private("$mine").is_ok());
    }
}
