//! Validation of subjects, and their tokens.

/// The byte between two tokens.
pub(crate) const SEPARATOR: u8 = b'.';
/// The token that stands for one token.
pub(crate) const ONE: &[u8] = b"*";
/// The last token that stands for one or more tokens.
pub(crate) const REST: &[u8] = b">";

/// The tokens of a subject or pattern. An empty text has one empty token, as in nats-server's
/// `tokenizeSubjectIntoSlice`.
pub fn tokens(subject: &[u8]) -> impl Iterator<Item = &[u8]> {
    subject.split(|byte| *byte == SEPARATOR)
}

/// The bytes before the first separator.
pub(crate) fn first_token(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == SEPARATOR);
    &text[..end.unwrap_or(text.len())]
}

/// Whether a token is empty: the trie of nats-server (`Sublist.match`) finds no pattern for such a
/// subject, not even `>`.
pub(crate) fn has_empty_token(subject: &[u8]) -> bool {
    let mut previous = SEPARATOR;
    for byte in subject {
        if *byte == SEPARATOR && previous == SEPARATOR {
            return true;
        }
        previous = *byte;
    }
    previous == SEPARATOR
}

/// Whether no token is empty, and `>` is the last token if it is there (`Sublist.Insert`).
pub(crate) fn has_pattern_tokens(pattern: &[u8]) -> bool {
    let mut ended = false;
    for token in tokens(pattern) {
        if token.is_empty() || ended {
            return false;
        }
        ended = token == REST;
    }
    true
}

/// Whether this is a valid subject or pattern (`IsValidSubject`): no token is empty, `>` is the
/// last token if it is there, and there is no blank, tab, line feed, form feed or carriage return.
/// Other control characters are valid, as in nats-server.
pub fn is_valid_subject(subject: &[u8]) -> bool {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c');
    has_pattern_tokens(subject) && !subject.iter().any(blank)
}

/// Whether no token is empty, and none is a wildcard (`IsValidLiteralSubject`). This is the check
/// of a publish on a pedantic connection. It does not look for blanks.
pub fn is_valid_literal_subject(subject: &[u8]) -> bool {
    !has_empty_token(subject) && is_literal(subject)
}

/// Whether this is a valid subject without wildcards (`IsValidPublishSubject`).
pub fn is_valid_publish_subject(subject: &[u8]) -> bool {
    is_valid_subject(subject) && is_literal(subject)
}

/// Whether no token is a wildcard (`subjectIsLiteral`). The subject may be invalid otherwise.
pub fn is_literal(subject: &[u8]) -> bool {
    tokens(subject).all(|token| token != ONE && token != REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_are_invalid_and_other_control_characters_are_not() {
        for valid in [
            "a", "a.b", "*", ">", "a.*.>", "a*.>b.**", "\0", "a.\u{7f}", "ü",
        ] {
            assert!(is_valid_subject(valid.as_bytes()), "{valid:?}");
        }
        for invalid in [
            "", ".", "a.", ".a", "a..b", ">.a", "a.>.>", "a b", " ", "a.\t", "\n", "a\x0c", "\r.a",
        ] {
            assert!(!is_valid_subject(invalid.as_bytes()), "{invalid:?}");
        }
    }

    #[test]
    fn a_wildcard_is_a_whole_token() {
        for literal in ["a*", "*a.b", "a.>>", "a.b>"] {
            assert!(is_literal(literal.as_bytes()), "{literal}");
            assert!(is_valid_publish_subject(literal.as_bytes()), "{literal}");
        }
        for wildcards in ["*", "a.*", ">", "a.>", "a.*.b", ">.a"] {
            assert!(!is_literal(wildcards.as_bytes()), "{wildcards}");
            assert!(
                !is_valid_literal_subject(wildcards.as_bytes()),
                "{wildcards}"
            );
        }
    }

    #[test]
    fn the_check_of_pedantic_connections_accepts_blanks() {
        assert!(is_valid_literal_subject(b"a b"));
        assert!(!is_valid_publish_subject(b"a b"));
        assert!(!is_valid_literal_subject(b""));
        assert!(!is_valid_literal_subject(b"a."));
    }
}
