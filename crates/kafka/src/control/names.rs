//! Kafka's rules for topic names, and conversion of text for answers.

use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;

/// Maximum length of a topic name in bytes. Kafka has this limit because its folders are named
/// after topics. Clients check it, too.
const TOPIC_NAME_BYTES_MAX: usize = 249;

/// The reason why a topic name is invalid in Kafka; `None`: it is valid.
pub(crate) fn topic_name_fault(name: &str) -> Option<String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match name {
        "" => Some("the empty string is not allowed".to_owned()),
        "." | ".." => Some(format!("'{name}' is not allowed")),
        _ if name.len() > TOPIC_NAME_BYTES_MAX => Some(format!(
            "it has {} bytes, at most {TOPIC_NAME_BYTES_MAX} are allowed",
            name.len()
        )),
        _ if !name.bytes().all(is_legal) => Some(format!(
            "'{}' contains other characters than ASCII letters, digits, '.', '_' and '-'",
            name.escape_debug()
        )),
        _ => None,
    }
}

/// Text for an answer.
pub(crate) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Maximum length of an error message in bytes. A message may quote the request, and strings have
/// an i16 length before flexible versions.
const MESSAGE_BYTES_MAX: usize = 1_000;

/// An error message for an answer.
pub(crate) fn message(reason: &str) -> Option<StrBytes> {
    Some(text(
        &reason[..reason.floor_char_boundary(MESSAGE_BYTES_MAX)],
    ))
}

/// A topic's name for an answer.
pub(crate) fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_kafka_takes() {
        for name in ["a", "orders.v1", "_x-Y9", "...", &"n".repeat(249)] {
            assert_eq!(topic_name_fault(name), None, "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "a b",
            "a#ephemeral",
            "ä",
            "a/b",
            &"n".repeat(250),
        ] {
            assert!(topic_name_fault(name).is_some(), "{name}");
        }
    }
}
