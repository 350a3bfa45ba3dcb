//! Topic and channel names: which are valid, which are ephemeral, and how nsqd quotes a bad one.

/// Longest topic or channel name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// The suffix of an ephemeral topic or channel, which is deleted with its last consumer.
const EPHEMERAL: &[u8] = b"#ephemeral";

/// Which bytes a name may have, before an optional `#ephemeral`.
static NAME_BYTES: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        allowed[byte] = (byte as u8).is_ascii_alphanumeric()
            || byte as u8 == b'.'
            || byte as u8 == b'_'
            || byte as u8 == b'-';
        byte += 1;
    }
    allowed
};

/// Returns `name` as text if it is a valid topic or channel name: `^[.a-zA-Z0-9_-]+(#ephemeral)?$`,
/// 1 to 64 bytes.
pub fn valid_name(name: &[u8]) -> Option<&str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let stem = name.strip_suffix(EPHEMERAL).unwrap_or(name);
    if stem.is_empty() || !stem.iter().all(|byte| NAME_BYTES[usize::from(*byte)]) {
        return None;
    }
    std::str::from_utf8(name).ok()
}

/// Whether a topic or channel of this name is ephemeral.
pub fn is_ephemeral(name: &str) -> bool {
    name.as_bytes().ends_with(EPHEMERAL)
}

/// `bytes` in double quotes, escaped as by Go's `%q`, because nsqd's error texts use it.
pub fn quoted(bytes: &[u8]) -> String {
    use std::fmt::Write;

    let mut text = String::with_capacity(bytes.len() + 2);
    text.push('"');
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            push_quoted(&mut text, character);
        }
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text.push('"');
    text
}

fn push_quoted(text: &mut String, character: char) {
    use std::fmt::Write;

    let escaped = match character {
        '"' => "\\\"",
        '\\' => "\\\\",
        '\x07' => "\\a",
        '\x08' => "\\b",
        '\x0c' => "\\f",
        '\n' => "\\n",
        '\r' => "\\r",
        '\t' => "\\t",
        '\x0b' => "\\v",
        '\'' => "'",
        _ if character.is_ascii_control() => {
            let _ = write!(text, "\\x{:02x}", character as u32);
            return;
        }
        // `escape_debug` escapes the characters that are not printable, but in Rust's notation.
        _ if character.escape_debug().len() > 1 => {
            let code = character as u32;
            let _ = if code > 0xffff {
                write!(text, "\\U{code:08x}")
            } else {
                write!(text, "\\u{code:04x}")
            };
            return;
        }
        _ => {
            text.push(character);
            return;
        }
    };
    text.push_str(escaped);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_nsqds_pattern() {
        let long = "a".repeat(64);
        let longer = "a".repeat(65);
        for (name, valid) in [
            ("test", true),
            ("test-with_period.", true),
            ("test#ephemeral", true),
            ("test:ephemeral", false),
            ("#ephemeral", false),
            ("a#ephemeral#ephemeral", false),
            ("", false),
            ("two words", false),
            ("ümlaut", false),
            (long.as_str(), true),
            (longer.as_str(), false),
        ] {
            assert_eq!(valid_name(name.as_bytes()).is_some(), valid, "{name}");
        }
        assert!(is_ephemeral("x#ephemeral"));
        assert!(!is_ephemeral("x"));
    }

    #[test]
    fn quoting_is_gos() {
        for (bytes, text) in [
            (&b"plain"[..], r#""plain""#),
            (b"a\"b\\", r#""a\"b\\""#),
            (b"\x00\x07\n\x7f", r#""\x00\a\n\x7f""#),
            (b"\xff\xfe", r#""\xff\xfe""#),
            ("ü'\u{2028}\u{e0001}".as_bytes(), "\"ü'\\u2028\\U000e0001\""),
        ] {
            assert_eq!(quoted(bytes), text);
        }
    }
}
