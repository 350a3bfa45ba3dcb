//! The query string of a request, read as Go's `net/url` reads it, since that is what NSQ's
//! clients have been written against.
//!
//! `key=value` pairs between `&`; `+` is a space; `%XX` is a byte. A semicolon or a broken escape
//! makes the whole query invalid. A key may come several times: the first value counts.

use crate::http::HttpError;

/// The decoded parameters of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Decodes the part after the `?`.
    ///
    /// # Errors
    /// [`HttpError::InvalidRequest`] if it is malformed.
    pub fn parse(query: &str) -> Result<Query, HttpError> {
        let mut pairs = Vec::new();
        for piece in query.split('&').filter(|piece| !piece.is_empty()) {
            if piece.contains(';') {
                return Err(HttpError::InvalidRequest);
            }
            let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
            pairs.push((unescape(key)?, unescape(value)?));
        }
        Ok(Query { pairs })
    }

    /// The first value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }

    /// The value of `key` as one of nsqd's booleans: `true`, `1`, `false`, `0`. Anything else is
    /// `None`, which each command reads in its own way.
    pub fn get_bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        }
    }
}

/// Undoes `+` and `%XX`. Bytes that are not UTF-8 become replacement characters, which no valid
/// name contains, so that such a name is refused as invalid.
fn unescape(text: &str) -> Result<String, HttpError> {
    if !text.bytes().any(|b| b == b'%' || b == b'+') {
        return Ok(text.to_owned());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let high = bytes
                    .next()
                    .and_then(hex)
                    .ok_or(HttpError::InvalidRequest)?;
                let low = bytes
                    .next()
                    .and_then(hex)
                    .ok_or(HttpError::InvalidRequest)?;
                high << 4 | low
            }
            other => other,
        });
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}

/// Encodes `text` so that it can stand as a value in a query string or as a segment of a path.
pub fn escape(text: &str) -> String {
    use std::fmt::Write;

    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte as char);
            }
            other => {
                // Writing to a String cannot fail.
                let _ = write!(out, "%{other:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_value_counts() {
        let query = Query::parse("topic=a&topic=b&x&y=").unwrap();
        assert_eq!(query.get("topic"), Some("a"));
        assert_eq!(query.get("x"), Some(""));
        assert_eq!(query.get("y"), Some(""));
        assert_eq!(query.get("z"), None);
    }

    #[test]
    fn escapes_are_undone() {
        let query = Query::parse("channel=c%23ephemeral&a+b=%41+").unwrap();
        assert_eq!(query.get("channel"), Some("c#ephemeral"));
        assert_eq!(query.get("a b"), Some("A "));
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for bad in ["a=%", "a=%4", "a=%zz", "a;b=1", "%"] {
            assert_eq!(Query::parse(bad), Err(HttpError::InvalidRequest), "{bad}");
        }
    }

    #[test]
    fn booleans_are_those_of_nsqd() {
        let query = Query::parse("a=true&b=0&c=yes").unwrap();
        assert_eq!(query.get_bool("a"), Some(true));
        assert_eq!(query.get_bool("b"), Some(false));
        assert_eq!(query.get_bool("c"), None);
        assert_eq!(query.get_bool("d"), None);
    }

    proptest! {
        #[test]
        fn any_query_is_parsed_or_refused(query in ".{0,200}") {
            let _ = Query::parse(&query);
        }

        #[test]
        fn escape_and_parse_are_inverse(value in ".{0,40}") {
            let query = Query::parse(&format!("k={}", escape(&value))).unwrap();
            prop_assert_eq!(query.get("k"), Some(value.as_str()));
        }
    }
}
